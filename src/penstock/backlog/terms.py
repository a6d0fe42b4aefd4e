"""The terms of an adopted table: which column is which, what its statuses mean, when records are retried."""

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
from penstock.backlog.table import MOMENTS, ZONED, Column, Table, find_first_key
from penstock.client.connections import Connection
from penstock.errors import AuthError, Conflict, ValidationError, shown
from penstock.model import Duration
from penstock.retry import CustomRetry, Progressive, Strategy

Mode = Literal["observe", "sidecar", "columns"]
MODES: tuple[Mode, ...] = ("observe", "sidecar", "columns")
Status = str | int | bool
Ready = Status | None  # None: NULL
WHOLE = ("smallint", "integer", "bigint", "numeric")
TEXTS = ("text", "character varying", "bpchar", "character")


@dataclass(frozen=True)
class Terms:
    """Terms that were agreed on and checked against the catalog. Statuses are texts as PostgreSQL writes them; None is
    NULL."""

    table: Table
    name: str
    mode: Mode
    key: tuple[Column, ...]
    status: Column
    inserted: Column
    failures: Column | None
    last_failure: Column | None
    ready: tuple[str | None, ...]
    retry: tuple[str, ...]
    done: str
    failed: str | None
    dead: str | None
    strategy: Strategy
    max_attempts: int | None
    sla: timedelta | None
    zone: str
    counted: bool = False  # no unique index: the records were counted to check the key

    @property
    def declared(self) -> tuple[str | None, ...]:
        ends = (one for one in (self.done, self.failed, self.dead) if one is not None)
        return tuple(dict.fromkeys((*self.ready, *self.retry, *ends)))

    @property
    def naive(self) -> bool:
        """True if some timestamps have no zone, so that they are read in the zone of the terms."""
        return any(one is not None and one.kind != ZONED for one in (self.inserted, self.last_failure))

    @property
    def by_ticks(self) -> bool:
        return isinstance(self.strategy, Progressive)

    @property
    def remembers(self) -> bool:
        """True if failures are stored in our sidecar table, record by record."""
        return self.mode == "sidecar" and not self.by_ticks

    @cached_property
    def rungs(self) -> list[timedelta]:
        assert isinstance(self.strategy, Progressive)
        return ticks.build_ladder(self.strategy)

    @cached_property
    def waits(self) -> ticks.Waits:
        return ticks.compute_waits(self.strategy, self.max_attempts)

    @property
    def written(self) -> list[Column]:
        """The columns that a pass writes."""
        return [one for one in (self.status, self.failures, self.last_failure) if one is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "key": [one.name for one in self.key],
            "status": self.status.name,
            "inserted": self.inserted.name,
            **({} if self.inserted.expression is None else {"inserted_expression": self.inserted.expression}),
            "failures": None if self.failures is None else self.failures.name,
            "last_failure": None if self.last_failure is None else self.last_failure.name,
            "ready": list(self.ready),
            "retry": list(self.retry),
            "done": self.done,
            "failed": self.failed,
            "dead": self.dead,
            "tz": self.zone,
            **({"count_key": True} if self.counted else {}),
        }


def agree(
    connection: Connection,
    table: Table,
    *,
    key: str | Sequence[str] | None = None,
    status: str = "status",
    inserted: str = "date_inserted",
    inserted_expression: str | None = None,
    ready: Sequence[Ready] | Status = ("NEW",),
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
    count_key: bool = False,
) -> Terms:
    """Checks all terms before anything is written. `inserted_expression` is the stored expression of the index
    `inserted`; it is shown, but never becomes SQL."""
    found = check_status_column(table.column(status, "status"))
    wanted = parse_strategy(strategy)
    columns = find_failure_columns(table, failures, last_failure)
    chosen = choose_mode(mode, columns, wanted)
    words = canonicalize(connection, found, ready=ready, retry=retry, done=done, failed=failed, dead=dead)
    if max_attempts is not None:
        validate.whole(max_attempts, "max_attempts", 1, 32767)
        if isinstance(wanted, Progressive) and columns[0] is None:
            raise ValidationError(
                "max_attempts: Progressive counts no failures", hint="Its last tier is the end.", field="max_attempts"
            )
    zone = find_zone(connection, tz)
    terms = Terms(
        table=table,
        name=choose_name(name, table),
        mode=chosen,
        key=find_key(table, key),
        status=found,
        inserted=find_inserted(connection, table, inserted, zone, inserted_expression),
        failures=columns[0],
        last_failure=columns[1],
        **words,
        strategy=wanted,
        max_attempts=max_attempts,
        sla=None if sla is None else validate.positive(sla, "sla"),
        zone=zone,
        counted=bool(count_key),
    )
    check_meanings(terms)
    _ = terms.rungs if terms.by_ticks else terms.waits
    return terms


