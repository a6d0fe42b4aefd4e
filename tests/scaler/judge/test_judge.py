"""Scores are means, the frontier has the policies that none beats, and the default keeps its promise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scaler.judge.bound import Bound
from penstock.scaler.judge.judge import (
    TOLERATED,
    Case,
    Score,
    best_static,
    case,
    find_frontier,
    judge,
    merge_scores,
    score,
)
from penstock.scaler.judge.simulate import Result
from penstock.scaler.judge.traces import Trace, named
from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.other_tools import Static
from penstock.scaler.policy.signals import Limits


def about(value: Any, **within: Any) -> Any:
    """`pytest.approx` with the type Any, which satisfies mypy."""
    return pytest.approx(value, **within)


LIMITS = Limits(sla=30.0, min_workers=1, start_latency=20.0)
EMPTY = Trace("empty", [], [], [], 3600.0)


def small(name: str, tasks: int = 2000) -> Trace:
    return named(name, seed=7, duration=1200.0, tasks=tasks)


# -- Cases -------------------------------------------------------------------------------------------------------------


def test_a_policy_may_use_half_as_many_again_as_a_clairvoyant() -> None:
    found = case(small("spikes"), LIMITS)
    assert found.bound is not None
    assert found.bound.peak > 4
    assert found.limits == replace(LIMITS, max_workers=math.ceil(1.5 * found.bound.peak))


def test_or_as_many_as_are_allowed() -> None:
    found = case(small("spikes"), LIMITS, max_workers=4)
    assert (found.limits.max_workers, found.bound is not None and found.bound.feasible) == (4, False)
    assert case(small("spikes"), LIMITS, solve=False) == Case(small("spikes"), LIMITS, None)
    assert case(small("spikes"), LIMITS, max_workers=4, solve=False).limits.max_workers == 4
    assert case(EMPTY, replace(LIMITS, min_workers=3, max_workers=9)).limits.max_workers >= 3


def test_the_bound_has_the_same_terms() -> None:
    one, two = (case(small("diurnal"), replace(LIMITS, slots=slots)).bound for slots in (1, 2))
    assert one is not None
    assert two is not None
    assert two.peak < one.peak
    warm = case(small("diurnal"), replace(LIMITS, min_workers=9)).bound
    assert warm is not None
    assert min(warm.capacity[:100]) >= 9


# -- Scores ------------------------------------------------------------------------------------------------------------


def result(**changed: Any) -> Result:
    usual = Result(100, 2, 200.0, 100.0, 4, 6, 2.0, 9, waits=(0.0,) * 98 + (7.0, 31.0))
    return replace(usual, **changed)


def bounded(seconds: float, late_share: float = 0.0) -> Case:
    bound = Bound(seconds, 5.0, (), not late_share, 5.0, late_share)
    return Case(EMPTY, replace(LIMITS, max_workers=9, slots=2), bound)


def test_a_score_is_means_and_the_worst_waits() -> None:
    cases = [bounded(100.0), bounded(160.0, 0.05)]
    worse = result(breaches=8, worker_seconds=400.0, flips=0, peak_workers=7, starts=5, waits=(1.0,) * 99 + (40.0,))
    assert score("mine", cases, [result(), worse]) == Score(
        trace="empty",
        policy="mine",
        seeds=2,
        tasks=100,
        breach_rate=about(0.05),
        excess_breach_rate=about(0.03 / 2 + 0.02 / 2),
        cost_ratio=about((2.0 + 2.5) / 2),
        worker_seconds=300.0,
        utilization=about((100 / 400 + 100 / 800) / 2),
        starts=4.5,
        flips_per_hour=1.5,
        p50_wait=0.5,
        p99_wait=7.0,
        max_wait=40.0,
        peak_workers=9,
        max_workers=9,
    )


def test_without_a_bound_there_is_no_ratio() -> None:
    unsolved = Case(EMPTY, LIMITS, None)
    assert score("mine", [unsolved], [result()]).cost_ratio is None
    assert score("mine", [unsolved], [result()]).excess_breach_rate == 0.02
    assert score("mine", [unsolved, bounded(100.0)], [result(), result()]).cost_ratio == 2.0
    assert score("mine", [bounded(0.0)], [result(worker_seconds=0.0)]).cost_ratio is None
    assert score("mine", [bounded(0.0)], [result(worker_seconds=0.0)]).utilization == 0.0


def test_judging_is_simulating_each_case() -> None:
    cases, shares = [case(small("steps"), LIMITS, solve=False), case(small("drift"), LIMITS, solve=False)], [0.0]
    found = judge(Static(8), cases, watch=shares.append)
    assert (found.policy, found.trace, found.seeds) == ("static", "steps", 2)
    assert (
        found.worker_seconds
        == (judge(Static(8), cases[:1]).worker_seconds + judge(Static(8), cases[1:]).worker_seconds) / 2
    )
    assert shares == sorted(shares)
    assert 0.95 < shares[-1] <= 1.0
    assert found.to_json()["peak_workers"] == 8


def scored(cost: float | None, breaches: float, **changed: Any) -> Score:
    usual = score("mine", [bounded(100.0)], [result()])
    return replace(usual, cost_ratio=cost, breach_rate=breaches, **changed)


def test_scores_of_several_traces_are_merged() -> None:
    one, other = scored(1.0, 0.1, max_wait=5.0), scored(2.0, 0.3, trace="other", peak_workers=20)
    both = merge_scores("all", [one, other])
    assert (both.trace, both.policy, both.cost_ratio, both.breach_rate) == ("all", "mine", 1.5, about(0.2))
    assert (both.max_wait, both.peak_workers) == (31.0, 20)
    assert merge_scores("all", [one, scored(None, 0.0)]).cost_ratio is None
    assert merge_scores("empty", [one]) == one


# -- The frontier ------------------------------------------------------------------------------------------------------


def test_on_the_frontier_no_policy_is_beaten() -> None:
    cheap, good, both, dear = scored(1.0, 0.3), scored(3.0, 0.0), scored(2.0, 0.1), scored(2.5, 0.1)
    assert find_frontier([dear, good, both, cheap]) == [cheap, both, good]
    assert find_frontier([]) == []


@given(st.lists(st.tuples(st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.sampled_from([0.0, 0.1, 0.2, 0.5])), max_size=8))
def test_the_frontier_is_exactly_those_that_no_policy_beats(points: list[tuple[float, float]]) -> None:
    def beaten(point: tuple[float, float]) -> bool:
        return any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points)

    found = find_frontier([scored(cost, breaches) for cost, breaches in points])
    assert [(one.cost_ratio, one.breach_rate) for one in found] == sorted(one for one in points if not beaten(one))


@pytest.mark.parametrize("name", ["diurnal", "spikes"])
def test_the_best_fixed_fleet_is_the_smallest_that_would_have_done(name: str) -> None:
    cases = [case(small(name), LIMITS)]
    best = best_static(cases)
    assert isinstance(best, Static)
    assert judge(best, cases).excess_breach_rate <= TOLERATED
    assert judge(Static(best.workers - 1), cases).excess_breach_rate > TOLERATED


# -- The default policy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["diurnal", "spikes", "batches-known", "on-off", "metric-outage"])
@pytest.mark.parametrize("latency", [20.0, 20.3])
def test_the_default_policy_keeps_its_promise(name: str, latency: float) -> None:
    found = case(named(name, seed=7, duration=2400.0, tasks=11_000), replace(LIMITS, start_latency=latency))
    done = judge(Deadline(), [found])
    assert done.breach_rate <= 0.01
    assert done.cost_ratio is not None
    assert 1.0 <= done.cost_ratio <= 2.5
    assert done.peak_workers <= done.max_workers


def test_it_does_not_take_chance_for_a_limit() -> None:
    """All workers are busy for minutes while tasks come back: by chance, one more may bring less than it should."""
    trace = named("retry-storm", seed=7, duration=5400.0, tasks=6000, service=8.0)
    found = case(trace, Limits(sla=60.0, start_latency=2.3, interval=2.0))
    assert judge(Deadline(), [found]).breach_rate <= 0.01
