"""The forecast of arrivals, and the slots that a steady stream needs. A forecast only ever raises a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.errors import ConfigError, shown
from penstock.scaler.policy.signals import INSTANT, Sample, rate_over

FAST, SLOW = 15.0, 120.0  # seconds of the two windows over which rates are measured
SURPRISE = 2.5  # standard deviations beyond which a change is not chance
MAX_DISPERSION = 25.0
PROFILE_VERSION = 1
HOURS = 168  # in a week, which begins on Monday at midnight, UTC
MONDAY = 4 * 86_400  # seconds from 1970 to the first Monday
FRESH = 8 * 86_400.0  # seconds for which a profile is used; it is made at least every week
SEEN_ENOUGH = 30  # minutes of an hour of the week that must have been recorded
PRIOR = 4.0  # times the dispersion: tasks that count as evidence that today is a usual day
MAX_UNUSUAL = 4.0  # times the usual rate that a forecast may assume


@dataclass(frozen=True, slots=True)
class Forecast:
    """The rate of arrivals that are not planned, in tasks per second."""

    rate: float  # now
    steady: float  # the lower of the short-term and the long-term rate
    growth: float  # of the rate, per second; never negative
    dispersion: float  # variance of counts / mean: 1 for independent arrivals

    def expected(self, seconds: float) -> float:
        """Returns the expected arrivals within the next seconds. Growth continues, but levels off."""
        damped = min(seconds, SLOW)
        return self.rate * seconds + self.growth * damped * (seconds - damped / 2)

    def at_most(self, seconds: float, z: float) -> float:
        """Returns the expected arrivals with a margin of z standard deviations."""
        mean = self.expected(seconds)
        return mean + z * math.sqrt(self.dispersion * mean)

    def at_most_within(self, spans: Sequence[float], z: float) -> list[float]:
        """Returns `at_most` for many spans."""
        if not self.rate and not self.growth:
            return [0.0] * len(spans)
        means = [self.expected(span) for span in spans] if self.growth else [self.rate * span for span in spans]
        return [mean + z * math.sqrt(self.dispersion * mean) for mean in means]


def forecast(samples: Sequence[Sample]) -> Forecast:
    """Forecasts the arrivals from the samples: the long-term rate, or the short-term one if they differ by more than
    chance."""
    counts = [(one.at, one.arrived - one.announced) for one in samples]
    if len({count for _, count in counts}) < 2:  # nothing arrived
        return Forecast(0.0, 0.0, 0.0, 1.0)
    fast, slow = rate_over(counts, FAST) or 0.0, rate_over(counts, SLOW) or 0.0
    spread = dispersion(counts)
    noise = math.sqrt(spread * max(slow, 1 / FAST) / FAST)
    rate = fast if abs(fast - slow) > SURPRISE * noise else slow
    return Forecast(max(rate, 0.0), max(min(slow, rate), 0.0), growth(counts, noise), spread)


def growth(counts: Sequence[tuple[float, int]], noise: float) -> float:
    """Returns how fast the rate rises from one two-minute window to the next; 0: it does not, or it may be chance."""
    if len(counts) < 3:
        return 0.0
    last = counts[-1][0]
    earlier = [one for one in counts if one[0] <= last - SLOW + 1e-9]
    if len(earlier) < 2 or earlier[-1][0] - earlier[0][0] < SLOW / 2:
        return 0.0
    rise = (rate_over(counts, SLOW) or 0.0) - (rate_over(earlier, SLOW) or 0.0)
    return max(0.0, rise / SLOW) if rise > noise * math.sqrt(2 * FAST / SLOW) else 0.0


def dispersion(counts: Sequence[tuple[float, int]]) -> float:
    """Returns the dispersion of the counts: variance / mean, 1 for independent arrivals. It compares neighbouring
    rates, so a slow change is not dispersion, and samples may have any distance."""
    steps = [(b - a, m - n) for (a, n), (b, m) in pairwise(counts) if b - a >= INSTANT]
    if len(steps) < 8:
        return 1.0
    rate = sum([count for _, count in steps]) / sum([seconds for seconds, _ in steps])
    if rate <= 0:
        return 1.0
    rates = [(count / seconds, 1 / seconds) for seconds, count in steps]
    jumps = sum([(b - a) ** 2 / (c + d) for (a, c), (b, d) in pairwise(rates)]) / (len(rates) - 1)
    return min(MAX_DISPERSION, max(1.0, jumps / rate))


def slots_for(rate: float, service: float, wait: float, share: float, *, variability: float = 1.0, most: int) -> int:
    """Returns the fewest slots with which at most `share` of a steady stream waits longer than `wait`. This is
    Erlang's C formula, with the exponent of Allen and Cunneen for the variability of arrivals and service times."""
    load = rate * service
    if load <= 0:
        return 0
    if load >= most:
        return most
    slots = max(
        0, int(load - 8 * math.sqrt(load))
    )  # with fewer slots, all of them are always busy, within the precision of a float
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


