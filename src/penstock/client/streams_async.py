"""Streams: a queue as the source of a Spark stream.

One driver at a time holds a consumer group. Every call refuses a driver that lost its group (Conflict).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock import validate
from penstock.client.connections_async import AsyncConnection, fetch_raw
from penstock.client.database_async import AsyncDatabase
from penstock.client.sqlstate import translate_errors
from penstock.client.statements import streams as sql
from penstock.model import Batch, Duration, GroupHold


async def next_epoch(database: AsyncDatabase) -> int:
    """Returns a new epoch for a driver of a consumer group."""
    return int(await database.value(sql.NEXT_EPOCH))


async def hold_stream(
    database: AsyncDatabase, queue: str, group: str, *, epoch: int, driver: str, lease: Duration
) -> GroupHold:
    """Takes a group for a driver, which has locked its epoch before."""
    parameters = (queue, group, epoch, driver, validate.lease(lease))
    stream, identity, batch = await database.row(sql.HOLD_STREAM, parameters)
    return GroupHold(stream, epoch, identity, batch)


async def keep_stream(database: AsyncDatabase, held: GroupHold, *, lease: Duration) -> None:
    """Records that the driver is alive and keeps the leases that it was given."""
    await database.run(sql.KEEP_STREAM, (held.stream, held.epoch, validate.lease(lease)))


async def leave_stream(database: AsyncDatabase, held: GroupHold) -> None:
    """Gives up the group that a driver holds."""
    await database.run(sql.LEAVE_STREAM, (held.stream, held.epoch))


async def next_batch(
    database: AsyncDatabase,
    held: GroupHold,
    *,
    after: int,
    limit: int,
    slots: int,
    lease: Duration,
    before: datetime | None = None,
) -> Batch:
    """Marks everything up to batch `after` as done and returns the next batch. A repeated call returns the same
    batch."""
    parameters = (held.stream, held.epoch, after, limit, slots, validate.lease(lease), before)
    return Batch(*await database.row(sql.NEXT_BATCH, parameters))


async def batch_leases(database: AsyncDatabase, held: GroupHold, after: int, upto: int) -> list[tuple[str, int]]:
    """Returns the leases of the batches after one batch up to another: token and size."""
    return await database.rows(sql.BATCH_LEASES, (held.stream, held.epoch, after, upto))


async def read_lease(connection: AsyncConnection, token: str, first: int, count: int) -> list[tuple[Any, ...]]:
    """Returns some tasks of a lease, in the order of the lease, as PostgreSQL sent them."""
    with translate_errors():
        return await fetch_raw(connection, sql.READ_LEASE, (token, first, count))


async def waiting_now(database: AsyncDatabase, queue: str) -> tuple[datetime, int]:
    """Returns a moment, and how many tasks could run at that moment."""
    at, tasks = await database.row(sql.WAITING_NOW, (queue,))
    return at, int(tasks)
