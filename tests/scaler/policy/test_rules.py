"""The rules decide as their article says, where it is right, and their decisions are always possible."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scaler.policy.decision import Policy, ceiling
from penstock.scaler.policy.rules import (
    RULES,
    BacklogDrain,
    Cascade,
    Escalating,
    Levels,
    LittlesLaw,
    Numbers,
    Recovering,
    Tiered,
    Trend,
    apply_drain,
)
from penstock.scaler.policy.signals import Fleet, Limits, Sample, Signals

EVERY = pytest.mark.parametrize("policy", RULES.values(), ids=list(RULES))


def make_signals(
    pending: int, oldest: float, rate: float | None = None, *, sla: float = 60.0, workers: int = 0, **rest: Any
) -> Signals:
    """Signals of one look at a queue whose workers finish a given number of tasks a second."""
    limits = Limits(sla=sla, min_workers=rest.pop("least", 1), max_workers=rest.pop("most", 20))
    sample = Sample(at=1000.0, pending=pending, oldest_age=oldest, workers=workers, active=rest.pop("active", 0))
    return Signals(
        now=1000.0,
        limits=limits,
        samples=(sample,),
        fleet=Fleet(ready=workers),
        service=None if rate is None else limits.slots / rate,
        **rest,
    )


def history(signals: Signals, pending: list[int], *, every: float = 5.0, arrived: float = 0.0) -> Signals:
    """The same queue with earlier looks, at which its oldest task already waited; `arrived` is the number of tasks per
    second since then."""
    last = signals.samples[-1]
    samples = []
    for n, waiting in enumerate(pending):
        before = (len(pending) - 1 - n) * every
        oldest = max(0.0, last.oldest_age - before)
        counted = round(n * every * arrived)
        samples.append(replace(last, at=last.at - before, pending=waiting, oldest_age=oldest, arrived=counted))
    return replace(signals, samples=tuple(samples))


# -- The page's examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["backlog-drain", "hybrid", "tiered", "levels", "cascade", "trend", "littles-law"])
def test_example_1_a_sixth_of_the_sla_is_normal_and_littles_law_decides(name: str) -> None:
    decision = RULES[name].decide(make_signals(100, 10, 5))
    assert decision.bound_by == "littles-law"
    assert decision.rules["littles-law"] == decision.workers == 1
    assert decision.urgency == "NORMAL"
    assert "by Little's law" in decision.reason


@pytest.mark.parametrize("name", ["backlog-drain", "hybrid"])
def test_example_2_at_80_percent_the_drain_decides_without_a_margin(name: str) -> None:
    decision = RULES[name].decide(make_signals(200, 48, 10))
    assert (decision.workers, decision.bound_by, decision.urgency) == (2, "backlog-drain", "WARNING")
    assert decision.reason.startswith("2: 200 pending / 12 s left / 10 per s = 2 at 80 % of the SLA; ")


@pytest.mark.parametrize("name", ["backlog-drain", "hybrid"])
def test_example_3_is_17_by_the_pages_own_code(name: str) -> None:
    """The article prints 16: it rounds 13 × 1.23 = 16.03 down, although its code rounds up."""
    decision = RULES[name].decide(make_signals(500, 55, 8, workers=5))
    assert (decision.workers, decision.wanted, decision.bound_by) == (17, 17, "backlog-drain")
    assert (decision.rules["littles-law"], decision.rules["backlog-drain"]) == (2, 17)
    assert decision.urgency == "CRITICAL"
    assert decision.time_to_breach == 5
    assert decision.reason == (
        "17: 500 pending / 5 s left / 8 per s = 13, × 1.23 at 92 % of the SLA; "
        "Little's law gives 2, trend nothing; max 20 not reached"
    )


@pytest.mark.parametrize("name", ["backlog-drain", "hybrid", "tiered", "levels", "cascade"])
def test_example_4_late_is_all_that_is_allowed(name: str) -> None:
    decision = RULES[name].decide(make_signals(300, 65, 8))
    assert (decision.workers, decision.bound_by, decision.urgency) == (20, "breach", "BREACH")
    assert decision.reason.startswith("20: 300 pending, the oldest 5 s late: all 20; Little's law gives 1")


def test_the_margin_is_what_the_formula_gives_and_not_the_comments_beside_it() -> None:
    """The comments in the article say 1.4 at 90 % and 1.8 at 95 %."""
    for age, margin in ((40, 1.0), (80, 1.0), (90, 1.2), (95, 1.3)):
        signals = make_signals(1000 * (100 - age), age, 1, sla=100)  # a base of 1000 at any age
        assert apply_drain(signals, Numbers()).workers == round(1000 * margin)


# -- Little's law -----------------------------------------------------------------------------------------------------


def test_littles_law_keeps_pace_and_clears_the_backlog_within_an_sla() -> None:
    signals = history(make_signals(120, 5, 0.5), [120] * 7, arrived=2)
    assert LittlesLaw().decide(signals).workers == 2 / 0.5 + 120 / 60 / 0.5
    assert LittlesLaw(Numbers(arrivals=False)).decide(signals).workers == 120 / 60 / 0.5
    assert "(120 pending / 60 s + 2 arriving per s) / 0.5 per s" in LittlesLaw().decide(signals).reason


def test_a_worker_with_more_slots_counts_for_as_many() -> None:
    signals = history(make_signals(120, 5, 0.5), [120] * 7, arrived=2)
    assert LittlesLaw().decide(replace(signals, limits=replace(signals.limits, slots=4))).workers == 2


@EVERY
def test_an_empty_queue_keeps_the_workers_that_keep_pace(policy: Policy) -> None:
    """The article's answer, min workers, makes a limit cycle: all go, and the backlog grows until all come back."""
    quiet = make_signals(0, 0, 0.5, active=6, workers=8)
    assert policy.decide(quiet).workers == 6, "busy workers stay"
    assert policy.decide(quiet).bound_by == "running"
    assert policy.decide(history(quiet, [0] * 7, arrived=3.5)).workers == 7, "so do workers that will be busy"
    assert policy.decide(history(replace(quiet, fleet=Fleet()), [0] * 7)).workers == 1, (
        "but running tasks start no worker"
    )


