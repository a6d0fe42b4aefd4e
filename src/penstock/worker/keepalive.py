"""Leases go on while their runner lives. This runs in the supervisor, so that a handler that holds the interpreter, or
keeps both cores busy, can not stop it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.aio.queue import AsyncQueue
from penstock.errors import LeaseLost, Unavailable

LOG = logging.getLogger("penstock.worker")
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

    def hold(self, queue: AsyncQueue, token: str, seconds: float) -> None:
        lease = self._held[token] = Lease(queue, token, seconds, 0.0)
        lease.rest(time.monotonic())

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
        for lease in due:
            await self._extend(lease)

    async def _extend(self, lease: Lease) -> None:
        try:
            extended = await lease.queue.extend(lease.token, lease=lease.seconds)
        except LeaseLost as error:
            if self._held.pop(lease.token, None) is not None:  # else it was settled meanwhile
                self._lost(lease)
                LOG.warning("lease lost", extra={"queue": lease.queue.name, "reason": error.reason})
            return
        except Unavailable as error:
            if error.reason != "retry":
                raise
            lease.due = time.monotonic() + 0.05  # a handler's transaction settles it this moment
            return
        lease.rest(time.monotonic())
        if extended.revoked:
            self._revoked(lease, extended.revoked)

    async def end_soon(self) -> None:
        """Their runner is dead: nobody needs to wait for the rest of them. They expire all the same: that is how a task
        that kills its worker is found."""
        held = [*self._held.values()]
        self._held.clear()
        for lease in held:
            with suppress(LeaseLost):
                await lease.queue.extend(lease.token, lease=LAST_GASP)


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
