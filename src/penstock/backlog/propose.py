"""Looking at a table before it is adopted: what it holds, how long a drain may take, which indexes would help."""

# ruff: noqa: S608 - names from the catalog, quoted; values are parameters or literals
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg

from penstock.backlog import guess, ticks
from penstock.backlog import terms as agreed
from penstock.backlog.backlog import KNOWN, Backlog, note, session
from penstock.backlog.claim import Statements, quoted
from penstock.backlog.drain import clock
from penstock.backlog.status import by_status, due_again
from penstock.backlog.table import Table, check_readable, check_writable, look_up
from penstock.backlog.terms import Terms, enum_labels
from penstock.database import Connection
from penstock.errors import ValidationError

SAMPLED = 20_000
SAMPLE = "penstock_sample"
NOBODY = -1  # the id of a table that is not adopted yet
A_PASS = 1000
EXPLAINED = 4  # lines of a plan


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    statement: str
    exists: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How PostgreSQL would find what is ready, or due again."""

    what: str
    before: tuple[str, ...]
    after: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found. `guessed` names the terms that nobody gave."""

    terms: Terms
    guessed: Mapping[str, Any]
    statuses: Mapping[str, int]
    ready: int
    due: int
    later: int
    oldest_age: float | None
    undeclared: Mapping[str, int]
    writable: bool
    indexes: tuple[Index, ...] = ()
    plans: tuple[Plan, ...] = ()
    applied: bool = False
    sampled: bool = True  # the plans after are those of a sample with the indexes

    @property
    def waiting(self) -> int:
        return self.ready + self.due

    def drain_seconds(self, takes: float, concurrency: int = 1) -> float:
        return self.waiting * takes / concurrency


def inspect(
    dsn: str, source: str, table: str, given: Mapping[str, Any], *, apply: bool = False, index: bool = True
) -> tuple[Inspection, Backlog | None]:
    """Looks, and, if told so, adopts it and makes the indexes. Without that nothing is changed."""
    with session(dsn, source) as (database, connection):
        found = look_up(connection, table)
        check_readable(found)
        guessed = guesses(connection, found, given)
        terms = agreed.agree(connection, found, **{**guessed, **given})
        if apply and terms.mode != "observe":
            check_writable(found, terms.written)
        before = looked_at(connection, terms, guessed)
        plans, indexes = explained(connection, terms), proposed(connection, terms)
        if not apply:
            after = on_a_sample(connection, terms, indexes) if index else None
            return replace(before, indexes=indexes, plans=joined(plans, after)), None
        backlog = Backlog(database, note(connection, terms), terms)
        if index and terms.mode != "observe":
            for one in indexes:
                connection.execute(one.statement.encode())
            connection.execute(f"analyze {quoted(found.schema, found.name)}".replace("%%", "%").encode())
        after = explained(connection, terms)
        return replace(before, indexes=indexes, plans=joined(plans, after), applied=True, sampled=False), backlog


