"""The profile of this hour raises a forecast and never lowers it; old profiles and unknown hours are ignored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.decision import Decision
from penstock.scaler.policy.forecast import (
    FRESH,
    HOURS,
    PROFILE_VERSION,
    Profile,
    forecast,
    hour_of_week,
    raise_forecast,
    unusual_factor,
)
from penstock.scaler.policy.signals import SAMPLES, Fleet, Limits, Sample, Signals

NINE = datetime(2026, 11, 16, 9, tzinfo=UTC).timestamp()  # a Monday
LIMITS = Limits(sla=30.0, min_workers=0, max_workers=500, interval=5.0, start_latency=20.0)


def stored(**changes: Any) -> dict[str, Any]:
    """A stored profile: 600 tasks a minute from nine to ten on Mondays, otherwise 60."""
    p50 = [60.0] * HOURS
    p50[9] = 600.0
    return {"hours": {"p50": p50, "minutes": [240] * HOURS}, "dispersion": 2.0, "level": 63.2, **changes}


def profile(made: float = NINE, **changes: Any) -> Profile:
    return Profile.from_json(stored(**changes), version=PROFILE_VERSION, made=made)


def stream(rate: float, until: float) -> tuple[Sample, ...]:
    ats = [until - 5.0 * n for n in range(SAMPLES)][::-1]
    return tuple(Sample(at, 0, arrived=round(rate * (at - ats[0])), finished=1) for at in ats)


def decide(now: float, rate: float, known: Profile | None) -> Decision:
    samples = stream(rate, now)
    return Deadline().decide(Signals(now, LIMITS, samples, Fleet(3), service=1.0, dispersion=0.5, profile=known))


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2026-11-16T00:00:00", 0), ("2026-11-16T09:59:59", 9), ("2026-11-22T23:00:00", 167), ("1970-01-01T00:00:00", 72)],
)
def test_the_week_begins_on_monday_in_utc(text: str, hour: int) -> None:
    assert hour_of_week(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) == hour


def test_before_the_busy_hour_workers_are_there_already() -> None:
    """A worker that is asked for at 8:59:50 is up in the busy hour; 8:58 would be too early."""
    known = profile()
    late, early = decide(NINE - 10, 1.0, known), decide(NINE - 120, 1.0, known)
    assert late.wanted >= 10 > early.wanted
    assert late.bound_by == "profile"
    assert "for what this hour usually brings" in late.reason
    assert late.rules["profile"] == late.wanted


def test_today_may_be_twice_or_half_of_a_usual_day() -> None:
    known = profile()
    assert unusual_factor(known, stream(1.0, NINE - 10)) == pytest.approx(1.0, abs=0.05)
    assert unusual_factor(known, stream(2.0, NINE - 10)) == pytest.approx(2.0, abs=0.1)
    assert unusual_factor(known, stream(0.0, NINE - 10)) < 0.05
    assert unusual_factor(known, stream(100.0, NINE - 10)) == 4.0  # a larger factor is not believed
    assert unusual_factor(known, ()) == 1.0
    assert decide(NINE - 10, 0.0, known).wanted <= 2  # a holiday


def test_few_tasks_say_little_about_today() -> None:
    """One or no task in five minutes in which one is usual is chance."""
    sparse = profile(hours={"p50": [0.2] * HOURS, "minutes": [240] * HOURS})
    assert 0.8 < unusual_factor(sparse, stream(0.0, NINE)) < 1.0


def test_without_a_profile_nothing_changes() -> None:
    plain = decide(NINE - 10, 1.0, None)
    same = decide(NINE - 120, 20.0, None)
    usual = decide(NINE - 120, 20.0, profile())  # more arrive than in the profile
    assert "profile" not in plain.rules
    assert "profile" not in plain.reason
    assert (usual.workers, usual.reason, usual.rules) == (same.workers, same.reason, same.rules)


def test_an_old_profile_is_not_asked() -> None:
    plain, old = decide(NINE - 10, 1.0, None), decide(NINE - 10, 1.0, profile(made=NINE - FRESH - 86_400))
    assert old.workers == plain.workers
    assert old.rules == plain.rules
    assert old.reason == plain.reason + "; the profile is 9 days old and was not used"


def test_an_hour_that_was_hardly_seen_is_unknown() -> None:
    seen = [240] * HOURS
    seen[9] = 29
    known = profile(hours={**stored()["hours"], "minutes": seen})
    told = decide(NINE - 10, 1.0, known)
    assert told.reason.endswith("; the profile does not know this hour")
    assert told.workers == decide(NINE - 10, 1.0, None).workers


@given(
    rate=st.floats(0, 50),
    p50=st.lists(st.none() | st.floats(0, 1e6), min_size=HOURS, max_size=HOURS),
    spread=st.floats(0, 1e9),
    before=st.floats(0, 7200),
)
@settings(max_examples=100, deadline=None)
def test_it_only_raises(rate: float, p50: list[float | None], spread: float, before: float) -> None:
    samples = stream(rate, NINE - before)
    plain, known = forecast(samples), Profile(NINE, tuple(p50), spread)
    more = raise_forecast(plain, known, samples, 25.0)
    if more is not None:
        assert more.rate >= plain.rate
        assert more.steady >= plain.steady
        assert more.at_most(60.0, 1.0) >= plain.at_most(60.0, 1.0)
    assert decide(NINE - before, rate, known).wanted >= decide(NINE - before, rate, None).wanted


@pytest.mark.parametrize(
    ("data", "version", "names"),
    [
        (stored(), 2, "version 2"),
        (stored(hours=None), 1, "hours"),
        (stored(hours={"p50": [1.0] * HOURS}), 1, "minutes"),
        (stored(hours={"p50": [1.0] * 24, "minutes": [60] * HOURS}), 1, "24 values, not 168"),
        (stored(hours={"p50": [1.0] * 169, "minutes": [60] * HOURS}), 1, "169 values, not 168"),
        (stored(hours={"p50": [-1.0] * HOURS, "minutes": [60] * HOURS}), 1, "-1.0"),
        (stored(hours={"p50": ["x"] * HOURS, "minutes": [60] * HOURS}), 1, "'x'"),
        (stored(hours={"p50": [1.0] * HOURS, "minutes": [None] * HOURS}), 1, "minutes"),
        (stored(dispersion=-1), 1, "dispersion: -1"),
        (stored(dispersion=json.loads("NaN")), 1, "dispersion: nan"),
    ],
)
def test_what_is_not_a_profile_is_refused(data: dict[str, Any], version: int, names: str) -> None:
    with pytest.raises(ConfigError, match=names.replace("(", r"\(")):
        Profile.from_json(data, version=version, made=NINE)
