"""Chooses which windows of a long recording are played, and estimates the whole recording from them. Pure.

A recording is cut into windows of equal length. The hardest ones, in which the load rises most, are all played, because
promises break there. The others are sorted by the same measure and divided into strata, and two windows of each stratum
are drawn. They represent their stratum, and the difference between them gives the margin of the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from penstock.scaler.judge.traces import Trace

Floats = NDArray[np.float64]

WINDOW = 1800.0  # seconds of a window
WARM_UP = 900.0  # seconds played before a window, so that a policy can learn
LONG_WARM_UP = 3600.0  # if workers start more slowly than tasks may wait: policies remember bursts for an hour
HARDEST = 1 / 3  # share of the played windows that are the hardest
Z_95 = 1.96  # standard errors: 95 %
GLANCE = 15.0  # seconds over which load is measured


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace as columns: millions of tasks in little memory."""

    name: str
    due: Floats  # seconds since the beginning, ascending
    service: Floats
    known: Floats
    duration: float
    outages: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()  # what was estimated instead of recorded

    @classmethod
    def of(cls, trace: Trace) -> Recording:
        """Returns the recording of a trace."""
        due, service, known = (np.asarray(one, dtype=float) for one in (trace.due, trace.service, trace.known))
        return cls(trace.name, due, service, known, trace.duration, trace.outages)

    def __len__(self) -> int:
        return len(self.due)

    def work(self, begin: float, end: float) -> float:
        """Returns the seconds of work that fall due between two times."""
        first, last = np.searchsorted(self.due, [begin, end])
        return float(self.service[first:last].sum())

    def cut(self, begin: float, end: float) -> Trace:
        """Returns the tasks that fall due between two times, on a clock that begins at the first."""
        first, last = np.searchsorted(self.due, [begin, end])
        due, service, known = (one[first:last] for one in (self.due, self.service, self.known))
        outages = tuple((a - begin, b - begin) for a, b in self.outages if b > begin and a < end)
        moments = (due - begin).tolist(), service.tolist(), (known - begin).tolist()
        return Trace(self.name, *moments, end - begin, outages)


@dataclass(frozen=True, slots=True)
class PlayedWindow:
    """A part of a recording. It is played from `begin`, judged from `since` to `until`, and includes the tasks that are
    announced up to `end`."""

    begin: float
    since: float
    until: float
    end: float
    stratum: int

    @property
    def judged(self) -> tuple[float, float]:
        return self.since - self.begin, self.until - self.begin


@dataclass(frozen=True, slots=True)
class WindowSample:
    """The windows that are played. `strata`: how many windows there are in each stratum, played or not."""

    windows: tuple[PlayedWindow, ...]
    strata: tuple[int, ...]
    whole: bool  # the window is the whole recording

    def weights(self) -> list[float]:
        """Returns how many windows each played window represents."""
        played = [0] * len(self.strata)
        for one in self.windows:
            played[one.stratum] += 1
        return [self.strata[one.stratum] / played[one.stratum] for one in self.windows]

    def total(self, values: Sequence[float]) -> tuple[float, float]:
        """Estimates the total of all windows from the played ones. Also returns its standard error."""
        estimate = variance = 0.0
        for stratum, size in enumerate(self.strata):
            own = [value for one, value in zip(self.windows, values, strict=True) if one.stratum == stratum]
            estimate += size * sum(own) / len(own) if own else 0.0
            if len(own) < size:
                variance += size * size * (1 - len(own) / size) * float(np.var(own, ddof=1)) / len(own)
        return estimate, math.sqrt(variance)

    def total_by(self, values: Sequence[float], beside: Sequence[float], known: float) -> tuple[float, float]:
        """Estimates the total of a value that depends on another one, whose total is known: a fleet's cost depends on
        the work. The estimate moves along the regression line through the played windows, and only the deviation from
        that line is uncertain."""
        weights, y, x = np.asarray(self.weights()), np.asarray(values), np.asarray(beside)
        away = x - np.average(x, weights=weights)
        spread = float((weights * away * away).sum())
        slope = float((weights * away * y).sum()) / spread if spread > 0 else 0.0
        estimate, _ = self.total(values)
        _, error = self.total((y - slope * x).tolist())
        return estimate + slope * (known - self.total(beside)[0]), error


def take_all(recording: Recording) -> WindowSample:
    end = recording.duration
    return WindowSample((PlayedWindow(0.0, 0.0, end, end, 0),), (1,), whole=True)


def draw_sample(
    recording: Recording, most: int, *, ahead: float, warm_up: float = WARM_UP, seed: int = 0
) -> WindowSample:
    """Draws windows with about `most` tasks; all, if there are no more. `ahead`: seconds after a window in which
    announced tasks matter to it."""
    if len(recording) <= most:
        return take_all(recording)
    count = math.ceil(recording.duration / WINDOW)
    each = len(recording) / recording.duration * (WINDOW + warm_up)
    played = max(8, int(most / each))
    if played >= count:
        return take_all(recording)
    order = np.argsort(-measure_hardness(recording, count), kind="stable").tolist()
    hardest = round(played * HARDEST)
    chosen = [(n, 0) for n in order[:hardest]]
    strata, rest, random = [hardest], order[hardest:], Random(seed)  # noqa: S311 - nothing secret
    pairs = (played - hardest) // 2
    for pair in range(pairs):
        members = rest[pair * len(rest) // pairs : (pair + 1) * len(rest) // pairs]
        chosen += [(n, len(strata)) for n in random.sample(members, min(2, len(members)))]
        strata.append(len(members))
    windows = tuple(make_window(recording, n, stratum, warm_up=warm_up, ahead=ahead) for n, stratum in sorted(chosen))
    return WindowSample(windows, tuple(strata), whole=False)


def make_window(recording: Recording, n: int, stratum: int, *, warm_up: float, ahead: float) -> PlayedWindow:
    since, end = n * WINDOW, recording.duration
    until = min(end, since + WINDOW)
    return PlayedWindow(max(0.0, since - warm_up), since, until, min(end, until + ahead), stratum)


def measure_hardness(recording: Recording, count: int) -> Floats:
    """Returns for each window the greatest rise of load from one minute to the next, in workers. The load itself
    decides between windows without a rise."""
    glances = math.ceil(recording.duration / GLANCE)
    glance = np.minimum((recording.due / GLANCE).astype(np.int64), glances - 1)
    load = np.bincount(glance, recording.service, minlength=glances) / GLANCE
    minute = np.convolve(load, np.full(4, 0.25), mode="full")[:glances]  # the mean of the last four
    before = np.concatenate([np.zeros(4), minute[:-4]])[:glances] if glances > 4 else np.zeros(glances)
    before[:4] = minute[:4]  # the beginning does not count as a rise
    score = np.maximum(minute - before, 0.0) + 0.01 * minute
    found = np.zeros(count)
    np.maximum.at(found, np.minimum((np.arange(glances) * GLANCE / WINDOW).astype(np.int64), count - 1), score)
    return found


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Returns the value that this share of the weight does not exceed."""
    if not len(values):
        return 0.0
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, np.searchsorted(reached, share * reached[-1] - 1e-9))])
