"""Claims tasks for a runner while slots are free, and gives them to the executors."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from penstock.client.listener import Listener
from penstock.client.queue import Queue
from penstock.errors import ConfigError, PenstockError, Unavailable
from penstock.worker.claim_calls import ClaimCalls
from penstock.worker.config import RunnerConfig
from penstock.worker.database_calls import DatabaseCalls
from penstock.worker.dispatch import Dispatcher
from penstock.worker.executors.team import Executors
from penstock.worker.given_up import GivenUp
from penstock.worker.in_flight import InFlight
from penstock.worker.loop_calls import call_in_loop
from penstock.worker.one_thread import OneThread
from penstock.worker.pace import Pace, Turns
from penstock.worker.workload import Workload

LOG = logging.getLogger("penstock.worker")
CLAIMING = "claim"  # this duty, as the log names it
SLOW_BATCH = 0.5  # seconds after which a batch of tiny tasks should have ended long ago
STALLED = 1.0  # seconds that a claimed task may wait for a slot before it is given back


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
        workload: Workload,
        claims: ClaimCalls,
        dispatcher: Dispatcher,
        one_thread: OneThread,
        *,
        executors: Executors,
        pace: Pace,
        turns: Turns,
        calls: DatabaseCalls,
    ) -> None:
        self._config = config
        self._workload = workload
        self._claims = claims
        self._dispatcher = dispatcher
        self._one_thread = one_thread
        self._executors = executors
        self._pace = pace
        self._turns = turns
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # since when a claim waits for PostgreSQL
        self._fail_since: float | None = None  # since when claims fail
        self._given_up = GivenUp()
        self._overlap = False  # one of the tiny tasks takes long: the others need not wait for it
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
                await self._claim_from(name, self._claims.most(name, room))

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
        self._claims.quarantine = quarantine
        self._workload.changed.set()

    def check_progress(self) -> None:
        """Lets other claims begin beside tiny tasks that take long, and gives back tasks that were claimed too early.

        Another worker may run them.
        """
        oldest = self._executors.oldest
        self._executors.nudge()
        since = time.monotonic() - SLOW_BATCH
        self._overlap = any(flight.taken_at < since for flight in self._workload.flights.values())
        if self._overlap:
            self._one_thread.stop_waiting()
        if any(time.monotonic() - flight.taken_at > STALLED for flight in oldest):
            self._pace.note_stall()
            self._dispatcher.give_back_waiting()

    # --- how much -----------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        if (self._in_turn and self._workload.flights) or self._abstains:
            return 0
        return self._pace.room(self._workload.load)

    @property
    def _abstains(self) -> bool:
        """Whether it claims nothing, even if slots are free."""
        flights = self._workload.flights
        if any(flight.claim.alone for flight in flights.values()) or (self._claims.quarantine and flights):
            return True
        return self._workload.settles_lag

    @property
    def _in_turn(self) -> bool:
        """Whether it claims, runs and settles one batch after the other, and not at the same time."""
        return self._pace.tiny and not self._config.overlap and not self._overlap

    # --- claims of the loop -------------------------------------------------------------------------------------------

    async def _claim_from(self, name: str, room: int) -> None:
        """Claims from one queue, by the thread for tiny tasks or by the loop, and gives the tasks to the executors."""
        queue, idle = self._claims.queues[name], not self._workload.flights
        try:
            if self._in_turn and idle:
                self._turns.note(name, await self._one_thread.work(queue, room), room)
            else:
                self._since = time.monotonic()
                ask = partial(self._claims.claim, queue, room, idle=idle)
                self._dispatch(await self._calls.run(ask), room)
        except Unavailable as error:
            self._fail_since = self._fail_since or self._since or time.monotonic()
            self._given_up.note(CLAIMING, error)
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
        self._given_up.clear(CLAIMING)
        if idle:
            self._claims.quarantine = False  # if a quarantined task waited here, this process has it now

    def _dispatch(self, flight: InFlight, asked: int) -> None:
        if flight.claim:
            self._dispatcher.take(flight)
        self._turns.note(flight.claim.queue, len(flight.claim), asked)

    # --- claims of the thread that receives notifications -----------------------------------------------------------

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
            self._dispatch(flight, self._claims.most(flight.claim.queue, offer.room))

    def notice_push(self, name: str, listener: Listener) -> None:
        """Reacts to a notification of a push.

        The thread of the PushListener calls it, and claims by itself while the runner waits for work: each hand-over
        would have to wait until a thread wakes up.
        """
        if name not in self._claims.queues:
            return
        free = listener.can_claim and not (self._claims.quarantine or self._workload.stopping)
        try:
            offer = self._offers.pop() if free else None
        except IndexError:
            offer = None
        if offer is not None:
            offer.queue = name
            self._claim_notified(self._claims.queues[name], listener, offer)
        elif name not in self._announced:
            self._announced.add(name)
            call_in_loop(self._loop, self._wake, name)

    def report_listening(self, listening: bool) -> None:
        """Tells the supervisor whether notifications arrive here."""
        call_in_loop(self._loop, partial(self._workload.send, listening=listening))

    def _claim_notified(self, queue: Queue, listener: Listener, offer: IdleOffer) -> None:
        most = self._claims.most(queue.name, offer.room)
        try:
            claimed = self._claims.claim_notified(queue, listener, most, idle=offer.idle)
            offer.found.append(claimed)
        finally:
            call_in_loop(self._loop, self._end_offer, offer)
        if not offer.taken.wait(min(STALLED, claimed.lease / 3)):
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
