"""What any worker may do for the whole database: the upkeep, and the schedules."""

from __future__ import annotations

import asyncio
import logging
import math
import time

from penstock.client import schedules_async, upkeep_async
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements.upkeep import FailureLog
from penstock.errors import PenstockError, Unavailable
from penstock.worker.duties import Problems, wait_until

LOG = logging.getLogger("penstock.worker")
UPKEEP = 10.0  # seconds between two upkeeps, at least
FIRE_AGAIN = 1.0  # seconds until schedules that could not be fired are tried again


class UpkeepDuty:
    """The duty to do the upkeep, which any process may do at any time, if no other process did it lately."""

    def __init__(self, database: AsyncDatabase, problems: Problems) -> None:
        self._database = database
        self._problems = problems
        self._failures = FailureLog()
        self.due = asyncio.Event()

    async def run(self) -> None:
        """Does the upkeep when it is due."""
        while True:
            await self.due.wait()
            self.due.clear()
            try:
                done = await upkeep_async.upkeep(self._database, due_only=True)
                for facts in self._failures.note(done):
                    LOG.warning("upkeep part failed", extra=facts)
            except Unavailable as error:
                await self._problems.wait_for_database(error, "upkeep")
            except PenstockError as error:
                self._problems.log_once("upkeep failed", error)
            await asyncio.sleep(UPKEEP)


class ScheduleDuty:
    """The duty to fire schedules when they are due."""

    def __init__(self, database: AsyncDatabase, problems: Problems) -> None:
        self._database = database
        self._problems = problems
        self._fires_at = math.inf  # when a schedule is due, on the monotonic clock
        self._sooner = asyncio.Event()

    def expect(self, ahead: float | None) -> None:
        """Sets the time at which a schedule is due.

        Each look for work reports it, because a schedule may be added at any time.
        """
        sooner = self._fires_at
        self._fires_at = math.inf if ahead is None else time.monotonic() + ahead
        if self._fires_at < sooner:
            self._sooner.set()

    async def run(self) -> None:
        """Fires schedules when they are due."""
        while True:
            await wait_until(self._fires_at, self._sooner)
            self._sooner.clear()
            if time.monotonic() < self._fires_at:
                continue
            try:
                await asyncio.sleep(await self.fire())
                self.expect(await schedules_async.next_schedule(self._database))
            except Unavailable as error:
                await self._problems.wait_for_database(error, "schedules")
            except PenstockError as error:
                self._problems.log_once("schedules not run", error)
                await asyncio.sleep(FIRE_AGAIN)

    async def fire(self) -> float:
        """Fires the schedules that are due, and returns how long to rest.

        A schedule that cannot be fired is not tried again at once.
        """
        fired = await schedules_async.run_schedules(self._database)
        for name, error in fired.failed.items():
            self._problems.log_once(f"schedule {name} not fired", error)
        return FIRE_AGAIN if fired.failed and not fired.pushed else 0.05
