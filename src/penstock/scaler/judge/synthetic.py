"""Synthetic traces, made from a seed."""

from __future__ import annotations

import difflib
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from random import Random

from penstock.errors import ValidationError, shown
from penstock.scaler.judge.trace import (
    HOUR,
    MAX_DURATION,
    MAX_TASKS,
    MINUTE,
    Trace,
    check_between,
    draw_lognormal,
    poisson_arrivals,
    random_stream,
    transpose,
)
from penstock.validate import whole

HEAVY_TAIL = 4.0  # standard deviation / mean
# The seconds that a failed task waits before each retry.
RETRIES = (60.0, 60.0, 120.0, 180.0, 300.0, 480.0, 780.0, 1260.0, 2040.0, 3300.0)


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """The parameters of a synthetic trace."""

    seed: int
    service: float
    cv: float
    duration: float
    tasks: int

    @property
    def rate(self) -> float:
        """Tasks per second, on average."""
        return self.tasks / self.duration

    @property
    def seconds(self) -> int:
        return math.ceil(self.duration)

    def stream(self, use: str) -> Random:
        return random_stream(self.seed, use)


Maker = Callable[[SyntheticSpec], Trace]
Shape = Callable[[float], float]  # how busy a moment is; only the proportions count


def named(
    name: str,
    *,
    seed: int = 0,
    service: float = 2.0,
    cv: float = 1.0,
    duration: float = 6 * HOUR,
    tasks: int = 100_000,
) -> Trace:
    """Makes a synthetic trace of about this many tasks. The same seed makes the same trace on every machine."""
    if name not in SYNTHETIC:
        raise unknown_trace(name)
    spec = SyntheticSpec(
        seed=whole(seed, "seed", 0, 2**63 - 1),
        service=check_between(service, "service", 1e-6, MAX_DURATION),
        cv=check_between(cv, "cv", 0.0, 100.0),
        duration=check_between(duration, "duration", 1.0, MAX_DURATION),
        tasks=whole(tasks, "tasks", 1, MAX_TASKS),
    )
    return replace(SYNTHETIC[name](spec), name=name)


def diurnal(spec: SyntheticSpec) -> Trace:
    """A day from midnight to midnight, scaled to the duration: the busiest hour has about four times the quietest."""
    return make_unplanned(spec, daily_shape(spec))


def spikes(spec: SyntheticSpec) -> Trace:
    """Spikes: five to eight times as many tasks for one to three minutes, about every 40 minutes."""
    random = spec.stream("shape")
    begins = [random.uniform(first, last) for first, last in divide(spec.duration, 40 * MINUTE)]
    found = [(one, random.uniform(60, 180), random.uniform(10, 20), random.uniform(5, 8)) for one in begins]

    def busy(t: float) -> float:
        begun = bisect_right(begins, t)
        return max(
            1.0, *(spike_height(t, *one) for one in found[max(0, begun - 2) : begun + 1])
        )  # two may overlap, not three

    return make_unplanned(spec, busy)


def spike_height(t: float, begin: float, lasts: float, ramp: float, height: float) -> float:
    inside = min(t - begin, begin + lasts - t)  # seconds to its nearer end
    return 1 + (height - 1) * min(1.0, max(0.0, inside / ramp))


def batches_known(spec: SyntheticSpec) -> Trace:
    """Planned batches: hundreds of tasks every 15 to 30 minutes, at a full minute, known long before."""
    random, planned = spec.stream("shape"), []
    for moment in batch_moments(spec, random):
        due, size = moment - moment % MINUTE, batch_size(spec, random, 65, 216)
        planned += [(due, due - random.uniform(10, 60) * MINUTE)] * size
    return with_batches(spec, planned)


