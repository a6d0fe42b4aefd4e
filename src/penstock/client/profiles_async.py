"""Profiles that the pipeline learns, and run times."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import profiles as sql
from penstock.model import Json, Latency, RunningTasks, StoredProfile


async def set_profiles(database: AsyncDatabase, profiles: Sequence[Json]) -> int:
    """Replaces the stored profiles of queues, and returns how many of these queues still exist."""
    return int(await database.value(sql.SET_PROFILES, (orjson.dumps(profiles).decode(),)))


async def find_profiles(database: AsyncDatabase, name: str | None = None) -> list[StoredProfile]:
    """Returns the profile of one queue or of all queues; a queue without a profile is listed with `made` None."""
    return sql.read_profiles(await database.rows(sql.PROFILES, (name,)))


async def running_times(database: AsyncDatabase) -> list[RunningTasks]:
    """Returns how long the tasks that run now have been running, in buckets."""
    return [RunningTasks(*row) for row in await database.rows(sql.RUNNING_TIMES)]


async def start_latencies(database: AsyncDatabase) -> list[Latency]:
    """Returns how long workers take from the request to their first task, by queue."""
    return [Latency(*row) for row in await database.rows(sql.START_LATENCIES)]
