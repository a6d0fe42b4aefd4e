"""What a runner works on: its claims in flight, the slots that they take, and what came of the tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from penstock.handlers import Registry
from penstock.handlers.outcomes import SETTLED
from penstock.handlers.registry import Hook
from penstock.handlers.tracebacks import SUMMARY, summarize
from penstock.model import Outcome, Task, split_error
from penstock.worker.config import RunnerConfig
from penstock.worker.execution import UNKNOWN_KIND, wants_exit
from penstock.worker.in_flight import Entry, InFlight
from penstock.worker.logs import DETAILS, facts_of
from penstock.worker.pace import LARGEST_BATCH, Pace, Turns
from penstock.worker.performing import call_hook_async
from penstock.worker.pipe import Pipe

LOG = logging.getLogger("penstock.worker")
MAX_UNSETTLED = 2 * LARGEST_BATCH  # outcomes that PostgreSQL does not know yet; with more, nothing is claimed
UNSETTLED_PATIENCE = 3.0  # seconds that an outcome may wait for PostgreSQL before claiming stops
EXTENDED_WITHIN = 1.0  # seconds in which the supervisor extends a lease that a settle held
REPLACED = ("recycled", "left")


class StopRequest:
    """Whether a runner should stop, why, and how much time its tasks have."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.why = "stopped"
        self.made = asyncio.Event()
        self.in_hurry = asyncio.Event()
        self._asked_at: float | None = None

    def make(self, why: str) -> None:
        """Asks the runner to stop. The first reason is kept."""
        if self._asked_at is None and why not in REPLACED:
            # A process that is only replaced may finish its tasks, however long that takes.
            self._asked_at = time.monotonic()
        if not self.made.is_set():
            self.why = why
            self.made.set()

    @property
    def seconds_left(self) -> float | None:
        """The rest of the grace period, or None if it has no end."""
        return None if self._asked_at is None else self._asked_at + self.grace - time.monotonic()