def batches_unknown(spec: SyntheticSpec) -> Trace:
    """Smaller batches of another system, which are not planned, and are pushed within some seconds."""
    random, pushed = spec.stream("shape"), []
    for moment in batch_moments(spec, random):
        size, lasts = batch_size(spec, random, 22, 86), random.uniform(5, 20)
        dues = (moment + random.uniform(0, lasts) for _ in range(size))
        pushed += [(due, due) for due in dues if due < spec.duration]
    return with_batches(spec, pushed)


def steps(spec: SyntheticSpec) -> Trace:
    """A new level every 20 to 40 minutes, without a transition."""
    random = spec.stream("shape")
    edges, levels = random_moments(spec.duration, 20, 40, random), [2.0]
    for _ in edges:
        levels.append(random.choice([one for one in (1.0, 2.0, 3.0, 4.0, 5.0) if one != levels[-1]]))
    return make_unplanned(spec, lambda t: levels[bisect_right(edges, t)])


def heavy_tail(spec: SyntheticSpec) -> Trace:
    """A day whose tasks are mostly short, but sometimes take minutes."""
    return diurnal(replace(spec, cv=HEAVY_TAIL))


def on_off(spec: SyntheticSpec) -> Trace:
    """Five to fifteen minutes of work, then five to fifteen minutes without any."""
    edges = random_moments(spec.duration, 5, 15, spec.stream("shape"))
    return make_unplanned(spec, lambda t: float(bisect_right(edges, t) % 2 == 0))


def drift(spec: SyntheticSpec) -> Trace:
    """Slow growth: four times as many tasks at the end as at the beginning."""
    variation = random_variation(spec)
    return make_unplanned(spec, lambda t: 4 ** (t / spec.duration) * variation(t))


def retry_storm(spec: SyntheticSpec) -> Trace:
    """Outages of something that all tasks need, of some minutes each: every task fails and is retried with Fibonacci
    delays. Every attempt is a task of the trace. A retry is known from the moment of the failure on."""
    away = [*chain(*random_stretches(spec.duration, 2 * HOUR, spec.stream("shape"), 4 * MINUTE, 8 * MINUTE))]
    more = sum(len(list_attempts(float(t), spec.service, away)) for t in range(spec.seconds)) / spec.seconds
    first = draw_arrivals(spec, lambda _: 1.0, spec.tasks / more)
    tried = [
        (due, service, known)
        for begin, service in zip(first, draw_services(spec, len(first)), strict=True)
        for due, known in list_attempts(begin, service, away)
        if due < spec.duration
    ]
    due, service_times, known = transpose(sorted(tried), 3)
    return Trace("", due, service_times, known, spec.duration)


def metric_outage(spec: SyntheticSpec) -> Trace:
    """The same day as diurnal, with a few gaps of half a minute to two minutes in the metrics."""
    return replace(diurnal(spec), outages=random_stretches(spec.duration, 1.5 * HOUR, spec.stream("outages"), 30, 120))


SYNTHETIC: dict[str, Maker] = {
    "diurnal": diurnal,
    "spikes": spikes,
    "batches-known": batches_known,
    "batches-unknown": batches_unknown,
    "steps": steps,
    "heavy-tail": heavy_tail,
    "on-off": on_off,
    "drift": drift,
    "retry-storm": retry_storm,
    "metric-outage": metric_outage,
}


def make_unplanned(spec: SyntheticSpec, shape: Shape) -> Trace:
    """Makes a trace of that shape without planned tasks."""
    return with_batches(spec, [], shape)


def with_batches(spec: SyntheticSpec, batches: list[tuple[float, float]], shape: Shape = lambda _: 1.0) -> Trace:
    """Makes a trace of that shape, plus batches of (due, known)."""
    single = draw_arrivals(spec, shape, max(0, spec.tasks - len(batches)))
    tasks = sorted([*zip(single, single, strict=True), *batches])
    due, known = transpose(tasks, 2)
    return Trace("", due, draw_services(spec, len(due)), known, spec.duration)


