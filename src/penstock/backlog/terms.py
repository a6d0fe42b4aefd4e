"""What was agreed about an adopted table: which column is which, what its statuses mean, when it is tried again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, cast

import psycopg
from psycopg import sql

from penstock import retry as strategies
from penstock import validate
from penstock.backlog import ticks
from penstock.backlog.table import MOMENTS, Column, Table
from penstock.database import Connection
from penstock.errors import ValidationError, shown
from penstock.model import Duration
from penstock.retry import Custom, Progressive, Strategy

Mode = Literal["observe", "sidecar", "columns"]
MODES: tuple[Mode, ...] = ("observe", "sidecar", "columns")
Status = str | int | bool
WHOLE = ("smallint", "integer", "bigint", "numeric")


@dataclass(frozen=True)
class Terms:
    """Agreed, and checked against the catalog. Statuses are texts as PostgreSQL writes them."""

    table: Table
    name: str
    mode: Mode
    key: tuple[Column, ...]
    status: Column
    inserted: Column
    failures: Column | None
    last_failure: Column | None
    ready: tuple[str, ...]
    retry: tuple[str, ...]
    done: str
    failed: str | None
    dead: str | None
    strategy: Strategy
    max_attempts: int | None
    sla: timedelta | None
    zone: str

    @property
    def declared(self) -> tuple[str, ...]:
        named = (*self.ready, *self.retry, self.done, self.failed, self.dead)
        return tuple(dict.fromkeys(one for one in named if one is not None))

    @property
    def by_ticks(self) -> bool:
        return isinstance(self.strategy, Progressive)

    @property
    def remembers(self) -> bool:
        """Failures are kept in our sidecar, record by record."""
        return self.mode == "sidecar" and not self.by_ticks

    @cached_property
    def rungs(self) -> list[timedelta]:
        assert isinstance(self.strategy, Progressive)
        return ticks.ladder(self.strategy)

    @cached_property
    def waits(self) -> ticks.Waits:
        return ticks.waits(self.strategy, self.max_attempts)

    @property
    def written(self) -> list[Column]:
        """The columns that a pass writes."""
        return [one for one in (self.status, self.failures, self.last_failure) if one is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "key": [one.name for one in self.key],
            "status": self.status.name,
            "inserted": self.inserted.name,
            "failures": None if self.failures is None else self.failures.name,
            "last_failure": None if self.last_failure is None else self.last_failure.name,
            "ready": list(self.ready),
            "retry": list(self.retry),
            "done": self.done,
            "failed": self.failed,
            "dead": self.dead,
            "tz": self.zone,
        }


def agree(
    connection: Connection,
    table: Table,
    *,
    key: str | Sequence[str] | None = None,
    status: str = "status",
    inserted: str = "date_inserted",
    ready: Sequence[Status] | Status = ("NEW",),
    retry: Sequence[Status] | Status = (),
    done: Status = "SUCCESS",
    failed: Status | None = None,
    dead: Status | None = None,
    strategy: Strategy | str = "progressive",
    failures: str | None = None,
    last_failure: str | None = None,
    max_attempts: int | None = None,
    mode: str | None = None,
    sla: Duration | None = None,
    name: str | None = None,
    tz: str | None = None,
) -> Terms:
    """Everything checked, before anything is written."""
    found = status_column(table.column(status, "status"))
    wanted = strategy_of(strategy)
    columns = failure_columns(table, failures, last_failure)
    chosen = mode_of(mode, columns, wanted)
    words = canonical(connection, found, ready=ready, retry=retry, done=done, failed=failed, dead=dead)
    if max_attempts is not None:
        validate.whole(max_attempts, "max_attempts", 1, 32767)
        if isinstance(wanted, Progressive) and columns[0] is None:
            raise ValidationError(
                "max_attempts: Progressive counts no failures", hint="Its last tier is the end.", field="max_attempts"
            )
    terms = Terms(
        table=table,
        name=name_of(name, table),
        mode=chosen,
        key=key_columns(table, key),
        status=found,
        inserted=moment_column(table, inserted, "inserted"),
        failures=columns[0],
        last_failure=columns[1],
        **words,
        strategy=wanted,
        max_attempts=max_attempts,
        sla=None if sla is None else validate.positive(sla, "sla"),
        zone=zone_of(connection, tz),
    )
    check_words(terms)
    _ = terms.rungs if terms.by_ticks else terms.waits
    return terms


def name_of(name: str | None, table: Table) -> str:
    if name is not None:
        return validate.queue_name(name)
    plain = re.sub(r"[^a-z0-9_.-]+", "_", table.name.lower())[:63].lstrip("_.-")
    return plain or f"table_{table.oid}"


def key_columns(table: Table, key: str | Sequence[str] | None) -> tuple[Column, ...]:
    names = table.primary if key is None else (key,) if isinstance(key, str) else tuple(key)
    if not 1 <= len(names) <= 32 or len({*names}) != len(names):
        said = "it has no primary key" if key is None else f"{shown(key)} does not name columns, each once"
        raise ValidationError(
            f"key: table {table}: {said}", hint="Name the columns that identify a record: key=…", field="key"
        )
    return tuple(table.column(one, "key") for one in names)


def status_column(column: Column) -> Column:
    if column.kind in MOMENTS or column.kind in ("json", "xml", "point"):
        raise ValidationError(
            f"status: column {column.name} is {column.type}, not text, a number, an enum or a boolean", field="status"
        )
    return column


def moment_column(table: Table, name: str, field: str) -> Column:
    column = table.column(name, field)
    if column.kind not in MOMENTS:
        raise ValidationError(
            f"{field}: column {column.name} is {column.type}, not a timestamp or date",
            hint="Name the column that says when a record was inserted." if field == "inserted" else None,
            field=field,
        )
    return column


def failure_columns(
    table: Table, failures: str | None, last_failure: str | None
) -> tuple[Column | None, Column | None]:
    if (failures is None) != (last_failure is None):
        raise ValidationError("failures: failures and last_failure go together", field="failures")
    if failures is None or last_failure is None:
        return None, None
    count = table.column(failures, "failures")
    if count.kind not in WHOLE:
        raise ValidationError(f"failures: column {count.name} is {count.type}, not a whole number", field="failures")
    moment = moment_column(table, last_failure, "last_failure")
    if moment.kind == "date":
        raise ValidationError(f"last_failure: column {moment.name} is a date, without a time", field="last_failure")
    return count, moment


def mode_of(mode: str | None, columns: tuple[Column | None, Column | None], strategy: Strategy) -> Mode:
    natural: Mode = "sidecar" if columns[0] is None else "columns"
    if mode is None:
        return natural
    if mode not in MODES:
        raise ValidationError(f"mode: {shown(mode)} is not one of {', '.join(MODES)}", field="mode")
    if mode == "columns" and natural != "columns":
        hint = "Name them: failures=…, last_failure=…" if not isinstance(strategy, Progressive) else None
        raise ValidationError("mode: columns needs failures and last_failure", hint=hint, field="mode")
    if mode == "sidecar" and natural == "columns":
        raise ValidationError("mode: sidecar writes the status only; leave out failures and last_failure", field="mode")
    return mode


def strategy_of(strategy: object) -> Strategy:
    found = strategies.parse(strategy) if isinstance(strategy, str) else strategy
    if isinstance(found, Custom) or not hasattr(found, "to_json"):
        raise ValidationError(
            f"strategy: {shown(strategy)} can not be stored", hint=f"{strategies.GRAMMAR}", field="strategy"
        )
    return cast("Strategy", found)


def zone_of(connection: Connection, tz: str | None) -> str:
    """In which moments without a zone are read: as told, else the session's."""
    row = connection.execute("select current_setting('timezone')").fetchone()
    found = str(row[0]) if row and tz is None else tz
    if not isinstance(found, str):
        raise ValidationError(f"tz: {shown(tz)} is not the name of a time zone", field="tz")
    try:
        connection.execute("select now() at time zone %s", (found,))
    except psycopg.DataError:
        raise ValidationError(
            f"tz: {shown(tz)} is not a time zone", hint="Such as UTC or Europe/Berlin.", field="tz"
        ) from None
    return found


