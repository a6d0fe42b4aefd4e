"""The input of a policy: the promise and its limits, the present and past state of the queue, the fleet, and planned
tasks.

All times are seconds on one clock, which the caller reads.
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
    from penstock.scaler.policy.forecast import Profile  # forecast imports this module

MAX_WORKERS = 100_000
MAX_COUNT = 2**62
LONGEST = 10 * 365 * 86_400.0
SHORTEST_SERVICE = 1e-9
STALE_AFTER = 3  # intervals without a new sample
INSTANT = 0.001  # seconds: two samples that are closer together say nothing about a rate
MARGIN = 1e-9  # seconds: a sample that is this much too early still belongs to a window
MAX_DISPERSION = 1e6  # to measure more would take the square of this many tasks


@dataclass(frozen=True, slots=True)
class Limits:
    """The promise of a queue, and the workers that may be used to keep it."""

    sla: float  # the longest time that a task may wait between its due time and its start
    min_workers: int = 1
    max_workers: int = 10
    slots: int = 1  # tasks that one worker runs at a time
    interval: float = 5.0  # seconds between two decisions
    start_latency: float = 20.0  # seconds from the request of a worker to its first claim, until it is measured

    def __post_init__(self) -> None:
        for name, least in (("sla", 0.001), ("interval", 0.001), ("start_latency", 0.0)):
            check_number(name, getattr(self, name), least, LONGEST)
        for name, least in (("min_workers", 0), ("max_workers", 1), ("slots", 1)):
            check_whole(name, getattr(self, name), least, MAX_WORKERS)
        if self.min_workers > self.max_workers:
            raise ConfigError(f"min_workers: {self.min_workers} is more than max_workers, {self.max_workers}")


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a queue at one moment. Counters count from the creation of the queue."""

    at: float
    pending: int  # tasks that are due and wait
    active: int = 0  # tasks that run
    oldest_age: float = 0.0  # seconds, of the waiting tasks
    arrived: int = 0  # tasks that have ever fallen due
    finished: int = 0  # attempts that have ever ended
    busy_seconds: float = 0.0  # time spent in tasks, including those that still run
    workers: int = 0  # workers that were requested and not told to stop
    announced: int = 0  # arrived tasks that had been planned: they need no forecast

    def __post_init__(self) -> None:
        check_number("at", self.at, -LONGEST, LONGEST * 100)
        counts = (self.pending, self.active, self.arrived, self.finished, self.workers, self.announced)
        if {*map(type, counts)} != {int} or min(counts) < 0 or max(counts) > MAX_COUNT:
            for name in ("pending", "active", "arrived", "finished", "workers", "announced"):
                check_whole(name, getattr(self, name), 0, MAX_COUNT)
        check_number("oldest_age", self.oldest_age, 0.0, LONGEST)
        check_number("busy_seconds", self.busy_seconds, 0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of a queue. A worker that was told to stop counts only as draining."""

    ready: int = 0
    starting: tuple[float, ...] = ()  # seconds until each is ready, in ascending order
    draining: int = 0

    @property
    def workers(self) -> int:
        """The number of workers that run or are about to."""
        return self.ready + len(self.starting)


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything that a decision depends on, except the memory of the policy."""

    now: float
    limits: Limits
    samples: tuple[Sample, ...] = ()  # oldest first, at most SAMPLES; the last one may be stale
    fleet: Fleet = field(default_factory=Fleet)
    waiting: tuple[tuple[float, int], ...] = ()  # (age, tasks), oldest first; empty: only the sample is known
    running: tuple[float, ...] = ()  # seconds for which each running task has run
    planned: tuple[tuple[float, int], ...] = ()  # (seconds from now, tasks) that will fall due, in ascending order
    service: float | None = None  # seconds that a task takes in a slot; None: not known yet
    dispersion: float = 1.0  # standard deviation / mean of service times
    start_latency: float | None = None  # measured
    profile: Profile | None = None  # learned by the pipeline; then `now` is in seconds since 1970
    ended: int = 0  # attempts that have ever ended; samples count only those since this scaler started

    def __post_init__(self) -> None:
        check_number("now", self.now, -LONGEST, LONGEST * 100)
        if self.service is not None:
            check_number("service", self.service, SHORTEST_SERVICE, LONGEST)
        if self.start_latency is not None:
            check_number("start_latency", self.start_latency, 0.0, LONGEST)
        check_whole("ended", self.ended, 0, MAX_COUNT)
        if not 0 <= self.dispersion <= MAX_DISPERSION:
            raise ConfigError(f"dispersion: {shown(self.dispersion)} is not between 0 and {MAX_DISPERSION:,.0f}")

    @property
    def latest(self) -> Sample | None:
        """The newest sample, or None if there is none."""
        return self.samples[-1] if self.samples else None

    @property
    def stale(self) -> bool:
        """Whether the last sample is too old to rely on."""
        latest = self.latest
        return latest is None or self.now - latest.at > STALE_AFTER * self.limits.interval

    @property
    def pending(self) -> int:
        """The number of waiting tasks in the newest sample."""
        return 0 if self.latest is None else self.latest.pending

    @property
    def active(self) -> int:
        """The number of running tasks in the newest sample."""
        return 0 if self.latest is None else self.latest.active

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest waiting task has waited until now."""
        latest = self.latest
        if latest is None or not latest.pending:
            return 0.0
        return latest.oldest_age + max(0.0, self.now - latest.at)

    @property
    def rate(self) -> float | None:
        """Tasks per second that one worker finishes."""
        return None if self.service is None else self.limits.slots / self.service

    @property
    def latency(self) -> float:
        """Seconds until a new worker is ready: as measured, or else as the limits say."""
        return self.limits.start_latency if self.start_latency is None else self.start_latency


SAMPLES = 61  # five minutes with a sample every five seconds


def check_number(name: str, value: object, least: float, most: float) -> None:
    """Raises ConfigError unless the value is a number of seconds within the limits."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
    if not good:
        limit = f"at least {least:g}" if most >= LONGEST else f"between {least:g} and {most:g}"
        raise ConfigError(f"{name}: {shown(value)} is not a number of seconds {limit}")


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raises ConfigError unless the value is a whole number within the limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name}: {shown(value)} is not a whole number between {least} and {most:,}")


def index_since(samples: Sequence[Sample], moment: float) -> int:
    """Returns the index of the first sample that is not before the moment."""
    return bisect_left(samples, moment, key=attrgetter("at"))


def rate_between(samples: Sequence[Sample], counted: str, seconds: float) -> float | None:
    """Returns the growth per second of a counter of the samples over the last seconds; None: there are fewer than
    two."""
    if len(samples) < 2:
        return None
    ends = (samples[index_since(samples, samples[-1].at - seconds - MARGIN)], *samples[-2:])
    return rate_over([(one.at, getattr(one, counted)) for one in ends], seconds)


def rate_over(counts: Sequence[tuple[float, float]], seconds: float) -> float | None:
    """Returns the growth per second of (moment, count) pairs over the last seconds; None: there are too few."""
    if len(counts) < 2:
        return None
    last, total = counts[-1]
    first, before = counts[bisect_left(counts, (last - seconds - MARGIN,))]
    if first >= last:
        first, before = counts[-2]
    return (total - before) / (last - first) if last - first >= INSTANT else None
