"""How an adopted table stands: counts by status, what is due, and the promise."""

# ruff: noqa: S608 - names from the catalog, quoted; values are parameters or literals
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from penstock.backlog import ticks
from penstock.backlog.claim import Statements
from penstock.backlog.drain import clock
from penstock.backlog.terms import Terms
from penstock.database import Connection
from penstock.model import QueueStatus

COUNTED = 10_000
EXACTLY = 100_000  # rows up to which statuses are counted after every pass; beyond, the planner's statistics say it


@dataclass(frozen=True, slots=True)
class BacklogStatus:
    """`ready` and `due` may run now, `later` failed and wait for their time."""

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

    @property
    def sla_used(self) -> float | None:
        """How much of the promise the oldest that waits has used; more than 1: it is broken."""
        return None if self.sla is None else (self.oldest_age or 0.0) / self.sla

    def as_queue(self) -> QueueStatus:
        """As one of our own queues, for whoever looks at those."""
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
        found = asdict(self) | {"at": self.at.isoformat(), "sla_used": self.sla_used}
        return found | {name: dict(found[name]) for name in ("statuses", "undeclared", "last_pass")}


def look(connection: Connection, adopted: int, terms: Terms) -> BacklogStatus:
    say = Statements(terms)
    now = clock(connection)
    rows = connection.execute(by_status(say)).fetchall()
    counts = {str(status): int(count) for status, count, _ in rows}
    oldest = [moment for status, _, moment in rows if status in terms.ready and isinstance(moment, datetime)]
    due, first = due_again(connection, say, adopted, now)
    waiting = [*oldest, *([first] if first is not None else [])]
    again = sum(counts.get(one, 0) for one in terms.retry)
    row = connection.execute("select last_pass from penstock.adopted where id = %s", (adopted,)).fetchone()
    return BacklogStatus(
        name=terms.name,
        table=str(terms.table),
        mode=terms.mode,
        ready=sum(counts.get(one, 0) for one in terms.ready),
        due=due,
        later=max(again - due, 0),
        done=counts.get(terms.done, 0),
        dead=0 if terms.dead is None else counts.get(terms.dead, 0),
        oldest_age=max((now - min(waiting)).total_seconds(), 0.0) if waiting else None,
        sla=None if terms.sla is None else terms.sla.total_seconds(),
        at=now,
        statuses=counts,
        undeclared={status: count for status, count in counts.items() if status not in terms.declared},
        last_pass=dict(row[0]) if row else {},
    )


def by_status(say: Statements) -> bytes:
    """The oldest of those that Python can read: an infinite moment is nobody's age."""
    finite = say.readable(say.terms.inserted)
    return (
        (
            f"select coalesce({say.status}::text, 'null'), count(*), min({say.since}) filter (where {finite})"
            f" from {say.table} as t group by 1 order by 1"
        )
        .replace("%%", "%")
        .encode()
    )


def due_again(connection: Connection, say: Statements, adopted: int, now: datetime) -> tuple[int, datetime | None]:
    """How many failed records are due, and since when the first."""
    terms, most = say.terms, 2**62
    if not terms.retry:
        return 0, None
    if terms.by_ticks:
        row = connection.execute("select tick, key from penstock.adopted where id = %s", (adopted,)).fetchone()
        mark = ticks.START
        if row is not None and row[0] is not None:
            mark = ticks.Mark(row[0], None if row[1] is None else tuple(row[1]))
        asked = [say.due_by_ticks(now, mark, None, most)]
    elif terms.remembers:
        asked = [say.due_by_sidecar(adopted, now, None, most), say.unknown(adopted)]
    else:
        asked = [say.due_by_columns(now, None, None, most)]
    total, first = 0, None
    for statement, parameters in asked:
        wrapped = b"select count(*), min(x.due) from (" + statement + b") as x(due, key)"
        row = connection.execute(wrapped, parameters).fetchone()
        assert row is not None
        total += row[0]
        first = row[1] if first is None or (row[1] is not None and row[1] < first) else first
    return total, first


def count_again(connection: Connection, say: Statements) -> int:
    """Failed records that are there, counted up to a limit: a pass must not cost more on a larger table."""
    statement = (
        f"select count(*) from (select from {say.table} as t where {say.among(say.terms.retry)} limit {COUNTED}) as x"
    )
    row = connection.execute(statement.replace("%%", "%").encode()).fetchone()
    return int(row[0]) if row else 0


STATISTICS = """
    select v.value, (v.share * c.reltuples)::bigint
    from pg_catalog.pg_stats as s
    join pg_catalog.pg_class as c on c.oid = %s
    cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) as v(value, share)
    where s.schemaname = %s and s.tablename = %s and s.attname = %s
"""


def undeclared(connection: Connection, say: Statements) -> dict[str, int]:
    """Statuses that nobody told us of. Of a large table, those in the planner's statistics, as it estimates them."""
    terms = say.terms
    row = connection.execute("select pg_relation_size(%s::oid) / 8192", (terms.table.oid,)).fetchone()
    pages = int(row[0]) if row else 0
    if pages * 50 <= EXACTLY:
        statement = (
            f"select coalesce({say.status}::text, 'null'), count(*) from {say.table} as t"
            f" where {say.status} is null or not {say.among(terms.declared)} group by 1 order by 1"
        )
        found = connection.execute(statement.replace("%%", "%").encode()).fetchall()
    else:
        place = (terms.table.oid, terms.table.schema, terms.table.name, terms.status.name)
        found = connection.execute(STATISTICS, place).fetchall()
    return {str(status): int(count) for status, count in found if status not in terms.declared}
