"""Signals that are made from looks: rates, ages, and tasks that are known to come. No I/O."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from penstock.model import ScalerSnapshot, Schedule, SeenQueue, SeenWorker
from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.signals import SAMPLES, Fleet, Limits
from penstock.scaler.run.collect import (
    SPACING,
    Collector,
    QueueTrack,
    estimate_waiting,
    excuse_silence,
    is_present,
    slots_of,
    ticks_ahead,
)

LIMITS = Limits(sla=30.0, max_workers=4, slots=2, interval=1.0)
NOW = 1_700_000_000.0


def make_seen(pending: int = 0, active: int = 0, ended: int = 0, **more: object) -> SeenQueue:
    return SeenQueue("q", False, 30.0, 0, pending, active, ended, 0, **more)  # type: ignore[arg-type]


def followed(*looks: SeenQueue, slots: int = 2, every: float = 1.0) -> QueueTrack:
    track = QueueTrack(LIMITS)
    for n, one in enumerate(looks):
        track.take(NOW + n * every, one, slots=slots, workers=1, ticks=())
    return track


def test_service_is_what_slots_were_busy_by_what_ended() -> None:
    """Two slots were busy for ten seconds and five attempts ended: four seconds each. Tasks claimed ahead do not
    count."""
    track = followed(*(make_seen(100, 40, ended=n // 2) for n in range(11)))
    assert track.service.seconds == pytest.approx(4.0, rel=0.02)
    assert followed(make_seen(5, 2), make_seen(5, 2)).service.seconds is None


def test_an_outage_is_no_work() -> None:
    """Slots stay busy while PostgreSQL is away and no task can end, which says nothing about service times."""
    collector = Collector({"q": LIMITS})
    worker = SeenWorker("w", ("q",), 2, 2, None, False, silent=0.0, began=NOW, latency=1.0)
    at = NOW
    for n, passed in enumerate([*[1.0] * 10, 600.0, *[1.0] * 10]):
        at += passed
        if passed > 60:
            collector.skip_gap()
        collector.take(ScalerSnapshot(at, (make_seen(100, 2, ended=n),), (worker,), 5, 100), {}, {"q": 1})
    assert collector.tracks["q"].service.seconds == pytest.approx(2.0, rel=0.1)


def test_a_worker_that_could_not_beat_is_counted_on() -> None:
    """It was there when PostgreSQL went away for a minute. A worker that was silent before is not counted."""
    there = SeenWorker("w", ("q",), 2, 2, None, False, silent=62.0, began=NOW, latency=1.0)
    gone = replace(there, name="v", silent=90.0)
    assert [is_present(one) for one in (there, gone)] == [False, False]
    found = excuse_silence(ScalerSnapshot(NOW, (), (there, gone), 5, 100), 60.0)
    assert [is_present(one) for one in found.workers] == [True, False]


def test_arrivals_are_what_has_come_through_and_announced_are_told_apart() -> None:
    second = int(NOW) + 2
    track = followed(
        make_seen(0, ahead=((second, 5),)),
        make_seen(3, ahead=((second, 5),)),
        make_seen(8, 0),
        make_seen(2, 2, 4),
        make_seen(0, 0, 4),
    )
    signals = track.signals(NOW + 4, Fleet(1), None)
    latest = signals.samples[-1]
    assert (latest.arrived, latest.announced, latest.finished) == (8, 5, 4)  # cancelled tasks are no arrivals


def test_five_minutes_are_kept_however_often_one_looks() -> None:
    track = followed(*(make_seen(1, ended=n) for n in range(600)))
    samples = track.signals(NOW + 600, Fleet(1), None).samples
    assert len(samples) <= SAMPLES
    assert samples[-1].at == NOW + 599
    assert samples[-1].at - samples[0].at >= (SAMPLES - 2) * SPACING
    steps = [after.at - before.at for before, after in pairwise(samples[:-1])]
    assert min(steps) >= SPACING


def test_tasks_beyond_the_sampled_rows_lie_between_these_and_the_newest() -> None:
    found = [*estimate_waiting(make_seen(105, waiting=((20.0, 3), (18.0, 2)), newest=8.0))]
    assert found[:2] == [(20.0, 3), (18.0, 2)]
    assert sum(count for _, count in found) == 105
    ages = [age for age, _ in found]
    assert ages == sorted(ages, reverse=True)
    assert ages[2] == 18.0
    assert ages[-1] == pytest.approx(9.0)
    assert [*estimate_waiting(make_seen(0))] == []


def test_a_paused_queue_needs_no_worker() -> None:
    track = QueueTrack(LIMITS)
    track.take(NOW, SeenQueue("q", True, 30.0, 5, 9, 0, 0, 0, ((3.0, 9),)), slots=0, workers=0, ticks=())
    signals = track.signals(NOW, Fleet(), None)
    assert (signals.pending, signals.waiting) == (0, ())


def test_a_promise_may_change_at_any_time() -> None:
    track = QueueTrack(LIMITS)
    track.take(NOW, SeenQueue("q", False, 7.0, 0, 0, 0, 0, 0), slots=0, workers=0, ticks=())
    assert track.limits.sla == 7.0
    track.take(NOW, SeenQueue("q", False, None, 0, 0, 0, 0, 0), slots=0, workers=0, ticks=())
    assert track.limits.sla == 7.0  # the promise was removed, so the last one counts


def test_only_rows_that_could_change_the_answer_are_read() -> None:
    few, many = Collector({"q": LIMITS}), Collector({f"q{n}": LIMITS for n in range(100)})
    (asked,) = few.requests()
    assert asked.rows == 4 * 2 * int(1 + asked.horizon)  # a task is assumed to take a second
    assert asked.horizon == 20.0 + 1.0 + 60.0
    assert sum(one.rows for one in many.requests()) <= 5000
    assert min(one.rows for one in many.requests()) == 50


def test_start_latency_is_that_of_nine_starts_of_ten() -> None:
    collector = Collector({"q": LIMITS})
    workers = [
        SeenWorker(f"w{n}", ("q",), 2, 0, f"h#{n}", leaving=False, silent=0.1, began=NOW + n, latency=float(n))
        for n in range(1, 11)
    ]
    other_worker = SeenWorker("s", ("q",), 2, 0, None, leaving=False, silent=0.1, began=NOW, latency=99.0)
    look = ScalerSnapshot(NOW, (make_seen(),), (*workers, other_worker), 1, 100)
    collector.take(look, {}, {})
    collector.take(look, {}, {})  # a second look is no second start
    assert collector.latency == 9.0
    assert slots_of(look.workers, "q") == 22
    assert collector.latency_of("q") == 9.0


def test_learned_values_survive_their_scaler() -> None:
    collector = Collector({"q": LIMITS})
    collector.tracks["q"] = followed(*(make_seen(100, 2, ended=n) for n in range(11)))
    told = collector.remember("q", "deadline", {"needs": []})
    heir = Collector({"q": LIMITS})
    assert heir.recall("q", "deadline", told) == {"needs": []}
    assert heir.tracks["q"].service.seconds == collector.tracks["q"].service.seconds
    assert heir.recall("q", "hybrid", told) is None
    assert heir.recall("q", "deadline", None) is None


def test_ticks_of_cron_lines_are_known_to_come() -> None:
    at = datetime.fromtimestamp(NOW, UTC).replace(second=30)
    one = Schedule("s", "q", "k", {}, 5, "* * * * *", "UTC", "last", False, at, at, None, at, at, "me", 2, at)
    found = ticks_ahead([one], at.timestamp(), 150.0)
    assert [tick - at.timestamp() for tick in found["q"]] == [30.0, 90.0, 150.0]
    track = QueueTrack(LIMITS)
    track.take(at.timestamp(), make_seen(), slots=0, workers=0, ticks=found["q"])
    assert track.signals(at.timestamp(), Fleet(), None).planned == ((30.0, 1), (90.0, 1), (150.0, 1))
    track.take(at.timestamp() + 31, make_seen(1), slots=0, workers=0, ticks=found["q"][1:])
    assert track.signals(at.timestamp() + 31, Fleet(), None).samples[-1].announced == 1


def test_a_decision_without_a_run_time_says_how_many_have_finished() -> None:
    """A restarted scaler knows no run time yet, but the queue has finished tasks before."""

    def said(*looks: SeenQueue, every: float = 1.0) -> str:
        track = followed(*looks, every=every)
        return Deadline().decide(track.signals(NOW + len(looks) * every, Fleet(1), None)).reason

    assert "7 waiting, 2 running, no run time measured yet: at most twice" in said(make_seen(7, 2))
    assert "7 waiting, 2 running, 100,017 finished, none since this scaler started" in said(
        make_seen(7, 2, ended=100_017)
    )
    long_ago = [make_seen(7, 2, ended=16), *[make_seen(7, 2, ended=17)] * 3]
    assert "17 finished, none lately" in said(*long_ago, every=6000.0)
