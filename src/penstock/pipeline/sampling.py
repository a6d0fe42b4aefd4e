"""A month in an hour's work: which windows of a long recording are played, and what they say about all of it. Pure.

A recording is cut into windows of equal length. Those that look hardest (the load jumps most in them) are all played:
that is where promises break. Of the others, put in order by the same measure and divided into strata, two of each are
drawn. Each stands for its stratum, and how much two of a stratum differ tells how far the estimate may be off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from penstock.scaler.traces import Trace

Floats = NDArray[np.float64]

WINDOW = 1800.0  # seconds that are judged
WARM_UP = 900.0  # seconds played before them, for a policy to learn what it had known
LONG_WARM_UP = 3600.0  # where workers start more slowly than tasks may wait: policies remember bursts for an hour
HARDEST = 1 / 3  # of the windows that are played, those taken because they look hardest
CONFIDENT = 1.96  # standard errors: 95 %
GLANCE = 15.0  # seconds over which load is measured


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace as columns: millions of tasks in little room."""

    name: str
    due: Floats  # seconds from the beginning, ascending
    service: Floats
    known: Floats
    duration: float
    outages: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()  # what of it was not recorded but estimated

    @classmethod
    def of(cls, trace: Trace) -> Recording:
        due, service, known = (np.asarray(one, dtype=float) for one in (trace.due, trace.service, trace.known))
        return cls(trace.name, due, service, known, trace.duration, trace.outages)

    def __len__(self) -> int:
        return len(self.due)

    def work(self, begin: float, end: float) -> float:
        """Seconds of it that fall due between two moments."""
        first, last = np.searchsorted(self.due, [begin, end])
        return float(self.service[first:last].sum())

    def cut(self, begin: float, end: float) -> Trace:
        """What falls due between two moments, on a clock that begins at the first."""
        first, last = np.searchsorted(self.due, [begin, end])
        due, service, known = (one[first:last] for one in (self.due, self.service, self.known))
        outages = tuple((a - begin, b - begin) for a, b in self.outages if b > begin and a < end)
        moments = (due - begin).tolist(), service.tolist(), (known - begin).tolist()
        return Trace(self.name, *moments, end - begin, outages)


@dataclass(frozen=True, slots=True)
class Window:
    """What is played: from `begin` on, judged from `since` to `until`, with what is announced up to `end`."""

    begin: float
    since: float
    until: float
    end: float
    stratum: int

    @property
    def judged(self) -> tuple[float, float]:
        return self.since - self.begin, self.until - self.begin


@dataclass(frozen=True, slots=True)
class Sample:
    """`strata`: how many windows there are in each, played or not."""

    windows: tuple[Window, ...]
    strata: tuple[int, ...]
    whole: bool  # all of the recording, in one piece

    def weights(self) -> list[float]:
        """How many windows each that is played stands for."""
        played = [0] * len(self.strata)
        for one in self.windows:
            played[one.stratum] += 1
        return [self.strata[one.stratum] / played[one.stratum] for one in self.windows]

    def total(self, values: Sequence[float]) -> tuple[float, float]:
        """Of all windows, from those that were played; and its standard error."""
        estimate = variance = 0.0
        for stratum, size in enumerate(self.strata):
            own = [value for one, value in zip(self.windows, values, strict=True) if one.stratum == stratum]
            estimate += size * sum(own) / len(own) if own else 0.0
            if len(own) < size:
                variance += size * size * (1 - len(own) / size) * float(np.var(own, ddof=1)) / len(own)
        return estimate, math.sqrt(variance)

    def total_by(self, values: Sequence[float], beside: Sequence[float], known: float) -> tuple[float, float]:
        """The same of what goes along with something else, whose total is known: a fleet's cost with the work there
        was. The estimate is moved along the line through what was played, and only what is beside that line is left
        uncertain."""
        weights, y, x = np.asarray(self.weights()), np.asarray(values), np.asarray(beside)
        away = x - np.average(x, weights=weights)
        spread = float((weights * away * away).sum())
        slope = float((weights * away * y).sum()) / spread if spread > 0 else 0.0
        estimate, _ = self.total(values)
        _, error = self.total((y - slope * x).tolist())
        return estimate + slope * (known - self.total(beside)[0]), error


def all_of(recording: Recording) -> Sample:
    end = recording.duration
    return Sample((Window(0.0, 0.0, end, end, 0),), (1,), whole=True)


def sampled(recording: Recording, most: int, *, ahead: float, warm_up: float = WARM_UP, seed: int = 0) -> Sample:
    """Windows with about so many tasks to play, or all if there are not more. `ahead`: seconds after a window in which
    what is announced can matter to it."""
    if len(recording) <= most:
        return all_of(recording)
    count = math.ceil(recording.duration / WINDOW)
    each = len(recording) / recording.duration * (WINDOW + warm_up)
    played = max(8, int(most / each))
    if played >= count:
        return all_of(recording)
    order = np.argsort(-hardness(recording, count), kind="stable").tolist()
    hardest = round(played * HARDEST)
    chosen = [(n, 0) for n in order[:hardest]]
    strata, rest, random = [hardest], order[hardest:], Random(seed)  # noqa: S311 - nothing secret
    pairs = (played - hardest) // 2
    for pair in range(pairs):
        members = rest[pair * len(rest) // pairs : (pair + 1) * len(rest) // pairs]
        chosen += [(n, len(strata)) for n in random.sample(members, min(2, len(members)))]
        strata.append(len(members))
    windows = tuple(window(recording, n, stratum, warm_up=warm_up, ahead=ahead) for n, stratum in sorted(chosen))
    return Sample(windows, tuple(strata), whole=False)


def window(recording: Recording, n: int, stratum: int, *, warm_up: float, ahead: float) -> Window:
    since, end = n * WINDOW, recording.duration
    until = min(end, since + WINDOW)
    return Window(max(0.0, since - warm_up), since, until, min(end, until + ahead), stratum)


def hardness(recording: Recording, count: int) -> Floats:
    """Of each window: the greatest rise of load from one minute to the next, in workers; load alone decides between
    windows that do not rise."""
    glances = math.ceil(recording.duration / GLANCE)
    place = np.minimum((recording.due / GLANCE).astype(np.int64), glances - 1)
    load = np.bincount(place, recording.service, minlength=glances) / GLANCE
    minute = np.convolve(load, np.full(4, 0.25), mode="full")[:glances]  # the last four glances
    before = np.concatenate([np.zeros(4), minute[:-4]])[:glances] if glances > 4 else np.zeros(glances)
    before[:4] = minute[:4]  # the beginning is no rise
    score = np.maximum(minute - before, 0.0) + 0.01 * minute
    found = np.zeros(count)
    np.maximum.at(found, np.minimum((np.arange(glances) * GLANCE / WINDOW).astype(np.int64), count - 1), score)
    return found


def quantile(values: Floats, weights: Floats, share: float) -> float:
    """So much of the weight is not above it."""
    if not len(values):
        return 0.0
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, np.searchsorted(reached, share * reached[-1] - 1e-9))])