class Workload:
    """The claims in flight of one runner, and the counts of their outcomes."""

    def __init__(self, config: RunnerConfig, registry: Registry, pipe: Pipe, pace: Pace, turns: Turns) -> None:
        self._config = config
        self._registry = registry
        self._pipe = pipe
        self._pace = pace
        self._turns = turns
        self.flights: dict[str, InFlight] = {}
        self.unfinished = 0  # tasks that are claimed and not finished
        self.load = 0.0  # the slots that they take
        self.finished = 0
        self.counts: Counter[str] = Counter()
        self.stop_request = StopRequest(config.grace)
        self.changed = asyncio.Event()
        self.ended_leases: list[str] = []  # leases that ended and that the supervisor does not know of
        self.hooks: set[asyncio.Task[Any]] = set()  # hooks of dead tasks that are running
        self._claims_held_until = 0.0

    @property
    def stopping(self) -> bool:
        """Whether the runner was asked to stop."""
        return self.stop_request.made.is_set()

    def stop(self, why: str) -> None:
        """Asks the runner to stop; running handlers can read it from their context."""
        first = not self.stopping
        self.stop_request.make(why)
        if first:
            self.changed.set()
            for flight in self.flights.values():
                flight.stopping = True

    def report(self, **news: Any) -> None:
        """Sends news to the supervisor.

        Ended leases go with the next message, because each message wakes the supervisor, which needs a core for it.
        """
        self._pipe.send(**news, gone=self.ended_leases, counts=self.counts)
        self.ended_leases = []

    def send(self, **news: Any) -> None:
        """Sends a message to the supervisor, and nothing else with it."""
        self._pipe.send(**news)

    # --- claims -------------------------------------------------------------------------------------------------------

    def add(self, flight: InFlight) -> None:
        """Adds a claim, and tells the supervisor, which keeps its lease."""
        flight.stopping = self.stopping
        self.flights[flight.token] = flight
        age = time.monotonic() - flight.taken_at
        self.report(held=flight.token, queue=flight.claim.queue, seconds=flight.lease, age=age)
        self.unfinished += len(flight.claim)
        self.load += len(flight.claim) * flight.unit
        flight.lost = age > flight.lease  # an async handler held the loop: another worker may have these tasks by now

    def remove(self, flight: InFlight) -> None:
        """Removes a claim whose tasks are all settled."""
        self.flights.pop(flight.token, None)
        self.ended_leases.append(flight.token)
        self.changed.set()

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def note_finished(self, tasks: int, load: float, seconds: float, others: list[Entry]) -> None:
        """Records finished tasks, and logs those that are not simply done."""
        self.unfinished -= tasks
        self.load = self.load - load if self.unfinished else 0.0
        self.finished += tasks
        if seconds:
            self._pace.note(load, seconds)
        for entry in others:
            self._log(*entry)
        if self._config.max_tasks is not None and self.finished >= self._config.max_tasks:
            self.stop("recycled")
        self.changed.set()

    def _log(self, flight: InFlight, task: Task, outcome: Outcome, seconds: float) -> None:
        if outcome is SETTLED:
            self.counts["done"] += 1
        if outcome.word in ("failed", "dead") or outcome.error_class:
            facts = {"task": task.id, "queue": flight.claim.queue, "kind": task.kind, "attempt": task.attempt}
            facts |= {"error_class": outcome.error_class, "seconds": round(seconds, 3)}
            facts[SUMMARY] = summarize(outcome.error, outcome.error_class)
            if self._config.dev:
                facts[DETAILS] = split_error(outcome.error)[1]
            LOG.warning("put back" if outcome.word == "release" else outcome.word, extra=facts)
        if wants_exit(outcome):
            self.stop("left")

    def note_settled(self, flight: InFlight, done: int, others: dict[int, Outcome], dead: set[int]) -> None:
        """Counts settled outcomes, and calls the on_settled_dead hooks for dead tasks."""
        self.counts["done"] += done
        self.counts.update(outcome.word for outcome in others.values())
        self.counts["died"] += len(dead)
        self.counts["unknown"] += sum(outcome is UNKNOWN_KIND for outcome in others.values())
        if others:
            self._turns.wake(flight.claim.queue)  # some may already wait again, and no notification says so
        for id_ in dead:
            for hook in self._registry.dying:
                self._start(call_dead_hook(hook, flight.task(id_), others[id_].error or ""))
        self.changed.set()

    def _start(self, hook: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(hook)
        self.hooks.add(task)
        task.add_done_callback(self.hooks.discard)

    # --- how fast PostgreSQL takes outcomes ---------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """The number of outcomes that PostgreSQL does not know yet."""
        return sum(flight.unsettled for flight in self.flights.values())

    @property
    def oldest_unsettled(self) -> float:
        """Seconds that the oldest outcome has waited for PostgreSQL.

        Outcomes of tasks that another transaction holds do not count, unless that may be an earlier settle of them.
        """
        flights = self.flights.values()
        since = [flight.known_since for flight in flights if flight.known_since is not None]
        since += [flight.unanswered_since for flight in flights if flight.unanswered_since is not None]
        return time.monotonic() - min(since) if since else 0.0

    @property
    def longest_given_up(self) -> float:
        """Seconds for which PostgreSQL has given up each settle of some task."""
        since = [flight.given_up_since for flight in self.flights.values() if flight.given_up_since is not None]
        return time.monotonic() - min(since) if since else 0.0

    @property
    def settles_lag(self) -> bool:
        """Whether PostgreSQL takes outcomes so slowly that tasks claimed now would only be lost and repeated."""
        too_many = self.unsettled >= max(MAX_UNSETTLED, self._config.concurrency)
        return too_many or self.oldest_unsettled > UNSETTLED_PATIENCE or time.monotonic() < self._claims_held_until

    def note_answer(self, flight: InFlight) -> None:
        """Records that PostgreSQL has accepted or refused outcomes of a flight: no earlier settle holds its lease.

        A settle that waited for long in PostgreSQL kept the supervisor from extending the lease. If the lease has ended
        meanwhile, the next claim would put its other tasks back, so claims wait for the supervisor.
        """
        since, flight.unanswered_since = flight.unanswered_since, None
        if since is not None and time.monotonic() - since > flight.lease / 2:
            pause = min(flight.lease / 5, EXTENDED_WITHIN)
            self._claims_held_until = time.monotonic() + pause
            asyncio.get_running_loop().call_later(pause, self.changed.set)


async def call_dead_hook(hook: Hook, task: Task, error: str) -> None:
    """Calls an on_settled_dead hook; its errors are logged and do not stop the worker."""
    try:
        await call_hook_async(hook, task, error)
    except (Exception, SystemExit, KeyboardInterrupt) as wrong:  # noqa: BLE001 - the hook is the user's code
        LOG.warning("on_settled_dead hook failed", extra={"task": task.id, **facts_of(wrong)})
