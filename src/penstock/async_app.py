"""AsyncPenstock: the way in. `penstock.app` is made from this file (see `penstock.aio`)."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from penstock import migrate
from penstock.aio import queue
from penstock.aio.colour import in_thread
from penstock.aio.database import AsyncDatabase
from penstock.aio.queue import AsyncQueue
from penstock.dsn import find_dsn
from penstock.model import Duration, QueueSettings, QueueStatus, Repair, Verification
from penstock.retry import Strategy
from penstock.validate import queue_name


class AsyncPenstock:
    """A database with queues in it. Thread-safe and fork-safe; connects when first used.

    The DSN comes from the argument, PENSTOCK_DSN, DATABASE_URL, libpq's PG* variables, or the running embedded server
    of this directory. A new server is started only by `dsn="embedded"`.

    `rehearse=True`: every verb does all it does, answers, and is rolled back.
    """

    def __init__(
        self, dsn: str | None = None, *, max_connections: int = 8, timeout: float = 10.0, rehearse: bool = False
    ) -> None:
        found, source = find_dsn(dsn, os.environ)
        self._database = AsyncDatabase(
            found, source=source, max_connections=max_connections, timeout=timeout, rehearse=rehearse
        )
        self._queues: dict[str, AsyncQueue] = {}

    def __repr__(self) -> str:
        return f"<AsyncPenstock {self._database!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def dsn(self) -> str:
        return self._database.dsn

    @property
    def dsn_source(self) -> str:
        return self._database.source

    async def close(self) -> None:
        await self._database.close()

    async def init(self, *, roles: bool = True) -> list[str]:
        """Brings the schema up to date; answers the names of what was applied. `roles=False` creates no roles, for
        those who may not."""
        return await in_thread(migrate.init, self.dsn, self.dsn_source, roles=roles)

    async def plan(self, *, roles: bool = True) -> list[str]:
        """What `init` would apply."""
        return await in_thread(migrate.plan, self.dsn, self.dsn_source, roles=roles)

    async def create_queue(
        self,
        name: str,
        *,
        lease: Duration = "30s",
        max_attempts: int | None = 20,
        retry: Strategy | str = "exponential:5s,factor=2,cap=1h,jitter=0.1",
        sla: Duration | None = None,
        keep_done: Duration | None = None,
        keep_dead: Duration | None = None,
        keep_cancelled: Duration | None = None,
        max_payload: int = 1 << 20,
        exist_ok: bool = False,
    ) -> AsyncQueue:
        await queue.create(
            self._database,
            name,
            exist_ok=exist_ok,
            lease=lease,
            max_attempts=max_attempts,
            retry=retry,
            sla=sla,
            keep_done=keep_done,
            keep_dead=keep_dead,
            keep_cancelled=keep_cancelled,
            max_payload=max_payload,
        )
        return self.queue(name)

    def queue(self, name: str) -> AsyncQueue:
        """A queue by name. It is looked up when used."""
        known = self._queues.get(queue_name(name))
        if known is None:
            known = self._queues.setdefault(name, AsyncQueue(self._database, name))
        return known

    async def queues(self) -> list[QueueSettings]:
        return await queue.settings(self._database)

    async def status(self) -> list[QueueStatus]:
        """All queues in one snapshot."""
        return await queue.status(self._database)

    async def verify(self) -> Verification:
        """Recounts everything and compares it with the books."""
        return await queue.verify(self._database)

    async def repair(self, name: str | None = None) -> list[Repair]:
        """Puts right what verify finds, and says what it did."""
        return await queue.repair(self._database, name)

    async def upkeep(self) -> dict[str, int]:
        """What anybody may do at any time: expire, promote, squeeze, sample, history partitions, retention."""
        return await queue.upkeep(self._database)

    async def beat(
        self, worker: str, queues: list[str], *, slots: int = 1, busy: int = 0, host: str = "", pid: int | None = None
    ) -> dict[str, str]:
        """A worker lives: idle ones are woken by pushes. Answers the channel of each queue, to LISTEN on."""
        return await queue.beat(self._database, worker, queues, slots=slots, busy=busy, host=host, pid=pid)
