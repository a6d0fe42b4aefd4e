"""Settles the outcomes of tasks in groups, lease by lease. Any thread can add outcomes."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Collection
from queue import SimpleQueue
from typing import Any

from penstock.client.statements.claims import failure_of_settle
from penstock.errors import LeaseLost, PenstockError, Unavailable
from penstock.model import DONE, Outcome, Task
from penstock.worker.database_calls import AT_ONCE, DatabaseCalls
from penstock.worker.in_flight import FIRST_RETRY, Entry, InFlight
from penstock.worker.loop_calls import call_in_loop
from penstock.worker.measures import Measures
from penstock.worker.noting import NoteKeeper
from penstock.worker.settle_limit import SettleLimit
from penstock.worker.workload import Workload

LOG = logging.getLogger("penstock.worker")
FLUSH = 0.005  # seconds that an outcome waits for others of its lease
LAST_RETRY = 2.0  # seconds until a deferred outcome is tried again, at most
LOG_EVERY = 60.0  # seconds between two lines of the log about deferred outcomes


class OutcomeBuffer:
    """The outcomes of one thread that the settler does not know yet: the thread intends to settle them all at once."""

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


class Settler:
    """Collects outcomes from threads, which add them one by one, and settles them in groups, lease by lease."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workload: Workload,
        calls: DatabaseCalls,
        notes: NoteKeeper,
        measures: Measures | None = None,
    ) -> None:
        self._loop = loop
        self._workload = workload
        self._calls = calls
        self._notes = notes
        self._measures = measures  # None: this worker measures nothing
        self._entries: deque[Entry] = deque()
        self._woken = False
        self._limit = SettleLimit(AT_ONCE)
        self._settles: set[asyncio.Task[None]] = set()
        self._timed: set[InFlight] = set()
        self._in_threads: set[InFlight] = set()  # complete flights that a thread settles
        self._deferred: set[InFlight] = set()  # flights with outcomes that wait to be tried again
        self._log_at = 0.0

    def add(self, flight: InFlight, task: Task, outcome: Outcome, seconds: float) -> None:
        """Adds an outcome, from any thread.

        The loop is woken once for all outcomes that arrive until it collects them.
        """
        self._entries.append((flight, task, outcome, seconds))
        if not self._woken:
            self.wake()

    def add_quietly(self, *entries: Entry) -> None:
        """Adds outcomes without waking the loop.

        The caller wakes it once after many of them, or they are collected a little later.
        """
        self._entries.extend(entries)

    def wake(self) -> None:
        """Wakes the loop to collect the outcomes."""
        self._woken = True
        call_in_loop(self._loop, self.collect)

    def collect(self) -> None:
        """Distributes the outcomes to their flights, and starts the settles that are due."""
        self._woken = False
        tasks, load, seconds = 0, 0.0, 0.0
        others: list[Entry] = []
        touched: dict[InFlight, None] = {}
        measured: list[Entry] | None = None if self._measures is None else []
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
            if measured is not None:
                measured.append(entry)
        if self._measures is not None and measured:
            self._measures.note(measured, time.monotonic())
        for flight in touched:
            self._settle_if_due(flight)
        if tasks:
            self._workload.note_finished(tasks, load, seconds, others)

    def settle_here(self, flight: InFlight, entries: list[Entry]) -> bool:
        """Settles a flight in the thread that ran all of it, if all tasks are done.

        Other outcomes are added as usual.
        """
        if len(entries) == len(flight.claim) and all(outcome is DONE for _, _, outcome, _ in entries):
            flight.settling, flight.known_since = len(entries), time.monotonic()
            busy = self._settle_in_thread(flight)
            if busy is not None:
                call_in_loop(self._loop, self._settled_here, flight, entries, busy)
                return True
            flight.settling = 0
        self.add_quietly(*entries)
        self.wake()
        return False

    def _settle_in_thread(self, flight: InFlight) -> list[int] | None:
        """Settles a flight of which all tasks are done. Returns those that another transaction holds, or None if
        PostgreSQL has not accepted it."""
        try:
            return busy_in(flight.queue.settle(flight.claim, wait=False))
        except Unavailable as error:
            if broke_off(error):
                flight.note_no_answer()
                call_in_loop(self._loop, self._limit.note_no_answer)
        except PenstockError:
            pass  # the settle is repeated, and the error is handled there
        return None

    def _settled_here(self, flight: InFlight, entries: list[Entry], busy: Collection[int]) -> None:
        tasks = len(flight.claim)
        self._workload.note_finished(tasks, tasks * flight.unit, sum(took for *_, took in entries), [])
        if self._measures is not None:
            self._measures.note_tiny(flight, entries)
        self._settled_there(flight, busy)

    def settle_when_complete(self, flight: InFlight, complete: SimpleQueue[bool]) -> bool:
        """Settles a flight in a thread that waits for the loop to run it."""
        if not complete.get():
            return False
        busy = self._settle_in_thread(flight)
        if busy is None:
            call_in_loop(self._loop, self._not_settled_there, flight)
            return False
        call_in_loop(self._loop, self._settled_there, flight, busy)
        return True

    def _settled_there(self, flight: InFlight, busy: Collection[int]) -> None:
        self._in_threads.discard(flight)
        flight.take_outcomes()
        flight.busy, flight.settling, flight.known_since, flight.left = False, 0, None, len(busy)
        if len(busy) < len(flight.claim):
            self._note_answer(flight)
        self._workload.note_settled(flight, len(flight.claim) - len(busy), {}, set())
        if busy:
            self._defer(flight, dict.fromkeys(busy, DONE))
        else:
            self._workload.remove(flight)

    def _not_settled_there(self, flight: InFlight) -> None:
        self._in_threads.discard(flight)
        flight.busy = False
        self._settle_soon(flight)

    def _give_to_thread(self, flight: InFlight, waiter: SimpleQueue[bool]) -> None:
        """Gives a flight to the thread that waits for it.

        Only that thread settles it now, and the settler is not empty before it is settled.
        """
        self._stop_timer(flight)
        flight.busy, flight.waiter = True, None
        self._in_threads.add(flight)
        waiter.put(True)

    def _settle_if_due(self, flight: InFlight) -> None:
        """Settles a complete flight at once.

        Another flight is settled a few milliseconds later, together with what arrives until then.
        """
        if flight.busy or not flight.known:
            return
        if flight.waiter is not None and len(flight.done) == len(flight.claim):
            self._give_to_thread(flight, flight.waiter)
        elif flight.known == flight.left - len(flight.deferred):
            self._settle_soon(flight)
        elif flight.timer is None:
            flight.timer = self._loop.call_later(FLUSH, self._settle_soon, flight)
            self._timed.add(flight)

    def _settle_soon(self, flight: InFlight) -> None:
        if flight.waiter is not None:  # not all tasks are simply done, or they take longer
            flight.waiter.put(False)
            flight.waiter = None
        self._stop_timer(flight)
        if not flight.busy and flight.known:
            flight.busy = True
            task = self._loop.create_task(self._settle(flight))
            self._settles.add(task)
            task.add_done_callback(self._settles.discard)

    def _stop_timer(self, flight: InFlight) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
            self._timed.discard(flight)

    async def _settle(self, flight: InFlight) -> None:
        """Settles the known outcomes of a flight, and ends the flight if no task is left."""
        known, done, others = flight.take_outcomes()
        flight.settling = known
        busy: dict[int, Outcome] = {}
        try:
            async with self._limit.place(repeats=flight.unanswered_since is not None):
                if flight.notes is not None and others:
                    await self._notes.store(flight, others)
                busy = await self._settle_until_known(flight, done, others)
        finally:
            flight.busy, flight.settling = False, 0
            flight.known_since = time.monotonic() if flight.known else None
            flight.left -= known - len(busy)
            flight.note_given_up(busy)
            if busy:
                self._defer(flight, busy)
            elif not flight.deferred:
                flight.deferred_since = None
            if flight.left <= 0:
                self._workload.remove(flight)
            else:
                self._settle_if_due(flight)

    def _defer(self, flight: InFlight, busy: dict[int, Outcome]) -> None:
        """Defers outcomes because another transaction holds their tasks, or PostgreSQL gives up their settle.

        They do not block the settles of other flights, and are tried again later.
        """
        flight.defer(busy)
        self._deferred.add(flight)
        self._loop.call_later(flight.retry_in, self._try_again, flight)
        flight.retry_in = min(2 * flight.retry_in, LAST_RETRY)

    def _try_again(self, flight: InFlight) -> None:
        if flight.busy:  # another settle of this flight is running
            self._loop.call_later(FIRST_RETRY, self._try_again, flight)
            return
        now = time.monotonic()
        if flight.deferred_since is not None and now > flight.log_at:
            flight.log_at = now + LOG_EVERY
            self._log_deferred(flight, round(now - flight.deferred_since, 1))
        self._deferred.discard(flight)
        flight.take_back()
        self._settle_soon(flight)

    @staticmethod
    def _log_deferred(flight: InFlight, seconds: float) -> None:
        facts: dict[str, Any] = {"queue": flight.claim.queue, "seconds": seconds}
        if flight.given_up:
            facts |= {"tasks": len(flight.given_up), "error": next(iter(flight.given_up.values()))}
            LOG.error("PostgreSQL gives up each settle of these tasks, even one by one", extra=facts)
        else:
            LOG.warning("settle blocked by another transaction", extra=facts | {"tasks": len(flight.deferred)})

    async def _settle_until_known(
        self, flight: InFlight, done: list[int], others: dict[int, Outcome]
    ) -> dict[int, Outcome]:
        """Settles until PostgreSQL accepts or refuses.

        Returns the outcomes that cannot be settled now, because another transaction holds their tasks or PostgreSQL
        gave them up.
        """
        while (done or others) and not flight.lost:
            try:
                states = await self._calls.run(settle_flight, flight, done, others)
            except Unavailable as error:
                if broke_off(error):
                    flight.note_no_answer()
                    self._limit.note_no_answer()
                await self._calls.wait_for_database(error)
                if error.reason == "retry":
                    return await self._settle_by_halves(flight, {**dict.fromkeys(done, DONE), **others}, error)
            except LeaseLost as error:
                return self._note_loss(flight, done, others, error)
            except PenstockError as error:
                return await self._settle_one_by_one(flight, {**dict.fromkeys(done, DONE), **others}, error)
            except Exception as error:  # noqa: BLE001 - a bug in Penstock: the lease ends, and the tasks run again
                LOG.error("unsettled", extra={"queue": flight.claim.queue, "error_class": type(error).__name__})  # noqa: TRY400
                self._workload.counts["unsettled"] += len(done) + len(others)
                return {}
            else:
                return self._note_settled(flight, done, others, states)
        return {}

    def _note_settled(
        self, flight: InFlight, done: list[int], others: dict[int, Outcome], states: dict[int, str]
    ) -> dict[int, Outcome]:
        held = busy_in(states)
        if len(held) < len(states):
            self._note_answer(flight)
        busy = {id_: others.get(id_, DONE) for id_ in held}
        for id_ in held:
            flight.given_up.pop(id_, None)
        if held:
            done = [id_ for id_ in done if id_ not in busy]
            others = {id_: outcome for id_, outcome in others.items() if id_ not in busy}
        else:
            flight.retry_in = FIRST_RETRY
        self._workload.note_settled(flight, len(done), others, {id_ for id_ in others if states.get(id_) == "dead"})
        return busy

    async def _settle_by_halves(
        self, flight: InFlight, outcomes: dict[int, Outcome], error: Unavailable
    ) -> dict[int, Outcome]:
        """Settles in two halves after PostgreSQL gave up the whole because of a time limit for statements or locks.

        A single outcome is deferred.
        """
        now = time.monotonic()
        if now > self._log_at:
            self._log_at = now + LOG_EVERY
            extra = {"queue": flight.claim.queue, "tasks": len(outcomes), "error": error.message}
            LOG.warning("PostgreSQL gave up a settle, which is tried again in smaller parts", extra=extra)
        if len(outcomes) == 1:
            flight.given_up |= dict.fromkeys(outcomes, error.message)
            return outcomes
        items = [*outcomes.items()]
        busy: dict[int, Outcome] = {}
        for half in (items[: len(items) // 2], items[len(items) // 2 :]):
            busy |= await self._settle_until_known(flight, [], dict(half))
        return busy

    async def _settle_one_by_one(
        self, flight: InFlight, outcomes: dict[int, Outcome], error: PenstockError
    ) -> dict[int, Outcome]:
        """Settles outcomes one by one, so that one that PostgreSQL refuses does not block the others.

        A refused outcome becomes a failure with that reason.
        """
        if len(outcomes) > 1:
            busy: dict[int, Outcome] = {}
            for id_, outcome in outcomes.items():
                busy |= await self._settle_until_known(flight, [], {id_: outcome})
            return busy
        ((id_, outcome),) = outcomes.items()
        name = type(error).__name__
        if outcome.error_class == name:
            LOG.error("unsettled", extra={"task": id_, "queue": flight.claim.queue, "error_class": name})
            self._workload.counts["unsettled"] += 1
            return {}
        return await self._settle_until_known(flight, [], {id_: failure_of_settle(error)})

    def _note_loss(
        self, flight: InFlight, done: list[int], others: dict[int, Outcome], error: LeaseLost
    ) -> dict[int, Outcome]:
        """Records the loss of a lease.

        The tasks that were still held are settled nevertheless, except the busy ones, which are returned.
        """
        flight.revoked.update(error.revoked)
        left = {*error.refused, *error.revoked, *error.busy}
        kept = {id_: outcome for id_, outcome in others.items() if id_ not in left}
        self._workload.note_settled(flight, sum(id_ not in left for id_ in done), kept, set())
        extra = {"refused": len(error.refused), "cancelled": len(error.revoked)}
        self.log_loss(flight, extra)
        return {id_: others.get(id_, DONE) for id_ in error.busy}

    def log_loss(self, flight: InFlight, facts: dict[str, Any]) -> None:
        """Logs that tasks of a flight are no longer held.

        Another worker may have them, or PostgreSQL has accepted an earlier settle that got no answer.
        """
        text = "lease lost"
        if flight.unanswered_since is not None:
            text = "lease ended by a settle that got no answer, or lost: its tasks are not counted"
            self._note_answer(flight)
        elif self._measures is not None and (facts.get("tasks") or facts.get("refused")):
            self._measures.note_loss(flight.claim.queue)
        LOG.warning(text, extra={"queue": flight.claim.queue, **facts})

    def _note_answer(self, flight: InFlight) -> None:
        """Records that PostgreSQL has accepted or refused outcomes of a flight."""
        self._workload.note_answer(flight)
        self._limit.note_answer()

    async def wait_until_empty(self) -> None:
        """Waits until nothing is being settled."""
        while self._entries or self._settles or self._timed or self._in_threads or self._deferred:
            self.collect()
            for flight in [*self._timed]:
                self._settle_soon(flight)
            await asyncio.sleep(0.001)


def settle_flight(flight: InFlight, done: list[int], others: dict[int, Outcome]) -> dict[int, str]:
    """Settles in the shortest way: if all tasks of a lease are done, only the token is sent."""
    if others:
        return flight.queue.settle(flight.claim, {**dict.fromkeys(done, DONE), **others}, wait=False)
    if len(done) == len(flight.claim):
        return flight.queue.settle(flight.claim, wait=False)
    return flight.queue.settle(flight.claim, done, wait=False)


def broke_off(error: Unavailable) -> bool:
    """Returns whether a call ended without an answer, so that PostgreSQL may still be carrying it out."""
    return error.reason not in ("retry", "pool", "read_only")


def busy_in(states: dict[int, str]) -> list[int]:
    """Returns the tasks that another transaction holds, according to the answer of a settle."""
    return [id_ for id_, state in states.items() if state == "busy"]
