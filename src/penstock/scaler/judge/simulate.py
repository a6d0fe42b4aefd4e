"""Simulates a queue, its workers and a policy, task by task: what the policy would have done, and what it would have
cost.

Tasks start in the order of due times and run to their end. A worker is paid from its request until it has stopped.
Every policy gets the same tasks and the same delays, and sees only what a scaler can see.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy.decision import Decision, Memory, Policy
from penstock.scaler.policy.signals import SAMPLES, Fleet, Limits, Sample, Signals

BINS = 40  # of the age histogram, per SLA
HALF_LIFE = 600.0  # seconds after which a service time counts half
ENDLESS = 30 * 86_400.0  # seconds: a queue that is not empty this long after the trace never will be


@dataclass(frozen=True, slots=True)
class Moment:
    """The state at one decision, for a chart."""

    at: float
    pending: int
    oldest_age: float
    ready: int
    workers: int  # including starting ones
    arrived: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a policy did in a simulation, and what it cost."""

    tasks: int
    breaches: int
    worker_seconds: float
    busy_seconds: float
    starts: int
    flips: int  # changes of direction
    hours: float
    peak_workers: int
    waits: tuple[float, ...] = field(repr=False)  # seconds, of all tasks, in ascending order
    moments: tuple[Moment, ...] = field(default=(), repr=False)

    @property
    def breach_rate(self) -> float:
        """The share of the tasks that waited longer than the SLA."""
        return self.breaches / self.tasks if self.tasks else 0.0

    @property
    def flips_per_hour(self) -> float:
        """How often an hour the number of workers changed its direction."""
        return self.flips / self.hours if self.hours else 0.0

    def wait(self, share: float) -> float:
        """Returns the wait that this share of the tasks did not exceed."""
        if not self.waits:
            return 0.0
        return self.waits[min(len(self.waits) - 1, max(0, math.ceil(share * len(self.waits)) - 1))]


def simulate(
    trace: Trace,
    policy: Policy,
    limits: Limits,
    *,
    watch: Callable[[float], None] | None = None,
    judged: tuple[float, float] | None = None,
) -> Result:
    """Runs a policy on a trace. `watch` is called with the progress, as a share of the trace. With `judged`, only
    tasks that fall due between these moments count, and the cost between them; it ends when the last of these tasks
    has begun."""
    return Simulation(trace, policy, limits, judged).run(watch)


class SimulatedWorker:
    """A worker of the simulation."""

    __slots__ = ("asked_at", "busy", "draining", "gone", "ready_at")

    def __init__(self, asked_at: float, ready_at: float) -> None:
        self.asked_at = asked_at
        self.ready_at = ready_at
        self.busy = 0
        self.draining = False
        self.gone = False


