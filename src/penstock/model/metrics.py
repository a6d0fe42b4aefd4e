"""What a monitoring system reads about a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.board import Board


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Queues, workers and the database as a whole at one moment, for metrics. Times are in seconds."""

    board: Board
    contract: int
    schedule_overdue: float | None  # of the most overdue schedule; None: no schedule waits
    readers: Mapping[str, float]  # how long ago each reader of history last came
    oldest_snapshot: float | None  # the age of the transaction that holds vacuum back; None: some are hidden from us
    dead_rows: Mapping[str, int]  # of each table, as far as PostgreSQL has counted them
