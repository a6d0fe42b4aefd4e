"""How far a worker is: its result so far, and whether its queues are drained."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from penstock.client import queues_async
from penstock.client.database_async import AsyncDatabase
from penstock.errors import Conflict, PenstockError, Unavailable
from penstock.model import QueueStatus
from penstock.worker.duties import Problems
from penstock.worker.member import Members
from penstock.worker.plan import WorkerReport
from penstock.worker.shutdown import Shutdown

Progress = Callable[[list[QueueStatus], WorkerReport], None]


class WorkProgress:
    """The result of a worker so far; it also shows it, and stops the worker when the queues are drained."""

    def __init__(
        self,
        queues: list[str],
        database: AsyncDatabase,
        members: Members,
        *,
        shutdown: Shutdown,
        problems: Problems,
        show: Progress | None,
    ) -> None:
        self._queues = queues
        self._database = database
        self._members = members
        self._shutdown = shutdown
        self._problems = problems
        self._show = show
        self._began = time.monotonic()
        self._planned = 0

    @property
    def report(self) -> WorkerReport:
        """The result so far."""
        seconds = time.monotonic() - self._began
        return WorkerReport(self._members.counts, seconds, self._planned, self._shutdown.signal)

    async def watch(self) -> None:
        """Waits until all is drained: no task that is due waits, and no task is running."""
        while not self._shutdown.stopping:
            try:
                found = await queues_async.statuses(self._database, self._queues)
                for name in {*self._queues} - {one.queue for one in found}:
                    await queues_async.status(self._database, name)  # raises NotFound
            except Unavailable as error:
                await self._problems.wait_for_database(error, "status of the queues")
                continue
            if self._show is not None:
                self._show(found, self.report)
            stuck = next((one.queue for one in found if one.paused), None)
            if stuck is not None:
                raise make_paused_error(stuck)
            if all(is_drained(one) for one in found):
                self._planned = sum(one.planned for one in found)
                self._shutdown.stop()
                return
            await asyncio.sleep(0.1)

    async def show_last(self) -> None:
        """Shows the progress at the end, also after a signal."""
        if self._show is None:
            return
        found: list[QueueStatus] = []
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(1.0):
                found = await queues_async.statuses(self._database, self._queues)
        self._show(found, self.report)


def is_drained(status: QueueStatus) -> bool:
    """Returns whether no task of a queue waits or runs."""
    return status.pending == 0 and status.active == 0 and status.oldest_pending_age is None


def make_paused_error(name: str) -> Conflict:
    """Returns the error for a paused queue, which would never be empty."""
    return Conflict(f"queue {name!r} is paused: it would never be empty", hint=f"penstock queues resume {name}")
