"""Workers that bring no gain are no longer added; after a while another trial begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.scaler.policy.deadline import Deadline
from penstock.scaler.policy.decision import Decision, Memory
from penstock.scaler.policy.signals import SAMPLES, Fleet, Limits, Sample, Signals
from penstock.scaler.policy.trial import PAUSE
from penstock.scaler.policy.trial import ScaleUpTrial as Trial

LIMITS = Limits(sla=30.0, min_workers=1, max_workers=100, start_latency=10.0)


def make_samples(rate: float, workers: int, seconds: float = 60.0, **rest: Any) -> tuple[Sample, ...]:
    """Samples of `workers` workers that finish `rate` tasks a second, for the seconds before 1000."""
    count = round(seconds / 5) + 1
    ats = [1000.0 - 5 * (count - 1 - n) for n in range(count)]
    return tuple(Sample(at, rest.get("pending", 50), workers, finished=round(rate * at), workers=workers) for at in ats)


def make_signals(rate: float, workers: int, service: float = 1.0, **rest: Any) -> Signals:
    return Signals(1000.0, LIMITS, make_samples(rate, workers, **rest), Fleet(workers), service=service)


BEGUN = {"at": 955.0, "workers": 4, "rate": 4.0}


def test_a_trial_begins_with_a_raise_while_all_are_busy() -> None:
    assert Trial.after(make_signals(4, 4), None, 8, 0.1) == Trial({"at": 1000.0, "workers": 4, "rate": 4.0})
    assert Trial.after(make_signals(4, 4), None, 4, 0.1) == Trial(), "no worker is added"
    assert Trial.after(make_signals(4, 4, pending=0), None, 8, 0.1) == Trial(), (
        "no task waits, so the rate says nothing"
    )
    assert Trial.after(make_signals(4, 4, seconds=25), None, 8, 0.1) == Trial(), "there is no rate yet"
    assert Trial.after(make_signals(0, 4), None, 8, 0.1) == Trial(), "no task was finished"
    assert Trial.after(make_signals(0.1, 4, service=81.0), None, 8, 0.1) == Trial(), (
        "tasks are too long to measure a rate"
    )


def test_it_is_judged_when_all_have_been_up_for_half_a_minute() -> None:
    early = {**BEGUN, "at": 965.0}
    assert Trial.after(make_signals(4, 8), early, 16, 0.1) == Trial(early)
    assert Trial.after(make_signals(4, 8), {**BEGUN, "at": 960.0}, 16, 0.1).useless


@pytest.mark.parametrize(("rate", "useless"), [(3.0, True), (4.0, True), (4.38, True), (4.42, False), (8.0, False)])
def test_a_tenth_of_the_expected_gain_is_enough(rate: float, useless: bool) -> None:
    trial = Trial.after(make_signals(rate, 8), BEGUN, 16, 0.1)
    assert trial.useless == useless
    if useless:
        assert trial.memory is not None
        assert trial.memory["until"] == 1000 + PAUSE
        assert trial.finding.startswith("no more, because the last 4 workers brought ")
    else:
        assert trial == Trial()


def test_workers_that_are_not_up_are_not_judged() -> None:
    assert Trial.after(make_signals(4, 4), BEGUN, 16, 0.1) == Trial()
    since_960, since_965 = (
        replace(make_signals(4, 8), samples=(*make_samples(4, 4)[:n], *make_samples(4, 8)[n:])) for n in (5, 6)
    )
    assert Trial.after(since_960, {**BEGUN, "at": 960.0}, 16, 0.1).useless, (
        "asked for at 960, they are there at the next look"
    )
    assert Trial.after(since_965, {**BEGUN, "at": 960.0}, 16, 0.1) == Trial()


def test_a_gain_that_may_have_been_missed_by_chance_is_waited_for() -> None:
    """About 120 tasks may be 30 fewer by chance, so it proves nothing that one worker more brought no gain."""
    assert Trial.after(make_signals(4, 5), BEGUN, 16, 0.1) == Trial(BEGUN)
    assert Trial.after(make_signals(4, 6), BEGUN, 16, 0.1).useless
    assert Trial.after(replace(make_signals(4, 6), dispersion=2.0), BEGUN, 16, 0.1) == Trial(BEGUN), (
        "nor with tasks that differ"
    )


def test_a_trial_is_measured_against_the_most_there_were() -> None:
    """Workers that were dismissed half a minute ago have finished some of the tasks."""
    falling = replace(make_signals(4, 4), samples=(*make_samples(4, 9)[:8], *make_samples(4, 4)[8:]))
    assert Trial.after(falling, None, 8, 0.1) == Trial({"at": 1000.0, "workers": 9, "rate": 4.0})


@pytest.mark.parametrize("age", [30.0, 41.0, 1000.0])
def test_without_new_metrics_nothing_is_judged(age: float) -> None:
    old = replace(make_signals(4, 8), now=1000.0 + age)
    assert Trial.after(old, BEGUN, 16, 0.1) == Trial()
    assert Trial.after(replace(old, samples=()), BEGUN, 16, 0.1) == Trial()


def test_a_pause_ends() -> None:
    paused = {"until": 1200.0, "more": 4.0, "gain": 0.0}
    during = Trial.after(make_signals(4, 8), paused, 16, 0.1)
    assert (during.useless, during.memory) == (True, paused)
    over = {**paused, "until": 1000.0}
    assert Trial.after(make_signals(4, 8), over, 8, 0.1) == Trial()
    assert Trial.after(make_signals(4, 8), over, 16, 0.1) == Trial({"at": 1000.0, "workers": 8, "rate": 4.0}), (
        "it begins another trial"
    )


# -- Through the policy ------------------------------------------------------------------------------------------------


def run(finish: Callable[[int], float], arriving: int, seconds: float) -> list[Decision]:
    """Runs the policy on a queue with `arriving` tasks a second, whose workers together finish `finish(workers)`."""
    samples: list[Sample] = []
    workers: list[int] = [2]
    memory: Memory = None
    said, finished, arrived = [], 0.0, 0
    for tick in range(round(seconds / 5)):
        up = workers[max(0, len(workers) - 3)]  # the workers of two ticks ago
        pace = finish(up)
        finished, arrived = finished + 5 * pace, arrived + 5 * arriving
        pending = max(0, arrived - round(finished))
        sample = Sample(
            tick * 5.0,
            pending,
            min(up, pending),
            min(25.0, pending / pace),
            arrived=arrived,
            finished=round(finished),
            workers=workers[-1],
        )
        samples = [*samples, sample][-SAMPLES:]
        fleet = Fleet(min(up, workers[-1]), (10.0,) * max(0, workers[-1] - up))
        signals = Signals(tick * 5.0, LIMITS, tuple(samples), fleet, service=up / pace)
        decision = Deadline().decide(signals, memory)
        memory = json.loads(json.dumps(decision.memory))
        workers.append(decision.workers)
        said.append(decision)
    return said


def test_where_something_else_is_the_limit_it_stops_adding_and_tries_again_later() -> None:
    """The database does 4 tasks a second, whatever the number of workers."""
    said = run(lambda workers: min(4.0, 2.0 * workers), 5, 1200)
    stopped = [n for n, decision in enumerate(said) if decision.bound_by == "no gain"]
    assert stopped
    first = stopped[0]
    paused = [n for n in range(first, len(said)) if said[n].workers == said[first].workers]
    assert [*range(first, first + 60)] == paused[:60], "the pause lasts five minutes"
    assert "no more, because the last " in said[first].reason
    assert said[first].wanted == said[first].workers == said[first - 1].workers
    again = said[first + 60 :]
    assert any(decision.workers > said[first].workers for decision in again)
    assert any(decision.bound_by == "no gain" for decision in again), "it finds no gain again"


def test_where_they_help_it_goes_on() -> None:
    said = run(lambda workers: 1.0 * workers, 20, 600)
    assert not [decision for decision in said if decision.bound_by == "no gain"]
    assert max(decision.workers for decision in said) >= 20
