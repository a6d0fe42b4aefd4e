"""Claims on their way through a runner, and the desk that settles their outcomes together.

Any thread can hand in outcomes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from penstock.client.queue import Queue
from penstock.errors import LeaseLost, PenstockError, Unavailable
from penstock.handlers import Held
from penstock.model import DONE, Claim, Outcome, Task
from penstock.worker.execution import LOST, SETTLED

LOG = logging.getLogger("penstock.worker")
FLUSH = 0.005  # seconds that an outcome waits for others of its lease
AT_ONCE = 4  # settles that run at the same time
FIRST_RETRY, LAST_RETRY = 0.05, 2.0  # seconds until a deferred outcome is tried again; the time doubles
COMPLAIN_AFTER, COMPLAIN_EVERY = 2.0, 60.0  # seconds for which outcomes are deferred before the log says so


class Flight(Held):
    """One claim, from the moment it is taken until all of its tasks are settled."""

    def __init__(self, claim: Claim, queue: Queue, asked_at: float, lease: float, unit: float = 1.0) -> None:
        super().__init__(claim, lease)
        self.queue = queue
        self.unit = unit  # the part of a slot that one task takes; less than 1 if handlers take many tasks at once
        self.taken_at = asked_at  # taken before the claim, so that the lease is never overestimated
        self.left = len(claim)  # tasks that are not settled
        self.known = 0  # tasks of these with an outcome that PostgreSQL does not know yet
        self.known_since: float | None = None  # when the first of these outcomes came in
        self.done: list[int] = []
        self.others: dict[int, Outcome] = {}
        self.settling = 0  # outcomes in the settle that is running
        self.aside: dict[int, Outcome] = {}  # outcomes of tasks that another transaction holds; they are tried again
        self.aside_since: float | None = None  # when the first of them was deferred
        self.given_up: dict[int, str] = {}  # deferred tasks whose settle PostgreSQL gave up even alone, with the error
        self.given_up_since: float | None = None  # when it gave up the first of them
        self.retry_in = FIRST_RETRY
        self.complain_at = 0.0
        self.busy = False  # a settle is running
        self.timer: asyncio.TimerHandle | None = None
        # A thread that waits to settle the flight as soon as it is complete.
        self.waiter: SimpleQueue[bool] | None = None

    @property
    def token(self) -> str:
        """The token of the lease, as text."""
        return str(self.claim.token)

    def task(self, id_: int) -> Task:
        """Returns the task of this claim with this id."""
        return next(task for task in self.claim.tasks if task.id == id_)

    @property
    def unsettled(self) -> int:
        """The number of outcomes that PostgreSQL does not know yet."""
        return self.known + self.settling + len(self.aside)

    def note(self, task: Task, outcome: Outcome) -> None:
        """Records the outcome of a task."""
        self.known += 1
        if self.known_since is None:
            self.known_since = time.monotonic()
        if outcome is DONE:
            self.done.append(task.id)
        elif outcome is not SETTLED and outcome is not LOST:
            self.others[task.id] = outcome

    def take_outcomes(self) -> tuple[int, list[int], dict[int, Outcome]]:
        """Removes and returns the outcomes that are recorded: their number, the done tasks, and the others."""
        taken = self.known, self.done, self.others
        self.known, self.done, self.others = 0, [], {}
        return taken

    def put_aside(self, outcomes: dict[int, Outcome]) -> None:
        """Defers outcomes that cannot be settled now."""
        if self.aside_since is None:
            self.aside_since = time.monotonic()
            self.complain_at = self.aside_since + COMPLAIN_AFTER
        self.aside |= outcomes

    def note_given_up(self, busy: Collection[int]) -> None:
        """Updates the tasks that were given up, after a settle that left these outcomes unsettled.

        The others that were given up are now settled or lost.
        """
        left = {*busy, *self.aside}
        self.given_up = {id_: why for id_, why in self.given_up.items() if id_ in left}
        if not self.given_up:
            self.given_up_since = None
        elif self.given_up_since is None:
            self.given_up_since = time.monotonic()

    def bring_back(self) -> None:
        """Moves the deferred outcomes to the next settle."""
        self.known += len(self.aside)
        self.others |= self.aside
        self.aside = {}


Entry = tuple[Flight, Task, Outcome, float]  # the outcome of one task, and how long it took


class Tray:
    """The outcomes of one thread that are not handed in yet. The thread intends to settle all of them at once."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> list[Entry]:
        """Returns the outcomes that are still here. The thread calls it when it has finished."""
        with self._lock:
            self._closed = True
            return [*self.entries]

    def take(self) -> list[Entry]:
        """Takes the outcomes away from a thread that takes too long, so that finished tasks do not wait for others.

        Another thread calls it.
        """
        with self._lock:
            return [] if self._closed else [self.entries.popleft() for _ in range(len(self.entries))]


