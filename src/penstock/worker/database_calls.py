"""Calls of the sync client in threads, and the wait for PostgreSQL when it is gone."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.client.database import Database
from penstock.errors import Unavailable

LOG = logging.getLogger("penstock.worker")
AT_ONCE = 4  # settles that run at the same time


class DatabaseCalls:
    """Runs calls that wait for PostgreSQL in threads of their own; asyncio would cost a third of a small task."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pool = ThreadPoolExecutor(AT_ONCE + 2, "penstock-database")
        self._reconnecting: asyncio.Task[None] | None = None
        self._reconnected_at = 0.0
        self.reconnects = 0  # how often PostgreSQL was lost and reached again

    @property
    def reconnecting(self) -> bool:
        """Whether calls wait for PostgreSQL to come back."""
        return self._reconnecting is not None

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a call in a thread, and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def wait_for_database(self, error: Unavailable) -> None:
        """Waits until PostgreSQL is back; all callers wait for the same reconnection.

        If PostgreSQL answers but cannot do the work now, a short pause is enough.
        """
        if error.reason in ("retry", "pool"):
            await asyncio.sleep(random.uniform(0.05, 0.5))  # noqa: S311
            return
        if self._reconnecting is None:
            LOG.warning("database lost", extra={"reason": error.reason})
            self._reconnecting = asyncio.create_task(self._reconnect())
        try:
            await asyncio.shield(self._reconnecting)
        finally:
            if self._reconnecting is not None and self._reconnecting.done():
                self._reconnecting = None

    async def _reconnect(self) -> None:
        """Reconnects at most once a second, because the server may be reachable but unable to write."""
        await asyncio.sleep(max(0.0, self._reconnected_at + 1.0 - time.monotonic()))
        await self.run(self._database.reconnect)
        self.reconnects += 1
        self._reconnected_at = time.monotonic()

    async def close(self) -> None:
        """Ends the threads and the connections, which otherwise end with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._database.close)
