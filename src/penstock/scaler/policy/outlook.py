"""The outlook: how many tasks must start by each moment ahead, and how many a fleet of a given size can start."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import ge, sub

from penstock.scaler.policy.forecast import Forecast
from penstock.scaler.policy.signals import Signals

STEPS = 48  # into which the time ahead is divided
NEGLIGIBLE = 0.5  # tasks
MAX_DOUBT = 0.25  # share by which service is assumed to be slower, because a few tasks may happen to be long
NO_REQUIREMENT = [-math.inf] * STEPS
MAX_FACTOR = 64  # times the allowed workers: more than that is reported as that


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The first deadline that the present fleet misses."""

    seconds: float  # from now
    due: float  # tasks that must have been started by then
    started: float  # tasks that the fleet can start by then


class Outlook:
    """What a fleet can do in the time ahead: a start latency, an interval and an SLA, which is how far a worker that
    is requested at the next decision can make a difference. Tasks are treated as a fluid: the moment at which a slot
    becomes free is chance, but the number of slots that become free in a while is not."""

    def __init__(self, signals: Signals, coming: Forecast, *, z: float, z_service: float, recovery: float) -> None:
        limits = signals.limits
        self._signals = signals
        self._service = max(signals.service or 1.0, 1e-6)
        self._latency = signals.latency
        self._step = (self._latency + limits.interval + limits.sla) / STEPS
        self._times = [self._step * (n + 1) for n in range(STEPS)]
        self._new_from = bisect_left(self._times, self._latency)  # the step from which new workers are up
        waiting = self._waiting()
        self._available = self._curve(waiting, coming, z, 0.0)
        self._demanded = self._curve(
            waiting, coming, z, max(0.0, limits.sla - self._step)
        )  # to start within the last step is too late
        self._doubt = z_service * signals.dispersion
        self._recovery = recovery * limits.sla
        self._nothing_due = max(self._demanded) <= NEGLIGIBLE

    # --- the two curves ---------------------------------------------------------------------------------------------

    def _curve(self, waiting: list[tuple[float, int]], coming: Forecast, z: float, delay: float) -> list[float]:
        """Returns tasks by each moment: those that can be started (no delay), or that must have been (a delay of one
        SLA). Tasks that the next decision can still save are left out, so that the result does not depend on STEPS."""
        steps = [(delay - age, count) for age, count in waiting]
        at, sums = accumulate_steps(steps + [(delay + seconds, count) for seconds, count in self._signals.planned])
        last = delay + (self._latency + self._signals.limits.interval)
        moments = self._times[: bisect_right(self._times, last)]
        moments += [last] * (len(moments) < STEPS)
        if not at or at[-1] <= moments[0]:
            found = sums[-1:] * len(moments)
        else:
            found = [sums[bisect_right(at, moment)] for moment in moments]
        first = bisect_right(moments, delay)  # before that, no expected task counts
        some = coming.at_most_within([moment - delay for moment in moments[first:]], z)
        found[first:] = [known + more for known, more in zip(found[first:], some, strict=True)]
        return found + found[-1:] * (STEPS - len(found))

    def _waiting(self) -> list[tuple[float, int]]:
        """Returns (age, tasks) now. If the ages are not known, they are spread between new and the oldest."""
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

    @cached_property
    def _present(self) -> list[float]:
        """Tasks that the present fleet will have started by each moment."""
        workers = self._signals.fleet.workers
        return self._starts(workers, NO_REQUIREMENT) if workers else [0.0] * STEPS

    @cached_property
    def _required(self) -> list[float]:
        """Tasks that a fleet must have started by each moment. Before new workers are up, no fleet can do more than the
        present one. Tasks that are late by then get new deadlines, spread over a while: all at once they would call for
        the maximum."""
        up = bisect_right(self._times, self._latency)
        soon, later = self._demanded[:up], self._demanded[up:]
        lost = max(map(sub, soon, self._present), default=0.0)
        if lost > NEGLIGIBLE:
            spared = [lost * max(0.0, 1 - (at - self._latency) / self._recovery) for at in self._times[up:]]
            later = [*map(sub, later, spared)]
        return [*map(min, soon, self._present), *later]

    @cached_property
    def _least(self) -> list[float]:
        """The fewest started tasks by each moment that keep every deadline."""
        return [due - NEGLIGIBLE for due in self._required]

    @cached_property
    def _most(self) -> float:
        return max(self._least)

    @cached_property
    def shortfall(self) -> Shortfall | None:
        if self._nothing_due:
            return None
        for moment, due, started in zip(self._times, self._demanded, self._present, strict=True):
            if started < due - NEGLIGIBLE:
                return Shortfall(moment, due, started)
        return None

    # --- what a fleet can do ----------------------------------------------------------------------------------------

    @cached_property
    def _up(self) -> list[int]:
        """The number of starting workers that are up at each moment."""
        return [bisect_right(self._signals.fleet.starting, moment) for moment in self._times]

    def _slots(self, workers: int) -> list[float]:
        """Returns the slots at each moment: of ready workers, of starting ones, and of new ones a start latency from
        now."""
        fleet, each = self._signals.fleet, self._signals.limits.slots
        ready = min(workers, fleet.ready)
        starting = min(workers - ready, len(fleet.starting))
        new, first = workers - ready - starting, self._new_from
        if not starting:
            return [float(each * ready)] * first + [float(each * (ready + new))] * (STEPS - first)
        up = [ready + min(some, starting) for some in self._up]
        return [float(each * some) for some in up[:first]] + [float(each * (some + new)) for some in up[first:]]

    def _starts(self, workers: int, least: list[float]) -> list[float]:
        """Returns the tasks started by each moment. It stops early when they are fewer than `least`, or enough for
        all of it."""
        step, service = self._step, self._slow_service(workers)
        stays = math.exp(-step / service)  # share of running tasks that still run a step later
        begun_stays = (1 - stays) * service / step
        turns = step / service
        enough = math.inf if least is NO_REQUIREMENT else self._most
        busy, started, found = self._busy(workers), 0.0, []
        for slots, available, required in zip(self._slots(workers), self._available, least, strict=True):
            room = (slots - busy if slots > busy else 0.0) + slots * turns
            begun = available - started
            if begun >= room:  # more than they can start: all slots are busy
                started += room
                busy = slots
            else:
                begun = max(0.0, begun)
                started += begun
                busy = min(slots, busy * stays + begun * begun_stays)
            found.append(started)
            if started < required or started >= enough:
                break
        return found

    def _busy(self, workers: int) -> float:
        """Returns the slots that are busy now. Other running tasks belong to workers that were told to stop."""
        ready = min(workers, self._signals.fleet.ready)
        return float(min(self._signals.active, ready * self._signals.limits.slots))

    def _slow_service(self, workers: int) -> float:
        """Returns the service time with a margin: the tasks that the workers run within one SLA may happen to be
        long."""
        limits = self._signals.limits
        tasks = workers * limits.slots * limits.sla / self._service
        return self._service * (1 + min(MAX_DOUBT, self._doubt / math.sqrt(1 + tasks)))

    def _enough(self, workers: int) -> bool:
        found = self._starts(workers, self._least)
        return found[-1] >= self._least[len(found) - 1]

    def late(self, workers: int) -> float:
        """Returns the tasks that this many workers would start late, of those that some fleet could start in time."""
        found = self._starts(workers, NO_REQUIREMENT)
        return max(0.0, *(due - started for due, started in zip(self._required, found, strict=True)))

    # --- how many keep every deadline -------------------------------------------------------------------------------

    @property
    def fewest(self) -> int:
        """The fewest workers that keep every deadline."""
        return self.fewest_of(MAX_FACTOR * max(1, self._signals.fleet.workers, self._signals.limits.max_workers))

    def fewest_of(self, most: int) -> int:
        """Returns the fewest workers that keep every deadline; `most`, if it takes as many or more."""
        if self._nothing_due:
            return 0
        fleet = self._signals.fleet.workers
        if all(map(ge, self._present, self._least)):
            return min(most, self._search(0, fleet, self._guess_down()))
        return self._search(min(most, fleet + 1), most, self._guess_up())

    def _guess_up(self) -> int:
        """Guesses a larger fleet: what the present one leaves undone, divided by what a new worker can do until
        then. The speed of workers depends on their number, so the guess is made twice."""
        fleet, each, first = self._signals.fleet.workers, self._signals.limits.slots, self._new_from
        undone = [*map(sub, self._least[first:], self._present[first:])]
        guess = fleet + 1
        for _ in range(2):
            turns = self._step / self._slow_service(guess)
            new = max([tasks / (1 + turns * n) for n, tasks in enumerate(undone, 1)], default=0.0)
            guess = fleet + math.ceil(new / each)
        return guess

    def _guess_down(self) -> int:
        """Guesses a smaller fleet: what has to be done, divided by what a present worker can do until then."""
        turns, each = self._step / self._slow_service(self._signals.fleet.workers), self._signals.limits.slots
        return math.ceil(max([tasks / (turns * n) for n, tasks in enumerate(self._least, 1)]) / each)

    def _search(self, low: int, high: int, guess: int) -> int:
        """Returns the fewest workers that are enough; `high` is known to be. More workers never do less than fewer,
        so it searches in growing steps from the guess, then bisects."""
        far, middle, below, above = 1, guess, False, False
        while low < high:
            middle = max(low, min(high - 1, (low + high) // 2 if below and above else middle))
            if self._enough(middle):
                high, above, middle = middle, True, middle - far
            else:
                low, below, middle = middle + 1, True, middle + far
            far *= 2
        return high


def accumulate_steps(steps: list[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Returns the moments in ascending order, and the sums up to each of them; the first sum is the one before all."""
    steps.sort()
    return [moment for moment, _ in steps], [*accumulate((count for _, count in steps), initial=0.0)]
