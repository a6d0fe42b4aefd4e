"""Waits and costs equal those worked out by hand, every task runs once and to its end, and policies get the facts."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scaler.judge.simulate import BINS, Result, ServiceEstimate, Simulation, simulate
from penstock.scaler.judge.traces import Trace, named
from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.decision import Decision, Memory, Policy, conclude
from penstock.scaler.policy.other_tools import Static
from penstock.scaler.policy.signals import Limits, Signals


def about(value: Any, **within: Any) -> Any:
    """`pytest.approx` with the type Any, which satisfies mypy."""
    return pytest.approx(value, **within)


LIMITS = Limits(sla=2.5, min_workers=1, max_workers=50, interval=5.0, start_latency=20.0)


@dataclass
class Told:
    """A policy that wants given numbers of workers from given times on, and keeps the signals that it got."""

    steps: Sequence[tuple[float, int]] = ()
    name: str = "told"
    seen: list[Signals] = field(default_factory=list)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        self.seen.append(signals)
        place = bisect_right(self.steps, signals.now, key=lambda step: step[0])
        wanted = self.steps[place - 1][1] if place else signals.limits.min_workers
        return conclude(signals, wanted, "told", {"told": wanted}, "as told", memory=memory)


def tasks(*rows: tuple[float, float], lasts: float = 0.0) -> Trace:
    """Makes a trace of tasks (due, service)."""
    due, service = [row[0] for row in rows], [row[1] for row in rows]
    return Trace("by hand", due, service, [*due], max(lasts, *due) if due else lasts)


def summed(trace: Trace) -> float:
    return math.fsum(trace.service)


# -- By hand -----------------------------------------------------------------------------------------------------------


def test_one_worker_and_four_tasks() -> None:
    """Tasks of two seconds arrive a second apart: each waits a second longer than the one before."""
    result = simulate(tasks((0, 2), (1, 2), (2, 2), (3, 2), lasts=10), Static(1), LIMITS)
    assert [*result.waits] == [0, 1, 2, 3]
    assert (result.tasks, result.breaches, result.breach_rate) == (4, 1, 0.25)
    assert (result.worker_seconds, result.busy_seconds) == (10, 8)
    assert (result.starts, result.flips, result.peak_workers, result.hours) == (0, 0, 1, 10 / 3600)


def test_it_goes_on_until_the_last_task_is_done() -> None:
    result = simulate(tasks((0, 7), (1, 7), lasts=5), Static(1), LIMITS)
    assert (result.waits, result.worker_seconds) == ((0, 6), 15), "it is done at 14 and seen at 15"


def test_nothing_to_do_costs_what_stands_by() -> None:
    result = simulate(tasks(lasts=60), Static(3), replace(LIMITS, start_latency=0.0))
    assert (result.tasks, result.waits, result.breach_rate, result.wait(0.99)) == (0, (), 0.0, 0.0)
    assert result.worker_seconds == 3 * 60


def test_a_new_worker_is_paid_at_once_and_works_after_it_is_up() -> None:
    """A worker is asked for at 10 and is up at 30. Two tasks wait for it, and it stays until 40."""
    policy = Told([(0, 0), (10, 1)])
    result = simulate(tasks((12, 3), (25, 3), lasts=40), policy, replace(LIMITS, min_workers=0))
    assert [*result.waits] == [8, 18]
    assert (result.worker_seconds, result.starts) == (30, 1)


def test_a_worker_that_needs_no_time_to_start_helps_at_once() -> None:
    result = simulate(tasks((1, 8), (2, 8), lasts=20), Told([(5, 2)]), replace(LIMITS, start_latency=0.0))
    assert [*result.waits] == [0, 3]
    assert result.worker_seconds == 20 + 15


def test_a_dismissed_worker_finishes_its_task_and_is_paid_for_it() -> None:
    """Both are busy until 30, and at 5 one is told to go. The task that arrives at 10 waits for the other."""
    trace = tasks((0, 30), (0, 30), (10, 1), lasts=60)
    result = simulate(trace, Told([(5, 1)]), replace(LIMITS, min_workers=2))
    assert [*result.waits] == [0, 0, 20], "with min 2 no worker goes"
    result = simulate(trace, Told([(0, 2), (25, 1)]), replace(LIMITS, start_latency=0.0))
    assert [*result.waits] == [0, 0, 20]
    assert result.worker_seconds == 60 + 30
    assert result.busy_seconds == 61


def test_the_idle_go_first_then_those_that_start_then_the_busy() -> None:
    """One worker is busy. Two more come at 20, and at 25 a fourth is asked for. Then they go one at a time: idle
    workers at 30 and 35, the fourth at 40, before it is up."""
    policy = Told([(0, 3), (25, 4), (30, 3), (35, 2), (40, 1)])
    result = simulate(tasks((0, 100)), policy, LIMITS)
    fleets = {moment.at: (moment.ready, moment.workers) for moment in result.moments}
    assert [fleets[at] for at in (0, 20, 25, 30, 35, 40, 45)] == [
        (1, 3),
        (3, 3),
        (3, 4),
        (2, 3),
        (1, 2),
        (1, 1),
        (1, 1),
    ]
    assert result.worker_seconds == 100 + 30 + 35 + 15
    assert (result.starts, result.peak_workers, result.flips) == (3, 4, 1)


def test_a_worker_with_two_slots_runs_two_tasks() -> None:
    result = simulate(tasks((0, 10), (0, 10), (0, 10), lasts=20), Static(1), replace(LIMITS, slots=2))
    assert (result.waits, result.worker_seconds, result.busy_seconds) == ((0, 0, 10), 20, 30)


def test_a_slot_that_is_free_in_a_worker_that_goes_is_not_used() -> None:
    """Two workers have two slots each, with a task of 10 s and one of 40 s. One is told to go at 5: at 10 there is one
    slot for the two tasks that wait, and at 40 another."""
    trace = tasks((0, 10), (0, 40), (0, 10), (0, 40), (6, 100), (6, 100))
    policy = Told([(0, 2), (5, 1)])
    result = simulate(trace, policy, replace(LIMITS, slots=2, start_latency=0.0))
    assert [*result.waits] == [0, 0, 0, 0, 4, 34]
    assert result.worker_seconds == 40 + 140


def test_a_slot_that_was_free_before_is_not_used_either() -> None:
    """One of the first worker's two tasks ends at 3, the worker is told to go at 5, and at 6 two tasks arrive."""
    trace = tasks((0, 20), (0, 3), (0, 40), (6, 100), (6, 100))
    result = simulate(trace, Told([(0, 2), (5, 1)]), replace(LIMITS, slots=2, start_latency=0.0))
    assert [*result.waits] == [0, 0, 0, 0, 34]
    assert result.worker_seconds == 20 + 140


