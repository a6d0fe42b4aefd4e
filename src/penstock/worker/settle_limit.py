"""How many settles run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

FIRST_PAUSE = 1.0  # seconds before one settle tries whether PostgreSQL answers again; the time doubles
MAX_PAUSE = 300.0


class SettleLimit:
    """Lets a few settles run at the same time, and only one after each pause while they get no answer.

    A settle without an answer can stay in PostgreSQL for long, because its COMMIT waits for a standby. Without the
    pauses every further settle would leave another session there, until no connection is left.
    """

    def __init__(self, at_once: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._probing = asyncio.Lock()
        self._answered = asyncio.Event()
        self._answered.set()
        self._pause = FIRST_PAUSE

    def note_answer(self) -> None:
        """Records that PostgreSQL has accepted or refused a settle."""
        self._answered.set()
        self._pause = FIRST_PAUSE

    def note_no_answer(self) -> None:
        """Records that a settle got no answer."""
        self._answered.clear()

    @asynccontextmanager
    async def place(self, *, repeats: bool) -> AsyncIterator[None]:
        """Waits until a settle may run, and keeps its place until the end of the block.

        A settle that repeats one without an answer does not wait for a pause: while the first one is still there,
        PostgreSQL answers that the tasks are busy.
        """
        async with AsyncExitStack() as until_end:
            if not repeats and not self._answered.is_set():
                await until_end.enter_async_context(self._probing)
                await self._wait_for_answer()
                if self._answered.is_set():
                    await until_end.aclose()  # the others need not wait for this one
            async with self._places:
                yield

    async def _wait_for_answer(self) -> None:
        if self._answered.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause):
                await self._answered.wait()
                return
        self._pause = min(2 * self._pause, MAX_PAUSE)