def guesses(connection: Connection, table: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    seen = [guess.Seen(one.name, one.kind) for one in table.columns.values()]
    found = {name: value for name, value in guess.columns(seen, table.primary).items() if name not in given}
    if {"failures", "last_failure"} & given.keys() or given.get("mode") in ("sidecar", "observe"):
        found = {name: value for name, value in found.items() if name not in ("failures", "last_failure")}
    told = {**found, **given}
    for name in ("status", "inserted"):
        if name not in told:
            raise ValidationError(
                f"{name}: no column of table {table} looks like it",
                hint=f"Name it: --{name} COLUMN. It has {', '.join(list(table.columns)[:12])}.",
                field=name,
            )
    words = {"ready", "retry", "done", "failed", "dead"}
    if words - given.keys():
        column = table.column(told["status"], "status")
        values = {*values_of(connection, table, column.name), *labels(connection, column)}
        found |= {name: value for name, value in guess.statuses(column.kind, values).items() if name not in given}
        told = {**found, **given}
        if not told.get("ready") or not told.get("done"):
            shown = ", ".join(sorted(values)[:12]) or "none yet"
            raise ValidationError(
                f"ready: what the statuses of table {table} mean can not be guessed (they are {shown})",
                hint="Say it: --ready NEW --retry ERROR --done SUCCESS --dead DEAD.",
                field="ready",
            )
    return found


def labels(connection: Connection, column: Any) -> tuple[str, ...]:
    return enum_labels(connection, column) if column.kind == "enum" else ()


def values_of(connection: Connection, table: Table, column: str) -> list[str]:
    """The statuses in use, up to a hundred."""
    name = quoted(column)
    statement = (
        f"select distinct {name}::text from {quoted(table.schema, table.name)} where {name} is not null limit 101"
    )
    found = [str(value) for (value,) in connection.execute(statement.replace("%%", "%").encode())]
    if len(found) > 100:
        raise ValidationError(f"status: column {column} has more than 100 values", field="status")
    return found


def looked_at(connection: Connection, terms: Terms, guessed: Mapping[str, Any]) -> Inspection:
    say, now = Statements(terms), clock(connection)
    rows = connection.execute(by_status(say)).fetchall()
    counts = {str(status): int(count) for status, count, _ in rows}
    oldest = [moment for status, _, moment in rows if status in terms.ready and isinstance(moment, datetime)]
    known = connection.execute(KNOWN + "where a.name = %s", (terms.name,)).fetchone()
    due, first = due_again(connection, say, NOBODY if known is None else known[0], now)
    waiting = [*oldest, *([first] if first is not None else [])]
    return Inspection(
        terms=terms,
        guessed=guessed,
        statuses=counts,
        ready=sum(counts.get(one, 0) for one in terms.ready),
        due=due,
        later=max(sum(counts.get(one, 0) for one in terms.retry) - due, 0),
        oldest_age=max((now - min(waiting)).total_seconds(), 0.0) if waiting else None,
        undeclared={status: count for status, count in counts.items() if status not in terms.declared},
        writable=all(one.writable for one in terms.written),
    )


# --- indexes ----------------------------------------------------------------------------------------------------------


def proposed(connection: Connection, terms: Terms) -> tuple[Index, ...]:
    """Partial ones: what is done is not in them, so that they stay as small as the backlog."""
    say = Statements(terms)
    place = [terms.inserted, *terms.key]
    again = place
    if not terms.by_ticks and terms.failures is not None and terms.last_failure is not None:
        again = [terms.failures, terms.last_failure]
    wanted = (("ready", place, terms.ready), ("again", again, terms.retry))
    return tuple(index(connection, say, what, columns, words) for what, columns, words in wanted if words)


def index(connection: Connection, say: Statements, what: str, columns: list[Any], words: tuple[str, ...]) -> Index:
    table = say.terms.table
    name = fitting(f"penstock_{table.name}", what)
    listed = ", ".join(dict.fromkeys(quoted(one.name) for one in columns))
    how = "" if table.partitioned else " concurrently"
    where = say.among(words).replace("t.", "", 1)
    statement = f"create index{how} if not exists {quoted(name)} on {say.table} ({listed}) where {where}"
    row = connection.execute(
        "select exists (select from pg_catalog.pg_class as c join pg_catalog.pg_index as i on i.indexrelid = c.oid"
        " where c.relname = %s and i.indrelid = %s)",
        (name, table.oid),
    ).fetchone()
    return Index(name, statement.replace("%%", "%"), bool(row and row[0]))


def fitting(start: str, end: str) -> str:
    """A name has at most 63 bytes."""
    room = 62 - len(end)
    return f"{start.encode()[:room].decode(errors='ignore')}_{end}"


def explained(connection: Connection, terms: Terms) -> list[Plan]:
    say, now = Statements(terms), clock(connection)
    asked = [("ready", say.ready(newest_first=False, bounded=False, onward=False), (A_PASS,))] if terms.ready else []
    if terms.retry and terms.by_ticks:
        mark = ticks.Mark(now - terms.rungs[0])
        asked.append(("due again", *say.due_by_ticks(now, mark, None, A_PASS)))
    elif terms.retry and terms.remembers:
        asked.append(("due again", *say.strangers(NOBODY, None, A_PASS)))
    elif terms.retry:
        asked.append(("due again", *say.due_by_columns(now, None, None, A_PASS)))
    return [Plan(what, plan_of(connection, statement, parameters)) for what, statement, parameters in asked]


def plan_of(connection: Connection, statement: bytes, parameters: Any) -> tuple[str, ...]:
    """The lines that tell how a table is read."""
    lines = [str(line) for (line,) in connection.execute(b"explain " + statement, parameters)]
    scans = [
        line.strip().removeprefix("->").strip() for line in lines if " Scan" in line and "Function Scan" not in line
    ]
    scans = [line for line in scans if not line.startswith(("Bitmap Index", "Subquery"))] or lines[:1]
    return (f"cost {lines[0].partition('..')[2].partition(' ')[0]}", *scans[:EXPLAINED])


def on_a_sample(connection: Connection, terms: Terms, indexes: tuple[Index, ...]) -> list[Plan] | None:
    """The plans with the indexes, on a temporary copy of some rows, which goes away at once. None: we may not."""
    say = Statements(terms)
    wanted = dict.fromkeys([*terms.key, *terms.written, terms.inserted])
    columns = ", ".join(dict.fromkeys(say.column(one) for one in wanted))
    live = say.among((*terms.ready, *terms.retry))
    copy = (
        f"create temporary table {SAMPLE} on commit drop as"
        f" (select {columns} from {say.table} as t where {live} limit {SAMPLED})"
        f" union all (select {columns} from {say.table} as t where {live} is not true limit {SAMPLED})"
    )
    connection.execute("begin")
    try:
        connection.execute(copy.replace("%%", "%").encode())
        for one in indexes:
            moved = one.statement.replace(" concurrently", "", 1).replace(
                " on " + say.table.replace("%%", "%"), f" on {SAMPLE}", 1
            )
            connection.execute(moved.encode())
        connection.execute(f"analyze {SAMPLE}".encode())
        return explained(connection, replace(terms, table=replace(terms.table, schema="pg_temp", name=SAMPLE)))
    except psycopg.errors.InsufficientPrivilege:
        return None
    finally:
        connection.execute("rollback")


def joined(before: list[Plan], after: list[Plan] | None) -> tuple[Plan, ...]:
    if after is None:
        return tuple(before)
    return tuple(replace(one, after=other.before) for one, other in zip(before, after, strict=True))