def choose_name(name: str | None, table: Table) -> str:
    if name is not None:
        return validate.queue_name(name)
    plain = re.sub(r"[^a-z0-9_.-]+", "_", table.name.lower())[:63].lstrip("_.-")
    return plain or f"table_{table.oid}"


def find_key(table: Table, key: str | Sequence[str] | None) -> tuple[Column, ...]:
    names = table.natural_key if key is None else (key,) if isinstance(key, str) else tuple(key)
    if not 1 <= len(names) <= 32 or len({*names}) != len(names):
        said = (
            "it has no primary key and no other unique index"
            if key is None
            else f"{shown(key)} does not name columns, each once"
        )
        raise ValidationError(
            f"key: table {table}: {said}",
            hint="Name the columns that identify a record: --key (key=…).",
            field="key",
        )
    return tuple(table.column(one, "key") for one in names)


def check_status_column(column: Column) -> Column:
    if column.kind in MOMENTS or column.kind in ("json", "xml", "point"):
        raise ValidationError(
            f"status: column {column.name} is {column.type}, not text, a number, an enum or a boolean", field="status"
        )
    return column


def find_moment(table: Table, name: str, field: str, hint: str | None = None) -> Column:
    column = table.column(name, field)
    if column.kind not in MOMENTS:
        raise ValidationError(
            f"{field}: column {column.name} is {column.type}, not a timestamp or date", hint=hint, field=field
        )
    return column


def find_inserted(connection: Connection, table: Table, name: object, zone: str, stored: str | None) -> Column:
    """Returns a column, or an index whose first key is an expression. `stored`: the expression that was agreed on."""
    column = table.find_column(name) if isinstance(name, str) and stored is None else None
    if column is not None:
        hint = suggest_index(connection, table, column, zone) if column.kind not in MOMENTS else None
        return find_moment(table, column.name, "inserted", hint)
    found = find_expression(connection, table, name) if isinstance(name, str) else None
    if found is not None:
        return found
    if stored is not None:
        raise make_missing_error(table, str(name), stored)
    return table.column(name, "inserted")  # raises: there is no such column


def find_expression(connection: Connection, table: Table, name: str) -> Column | None:
    """Returns the first key of an index of this table. None: there is no index of this name."""
    found = find_first_key(connection, table, name)
    if found is None:
        return None
    said, hint = None, "Name a column, or an index of this table whose first key is an expression: --inserted NAME."
    if found.table != table.oid:
        said = f"is an index of table {found.table_name}, not of {table}"
    elif not found.is_expression:
        said, hint = f"is an index over column {found.text}", f"Name the column: --inserted {found.text}."
    elif found.kind not in MOMENTS:
        said = f"is an index over {found.text}, which is {found.type}, not a timestamp or date"
    elif not found.valid:
        said = "is an index that is not valid: its creation failed or has not ended"
        hint = f"Drop it and create it again: drop index {table.schema}.{found.name}."
    if said is not None:
        raise ValidationError(f"inserted: {found.name} {said}", hint=hint, field="inserted")
    column = found.as_column()
    check_expression(connection, table, column)
    return column


def check_expression(connection: Connection, table: Table, column: Column) -> None:
    """Refuses an expression that cannot be evaluated in a query of ours."""
    assert column.expression is not None
    what = f"inserted: the expression {column.expression} of index {column.name}"
    quoted_table = sql.Identifier(table.schema, table.name)
    statement = sql.SQL("select {} from {} as t limit 0").format(sql.SQL(cast("Any", column.expression)), quoted_table)
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise AuthError(f"{what}: {error.diag.message_primary}", hint="grant execute on function … to …") from None
    except psycopg.Error as error:
        raise ValidationError(
            f"{what} cannot be used in a query: {error.diag.message_primary}",
            hint="Use an expression over columns, not over the whole row.",
            field="inserted",
        ) from None


