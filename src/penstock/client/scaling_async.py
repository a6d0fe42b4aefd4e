"""The scaler: its hold of queues, its decisions, and the snapshot that it decides on.

One scaler at a time holds a queue. A scaler that lost a queue is refused (Conflict).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import orjson

from penstock import validate
from penstock.client.database_async import AsyncDatabase
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


async def hold_scaling(
    database: AsyncDatabase,
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
    rows = await database.rows(sql.HOLD_SCALING, parameters)
    return {one.queue: one for one in sql.read_holds(rows)}


async def list_scalers(database: AsyncDatabase, queues: Sequence[str] | None = None) -> list[QueueScaler]:
    """Returns which scaler holds each queue now."""
    asked = None if queues is None else [*queues]
    return [QueueScaler(*row) for row in await database.rows(sql.SCALERS, (asked,))]


async def decide(database: AsyncDatabase, decided: Sequence[Json], *, holder: str, lease: Duration) -> list[str]:
    """Stores the decisions of a scaler and extends its hold. Returns the queues for which a decision was stored: it is
    not, if it equals the last one of its queue."""
    parameters = (holder, validate.lease(lease), orjson.dumps(decided).decode())
    return [str(name) for (name,) in await database.rows(sql.DECIDE, parameters)]


async def leave_scaling(database: AsyncDatabase, holder: str) -> None:
    """Gives up the queues that a scaler holds."""
    await database.run(sql.LEAVE_SCALING, (holder,))


async def list_decisions(
    database: AsyncDatabase, queue: str, *, at: datetime | None = None, limit: int = 20
) -> list[StoredDecision]:
    """Returns the decisions for a queue up to a moment, newest first."""
    return sql.read_decisions(await database.rows(sql.DECISIONS, (queue, at, limit)))


async def board(database: AsyncDatabase, queue: str | None = None, *, decisions: int = 10, samples: int = 0) -> Board:
    """Returns queues, workers and decisions in one round trip."""
    return sql.read_board(await database.value(sql.BOARD, (queue, decisions, samples)))


async def target_workers(database: AsyncDatabase, queue: str) -> tuple[int, float | None]:
    """Returns how many workers a queue should have, and how many seconds ago that was decided (None means never)."""
    workers, seconds = await database.row(sql.TARGET_WORKERS, (queue, queue))
    return int(workers), seconds


async def dismiss(database: AsyncDatabase, workers: Sequence[str]) -> int:
    """Tells workers that a scaler started to finish and stop, and returns how many there were."""
    return int(await database.value(sql.DISMISS, ([*workers],)))


async def scaler_snapshot(database: AsyncDatabase, asked: Sequence[QueueQuestion]) -> ScalerSnapshot:
    """Returns what a scaler needs to know of some queues; due tasks are promoted first."""
    return sql.read_snapshot(await database.value(sql.SCALER_SNAPSHOT, sql.snapshot_parameters(asked)))