def test_the_drain_never_wants_fewer_than_keep_pace() -> None:
    """Ten new tasks a second need ten workers, even if only two tasks wait."""
    decision = BacklogDrain().decide(history(make_signals(2, 50, 1), [2] * 7, arrived=10))
    assert (decision.workers, decision.bound_by) == (11, "littles-law")
    assert decision.rules["backlog-drain"] == 2


@EVERY
def test_an_unknown_service_time_gives_four_fifths_of_max(policy: Policy) -> None:
    decision = policy.decide(replace(make_signals(7, 10, most=11), service=None))
    assert (decision.workers, decision.bound_by) == (9, "unknown-rate")
    assert policy.decide(replace(make_signals(0, 0, most=11), service=None)).workers == 1


@pytest.mark.parametrize("service", [0.0, -1.0, math.inf, math.nan])
def test_a_service_time_of_zero_is_unknown(service: float) -> None:
    """The article's own test for this never matches a float, so a cold queue divides by zero."""
    with pytest.raises(ConfigError, match="service"):
        replace(make_signals(7, 10), service=service)


# -- Trend, hybrid ----------------------------------------------------------------------------------------------------


def test_a_trend_looks_six_intervals_ahead() -> None:
    """From 100 to 500 in 4 intervals of 5 s, not in 5, is 20 a second, or 600 more in 30 s."""
    decision = Trend(Numbers(arrivals=False)).decide(history(make_signals(500, 10, 2), [100, 200, 150, 400, 500]))
    assert (decision.workers, decision.bound_by) == (ceiling((500 + 600) / 60 / 2), "trend")
    assert decision.rules["littles-law"] == ceiling(500 / 60 / 2)
    assert decision.reason == (
        "10: ((500 + 600 foreseen) / 60 s) / 2 per s by the trend; "
        "Little's law gives 5, backlog drain 5; max 20 not reached"
    )


@pytest.mark.parametrize("pending", [[500, 100, 400], [500] * 5, [900, 800, 700, 600, 500], [400, 450, 490, 500]])
def test_without_five_samples_that_rise_there_is_no_trend(pending: list[int]) -> None:
    decision = Trend().decide(history(make_signals(500, 10, 2), pending))
    assert (decision.bound_by, "trend" in decision.rules) == ("littles-law", False)


