"""Schedules: to create, as they are stored, and what is decided about their ticks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from penstock.model.basics import Backfill, Duration, Json


class NewSchedule(NamedTuple):
    """A schedule to create: a task like this one is pushed at every tick of a cron expression."""

    name: str
    queue: str
    cron: str
    tz: str = "UTC"
    kind: str = "default"
    payload: Json | None = None
    priority: int = 5
    backfill: Backfill = "last"
    key: str | None = None
    expires: Duration | None = None  # after their tick, or "next tick": tasks that have not started are cancelled


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is at the moment `at`. Every tick up to `mark` is decided; `last_tick` is the last tick that was
    pushed; the schedule is due at `next_at`."""

    name: str
    queue: str
    kind: str
    payload: Json | None  # None if it is nested deeper than Python can read
    priority: int
    cron: str
    tz: str
    backfill: str
    paused: bool
    mark: datetime
    next_at: datetime
    last_tick: datetime | None
    created: datetime
    updated: datetime
    who: str
    size: int  # of the payload, in bytes
    at: datetime
    key: str | None = None
    expires: timedelta | None = None  # of its tasks, after their tick
    until_next: bool = False  # its tasks expire at the next tick


class Firing(NamedTuple):
    """A decision about a schedule's ticks: `ticks` are pushed, every tick up to `decided` is decided, and the next one
    is `next_at`. `ends` says when the tasks of the ticks expire."""

    ticks: list[datetime]
    decided: datetime
    next_at: datetime
    ends: list[datetime] | None = None