def test_among_equal_workers_the_oldest_goes_first() -> None:
    """Ten workers have tasks of 10, 20, … 100 s, and five are dismissed: always the same five."""
    trace = tasks(*((0.0, 10.0 * n) for n in range(1, 11)))
    result = simulate(trace, Told([(5, 5)]), replace(LIMITS, min_workers=10))
    assert result.worker_seconds == 10 * 100, "with min 10 no worker goes"
    result = simulate(trace, Told([(0, 10), (5, 5)]), replace(LIMITS, start_latency=0.0))
    assert result.worker_seconds == 10 + 20 + 30 + 40 + 50 + 5 * 100


def test_changes_of_direction_are_counted() -> None:
    policy = Told([(0, 2), (5, 3), (10, 3), (15, 1), (20, 1), (25, 2), (30, 5), (35, 1)])
    result = simulate(tasks(lasts=60), policy, LIMITS)
    assert result.flips == 3
    assert result.flips_per_hour == 3 * 60


@pytest.mark.parametrize(("share", "wait"), [(0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.99, 4), (1, 4)])
def test_quantiles_of_waits(share: float, wait: float) -> None:
    assert Result(4, 0, 1.0, 1.0, 0, 0, 1.0, 1, waits=(1.0, 2.0, 3.0, 4.0)).wait(share) == wait


# -- Properties --------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.floats(0, 60), st.floats(0.01, 40)), max_size=40).map(sorted)


