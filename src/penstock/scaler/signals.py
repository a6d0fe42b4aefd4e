"""What a policy sees: the promise and the limits, how the queue stands and stood, the fleet, what is known to come.

Times are seconds on one clock, which somebody else reads: nothing here knows what time it is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, shown

if TYPE_CHECKING:
    from penstock.scaler.forecast import Profile  # which imports us

MOST_WORKERS = 100_000
MOST_COUNTED = 2**62
LONGEST = 10 * 365 * 86_400.0
SHORTEST_SERVICE = 1e-9
STALE_AFTER = 3  # intervals without a new sample
INSTANT = 0.001  # seconds: two looks closer together than this say nothing about a rate
MARGIN = 1e-9  # seconds by which a look may be too early for a window, and is in it
MOST_DISPERSED = 1e6  # nobody's service times are: as many as that squared would be needed to measure it


@dataclass(frozen=True, slots=True)
class Limits:
    """What was promised, and what may be used for it."""

    sla: float  # no task waits longer between due and start
    min_workers: int = 1
    max_workers: int = 10
    slots: int = 1  # tasks that one worker runs at a time
    interval: float = 5.0  # between two decisions
    start_latency: float = 20.0  # from asking for a worker to its first claim, until it was measured

    def __post_init__(self) -> None:
        for name, least in (("sla", 0.001), ("interval", 0.001), ("start_latency", 0.0)):
            number(name, getattr(self, name), least, LONGEST)
        for name, least in (("min_workers", 0), ("max_workers", 1), ("slots", 1)):
            whole(name, getattr(self, name), least, MOST_WORKERS)
        if self.min_workers > self.max_workers:
            raise ConfigError(f"min_workers: {self.min_workers} is more than max_workers, {self.max_workers}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the queue. What is counted is counted since the beginning of time."""

    at: float
    pending: int  # due and waiting
    active: int = 0  # running
    oldest_age: float = 0.0  # of those that wait
    arrived: int = 0  # fell due, ever
    finished: int = 0  # attempts that ended, ever
    busy_seconds: float = 0.0  # spent in tasks, ever, those that still run included
    workers: int = 0  # asked for and not told to go
    announced: int = 0  # of the arrived, those that were planned before: no forecast is needed for these

    def __post_init__(self) -> None:
        number("at", self.at, -LONGEST, LONGEST * 100)
        counts = (self.pending, self.active, self.arrived, self.finished, self.workers, self.announced)
        if {*map(type, counts)} != {int} or min(counts) < 0 or max(counts) > MOST_COUNTED:
            for name in ("pending", "active", "arrived", "finished", "workers", "announced"):
                whole(name, getattr(self, name), 0, MOST_COUNTED)
        number("oldest_age", self.oldest_age, 0.0, LONGEST)
        number("busy_seconds", self.busy_seconds, 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers there are. One that was told to go is not among them."""

    ready: int = 0
    starting: tuple[float, ...] = ()  # seconds until each is ready, soonest first
    draining: int = 0

    @property
    def workers(self) -> int:
        return self.ready + len(self.starting)


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything that a decision is made of, beside what the policy remembers."""

    now: float
    limits: Limits
    samples: tuple[Sample, ...] = ()  # oldest first, not more than SAMPLES; the last may be old
    fleet: Fleet = field(default_factory=Fleet)
    waiting: tuple[tuple[float, int], ...] = ()  # (age, tasks) oldest first; empty: only the sample is known
    running: tuple[float, ...] = ()  # how long each of them has been running
    planned: tuple[tuple[float, int], ...] = ()  # (seconds from now, tasks) that will fall due, soonest first
    service: float | None = None  # seconds in a slot that a task takes; None: nobody knows yet
    dispersion: float = 1.0  # of service times: standard deviation / mean
    start_latency: float | None = None  # measured
    profile: Profile | None = None  # what the pipeline learnt from history; its clock is the epoch's, and so is `now`

    def __post_init__(self) -> None:
        number("now", self.now, -LONGEST, LONGEST * 100)
        if self.service is not None:
            number("service", self.service, SHORTEST_SERVICE, LONGEST)
        if self.start_latency is not None:
            number("start_latency", self.start_latency, 0.0, LONGEST)
        if not 0 <= self.dispersion <= MOST_DISPERSED:
            raise ConfigError(f"dispersion: {shown(self.dispersion)} is not between 0 and {MOST_DISPERSED:,.0f}")

    @property
    def latest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    @property
    def stale(self) -> bool:
        """Nobody has looked for a while: what is seen here may be over."""
        latest = self.latest
        return latest is None or self.now - latest.at > STALE_AFTER * self.limits.interval

    @property
    def pending(self) -> int:
        return 0 if self.latest is None else self.latest.pending

    @property
    def active(self) -> int:
        return 0 if self.latest is None else self.latest.active

    @property
    def oldest_age(self) -> float:
        """Now: it has gone on waiting since somebody looked."""
        latest = self.latest
        if latest is None or not latest.pending:
            return 0.0
        return latest.oldest_age + max(0.0, self.now - latest.at)

    @property
    def rate(self) -> float | None:
        """Tasks a second that one worker finishes."""
        return None if self.service is None else self.limits.slots / self.service

    @property
    def latency(self) -> float:
        return self.limits.start_latency if self.start_latency is None else self.start_latency


SAMPLES = 61  # five minutes of a look every five seconds


def number(name: str, value: object, least: float, most: float) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    if not good:
        limit = f"at least {least:g}" if most >= LONGEST else f"between {least:g} and {most:g}"
        raise ConfigError(f"{name}: {shown(value)} is not a number of seconds {limit}")


def whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name}: {shown(value)} is not a whole number between {least} and {most:,}")


def since(samples: Sequence[Sample], moment: float) -> int:
    """The place of the first look that was not before."""
    return bisect_left(samples, moment, key=attrgetter("at"))


def rate_between(samples: Sequence[Sample], counted: str, seconds: float) -> float | None:
    """How fast one of their counters grew over the last seconds, per second; None: fewer than two looks."""
    if len(samples) < 2:
        return None
    ends = (samples[since(samples, samples[-1].at - seconds - MARGIN)], *samples[-2:])
    return rate_over([(one.at, getattr(one, counted)) for one in ends], seconds)


def rate_over(counts: Sequence[tuple[float, float]], seconds: float) -> float | None:
    """How fast something that was looked at now and then grew over the last seconds, per second."""
    if len(counts) < 2:
        return None
    last, total = counts[-1]
    first, before = counts[bisect_left(counts, (last - seconds - MARGIN,))]
    if first >= last:
        first, before = counts[-2]
    return (total - before) / (last - first) if last - first >= INSTANT else None
