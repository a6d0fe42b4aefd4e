"""Counts and checksums of the history in PostgreSQL, a few pages per transaction: no snapshot is held for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import date

from penstock.client import history
from penstock.client.database import Database
from penstock.model import Horizon, Span, Window

PAGES_PER_COUNT = 16_384  # pages in one transaction
PAGES_PER_CHECKSUM = 2_048


@dataclass(frozen=True, slots=True)
class DayCount:
    """A day of history below a horizon: rows by queue and outcome; and the checksum of each queue, if it was asked
    for."""

    day: date
    rows: Counter[tuple[int, str]] = field(default_factory=Counter)
    checksums: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.rows.total()

    @property
    def checksum(self) -> int:
        return self.checksums.total()

    def of(self, queues: Collection[int] | None) -> tuple[int, int]:
        """Returns the number of rows of these queues, and their checksum. None: all queues."""
        if queues is None:
            return self.total, self.checksum
        rows = sum(count for (queue, _), count in self.rows.items() if queue in queues)
        return rows, sum(checksum for queue, checksum in self.checksums.items() if queue in queues)


def count_history(database: Database, below: Horizon, *, thorough: bool = False) -> list[DayCount]:
    """Counts the history below a horizon, day by day. `thorough`: with checksums."""
    spans = history.find_spans(database, Window(below._replace(xid=0), below), roughly=True)
    return [count_day(database, span, below, thorough=thorough) for span in spans]


def count_day(database: Database, span: Span, below: Horizon, *, thorough: bool) -> DayCount:
    rows: Counter[tuple[int, str]] = Counter()
    checksums: Counter[int] = Counter()
    for piece in split_span(span, PAGES_PER_CHECKSUM if thorough else PAGES_PER_COUNT):
        for queue, outcome, count, part in history.history_sums(database, piece, below=below.xid, thorough=thorough):
            rows[queue, outcome] += count
            checksums[queue] += part
    return DayCount(span.day, rows, checksums)


def split_span(span: Span, pages: int) -> Iterator[Span]:
    for first in range(span.first_page, span.first_page + span.pages, pages):
        yield span._replace(first_page=first, pages=min(pages, span.first_page + span.pages - first))