@settings(max_examples=100, deadline=None)
@given(
    ROWS,
    st.lists(st.tuples(st.floats(0, 90), st.integers(0, 6)), max_size=8).map(sorted),
    st.integers(1, 3),
    st.sampled_from([0.0, 1.0, 20.0]),
)
def test_every_task_runs_once_and_to_its_end(
    rows: list[tuple[float, float]], steps: list[tuple[float, int]], slots: int, latency: float
) -> None:
    trace, policy = tasks(*rows, lasts=60), Told(steps)
    limits = replace(LIMITS, min_workers=0, slots=slots, start_latency=latency)
    result = simulate(trace, policy, limits)
    assert len(result.waits) == result.tasks == len(rows)
    assert all(wait >= 0 for wait in result.waits)
    assert list(result.waits) == sorted(result.waits)
    assert result.busy_seconds == about(summed(trace))
    assert result.worker_seconds * slots >= result.busy_seconds - 1e-6
    assert [one.arrived for one in result.moments] == [bisect_right(trace.due, one.at) for one in result.moments]
    for signals in policy.seen:
        sample = signals.samples[-1]
        assert sample.arrived == sample.pending + sample.active + sample.finished
        assert sum(count for _, count in signals.waiting) == sample.pending
        assert len(signals.running) == sample.active
    assert policy.seen[-1].samples[-1].finished == len(rows)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 4), st.integers(1, 3))
def test_first_due_first_served(rows: list[tuple[float, float]], workers: int, slots: int) -> None:
    """It equals the simplest rule: each task runs in the slot that is free first."""
    trace, free, waits = tasks(*rows, lasts=60), [0.0] * (workers * slots), []
    for due, service in rows:
        begin = max(due, heapq.heappop(free))
        heapq.heappush(free, begin + service)
        waits.append(begin - due)
    result = simulate(trace, Static(workers), replace(LIMITS, min_workers=workers, slots=slots))
    assert result.waits == about(tuple(sorted(waits)), abs=1e-6)


@pytest.mark.parametrize(("slots", "workers"), [(1, 4), (4, 1)])
def test_waits_by_chance_are_erlangs(slots: int, workers: int) -> None:
    """50,000 tasks arrive at random for four slots that are busy 70 % of the time."""
    random, due, at = Random(5), [], 0.0
    for _ in range(50_000):
        at += random.expovariate(2.8)
        due.append(at)
    trace = Trace("chance", due, [random.expovariate(1.0) for _ in due], due, at)
    limits = replace(LIMITS, min_workers=workers, slots=slots, interval=500.0)
    result = simulate(trace, Static(workers), limits)
    full = 2.8**4 / math.factorial(4) * 4 / 1.2
    waiting = full / (sum(2.8**n / math.factorial(n) for n in range(4)) + full)
    assert math.fsum(result.waits) / result.tasks == about(waiting / 1.2, rel=0.05)
    assert sum(wait > 0 for wait in result.waits) / result.tasks == about(waiting, rel=0.03)
    assert result.breach_rate == about(waiting * math.exp(-1.2 * limits.sla), rel=0.15)
    assert result.busy_seconds / result.worker_seconds / slots == about(0.7, rel=0.02)


def small(name: str, **rest: float) -> Trace:
    return named(name, seed=7, duration=1800.0, tasks=3000, **rest)


def test_every_policy_meets_the_same_tasks() -> None:
    few, many = (simulate(small("spikes"), Static(workers), LIMITS) for workers in (5, 50))
    common = min(len(few.moments), len(many.moments))
    assert [one.arrived for one in few.moments[:common]] == [one.arrived for one in many.moments[:common]]
    assert few.busy_seconds == about(many.busy_seconds) == summed(small("spikes"))
    assert few.waits != many.waits


def test_the_same_simulation_twice_is_the_same() -> None:
    """Which of several equal workers is dismissed must not depend on their addresses in memory."""
    limits = Limits(sla=20.0, min_workers=0, max_workers=40, slots=2, start_latency=30.0)
    trace, kept = small("steps", service=3.0, cv=2.0), []
    results = []
    for n in range(3):
        kept.append([object() for _ in range(101 * n)])
        results.append(simulate(trace, Deadline(), limits))
    assert results[0] == results[1] == results[2]


# -- What a policy sees ------------------------------------------------------------------------------------------------


def watched(trace: Trace, limits: Limits = LIMITS, workers: int = 4) -> list[Signals]:
    policy = Told([(0, workers)])
    simulate(trace, policy, limits)
    return policy.seen


