"""Signals are valid or refused by name, and decisions keep limits and guards."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scaler.policy.decision import (
    URGENCIES,
    ceiling,
    clamp,
    conclude,
    drain_rate,
    predicted_breach,
    time_to_breach,
    urgency,
)
from penstock.scaler.policy.signals import Fleet, Limits, Sample, Signals, rate_between

LIMITS = Limits(sla=60.0, min_workers=0, max_workers=20)


def make_signals(*samples: Sample, now: float | None = None, **rest: Any) -> Signals:
    at = samples[-1].at if samples else 0.0
    return Signals(at if now is None else now, rest.pop("limits", LIMITS), samples, **rest)


# -- Valid or refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sla", 0),
        ("sla", -1),
        ("sla", math.nan),
        ("sla", math.inf),
        ("sla", True),
        ("sla", "30"),
        ("interval", 0),
        ("start_latency", -0.1),
        ("min_workers", -1),
        ("max_workers", 0),
        ("max_workers", 100_001),
        ("slots", 0),
        ("slots", 1.5),
        ("slots", True),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: .* is not a "):
        Limits(**{"sla": 30.0, field: value})


def test_min_above_max_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^min_workers: 5 is more than max_workers, 4"):
        Limits(sla=30.0, min_workers=5, max_workers=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("at", math.nan), ("pending", -1), ("active", 1.0), ("oldest_age", -1), ("arrived", 2**63), ("finished", None)],
)
def test_an_impossible_sample_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Sample(**{"at": 0.0, "pending": 0, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("now", math.inf),
        ("service", 0.0),
        ("service", math.nan),
        ("start_latency", -1.0),
        ("dispersion", -0.1),
        ("dispersion", math.nan),
        ("dispersion", math.inf),
    ],
)
def test_impossible_signals_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Signals(**{"now": 0.0, "limits": LIMITS, field: value})


# -- Derived values ----------------------------------------------------------------------------------------------------


def test_nothing_seen_is_nothing_waiting_and_stale() -> None:
    signals = make_signals()
    assert (signals.latest, signals.pending, signals.active, signals.oldest_age) == (None, 0, 0, 0.0)
    assert signals.stale


def test_a_look_is_stale_after_three_intervals() -> None:
    look = Sample(100.0, 1)
    assert not make_signals(look, now=115.0).stale
    assert make_signals(look, now=115.001).stale


def test_a_waiting_task_goes_on_getting_older() -> None:
    assert make_signals(Sample(100.0, 1, oldest_age=7.0), now=112.0).oldest_age == 19.0
    assert make_signals(Sample(100.0, 0, oldest_age=7.0), now=112.0).oldest_age == 0.0, "no task waits"
    assert make_signals(Sample(100.0, 1, oldest_age=7.0), now=90.0).oldest_age == 7.0, "the clock was set back"


def test_what_was_measured_goes_before_what_was_configured() -> None:
    assert make_signals().latency == 20.0
    assert make_signals(start_latency=3.0).latency == 3.0
    assert make_signals(start_latency=0.0).latency == 0.0


def test_a_worker_is_as_fast_as_its_slots() -> None:
    assert make_signals().rate is None
    assert make_signals(service=2.0, limits=Limits(sla=60.0, slots=4)).rate == 2.0


def test_workers_are_those_that_are_ready_and_those_that_start() -> None:
    assert Fleet(ready=3, starting=(1.0, 2.0), draining=9).workers == 5


# -- Rates -------------------------------------------------------------------------------------------------------------

LOOKS = tuple(Sample(at, 0, arrived=count) for at, count in ((0.0, 0), (7.0, 70), (9.0, 80), (20.0, 80), (21.0, 86)))


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [(0.5, 6.0), (1.0, 6.0), (2.0, 6.0), (12.0, 0.5), (13.9, 0.5), (14.0, 16 / 14), (100.0, 86 / 21)],
)
def test_a_rate_is_between_the_last_look_and_the_first_within_the_window(seconds: float, rate: float) -> None:
    assert rate_between(LOOKS, "arrived", seconds) == pytest.approx(rate)


def test_one_look_or_two_at_once_make_no_rate() -> None:
    assert rate_between((), "arrived", 60) is None
    assert rate_between(LOOKS[:1], "arrived", 60) is None
    for apart in (0.0, 5e-324, 1e-6):
        assert rate_between((Sample(0.0, 0), Sample(apart, 0, arrived=2**62)), "arrived", 60) is None


@given(st.lists(st.floats(0.01, 60), min_size=2, max_size=60), st.floats(0.01, 600))
def test_a_steady_counter_has_its_rate_however_one_looks(gaps: list[float], seconds: float) -> None:
    looks, at = [], 0
    for gap in gaps:
        at += round(gap * 100)
        looks.append(Sample(at / 100, 0, finished=3 * at))
    assert rate_between(looks, "finished", seconds) == pytest.approx(300)


# -- Every decision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "name"), [(0, 0), (35.9, 0), (36, 1), (47.9, 1), (48, 2), (54, 3), (59.9, 3), (60, 4), (1e8, 4)]
)
def test_urgency_goes_by_how_much_of_the_promise_is_used(age: float, name: int) -> None:
    assert urgency(make_signals(Sample(0.0, 1, oldest_age=age))) == URGENCIES[name]
    assert urgency(make_signals(Sample(0.0, 0, oldest_age=age))) == "NORMAL"


def test_a_rule_decides_within_the_limits() -> None:
    signals = make_signals(Sample(0.0, 5), limits=Limits(sla=60.0, min_workers=2, max_workers=20))
    assert [clamp(signals, wanted) for wanted in (0, 2, 7, 20, 21)] == [2, 2, 7, 20, 20]
    more, fewer, just = (conclude(signals, wanted, "rule", {"rule": wanted}, "said") for wanted in (30, 1, 7))
    assert (more.workers, more.bound_by, more.capacity_short) == (20, "max", 10)
    assert more.reason == "20: said; max 20 of 30 wanted"
    assert (fewer.workers, fewer.bound_by, fewer.reason) == (2, "min", "2: said; min 2")
    assert (just.workers, just.bound_by, just.capacity_short) == (7, "rule", 0)


@pytest.mark.parametrize(("pending", "active", "workers"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_one_stays_while_anything_waits_or_runs(pending: int, active: int, workers: int) -> None:
    decision = conclude(make_signals(Sample(0.0, pending, active)), 0, "rule", {}, "said")
    assert (decision.workers, decision.bound_by) == (workers, "not to zero" if workers else "rule")


def test_old_metrics_are_no_reason_to_dismiss_a_worker() -> None:
    fleet = Fleet(ready=6)
    old = conclude(make_signals(Sample(0.0, 0), now=16.0, fleet=fleet), 2, "rule", {}, "said")
    assert (old.workers, old.bound_by) == (6, "stale")
    assert old.reason == "6: said; held, because there are no new metrics (the last are 16 s old)"
    assert "there are none" in conclude(make_signals(fleet=fleet), 2, "rule", {}, "said").reason
    assert conclude(make_signals(Sample(0.0, 0), now=16.0, fleet=fleet), 9, "rule", {}, "said").workers == 9
    assert conclude(make_signals(Sample(0.0, 0), now=15.0, fleet=fleet), 2, "rule", {}, "said").workers == 2


def test_a_breach_is_foreseen_where_the_oldest_gets_older() -> None:
    growing = [Sample(5.0 * n, 10 * n, oldest_age=5.0 * n) for n in range(1, 6)]
    assert drain_rate(make_signals(*growing)) == -2.0, "five looks span four intervals"
    assert time_to_breach(make_signals(*growing)) == predicted_breach(make_signals(*growing)) == 35.0
    slower = [Sample(5.0 * n, 10 * n, oldest_age=2.5 * n) for n in range(1, 6)]
    assert predicted_breach(make_signals(*slower)) == (60 - 12.5) / 0.5
    gone = [Sample(5.0 * n, 60 - 10 * n, oldest_age=5.0 * n) for n in range(1, 6)]
    assert predicted_breach(make_signals(*gone)) is None, "the queue is empty in 5 s"
    assert predicted_breach(make_signals(Sample(0.0, 3, oldest_age=61.0))) == 0.0
    assert predicted_breach(make_signals(Sample(0.0, 3, oldest_age=1.0))) is None


@given(st.integers(0, 2**31 - 1), st.sampled_from([0.0, 1e-10, -1e-10]))
def test_the_last_digit_is_no_worker(whole: int, hair: float) -> None:
    assert ceiling(whole + hair) == whole
    assert ceiling(1e300) == 2**31 - 1
