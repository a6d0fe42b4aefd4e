"""Policies of other tools: numbers worked out by hand, their own timing, and what holds for every policy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scaler.policy.decision import Decision, Memory, Policy
from penstock.scaler.policy.other_tools import (
    OTHER_TOOLS,
    AwsBacklog,
    Cboxdk,
    Flink,
    HpaBusy,
    HpaRules,
    Judoscale,
    Keda,
    LaravelHorizon,
    SeedText,
    Static,
    grid,
)
from penstock.scaler.policy.signals import LONGEST, Fleet, Limits, Sample, Signals

NAMES = [
    "seed-text",
    "cboxdk",
    "keda-pending",
    "keda-pending-running",
    "keda-slots",
    "hpa-busy",
    "aws-backlog",
    "horizon",
    "judoscale",
    "flink",
    "static",
]
EVERY = [policy for name in NAMES for policy in grid(name)]


class Look(NamedTuple):
    """The state of a queue at one moment."""

    pending: int = 0
    age: float = 0.0
    active: int = 0
    arrived: int = 0
    finished: int = 0
    busy_seconds: float = 0.0


def make_samples(looks: Sequence[Look], every: float = 5.0, first: float = 0.0) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            first + nth * every,
            look.pending,
            active=look.active,
            oldest_age=look.age,
            arrived=look.arrived,
            finished=look.finished,
            busy_seconds=look.busy_seconds,
        )
        for nth, look in enumerate(looks)
    )


def limits(**named: Any) -> Limits:
    return Limits(**{"sla": 30.0, "min_workers": 1, "max_workers": 1000, **named})


def signals(
    *looks: Look,
    workers: int = 1,
    ready: int | None = None,
    service: float | None = 2.0,
    every: float = 5.0,
    **named: Any,
) -> Signals:
    """Signals with a promise of 30 s and tasks of 2 s by default, so a slot does 15 tasks within the promise."""
    samples, ready = make_samples(looks, every), workers if ready is None else ready
    fleet = Fleet(ready, tuple([9.0] * (workers - ready)))
    latency = named.pop("start_latency", None)
    return Signals(samples[-1].at, limits(**named), samples, fleet, service=service, start_latency=latency)


def follow(
    policy: Policy,
    looks: Iterable[Look],
    *,
    workers: int = 1,
    every: float = 5.0,
    service: float = 2.0,
    before: Sequence[Look] = (),
    **named: Any,
) -> list[int]:
    """Returns the decisions look after look, with a fleet that follows at once. The memory goes through JSON."""
    memory: Memory = None
    past, said = list(before), []
    for look in looks:
        past.append(look)
        samples = make_samples(past, every, -every * len(before))
        now = samples[-1].at
        decision = policy.decide(
            Signals(now, limits(interval=every, **named), samples[-61:], Fleet(workers), service=service), memory
        )
        memory, workers = json.loads(json.dumps(decision.memory)), decision.workers
        said.append(workers)
    return said


def at_once(policy: Policy, *looks: Look, **named: Any) -> Decision:
    """Returns the decision after these looks, with a fleet that never changed."""
    memory: Memory = None
    for count in range(1, len(looks) + 1):
        decision = policy.decide(signals(*looks[:count], **named), memory)
        memory = decision.memory
    return decision


# -- The article -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looks", "named", "rule", "workers"),
    [
        ([Look(0, 0)], {}, "empty", 1),
        ([Look(100, 9)], {}, "little", 7),  # 100 / 30 × 2 = 6.7
        ([Look(200, 48)], {"sla": 60, "service": 0.1}, "drain", 2),  # 200 / 12 × 0.1 = 1.7 → 2, × 1.0
        ([Look(500, 55)], {"sla": 60, "service": 0.125}, "drain", 17),  # 500 / 5 / 8 = 12.5 → 13, × 1.233 = 16.03
        ([Look(300, 65)], {"sla": 60, "max_workers": 20}, "breach", 20),
        ([Look(1, 60)], {"sla": 60, "max_workers": 20}, "breach", 20),
        ([Look(n, 9) for n in (20, 40, 60, 80, 100)], {}, "trend", 15),  # (100 + 20 × 6) / 30 × 2 = 14.7
        ([Look(n, 9) for n in (40, 60, 80, 100)], {}, "little", 7),  # four samples are not five
        ([Look(n, 9) for n in (100, 900, 900, 900, 100)], {}, "little", 7),
        ([Look(100, 9)], {"service": None}, "little", 4),  # a second each: 100 / 30 = 3.3
        ([Look(100, 9)], {"slots": 4}, "little", 2),  # 100 / 30 × 2 / 4 = 1.7
    ],
)
def test_seed_text(looks: list[Look], named: dict[str, Any], rule: str, workers: int) -> None:
    decision = SeedText().decide(signals(*looks, **named))
    assert (list(decision.rules), decision.workers) == ([rule], workers)


def test_seed_text_has_no_damping() -> None:
    assert follow(SeedText(), [Look(300, 1), Look(0), Look(300, 1), Look(9, 31), Look(0)]) == [20, 1, 20, 1000, 1]


# -- cboxdk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "named", "workers"),
    [
        (0, {}, 4),  # unknown: 60 / (30 / 2); the promise is 32 - 2
        (0.9, {}, 4),
        (14, {}, 1),  # pressure 0.47: nothing yet
        (15, {}, 8),  # 60 / (15 / 2) × 1
        (24, {}, 35),  # 60 / (6 / 2) × (1 + 8 × 0.3²) = 20 × 1.72
        (29, {}, 165),  # 60 / max(1 / 2, 1) × (1 + 8 × (14 / 30)²) = 60 × 2.742 = 164.5
        (33, {}, 117),  # late: 60 / 2 × (1 + 8 × 0.6²) = 30 × 3.88
        (900, {}, 150),  # 60 / 2 × 5
        (900, {"service": 0.01}, 3000),  # 60 / 0.1 × 5
        (0, {"start_latency": 12.0}, 6),  # 60 / (20 / 2)
        (9, {"start_latency": 40.0}, 150),  # 1 s is left of the promise, at least
        (15, {"slots": 4}, 2),
    ],
)
def test_cboxdk_drains(age: float, named: dict[str, Any], workers: int) -> None:
    assert Cboxdk().decide(signals(Look(60, age), **{"sla": 32, "max_workers": 5000, **named})).workers == workers


def test_cboxdk_adds_growth_to_what_is_finished() -> None:
    """Growth is 2 and 4 a second, with weights 2 and 4: 20 / 6 = 3.33 a second, × 2 s = 6.7."""
    assert at_once(Cboxdk(), Look(0), Look(10, 2), Look(30, 2)).workers == 7
    finished = at_once(Cboxdk(), Look(0), Look(10, 2, finished=5), Look(30, 2, finished=10))
    assert finished.workers == 9  # 1 + 3.33 = 4.33 a second
    shrinks = at_once(Cboxdk(), Look(90, 2), Look(40, 2, finished=10), workers=1)
    assert shrinks.rules["little"] == 0  # 2 - 10 is less than nothing


def test_cboxdk_looks_a_minute_ahead() -> None:
    """Rates of 1 … 5 a second are on a line that rises 0.2 a second each second: 17 in a minute. The observed rate is
    (2 + 8 + 24 + 64 + 160) / 62 = 4.16, and half of each is 10.58."""
    grows = [Look(pending, 5) for pending in (0, 5, 15, 30, 50, 75)]
    named: dict[str, Any] = {"sla": 1000, "service": 1.0}
    assert at_once(Cboxdk(), *grows, **named).rules["little"] == pytest.approx((17 + 258 / 62) / 2)
    assert at_once(Cboxdk(), *grows, **named).workers == 11
    assert at_once(Cboxdk(forecast=False), *grows, **named).workers == 5
    assert at_once(Cboxdk(), *grows[:5], **named).rules["little"] == pytest.approx(98 / 30)  # four rates are no line
    jumps = [Look(pending, 5) for pending in (0, 5, 30, 35, 60, 65)]  # 1, 5, 1, 5, 1 a second: R² = 0
    assert at_once(Cboxdk(), *jumps, **named).rules["little"] == pytest.approx(142 / 62)


def test_cboxdk_remembers_thirty_looks_and_five_minutes() -> None:
    memory = at_once(Cboxdk(), *(Look(n) for n in range(40))).memory
    assert [pending for _, pending in memory["looks"]] == list(range(10, 40))
    memory = at_once(Cboxdk(), *(Look(n) for n in range(10)), every=100, interval=100).memory
    assert [pending for _, pending in memory["looks"]] == [6, 7, 8, 9]


def test_cboxdk_adds_one_to_the_busy() -> None:
    assert Cboxdk().decide(signals(Look(active=4), workers=4)).workers == 5
    assert Cboxdk().decide(signals(Look(active=9), workers=10)).workers == 11
    assert Cboxdk().decide(signals(Look(active=3), workers=4)).workers == 3
    assert Cboxdk().decide(signals(Look(active=4), workers=6, ready=4)).workers == 5  # one more than needed starts


def test_cboxdk_goes_down_by_a_quarter_or_by_one() -> None:
    assert follow(Cboxdk(), [Look()] * 9, workers=20) == [15, 11, 8, 6, 4, 3, 2, 1, 1]
    steady = [Look(finished=10 * n, active=0) for n in range(20)]  # 2 a second for 1 s each: 2 are enough
    assert follow(Cboxdk(), steady[12:], before=steady[:12], workers=20, service=1.0)[:5] == [15, 11, 10, 9, 8]


def test_cboxdk_blocks_a_reversal_for_a_minute() -> None:
    """It goes up at 0 s, so not down before 60 s; then down at 60 s, so not up again unless the promise is broken."""
    calm, much, late = Look(), Look(150, 0.5), Look(150, 30)
    up = follow(Cboxdk(), [much, *[calm] * 12, *[much] * 2, late])
    assert up[:12] == [11] * 12  # 150 / (28 / 2) = 10.7
    assert up[12:14] == [8, 8]
    assert up[14] == 8
    assert up[15] > 11  # late: 150 / 2 × 3.6 and more
    # 30 a second more in 5 s, with half of all the weight: 15 a second × 2 s.
    assert follow(Cboxdk(hold_up=False), [much, *[calm] * 12, *[much] * 2])[12:] == [8, 30, 30]
    assert follow(Cboxdk(cooldown=20.0), [much, *[calm] * 4])[3:] == [11, 8]


def test_cboxdk_decides_every_five_seconds() -> None:
    said = follow(Cboxdk(), [Look()] * 11, workers=20, every=1.0)
    assert said == [15] * 5 + [11] * 5 + [8]


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "named", "workers"),
    [
        ("keda-pending", {"workers": 5}, 7),  # 100 / 15 = 6.7
        ("keda-pending", {"workers": 5, "service": None}, 4),  # 100 / 30 = 3.3; nothing to hold yet
        ("keda-pending", {"workers": 2, "slots": 2}, 4),
        ("keda-pending-running", {"workers": 6}, 11),  # 6.7 + 4
        ("keda-pending-running", {"workers": 6, "slots": 2}, 6),  # 5.3 is within 12 % of 6, so 6 as well
        ("keda-slots", {"workers": 60}, 104),
        ("keda-slots", {"workers": 20, "slots": 4}, 26),
    ],
)
def test_keda(name: str, named: dict[str, Any], workers: int) -> None:
    assert Keda(name).decide(signals(Look(100, 3, active=4), **named)).workers == workers


def test_keda_with_half_the_target_wants_twice() -> None:
    """200 / 15 = 13.3; running tasks are counted as they are."""
    looks = signals(Look(100, active=4), workers=20)
    assert Keda("keda-pending", target=0.5).decide(looks).workers == 14
    assert Keda("keda-pending-running", target=0.5).decide(looks).workers == 18
    assert Keda("keda-slots", target=2.0).decide(looks).rules["slots"] == 52


def test_hpa_goes_up_by_four_or_twice_every_fifteen_seconds() -> None:
    said = follow(Keda("keda-slots"), [Look(50)] * 17, every=5.0)
    assert said == [5] * 3 + [10] * 3 + [20] * 3 + [40] * 3 + [50] * 5
    assert follow(Keda("keda-slots"), [Look(50)] * 31, every=1.0)[::15] == [5, 10, 20]
    assert follow(Keda("keda-slots"), [Look(50)], workers=0, min_workers=0) == [4]


def test_hpa_tolerates_a_tenth() -> None:
    for pending, workers in ((9, 10), (10, 10), (11, 10), (12, 12), (8, 8)):
        assert Keda("keda-slots").decide(signals(Look(pending), workers=10)).workers == workers, pending
    assert Keda("keda-slots").decide(signals(Look(11), workers=10)).bound_by == "tolerance"


def test_hpa_goes_down_to_the_highest_of_five_minutes() -> None:
    """It wants 10 at 0 s, 6 at 15 s, then 2: the 10 is forgotten at 300 s, the 6 at 315 s."""
    said = follow(Keda("keda-slots"), [Look(10), Look(6), *[Look(2)] * 22], workers=10, every=15.0)
    assert said == [10] * 20 + [6] + [2] * 3
    short = Keda("keda-slots", rules=HpaRules(hold=60.0))
    assert follow(short, [Look(10), Look(6), *[Look(2)] * 5], workers=10, every=15.0) == [10] * 4 + [6] + [2] * 2


def test_hpa_on_busy_share() -> None:
    """10 × 1 / 0.7 = 14.3; if 3 of 6 ready workers are busy, 10 × 0.5 / 0.7 = 7.1."""
    assert HpaBusy().decide(signals(Look(active=10), workers=10)).workers == 15
    assert HpaBusy().decide(signals(Look(active=3), workers=10, ready=6)).workers == 8
    assert HpaBusy().decide(signals(Look(active=7), workers=10)).bound_by == "tolerance"
    assert HpaBusy(target=0.5).decide(signals(Look(active=10), workers=10)).workers == 20
    assert HpaBusy(idle_starts=True).decide(signals(Look(active=6), workers=10, ready=6)).workers == 9  # 6 / 0.7
    assert HpaBusy().decide(signals(Look(active=20), workers=5, slots=4)).workers == 8  # 5 / 0.7 = 7.1
    assert (
        HpaBusy().decide(signals(Look(99), workers=3, ready=0)).workers == 3
    )  # no worker is ready, so the share is unknown


# -- Alarms, steps and bands -------------------------------------------------------------------------------------------


def test_aws_waits_for_three_alarms_out_and_fifteen_in() -> None:
    """150 / 15 = 10, seen at 0, 60 and 120 s. From 180 s on there is nothing, for the fifteenth time at 1020 s."""
    minutes = [Look(150)] * 3 + [Look()] * 16
    all_at_once = AwsBacklog(most_in=1.0)
    assert follow(all_at_once, minutes, every=60.0) == [1, 1] + [10] * 15 + [1, 1]
    seconds = [look for look in minutes for _ in range(12)]
    assert follow(all_at_once, seconds)[::12] == [1, 1] + [10] * 15 + [1, 1]
    quick = AwsBacklog(out_after=1, in_after=5, most_in=1.0)
    assert follow(quick, minutes, every=60.0)[:8] == [10] * 7 + [1]


def test_aws_goes_in_by_a_tenth_every_fifteen_minutes() -> None:
    """A tenth of 25 is 3, of 22 is 3, of 19 is 2; it does not go below what is wanted."""
    said = follow(AwsBacklog(), [Look()] * 46, every=60.0, workers=25)
    assert said == [25] * 14 + [22] * 15 + [19] * 15 + [17] * 2
    assert follow(AwsBacklog(most_in=0.0), [Look()] * 15, every=60.0, workers=25)[-1] == 24
    assert follow(AwsBacklog(), [Look(360)] * 15, every=60.0, workers=25)[-1] == 24


def test_aws_counts_alarms_in_a_row() -> None:
    assert follow(AwsBacklog(), [Look(150), Look(150), Look(15), Look(150), Look(150)], every=60.0) == [1] * 5


def test_an_alarm_that_is_on_acts_every_minute() -> None:
    assert follow(AwsBacklog(), [Look(30), Look(45), Look(60), Look(90), Look(300)], every=60.0) == [1, 1, 4, 6, 20]


def test_horizon_makes_a_step_every_three_seconds() -> None:
    assert follow(LaravelHorizon(), [Look(100)] * 8, every=1.0) == [2, 2, 2, 3, 3, 3, 4, 4]
    assert follow(LaravelHorizon(), [Look()] * 8, every=1.0, workers=9) == [8, 8, 8, 7, 7, 7, 6, 6]
    assert follow(LaravelHorizon(), [Look(3)] * 5, every=3.0) == [2, 3, 3, 3, 3]


def test_horizon_makes_the_steps_of_a_longer_interval() -> None:
    """It makes a step at 0, 3, 6, 9, … s: 1 by 0 s, 2 by 5 s, 4 by 10 s, 6 by 15 s, 7 by 20 s."""
    assert follow(LaravelHorizon(), [Look(100)] * 5) == [2, 3, 5, 7, 8]
    assert follow(LaravelHorizon(), [Look(100)] * 3, every=60.0) == [2, 22, 42]
    assert follow(LaravelHorizon(shift=5), [Look(100)] * 3, every=3.0) == [6, 11, 16]


def test_horizon_shares_its_most() -> None:
    """The only queue gets the whole share, whatever waits."""
    assert follow(LaravelHorizon(balance=True), [Look(1)] * 3 + [Look()] * 2, every=3.0) == [2, 3, 4, 3, 2]
    assert follow(LaravelHorizon(), [Look(1)] * 3, every=3.0) == [1, 1, 1]


def test_judoscale_goes_up_every_minute_and_down_after_ten() -> None:
    """With a promise of 30 s it goes up by 2 above 15 s, and down by 1 below 7.5 s."""
    minutes = [Look(9, 16)] * 3 + [Look(9, 15)] + [Look(9, 7)] * 21
    said = follow(Judoscale(), minutes, every=60.0)
    assert said == [3, 5, 7, 7] + [7] * 10 + [6] * 10 + [5]
    assert follow(Judoscale(), [Look(9, 16)] * 25)[::12] == [3, 5, 7]
    assert follow(Judoscale(jump=5, up_every=10.0), [Look(9, 16)] * 4) == [6, 6, 11, 11]


def test_judoscale_waits_again_when_one_sample_is_not_below() -> None:
    minutes = [Look(9, 7)] * 9 + [Look(9, 8)] + [Look(9, 7)] * 10
    assert follow(Judoscale(), minutes, every=60.0, workers=9) == [9] * 20
    assert follow(Judoscale(), [*minutes, Look(9, 7)], every=60.0, workers=9)[-1] == 8


# -- Tools that know the rate ------------------------------------------------------------------------------------------


def test_flink() -> None:
    """(60 / 30 + 4 × 20 / 30 + 4 / 0.7) × 2 = (2 + 2.67 + 5.71) × 2 = 20.8; the 2 s are the measured time per task, not
    the given service time."""
    looks = [Look(), Look(60, 3, arrived=20, finished=15, busy_seconds=30.0)]
    assert Flink().decide(signals(*looks, service=9.0)).workers == 21
    assert Flink(utilisation=0.9).decide(signals(*looks)).workers == 19  # 4.44 for 5.71: 18.2
    assert Flink().decide(signals(*looks, start_latency=35.0)).workers == 25  # 4.67 for 2.67: 24.8
    assert Flink().decide(signals(*looks, slots=4)).workers == 6
    assert Flink().decide(signals(Look(60), service=3.0)).workers == 6  # nothing finished: 60 / 30 × 3


def test_flink_goes_down_to_the_highest_of_a_minute() -> None:
    said = follow(Flink(), [Look(150), Look(90), *[Look()] * 13])
    assert said == [10] * 12 + [6, 1, 1]
    assert follow(Flink(hold=10.0), [Look(150), Look(90), Look(), Look(300)]) == [10, 10, 6, 20]


def test_static() -> None:
    assert follow(Static(7), [Look(), Look(999, 99), Look()]) == [7, 7, 7]
    assert Static(7).decide(signals(Look(), max_workers=5)).workers == 5


# -- All of them -------------------------------------------------------------------------------------------------------


def test_the_policies_and_their_knobs() -> None:
    assert list(OTHER_TOOLS) == NAMES
    for name, policy in OTHER_TOOLS.items():
        tried = grid(name)
        assert tried[0] == policy == type(policy)(**({"name": name} if isinstance(policy, Keda) else {}))
        assert {one.name for one in tried} == {name}
        assert 2 <= len(tried) <= 8
        assert len({repr(one) for one in tried}) == len(tried)
    with pytest.raises(ConfigError, match="'unknown' is not one of seed-text, cboxdk, "):
        grid("unknown")


@pytest.mark.parametrize("name", NAMES)
def test_without_new_metrics_it_repeats_itself(name: str) -> None:
    """It does not even go up, because its input is old. Afterwards there is nothing to make up for."""
    policy = OTHER_TOOLS[name]
    first = policy.decide(signals(Look(40, 1, active=5), workers=5))
    blind = Signals(500.0, limits(), make_samples([Look(40, 1, active=5)]), Fleet(first.workers), service=2.0)
    assert blind.stale
    second = policy.decide(blind, first.memory)
    assert second.workers == first.workers
    assert policy.decide(Signals(500.0, limits(), fleet=Fleet(6))).workers == (10 if name == "static" else 6)


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_another_policy_is_ignored(name: str) -> None:
    looks = signals(Look(40, 1, active=5), workers=5)
    others = [policy.decide(looks).memory for other, policy in OTHER_TOOLS.items() if other != name]
    for memory in (*others, {}, [], "x", 1):
        assert OTHER_TOOLS[name].decide(looks, memory) == OTHER_TOOLS[name].decide(looks)


@pytest.mark.parametrize("name", NAMES)
def test_a_clock_that_was_set_back_makes_no_policy_wait(name: str) -> None:
    late = Signals(9e6, limits(), make_samples([Look(40, 1)], first=9e6), Fleet(5))
    memory = OTHER_TOOLS[name].decide(late).memory
    assert OTHER_TOOLS[name].decide(signals(Look(40, 1, active=5), workers=5), memory).bound_by != "held"


LIMITS = st.builds(
    lambda low, span, **named: Limits(min_workers=low, max_workers=max(1, low + span), **named),
    st.integers(0, 20),
    st.integers(0, 500),
    sla=st.sampled_from([0.001, 1.0, 30.0, 3e8]) | st.floats(0.001, 3600.0),
    slots=st.sampled_from([1, 1, 4, 100_000]),
    interval=st.sampled_from([1.0, 5.0, 60.0]),
    start_latency=st.sampled_from([0.0, 20.0, 3e8]),
)
COUNTS = st.integers(0, 3) | st.integers(0, 10_000) | st.integers(0, 2**62)
AGES = st.sampled_from([0.0, 0.5, 24.0, 29.999999999, 30.0, 3e8]) | st.floats(0.0, 3600.0)
LOOKS = st.builds(Look, COUNTS, AGES, COUNTS, COUNTS, COUNTS, st.floats(0.0, 1e9) | st.sampled_from([1e300, math.inf]))
STEPS = st.sampled_from([5.0, 5.0, 1.0, 15.0, 60.0, 0.0, 1e-9, 700.0]) | st.floats(0.0, 90.0)
FLEETS = st.builds(
    Fleet,
    st.integers(0, 30) | st.integers(0, 1000),
    st.lists(st.floats(0.0, 60.0), max_size=5).map(lambda ones: tuple(sorted(ones))),
)
SERVICES = st.none() | st.sampled_from([1e-9, 1e-6, 2.0, LONGEST]) | st.floats(1e-3, 1e4)


@st.composite
def histories(draw: st.DrawFn) -> list[Signals]:
    """Successive signals, some of them without a new look."""
    allowed, service = draw(LIMITS), draw(SERVICES)
    latency = draw(st.none() | st.sampled_from([0.0, 5.0, LONGEST]))
    now = draw(st.sampled_from([0.0, 1.7e9]))
    samples: tuple[Sample, ...] = ()
    moments: list[Signals] = []
    for _ in range(draw(st.integers(1, 12))):
        now += draw(STEPS)
        if draw(st.booleans()) or draw(st.booleans()):
            samples = (*samples, *make_samples([draw(LOOKS)], first=now))[-61:]
        moments.append(Signals(now, allowed, samples, draw(FLEETS), service=service, start_latency=latency))
    return moments


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("service", [1e-9, LONGEST])
def test_no_number_becomes_infinite(name: str, service: float) -> None:
    looks = [Look(), Look(2**62, 29.999999999, 2**62, 2**62, 2**62, math.inf)]
    decision = at_once(OTHER_TOOLS[name], *looks, service=service, every=60.0, interval=60.0)
    assert all(math.isfinite(value) for value in decision.rules.values())
    assert 1 <= decision.workers <= 1000


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(EVERY), histories())
def test_what_holds_for_every_policy(policy: Policy, moments: list[Signals]) -> None:
    memory: Memory = None
    for one in moments:
        before = json.dumps(memory, allow_nan=False)
        decision = policy.decide(one, memory)
        assert json.dumps(memory) == before  # the given memory is not changed
        through = policy.decide(one, json.loads(before))
        assert (through, through.memory) == (decision, decision.memory)
        assert type(decision.workers) is type(decision.wanted) is int
        assert one.limits.min_workers <= decision.workers <= one.limits.max_workers
        assert decision.reason.startswith(f"{decision.workers}: ")
        assert all(math.isfinite(value) for value in decision.rules.values())
        if one.pending or one.active:
            assert decision.workers >= 1
        if one.stale:
            assert decision.workers >= min(one.fleet.workers, one.limits.max_workers)
        memory = decision.memory


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(EVERY), st.lists(st.integers(0, 400), min_size=5, max_size=60))
def test_between_its_turns_it_repeats_itself(policy: Policy, pending: list[int]) -> None:
    """A policy that is called every second but decides less often changes its decision only then."""
    every = {"cboxdk": 5, "horizon": 3, "aws-backlog": 60, "hpa-busy": 15}.get(policy.name, 1)
    every = 15 if policy.name.startswith("keda") else every
    said = follow(policy, [Look(waiting, 3, active=2) for waiting in pending], every=1.0, workers=4)
    assert all(nth % every == 0 for nth, (was, now) in enumerate(pairwise(said), start=1) if was != now)
