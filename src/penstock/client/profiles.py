# Made from src/penstock/client/profiles_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Profiles that the pipeline learns, and run times."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from penstock.client.database import Database
from penstock.client.statements import profiles as sql
from penstock.model import Json, Latency, RunningTasks, StoredProfile


def set_profiles(database: Database, profiles: Sequence[Json]) -> int:
    """Replaces the stored profiles of queues, and returns how many of these queues still exist."""
    return int(database.value(sql.SET_PROFILES, (orjson.dumps(profiles).decode(),)))


def find_profiles(database: Database, name: str | None = None) -> list[StoredProfile]:
    """Returns the profile of one queue or of all queues; a queue without a profile is listed with `made` None."""
    return sql.read_profiles(database.rows(sql.PROFILES, (name,)))


def running_times(database: Database) -> list[RunningTasks]:
    """Returns how long the tasks that run now have been running, in buckets."""
    return [RunningTasks(*row) for row in database.rows(sql.RUNNING_TIMES)]


def start_latencies(database: Database) -> list[Latency]:
    """Returns how long workers take from the request to their first task, by queue."""
    return [Latency(*row) for row in database.rows(sql.START_LATENCIES)]
