"""The bound equals results worked out by hand, and no schedule is cheaper."""

from __future__ import annotations

import sys
import time
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scaler.judge import bound as module
from penstock.scaler.judge.bound import Bound, bound
from penstock.scaler.judge.traces import Trace, named

QUICK = settings(max_examples=40, deadline=None)


def trace(*tasks: tuple[float, float], duration: float | None = None) -> Trace:
    due = sorted(tasks)
    last = max((at for at, _ in due), default=0.0)
    return Trace(
        "tiny",
        [at for at, _ in due],
        [s for _, s in due],
        [at for at, _ in due],
        last if duration is None else duration,
    )


TASKS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=4)
LOADS = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 30)), min_size=1, max_size=15)

# -- By hand ----------------------------------------------------------------------------------------------------------


def test_one_task_is_worked_on_evenly_until_its_latest_end() -> None:
    """8 seconds of work in 40 need a fifth of a worker all the time, and a fifth of a start."""
    found = bound(trace((0, 8)), sla=32, start_latency=20)
    assert found.worker_seconds == pytest.approx(8 + 20 * 0.2)
    assert found.peak == pytest.approx(0.2)
    assert found.capacity == pytest.approx([0.2] * 8)
    assert (found.feasible, found.late_share, found.step) == (True, 0.0, 5.0)


def test_a_task_that_may_not_wait_needs_a_worker_of_its_own() -> None:
    found = bound(trace((10, 5)), sla=0, start_latency=20)
    assert found.capacity == pytest.approx([0, 0, 1])
    assert found.worker_seconds == pytest.approx(5 + 20)


@pytest.mark.parametrize(("n", "service", "sla"), [(100, 2.0, 28.0), (1000, 2.0, 58.0), (10, 5.0, 5.0)])
def test_a_batch_is_spread_over_the_time_there_is(n: int, service: float, sla: float) -> None:
    found = bound(trace(*[(0.0, service)] * n), sla=sla, start_latency=20)
    peak = n * service / (sla + service)
    assert found.peak == pytest.approx(peak)
    assert found.worker_seconds == pytest.approx(n * service + 20 * peak)


def test_a_constant_rate_needs_rate_times_service() -> None:
    found = bound(trace(*((n / 4, 2.0) for n in range(4 * 3600))), sla=30, start_latency=20)
    assert found.peak == pytest.approx(8, rel=0.01)
    assert found.worker_seconds == pytest.approx(4 * 3600 * 2 + 20 * 8, rel=0.001)


def test_a_worker_is_kept_through_a_short_gap_and_let_go_in_a_long_one() -> None:
    """Two tasks that may not wait have a gap between them: a kept worker costs the gap, a new start costs L."""
    for gap, paid in ((10, 10), (60, 20)):
        found = bound(trace((0, 10), (10 + gap, 10)), sla=0, start_latency=20)
        assert found.worker_seconds == pytest.approx(20 + 10 + 10 + paid)


def test_slots_share_a_worker() -> None:
    one, four = (bound(trace(*[(0.0, 2.0)] * 100), 28, 20, slots=slots) for slots in (1, 4))
    assert four.worker_seconds == pytest.approx(one.worker_seconds / 4)
    assert four.peak == pytest.approx(one.peak / 4)


def test_min_workers_are_there_already_and_paid_until_the_end() -> None:
    assert bound(trace(duration=100), 30, 20, min_workers=2) == Bound(200.0, 2.0, (2.0,) * 20, True, 5.0)
    idle = bound(trace((0, 10), duration=102), 30, 20, min_workers=2)
    assert idle.worker_seconds == pytest.approx(204)
    late = bound(trace((95, 20), duration=100), 0, 20, min_workers=1)
    assert late.worker_seconds == pytest.approx(115)  # no start, and after the end only what is needed


def test_nothing_costs_nothing() -> None:
    assert bound(trace(), 30, 20) == Bound(0.0, 0.0, (), True, 5.0)
    assert bound(trace(duration=60), 30, 20).worker_seconds == 0


# -- Too few workers --------------------------------------------------------------------------------------------------


