"""The calls that PostgreSQL gives up: it answers, but a time limit for statements or locks ends each try."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from penstock.errors import Unavailable

LOG = logging.getLogger("penstock.worker")
LOG_EVERY = 60.0  # seconds between two lines of the log about the same duty


class GivenUp:
    """Logs the duties whose calls PostgreSQL gives up, and knows since when each of them has not succeeded."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._log_at: dict[str, float] = {}

    def note(self, duty: str, error: Unavailable) -> None:
        """Records that a call failed, and logs it at most once a minute for each duty.

        If PostgreSQL itself is gone, the duty is not given up: it waits for PostgreSQL.
        """
        if error.reason not in ("retry", "pool"):
            self._since.pop(duty, None)
            return
        now = time.monotonic()
        since = self._since.setdefault(duty, now)
        if now >= self._log_at.get(duty, now):
            self._log_at[duty] = now + LOG_EVERY
            facts = {"duty": duty, "seconds": round(now - since, 1), "error": error.message}
            LOG.warning("PostgreSQL gave up a call, which is tried again", extra=facts)

    def clear(self, duty: str) -> None:
        """Records that a call succeeded."""
        self._since.pop(duty, None)

    def longer_than(self, seconds: float, duties: Iterable[str]) -> list[str]:
        """Returns those of these duties for which no call has succeeded for so long, although PostgreSQL answers."""
        until = time.monotonic() - seconds
        return [duty for duty in duties if self._since.get(duty, until) < until]
