"""What will probably arrive, and how many slots a steady stream needs. Pure; a forecast may only raise a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.scaler.signals import INSTANT, Sample, rate_over

FAST, SLOW = 15.0, 120.0  # seconds
SURPRISE = 2.5  # standard deviations that are no accident
MOST_DISPERSED = 25.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tasks that come unannounced, per second."""

    rate: float  # now, as far as one can tell
    steady: float  # without what may be a whim
    growth: float  # per second and second, never negative
    dispersion: float  # variance of counts / mean: 1 for independent arrivals

    def expected(self, seconds: float) -> float:
        """How many within the next seconds. Growth goes on, more and more slowly."""
        damped = min(seconds, SLOW)
        return self.rate * seconds + self.growth * damped * (seconds - damped / 2)

    def at_most(self, seconds: float, z: float) -> float:
        """The same with a margin of z standard deviations."""
        mean = self.expected(seconds)
        return mean + z * math.sqrt(self.dispersion * mean)


def forecast(samples: Sequence[Sample]) -> Forecast:
    counts = [(one.at, one.arrived - one.announced) for one in samples]
    fast, slow = rate_over(counts, FAST) or 0.0, rate_over(counts, SLOW) or 0.0
    spread = dispersion(counts)
    noise = math.sqrt(spread * max(slow, 1 / FAST) / FAST)
    rate = fast if abs(fast - slow) > SURPRISE * noise else slow
    return Forecast(max(rate, 0.0), max(min(slow, rate), 0.0), growth(counts, noise), spread)


def growth(counts: Sequence[tuple[float, int]], noise: float) -> float:
    """How fast the rate rises, from two minutes to the next two; 0: it does not, or that may be chance."""
    if len(counts) < 3:
        return 0.0
    last = counts[-1][0]
    earlier = [one for one in counts if one[0] <= last - SLOW + 1e-9]
    if len(earlier) < 2 or earlier[-1][0] - earlier[0][0] < SLOW / 2:
        return 0.0
    rise = (rate_over(counts, SLOW) or 0.0) - (rate_over(earlier, SLOW) or 0.0)
    return max(0.0, rise / SLOW) if rise > noise * math.sqrt(2 * FAST / SLOW) else 0.0


def dispersion(counts: Sequence[tuple[float, int]]) -> float:
    """How much more than by chance the rates between looks differ from one to the next, however long it is from look to
    look. Differences of neighbours: a slow change is no dispersion."""
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counts)]
    steps = [one for one in steps if one[0] >= INSTANT]
    if len(steps) < 8:
        return 1.0
    rate = sum(count for _, count in steps) / sum(seconds for seconds, _ in steps)
    if rate <= 0:
        return 1.0
    jumps = sum((b / d - a / c) ** 2 / (1 / c + 1 / d) for (c, a), (d, b) in pairwise(steps)) / (len(steps) - 1)
    return min(MOST_DISPERSED, max(1.0, jumps / rate))


def slots_for(rate: float, service: float, wait: float, share: float, *, variability: float = 1.0, most: int) -> int:
    """The fewest slots with which not more than a share of a steady stream waits longer: Erlang's C, with the exponent
    of Allen and Cunneen for arrivals and services that vary more or less than by chance."""
    load = rate * service
    if load <= 0:
        return 0
    if load >= most:
        return most
    slots = max(0, int(load - 8 * math.sqrt(load)))  # below, all are busy all the time: exact enough for a float
    blocked = 1 - slots / load  # Erlang's B, slot by slot
    while slots < most:
        slots += 1
        blocked = load * blocked / (slots + load * blocked)
        if slots <= load:
            continue
        waiting = slots * blocked / (slots - load * (1 - blocked))
        if waiting * math.exp(-(slots - load) * wait / service / max(variability, 0.1)) <= share:
            return slots
    return most
