"""Queues: create, settings, status, verify and repair; and tasks of any queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import orjson

from penstock import validate
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import queues as sql
from penstock.client.statements import tasks
from penstock.model import Json, QueueSettings, QueueStatus, Repair, TaskDetails, Verification


async def create(
    database: AsyncDatabase, name: str, *, exist_ok: bool = False, **options: Unpack[sql.QueueOptions]
) -> bool:
    """Creates a queue. Returns False if it existed already; then it is left as it is."""
    statement, parameters = sql.create_statement(name, exist_ok, options)
    return bool(await database.value(statement, parameters))


async def change(database: AsyncDatabase, name: str, changes: sql.QueueChanges) -> None:
    """Changes settings of a queue."""
    await database.run(sql.SET_QUEUE, (name, sql.change_parameters(changes)))


async def set_paused(database: AsyncDatabase, name: str, paused: bool) -> None:
    """Pauses or resumes a queue."""
    await database.run(sql.SET_PAUSED, (name, paused))


async def drop(database: AsyncDatabase, name: str, *, force: bool = False) -> int:
    """Removes a queue and returns how many tasks were removed with it. Without `force` it refuses if there are any."""
    return int(await database.value(sql.DROP_QUEUE, (name, force)))


async def find_task(database: AsyncDatabase, id_: int) -> TaskDetails:
    """Returns one task of any queue, with everything that is known of it. Removed tasks are found in history."""
    (asked,) = validate.ids([id_])
    async with database.transaction() as connection:
        row = await (await connection.execute(tasks.FIND, (asked,))).fetchone()
        if removed := row is None:
            # This second query uses a later snapshot, so one of the two finds a task that ends in between.
            row = await (await connection.execute(tasks.FIND_REMOVED, (asked,))).fetchone()
    return tasks.read_task(row, asked, removed=removed)


async def settings(database: AsyncDatabase, name: str | None = None) -> list[QueueSettings]:
    """Returns the settings of one queue or of all queues."""
    return sql.read_settings(await database.rows(sql.SETTINGS_OF, (name, name)))


async def kind_settings(database: AsyncDatabase) -> list[tuple[str, str, Json | None, int | None]]:
    """Returns (queue, kind, retry strategy, max_attempts) of the kinds that have settings of their own; None means that
    the queue's setting applies."""
    rows = await database.rows(sql.KINDS_OF)
    return [(queue, kind, None if retry is None else orjson.loads(retry), most) for queue, kind, retry, most in rows]


async def status(database: AsyncDatabase, name: str | None = None) -> list[QueueStatus]:
    """Returns the counts of one queue or of all queues, in one snapshot."""
    asked = None if name is None else validate.queue_name(name)
    return sql.read_statuses(await database.rows(sql.STATUS, (asked,)))


async def statuses(database: AsyncDatabase, names: Sequence[str]) -> list[QueueStatus]:
    """Returns the counts of these queues in one statement. A queue that does not exist is left out, unless it is the
    only one."""
    if len(names) == 1:
        return await status(database, names[0])
    return sql.read_statuses(await database.rows(sql.STATUS_OF, ([*names],)))


async def verify(database: AsyncDatabase, name: str | None = None) -> Verification:
    """Recounts one queue or all queues, and compares the result with their counters."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(sql.VERIFY, (name,))).fetchall()
        dropped = await (await connection.execute(sql.DROPPED, (name,))).fetchone()
    return sql.read_verification(rows, dropped)


async def repair(database: AsyncDatabase, name: str | None = None) -> list[Repair]:
    """Repairs what `verify` finds in one queue or in all queues, and returns what it changed."""
    name = None if name is None else validate.queue_name(name)
    return [Repair(*row) for row in await database.rows(sql.REPAIR, (name,))]
