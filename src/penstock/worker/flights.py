"""Claims on their way through a runner, and the desk where outcomes are handed in, from any thread, and settled
together."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from penstock.errors import LeaseLost, PenstockError, Unavailable
from penstock.handlers import Held
from penstock.model import DONE, Claim, Outcome, Task
from penstock.queue import Queue
from penstock.worker.execution import LOST, SETTLED

LOG = logging.getLogger("penstock.worker")
FLUSH = 0.005  # seconds that an outcome waits for others of its lease
AT_ONCE = 4  # settles under way


class Flight(Held):
    """One claim, from the moment it is taken until everything in it is settled."""

    def __init__(self, claim: Claim, queue: Queue, asked_at: float, lease: float, unit: float = 1.0) -> None:
        super().__init__(claim, lease)
        self.queue = queue
        self.unit = unit  # how much of a slot one task takes: less than all, where handlers take many at once
        self.taken_at = asked_at  # before the claim, so that no lease is thought longer than it is
        self.left = len(claim)  # not yet settled
        self.known = 0  # of these, so many have an outcome that PostgreSQL does not know yet
        self.done: list[int] = []
        self.others: dict[int, Outcome] = {}
        self.busy = False  # a settle is under way
        self.timer: asyncio.TimerHandle | None = None
        self.waiter: SimpleQueue[bool] | None = None  # a thread that wants to settle it as soon as it is complete

    @property
    def token(self) -> str:
        return str(self.claim.token)

    def task(self, id_: int) -> Task:
        return next(task for task in self.claim.tasks if task.id == id_)

    def note(self, task: Task, outcome: Outcome) -> None:
        self.known += 1
        if outcome is DONE:
            self.done.append(task.id)
        elif outcome is not SETTLED and outcome is not LOST:
            self.others[task.id] = outcome

    def take_outcomes(self) -> tuple[int, list[int], dict[int, Outcome]]:
        taken = self.known, self.done, self.others
        self.known, self.done, self.others = 0, [], {}
        return taken


Entry = tuple[Flight, Task, Outcome, float]  # what became of one task, and how long it took


class Tray:
    """What one thread has done so far and not handed in: it means to settle all of it at once."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> list[Entry]:
        """By the thread, when it is through: what it did and nobody took away."""
        with self._lock:
            self._closed = True
            return [*self.entries]

    def take(self) -> list[Entry]:
        """By somebody else, when that takes too long: what is done shall not wait for what is not."""
        with self._lock:
            return [] if self._closed else [self.entries.popleft() for _ in range(len(self.entries))]


class Ends(Protocol):
    """What a desk tells whoever runs it."""

    def finished(self, tasks: int, load: float, seconds: float, others: list[Entry]) -> None: ...
    def settled(self, flight: Flight, done: int, others: dict[int, Outcome], dead: set[int]) -> None: ...
    def landed(self, flight: Flight) -> None: ...
    async def apart(self, work: Callable[..., Any], *arguments: Any) -> Any: ...
    async def reconnected(self, error: Unavailable) -> None: ...