def test_in_an_outage_nothing_new_is_seen() -> None:
    trace = replace(small("diurnal"), outages=((602.0, 700.0),))
    dark = [signals for signals in watched(trace) if 602 <= signals.now < 700]
    assert {signals.samples[-1].at for signals in dark} == {600.0}
    assert len({(signals.service, signals.dispersion, signals.running, signals.waiting) for signals in dark}) == 1
    assert [signals.now for signals in dark if not signals.stale] == [605, 610, 615]
    (after,) = [signals for signals in watched(trace) if signals.now == 700]
    assert (after.samples[-1].at, after.samples[-2].at, after.stale) == (700, 600, False)


def test_ages_are_told_in_bins_and_never_too_young() -> None:
    trace = small("spikes")
    for signals in watched(trace, replace(LIMITS, sla=40.0), 8):
        sample = signals.samples[-1]
        ages = [signals.now - due for due in trace.due[sample.arrived - sample.pending : sample.arrived]]
        told = [age for age, count in signals.waiting for _ in range(count)]
        assert all(0 <= thought - age <= 40 / BINS + 1e-9 for thought, age in zip(told, ages, strict=True))
        assert sample.oldest_age == max(ages, default=0.0)


def test_what_is_planned_is_seen_from_the_moment_it_is_known_until_it_is_due() -> None:
    rows = [(50.0, 1.0), (50.4, 1.0), (70.0, 1.0), (80.0, 1.0)]
    trace = replace(tasks(*rows, lasts=100), known=[12.0, 12.0, 70.0, 61.0])
    found = {signals.now: signals for signals in watched(trace, replace(LIMITS, sla=30.0))}
    assert found[10.0].planned == ()
    assert found[15.0].planned == ((35.0, 2),), "tasks of one second are counted together"
    assert found[50.0].planned == ((about(0.4), 1),)
    assert found[55.0].planned == ()
    assert found[65.0].planned == ((15.0, 1),)
    assert [found[at].samples[-1].announced for at in (45.0, 50.0, 60.0, 75.0, 100.0)] == [0, 1, 2, 2, 3]


def test_what_is_planned_for_long_after_is_not_seen_yet() -> None:
    """It is enough to see start latency, interval and two promises ahead."""
    trace = replace(tasks((500.0, 1.0)), known=[0.0])
    assert next(signals.now for signals in watched(trace) if signals.planned) == 470


def test_service_times_are_learned_and_those_that_run_count() -> None:
    learned = ServiceEstimate()
    assert learned.service(100.0) == (None, 1.0)
    for seconds in (1.0, 3.0):
        learned.add(seconds)
    assert learned.service(0.0) == (2.0, 0.5)
    assert learned.service(6.0) == (5.0, 0.5), "ten seconds in slots for two results"
    learned.forget(600.0)
    learned.add(5.0)
    assert learned.service(0.0)[0] == about((2 + 5) / 2), "a task of ten minutes ago counts half"
    learned.forget(36_000.0)
    assert learned.service(0.0) == (None, 1.0)


def test_the_service_time_is_unknown_before_a_task_has_finished() -> None:
    seen = watched(tasks((0, 12), lasts=30))
    assert [signals.service for signals in seen[:3]] == [None] * 3
    assert seen[3].service == about(12)
    assert [signals.running for signals in seen[:4]] == [(0,), (5,), (10,), ()]


def test_starting_workers_are_seen_with_their_remaining_seconds() -> None:
    seen = watched(tasks(lasts=30), workers=3)
    assert [(signals.fleet.ready, signals.fleet.starting) for signals in seen[:6]] == [
        (1, ()),
        (1, (15, 15)),
        (1, (10, 10)),
        (1, (5, 5)),
        (3, ()),
        (3, ()),
    ]


def test_the_caller_is_told_the_progress() -> None:
    shares: list[float] = []
    simulate(small("diurnal"), Static(20), LIMITS, watch=shares.append)
    assert len(shares) >= 90
    assert all(0 <= before <= after <= 1 for before, after in pairwise(shares))
    assert shares[-1] > 0.97


def test_a_simulation_without_workers_is_given_up_after_a_month() -> None:
    class NoWorkers:
        name = "no workers"

        def decide(self, signals: Signals, memory: Memory = None) -> Decision:
            return Decision(0, "NORMAL", "0: no workers", "none", {}, None, None, 0)

    policy: Policy = NoWorkers()
    limits = Limits(sla=30.0, min_workers=0, interval=3600.0)
    assert len(Simulation(tasks((0, 1)), policy, limits).run(None).waits) == 0
