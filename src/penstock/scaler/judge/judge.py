"""Compares policies on the same traces, seeds and limits, and with the lowest possible cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from penstock.scaler.judge.bound import Bound, bound
from penstock.scaler.judge.simulate import Result, simulate
from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.other_tools import Static
from penstock.scaler.policy.signals import Limits

HEADROOM = 1.5  # times the peak of the bound: the workers that a policy may use by default
TOLERATED = 0.005  # breach rate that the best fixed fleet may have


@dataclass(frozen=True, slots=True)
class Case:
    """One trace, the limits, and the lowest possible cost."""

    trace: Trace
    limits: Limits
    bound: Bound | None  # None: there is no solver


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a policy on one trace: the means over the seeds; of waits, the worst."""

    trace: str
    policy: str
    seeds: int
    tasks: int
    breach_rate: float
    excess_breach_rate: float  # without breaches that no fleet within the limits could have avoided
    cost_ratio: float | None  # worker-seconds / worker-seconds of the bound
    worker_seconds: float
    utilization: float
    starts: float
    flips_per_hour: float
    p50_wait: float
    p99_wait: float
    max_wait: float
    peak_workers: int
    max_workers: int

    def to_json(self) -> dict[str, object]:
        """Returns the score as JSON."""
        return asdict(self)


def case(trace: Trace, limits: Limits, *, max_workers: int | None = None, solve: bool = True) -> Case:
    """Makes a case. By default the maximum is 1.5 times the workers that the clairvoyant uses at most."""
    found = None
    if solve:
        found = solve_bound(trace, limits, max_workers)
        most = math.ceil(HEADROOM * found.peak) if max_workers is None else max_workers
    else:
        most = limits.max_workers if max_workers is None else max_workers
    return Case(trace, replace(limits, max_workers=max(1, limits.min_workers, most)), found)


def solve_bound(trace: Trace, limits: Limits, max_workers: int | None) -> Bound:
    """Returns the lowest possible cost, which a clairvoyant would pay."""
    return bound(
        trace,
        limits.sla,
        limits.start_latency,
        step=limits.interval,
        min_workers=limits.min_workers,
        slots=limits.slots,
        max_workers=max_workers,
    )


def judge(policy: Policy, cases: Sequence[Case], *, watch: Callable[[float], None] | None = None) -> Score:
    """Runs a policy on all cases of a trace and scores it."""
    results = []
    for n, one in enumerate(cases):
        results.append(simulate(one.trace, policy, one.limits, watch=watch_part(watch, n, len(cases))))
    return score(policy.name, cases, results)


def watch_part(watch: Callable[[float], None] | None, n: int, of: int) -> Callable[[float], None] | None:
    """Returns a watch for one of several runs."""
    return None if watch is None else lambda share: watch((n + share) / of)


def score(name: str, cases: Sequence[Case], results: Sequence[Result]) -> Score:
    """Scores the results of a policy."""
    mean = statistics.fmean
    pairs = [*zip(cases, results, strict=True)]
    solved = [(one.bound, result) for one, result in pairs if one.bound is not None and one.bound.worker_seconds > 0]
    return Score(
        trace=cases[0].trace.name,
        policy=name,
        seeds=len(cases),
        tasks=round(mean(result.tasks for result in results)),
        breach_rate=mean(result.breach_rate for result in results),
        excess_breach_rate=mean(excess_of(one, result) for one, result in pairs),
        cost_ratio=mean(result.worker_seconds / least.worker_seconds for least, result in solved) if solved else None,
        worker_seconds=mean(result.worker_seconds for result in results),
        utilization=mean(utilization(one, result) for one, result in pairs),
        starts=mean(result.starts for result in results),
        flips_per_hour=mean(result.flips_per_hour for result in results),
        p50_wait=mean(result.wait(0.5) for result in results),
        p99_wait=max(result.wait(0.99) for result in results),
        max_wait=max(result.wait(1.0) for result in results),
        peak_workers=max(result.peak_workers for result in results),
        max_workers=max(one.limits.max_workers for one in cases),
    )


def excess_of(one: Case, result: Result) -> float:
    return max(0.0, result.breach_rate - (one.bound.late_share if one.bound is not None else 0.0))


def utilization(one: Case, result: Result) -> float:
    paid = result.worker_seconds * one.limits.slots
    return result.busy_seconds / paid if paid else 0.0


def best_static(cases: Sequence[Case]) -> Policy:
    """Returns the smallest fixed fleet that would have kept the promise, in hindsight."""
    low, high = 1, max(one.limits.max_workers for one in cases)
    while low < high:
        middle = (low + high) // 2
        if judge(Static(workers=middle), cases).excess_breach_rate <= TOLERATED:
            high = middle
        else:
            low = middle + 1
    return Static(workers=high)


def merge_scores(name: str, scores: Sequence[Score]) -> Score:
    """Merges the scores of a policy on several traces: the means; of waits and peaks, the worst."""
    mean = statistics.fmean
    ratios = [one.cost_ratio for one in scores if one.cost_ratio is not None]
    return Score(
        trace=name,
        policy=scores[0].policy,
        seeds=scores[0].seeds,
        tasks=round(mean(one.tasks for one in scores)),
        breach_rate=mean(one.breach_rate for one in scores),
        excess_breach_rate=mean(one.excess_breach_rate for one in scores),
        cost_ratio=mean(ratios) if len(ratios) == len(scores) else None,
        worker_seconds=mean(one.worker_seconds for one in scores),
        utilization=mean(one.utilization for one in scores),
        starts=mean(one.starts for one in scores),
        flips_per_hour=mean(one.flips_per_hour for one in scores),
        p50_wait=mean(one.p50_wait for one in scores),
        p99_wait=max(one.p99_wait for one in scores),
        max_wait=max(one.max_wait for one in scores),
        peak_workers=max(one.peak_workers for one in scores),
        max_workers=max(one.max_workers for one in scores),
    )


def find_frontier(scores: Sequence[Score]) -> list[Score]:
    """Returns the scores that no other score beats, the cheapest first: no other has fewer breaches for the same
    cost, or costs less with as few. Equal scores are all included."""
    found: list[Score] = []
    for one in sorted(scores, key=lambda one: (price_of(one), one.breach_rate)):
        same = found and (price_of(found[-1]), found[-1].breach_rate) == (price_of(one), one.breach_rate)
        if not found or one.breach_rate < found[-1].breach_rate or same:
            found.append(one)
    return found


def price_of(one: Score) -> float:
    """Returns the cost by which scores are compared."""
    return one.worker_seconds if one.cost_ratio is None else one.cost_ratio