def draw_arrivals(spec: SyntheticSpec, shape: Shape, tasks: float) -> list[float]:
    """Returns about this many arrivals, in proportion to the shape."""
    edges = [n * spec.duration / spec.seconds for n in range(spec.seconds + 1)]
    busy = [shape((begin + end) / 2) for begin, end in pairwise(edges)]
    scale = tasks / sum(busy)
    stretches = ((begin, end, scale * one) for (begin, end), one in zip(pairwise(edges), busy, strict=True))
    return poisson_arrivals(stretches, spec.stream("arrivals"))


def draw_services(spec: SyntheticSpec, count: int) -> list[float]:
    return draw_lognormal(spec.service, spec.cv, count, spec.stream("service"))


def daily_shape(spec: SyntheticSpec) -> Shape:
    """Returns the shape of a day: quiet at four, busy from ten on, a dip after lunch, a second peak in the early
    evening."""
    variation, day = random_variation(spec), math.tau / spec.duration
    return lambda t: (
        (1 - 0.5 * math.cos(day * (t - spec.duration / 6)) - 0.15 * math.cos(2 * day * (t - spec.duration / 12)))
        * variation(t)
    )


def random_variation(spec: SyntheticSpec) -> Shape:
    """Returns a shape that varies by some percent within minutes, because no real load is smooth."""
    random, every = spec.stream("wobble"), 3 * MINUTE
    heights = [random.uniform(0.92, 1.08) for _ in range(int(spec.duration / every) + 2)]

    def at(t: float) -> float:
        n, share = divmod(t / every, 1.0)
        return heights[int(n)] * (1 - share) + heights[int(n) + 1] * share

    return at


def divide(duration: float, length: float) -> list[tuple[float, float]]:
    """Divides the duration into equal parts of about that length, at least one."""
    count = max(1, round(duration / length))
    return [(n * duration / count, (n + 1) * duration / count) for n in range(count)]


def random_stretches(
    duration: float, every: float, random: Random, least: float, most: float
) -> tuple[tuple[float, float], ...]:
    """Returns stretches of `least` to `most` seconds, one in about `every` seconds; they never overlap."""
    found = []
    for first, last in divide(duration, every):
        lasts = min(random.uniform(least, most), (last - first) / 2)
        begin = random.uniform(first, last - lasts)
        found.append((begin, begin + lasts))
    return tuple(found)


def random_moments(duration: float, least: float, most: float, random: Random) -> list[float]:
    """Returns moments that are `least` to `most` minutes apart."""
    found, after = [], 0.0
    while (after := after + random.uniform(least, most) * MINUTE) < duration:
        found.append(after)
    return found


def batch_moments(spec: SyntheticSpec, random: Random) -> list[float]:
    """Returns a moment every 15 to 30 minutes, at least one."""
    return random_moments(spec.duration, 15, 30, random) or [spec.duration / 2]


def batch_size(spec: SyntheticSpec, random: Random, least: float, most: float) -> int:
    """Returns the tasks that arrive in `least` to `most` seconds on average, so that batches grow with the load."""
    return round(min(spec.rate * random.uniform(least, most), spec.tasks / 4))


def list_attempts(begin: float, service: float, away: Sequence[float]) -> list[tuple[float, float]]:
    """Returns (due, known) of each attempt of a task. An attempt fails if it begins during an outage. `away` has the
    edges of the outages: from the first to the second, from the third to the fourth, …"""
    found = [(begin, begin)]
    for wait in RETRIES:
        due = found[-1][0]
        if bisect_right(away, due) % 2 == 0:
            break
        found.append((due + service + wait, due + service))
    return found


def unknown_trace(name: object) -> ValidationError:
    near = difflib.get_close_matches(str(name), SYNTHETIC, n=1, cutoff=0.4)
    meant = f"Did you mean {near[0]}? " if near else ""
    return ValidationError(
        f"trace: {shown(name)} is neither a name nor a file",
        hint=f"{meant}Names are {', '.join(SYNTHETIC)}.",
        field="trace",
    )
