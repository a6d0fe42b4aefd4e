"""Claims on their way through a runner, and the desk where outcomes are handed in, from any thread, and settled
together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import NamedTuple

from penstock.aio.queue import AsyncQueue
from penstock.errors import LeaseLost, PenstockError, Unavailable
from penstock.handlers import Held
from penstock.model import DONE, Claim, Outcome, Task
from penstock.worker.execution import DROPPED, EXITS

LOG = logging.getLogger("penstock.worker")
FLUSH = 0.005  # seconds that an outcome waits for others of its lease
AT_ONCE = 4  # settles under way


class Flight(Held):
    """One claim, from the moment it is taken until everything in it is settled."""

    def __init__(self, claim: Claim, queue: AsyncQueue) -> None:
        super().__init__(claim)
        self.queue = queue
        self.taken_at = time.monotonic()
        self.left = len(claim)  # not yet settled
        self.outcomes: dict[int, Outcome] = {}  # known, not yet told
        self.busy = False  # a settle is under way
        self.timer: asyncio.TimerHandle | None = None

    @property
    def token(self) -> str:
        return str(self.claim.token)

    def task(self, id_: int) -> Task:
        return next(task for task in self.claim.tasks if task.id == id_)


class Entry(NamedTuple):
    """What became of one task."""

    flight: Flight
    task: Task
    outcome: Outcome
    seconds: float


class Ends:
    """What a desk tells whoever runs it."""

    def finished(self, entries: list[Entry]) -> None: ...
    def landed(self, flight: Flight) -> None: ...
    def dead(self, flight: Flight, deaths: dict[int, Outcome]) -> None: ...
    async def reconnected(self) -> None: ...


class Desk:
    """Threads hand in outcomes one by one; the loop takes them in heaps, lease by lease."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
        self._loop = loop
        self._ends = ends
        self._entries: deque[Entry] = deque()
        self._told = False
        self._turnstile = asyncio.Semaphore(AT_ONCE)
        self._settles: set[asyncio.Task[None]] = set()

    def hand_in(self, flight: Flight, task: Task, outcome: Outcome, seconds: float) -> None:
        """From any thread. The loop is woken once for all that come until it looks."""
        self._entries.append(Entry(flight, task, outcome, seconds))
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._told = False
        entries: list[Entry] = []
        touched: dict[Flight, None] = {}
        take = self._entries.popleft
        while self._entries:
            entry = take()
            entries.append(entry)
            flight, task, outcome, _ = entry
            flight.outcomes[task.id] = outcome
            touched[flight] = None
        if not entries:
            return
        for flight in touched:
            self._consider(flight)
        self._ends.finished(entries)

    def _consider(self, flight: Flight) -> None:
        """At once when it is complete; else a few milliseconds later, together with what comes until then."""
        if flight.busy or not flight.outcomes:
            return
        if len(flight.outcomes) == flight.left:
            self._settle_soon(flight)
        elif flight.timer is None:
            flight.timer = self._loop.call_later(FLUSH, self._settle_soon, flight)

    def _settle_soon(self, flight: Flight) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
        if not flight.busy and flight.outcomes:
            flight.busy = True
            task = self._loop.create_task(self._settle(flight))
            self._settles.add(task)
            task.add_done_callback(self._settles.discard)

    async def _settle(self, flight: Flight) -> None:
        outcomes, flight.outcomes = flight.outcomes, {}
        try:
            async with self._turnstile:
                await self._told_off(flight, outcomes)
        finally:
            flight.busy = False
            flight.left -= len(outcomes)
            if flight.left == 0:
                self._ends.landed(flight)
            else:
                self._consider(flight)

    async def _told_off(self, flight: Flight, outcomes: dict[int, Outcome]) -> None:
        """Until PostgreSQL knows, or refuses."""
        told = {id_: outcome for id_, outcome in outcomes.items() if outcome is not DROPPED}
        while told and not flight.lost:
            try:
                states = await settle(flight, told)
            except Unavailable:
                await self._ends.reconnected()
            except LeaseLost as error:
                self._note_loss(flight, error)
                return
            except PenstockError as error:
                await self._one_by_one(flight, told, error)
                return
            else:
                deaths = {id_: told[id_] for id_, state in states.items() if state == "dead"}
                if deaths:
                    self._ends.dead(flight, deaths)
                return

    async def _one_by_one(self, flight: Flight, told: dict[int, Outcome], error: PenstockError) -> None:
        """One outcome that PostgreSQL refuses must not hold up the others; it becomes a failure with that reason."""
        if len(told) > 1:
            for id_, outcome in told.items():
                await self._told_off(flight, {id_: outcome})
            return
        ((id_, outcome),) = told.items()
        if outcome.error_class == type(error).__name__:
            LOG.error("unsettled", extra={"task": id_, "queue": flight.claim.queue, "error_class": outcome.error_class})
            return
        reason = Outcome.failed(f"the outcome was refused: {error.message}", error_class=type(error).__name__)
        await self._told_off(flight, {id_: reason})

    def _note_loss(self, flight: Flight, error: LeaseLost) -> None:
        flight.revoked.update(error.revoked)
        extra = {"queue": flight.claim.queue, "refused": len(error.refused), "cancelled": len(error.revoked)}
        LOG.warning("lease lost", extra=extra)

    async def empty(self) -> None:
        """Until nothing is being settled."""
        while self._entries or self._settles:
            self._collect()
            await asyncio.sleep(0.001)


async def settle(flight: Flight, told: dict[int, Outcome]) -> dict[int, str]:
    """The quickest way to say it: nothing but the token when all of a lease is done."""
    if any(outcome is not DONE for outcome in told.values()):
        return await flight.queue.settle(flight.claim, told)
    if len(told) == len(flight.claim):
        return await flight.queue.settle(flight.claim)
    return await flight.queue.settle(flight.claim, list(told))


def ends_process(entry: Entry) -> bool:
    return entry.outcome.word == "release" and entry.outcome.error_class in EXITS