class Simulation:
    """One run of a policy on a trace."""

    def __init__(self, trace: Trace, policy: Policy, limits: Limits, judged: tuple[float, float] | None = None) -> None:
        self._trace, self._policy, self._limits = trace, policy, limits
        self._judged = judged
        self._since, self._until = judged or (0.0, math.inf)
        self._first, self._last = bisect_left(trace.due, self._since), bisect_left(trace.due, self._until)
        self._arrived = 0  # tasks that have fallen due; those from _begun on wait
        self._begun = 0
        self._finished = 0
        self._waits: list[float] = []
        self._running: list[tuple[float, int, SimulatedWorker]] = []  # heap of (end, task, worker)
        self._began: dict[int, float] = {}
        self._free: deque[SimulatedWorker] = deque()  # one entry for each free slot, the longest idle one last
        self._ready: dict[
            SimulatedWorker, None
        ] = {}  # in the order in which they became ready, so that runs are repeatable
        self._starting: list[SimulatedWorker] = []  # in the order in which they become ready
        self._draining = 0
        self._paid = 0.0  # seconds of workers that have stopped
        self._worked = 0.0  # seconds in tasks that have finished
        self._starts = 0
        self._peak = 0
        self._observer = Observer(trace, limits)
        for _ in range(limits.min_workers):
            self._open(SimulatedWorker(0.0, 0.0))

    def run(self, watch: Callable[[float], None] | None) -> Result:
        """Runs the simulation to its end."""
        moments, memory, target, direction, flips, now = [], None, self._limits.min_workers, 0, 0, 0.0
        tasks, every = len(self._trace.due), max(1, round(self._trace.duration / self._limits.interval / 100))
        for tick, now in enumerate(self._ticks()):
            self._advance(now)
            decision, memory = self._decide(now, memory)
            change = (decision.workers > target) - (decision.workers < target)
            flips += bool(change and direction and change != direction and self._counts(now))
            direction, target = change or direction, decision.workers
            self._resize(target, now)
            moments.append(self._moment(now))
            if watch is not None and tick % every == 0:
                watch(self._finished / tasks if tasks else 1.0)
        present = [
            worker for *_, worker in self._running if worker.draining
        ]  # there are none, unless only a part is judged
        present += [*self._ready, *self._starting]
        waits = sorted(self._waits[self._first : self._last])  # waits are in the order of tasks
        return Result(
            tasks=self._last - self._first,
            breaches=self._last - self._first - bisect_right(waits, self._limits.sla + 1e-9),
            worker_seconds=self._paid + sum(self._price(worker, now) for worker in dict.fromkeys(present)),
            busy_seconds=self._worked if self._judged is None else sum(self._trace.service[self._first : self._last]),
            starts=self._starts,
            flips=flips,
            hours=(min(now, self._until) - self._since) / 3600,
            peak_workers=self._peak,
            waits=tuple(waits),
            moments=tuple(moments),
        )

    def _counts(self, now: float) -> bool:
        return self._since <= now < self._until

    def _price(self, worker: SimulatedWorker, now: float) -> float:
        """Returns the seconds for which this worker is paid."""
        return max(0.0, min(now, self._until) - max(worker.asked_at, self._since))

    def _ticks(self) -> Iterator[float]:
        """Yields the moments of decisions, until the trace is over and all of its tasks have finished."""
        tick = 0
        while True:
            now = tick * self._limits.interval
            yield now
            if self._judged is None:
                over = now >= self._trace.duration and self._finished == len(self._trace.due)
            else:
                over = now >= self._until and self._begun >= self._last
            if over or now > self._trace.duration + ENDLESS:
                return
            tick += 1

    # --- events -----------------------------------------------------------------------------------------------------

    def _advance(self, until: float) -> None:
        due, running, starting = self._trace.due, self._running, self._starting
        count = len(due)
        while True:
            arrival = due[self._arrived] if self._arrived < count else math.inf
            end = running[0][0] if running else math.inf
            ready = starting[0].ready_at if starting else math.inf
            now = min(arrival, end, ready)
            if now > until:
                return
            if end == now:
                self._end(now)
            elif ready == now:
                self._open(starting.pop(0))
            else:
                self._arrived += 1
            if self._begun < self._arrived and self._free:
                self._begin(now)

    def _begin(self, now: float) -> None:
        """Starts waiting tasks, the oldest first, in the slots that became free last, so that other workers can be
        stopped."""
        trace, running, free = self._trace, self._running, self._free
        while self._begun < self._arrived and free:
            worker = free.pop()
            if worker.gone or worker.draining:
                continue
            task = self._begun
            self._begun += 1
            worker.busy += 1
            self._began[task] = now
            self._waits.append(now - trace.due[task])
            heapq.heappush(running, (now + trace.service[task], task, worker))

    def _end(self, now: float) -> None:
        _, task, worker = heapq.heappop(self._running)
        self._worked += now - self._began.pop(task)
        self._observer.add_service(self._trace.service[task])
        self._finished += 1
        worker.busy -= 1
        if not worker.draining:
            self._free.append(worker)
        elif not worker.busy:
            self._draining -= 1
            self._close(worker, now)

    # --- the fleet ---------------------------------------------------------------------------------------------------

    def _resize(self, target: int, now: float) -> None:
        present = len(self._ready) + len(self._starting)
        for _ in range(target - present):
            self._starting.append(SimulatedWorker(now, now + self._limits.start_latency))
            self._starts += self._counts(now)
        if self._counts(now):
            self._peak = max(self._peak, target)
        if target < present:
            for worker in self._choose_dismissed(present - target):
                self._dismiss(worker, now)

    def _choose_dismissed(self, count: int) -> list[SimulatedWorker]:
        """Chooses idle workers first, then starting ones, then those with the fewest tasks."""
        ready = sorted(self._ready, key=lambda worker: (worker.busy, worker.asked_at))
        idle = sum(not worker.busy for worker in ready)
        return [*ready[:idle], *reversed(self._starting), *ready[idle:]][:count]

    def _dismiss(self, worker: SimulatedWorker, now: float) -> None:
        if worker in self._ready:
            del self._ready[worker]
        else:
            self._starting.remove(worker)
        worker.draining = True
        if worker.busy:
            self._draining += 1
        else:
            self._close(worker, now)

    def _open(self, worker: SimulatedWorker) -> None:
        self._ready[worker] = None
        self._free.extendleft([worker] * self._limits.slots)

    def _close(self, worker: SimulatedWorker, now: float) -> None:
        worker.gone = True
        self._paid += self._price(worker, now)

    # --- the policy --------------------------------------------------------------------------------------------------

    def _decide(self, now: float, memory: Memory) -> tuple[Decision, Memory]:
        if not any(begin <= now < end for begin, end in self._trace.outages):
            began = self._began.values()
            busy = self._worked + len(began) * now - sum(began)
            workers = len(self._ready) + len(self._starting)
            self._observer.running = tuple(now - start for start in began)
            self._observer.take(
                now, arrived=self._arrived, begun=self._begun, finished=self._finished, busy=busy, workers=workers
            )
        starting = tuple(worker.ready_at - now for worker in self._starting)
        fleet = Fleet(len(self._ready), starting, self._draining)
        decision = self._policy.decide(self._observer.signals(now, fleet), memory)
        return decision, decision.memory

    def _moment(self, now: float) -> Moment:
        waiting = self._arrived - self._begun
        oldest = now - self._trace.due[self._begun] if waiting else 0.0
        ready = len(self._ready)
        return Moment(now, waiting, oldest, ready, ready + len(self._starting), self._arrived)


