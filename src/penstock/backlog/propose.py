"""Inspects a table before it is adopted: what it contains, how long a drain may take, which indexes would help."""

# ruff: noqa: S608 - names from the catalog, quoted; values are parameters or literals
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from penstock.backlog import guess, indexes, ticks
from penstock.backlog import terms as agreed
from penstock.backlog.adoption import ADOPTED, check_terms, find_noted, note_terms, open_session, read_terms
from penstock.backlog.backlog import Backlog
from penstock.backlog.claim import Statements, quote
from penstock.backlog.indexes import Index
from penstock.backlog.source import read_clock
from penstock.backlog.status import count_all, name_statuses
from penstock.backlog.table import Table, check_readable, check_writable, look_up
from penstock.backlog.terms import Terms, read_enum_labels
from penstock.client.connections import Connection
from penstock.errors import Conflict, ValidationError
from penstock.retry import Progressive

SAMPLE_ROWS = 20_000
SAMPLE = "penstock_sample"
NOT_ADOPTED = -1  # the id of a table that is not adopted yet
PLANNED_RECORDS = 1000
MAX_PLAN_LINES = 4  # lines of a plan


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """How PostgreSQL would find records that are ready, or due again."""

    what: str
    before: tuple[str, ...]
    after: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableInspection:
    """What an inspection found. `guessed` are the terms that were not given, `kept` those that an earlier run agreed
    on."""

    terms: Terms
    guessed: Mapping[str, Any]
    kept: frozenset[str]
    statuses: Mapping[str, int]
    ready: int
    due: int
    later: int
    oldest_age: float | None
    undeclared: Mapping[str, int]
    writable: bool
    undated: int = 0  # ready or failed records without a timestamp, which passes leave alone
    indexes: tuple[Index, ...] = ()
    plans: tuple[QueryPlan, ...] = ()
    applied: bool = False
    adopted: bool = False  # before this run
    sampled: bool = True  # `after` of the plans is from a sample with the indexes

    @property
    def waiting(self) -> int:
        return self.ready + self.due

    def drain_seconds(self, takes: float, concurrency: int = 1) -> float:
        return self.waiting * takes / concurrency


def inspect(
    dsn: str, source: str, table: str, given: Mapping[str, Any], *, apply: bool = False, index: bool = True
) -> tuple[TableInspection, Backlog | None]:
    """Inspects a table. With `apply`, it also adopts the table and builds the indexes; otherwise it changes nothing.
    Terms that were agreed on before remain, unless others are given."""
    with open_session(dsn, source) as (database, connection):
        found = look_up(connection, table)
        check_readable(found)
        earlier = find_agreed(connection, found, given.get("name"))
        kept = keep_terms(earlier, given)
        known = {**kept, **given}
        guessed = guess_terms(connection, found, known)
        terms = agreed.agree(connection, found, **{**guessed, **known})
        if terms.naive and "tz" not in known:
            guessed["tz"] = terms.zone
        if apply and terms.mode != "observe":
            check_writable(found, terms.written)
        if not find_noted(connection, terms):
            check_terms(connection, terms, on_records=apply)
        before = replace(look_at(connection, terms, guessed, frozenset(kept)), adopted=bool(earlier))
        plans, wanted = explain(connection, terms), indexes.propose(connection, terms) if index else ()
        if not apply:
            after = explain_on_sample(connection, terms, wanted) if index else None
            return replace(before, indexes=wanted, plans=join_plans(plans, after)), None
        backlog = Backlog(database, note_terms(connection, terms), terms)
        if index and terms.mode != "observe":
            wanted = indexes.make(connection, terms, wanted)
        after = explain(connection, terms)
        return replace(before, indexes=wanted, plans=join_plans(plans, after), applied=True, sampled=False), backlog


