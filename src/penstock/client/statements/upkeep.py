"""Upkeep and retentions."""

from __future__ import annotations

from typing import Any

from penstock.errors import PenstockError

UPKEEP_PARTS = "select penstock.upkeep_parts(%s)"
# A part that a crash undoes is done again, so it waits neither for the disk nor for a synchronous standby that is away.
UPKEEP_PART = """
    select u.rows, u.more
    from penstock.upkeep_part(%s, %s) as u, pg_catalog.set_config('synchronous_commit', 'off', true)
"""
UPKEEP_SECONDS = 5.0  # for which a round of upkeep repeats parts that have more to do
SET_RETENTION = "select penstock.set_retention(%s, %s)"
RETENTIONS = "select what, keep from penstock.retention order by what"


class Upkeep(dict[str, int]):
    """The result of a round of upkeep: the rows of each part. `failed` contains the parts that failed, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, PenstockError] = {}


class FailureLog:
    """Counts consecutive failures of each part of upkeep, and selects those that are worth a line in the log: the
    first, the second, the fourth, the eighth and so on."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def note(self, done: Upkeep) -> list[dict[str, Any]]:
        """Returns the facts of each failure that should be logged now."""
        self._times = {part: self._times.get(part, 0) + 1 for part in done.failed} | {
            part: times for part, times in self._times.items() if part not in done and part not in done.failed
        }
        return [
            {"part": part, "code": error.code, "times": self._times[part]}
            for part, error in done.failed.items()
            if self._times[part].bit_count() == 1
        ]