def test_enough_workers_change_nothing() -> None:
    tasks = trace(*[(0.0, 2.0)] * 150)
    assert bound(tasks, 28, 20, max_workers=10) == bound(tasks, 28, 20)
    assert bound(tasks, 28, 20, max_workers=10).feasible


def test_the_share_that_must_be_late() -> None:
    """There are 200 seconds of work in 30 seconds: 5 workers do 150 of them, and the rest afterwards."""
    found = bound(trace(*[(0.0, 2.0)] * 100), 28, 20, max_workers=5)
    assert not found.feasible
    assert found.late_share == pytest.approx(0.25)
    assert found.peak == pytest.approx(5)
    assert found.worker_seconds == pytest.approx(200 + 20 * 5)


def test_late_work_waits_for_a_quiet_time() -> None:
    """The rest of the batch is done later, by the workers that are there for the later task anyway."""
    found = bound(trace(*[(0.0, 2.0)] * 100, (200, 2)), 28, 20, max_workers=5)
    assert found.late_share == pytest.approx(50 / 202)
    assert found.worker_seconds == pytest.approx(202 + 20 * 5)


def test_slots_count_among_too_few() -> None:
    one = bound(trace(*[(0.0, 2.0)] * 200), 28, 20, max_workers=5)
    two = bound(trace(*[(0.0, 2.0)] * 400), 28, 20, max_workers=5, slots=2)
    assert two.late_share == pytest.approx(one.late_share)
    assert two.worker_seconds == pytest.approx(one.worker_seconds)


@QUICK
@given(TASKS, st.integers(0, 4), st.integers(1, 3), st.sampled_from([0.5, 1.0, 2.0]))
def test_no_schedule_is_less_late(tasks: list[tuple[int, int]], sla: int, workers: int, step: float) -> None:
    found = bound(trace(*tasks), sla, 3, max_workers=workers, step=step)
    total = sum(service for _, service in tasks)
    assert found.late_share <= least_late(tasks, sla, workers) / total + 1e-6
    assert found.peak <= workers + 1e-6
    assert found.feasible == (found.late_share < 1e-7)


@QUICK
@given(LOADS, st.floats(0, 60), st.integers(1, 3))
def test_being_late_never_pays(tasks: list[tuple[float, float]], sla: float, workers: int) -> None:
    """Whatever a start costs, as much work as possible is done on time."""
    shares = [bound(trace(*tasks), sla, latency, max_workers=workers).late_share for latency in (0, 20, 500)]
    assert shares == pytest.approx([shares[0]] * 3, abs=1e-6)


def least_late(tasks: list[tuple[int, int]], sla: int, workers: int) -> float:
    """Returns the work of the tasks that start late, in the best schedule that starts at whole seconds."""
    starts = product(*(range(at, at + sla + 1) for at, _ in tasks))
    best = float("inf")
    for chosen in starts:
        for kept in product((True, False), repeat=len(tasks)):
            on_time = [(at, s) for at, (_, s), keep in zip(chosen, tasks, kept, strict=True) if keep]
            if max(busy(on_time), default=0) <= workers:
                best = min(best, sum(s for (_, s), keep in zip(tasks, kept, strict=True) if not keep))
    return best


# -- Against every schedule -------------------------------------------------------------------------------------------


def busy(running: list[tuple[int, int]]) -> list[int]:
    """Returns how many tasks run in each second."""
    end = max((at + s for at, s in running), default=0)
    return [sum(at <= second < at + s for at, s in running) for second in range(end)]


def cost(needed: list[int], start: int) -> int:
    """Returns the cost of the cheapest whole fleet: the first worker is there whenever one is needed, the second
    whenever two are, and each is kept through a gap if that costs no more than a new start."""
    total = 0
    for level in range(max(needed)):
        seconds = [second for second, count in enumerate(needed) if count > level]
        gaps = [after - before - 1 for before, after in pairwise(seconds)]
        total += start + len(seconds) + sum(min(gap, start) for gap in gaps)
    return total


