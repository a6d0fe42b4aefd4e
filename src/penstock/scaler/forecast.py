"""What will probably arrive, and how many slots a steady stream needs. Pure; a forecast may only raise a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.errors import ConfigError, shown
from penstock.scaler.signals import INSTANT, Sample, rate_over

FAST, SLOW = 15.0, 120.0  # seconds
SURPRISE = 2.5  # standard deviations that are no accident
MOST_DISPERSED = 25.0
PROFILE_VERSION = 1
HOURS = 168  # of a week, the first from Monday midnight, UTC
MONDAY = 4 * 86_400  # the first one of the epoch, in seconds
FRESH = 8 * 86_400.0  # seconds: a profile is made every week or oftener
SEEN_ENOUGH = 30  # minutes of an hour of the week
PRIOR = 4.0  # times its dispersion: so many tasks, as expected, speak against today being different
MOST_UNUSUAL = 4.0  # times as much as usual is believed


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

    def at_most_within(self, spans: Sequence[float], z: float) -> list[float]:
        """The same, for many spans."""
        if not self.rate and not self.growth:
            return [0.0] * len(spans)
        means = [self.expected(span) for span in spans] if self.growth else [self.rate * span for span in spans]
        return [mean + z * math.sqrt(self.dispersion * mean) for mean in means]


def forecast(samples: Sequence[Sample]) -> Forecast:
    counts = [(one.at, one.arrived - one.announced) for one in samples]
    if len({count for _, count in counts}) < 2:  # nothing came
        return Forecast(0.0, 0.0, 0.0, 1.0)
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
    steps = [(b - a, m - n) for (a, n), (b, m) in pairwise(counts) if b - a >= INSTANT]
    if len(steps) < 8:
        return 1.0
    rate = sum([count for _, count in steps]) / sum([seconds for seconds, _ in steps])
    if rate <= 0:
        return 1.0
    rates = [(count / seconds, 1 / seconds) for seconds, count in steps]
    jumps = sum([(b - a) ** 2 / (c + d) for (a, c), (b, d) in pairwise(rates)]) / (len(rates) - 1)
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


# --- what this hour usually brings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    """What the pipeline learnt from history: arrivals by the hour of the week. On the clock of the signals, which then
    has to be the epoch's."""

    made: float
    p50: tuple[float | None, ...]  # tasks a minute; None: that hour was hardly ever seen
    dispersion: float = 1.0  # of the counts of minutes: variance / mean

    def __post_init__(self) -> None:
        if len(self.p50) != HOURS:
            raise ConfigError(f"profile: hours.p50 has {len(self.p50)} values, not {HOURS}")
        for hour, value in enumerate(self.p50):
            if value is not None and not amount(value):
                raise ConfigError(f"profile: hours.p50[{hour}]: {shown(value)} is not a number of tasks")
        if not amount(self.dispersion):
            raise ConfigError(f"profile: dispersion: {shown(self.dispersion)} is not a number of at least 0")
        if not amount(abs(self.made)):
            raise ConfigError(f"profile: made: {shown(self.made)} is not a moment")

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, version: int, made: float) -> Profile:
        """As it is stored. Of what it says only arrivals are used here."""
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
        if not all(map(amount, hours["minutes"])):
            raise ConfigError("profile: hours.minutes are not counts")
        seen = zip(hours["p50"], hours["minutes"], strict=True)
        p50 = tuple(value if minutes >= SEEN_ENOUGH else None for value, minutes in seen)
        return cls(made, p50, data.get("dispersion", 1.0))

    def age(self, now: float) -> float:
        return now - self.made

    def fresh(self, now: float) -> bool:
        return self.age(now) <= FRESH

    def usual(self, at: float) -> float | None:
        """Tasks a second in the hour of the week of a moment."""
        value = self.p50[hour_of_week(at)]
        return None if value is None else value / 60


def amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def hour_of_week(at: float) -> int:
    return int((at - MONDAY) // 3600 % HOURS)


def raised(coming: Forecast, profile: Profile, samples: Sequence[Sample], ahead: float) -> Forecast | None:
    """The forecast with what the hour in which a worker that is asked for now is up usually brings, on a day such as
    this one. Never less than without. None: the profile does not know that hour."""
    now = samples[-1].at if samples else profile.made
    usual = profile.usual(now + ahead)
    if usual is None:
        return None
    rate = usual * unusual(profile, samples)
    if rate <= coming.rate:
        return coming
    spread = min(MOST_DISPERSED, max(coming.dispersion, profile.dispersion))
    return replace(coming, rate=rate, steady=max(coming.steady, rate), dispersion=spread)


def unusual(profile: Profile, samples: Sequence[Sample]) -> float:
    """How many times as much as usual comes today, by the last minutes: the less they say, the nearer to 1."""
    if len(samples) < 2:
        return 1.0
    first, last = samples[0], samples[-1]
    usual = profile.usual(last.at)
    if usual is None:
        return 1.0
    came = last.arrived - last.announced - first.arrived + first.announced
    expected = usual * (last.at - first.at)
    prior = PRIOR * max(1.0, profile.dispersion)
    return min(MOST_UNUSUAL, max(0.0, (came + prior) / (expected + prior)))