class Observer:
    """What a policy sees: the signals of the last look."""

    def __init__(self, trace: Trace, limits: Limits) -> None:
        self._trace, self._limits = trace, limits
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._waiting: tuple[tuple[float, int], ...] = ()
        self._announced = sorted((known, due) for known, due in zip(trace.known, trace.due, strict=True) if known < due)
        self._heard = 0
        self._known = self._known_until = 0  # how many of the first _known_until tasks were planned
        self._planned: list[float] = []
        self.running: tuple[float, ...] = ()
        self._estimate = ServiceEstimate()
        self._service = self._estimate.service(0.0)

    def add_service(self, seconds: float) -> None:
        self._estimate.add(seconds)

    def take(self, now: float, *, arrived: int, begun: int, finished: int, busy: float, workers: int) -> None:
        due = self._trace.due
        oldest = now - due[begun] if begun < arrived else 0.0
        active = begun - finished
        while self._known_until < arrived:
            self._known += self._trace.known[self._known_until] < due[self._known_until]
            self._known_until += 1
        waiting = arrived - begun
        self._samples.append(Sample(now, waiting, active, oldest, arrived, finished, busy, workers, self._known))
        self._waiting = self._histogram(now, begun, arrived)
        self._estimate.forget(self._limits.interval)
        while self._heard < len(self._announced) and self._announced[self._heard][0] <= now:
            insort(self._planned, self._announced[self._heard][1])
            self._heard += 1
        del self._planned[: bisect_right(self._planned, now)]
        self._service = self._estimate.service(sum(self.running))

    def _histogram(self, now: float, begun: int, arrived: int) -> tuple[tuple[float, int], ...]:
        """Returns (age, tasks) of each bin. The age is that of its oldest task, so that no task seems younger than
        it is."""
        due, width, found, first = self._trace.due, self._limits.sla / BINS, [], begun
        while first < arrived:
            last = bisect_right(due, due[first] + width, first, arrived)
            found.append((now - due[first], last - first))
            first = last
        return tuple(found)

    def signals(self, now: float, fleet: Fleet) -> Signals:
        service, dispersion = self._service
        horizon = now + self._limits.start_latency + self._limits.interval + 2 * self._limits.sla
        return Signals(
            now=now,
            limits=self._limits,
            samples=tuple(self._samples),
            fleet=fleet,
            waiting=self._waiting,
            running=self.running,
            planned=tuple(group_by_second(self._planned[: bisect_right(self._planned, horizon)], now)),
            service=service,
            dispersion=dispersion,
            start_latency=self._limits.start_latency,
        )


def group_by_second(dues: list[float], now: float) -> Iterator[tuple[float, int]]:
    """Yields (seconds from now, tasks), with the tasks of one second together."""
    first = 0
    while first < len(dues):
        last = bisect_right(dues, dues[first] + 1.0, first)
        yield max(0.0, dues[first] - now), last - first
        first = last


class ServiceEstimate:
    """The mean and the dispersion of service times, in which recent ones count more."""

    def __init__(self) -> None:
        self._count = self._sum = self._squares = 0.0

    def add(self, seconds: float) -> None:
        self._count += 1
        self._sum += seconds
        self._squares += seconds * seconds

    def forget(self, seconds: float) -> None:
        kept = 0.5 ** (seconds / HALF_LIFE)
        self._count, self._sum, self._squares = self._count * kept, self._sum * kept, self._squares * kept

    def service(self, running: float) -> tuple[float | None, float]:
        """Returns the mean and the dispersion. Running tasks count with the seconds that they have run: without
        them, long tasks would be missing."""
        if self._count < 0.5 or self._sum <= 0:
            return None, 1.0
        mean = self._sum / self._count
        variance = max(0.0, self._squares / self._count - mean * mean)
        return (self._sum + running) / self._count, math.sqrt(variance) / mean
