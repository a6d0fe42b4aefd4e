"""The status of an adopted table: counts by status, what is due, and the SLA."""

# ruff: noqa: S608 - names from the catalog, quoted; values are parameters or literals
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from penstock.backlog import failures, ticks
from penstock.backlog.claim import Statements
from penstock.backlog.failures import RecordFailure
from penstock.backlog.source import read_clock
from penstock.backlog.terms import Terms
from penstock.client.connections import Connection
from penstock.model import QueueStatus

MAX_COUNTED = 10_000
MAX_EXACT = 100_000  # rows; the statuses of a larger table come from the planner's statistics after a pass


@dataclass(frozen=True, slots=True)
class BacklogStatus:
    """The status of an adopted table. `ready` and `due` may run now; `later` failed and are not due yet. `errors`: how
    many records failed in their last attempt, by the class of the error (of the newest 1,000); `last_error`: the newest
    of them."""

    name: str
    table: str
    mode: str
    ready: int
    due: int
    later: int
    done: int
    dead: int
    oldest_age: float | None
    sla: float | None
    at: datetime
    statuses: Mapping[str, int] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)
    last_pass: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    last_error: RecordFailure | None = None

    @property
    def sla_used(self) -> float | None:
        """How much of the SLA the oldest waiting record has used; more than 1: it is broken."""
        return None if self.sla is None else (self.oldest_age or 0.0) / self.sla

    def as_queue(self) -> QueueStatus:
        """Returns it as the status of a queue."""
        return QueueStatus(
            queue=self.name,
            planned=self.later,
            pending=self.ready + self.due,
            active=0,
            done=self.done,
            dead=self.dead,
            cancelled=0,
            oldest_pending_age=self.oldest_age,
            sla=self.sla,
            paused=False,
            totals={},
            at=self.at,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the status as JSON."""
        found = asdict(self) | {"at": self.at.isoformat(), "sla_used": self.sla_used}
        found["last_error"] = last = None if self.last_error is None else self.last_error.to_json()
        if last is not None:
            del last["traceback"]  # `penstock backlog failures` has it
        return found | {name: dict(found[name]) for name in ("statuses", "undeclared", "last_pass", "errors")}


def read_status(connection: Connection, adopted: int, terms: Terms) -> BacklogStatus:
    """Returns the status of an adopted table."""
    statements = Statements(terms)
    now = read_clock(connection)
    counted = count_all(connection, statements, adopted, now)
    row = connection.execute("select last_pass from penstock.adopted where id = %s", (adopted,)).fetchone()
    newest = failures.read_newest(connection, adopted, 1)
    return BacklogStatus(
        name=terms.name,
        table=str(terms.table),
        mode=terms.mode,
        ready=counted.among(terms.ready),
        due=counted.due,
        later=max(counted.among(terms.retry) - counted.due, 0),
        done=counted.among([terms.done]),
        dead=0 if terms.dead is None else counted.among([terms.dead]),
        oldest_age=counted.oldest_age,
        sla=None if terms.sla is None else terms.sla.total_seconds(),
        at=now,
        statuses=name_statuses(counted.statuses),
        undeclared=name_statuses(counted.undeclared(terms)),
        last_pass=dict(row[0]) if row else {},
        errors=failures.count_by_class(connection, adopted),
        last_error=newest[0] if newest else None,
    )


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """All records of a table by their status, including NULL, and those that are due again."""

    statuses: Mapping[str | None, int]
    due: int
    oldest_age: float | None

    def among(self, statuses: Iterable[str | None]) -> int:
        return sum(self.statuses.get(one, 0) for one in statuses)

    def undeclared(self, terms: Terms) -> dict[str | None, int]:
        return {status: count for status, count in self.statuses.items() if status not in terms.declared}


def count_all(connection: Connection, statements: Statements, adopted: int, now: datetime) -> StatusCounts:
    rows = connection.execute(make_count_statement(statements)).fetchall()
    oldest = [moment for status, _, moment in rows if status in statements.terms.ready and isinstance(moment, datetime)]
    due, first = count_due(connection, statements, adopted, now)
    waiting = [*oldest, *([first] if first is not None else [])]
    age = max((now - min(waiting)).total_seconds(), 0.0) if waiting else None
    return StatusCounts({status: int(count) for status, count, _ in rows}, due, age)


def name_statuses(counts: Mapping[str | None, int]) -> dict[str, int]:
    """Returns counts by status for output: NULL is `null`."""
    found = {status: count for status, count in counts.items() if status is not None}
    return found if None not in counts else found | {"null": found.get("null", 0) + counts[None]}


def make_count_statement(statements: Statements) -> bytes:
    """Counts by status, and the oldest moment of ready records. Moments that Python cannot hold, such as infinity, are
    left out. The moments of other records are not read: an expression costs time, and may fail for them."""
    terms = statements.terms
    finite = f"case when {statements.among(terms.ready)} then {statements.readable(terms.inserted)} end"
    return (
        (
            f"select {statements.status}::text, pg_catalog.count(*),"
            f" pg_catalog.min({statements.since}) filter (where {finite})"
            f" from {statements.table} as t group by 1 order by 1"
        )
        .replace("%%", "%")
        .encode()
    )


def count_due(
    connection: Connection, statements: Statements, adopted: int, now: datetime
) -> tuple[int, datetime | None]:
    """Returns how many failed records are due, and when the first one became due."""
    terms, most = statements.terms, 2**62
    if not terms.retry:
        return 0, None
    if terms.by_ticks:
        row = connection.execute("select tick, key from penstock.adopted where id = %s", (adopted,)).fetchone()
        mark = ticks.START
        if row is not None and row[0] is not None:
            mark = ticks.Mark(row[0], None if row[1] is None else tuple(row[1]))
        asked = [statements.due_by_ticks(now, mark, None, most)]
    elif terms.remembers:
        asked = [statements.due_by_sidecar(adopted, now, None, most), statements.unknown(adopted)]
    else:
        asked = [statements.due_by_columns(now, None, None, most)]
    total, first = 0, None
    for statement, parameters in asked:
        wrapped = b"select pg_catalog.count(*), pg_catalog.min(x.due) from (" + statement + b") as x(due, key)"
        row = connection.execute(wrapped, parameters).fetchone()
        assert row is not None
        total += row[0]
        first = row[1] if first is None or (row[1] is not None and row[1] < first) else first
    return total, first


def count_failed(connection: Connection, statements: Statements) -> int:
    """Counts failed records up to a limit: a pass must not cost more on a larger table."""
    failed = f"select from {statements.table} as t where {statements.among(statements.terms.retry)} limit {MAX_COUNTED}"
    statement = f"select pg_catalog.count(*) from ({failed}) as x"
    row = connection.execute(statement.replace("%%", "%").encode()).fetchone()
    return int(row[0]) if row else 0


STATISTICS = """
    select v.value, (v.share * c.reltuples)::bigint
    from pg_catalog.pg_stats as s
    join pg_catalog.pg_class as c on c.oid = %s
    cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) as v(value, share)
    where s.schemaname = %s and s.tablename = %s and s.attname = %s
"""


def find_undeclared(connection: Connection, statements: Statements) -> dict[str, int]:
    """Returns the statuses that the terms do not name. For a large table they are estimates from the planner's
    statistics."""
    terms = statements.terms
    row = connection.execute("select pg_catalog.pg_relation_size(%s::oid) / 8192", (terms.table.oid,)).fetchone()
    pages = int(row[0]) if row else 0
    if pages * 50 <= MAX_EXACT:
        statement = (
            f"select {statements.status}::text, pg_catalog.count(*) from {statements.table} as t"
            f" where {statements.among(terms.declared)} is not true group by 1 order by 1"
        )
        found = connection.execute(statement.replace("%%", "%").encode()).fetchall()
    else:
        about = (terms.table.oid, terms.table.schema, terms.table.name, terms.status.name)
        found = connection.execute(STATISTICS, about).fetchall()
    return name_statuses({status: int(count) for status, count in found if status not in terms.declared})
