"""Adopted tables as a scaler sees them: with an SLA and a state, like queues."""

from __future__ import annotations

from collections.abc import Collection

from penstock.backlog.adoption import read_all
from penstock.backlog.status import BacklogStatus
from penstock.client.database import Database
from penstock.model import SeenQueue

DEADLINE = 60.0  # seconds in which PostgreSQL must answer, also about a large table


class AdoptedTables:
    """The adopted tables of a database."""

    def __init__(self, dsn: str, source: str = "dsn") -> None:
        self._database = Database(dsn, source=source, deadline=DEADLINE)

    def slas(self) -> dict[str, float | None]:
        """Returns the SLA of each table, in seconds."""
        tables = read_all(self._database)
        return {one.name: None if one.terms.sla is None else one.terms.sla.total_seconds() for one in tables}

    def count(self, names: Collection[str]) -> list[SeenQueue]:
        """Returns the state of these tables."""
        return [describe(one.status()) for one in read_all(self._database) if one.name in names]


def describe(found: BacklogStatus) -> SeenQueue:
    """Describes an adopted table as a queue. Of its records only the oldest age is known."""
    pending, oldest = found.ready + found.due, found.oldest_age or 0.0
    rate = found.last_pass.get("rate")
    return SeenQueue(
        queue=found.name,
        paused=False,
        sla=found.sla,
        planned=found.later,
        pending=pending,
        active=0,
        ended=found.done + found.dead,
        left=0,
        waiting=((oldest, 1),) if pending else (),
        newest=0.0,
        rate=float(rate) if rate else None,
    )
