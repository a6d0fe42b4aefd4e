"""Workers: beats, the search for work, and their leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import orjson

from penstock import validate
from penstock.client.database_async import RELAXED, AsyncDatabase
from penstock.client.statements import workers as sql
from penstock.model import Duration, Json, Kept, Standing


async def beat(
    database: AsyncDatabase,
    worker: str,
    queues: list[str],
    *,
    slots: int,
    busy: int,
    host: str = "",
    pid: int | None = None,
    requested_at: datetime | None = None,
    started_by: str | None = None,
    leaving: bool = False,
) -> dict[str, Standing]:
    """Records that a worker is alive, and returns its standing in each queue."""
    parameters = (worker, queues, slots, busy, host, pid, requested_at, started_by, leaving)
    rows = await database.rows(sql.BEAT, parameters, begin=RELAXED)
    return {str(queue): Standing(*standing) for queue, *standing in rows}


async def beat_all(
    database: AsyncDatabase,
    workers: Sequence[Json],
    queues: Sequence[str],
    *,
    slots: int,
    host: str = "",
    started_by: str | None = None,
    leaving: bool = False,
    known: int | None = None,
) -> tuple[sql.BeatAnswer, sql.FoundWork]:
    """Records that the workers of a supervisor are alive, and looks for work, all in one statement. `known` is the
    value that the last beat returned: leases that have not changed since then are not sent again."""
    named = [*queues]
    parameters = (orjson.dumps(workers).decode(), named, slots, host, started_by, leaving, known, named)
    return sql.read_beat(await database.row(sql.BEAT_ALL, parameters, begin=RELAXED))


async def find_work(database: AsyncDatabase, queues: Sequence[str]) -> sql.FoundWork:
    """Looks for work in all of these queues."""
    return sql.FoundWork(*await database.row(sql.FIND_WORK, ([*queues],)))


async def prepare_work(
    database: AsyncDatabase, queues: Sequence[str], kinds: Mapping[str, list[Json]]
) -> dict[str, tuple[float, bool]]:
    """Returns the lease of each queue in seconds and whether the queue is paused, and raises NotFound for a queue that
    does not exist. It also stores the settings of the kinds of each queue (see `set_kinds`)."""
    parameters = ([*queues], orjson.dumps(kinds).decode())
    rows = await database.rows(sql.PREPARE_WORK, parameters)
    return {str(name): (float(lease), bool(paused)) for name, lease, paused in rows}


async def pass_on(database: AsyncDatabase, worker: str, queue: str) -> None:
    """Wakes another worker, because the worker that was woken has no free slot."""
    await database.once(sql.WAKE_ANOTHER, (worker, queue))


async def take_quarantine(database: AsyncDatabase, queue: str, worker: str) -> bool:
    """Returns whether this worker is the one that must become empty, to run a quarantined task of the queue alone."""
    return bool(await database.value(sql.TAKE_QUARANTINE, (queue, worker), begin=RELAXED))


async def expire_leases(database: AsyncDatabase, queues: Sequence[str]) -> int:
    """Puts the tasks of expired leases back to waiting, and returns how many there were."""
    return int(await database.value(sql.EXPIRE_LEASES, ([*queues],), begin=RELAXED))


async def end_leases(database: AsyncDatabase, tokens: Sequence[str]) -> tuple[int, int]:
    """Puts the tasks of these leases back to waiting now, because their worker is dead. Returns how many attempts
    failed by this of tasks that are tried again, and how many tasks are dead."""
    failed, dead = await database.row(sql.END_LEASES, ([*tokens],), begin=RELAXED)
    return int(failed), int(dead)


async def end_leases_of(database: AsyncDatabase, worker: str, queues: Sequence[str]) -> tuple[int, int]:
    """Puts the tasks of all leases of a dead worker process back, and answers as `end_leases` does."""
    failed, dead = await database.row(sql.END_LEASES_OF, (worker, [*queues]), begin=RELAXED)
    return int(failed), int(dead)


async def extend_leases(
    database: AsyncDatabase,
    tokens: Iterable[UUID | str],
    *,
    lease: Duration | None = None,
    deadline: float | None = None,
) -> dict[str, Kept]:
    """Extends many leases from now on; the answer leaves out those that are lost. It does not wait for the disk,
    because an extension that a crash of PostgreSQL undoes only ends the lease earlier."""
    asked = [str(validate.token(token)) for token in tokens]
    parameters = (asked, validate.lease(lease))
    rows = await database.rows(sql.EXTEND_MANY, parameters, begin=RELAXED, deadline=deadline)
    return {str(token): Kept(until, tuple(revoked)) for token, until, revoked in rows}


async def find_lease(database: AsyncDatabase, queue: str) -> float:
    """Returns the length of a queue's lease in seconds. Every worker may call this."""
    return float(await database.value(sql.LEASE, (queue,)))


async def set_kinds(database: AsyncDatabase, queue: str, kinds: list[Json]) -> int:
    """Stores the settings that the code gives to its kinds (retry, max_attempts, timeout), so that settle and expiry
    use the same ones. Workers do this when they start. Returns how many kinds changed."""
    return int(await database.value(sql.SET_KINDS, (queue, orjson.dumps(kinds).decode())))


async def leave(database: AsyncDatabase, worker: str) -> None:
    """Removes a worker that stops from the registry. Tasks that it still holds come back when their leases end."""
    await database.run(sql.LEAVE, (worker,))
