"""Schedules: the statements, their parameters and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock import validate
from penstock.errors import PenstockError
from penstock.model import Firing, NewSchedule, Schedule
from penstock.schedule import NEXT_TICK

SCHEDULES = """
    select name, queue, kind, payload, priority, cron, tz, backfill, paused, mark, next_at, last_tick, created, updated,
           who, size, at, key, expires, until_next
    from penstock.schedules(%s)
"""
DUE_SCHEDULES = "select s.* from penstock.due_schedules() as d(name), penstock.schedules(d.name) as s"
NEXT_SCHEDULE = "select penstock.next_schedule()"
SET_SCHEDULE = "select penstock.set_schedule(%s, %s, %s, %s, %s, %s::jsonb, %s::smallint, %s, %s, %s, %s)"
DROP_SCHEDULE = "select penstock.drop_schedule(%s)"
PAUSE_SCHEDULE = "select penstock.pause_schedule(%s)"
RESUME_SCHEDULE = "select penstock.resume_schedule(%s)"
FIRE = "select penstock.fire(%s, %s, %s::timestamptz[], %s, %s, %s::timestamptz[])"


class ScheduleRun(NamedTuple):
    """The result of running the schedules: how many tasks were pushed, and which schedules could not be fired, and
    why."""

    pushed: int
    failed: Mapping[str, PenstockError]


def schedule_parameters(new: NewSchedule) -> tuple[Any, ...]:
    """Returns the parameters of SET_SCHEDULE."""
    payload = validate.payload(new.payload, validate.MAX_PAYLOAD).decode()
    until_next = new.expires == NEXT_TICK
    expires = None if new.expires is None or until_next else validate.positive(new.expires, "expires")
    named = (new.name, new.queue, new.cron, new.tz, new.kind, payload, new.priority, new.backfill)
    return (*named, new.key, expires, until_next)


def read_schedules(rows: list[tuple[Any, ...]]) -> list[Schedule]:
    """Reads the answer of SCHEDULES."""
    return [Schedule(*(*row[:3], validate.decode_text(row[3]), *row[4:])) for row in rows]


def fire_parameters(schedule: Schedule, firing: Firing) -> tuple[Any, ...]:
    """Returns the parameters of FIRE."""
    return (schedule.name, schedule.mark, firing.ticks, firing.decided, firing.next_at, firing.ends)
