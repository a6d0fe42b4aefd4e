# Made from src/penstock/client/schedules_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Schedules: they are set, paused and fired."""

from __future__ import annotations

from dataclasses import replace

from penstock.client.connections import Connection
from penstock.client.database import Database
from penstock.client.statements import schedules as sql
from penstock.errors import PenstockError, Unavailable
from penstock.model import Firing, NewSchedule, Schedule
from penstock.schedule import decide, next_run


def list_schedules(database: Database, name: str | None = None) -> list[Schedule]:
    """Returns one schedule or all schedules."""
    return sql.read_schedules(database.rows(sql.SCHEDULES, (name,)))


def set_schedule(database: Database, new: NewSchedule) -> Schedule:
    """Creates or changes a schedule. A changed cron expression counts from now. Decided ticks stay decided."""
    with database.transaction() as connection:
        connection.execute(sql.SET_SCHEDULE, sql.schedule_parameters(new))
        return plan_next_run(connection, new.name)


def drop_schedule(database: Database, name: str) -> None:
    """Removes a schedule."""
    database.run(sql.DROP_SCHEDULE, (name,))


def pause_schedule(database: Database, name: str) -> Schedule:
    """Pauses a schedule and returns it."""
    with database.transaction() as connection:
        connection.execute(sql.PAUSE_SCHEDULE, (name,))
        return sql.read_schedules(connection.execute(sql.SCHEDULES, (name,)).fetchall())[0]


def resume_schedule(database: Database, name: str) -> Schedule:
    """Resumes a schedule from now on and returns it."""
    with database.transaction() as connection:
        connection.execute(sql.RESUME_SCHEDULE, (name,))
        return plan_next_run(connection, name)


def plan_next_run(connection: Connection, name: str) -> Schedule:
    """Computes the next tick of a schedule, if that is needed, while the transaction that changed the schedule still
    holds it."""
    (found,) = sql.read_schedules(connection.execute(sql.SCHEDULES, (name,)).fetchall())
    if found.paused or found.next_at > found.at:
        return found
    next_at = next_run(found)
    connection.execute(sql.FIRE, sql.fire_parameters(found, Firing([], found.mark, next_at)))
    return replace(found, next_at=next_at)


def next_schedule(database: Database) -> float | None:
    """Returns the seconds until a schedule is due, or None if no schedule is waiting."""
    seconds = database.value(sql.NEXT_SCHEDULE)
    return None if seconds is None else float(seconds)


def run_schedules(database: Database) -> sql.ScheduleRun:
    """Fires the schedules that are due, each in a transaction of its own: a schedule that cannot be fired does not
    delay the others."""
    found = sql.read_schedules(database.rows(sql.DUE_SCHEDULES))
    pushed, failed = 0, dict[str, PenstockError]()
    for one in found:
        try:
            fired = database.value(sql.FIRE, sql.fire_parameters(one, decide(one)))
        except Unavailable:
            raise
        except PenstockError as error:
            failed[one.name] = error
        else:
            pushed += int(fired or 0)
    return sql.ScheduleRun(pushed, failed)
