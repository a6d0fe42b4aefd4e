"""What PostgreSQL has of history, counted and summed a few pages at a time: no snapshot is held for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date

from penstock import queue as seam
from penstock.database import Database
from penstock.model import Horizon, Span, Window

COUNTED = 16_384  # pages in one transaction
SUMMED = 2_048


@dataclass(frozen=True, slots=True)
class Day:
    """A day of history below a horizon: rows by queue and outcome, and their sum if it was asked for."""

    day: date
    rows: Counter[tuple[int, str]] = field(default_factory=Counter)
    checksum: int = 0

    @property
    def total(self) -> int:
        return self.rows.total()


def counted(database: Database, below: Horizon, *, thorough: bool = False) -> list[Day]:
    spans = seam.find_spans(database, Window(below._replace(xid=0), below), roughly=True)
    return [one_day(database, span, below, thorough=thorough) for span in spans]


def one_day(database: Database, span: Span, below: Horizon, *, thorough: bool) -> Day:
    rows: Counter[tuple[int, str]] = Counter()
    checksum = 0
    for piece in pieces(span, SUMMED if thorough else COUNTED):
        for queue, outcome, count, part in seam.history_sums(database, piece, below=below.xid, thorough=thorough):
            rows[queue, outcome] += count
            checksum += part
    return Day(span.day, rows, checksum)


def pieces(span: Span, pages: int) -> Iterator[Span]:
    for first in range(span.first_page, span.first_page + span.pages, pages):
        yield span._replace(first_page=first, pages=min(pages, span.first_page + span.pages - first))
