"""Leases go on while their runner lives. This runs in the supervisor, so that a handler that holds the interpreter, or
keeps both cores busy, can not stop it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.aio.queue import AsyncQueue

LAST_GASP = "100ms"


@dataclass(slots=True)
class Lease:
    queue: AsyncQueue
    token: str
    seconds: float
    due: float  # monotonic: when to extend it

    def rest(self, now: float) -> None:
        self.due = now + self.seconds / 3


Lost = Callable[[Lease], None]
Revoked = Callable[[Lease, tuple[int, ...]], None]


class Leases:
    """Those of one runner."""

    def __init__(self, pid: int, lost: Lost, revoked: Revoked) -> None:
        self._pid = pid
        self._lost = lost
        self._revoked = revoked
        self._held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, queue: AsyncQueue, token: str, seconds: float, age: float) -> None:
        """A lease that was asked for so many seconds ago."""
        self._held[token] = Lease(queue, token, seconds, time.monotonic() + seconds / 3 - age)

    def let_go(self, token: str) -> None:
        self._held.pop(token, None)

    @property
    def next_due(self) -> float:
        return min((lease.due for lease in self._held.values()), default=float("inf"))

    async def extend(self) -> None:
        """Those that are due. A runner that somebody froze is not alive: its leases may end."""
        now = time.monotonic()
        due = [lease for lease in self._held.values() if lease.due <= now]
        if not due:
            return
        if frozen(self._pid):
            for lease in due:
                lease.rest(now)
            return
        for (queue, seconds), some in together(due).items():
            await self._extend(queue, seconds, some)

    async def _extend(self, queue: AsyncQueue, seconds: float, some: list[Lease]) -> None:
        answers = await queue.extend_many([lease.token for lease in some], lease=seconds)
        now = time.monotonic()
        for lease in some:
            answer = answers.get(lease.token)
            if lease.token not in self._held:
                continue  # settled meanwhile, or its runner is dead
            if answer is None:
                self.let_go(lease.token)
                self._lost(lease)
            elif answer.until is None:
                lease.due = now + 0.05  # a handler's transaction settles it this moment
            else:
                lease.rest(now)
                if answer.revoked:
                    self._revoked(lease, answer.revoked)

    async def end_soon(self) -> None:
        """Their runner is dead: nobody needs to wait for the rest of them. They expire all the same: that is how a task
        that kills its worker is found."""
        held = [*self._held.values()]
        self._held.clear()
        for (queue, _), some in together(held).items():
            await queue.extend_many([lease.token for lease in some], lease=LAST_GASP)


def together(leases: Iterable[Lease]) -> dict[tuple[AsyncQueue, float], list[Lease]]:
    """Those that one statement can extend."""
    found: dict[tuple[AsyncQueue, float], list[Lease]] = {}
    for lease in leases:
        found.setdefault((lease.queue, lease.seconds), []).append(lease)
    return found


async def until(moment: float, changed: asyncio.Event) -> None:
    """A moment of the monotonic clock, or something that changes it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, min(moment - time.monotonic(), 60.0))):
            await changed.wait()


def frozen(pid: int) -> bool:
    """Stopped by a signal (Linux tells)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")
