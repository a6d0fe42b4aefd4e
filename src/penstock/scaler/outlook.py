"""The next minute, for any number of workers: what must have been started by when, and what can be."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from penstock.scaler.forecast import Forecast
from penstock.scaler.signals import Signals

STEPS = 48  # into which it is cut
NEGLIGIBLE = 0.5  # tasks
MOST_DOUBT = 0.25  # by which service is taken to be slower, because so many tasks may happen to be long ones
FARTHEST = 64  # times the allowed workers: what is wanted beyond is told as that


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The first deadline that the present fleet misses."""

    seconds: float  # from now
    due: float  # tasks that must have been started by then
    started: float  # those it can


class Outlook:
    """Until what a worker asked for at the next decision could still save: a start latency, an interval and a promise
    ahead. Tasks are a fluid: how many slots are free at which moment is a matter of chance, how many become free in a
    while is not."""

    def __init__(self, signals: Signals, coming: Forecast, *, z: float, z_service: float, recovery: float) -> None:
        limits = signals.limits
        self._signals = signals
        self._service = max(signals.service or 1.0, 1e-6)
        self._latency = signals.latency
        self._step = (self._latency + limits.interval + limits.sla) / STEPS
        self._times = [self._step * (n + 1) for n in range(STEPS)]
        self._available = self._curve(coming, z, 0.0)
        self._demanded = self._curve(coming, z, max(0.0, limits.sla - self._step))  # within a step is too late
        self._doubt = z_service * signals.dispersion
        present = self._starts(signals.fleet.workers)
        self._required = self._savable(present, recovery * limits.sla)
        self.shortfall = self._first_miss(present)
        self.fewest = self._fewest()

    # --- the two curves ---------------------------------------------------------------------------------------------

    def _curve(self, coming: Forecast, z: float, delay: float) -> list[float]:
        """Tasks by each moment: those there are to start (no delay), or that must have been (a promise later). Not
        those that the next decision can still save: how many they are must not depend on how finely time is cut."""
        waiting = [(delay - age, count) for age, count in self._waiting()]
        planned = [(delay + seconds, count) for seconds, count in self._signals.planned]
        at, sums = summed(waiting + planned)
        last = delay + (self._latency + self._signals.limits.interval)
        moments = (min(moment, last) for moment in self._times)
        return [sums[bisect_right(at, moment)] + coming.at_most(max(0.0, moment - delay), z) for moment in moments]

    def _waiting(self) -> list[tuple[float, int]]:
        """(age, tasks) now. Where nobody counted by age, they are spread between new and the oldest."""
        signals = self._signals
        latest = signals.latest
        if latest is None or not latest.pending:
            return []
        grown = max(0.0, signals.now - latest.at)
        if signals.waiting:
            return [(age + grown, count) for age, count in signals.waiting]
        shares = min(10, latest.pending)
        each, odd = divmod(latest.pending, shares)
        return [(signals.oldest_age * (shares - n) / shares, each + (1 if n < odd else 0)) for n in range(shares)]

    def _savable(self, present: list[float], recovery: float) -> list[float]:
        """What is asked of a fleet. Before new workers are up nobody can do more than the present one; what is late by
        then has a new deadline, a while after: all of it at once would be a jump to the most there are."""
        lost, required = 0.0, []
        for moment, due, started in zip(self._times, self._demanded, present, strict=True):
            if moment <= self._latency:
                lost = max(lost, due - started)
                required.append(min(due, started))
            else:
                spared = lost * max(0.0, 1 - (moment - self._latency) / recovery) if lost > NEGLIGIBLE else 0.0
                required.append(due - spared)
        return required

    # --- what a fleet can do ----------------------------------------------------------------------------------------

    def _slots(self, workers: int) -> list[float]:
        """Slots that are up at each moment: the ready ones, those that start, and new ones a start latency from now."""
        fleet, each = self._signals.fleet, self._signals.limits.slots
        ready = min(workers, fleet.ready)
        starting = fleet.starting[: workers - ready]
        new = workers - ready - len(starting)
        return [
            float(each * (ready + bisect_right(starting, moment) + (new if moment >= self._latency else 0)))
            for moment in self._times
        ]

    def _starts(self, workers: int, required: list[float] | None = None) -> list[float]:
        """Tasks started by each moment; cut short where it is less than required."""
        step, service, available = self._step, self._slow_service(workers), self._available
        stays = math.exp(-step / service)  # the share of running tasks that still run a step later
        begun_stays = (1 - stays) * service / step
        turns = step / service
        busy, started, found = self._busy(workers), 0.0, []
        for n, slots in enumerate(self._slots(workers)):
            room = max(0.0, slots - busy) + slots * turns
            begun = min(max(0.0, available[n] - started), room)
            started += begun
            busy = slots if begun >= room else min(slots, busy * stays + begun * begun_stays)
            found.append(started)
            if required is not None and started < required[n] - NEGLIGIBLE:
                break
        return found

    def _busy(self, workers: int) -> float:
        """Slots that are taken now. What else runs runs in workers that were told to go."""
        ready = min(workers, self._signals.fleet.ready)
        return float(min(self._signals.active, ready * self._signals.limits.slots))

    def _slow_service(self, workers: int) -> float:
        """So many tasks as they do within a promise may happen to be long ones."""
        limits = self._signals.limits
        tasks = workers * limits.slots * limits.sla / self._service
        return self._service * (1 + min(MOST_DOUBT, self._doubt / math.sqrt(1 + tasks)))

    def _enough(self, workers: int) -> bool:
        found = self._starts(workers, self._required)
        return len(found) == STEPS and found[-1] >= self._required[-1] - NEGLIGIBLE

    def late(self, workers: int) -> float:
        """Tasks that so many would start too late, of those that anybody could start in time."""
        found = self._starts(workers)
        return max(0.0, *(due - started for due, started in zip(self._required, found, strict=True)))

    def _fewest(self) -> int:
        fleet = self._signals.fleet.workers
        if self._enough(fleet):
            return self._least(0, fleet)
        most = max(1, fleet, self._signals.limits.max_workers)
        farthest = FARTHEST * most
        while most < farthest and not self._enough(most):
            most *= 2
        return self._least(fleet + 1, most)

    def _least(self, low: int, high: int) -> int:
        """The least that is enough, which `high` is."""
        while low < high:
            middle = (low + high) // 2
            if self._enough(middle):
                high = middle
            else:
                low = middle + 1
        return high

    def _first_miss(self, present: list[float]) -> Shortfall | None:
        for moment, due, started in zip(self._times, self._demanded, present, strict=True):
            if started < due - NEGLIGIBLE:
                return Shortfall(moment, due, started)
        return None


def summed(steps: list[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Moments ascending, and the sum of everything up to each of them; the first is the sum before all."""
    steps.sort()
    sums = [0.0]
    for _, count in steps:
        sums.append(sums[-1] + count)
    return [moment for moment, _ in steps], sums
