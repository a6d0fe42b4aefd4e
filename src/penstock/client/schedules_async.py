"""Schedules: they are set, paused and fired."""

from __future__ import annotations

from dataclasses import replace

from penstock.client.connections_async import AsyncConnection
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import schedules as sql
from penstock.errors import PenstockError, Unavailable
from penstock.model import Firing, NewSchedule, Schedule
from penstock.schedule import decide, next_run


async def list_schedules(database: AsyncDatabase, name: str | None = None) -> list[Schedule]:
    """Returns one schedule or all schedules."""
    return sql.read_schedules(await database.rows(sql.SCHEDULES, (name,)))


async def set_schedule(database: AsyncDatabase, new: NewSchedule) -> Schedule:
    """Creates or changes a schedule. A changed cron expression counts from now. Decided ticks stay decided."""
    async with database.transaction() as connection:
        await connection.execute(sql.SET_SCHEDULE, sql.schedule_parameters(new))
        return await plan_next_run(connection, new.name)


async def drop_schedule(database: AsyncDatabase, name: str) -> None:
    """Removes a schedule."""
    await database.run(sql.DROP_SCHEDULE, (name,))


async def pause_schedule(database: AsyncDatabase, name: str) -> Schedule:
    """Pauses a schedule and returns it."""
    async with database.transaction() as connection:
        await connection.execute(sql.PAUSE_SCHEDULE, (name,))
        return sql.read_schedules(await (await connection.execute(sql.SCHEDULES, (name,))).fetchall())[0]


async def resume_schedule(database: AsyncDatabase, name: str) -> Schedule:
    """Resumes a schedule from now on and returns it."""
    async with database.transaction() as connection:
        await connection.execute(sql.RESUME_SCHEDULE, (name,))
        return await plan_next_run(connection, name)


async def plan_next_run(connection: AsyncConnection, name: str) -> Schedule:
    """Computes the next tick of a schedule, if that is needed, while the transaction that changed the schedule still
    holds it."""
    (found,) = sql.read_schedules(await (await connection.execute(sql.SCHEDULES, (name,))).fetchall())
    if found.paused or found.next_at > found.at:
        return found
    next_at = next_run(found)
    await connection.execute(sql.FIRE, sql.fire_parameters(found, Firing([], found.mark, next_at)))
    return replace(found, next_at=next_at)


async def next_schedule(database: AsyncDatabase) -> float | None:
    """Returns the seconds until a schedule is due, or None if no schedule is waiting."""
    seconds = await database.value(sql.NEXT_SCHEDULE)
    return None if seconds is None else float(seconds)


async def run_schedules(database: AsyncDatabase) -> sql.ScheduleRun:
    """Fires the schedules that are due, each in a transaction of its own: a schedule that cannot be fired does not
    delay the others."""
    found = sql.read_schedules(await database.rows(sql.DUE_SCHEDULES))
    pushed, failed = 0, dict[str, PenstockError]()
    for one in found:
        try:
            fired = await database.value(sql.FIRE, sql.fire_parameters(one, decide(one)))
        except Unavailable:
            raise
        except PenstockError as error:
            failed[one.name] = error
        else:
            pushed += int(fired or 0)
    return sql.ScheduleRun(pushed, failed)
