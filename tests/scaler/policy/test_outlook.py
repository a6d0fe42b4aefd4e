"""The fewest workers are enough and one fewer is not; task starts equal those counted by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scaler.policy.decision import ceiling
from penstock.scaler.policy.forecast import Forecast
from penstock.scaler.policy.outlook import MAX_FACTOR, NEGLIGIBLE, STEPS, Outlook
from penstock.scaler.policy.signals import Fleet, Limits, Sample, Signals

NO_ARRIVALS = Forecast(0.0, 0.0, 0.0, 1.0)


def make_signals(waiting: list[tuple[float, int]], fleet: Fleet | None = None, **rest: Any) -> Signals:
    """Signals with steps and tasks of a second: latency + interval + promise are 48 s."""
    latency, active = rest.pop("latency", 0.0), rest.pop("active", 0)
    limits = Limits(sla=43.0 - latency, min_workers=0, max_workers=1000, interval=5.0, start_latency=latency)
    sample = Sample(0.0, sum(count for _, count in waiting), active, max((age for age, _ in waiting), default=0.0))
    found = Signals(0.0, limits, (sample,), fleet or Fleet(), tuple(waiting), service=1.0, dispersion=0.0)
    return replace(found, **rest)


def ahead(signals: Signals, coming: Forecast = NO_ARRIVALS, *, z: float = 0.0, z_service: float = 0.0) -> Outlook:
    assert (signals.latency + signals.limits.interval + signals.limits.sla) / STEPS == pytest.approx(1.0)
    return Outlook(signals, coming, z=z, z_service=z_service, recovery=0.5)


# -- By hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "workers"), [(1, 1), (43, 1), (44, 2), (430, 10), (431, 11)])
def test_a_worker_starts_one_task_at_once_and_one_every_second(tasks: int, workers: int) -> None:
    """In 42 s, a second before they are late, it starts 1 + 42 tasks."""
    assert ahead(make_signals([(0.0, tasks)])).fewest == workers


@pytest.mark.parametrize(("tasks", "workers"), [(24, 1), (25, 2), (240, 10), (241, 11)])
def test_a_new_worker_starts_nothing_before_it_is_up(tasks: int, workers: int) -> None:
    """It is up in the step that ends after 10 s, and starts 1 + 23 tasks until 32 s."""
    assert ahead(make_signals([(0.0, tasks)], latency=10.0)).fewest == workers


def test_the_older_ones_have_less_time() -> None:
    assert ahead(make_signals([(30.0, 130)])).fewest == 10, "each starts 1 + 12 tasks"
    assert ahead(make_signals([(30.0, 130), (0.0, 300)])).fewest == 10
    assert ahead(make_signals([(30.0, 130), (0.0, 301)])).fewest == 11


def test_tasks_that_are_not_counted_by_age_are_spread() -> None:
    uncounted = replace(make_signals([(30.0, 100)]), waiting=())
    spread = make_signals([(3.0 * n, 10) for n in range(10, 0, -1)])
    assert ahead(uncounted).fewest == ahead(spread).fewest
    assert ahead(uncounted).fewest < ahead(make_signals([(30.0, 100)])).fewest


def test_a_busy_worker_starts_nothing_at_once() -> None:
    tasks = [(0.0, 430)]
    assert ahead(make_signals(tasks, Fleet(10))).fewest == 10
    assert ahead(make_signals(tasks, Fleet(10), active=10)).fewest == 11
    assert ahead(make_signals([(0.0, 420)], Fleet(10), active=10)).fewest == 10
    assert ahead(make_signals([(0.0, 420)], Fleet(10), active=500)).fewest == 10, "the others run in workers that leave"
    assert ahead(make_signals(tasks, Fleet(0, (0.5,) * 10), active=500)).fewest == 10, (
        "they do not take the place of workers that come"
    )


def test_a_starting_worker_counts_from_the_time_it_is_up() -> None:
    tasks = [(0.0, 240)]
    assert ahead(make_signals(tasks, Fleet(0, (10.0,) * 10), latency=10.0)).fewest == 10
    assert ahead(make_signals(tasks, Fleet(0, (9.0,) * 10), latency=10.0)).late(10) == 0
    assert ahead(make_signals(tasks, Fleet(0, (11.0,) * 10), latency=10.0)).late(10) == 10
    slow = ahead(make_signals(tasks, Fleet(0, (40.0,)), latency=10.0))
    assert (slow.late(11), slow.fewest) == (0, 11), "new ones do not wait for one that is slow to start"


def test_a_planned_task_is_a_task_from_its_time_on() -> None:
    soon = make_signals([], latency=10.0, planned=((10.0, 340),))
    assert ahead(soon).fewest == 10, "from 10 s until 42 s each starts 1 + 33"
    assert ahead(replace(soon, planned=((10.0, 341),))).fewest == 11
    assert ahead(replace(soon, planned=((15.0, 340),))).fewest == 10
    assert ahead(replace(soon, planned=((15.1, 340),))).fewest == 0, "the next decision is in time"


def test_arrivals_are_expected_until_the_next_decision_can_help() -> None:
    stream = make_signals([], latency=10.0)
    assert ahead(stream, replace(NO_ARRIVALS, rate=10.0)).fewest == 4, (
        "150 come in 15 s, and by 47 s each starts 1 + 38"
    )
    assert ahead(stream, replace(NO_ARRIVALS, rate=10.0), z=1.0).fewest == 5, "162"
    assert ahead(stream, replace(NO_ARRIVALS, rate=10.0, dispersion=25.0), z=1.0).fewest == 6, "211"


def test_a_stream_keeps_as_many_busy_as_it_takes() -> None:
    """Five tasks of a second per second leave five of ten workers for a batch: 10 start at 15 s, and 10 a second until
    47 s."""
    stream = replace(NO_ARRIVALS, rate=5.0)
    assert ahead(make_signals([], Fleet(10), latency=10.0, planned=((15.0, 330),)), stream).fewest == 10
    assert ahead(make_signals([], Fleet(10), latency=10.0, planned=((15.0, 331),)), stream).fewest == 11


def test_a_worker_of_four_slots_counts_for_four() -> None:
    four = make_signals([(0.0, 4 * 43 * 5)])
    assert ahead(replace(four, limits=replace(four.limits, slots=4))).fewest == 5


def test_the_first_deadline_that_is_missed_is_told() -> None:
    missed = ahead(make_signals([(30.0, 130), (0.0, 300)], Fleet(9))).shortfall
    assert missed is not None
    assert (missed.seconds, missed.due, missed.started) == (12.0, 130.0, 117.0)
    assert ahead(make_signals([(30.0, 130), (0.0, 300)], Fleet(10))).shortfall is None


def test_the_more_service_times_differ_the_more_workers() -> None:
    found = [
        ahead(replace(make_signals([(0.0, 860)]), dispersion=one), z_service=2.0).fewest for one in (0.0, 0.5, 1.0, 4.0)
    ]
    assert found == sorted(found)
    assert found[0] == 20
    assert found[-1] == ceiling(860 / (1 + 42 / 1.25)), "a quarter slower, at most"


def test_young_tasks_do_not_make_old_ones_easier() -> None:
    """A hundred more tasks do not make it less likely that the first hundred are long."""
    old = replace(make_signals([(30.0, 100)]), dispersion=1.0)
    more = replace(make_signals([(30.0, 100), (0.0, 100)]), dispersion=1.0)
    assert ahead(more, z_service=2.0).fewest == ahead(old, z_service=2.0).fewest


def test_tasks_that_no_worker_can_save_get_half_a_promise_more() -> None:
    late = ahead(make_signals([(60.0, 1000)], latency=10.0))
    assert late.fewest == 54, "until 26 s each starts 1 + 17, and 16 / 16.5 of the tasks must have been started"
    assert ahead(make_signals([(60.0, 1000)], Fleet(20), latency=10.0)).fewest < 54


def test_no_need_is_above_64_times_what_is_allowed() -> None:
    assert ahead(make_signals([(0.0, 2**62)])).fewest == 64_000


# -- Properties --------------------------------------------------------------------------------------------------------


@st.composite
def situations(draw: st.DrawFn) -> tuple[Signals, Forecast]:
    limits = Limits(
        sla=draw(st.floats(1, 120)),
        min_workers=0,
        max_workers=draw(st.integers(1, 50)),
        slots=draw(st.integers(1, 4)),
        interval=draw(st.sampled_from([1.0, 5.0, 15.0])),
        start_latency=draw(st.sampled_from([0.0, 1.0, 20.0, 60.0])),
    )
    ages = sorted(draw(st.lists(st.floats(0, 1.5 * limits.sla), max_size=4)), reverse=True)
    waiting = tuple((age, draw(st.integers(1, 300))) for age in ages)
    sample = Sample(0.0, sum(count for _, count in waiting), draw(st.integers(0, 60)), max(ages, default=0.0))
    planned = tuple((at, draw(st.integers(1, 300))) for at in sorted(draw(st.lists(st.floats(0, 120), max_size=3))))
    starting = tuple(sorted(draw(st.lists(st.floats(0, 1.5 * limits.start_latency), max_size=3))))
    signals = Signals(
        0.0,
        limits,
        (sample,),
        Fleet(draw(st.integers(0, 30)), starting),
        waiting=waiting if draw(st.booleans()) else (),
        planned=planned,
        service=draw(st.floats(0.01, 100)),
        dispersion=draw(st.floats(0, 4)),
    )
    rate = draw(st.just(0.0) | st.floats(0, 20))
    return signals, Forecast(rate, rate, draw(st.floats(0, 0.01)), draw(st.floats(1, 25)))


@settings(max_examples=150, deadline=None)
@given(situations())
def test_the_fewest_are_enough_and_one_fewer_is_not(situation: tuple[Signals, Forecast]) -> None:
    outlook = Outlook(*situation, z=1.0, z_service=2.0, recovery=0.5)
    signals, _ = situation
    farthest = MAX_FACTOR * max(signals.limits.max_workers, signals.fleet.workers)
    assert outlook.late(outlook.fewest) <= NEGLIGIBLE or outlook.fewest == farthest
    assert outlook.fewest == 0 or outlook.late(outlook.fewest - 1) > NEGLIGIBLE


@settings(max_examples=100, deadline=None)
@given(situations())
def test_one_worker_more_makes_nothing_late(situation: tuple[Signals, Forecast]) -> None:
    outlook = Outlook(*situation, z=1.0, z_service=2.0, recovery=0.5)
    late = [outlook.late(workers) for workers in range(40)]
    assert all(after <= before + 1e-6 for before, after in itertools.pairwise(late))
    assert all(0 <= one < float("inf") for one in late)


@settings(max_examples=50, deadline=None)
@given(situations())
def test_slots_are_what_counts(situation: tuple[Signals, Forecast]) -> None:
    signals, coming = situation
    empty = replace(signals, fleet=Fleet())

    def fewest(slots: int) -> int:
        limits = replace(signals.limits, slots=slots, max_workers=1000)
        return Outlook(replace(empty, limits=limits), coming, z=1.0, z_service=2.0, recovery=0.5).fewest

    assert fewest(3) == ceiling(fewest(1) / 3)