class Desk:
    """Threads hand in outcomes one by one; the loop takes them in heaps, lease by lease."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
        self._loop = loop
        self._ends = ends
        self._entries: deque[Entry] = deque()
        self._told = False
        self._turnstile = asyncio.Semaphore(AT_ONCE)
        self._settles: set[asyncio.Task[None]] = set()
        self._timed: set[Flight] = set()
        self._lent: set[Flight] = set()  # complete, and a thread settles them

    def hand_in(self, flight: Flight, task: Task, outcome: Outcome, seconds: float) -> None:
        """From any thread. The loop is woken once for all that come until it looks."""
        self._entries.append((flight, task, outcome, seconds))
        if not self._told:
            self.ring()

    def lay_down(self, *entries: Entry) -> None:
        """The same without waking the loop: whoever lays down many rings once, or somebody looks a little later."""
        self._entries.extend(entries)

    def ring(self) -> None:
        self._told = True
        self._loop.call_soon_threadsafe(self.collect)

    def collect(self) -> None:
        self._told = False
        tasks, load, seconds = 0, 0.0, 0.0
        others: list[Entry] = []
        touched: dict[Flight, None] = {}
        entries = self._entries
        while entries:
            entry = entries.popleft()
            flight, task, outcome, took = entry
            tasks += 1
            load += flight.unit
            seconds += took
            flight.note(task, outcome)
            touched[flight] = None
            if outcome is not DONE:
                others.append(entry)
        for flight in touched:
            self._consider(flight)
        if tasks:
            self._ends.finished(tasks, load, seconds, others)

    def settle_here(self, flight: Flight, entries: list[Entry]) -> bool:
        """By the thread that ran all of it, where all is plainly done. Anything else goes the usual way."""
        if len(entries) == len(flight.claim) and all(outcome is DONE for _, _, outcome, _ in entries):
            with suppress(PenstockError):
                flight.queue.settle(flight.claim)
                self._loop.call_soon_threadsafe(self._settled_here, flight, sum(took for *_, took in entries))
                return True
        self.lay_down(*entries)
        self.ring()
        return False

    def _settled_here(self, flight: Flight, seconds: float) -> None:
        tasks = len(flight.claim)
        self._ends.finished(tasks, tasks * flight.unit, seconds, [])
        self._settled_there(flight)

    def settle_when_complete(self, flight: Flight, complete: SimpleQueue[bool]) -> bool:
        """The same by a thread that waits for what the loop runs."""
        if not complete.get():
            return False
        with suppress(PenstockError):
            flight.queue.settle(flight.claim)
            self._loop.call_soon_threadsafe(self._settled_there, flight)
            return True
        self._loop.call_soon_threadsafe(self._not_settled_there, flight)
        return False

    def _settled_there(self, flight: Flight) -> None:
        self._lent.discard(flight)
        self._ends.settled(flight, len(flight.claim), {}, set())
        self._ends.landed(flight)

    def _not_settled_there(self, flight: Flight) -> None:
        self._lent.discard(flight)
        flight.busy = False
        self._settle_soon(flight)

    def _lend(self, flight: Flight, waiter: SimpleQueue[bool]) -> None:
        """To the thread that waits for it: nobody else settles it now, and nobody leaves before it is settled."""
        self._stop_timer(flight)
        flight.busy, flight.waiter = True, None
        self._lent.add(flight)
        waiter.put(True)

    def _consider(self, flight: Flight) -> None:
        """At once when it is complete; else a few milliseconds later, together with what comes until then."""
        if flight.busy or not flight.known:
            return
        if flight.waiter is not None and len(flight.done) == len(flight.claim):
            self._lend(flight, flight.waiter)
        elif flight.known == flight.left:
            self._settle_soon(flight)
        elif flight.timer is None:
            flight.timer = self._loop.call_later(FLUSH, self._settle_soon, flight)
            self._timed.add(flight)

    def _settle_soon(self, flight: Flight) -> None:
        if flight.waiter is not None:  # there is more to say than that all is done, or it takes longer
            flight.waiter.put(False)
            flight.waiter = None
        self._stop_timer(flight)
        if not flight.busy and flight.known:
            flight.busy = True
            task = self._loop.create_task(self._settle(flight))
            self._settles.add(task)
            task.add_done_callback(self._settles.discard)

    def _stop_timer(self, flight: Flight) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
            self._timed.discard(flight)

    async def _settle(self, flight: Flight) -> None:
        known, done, others = flight.take_outcomes()
        try:
            async with self._turnstile:
                await self._tell(flight, done, others)
        finally:
            flight.busy = False
            flight.left -= known
            if flight.left <= 0:
                self._ends.landed(flight)
            else:
                self._consider(flight)

    async def _tell(self, flight: Flight, done: list[int], others: dict[int, Outcome]) -> None:
        """Until PostgreSQL knows, or refuses."""
        while (done or others) and not flight.lost:
            try:
                states = await self._ends.apart(settle, flight, done, others)
            except Unavailable as error:
                await self._ends.reconnected(error)
            except LeaseLost as error:
                self._note_loss(flight, done, others, error)
                return
            except PenstockError as error:
                await self._tell_one_by_one(flight, {**dict.fromkeys(done, DONE), **others}, error)
                return
            except Exception as error:  # noqa: BLE001 - a bug of ours: the lease ends, and somebody runs them again
                LOG.error("unsettled", extra={"queue": flight.claim.queue, "error_class": type(error).__name__})  # noqa: TRY400
                return
            else:
                self._ends.settled(flight, len(done), others, {id_ for id_ in others if states.get(id_) == "dead"})
                return

    async def _tell_one_by_one(self, flight: Flight, told: dict[int, Outcome], error: PenstockError) -> None:
        """One outcome that PostgreSQL refuses must not hold up the others; it becomes a failure with that reason."""
        if len(told) > 1:
            for id_, outcome in told.items():
                await self._tell(flight, [], {id_: outcome})
            return
        ((id_, outcome),) = told.items()
        name = type(error).__name__
        if outcome.error_class == name:
            LOG.error("unsettled", extra={"task": id_, "queue": flight.claim.queue, "error_class": name})
            return
        refused = Outcome.failed(f"the outcome was refused: {error.message}", error_class=name)
        await self._tell(flight, [], {id_: refused})

    def _note_loss(self, flight: Flight, done: list[int], others: dict[int, Outcome], error: LeaseLost) -> None:
        """Those that were still ours are settled all the same."""
        flight.revoked.update(error.revoked)
        lost = {*error.refused, *error.revoked}
        kept = {id_: outcome for id_, outcome in others.items() if id_ not in lost}
        self._ends.settled(flight, sum(id_ not in lost for id_ in done), kept, set())
        extra = {"queue": flight.claim.queue, "refused": len(error.refused), "cancelled": len(error.revoked)}
        LOG.warning("lease lost", extra=extra)

    async def empty(self) -> None:
        """Until nothing is being settled."""
        while self._entries or self._settles or self._timed or self._lent:
            self.collect()
            for flight in [*self._timed]:
                self._settle_soon(flight)
            await asyncio.sleep(0.001)


def settle(flight: Flight, done: list[int], others: dict[int, Outcome]) -> dict[int, str]:
    """The quickest way to say it: nothing but the token when all of a lease is done."""
    if others:
        return flight.queue.settle(flight.claim, {**dict.fromkeys(done, DONE), **others})
    if len(done) == len(flight.claim):
        return flight.queue.settle(flight.claim)
    return flight.queue.settle(flight.claim, done)
