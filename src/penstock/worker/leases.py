"""The leases of one runner, as its supervisor keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.client.database_async import AsyncDatabase
from penstock.client.workers_async import extend_leases

FINAL_LEASE = "100ms"
ASK_AGAIN = 0.5  # seconds, at most, until a lease that is being settled is extended again


@dataclass(slots=True)
class Lease:
    """One lease of a runner, and when to extend it."""

    token: str
    seconds: float
    due: float  # when to extend it, on the monotonic clock

    def rest(self, now: float) -> None:
        """Sets the next extension to a third of the lease from now."""
        self.due = now + self.seconds / 3


Lost = Callable[[Lease], None]
Revoked = Callable[[Lease, tuple[int, ...]], None]


class Leases:
    """The leases of one runner."""

    def __init__(self, database: AsyncDatabase, pid: int, lost: Lost, revoked: Revoked) -> None:
        self._database = database
        self._pid = pid
        self._lost = lost
        self._revoked = revoked
        self._held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, token: str, seconds: float, age: float) -> None:
        """Adds a lease that was requested `age` seconds ago."""
        self._held[token] = Lease(token, seconds, time.monotonic() + seconds / 3 - age)

    def let_go(self, token: str) -> None:
        """Removes a lease: it is no longer extended."""
        self._held.pop(token, None)

    @property
    def next_due(self) -> float:
        """When the next extension is due, on the monotonic clock."""
        return min((lease.due for lease in self._held.values()), default=float("inf"))

    async def extend(self) -> None:
        """Extends the leases that are due.

        A runner that a signal has stopped does not count as alive, so its leases may end.
        """
        now = time.monotonic()
        due = [lease for lease in self._held.values() if lease.due <= now]
        if not due:
            return
        if is_frozen(self._pid):
            for lease in due:
                lease.rest(now)
            return
        for seconds, some in group_by_length(due).items():
            await self._extend(seconds, some)

    async def _extend(self, seconds: float, some: list[Lease]) -> None:
        """Extends leases of one length, and reports those that are lost and tasks that were cancelled."""
        # A connection that hangs is given up early enough to extend the leases over another one.
        deadline = max(1.0, seconds / 4)
        tokens = [lease.token for lease in some]
        answers = await extend_leases(self._database, tokens, lease=seconds, deadline=deadline)
        now = time.monotonic()
        for lease in some:
            answer = answers.get(lease.token)
            if lease.token not in self._held:
                continue  # it was settled in the meantime, or its runner is dead
            if answer is None:
                self.let_go(lease.token)
                self._lost(lease)
            elif answer.until is None:
                lease.due = now + min(lease.seconds / 20, ASK_AGAIN)  # it is being settled at this moment
            else:
                lease.rest(now)
                if answer.revoked:
                    self._revoked(lease, answer.revoked)

    def take_all(self) -> list[Lease]:
        """Removes and returns all leases, because their runner is dead. They are no longer extended."""
        held = [*self._held.values()]
        self._held.clear()
        return held

    async def end_soon(self, held: Iterable[Lease]) -> None:
        """Shortens the leases that could not be ended at once.

        They expire, which is how a task that kills its worker is found.
        """
        await extend_leases(self._database, [lease.token for lease in held], lease=FINAL_LEASE)


def group_by_length(leases: Iterable[Lease]) -> dict[float, list[Lease]]:
    """Groups the leases that one statement can extend."""
    found: dict[float, list[Lease]] = {}
    for lease in leases:
        found.setdefault(lease.seconds, []).append(lease)
    return found


def is_frozen(pid: int) -> bool:
    """Returns whether a signal has stopped the process (Linux only)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")