def test_hybrid_drains_before_it_follows_a_trend_before_littles_law() -> None:
    hybrid, rising = RULES["hybrid"], [100, 200, 300, 400, 500]
    assert hybrid.decide(history(make_signals(500, 48, 2), rising)).bound_by == "max"
    assert hybrid.decide(history(make_signals(500, 48, 8), rising)).bound_by == "backlog-drain"
    assert hybrid.decide(history(make_signals(500, 47, 8), rising)).bound_by == "trend"
    assert hybrid.decide(history(make_signals(500, 47, 8), rising[::-1])).bound_by == "littles-law"


# -- Tiers, cascade, levels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "workers", "by"),
    [(79, 4, "littles-law"), (80, 12, "tiered"), (90, 13, "tiered"), (95, 15, "tiered"), (100, 20, "breach")],
)
def test_tiers_go_up_in_steps(age: float, workers: int, by: str) -> None:
    pending = round(10 * (100 - age)) or 10  # a base of 10
    decision = Tiered().decide(make_signals(400 if age < 80 else pending, age, 1, sla=100))
    assert (decision.workers, decision.bound_by) == (workers, by)


def test_a_foreseen_breach_brings_half_as_many_again() -> None:
    """The queue grows from 10 to 50 tasks in 20 s, and the oldest has 100 s left. The article foresees nothing while a
    queue grows."""
    signals = make_signals(50, 100, 0.1, sla=200)
    growing = history(signals, [10, 20, 30, 40, 50])
    decision = Cascade().decide(growing)
    assert (decision.predicted_breach, decision.workers, decision.bound_by) == (100, ceiling(5 * 1.5), "cascade")
    assert "= 5, × 1.5 because a breach is foreseen in 100 s" in decision.reason
    assert Cascade(soon=99).decide(growing).bound_by == "littles-law"
    assert Cascade().decide(history(signals, [90, 80, 70, 60, 50])).bound_by == "littles-law", (
        "the queue is empty in 25 s"
    )


@pytest.mark.parametrize(
    ("age", "workers", "by"),
    [
        (59, 10, "littles-law"),
        (60, 12, "elevated"),
        (80, 5, "backlog-drain"),
        (90, 15, "critical"),
        (100, 20, "breach"),
    ],
)
def test_each_urgency_has_its_answer(age: float, workers: int, by: str) -> None:
    decision = Levels().decide(make_signals(1000 if age < 80 else 100, age, 1, sla=100))
    assert (decision.workers, decision.bound_by) == (workers, by)


# -- Memory -----------------------------------------------------------------------------------------------------------


def later(signals: Signals, seconds: float, oldest: float | None = None) -> Signals:
    last = signals.samples[-1]
    sample = replace(last, at=last.at + seconds, oldest_age=last.oldest_age if oldest is None else oldest)
    return replace(signals, now=signals.now + seconds, samples=(*signals.samples, sample)[-5:])


def test_each_high_look_in_a_row_brings_a_tenth_more_up_to_twice_as_many() -> None:
    signals, memory, wanted = make_signals(100, 50, 1, most=100), None, []
    for _ in range(13):
        decision = Escalating().decide(signals, memory)
        memory = json.loads(json.dumps(decision.memory))
        wanted.append(decision.wanted)
        signals = later(signals, 5)
    base = BacklogDrain().decide(signals).wanted
    assert wanted == [ceiling(base * min(2, 1.1 + n / 10)) for n in range(13)]
    assert decision.bound_by == "escalating"
    assert (
        f"{base} × 2 after 13 samples in a row at 80 % of the SLA (backlog-drain decided {base}: 100" in decision.reason
    )


def test_a_low_look_ends_an_escalation_and_the_same_look_twice_is_one() -> None:
    signals, policy = make_signals(100, 50, 1, most=100), Escalating()
    first = policy.decide(signals)
    assert policy.decide(signals, first.memory).memory == first.memory
    low = policy.decide(later(signals, 5, oldest=10), first.memory)
    assert (low.memory["looks"], low.bound_by) == (0, "littles-law")
    assert policy.decide(later(signals, 10), low.memory).memory["looks"] == 1


