"""Profiles that the pipeline learns, and run times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from penstock.model import StoredProfile

SET_PROFILES = "select penstock.set_profiles(%s::jsonb)"
PROFILES = "select queue, version, made, age, covers_from, covers_to, data::text from penstock.profiles(%s)"
RUNNING_TIMES = "select queue, kind, bucket, tasks, seconds from penstock.running_times()"
START_LATENCIES = "select queue, workers, p50, p90 from penstock.start_latencies()"


def read_profiles(rows: Sequence[tuple[Any, ...]]) -> list[StoredProfile]:
    """Reads the answer of PROFILES."""
    found = [StoredProfile(*row) for row in rows]
    return [one if one.data is None else one._replace(data=orjson.loads(str(one.data))) for one in found]