@QUICK
@given(TASKS, st.integers(0, 4), st.integers(0, 8), st.sampled_from([0.5, 1.0, 2.0, 3.0]))
def test_no_schedule_is_cheaper(tasks: list[tuple[int, int]], sla: int, start: int, step: float) -> None:
    starts = product(*(range(at, at + sla + 1) for at, _ in tasks))
    cheapest = min(cost(busy([(at, s) for at, (_, s) in zip(chosen, tasks, strict=True)]), start) for chosen in starts)
    found = bound(trace(*tasks), sla, start, step=step)
    assert found.worker_seconds <= cheapest + 1e-6
    assert found.worker_seconds >= sum(service for _, service in tasks) - 1e-6


def test_a_schedule_can_be_as_cheap() -> None:
    """If no task may wait and the steps are fine, the bound is the cost."""
    tasks = [(0, 2), (1, 3), (5, 1), (6, 2)]
    assert bound(trace(*tasks), 0, 3, step=1).worker_seconds == pytest.approx(cost(busy(tasks), 3))


@QUICK
@given(LOADS, st.lists(st.floats(0, 120), min_size=2, max_size=4), st.integers(0, 2))
def test_a_longer_promise_is_never_dearer(tasks: list[tuple[float, float]], slas: list[float], least: int) -> None:
    costs = [bound(trace(*tasks), sla, 20, min_workers=least).worker_seconds for sla in sorted(slas, reverse=True)]
    assert all(before <= after + 1e-5 for before, after in pairwise(costs))


@QUICK
@given(LOADS, st.lists(st.floats(0, 120), min_size=2, max_size=4), st.floats(0, 60))
def test_slower_starts_are_never_cheaper(tasks: list[tuple[float, float]], latencies: list[float], sla: float) -> None:
    costs = [bound(trace(*tasks), sla, latency).worker_seconds for latency in sorted(latencies)]
    assert all(before <= after + 1e-5 for before, after in pairwise(costs))


@QUICK
@given(LOADS, st.floats(0, 60))
def test_finer_steps_never_lower_it(tasks: list[tuple[float, float]], sla: float) -> None:
    coarse, middle, fine = (bound(trace(*tasks), sla, 20, step=step).worker_seconds for step in (8, 4, 1))
    assert coarse <= middle + 1e-5
    assert middle <= fine + 1e-5


@QUICK
@given(LOADS, st.sampled_from([0.7, 1.0, 5.0]))
def test_the_work_at_each_edge_is_exact(tasks: list[tuple[float, float]], step: float) -> None:
    begin, service = (np.array(column) for column in zip(*tasks, strict=True))
    found = module.accumulate_work(begin, service, step, 30)
    edges = step * np.arange(1, 31)
    expected = np.minimum(service, np.maximum(0, edges[:, None] - begin)).sum(axis=1)
    assert found == pytest.approx(expected, abs=1e-9)


# -- The rest ---------------------------------------------------------------------------------------------------------


def test_six_hours_take_a_moment() -> None:
    day = named("diurnal")
    began = time.process_time()
    found = bound(day, 30, 20)
    assert time.process_time() - began < 20  # it takes a second, but other tests run on the machine too
    assert 1 <= found.worker_seconds / sum(day.service) < 1.05
    assert 12 < found.peak < 18


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sla": -1}, "sla: -1"),
        ({"sla": float("nan")}, "sla: nan"),
        ({"start_latency": -1}, "start_latency: -1"),
        ({"step": 0}, "step: 0"),
        ({"step": "5"}, "step: '5'"),
        ({"min_workers": -1}, "min_workers: -1"),
        ({"min_workers": 5, "max_workers": 4}, "min_workers: 5 is more than max_workers, 4"),
        ({"max_workers": 0}, "max_workers: 0"),
        ({"max_workers": 1.5}, "max_workers: 1.5"),
        ({"slots": 0}, "slots: 0"),
        ({"step": 0.001}, "step: 1038 seconds are more than 200,000 steps"),
    ],
)
def test_what_is_not_accepted_is_named(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"sla": 30.0, "start_latency": 20.0, **options}
    with pytest.raises(ConfigError, match=words):
        bound(trace((1000, 8)), **given)


@pytest.mark.parametrize("absent", ["numpy", "scipy"])
def test_without_its_tools_it_says_how_to_get_them(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ConfigError, match=f"bound: {absent} is not installed") as caught:
        bound(trace((0, 1)), 30, 20)
    assert "pip install scipy" in (caught.value.hint or "")