def check_index(connection: Connection, table: Table, column: Column) -> None:
    """Refuses a pass if `inserted` is an index that was dropped or changed."""
    if column.expression is None:
        return
    found = find_first_key(connection, table, column.name)
    if found is None or found.table != table.oid:
        raise make_missing_error(table, column.name, column.expression)
    if found.text != column.expression:
        raise Conflict(
            f"inserted: index {column.name} of table {table} is over {found.text} now, not over {column.expression}",
            hint=f"Agree on it: penstock adopt {table} --inserted {column.name} --apply. Then begin again.",
        )


def make_missing_error(table: Table, name: str, expression: str) -> ValidationError:
    return ValidationError(
        f"inserted: index {name} of table {table}, which says when a record was inserted, does not exist any more",
        hint=f"Create it again: create index concurrently {name} on {table} ({expression})."
        f" Or name another one, or a column: penstock adopt {table} --inserted NAME --apply.",
        field="inserted",
    )


def suggest_index(connection: Connection, table: Table, column: Column, zone: str) -> str:
    """Returns a hint how a table whose timestamps are texts or numbers can be adopted: by an index over an
    expression."""
    if column.kind not in (*WHOLE, *TEXTS):
        return "Name the column that says when a record was inserted."
    short = f"{table.name}_{column.name}".encode()[:56].decode(errors="ignore")
    row = connection.execute(
        "select pg_catalog.quote_ident(%s), pg_catalog.quote_ident(%s) || '.' || pg_catalog.quote_ident(%s),"
        " pg_catalog.quote_ident(%s) || '.' || pg_catalog.quote_ident(%s), pg_catalog.quote_ident(%s),"
        " pg_catalog.quote_literal(%s)",
        (column.name, table.schema, table.name, table.schema, f"{short}_read", f"{short}_moment", zone),
    ).fetchone()
    assert row is not None
    name, quoted_name, function, index, quoted_zone = row
    how = "" if table.partitioned else " concurrently"
    if column.kind in WHOLE:
        read = f"to_timestamp({name})"
        make = f"Create an index over its moments: create index{how} {index} on {quoted_name} ({read})"
    else:
        read = f"{name}::timestamptz"
        # A text that cannot be read becomes null: an error would refuse the insert of a record by another program.
        valid = "pg_input_is_valid($1, 'timestamptz')"
        if connection.info.server_version < 160_000:
            valid = r"$1 ~ '^\d{4}-\d\d-\d\d'"
        make = (
            f"Create a function that reads it, and an index over the function: create function {function}(text)"
            f" returns timestamptz language sql immutable parallel safe set timezone = {quoted_zone}"
            f" set datestyle = 'ISO, YMD' as $$ select case when {valid} then $1::timestamptz end $$;"
            f" create index{how} {index} on {quoted_name} ({function}({name}))"
        )
    return (
        f"{make}; then name the index: --inserted {index}. Or change its type, which rewrites the table while all"
        f" others wait: alter table {quoted_name} alter {name} type timestamptz using {read}."
    )


def find_failure_columns(
    table: Table, failures: str | None, last_failure: str | None
) -> tuple[Column | None, Column | None]:
    if (failures is None) != (last_failure is None):
        raise ValidationError("failures: failures and last_failure go together", field="failures")
    if failures is None or last_failure is None:
        return None, None
    count = table.column(failures, "failures")
    if count.kind not in WHOLE:
        raise ValidationError(f"failures: column {count.name} is {count.type}, not a whole number", field="failures")
    moment = find_moment(table, last_failure, "last_failure")
    if moment.kind == "date":
        raise ValidationError(f"last_failure: column {moment.name} is a date, without a time", field="last_failure")
    return count, moment


def choose_mode(mode: str | None, columns: tuple[Column | None, Column | None], strategy: Strategy) -> Mode:
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


def parse_strategy(strategy: object) -> Strategy:
    found = strategies.parse(strategy) if isinstance(strategy, str) else strategy
    if isinstance(found, CustomRetry) or not hasattr(found, "to_json"):
        raise ValidationError(
            f"strategy: {shown(strategy)} cannot be stored", hint=f"{strategies.GRAMMAR}", field="strategy"
        )
    return cast("Strategy", found)


