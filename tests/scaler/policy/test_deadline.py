"""The default policy: its decisions are always possible, more need never means fewer workers, and it does what its page
says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scaler.policy import policies
from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.decision import Decision, Memory
from penstock.scaler.policy.outlook import STEPS
from penstock.scaler.policy.signals import SAMPLES, Fleet, Limits, Sample, Signals

POLICY = Deadline()
LIMITS = Limits(sla=28.0, min_workers=0, max_workers=1000, interval=5.0, start_latency=15.0)  # 48 s, in as many steps


def decide(signals: Signals, memory: Memory = None) -> Decision:
    return POLICY.decide(signals, memory)


def make_signals(pending: int = 0, oldest: float = 0.0, workers: int = 0, **rest: Any) -> Signals:
    """Signals of one look at a queue whose tasks take a second each."""
    sample = Sample(1000.0, pending, rest.pop("active", 0), oldest, workers=workers, finished=1)
    limits = replace(LIMITS, **rest.pop("limits", {}))
    return replace(Signals(1000.0, limits, (sample,), Fleet(workers), service=1.0, dispersion=0.0), **rest)


def stream(rate: float, *, until: float = 1000.0, every: float = 5.0, announced: float = 0.0) -> tuple[Sample, ...]:
    """Samples of a queue with `rate` arrivals a second, for as long as looks are kept."""
    ats = [until - every * n for n in range(SAMPLES)][::-1]
    return tuple(
        Sample(at, 0, arrived=round((rate + announced) * at), announced=round(announced * at), finished=1) for at in ats
    )


def later(signals: Signals, seconds: float, workers: int) -> Signals:
    """The same signals some seconds later, with the fleet that was decided on."""
    now = signals.now + seconds
    samples = tuple(replace(one, at=one.at + seconds) for one in signals.samples)
    return replace(signals, now=now, samples=samples, fleet=Fleet(workers))


# -- Any signals -------------------------------------------------------------------------------------------------------

SPANS = st.sampled_from([0.001, 1.0, 5.0, 30.0, 3600.0, 3.1e8]) | st.floats(0.001, 120)
SECONDS = st.just(0.0) | SPANS
COUNTS = st.integers(0, 3) | st.integers(0, 1000) | st.integers(0, 2**62)
SERVICE = st.none() | st.sampled_from([1e-9, 1e-3, 0.1, 2.0, 1e8]) | st.floats(1e-9, 1e8) | st.floats(0.01, 100)
GAPS = st.sampled_from([0.0, 5e-324, 1e-6, 1.0, 5.0, 5.0, 5.0, 1e6])
DEEP = settings(max_examples=100, deadline=None)


@st.composite
def any_limits(draw: st.DrawFn) -> Limits:
    least, most = sorted(draw(st.tuples(st.integers(0, 30), st.integers(1, 30) | st.just(100_000))))
    return Limits(
        sla=draw(SPANS),
        min_workers=least,
        max_workers=max(1, most),
        slots=draw(st.sampled_from([1, 1, 4, 100_000])),
        interval=draw(SPANS),
        start_latency=draw(SECONDS),
    )


@st.composite
def any_signals(draw: st.DrawFn) -> Signals:
    at, samples, growing = draw(st.sampled_from([0.0, 1.7e9])), [], draw(st.booleans())
    arrived = finished = 0
    for _ in range(draw(st.sampled_from([0, 1, 2, 4, 10]))):
        at += draw(GAPS)
        arrived, finished = draw(COUNTS) + growing * arrived, draw(COUNTS) + growing * finished
        samples.append(
            Sample(
                at,
                draw(COUNTS),
                draw(COUNTS),
                draw(SECONDS),
                arrived=min(2**62, arrived),
                finished=min(2**62, finished),
                workers=draw(st.integers(0, 40)),
                announced=draw(st.just(0) | COUNTS),
            )
        )
    waiting = sorted(draw(st.lists(st.tuples(SECONDS, st.integers(1, 2**40)), max_size=4)), reverse=True)
    return Signals(
        now=at + draw(st.sampled_from([0.0, 0.0, 0.0, 1.0, 60.0, 1e6])),
        limits=draw(any_limits()),
        samples=tuple(samples),
        fleet=Fleet(draw(st.integers(0, 40)), tuple(sorted(draw(st.lists(st.floats(0, 60), max_size=3))))),
        waiting=tuple(waiting),
        running=tuple(draw(st.lists(SECONDS, max_size=4))),
        planned=tuple(sorted(draw(st.lists(st.tuples(SECONDS, st.integers(1, 2**40)), max_size=3)))),
        service=draw(SERVICE),
        dispersion=draw(st.sampled_from([0.0, 1.0, 50.0, 1e6])),
        start_latency=draw(st.none() | SECONDS),
    )


@DEEP
@given(st.lists(any_signals(), min_size=1, max_size=3))
def test_every_decision_is_one_that_can_be_carried_out(moments: list[Signals]) -> None:
    memory = None
    for signals in moments:
        decision, allowed = decide(signals, memory), signals.limits
        memory = decision.memory
        assert type(decision.workers) is type(decision.wanted) is int
        assert allowed.min_workers <= decision.workers <= allowed.max_workers
        assert 0 <= decision.wanted < 2**31
        assert all(math.isfinite(said) and said >= 0 for said in decision.rules.values())
        assert decision.workers > 0 or not (signals.pending or signals.active)
        assert decision.bound_by in {*decision.rules, "no gain", "min", "max", "not to zero", "stale"}
        if signals.stale:
            assert decision.workers >= min(signals.fleet.workers, allowed.max_workers)
        assert decision.reason.startswith(f"{decision.workers}: ")
        assert len(decision.reason.splitlines()) == 1
        assert not re.search(r"\b(inf|nan)", decision.reason, re.IGNORECASE)


@DEEP
@given(st.lists(any_signals(), min_size=2, max_size=3))
def test_the_same_signals_and_memory_make_the_same_decision(moments: list[Signals]) -> None:
    """The memory is stored as JSON between decisions."""
    memory = None
    for signals in moments:
        stored = json.dumps(memory, allow_nan=False)
        one, again, other = decide(signals, memory), decide(signals, memory), decide(signals, json.loads(stored))
        assert one == again == other
        assert one.memory == again.memory == other.memory
        assert json.dumps(memory) == stored, "the given memory is not changed"
        memory = one.memory


def test_ten_years_of_running_are_no_error() -> None:
    """Ten thousand tasks have run for ten days each, and none has ever finished."""
    assert decide(make_signals(5, active=10_000, workers=99, running=(864_000.0,) * 10_000, service=None)).workers >= 99


def test_a_hundred_thousand_workers_are_decided_on_as_fast_as_ten() -> None:
    limits = {"max_workers": 100_000, "slots": 100_000}
    assert (
        decide(make_signals(2**62, 5.0, limits=limits, samples=(*stream(1e9), Sample(1000.0, 2**62)))).workers
        == 100_000
    )


# -- More need never means fewer workers -------------------------------------------------------------------------------


@st.composite
def usual(draw: st.DrawFn) -> Signals:
    """Signals of a queue all of whose tasks can still start in time."""
    limits = Limits(
        sla=1.0,
        min_workers=0,
        max_workers=100_000,
        slots=draw(st.sampled_from([1, 1, 4])),
        interval=draw(st.sampled_from([1.0, 5.0, 15.0])),
        start_latency=draw(st.sampled_from([0.0, 1.0, 5.0, 20.0, 60.0])),
    )
    oldest = draw(st.just(0.0) | st.floats(0, 60))
    spare = draw(st.floats(0.1, 60) | st.floats(0.1, 600))
    limits = replace(limits, sla=1.1 * (oldest + limits.start_latency + limits.interval) + spare)
    ages = [oldest, *sorted(draw(st.lists(st.floats(0, oldest), max_size=3)), reverse=True)]
    waiting = tuple((age, draw(st.integers(1, 300))) for age in ages)
    counts = st.integers(0, 5) | st.integers(0, 100)
    arrived, samples = 0, []
    for look in range(draw(st.sampled_from([1, 3, 12, 40]))):
        arrived += draw(counts)
        samples.append(Sample(limits.interval * look, 0, arrived=arrived))
    last = replace(
        samples[-1],
        pending=sum(count for _, count in waiting),
        oldest_age=oldest,
        active=draw(st.integers(0, 40)),
    )
    starting = draw(st.lists(st.floats(0, limits.start_latency), max_size=3))
    return Signals(
        now=last.at,
        limits=limits,
        samples=(*samples[:-1], last),
        fleet=Fleet(draw(st.integers(0, 40)), tuple(sorted(starting))),
        waiting=waiting if draw(st.booleans()) else (),
        planned=tuple(sorted(draw(st.lists(st.tuples(st.floats(0, 120), st.integers(1, 300)), max_size=3)))),
        service=draw(st.floats(0.05, 30) | st.floats(0.05, 600)),
        dispersion=draw(st.sampled_from([0.0, 1.0, 4.0])),
    )


def can_be_saved(signals: Signals) -> bool:
    limits = signals.limits
    step = (signals.latency + limits.interval + limits.sla) / STEPS
    return signals.oldest_age + signals.latency + 2 * step < limits.sla


def last_look(signals: Signals, **changed: Any) -> Signals:
    return replace(signals, samples=(*signals.samples[:-1], replace(signals.samples[-1], **changed)))


def more_waiting(signals: Signals, by: float, place: int) -> Signals:
    """Adds waiting tasks of any age."""
    more, waiting = math.ceil(by * 100), list(signals.waiting)
    if waiting:
        age, count = waiting[place % len(waiting)]
        waiting[place % len(waiting)] = (age, count + more)
    return last_look(replace(signals, waiting=tuple(waiting)), pending=signals.pending + more)


def one_more_new(signals: Signals, by: float, place: int) -> Signals:
    more = math.ceil(by * 100)
    waiting = (*signals.waiting, (0.0, more)) if signals.waiting else ()
    return last_look(replace(signals, waiting=waiting), pending=signals.pending + more)


def older(signals: Signals, by: float, place: int) -> Signals:
    """Makes all waiting tasks older, or the oldest ones."""
    waiting = signals.waiting
    if waiting and place % 2:
        waiting = ((waiting[0][0] + by, waiting[0][1]), *waiting[1:])
    else:
        waiting = tuple((age + by, count) for age, count in waiting)
    return last_look(replace(signals, waiting=waiting), oldest_age=signals.samples[-1].oldest_age + by)


def hurried(signals: Signals, by: float, place: int) -> Signals:
    return replace(signals, limits=replace(signals.limits, sla=signals.limits.sla / (1 + by / 10)))


def slower(signals: Signals, by: float, place: int) -> Signals:
    return replace(signals, service=(signals.service or 1.0) * (1 + by / 10))


def more_planned(signals: Signals, by: float, place: int) -> Signals:
    return replace(signals, planned=tuple(sorted([*signals.planned, (10.0 * place, math.ceil(by * 100))])))


OLD_AND_YOUNG = make_signals(100, 30.0, service=1.0, dispersion=1.0, limits={"sla": 43.0, "start_latency": 0.0})
SLOW_AND_MANY = make_signals(samples=stream(0.0)[:-4] + stream(10.0)[-4:], service=590.0, limits={"sla": 600.0})


@settings(max_examples=120, deadline=None)
@given(usual(), st.floats(0.001, 0.1) | st.floats(0.01, 30), st.integers(0, 3))
@example(replace(OLD_AND_YOUNG, waiting=((30.0, 100),)), 1.0, 0)
@example(SLOW_AND_MANY, 5.0, 0)
@pytest.mark.parametrize("change", [more_waiting, one_more_new, older, hurried, slower, more_planned])
def test_while_all_can_be_saved_more_need_never_wants_fewer(
    change: Callable[[Signals, float, int], Signals], signals: Signals, by: float, place: int
) -> None:
    changed = change(signals, by, place)
    assume(can_be_saved(signals) and can_be_saved(changed))
    before, after = decide(signals), decide(changed)
    assert after.wanted >= before.wanted, f"{before.reason}\n{after.reason}"


# -- The calendar is known ---------------------------------------------------------------------------------------------


def test_workers_for_a_known_batch_are_asked_for_before_it_is_due() -> None:
    def wanted(seconds: float) -> int:
        return decide(make_signals(planned=((seconds, 290),))).wanted

    assert wanted(21.0) == 0, "the next decision is early enough"
    assert wanted(20.0) == wanted(15.0) == 10, "each starts 1 + 28 tasks"
    assert wanted(14.0) > 10, "too late to be ready for it"
    assert "0 expected and 290 planned until new workers are up" in decide(make_signals(planned=((20.0, 290),))).reason


def test_what_was_announced_is_not_forecast_again() -> None:
    planned, plain = (
        decide(make_signals(samples=stream(2.0, announced=50.0))),
        decide(make_signals(samples=stream(2.0))),
    )
    assert (planned.wanted, planned.rules) == (plain.wanted, plain.rules)
    assert decide(make_signals(samples=stream(52.0))).wanted > 5 * planned.wanted


# -- Down only after a while -------------------------------------------------------------------------------------------


def seconds_until_down(fewer: Signals, fleet: int) -> tuple[float, int]:
    """After a hundred were needed, returns when the first worker is dismissed and how many then remain."""
    busy = replace(make_signals(2800, workers=fleet), limits=fewer.limits)
    assert decide(busy).workers == fleet
    memory = json.loads(json.dumps(decide(busy).memory))
    for tick in range(1, 100):
        decision = decide(later(fewer, 5.0 * tick, fleet), memory)
        memory = decision.memory
        if decision.workers < fleet:
            return 5.0 * tick, decision.workers
        assert decision.workers == fleet
        assert decision.bound_by == "hold"
        assert f"{fleet} stay until fewer have been enough for longer" in decision.reason
    raise AssertionError("never")


@pytest.mark.parametrize(("needed", "seconds"), [(0, 35.0), (50, 55.0), (75, 95.0), (90, 215.0), (99, 300.0)])
def test_the_more_it_saves_the_sooner_it_goes_down(needed: int, seconds: float) -> None:
    """It waits 15 s for a start and 20 s × fleet / workers saved, and never longer than five minutes."""
    assert seconds_until_down(make_signals(28 * needed, workers=100), 100) == (seconds, needed)


def test_up_it_goes_at_once() -> None:
    memory = decide(make_signals(280, workers=10)).memory
    assert decide(later(make_signals(2800, workers=10), 5.0, 10), memory).workers == 190, (
        "new workers start 1 + 13 tasks each"
    )


def test_needed_again_is_needed_from_then_on() -> None:
    quiet, busy = make_signals(0, workers=10), make_signals(280, workers=10)
    memory = decide(busy).memory
    for tick in range(1, 40):
        decision = decide(later(busy if tick % 6 == 0 else quiet, 5.0 * tick, 10), memory)
        memory = decision.memory
        assert decision.workers == 10


# -- Late tasks -------------------------------------------------------------------------------------------------------


def test_late_tasks_do_not_bring_the_whole_fleet() -> None:
    """480 tasks get half a promise as soon as new workers are up, which start 1 + 15 tasks each."""
    late = decide(make_signals(480, 100.0))
    assert (late.urgency, late.bound_by, late.wanted) == ("BREACH", "deadlines", 30)


def test_a_need_above_the_maximum_is_reported() -> None:
    decision = decide(make_signals(5000, 100.0, limits={"max_workers": 20}))
    assert (decision.workers, decision.bound_by) == (20, "max")
    assert decision.capacity_short == decision.wanted - 20 > 200
    assert decision.reason.endswith(f"; max 20 of {decision.wanted} wanted")


# -- An unknown service time -------------------------------------------------------------------------------------------


def unknown(workers: int, running: int = 0, **rest: Any) -> Signals:
    return make_signals(500, 1.0, workers, service=None, active=workers, running=(5.0,) * running, **rest)


def test_the_first_worker_is_there_before_anything_has_finished() -> None:
    assert decide(unknown(0)).workers == 1
    assert decide(make_signals(0, service=None)).workers == 0, "without tasks no worker is needed"
    assert decide(make_signals(1, service=None)).bound_by == "unknown"


def test_until_something_has_finished_at_most_twice_as_many_at_a_time() -> None:
    memory, workers, found = None, 0, []
    for tick in range(8):
        decision = decide(later(unknown(workers, workers), 5.0 * tick, workers), memory)
        memory, workers = json.loads(json.dumps(decision.memory)), decision.workers
        found.append(workers)
    assert found == [1, 2, 4, 8, 16, 32, 64, 128]


def test_and_not_again_before_a_quarter_of_a_start_is_over() -> None:
    memory, workers, found = None, 3, []
    for tick in range(11):
        decision = decide(later(unknown(workers, workers), 1.0 * tick, workers), memory)
        memory, workers = decision.memory, decision.workers
        found.append(workers)
    assert found == [6] * 4 + [12] * 4 + [24] * 3


def test_short_tasks_need_no_more_than_they_seem_to() -> None:
    """Of 500 tasks the first has run for 0.1 s: a worker starts six a second."""
    assert decide(make_signals(5, 1.0, 4, service=None, active=1, running=(0.1,))).workers == 4
    assert decide(make_signals(5, 1.0, 4, service=None, active=4, running=(60.0,) * 4)).workers == 8


@settings(max_examples=100, deadline=None)
@given(any_signals())
def test_while_unknown_never_more_than_twice(signals: Signals) -> None:
    assert decide(replace(signals, service=None)).wanted <= max(1, 2 * signals.fleet.workers)


# -- Floors ------------------------------------------------------------------------------------------------------------


def test_a_steady_stream_has_a_floor() -> None:
    decision = decide(make_signals(samples=stream(10.0), dispersion=1.0, limits={"sla": 2.0, "start_latency": 0.5}))
    assert decision.rules["steady"] >= 12, "ten workers are busy on average"
    assert decide(make_signals(samples=stream(10.0), limits={"slots": 4})).rules["steady"] in {3, 4}


def after_a_burst(**limits: float) -> Decision:
    """A decision twenty minutes after a burst of forty tasks a second for five minutes."""
    burst = decide(make_signals(samples=stream(40.0), limits=limits))
    quiet = replace(make_signals(samples=stream(0.0, until=2200.0), limits=limits), now=2200.0)
    return decide(quiet, json.loads(json.dumps(burst.memory)))


def test_where_workers_start_more_slowly_than_tasks_may_wait_some_stay_warm() -> None:
    warm = after_a_burst(sla=10.0)
    assert warm.bound_by == "warm"
    assert 40 * 20 / 30 <= warm.workers <= 45 * 20 / 30
    assert "for bursts as before" in warm.reason
    assert after_a_burst(sla=20.0).bound_by == "warm"


def test_elsewhere_no_worker_stays_warm() -> None:
    cold = after_a_burst(sla=20.1)
    assert (cold.workers, cold.rules["warm"], cold.memory["peaks"]) == (0, 0, [])


def test_after_an_hour_no_worker_stays_warm() -> None:
    memory = decide(make_signals(samples=stream(40.0), limits={"sla": 10.0})).memory
    for now, warm in ((4499.0, True), (4500.0, False)):  # the burst was in the five minutes that began at 900
        signals = replace(make_signals(limits={"sla": 10.0}), now=now, samples=stream(0.0, until=now))
        assert (decide(signals, memory).rules["warm"] > 0) == warm


# -- Guards and sentences ----------------------------------------------------------------------------------------------


def test_old_metrics_are_no_reason_to_go_down_but_may_be_one_to_go_up() -> None:
    old = replace(make_signals(0, workers=8), now=1016.0)
    assert (decide(old).workers, decide(old).bound_by) == (8, "stale")
    assert decide(replace(old, samples=())).workers == 8
    assert decide(replace(make_signals(500, 5.0, workers=8), now=1016.0)).workers > 8


def test_the_sentence_of_a_decision() -> None:
    samples = (*stream(3.0)[:-1], Sample(1000.0, 500, 5, 12.4, arrived=3000))
    assert decide(make_signals(workers=5, samples=samples)).reason == (
        "34: 500 waiting, the oldest for 12 of 28 s; 60 expected until new workers are up; the present 5 can start "
        "80 of the 100 that are due in 16 s; 34 keep every deadline"
    )


def test_it_is_the_default() -> None:
    assert policies.find(policies.DEFAULT) == POLICY
    assert POLICY.name == policies.DEFAULT == next(iter(policies.POLICIES))
    assert all(name == policy.name for name, policy in policies.POLICIES.items())
    with pytest.raises(ConfigError, match=r"^policy: 'dedline' is not known") as refused:
        policies.find("dedline")
    assert (refused.value.hint or "").startswith("Did you mean deadline? There are deadline, ")