def test_an_escalation_is_no_need_that_max_leaves_short() -> None:
    decision = Escalating().decide(make_signals(300, 65, 8))
    assert (decision.wanted, decision.bound_by, decision.capacity_short) == (20, "breach", 0)


def test_after_a_breach_four_fifths_of_max_stay_for_a_while() -> None:
    signals, policy = make_signals(30, 65, 8), Recovering(LittlesLaw(), seconds=60)
    late = policy.decide(signals)
    assert (late.workers, late.bound_by) == (16, "recovering")
    memory = json.loads(json.dumps(late.memory))
    after = policy.decide(later(signals, 59, oldest=1), memory)
    assert (after.workers, after.bound_by) == (16, "recovering")
    assert after.reason.startswith("16: 0.8 of max 20 for 60 s after a breach, 59 s ago (littles-law decided 1: ")
    assert policy.decide(later(signals, 60, oldest=1), after.memory).workers == 1
    assert policy.decide(later(signals, 59, oldest=1)).workers == 1, "the policy object remembers nothing"


def test_policies_around_policies_remember_both() -> None:
    signals, policy = make_signals(100, 61, 1), Escalating(Recovering(LittlesLaw()))
    decision = policy.decide(signals, policy.decide(signals).memory)
    assert decision.memory == {"looks": 1, "at": 1000.0, "policy": {"breached": 1000.0, "policy": None}}
    assert (decision.workers, decision.bound_by) == (ceiling(16 * 1.1), "escalating")


@EVERY
@pytest.mark.parametrize("memory", [{}, [], "x", {"looks": "x", "at": None, "breached": True, "policy": 1}])
def test_the_memory_of_another_policy_does_no_harm(policy: Policy, memory: Any) -> None:
    signals = make_signals(100, 50, 1)
    assert policy.decide(signals, memory) == policy.decide(signals)


@EVERY
def test_a_policy_is_a_value(policy: Policy) -> None:
    assert RULES[policy.name] is policy
    assert type(policy)() == policy
    with pytest.raises((FrozenInstanceError, TypeError)):  # TypeError: for an unknown field, with slots
        policy.numbers = None  # type: ignore[attr-defined]


# -- Any signals ------------------------------------------------------------------------------------------------------

SECONDS = st.sampled_from([0.0, 1e-9, 0.5, 5.0, 48.0, 60.0, 3600.0, 3.1e8]) | st.floats(0, 120) | st.floats(0, 3.1e8)
COUNTS = st.integers(0, 3) | st.integers(0, 1000) | st.integers(0, 2**62)
SERVICE = st.none() | st.sampled_from([1e-9, 1e-3, 0.1, 2.0, 3.1e8]) | st.floats(1e-9, 3.1e8) | st.floats(0.01, 100)
STEPS = st.sampled_from([0.0, 5e-324, 1e-6, 1.0, 5.0, 5.0, 5.0, 1e6])
DEEP = settings(max_examples=50, deadline=None)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    least, most = sorted(draw(st.tuples(st.integers(0, 30), st.integers(1, 30) | st.integers(1, 100_000))))
    return Limits(
        sla=draw(st.sampled_from([0.001, 1.0, 30.0, 60.0, 86_400.0]) | st.floats(0.001, 3.1e8)),
        min_workers=least,
        max_workers=max(1, most),
        slots=draw(st.sampled_from([1, 4, 100_000])),
        interval=draw(st.sampled_from([0.001, 1.0, 5.0, 3600.0])),
    )


@st.composite
def any_signals(draw: st.DrawFn) -> Signals:
    at, samples = draw(st.sampled_from([0.0, 1.7e9])), []
    for _ in range(draw(st.integers(0, 7))):
        at += draw(STEPS)
        samples.append(
            Sample(
                at=at,
                pending=draw(COUNTS),
                active=draw(COUNTS),
                oldest_age=draw(SECONDS),
                arrived=draw(COUNTS),
                finished=draw(COUNTS),
            )
        )
    fleet = Fleet(draw(st.integers(0, 40)), tuple(sorted(draw(st.lists(st.floats(0, 60), max_size=3)))))
    now = at + draw(st.sampled_from([0.0, 0.0, 0.0, 1.0, 1e6]))
    return Signals(now, draw(limits()), tuple(samples), fleet, service=draw(SERVICE))