def find_zone(connection: Connection, tz: str | None) -> str:
    """Returns the time zone in which timestamps without a zone are read: the given one, else the session's."""
    row = connection.execute("select pg_catalog.current_setting('timezone')").fetchone()
    found = str(row[0]) if row and tz is None else tz
    if not isinstance(found, str):
        raise ValidationError(f"tz: {shown(tz)} is not the name of a time zone", field="tz")
    try:
        connection.execute("select pg_catalog.now() at time zone %s", (found,))
    except psycopg.DataError:
        raise ValidationError(
            f"tz: {shown(tz)} is not a time zone", hint="Such as UTC or Europe/Berlin.", field="tz"
        ) from None
    return found


def explain_unused_zone(terms: Terms) -> str:
    """Says why a time zone that was given changes nothing."""
    return f"tz: {terms.zone} is not used: all times of table {terms.table} have a zone of their own"


# --- statuses ---------------------------------------------------------------------------------------------------------


def canonicalize(
    connection: Connection,
    column: Column,
    *,
    ready: object,
    retry: object,
    done: object,
    failed: object,
    dead: object,
) -> dict[str, Any]:
    """Returns statuses as the column's type writes them. A status that the type does not know is refused."""

    def one(value: object, field: str) -> str:
        if not isinstance(value, (str, int)) or "\x00" in str(value):
            hint = NULL_IS_READY if value is None else None
            raise ValidationError(f"{field}: {shown(value)} is not a status", hint=hint, field=field)
        statement = sql.SQL("select ({}::{})::text").format(sql.Literal(str(value)), sql.SQL(column.type))
        try:
            row = connection.execute(statement).fetchone()
        except psycopg.DataError:
            labels = read_enum_labels(connection, column) if column.kind == "enum" else ()
            raise ValidationError(
                f"{field}: {shown(value)} is not a value of column {column.name} ({column.type})",
                hint=f"It has {', '.join(labels)}." if labels else None,
                field=field,
            ) from None
        return str(row[0]) if row else ""

    def several(values: object, field: str, *, null: bool = False) -> tuple[Any, ...]:
        if values is None:
            raise ValidationError(f"{field}: None is not a status", hint=NULL_IS_READY, field=field)
        listed = [values] if isinstance(values, (str, int)) else list(cast("Sequence[object]", values))
        words = tuple(dict.fromkeys(one(value, field) for value in listed if value is not None or not null))
        return (*words, None) if null and None in listed else words

    again = several(retry, "retry")
    fails = one(failed, "failed") if failed is not None else (again[0] if again else None)
    return {
        "ready": several(ready, "ready", null=True),
        "retry": again,
        "done": one(done, "done"),
        "failed": fails,
        "dead": None if dead is None else one(dead, "dead"),
    }


NULL_IS_READY = "Records without a status (NULL) can be ready: ready=[None], --ready-null."


def read_enum_labels(connection: Connection, column: Column) -> tuple[str, ...]:
    rows = connection.execute(
        "select e.enumlabel from pg_catalog.pg_enum as e where e.enumtypid = %s::regtype order by e.enumsortorder",
        (column.type,),
    )
    return tuple(str(label) for (label,) in rows)


def check_meanings(terms: Terms) -> None:
    """Refuses a status that means two things: its records would be handled again and again."""
    if not terms.ready and not terms.retry:
        raise ValidationError(
            "ready: ready and retry cannot both be empty, because no record would be handled", field="ready"
        )
    if both := {*terms.ready} & {*terms.retry}:
        raise ValidationError(f"retry: status {shown(both.pop())} cannot be in both ready and retry", field="retry")
    live = {*terms.ready, *terms.retry}
    for field, word in (("done", terms.done), ("dead", terms.dead)):
        if word in live:
            raise ValidationError(
                f"{field}: {shown(word)} cannot also be in ready or retry, because its records would never end",
                field=field,
            )
    if terms.mode == "observe":
        return
    if terms.failed is None and terms.dead is None:
        raise ValidationError(
            "failed: failed and dead cannot both be missing: a failed record needs a status", field="failed"
        )
    if terms.failed in terms.ready:
        raise ValidationError(
            f"failed: {shown(terms.failed)} cannot also be in ready: a failed record would be handled again at once",
            field="failed",
        )
    if terms.failed == terms.done:
        raise ValidationError(f"failed: {shown(terms.failed)} cannot also be the done status", field="failed")
