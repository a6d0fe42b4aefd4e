# Made from src/penstock/client/workers_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Workers: beats, the search for work, and their leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import orjson

from penstock import validate
from penstock.client.database import RELAXED, Database
from penstock.client.statements import workers as sql
from penstock.model import Duration, Json, Kept, Standing


def beat(
    database: Database,
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
    rows = database.rows(sql.BEAT, parameters, begin=RELAXED)
    return {str(queue): Standing(*standing) for queue, *standing in rows}


def beat_all(
    database: Database,
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
    return sql.read_beat(database.row(sql.BEAT_ALL, parameters, begin=RELAXED))


def find_work(database: Database, queues: Sequence[str]) -> sql.FoundWork:
    """Looks for work in all of these queues."""
    return sql.FoundWork(*database.row(sql.FIND_WORK, ([*queues],)))


def prepare_work(
    database: Database, queues: Sequence[str], kinds: Mapping[str, list[Json]]
) -> dict[str, tuple[float, bool]]:
    """Returns the lease of each queue in seconds and whether the queue is paused, and raises NotFound for a queue that
    does not exist. It also stores the settings of the kinds of each queue (see `set_kinds`)."""
    parameters = ([*queues], orjson.dumps(kinds).decode())
    rows = database.rows(sql.PREPARE_WORK, parameters)
    return {str(name): (float(lease), bool(paused)) for name, lease, paused in rows}


def pass_on(database: Database, worker: str, queue: str) -> None:
    """Wakes another worker, because the worker that was woken has no free slot."""
    database.once(sql.WAKE_ANOTHER, (worker, queue))


def take_quarantine(database: Database, queue: str, worker: str) -> bool:
    """Returns whether this worker is the one that must become empty, to run a quarantined task of the queue alone."""
    return bool(database.value(sql.TAKE_QUARANTINE, (queue, worker), begin=RELAXED))


def expire_leases(database: Database, queues: Sequence[str]) -> int:
    """Puts the tasks of expired leases back to waiting, and returns how many there were."""
    return int(database.value(sql.EXPIRE_LEASES, ([*queues],), begin=RELAXED))


def end_leases(database: Database, tokens: Sequence[str]) -> tuple[int, int]:
    """Puts the tasks of these leases back to waiting now, because their worker is dead. Returns how many attempts
    failed by this of tasks that are tried again, and how many tasks are dead."""
    failed, dead = database.row(sql.END_LEASES, ([*tokens],), begin=RELAXED)
    return int(failed), int(dead)


def end_leases_of(database: Database, worker: str, queues: Sequence[str]) -> tuple[int, int]:
    """Puts the tasks of all leases of a dead worker process back, and answers as `end_leases` does."""
    failed, dead = database.row(sql.END_LEASES_OF, (worker, [*queues]), begin=RELAXED)
    return int(failed), int(dead)


def extend_leases(
    database: Database,
    tokens: Iterable[UUID | str],
    *,
    lease: Duration | None = None,
    deadline: float | None = None,
) -> dict[str, Kept]:
    """Extends many leases from now on; the answer leaves out those that are lost. It does not wait for the disk,
    because an extension that a crash of PostgreSQL undoes only ends the lease earlier."""
    asked = [str(validate.token(token)) for token in tokens]
    parameters = (asked, validate.lease(lease))
    rows = database.rows(sql.EXTEND_MANY, parameters, begin=RELAXED, deadline=deadline)
    return {str(token): Kept(until, tuple(revoked)) for token, until, revoked in rows}


def find_lease(database: Database, queue: str) -> float:
    """Returns the length of a queue's lease in seconds. Every worker may call this."""
    return float(database.value(sql.LEASE, (queue,)))


def set_kinds(database: Database, queue: str, kinds: list[Json]) -> int:
    """Stores the settings that the code gives to its kinds (retry, max_attempts, timeout), so that settle and expiry
    use the same ones. Workers do this when they start. Returns how many kinds changed."""
    return int(database.value(sql.SET_KINDS, (queue, orjson.dumps(kinds).decode())))


def leave(database: Database, worker: str) -> None:
    """Removes a worker that stops from the registry. Tasks that it still holds come back when their leases end."""
    database.run(sql.LEAVE, (worker,))