# --- what this hour usually brings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    """What the pipeline learned from history: arrivals by the hour of the week. Times are seconds since 1970, and so
    must be those of the signals."""

    made: float
    p50: tuple[float | None, ...]  # tasks per minute; None: the hour was not recorded enough
    dispersion: float = 1.0  # variance / mean of the counts per minute

    def __post_init__(self) -> None:
        if len(self.p50) != HOURS:
            raise ConfigError(f"profile: hours.p50 has {len(self.p50)} values, not {HOURS}")
        for hour, value in enumerate(self.p50):
            if value is not None and not is_amount(value):
                raise ConfigError(f"profile: hours.p50[{hour}]: {shown(value)} is not a number of tasks")
        if not is_amount(self.dispersion):
            raise ConfigError(f"profile: dispersion: {shown(self.dispersion)} is not a number of at least 0")
        if not is_amount(abs(self.made)):
            raise ConfigError(f"profile: made: {shown(self.made)} is not a moment")

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, version: int, made: float) -> Profile:
        """Reads a stored profile. Only its arrivals are used here."""
        if version != PROFILE_VERSION:
            raise ConfigError(
                f"profile: version {shown(version)} is not {PROFILE_VERSION}", hint="Run `penstock pipeline profile`."
            )
        hours = data.get("hours")
        if not isinstance(hours, Mapping) or not all(isinstance(hours.get(one), list) for one in ("p50", "minutes")):
            raise ConfigError("profile: hours has no lists p50 and minutes")
        for name in ("p50", "minutes"):
            if len(hours[name]) != HOURS:
                raise ConfigError(f"profile: hours.{name} has {len(hours[name])} values, not {HOURS}")
        if not all(map(is_amount, hours["minutes"])):
            raise ConfigError("profile: hours.minutes are not counts")
        seen = zip(hours["p50"], hours["minutes"], strict=True)
        p50 = tuple(value if minutes >= SEEN_ENOUGH else None for value, minutes in seen)
        return cls(made, p50, data.get("dispersion", 1.0))

    def age(self, now: float) -> float:
        """Returns the age of the profile in seconds."""
        return now - self.made

    def fresh(self, now: float) -> bool:
        """Returns whether the profile is recent enough to rely on."""
        return self.age(now) <= FRESH

    def usual(self, at: float) -> float | None:
        """Returns the usual tasks per second in the hour of the week of a moment; None: not known."""
        value = self.p50[hour_of_week(at)]
        return None if value is None else value / 60


def is_amount(value: object) -> bool:
    """Whether the value is a finite number of at least 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def hour_of_week(at: float) -> int:
    return int((at - MONDAY) // 3600 % HOURS)


def raise_forecast(coming: Forecast, profile: Profile, samples: Sequence[Sample], ahead: float) -> Forecast | None:
    """Raises a forecast to the usual rate of the hour in which a worker that is requested now is up, scaled to a day
    like today. It never lowers it. None: the profile does not know that hour."""
    now = samples[-1].at if samples else profile.made
    usual = profile.usual(now + ahead)
    if usual is None:
        return None
    rate = usual * unusual_factor(profile, samples)
    if rate <= coming.rate:
        return coming
    spread = min(MAX_DISPERSION, max(coming.dispersion, profile.dispersion))
    return replace(coming, rate=rate, steady=max(coming.steady, rate), dispersion=spread)


def unusual_factor(profile: Profile, samples: Sequence[Sample]) -> float:
    """Returns today's arrivals as a multiple of the usual ones, by the last minutes. With few tasks it is near 1."""
    if len(samples) < 2:
        return 1.0
    first, last = samples[0], samples[-1]
    usual = profile.usual(last.at)
    if usual is None:
        return 1.0
    came = last.arrived - last.announced - first.arrived + first.announced
    expected = usual * (last.at - first.at)
    prior = PRIOR * max(1.0, profile.dispersion)
    return min(MAX_UNUSUAL, max(0.0, (came + prior) / (expected + prior)))