@EVERY
@DEEP
@given(signals=any_signals())
def test_every_decision_is_one_that_can_be_carried_out(policy: Policy, signals: Signals) -> None:
    decision, allowed = policy.decide(signals), signals.limits
    assert type(decision.workers) is type(decision.wanted) is int
    assert allowed.min_workers <= decision.workers <= allowed.max_workers
    assert 0 <= decision.wanted < 2**31
    assert all(math.isfinite(said) and said >= 0 for said in decision.rules.values())
    assert decision.workers > 0 or not (signals.pending or signals.active)
    if signals.stale:
        assert decision.workers >= min(signals.fleet.workers, allowed.max_workers)
    assert decision.bound_by in {*decision.rules, "min", "max", "not to zero", "stale"}
    if decision.bound_by in decision.rules:
        assert decision.rules[decision.bound_by] == decision.workers


@EVERY
@DEEP
@given(signals=any_signals())
def test_every_reason_is_one_line_of_numbers(policy: Policy, signals: Signals) -> None:
    decision = policy.decide(signals)
    assert decision.reason.startswith(f"{decision.workers}: ")
    assert len(decision.reason.splitlines()) == 1
    assert not re.search(r"inf|nan", decision.reason, re.IGNORECASE)
    assert not [sign for sign in decision.reason if sign.isnumeric() and not sign.isascii()]


@EVERY
@DEEP
@given(signals=any_signals(), again=any_signals())
def test_the_same_signals_and_memory_make_the_same_decision(policy: Policy, signals: Signals, again: Signals) -> None:
    memory = policy.decide(signals).memory
    stored = json.dumps(memory, allow_nan=False)
    one, other = policy.decide(again, memory), policy.decide(again, json.loads(stored))
    assert one == other
    assert one.memory == other.memory
    assert json.dumps(memory) == stored, "the given memory is not changed"


def more_pending(signals: Signals, by: int) -> Signals:
    last = signals.samples[-1]
    return replace(signals, samples=(*signals.samples[:-1], replace(last, pending=min(2**62, last.pending + by))))


def older(signals: Signals, by: int) -> Signals:
    last = signals.samples[-1]
    return replace(signals, samples=(*signals.samples[:-1], replace(last, oldest_age=last.oldest_age + by / 100)))


def hurried(signals: Signals, by: int) -> Signals:
    return replace(signals, limits=replace(signals.limits, sla=max(0.001, signals.limits.sla / (1 + by / 100))))


def slower(signals: Signals, by: int) -> Signals:
    return replace(signals, service=None if signals.service is None else min(3.1e8, signals.service * (1 + by / 100)))


@st.composite
def usual_signals(draw: st.DrawFn) -> Signals:
    """Signals of a queue to which no limits and guards apply, so that the rules decide."""
    limit = Limits(draw(st.sampled_from([60.0, 100.0, 200.0])), min_workers=0, max_workers=100_000)
    age = limit.sla * draw(st.floats(0, 0.9) | st.floats(0.75, 0.9) | st.floats(0.85, 1.1))
    arrived, samples = 0, []
    for look in range(draw(st.integers(1, 7))):
        arrived += draw(st.integers(0, 100))
        samples.append(Sample(5.0 * look, draw(st.integers(1, 2000)), oldest_age=age, arrived=arrived))
    return Signals(samples[-1].at, limit, tuple(samples), service=draw(st.floats(0.01, 10)))


@EVERY
@DEEP
@given(signals=usual_signals() | any_signals(), by=st.integers(1, 50) | st.integers(1, 10_000))
@pytest.mark.parametrize("change", [more_pending, older, hurried, slower])
def test_within_a_rule_more_need_never_wants_fewer(policy: Policy, change: Any, signals: Signals, by: int) -> None:
    """This holds only while the same rule decides: where another rule takes over, the article jumps up or down."""
    if not signals.pending:
        return
    before, after = policy.decide(signals), policy.decide(change(signals, by))
    if before.bound_by == after.bound_by and before.bound_by in before.rules:
        assert after.wanted >= before.wanted, f"{before.reason}\n{after.reason}"
