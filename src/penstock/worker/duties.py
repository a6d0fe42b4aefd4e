"""What the duties of a supervisor share: how they wait, and what they do about problems."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress

from penstock.client.database_async import AsyncDatabase
from penstock.errors import PenstockError, Unavailable
from penstock.worker.given_up import GivenUp

LOG = logging.getLogger("penstock.worker")


class Problems:
    """Handles the problems of duties that are no reason to stop the supervisor."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._logged: set[tuple[str, str]] = set()
        self.given_up = GivenUp()
        self.reconnects = 0  # how often PostgreSQL was lost and reached again
        self._away = False

    def log_once(self, what: str, error: PenstockError) -> None:
        """Logs a problem, unless the same problem was logged before."""
        if (what, error.code) not in self._logged:
            self._logged.add((what, error.code))
            LOG.warning(what, extra={"code": error.code})

    def note_success(self, duty: str) -> None:
        """Records that PostgreSQL has answered a duty."""
        self.given_up.clear(duty)
        if self._away:
            self._away = False
            self.reconnects += 1

    async def wait_for_database(self, error: Unavailable, duty: str) -> None:
        """Waits a moment, and if PostgreSQL is gone, until it can be reached again. It never retries at once.

        If PostgreSQL answers but gives up the call of a duty, the log says so.
        """
        self.given_up.note(duty, error)
        self._away = self._away or error.reason != "retry"
        await asyncio.sleep(random.uniform(0.05, 0.5))  # noqa: S311
        if error.reason not in ("retry", "pool"):
            await self._database.reconnect()


async def wait_until(moment: float, changed: asyncio.Event) -> None:
    """Waits until a moment of the monotonic clock, at most 60 seconds, or until the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, min(moment - time.monotonic(), 60.0))):
            await changed.wait()