def find_agreed(connection: Connection, table: Table, name: str | None) -> dict[str, Any]:
    """Returns the terms on which a table is already adopted; empty, if it is not."""
    rows = connection.execute(ADOPTED + "order by a.name", binary=True).fetchall()
    same = [row for row in rows if (row[2], row[3]) == (table.schema, table.name)]
    chosen = [row for row in same if row[1] == (name or agreed.choose_name(None, table))]
    if not chosen and name is None:
        chosen = same
    if len(chosen) > 1:
        names = ", ".join(row[1] for row in chosen)
        raise Conflict(f"table {table} is adopted as {names}", hint="Say which is meant: --name NAME.")
    return read_terms(chosen[0]) if chosen else {}


def keep_terms(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the earlier terms that remain valid: not those that depend on a term that is given now."""
    gone = {name for what, names in BELONG.items() if what in given for name in names}
    if given.get("mode") in ("sidecar", "columns"):
        gone |= {"failures", "last_failure"}
    if "strategy" in given and isinstance(agreed.parse_strategy(given["strategy"]), Progressive):
        gone.add("max_attempts")
    return {name: value for name, value in before.items() if name not in gone and name not in given}


BELONG = {
    "status": ("ready", "retry", "done", "failed", "dead"),
    "retry": ("failed",),
    "key": ("count_key",),
    "inserted": ("inserted_expression",),
    "failures": ("mode",),
    "last_failure": ("mode",),
}


def guess_terms(connection: Connection, table: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    """Guesses the terms that are not given, from the names of columns and the statuses in use."""
    seen = [guess.SeenColumn(one.name, one.kind) for one in table.columns.values()]
    found = {name: value for name, value in guess.guess_columns(seen, table.natural_key).items() if name not in given}
    if {"failures", "last_failure"} & given.keys() or given.get("mode") in ("sidecar", "observe"):
        found = {name: value for name, value in found.items() if name not in ("failures", "last_failure")}
    known = {**found, **given}
    for name in ("status", "inserted"):
        if name not in known:
            raise ValidationError(
                f"{name}: no column of table {table} looks like it",
                hint=f"Name it: --{name} COLUMN. The table has {', '.join(list(table.columns)[:12])}.",
                field=name,
            )
    words = {"ready", "retry", "done", "failed", "dead"}
    if words - given.keys():
        column = table.column(known["status"], "status")
        used = read_statuses(connection, table, column.name)
        values = {*(one for one in used if one is not None), *read_labels(connection, column)}
        meant = guess.guess_statuses(column.kind, values, nulls=None in used)
        if "retry" in given:
            meant.pop("failed", None)  # it is the first of `retry`
        elif given.get("failed") is not None:
            meant["retry"] = [given["failed"]]
        found |= {name: value for name, value in meant.items() if name not in given}
        known = {**found, **given}
        if not known.get("ready") or not known.get("done"):
            shown = ", ".join(sorted(values)[:12]) or "none yet"
            raise ValidationError(
                f"ready: what the statuses of table {table} mean cannot be guessed (they are {shown})",
                hint="Say it: --ready NEW --retry ERROR --done SUCCESS --dead DEAD (NULL: --ready-null).",
                field="ready",
            )
    return found


def read_labels(connection: Connection, column: Any) -> tuple[str, ...]:
    return read_enum_labels(connection, column) if column.kind == "enum" else ()


def read_statuses(connection: Connection, table: Table, column: str) -> list[str | None]:
    """Returns the statuses in use, at most 100. NULL is None."""
    statement = f"select distinct {quote(column)}::text from {quote(table.schema, table.name)} limit 101"
    found = [value for (value,) in connection.execute(statement.replace("%%", "%").encode())]
    if len(found) > 100:
        raise ValidationError(f"status: column {column} has more than 100 values", field="status")
    return found


def look_at(connection: Connection, terms: Terms, guessed: Mapping[str, Any], kept: frozenset[str]) -> TableInspection:
    """Counts the records of a table by what the terms make of them."""
    known = connection.execute(ADOPTED + "where a.name = %s", (terms.name,), binary=True).fetchone()
    adopted = NOT_ADOPTED if known is None else known[0]
    counted = count_all(connection, Statements(terms), adopted, read_clock(connection))
    return TableInspection(
        terms=terms,
        guessed=guessed,
        kept=kept,
        statuses=name_statuses(counted.statuses),
        ready=counted.among(terms.ready),
        due=counted.due,
        later=max(counted.among(terms.retry) - counted.due, 0),
        oldest_age=counted.oldest_age,
        undeclared=name_statuses(counted.undeclared(terms)),
        writable=all(one.writable for one in terms.written),
        undated=count_undated(connection, Statements(terms)),
    )


def count_undated(connection: Connection, statements: Statements) -> int:
    """Counts ready and failed records without a timestamp."""
    live = statements.among((*statements.terms.ready, *statements.terms.retry))
    statement = (
        f"select pg_catalog.count(*) from {statements.table} as t where {live} and {statements.inserted} is null"
    )
    row = connection.execute(statement.replace("%%", "%").encode()).fetchone()
    return int(row[0]) if row else 0


# --- plans ------------------------------------------------------------------------------------------------------------


def explain(connection: Connection, terms: Terms) -> list[QueryPlan]:
    """Returns how PostgreSQL would find the records of a pass."""
    statements, now = Statements(terms), read_clock(connection)
    asked = (
        [("ready", statements.ready(newest_first=False, bounded=False, onward=False), (PLANNED_RECORDS,))]
        if terms.ready
        else []
    )
    if terms.retry and terms.by_ticks:
        mark = ticks.Mark(now - terms.rungs[0])
        asked.append(("due again", *statements.due_by_ticks(now, mark, None, PLANNED_RECORDS)))
    elif terms.retry and terms.remembers:
        asked.append(("due again", *statements.failed_before(NOT_ADOPTED, None, PLANNED_RECORDS)))
    elif terms.retry:
        asked.append(("due again", *statements.due_by_columns(now, None, None, PLANNED_RECORDS)))
    return [
        QueryPlan(what, explain_statement(connection, statement, parameters)) for what, statement, parameters in asked
    ]


def explain_statement(connection: Connection, statement: bytes, parameters: Any) -> tuple[str, ...]:
    """Returns the cost, and the lines of the plan that say how a table is read."""
    lines = [str(line) for (line,) in connection.execute(b"explain " + statement, parameters)]
    scans = [
        line.strip().removeprefix("->").strip() for line in lines if " Scan" in line and "Function Scan" not in line
    ]
    scans = [line for line in scans if not line.startswith(("Bitmap Index", "Subquery"))] or lines[:1]
    return (f"cost {lines[0].partition('..')[2].partition(' ')[0]}", *scans[:MAX_PLAN_LINES])


def explain_on_sample(connection: Connection, terms: Terms, wanted: tuple[Index, ...]) -> list[QueryPlan] | None:
    """Returns the plans with the indexes, on a temporary copy of some rows. None: this role may not create temporary
    tables."""
    statements = Statements(terms)
    inserted = [terms.table.columns[name] for name in terms.inserted.reads] or [terms.inserted]
    needed = dict.fromkeys([*terms.key, *terms.written, *inserted])
    columns = ", ".join(dict.fromkeys(statements.column(one) for one in needed))
    live = statements.among((*terms.ready, *terms.retry))
    copy = (
        f"create temporary table {SAMPLE} on commit drop as"
        f" (select {columns} from {statements.table} as t where {live} limit {SAMPLE_ROWS})"
        f" union all (select {columns} from {statements.table} as t where {live} is not true limit {SAMPLE_ROWS})"
    )
    connection.execute("begin")
    try:
        connection.execute(copy.replace("%%", "%").encode())
        for one in wanted:
            connection.execute(one.on(SAMPLE).encode())
        connection.execute(f"analyze {SAMPLE}".encode())
        return explain(connection, replace(terms, table=replace(terms.table, schema="pg_temp", name=SAMPLE)))
    except psycopg.errors.InsufficientPrivilege:
        return None
    finally:
        connection.execute("rollback")


def join_plans(before: list[QueryPlan], after: list[QueryPlan] | None) -> tuple[QueryPlan, ...]:
    if after is None:
        return tuple(before)
    return tuple(replace(one, after=other.before) for one, other in zip(before, after, strict=True))
