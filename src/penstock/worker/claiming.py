"""Claims tasks for a runner while slots are free, and gives them to the executors."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from penstock.client.claims import Claimer
from penstock.client.database import Database
from penstock.client.listener import Listener
from penstock.client.queue import Queue
from penstock.errors import ConfigError, PenstockError, Unavailable
from penstock.handlers import Registry, Spec
from penstock.model import Claim, Outcome, Task
from penstock.validate import LARGEST_CLAIM
from penstock.worker.config import RunnerConfig
from penstock.worker.database_calls import DatabaseCalls
from penstock.worker.execution import UNKNOWN_KIND
from penstock.worker.executors.base import Job
from penstock.worker.executors.team import Executors
from penstock.worker.in_flight import InFlight
from penstock.worker.pace import Pace, Turns
from penstock.worker.settling import OutcomeBuffer, Settler
from penstock.worker.workload import Workload

LOG = logging.getLogger("penstock.worker")
STRETCH = 0.2  # seconds for which a thread works by itself
LOITERING = 0.5  # seconds after which a batch of tiny tasks should have ended long ago
STALLED = 1.0  # seconds that a claimed task may wait for a slot before it is given back
RELEASED = Outcome.release()


class IdleOffer:
    """An offer to claim while the runner has nothing to do.

    The thread that is notified of a push may claim `room` tasks and hands them over.
    """

    def __init__(self, room: int, idle: bool) -> None:
        self.room = room
        self.idle = idle
        self.queue = ""  # the queue of the notification
        self.over = asyncio.Event()
        self.found: list[InFlight] = []  # passes from one thread to the other: the thread that removes it owns it
        self.taken = threading.Event()


class Claiming:
    """The claims of one runner: how much to claim, from which queue, and by which thread."""

    def __init__(
        self,
        config: RunnerConfig,
        registry: Registry,
        database: Database,
        workload: Workload,
        *,
        settler: Settler,
        executors: Executors,
        pace: Pace,
        turns: Turns,
        calls: DatabaseCalls,
    ) -> None:
        self._config = config
        self._registry = registry
        self._workload = workload
        self._settler = settler
        self._executors = executors
        self._pace = pace
        self._turns = turns
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._queues = {name: Queue(database, name) for name in config.queues}
        self._claimers = {name: Claimer(database, name) for name in config.queues}
        self._specs: dict[tuple[str, str], Spec | None] = {}
        self._batches = {name: largest_batch(registry, name) for name in config.queues}
        self.leases = dict(config.leases)
        # This process must run alone a task that killed its worker before: it finishes everything else first.
        self._quarantine = False
        self._since: float | None = None  # since when a claim waits for PostgreSQL
        self._fail_since: float | None = None  # since when claims fail
        self._overlap = False  # one of the tiny tasks takes long: the others need not wait for it
        self._batch_call: asyncio.Future[int] | None = None  # a thread claims, runs and settles by itself
        self._buffer = OutcomeBuffer()
        self._offers: list[IdleOffer] = []  # the offer that no thread has taken, if the runner waits for work
        self._announced: set[str] = set()  # queues for which the loop will be told that a task arrived

    async def run(self) -> None:
        """Claims until the runner is asked to stop."""
        while not self._workload.stopping:
            self._workload.changed.clear()
            room = self._room()
            name = self._turns.next() if room else None
            if not room:
                await self._workload.changed.wait()
            elif name is None:
                await self._wait_for_work(room)
            else:
                await self._claim_from(name, self._most(name, room))

    @property
    def active(self) -> bool:
        """Whether it claims tasks when a slot is free."""
        return not self._abstains and self._fail_since is None

    @property
    def stalled(self) -> float:
        """Seconds for which no claim has succeeded."""
        now = time.monotonic()
        return max((now - since for since in (self._fail_since, self._since) if since is not None), default=0.0)

    def look_at(self, names: Iterable[str]) -> None:
        """Claims from these queues soon, because tasks wait there."""
        for name in names:
            self._turns.wake(name)
        self._workload.changed.set()

    def set_quarantine(self, quarantine: bool) -> None:
        """Says whether this process must become empty, to run a quarantined task alone."""
        self._quarantine = quarantine
        self._workload.changed.set()

    def check_progress(self) -> None:
        """Lets other claims begin beside tiny tasks that take long, and gives back tasks that were claimed too early.

        Another worker may run them.
        """
        oldest = self._executors.oldest
        self._executors.nudge()
        since = time.monotonic() - LOITERING
        self._overlap = any(flight.taken_at < since for flight in self._workload.flights.values())
        if self._overlap and self._batch_call is not None:
            self._answer(self._batch_call, 0)
            self._settler.add_quietly(*self._buffer.take())
        if any(time.monotonic() - flight.taken_at > STALLED for flight in oldest):
            self._pace.stalled()
            self.give_back_waiting()

    def give_back_waiting(self) -> None:
        """Puts the tasks back that were claimed and have not begun."""
        self._give_back(self._executors.withdraw())

    def _give_back(self, waiting: Iterable[tuple[InFlight, Task]]) -> None:
        for flight, task in waiting:
            self._settler.add(flight, task, RELEASED, 0.0)

    # --- how much -----------------------------------------------------------------------------------------------------

    def _most(self, name: str, room: int) -> int:
        return min(room * self._batches[name], LARGEST_CLAIM)

    def _room(self) -> int:
        if (self._in_turn and self._workload.flights) or self._abstains:
            return 0
        return self._pace.room(self._workload.load)

    @property
    def _abstains(self) -> bool:
        """Whether it claims nothing, even if slots are free."""
        flights = self._workload.flights
        if any(flight.claim.alone for flight in flights.values()) or (self._quarantine and flights):
            return True
        return self._workload.settles_lag

    @property
    def _in_turn(self) -> bool:
        """Whether it claims, runs and settles one batch after the other, and not at the same time."""
        return self._pace.tiny and not self._config.overlap and not self._overlap

    # --- claims of the loop -------------------------------------------------------------------------------------------

    async def _claim_from(self, name: str, room: int) -> None:
        queue, idle = self._queues[name], not self._workload.flights
        try:
            if self._in_turn and idle:
                self._turns.note(name, await self._work_in_one_thread(queue, room), room)
            else:
                self._since = time.monotonic()
                self._took(await self._calls.run(self._ask, queue, room, idle), room)
        except Unavailable as error:
            self._fail_since = self._fail_since or self._since or time.monotonic()
            if not self._workload.stopping:
                await self._calls.wait_for_database(error)
            return
        except ConfigError:
            raise
        except PenstockError as error:  # the queue was dropped, for example: it may come back
            if self._turns.note_refused(name):
                LOG.warning("claim refused", extra={"queue": name, "code": error.code})
            return
        finally:
            self._since = None
        self._fail_since = None
        if idle:
            self._quarantine = False  # if a quarantined task waited here, this process has it now

    def _ask(self, queue: Queue, room: int, idle: bool) -> InFlight:
        asked_at, lease, claimer = time.monotonic(), self.leases[queue.name], self._claimers[queue.name]
        if self._quarantine:
            claimer.start_over()
        claim = claimer.claim(room, lease=lease, worker=self._config.name, may_alone=idle)
        return self._flight(claim, asked_at, lease)

    def _flight(self, claim: Claim, asked_at: float, lease: float) -> InFlight:
        return InFlight(claim, self._queues[claim.queue], asked_at, lease, 1 / self._batches[claim.queue])

    def _took(self, flight: InFlight, asked: int) -> None:
        if flight.claim:
            self._take(flight)
        self._turns.note(flight.claim.queue, len(flight.claim), asked)

    def _take(self, flight: InFlight) -> None:
        self._workload.add(flight)
        if self._workload.stopping:
            self._give_back((flight, task) for task in flight.claim.tasks)
            return
        for mode, jobs in self._sorted(flight).items():
            self._executors.put(mode, jobs, alone=self._pace.tiny)

    def _sorted(self, flight: InFlight) -> dict[str, list[Job]]:
        """Sorts the tasks of a flight by the way they are run.

        A task of an unknown kind is put back for later and logged.
        """
        claim = flight.claim
        found: dict[str, list[Job]] = {}
        together: dict[str, tuple[Spec, list[Task]]] = {}
        for task in claim.tasks:
            spec = self._spec(claim.queue, task.kind)
            if spec is None:
                self._settler.add(flight, task, UNKNOWN_KIND, 0.0)
            elif spec.batch is None:
                found.setdefault(spec.mode, []).append((flight, spec, task))
            else:
                together.setdefault(task.kind, (spec, []))[1].append(task)
        for spec, tasks in together.values():
            size = spec.batch or 1
            jobs = found.setdefault(spec.mode, [])
            jobs += [(flight, spec, tasks[n : n + size]) for n in range(0, len(tasks), size)]
        return found

    def _spec(self, queue: str, kind: str) -> Spec | None:
        try:
            return self._specs[queue, kind]
        except KeyError:
            found = self._specs[queue, kind] = self._registry.find(queue, kind)
            return found

    # --- claims of the thread that hears of pushes --------------------------------------------------------------------

    async def _wait_for_work(self, room: int) -> None:
        offer = IdleOffer(room, not self._workload.flights)
        self._offers.append(offer)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._turns.rest()):
                await self._workload.changed.wait()
        try:
            self._offers.pop()
        except IndexError:  # the thread of the PushListener took it first
            await self._take_over(offer)

    async def _take_over(self, offer: IdleOffer) -> None:
        await offer.over.wait()
        offer.taken.set()
        try:
            flight = offer.found.pop()
        except IndexError:  # the claim failed, and the next one shows why; or it was late, and the tasks went back
            self._turns.wake(offer.queue)
        else:
            self._took(flight, self._most(flight.claim.queue, offer.room))

    def heard(self, name: str, listener: Listener) -> None:
        """Reacts to a notification of a push.

        The thread of the PushListener calls it, and claims by itself while the runner waits for work: each hand-over
        would have to wait until a thread wakes up.
        """
        if name not in self._queues:
            return
        free = listener.can_claim and not (self._quarantine or self._workload.stopping)
        try:
            offer = self._offers.pop() if free else None
        except IndexError:
            offer = None
        if offer is not None:
            offer.queue = name
            self._claim_notified(self._queues[name], listener, offer)
        elif name not in self._announced:
            self._announced.add(name)
            self._soon(self._wake, name)

    def hears(self, does: bool) -> None:
        """Tells the supervisor whether notifications arrive here."""
        self._soon(partial(self._workload.send, hears=does))

    def _claim_notified(self, queue: Queue, listener: Listener, offer: IdleOffer) -> None:
        asked_at, lease, most = time.monotonic(), self.leases[queue.name], self._most(queue.name, offer.room)
        claimer, worker = self._claimers[queue.name], self._config.name
        try:
            claim = claimer.claim_notified(listener.once, most, lease=lease, worker=worker, may_alone=offer.idle)
            offer.found.append(self._flight(claim, asked_at, lease))
        finally:
            self._soon(self._end_offer, offer)
        if not offer.taken.wait(min(STALLED, lease / 3)):
            with suppress(IndexError, PenstockError):  # a handler holds the loop: other workers may run these tasks
                flight = offer.found.pop()
                flight.queue.release(flight.claim, wait=False)

    def _end_offer(self, offer: IdleOffer) -> None:
        offer.over.set()
        self._workload.changed.set()

    def _wake(self, name: str) -> None:
        self._announced.discard(name)
        if self._workload.stopping or not self._room():
            self._workload.send(full=name)  # the supervisor and PostgreSQL believe that this process is idle
        self.look_at([name])

    def _soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: this took so long that it is no longer needed
            self._loop.call_soon_threadsafe(callback, *arguments)

    # --- tiny tasks ---------------------------------------------------------------------------------------------------

    async def _work_in_one_thread(self, queue: Queue, room: int) -> int:
        """Lets one thread do everything from claim to settle, batch by batch, and returns the size of its last claim.

        Where processes fill the cores, every hand-over to another thread waits for a core, and that takes longer than
        the tasks.
        """
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._batch_call = answer
        self._executors.threads.send(partial(self._claim_run_settle, queue, room, answer))
        return await answer

    def _claim_run_settle(self, queue: Queue, room: int, answer: asyncio.Future[int]) -> None:
        """Claims, runs and settles in a thread.

        It returns when a claim gets fewer tasks than asked for, or when there is something else to do.
        """
        until = time.monotonic() + STRETCH
        try:
            while True:
                room = max(room, self._most(queue.name, self._pace.target))
                flight = self._ask(queue, room, idle=True)
                if not self._run_and_settle(flight):
                    break
                short = len(flight.claim) < room
                if short or flight.taken_at > until or answer.done() or self._quarantine or self._workload.stopping:
                    break
            self._soon(self._answer, answer, len(flight.claim))
        except BaseException as error:  # noqa: BLE001 - the sender gets the error
            self._soon(self._answer, answer, error)

    def _run_and_settle(self, flight: InFlight) -> bool:
        mode = self._quick_mode(flight.claim)
        if mode == "thread":
            self._soon(self._workload.add, flight)
            self._buffer = buffer = OutcomeBuffer()
            self._executors.threads.run_here(self._sorted(flight)[mode], buffer)
            return self._settler.settle_here(flight, buffer.close())
        if mode == "async":
            complete = flight.waiter = SimpleQueue()
            self._soon(self._take, flight)
            return self._settler.settle_when_complete(flight, complete)
        if flight.claim:
            self._soon(self._take, flight)
        return False

    def _quick_mode(self, claim: Claim) -> str | None:
        """Returns how the tasks of a claim are run, if it is the same quick way for all of them, or else None."""
        if claim.alone or self._workload.stopping:
            return None
        specs = [self._spec(claim.queue, kind) for kind in {task.kind for task in claim.tasks}]
        modes = {spec.mode if spec is not None and spec.quick else None for spec in specs}
        return modes.pop() if len(modes) == 1 else None

    @staticmethod
    def _answer(future: asyncio.Future[int], got: int | BaseException) -> None:
        if future.done():  # the caller no longer waits
            return
        if isinstance(got, BaseException):
            future.set_exception(got)
        else:
            future.set_result(got)


def largest_batch(registry: Registry, queue: str) -> int:
    """Returns the largest batch size among the handlers of a queue."""
    return max((spec.batch or 1 for spec in registry.of(queue)), default=1)