# --- statuses ---------------------------------------------------------------------------------------------------------


def canonical(
    connection: Connection,
    column: Column,
    *,
    ready: object,
    retry: object,
    done: object,
    failed: object,
    dead: object,
) -> dict[str, Any]:
    """Statuses as the column's type writes them: one that it does not know is refused here."""

    def one(value: object, field: str) -> str:
        if not isinstance(value, (str, int)) or "\x00" in str(value):
            raise ValidationError(f"{field}: {shown(value)} is not a status", field=field)
        statement = sql.SQL("select ({}::{})::text").format(sql.Literal(str(value)), sql.SQL(column.type))
        try:
            row = connection.execute(statement).fetchone()
        except psycopg.DataError:
            labels = enum_labels(connection, column) if column.kind == "enum" else ()
            raise ValidationError(
                f"{field}: {shown(value)} is not a value of column {column.name} ({column.type})",
                hint=f"It has {', '.join(labels)}." if labels else None,
                field=field,
            ) from None
        return str(row[0]) if row else ""

    def several(values: object, field: str) -> tuple[str, ...]:
        listed = [values] if isinstance(values, (str, int)) else list(cast("Sequence[object]", values))
        return tuple(dict.fromkeys(one(value, field) for value in listed))

    again = several(retry, "retry")
    fails = one(failed, "failed") if failed is not None else (again[0] if again else None)
    return {
        "ready": several(ready, "ready"),
        "retry": again,
        "done": one(done, "done"),
        "failed": fails,
        "dead": None if dead is None else one(dead, "dead"),
    }


def enum_labels(connection: Connection, column: Column) -> tuple[str, ...]:
    rows = connection.execute(
        "select e.enumlabel from pg_catalog.pg_enum as e where e.enumtypid = %s::regtype order by e.enumsortorder",
        (column.type,),
    )
    return tuple(str(label) for (label,) in rows)


def check_words(terms: Terms) -> None:
    """A status that means two things would send a record round in circles."""
    if not terms.ready and not terms.retry:
        raise ValidationError("ready: no status says that a record is to be handled", field="ready")
    if both := {*terms.ready} & {*terms.retry}:
        raise ValidationError(f"retry: {shown(both.pop())} is in ready too", field="retry")
    live = {*terms.ready, *terms.retry}
    for field, word in (("done", terms.done), ("dead", terms.dead)):
        if word in live:
            raise ValidationError(f"{field}: {shown(word)} would be handled again and again", field=field)
    if terms.mode == "observe":
        return
    if terms.failed is None and terms.dead is None:
        raise ValidationError("failed: what becomes of a record that failed is not said", field="failed")
    if terms.failed in terms.ready:
        raise ValidationError(
            f"failed: {shown(terms.failed)} is in ready, and would be handled again at once", field="failed"
        )
    if terms.failed == terms.done:
        raise ValidationError(f"failed: {shown(terms.failed)} is done too", field="failed")