class Ends(Protocol):
    """The interface through which a desk reports to its runner."""

    def finished(self, tasks: int, load: float, seconds: float, others: list[Entry]) -> None: ...
    def settled(self, flight: Flight, done: int, others: dict[int, Outcome], dead: set[int]) -> None: ...
    def landed(self, flight: Flight) -> None: ...
    async def apart(self, work: Callable[..., Any], *arguments: Any) -> Any: ...
    async def reconnected(self, error: Unavailable) -> None: ...


class Desk:
    """Collects outcomes from threads, which hand them in one by one, and settles them in groups, lease by lease."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
        self._loop = loop
        self._ends = ends
        self._entries: deque[Entry] = deque()
        self._told = False
        self._turnstile = asyncio.Semaphore(AT_ONCE)
        self._settles: set[asyncio.Task[None]] = set()
        self._timed: set[Flight] = set()
        self._lent: set[Flight] = set()  # complete flights that a thread settles
        self._aside: set[Flight] = set()  # flights with outcomes that wait to be tried again
        self._complain_at = 0.0

    def hand_in(self, flight: Flight, task: Task, outcome: Outcome, seconds: float) -> None:
        """Hands in an outcome from any thread.

        The loop is woken once for all outcomes that arrive until it collects them.
        """
        self._entries.append((flight, task, outcome, seconds))
        if not self._told:
            self.ring()

    def lay_down(self, *entries: Entry) -> None:
        """Hands in outcomes without waking the loop.

        The caller rings once after many of them, or they are collected a little later.
        """
        self._entries.extend(entries)

    def _soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the handler took too long and its result is not needed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def ring(self) -> None:
        """Wakes the loop to collect the outcomes."""
        self._told = True
        self._soon(self.collect)

    def collect(self) -> None:
        """Distributes the outcomes to their flights, and starts the settles that are due."""
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
        """Settles a flight in the thread that ran all of it, if all tasks are done.

        Other outcomes are handed in as usual.
        """
        if len(entries) == len(flight.claim) and all(outcome is DONE for _, _, outcome, _ in entries):
            with suppress(PenstockError):
                busy = busy_in(flight.queue.settle(flight.claim, wait=False))
                self._soon(self._settled_here, flight, sum(took for *_, took in entries), busy)
                return True
        self.lay_down(*entries)
        self.ring()
        return False

    def _settled_here(self, flight: Flight, seconds: float, busy: Collection[int]) -> None:
        tasks = len(flight.claim)
        self._ends.finished(tasks, tasks * flight.unit, seconds, [])
        self._settled_there(flight, busy)

    def settle_when_complete(self, flight: Flight, complete: SimpleQueue[bool]) -> bool:
        """Settles a flight in a thread that waits for the loop to run it."""
        if not complete.get():
            return False
        with suppress(PenstockError):
            busy = busy_in(flight.queue.settle(flight.claim, wait=False))
            self._soon(self._settled_there, flight, busy)
            return True
        self._soon(self._not_settled_there, flight)
        return False

    def _settled_there(self, flight: Flight, busy: Collection[int]) -> None:
        self._lent.discard(flight)
        flight.take_outcomes()
        flight.busy, flight.known_since, flight.left = False, None, len(busy)
        self._ends.settled(flight, len(flight.claim) - len(busy), {}, set())
        if busy:
            self._put_aside(flight, dict.fromkeys(busy, DONE))
        else:
            self._ends.landed(flight)

    def _not_settled_there(self, flight: Flight) -> None:
        self._lent.discard(flight)
        flight.busy = False
        self._settle_soon(flight)

    def _lend(self, flight: Flight, waiter: SimpleQueue[bool]) -> None:
        """Gives a flight to the thread that waits for it.

        Only that thread settles it now, and the desk is not empty before it is settled.
        """
        self._stop_timer(flight)
        flight.busy, flight.waiter = True, None
        self._lent.add(flight)
        waiter.put(True)

    def _consider(self, flight: Flight) -> None:
        """Settles a complete flight at once.

        Another flight is settled a few milliseconds later, together with what arrives until then.
        """
        if flight.busy or not flight.known:
            return
        if flight.waiter is not None and len(flight.done) == len(flight.claim):
            self._lend(flight, flight.waiter)
        elif flight.known == flight.left - len(flight.aside):
            self._settle_soon(flight)
        elif flight.timer is None:
            flight.timer = self._loop.call_later(FLUSH, self._settle_soon, flight)
            self._timed.add(flight)

    def _settle_soon(self, flight: Flight) -> None:
        if flight.waiter is not None:  # not all tasks are simply done, or they take longer
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
        flight.settling = known
        busy: dict[int, Outcome] = {}
        try:
            async with self._turnstile:
                busy = await self._tell(flight, done, others)
        finally:
            flight.busy, flight.settling = False, 0
            flight.known_since = time.monotonic() if flight.known else None
            flight.left -= known - len(busy)
            flight.note_given_up(busy)
            if busy:
                self._put_aside(flight, busy)
            elif not flight.aside:
                flight.aside_since = None
            if flight.left <= 0:
                self._ends.landed(flight)
            else:
                self._consider(flight)

    def _put_aside(self, flight: Flight, busy: dict[int, Outcome]) -> None:
        """Defers outcomes because another transaction holds their tasks, or PostgreSQL gives up their settle.

        They do not block the settles of other flights, and are tried again later.
        """
        flight.put_aside(busy)
        self._aside.add(flight)
        self._loop.call_later(flight.retry_in, self._try_again, flight)
        flight.retry_in = min(2 * flight.retry_in, LAST_RETRY)

    def _try_again(self, flight: Flight) -> None:
        if flight.busy:  # another settle of this flight is running
            self._loop.call_later(FIRST_RETRY, self._try_again, flight)
            return
        now = time.monotonic()
        if flight.aside_since is not None and now > flight.complain_at:
            flight.complain_at = now + COMPLAIN_EVERY
            self._complain(flight, round(now - flight.aside_since, 1))
        self._aside.discard(flight)
        flight.bring_back()
        self._settle_soon(flight)

    @staticmethod
    def _complain(flight: Flight, seconds: float) -> None:
        facts: dict[str, Any] = {"queue": flight.claim.queue, "seconds": seconds}
        if flight.given_up:
            facts |= {"tasks": len(flight.given_up), "error": next(iter(flight.given_up.values()))}
            LOG.error("PostgreSQL gives up each settle of these tasks, even one by one", extra=facts)
        else:
            LOG.warning("settle blocked by another transaction", extra=facts | {"tasks": len(flight.aside)})

    async def _tell(self, flight: Flight, done: list[int], others: dict[int, Outcome]) -> dict[int, Outcome]:
        """Settles until PostgreSQL accepts or refuses.

        Returns the outcomes that cannot be settled now, because another transaction holds their tasks or PostgreSQL
        gave them up.
        """
        while (done or others) and not flight.lost:
            try:
                states = await self._ends.apart(settle, flight, done, others)
            except Unavailable as error:
                await self._ends.reconnected(error)
                if error.reason == "retry":
                    return await self._tell_by_halves(flight, {**dict.fromkeys(done, DONE), **others}, error)
            except LeaseLost as error:
                return self._note_loss(flight, done, others, error)
            except PenstockError as error:
                return await self._tell_one_by_one(flight, {**dict.fromkeys(done, DONE), **others}, error)
            except Exception as error:  # noqa: BLE001 - a bug in Penstock: the lease ends, and the tasks run again
                LOG.error("unsettled", extra={"queue": flight.claim.queue, "error_class": type(error).__name__})  # noqa: TRY400
                return {}
            else:
                return self._note_settled(flight, done, others, states)
        return {}

    def _note_settled(
        self, flight: Flight, done: list[int], others: dict[int, Outcome], states: dict[int, str]
    ) -> dict[int, Outcome]:
        held = busy_in(states)
        busy = {id_: others.get(id_, DONE) for id_ in held}
        for id_ in held:
            flight.given_up.pop(id_, None)
        if held:
            done = [id_ for id_ in done if id_ not in busy]
            others = {id_: outcome for id_, outcome in others.items() if id_ not in busy}
        else:
            flight.retry_in = FIRST_RETRY
        self._ends.settled(flight, len(done), others, {id_ for id_ in others if states.get(id_) == "dead"})
        return busy

    async def _tell_by_halves(self, flight: Flight, told: dict[int, Outcome], error: Unavailable) -> dict[int, Outcome]:
        """Settles in two halves after PostgreSQL gave up the whole because of a time limit for statements or locks.

        A single outcome is deferred.
        """
        now = time.monotonic()
        if now > self._complain_at:
            self._complain_at = now + COMPLAIN_EVERY
            extra = {"queue": flight.claim.queue, "tasks": len(told), "error": error.message}
            LOG.warning("PostgreSQL gave up a settle, which is tried again in smaller parts", extra=extra)
        if len(told) == 1:
            flight.given_up |= dict.fromkeys(told, error.message)
            return told
        items = [*told.items()]
        busy: dict[int, Outcome] = {}
        for half in (items[: len(items) // 2], items[len(items) // 2 :]):
            busy |= await self._tell(flight, [], dict(half))
        return busy

    async def _tell_one_by_one(
        self, flight: Flight, told: dict[int, Outcome], error: PenstockError
    ) -> dict[int, Outcome]:
        """Settles outcomes one by one, so that one that PostgreSQL refuses does not block the others.

        A refused outcome becomes a failure with that reason.
        """
        if len(told) > 1:
            busy: dict[int, Outcome] = {}
            for id_, outcome in told.items():
                busy |= await self._tell(flight, [], {id_: outcome})
            return busy
        ((id_, outcome),) = told.items()
        name = type(error).__name__
        if outcome.error_class == name:
            LOG.error("unsettled", extra={"task": id_, "queue": flight.claim.queue, "error_class": name})
            return {}
        refused = Outcome.failed(f"the outcome was refused: {error.message}", error_class=name)
        return await self._tell(flight, [], {id_: refused})

    def _note_loss(
        self, flight: Flight, done: list[int], others: dict[int, Outcome], error: LeaseLost
    ) -> dict[int, Outcome]:
        """Records the loss of a lease.

        The tasks that were still held are settled nevertheless, except the busy ones, which are returned.
        """
        flight.revoked.update(error.revoked)
        left = {*error.refused, *error.revoked, *error.busy}
        kept = {id_: outcome for id_, outcome in others.items() if id_ not in left}
        self._ends.settled(flight, sum(id_ not in left for id_ in done), kept, set())
        extra = {"queue": flight.claim.queue, "refused": len(error.refused), "cancelled": len(error.revoked)}
        LOG.warning("lease lost", extra=extra)
        return {id_: others.get(id_, DONE) for id_ in error.busy}

    async def empty(self) -> None:
        """Waits until nothing is being settled."""
        while self._entries or self._settles or self._timed or self._lent or self._aside:
            self.collect()
            for flight in [*self._timed]:
                self._settle_soon(flight)
            await asyncio.sleep(0.001)


def settle(flight: Flight, done: list[int], others: dict[int, Outcome]) -> dict[int, str]:
    """Settles in the shortest way: if all tasks of a lease are done, only the token is sent."""
    if others:
        return flight.queue.settle(flight.claim, {**dict.fromkeys(done, DONE), **others}, wait=False)
    if len(done) == len(flight.claim):
        return flight.queue.settle(flight.claim, wait=False)
    return flight.queue.settle(flight.claim, done, wait=False)


def busy_in(states: dict[int, str]) -> list[int]:
    """Returns the tasks that another transaction holds, according to the answer of a settle."""
    return [id_ for id_, state in states.items() if state == "busy"]
