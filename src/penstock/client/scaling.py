# Made from src/penstock/client/scaling_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""The scaler: its hold of queues, its decisions, and the snapshot that it decides on.

One scaler at a time holds a queue. A scaler that lost a queue is refused (Conflict).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import orjson

from penstock import validate
from penstock.client.database import Database
from penstock.client.statements import scaling as sql
from penstock.model import (
    Board,
    Duration,
    Json,
    QueueQuestion,
    QueueScaler,
    ScalerSnapshot,
    ScalingHold,
    StoredDecision,
)


def hold_scaling(
    database: Database,
    queues: Sequence[str],
    *,
    holder: str,
    policy: str,
    lease: Duration,
    instead_of: Sequence[str] = (),
) -> dict[str, ScalingHold]:
    """Takes queues in order to scale them, all or none. Raises Conflict if another scaler holds one of them and is not
    among those known to be dead (`instead_of`)."""
    parameters = ([*queues], holder, policy, validate.lease(lease), [*instead_of])
    rows = database.rows(sql.HOLD_SCALING, parameters)
    return {one.queue: one for one in sql.read_holds(rows)}


def list_scalers(database: Database, queues: Sequence[str] | None = None) -> list[QueueScaler]:
    """Returns which scaler holds each queue now."""
    asked = None if queues is None else [*queues]
    return [QueueScaler(*row) for row in database.rows(sql.SCALERS, (asked,))]


def decide(database: Database, decided: Sequence[Json], *, holder: str, lease: Duration) -> list[str]:
    """Stores the decisions of a scaler and extends its hold. Returns the queues for which a decision was stored: it is
    not, if it equals the last one of its queue."""
    parameters = (holder, validate.lease(lease), orjson.dumps(decided).decode())
    return [str(name) for (name,) in database.rows(sql.DECIDE, parameters)]


def leave_scaling(database: Database, holder: str) -> None:
    """Gives up the queues that a scaler holds."""
    database.run(sql.LEAVE_SCALING, (holder,))


def list_decisions(
    database: Database, queue: str, *, at: datetime | None = None, limit: int = 20
) -> list[StoredDecision]:
    """Returns the decisions for a queue up to a moment, newest first."""
    return sql.read_decisions(database.rows(sql.DECISIONS, (queue, at, limit)))


def board(database: Database, queue: str | None = None, *, decisions: int = 10, samples: int = 0) -> Board:
    """Returns queues, workers and decisions in one round trip."""
    return sql.read_board(database.value(sql.BOARD, (queue, decisions, samples)))


def target_workers(database: Database, queue: str) -> tuple[int, float | None]:
    """Returns how many workers a queue should have, and how many seconds ago that was decided (None means never)."""
    workers, seconds = database.row(sql.TARGET_WORKERS, (queue, queue))
    return int(workers), seconds


def dismiss(database: Database, workers: Sequence[str]) -> int:
    """Tells workers that a scaler started to finish and stop, and returns how many there were."""
    return int(database.value(sql.DISMISS, ([*workers],)))


def scaler_snapshot(database: Database, asked: Sequence[QueueQuestion]) -> ScalerSnapshot:
    """Returns what a scaler needs to know of some queues; due tasks are promoted first."""
    return sql.read_snapshot(database.value(sql.SCALER_SNAPSHOT, sql.snapshot_parameters(asked)))
