"""What a promise would have cost: on Spark the same as in the simulator, by a sample nearly so, and out of a lake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from pyspark.sql import SparkSession

from conftest import Clock
from penstock import NewTask, Outcome, Penstock
from penstock.errors import ConfigError, NotFound, PenstockError, ValidationError
from penstock.pipeline import backtest as bt
from penstock.pipeline.backtest.estimate import Estimate, estimate
from penstock.pipeline.backtest.play import PlayedRun, cut_parts, measure
from penstock.pipeline.backtest.stratified import (
    WINDOW,
    Z_95,
    PlayedWindow,
    Recording,
    WindowSample,
    draw_sample,
    weighted_quantile,
)
from penstock.pipeline.lake import Lake
from penstock.pipeline.learn.arrivals import add_missing, from_lake, resample
from penstock.pipeline.run import run
from penstock.pipeline.work import working
from penstock.scaler.judge import judge, traces
from penstock.scaler.judge.simulate import simulate
from penstock.scaler.policy import policies
from penstock.scaler.policy.signals import Limits
from shell import COMMAND, each, environment, is_one_block, penstock

LIMITS = Limits(30.0, start_latency=10.0)
TOLERATED_COST = 0.05  # share of the cost by which a sample may be off; in fact it is about 1 %
TOLERATED_LATE = 0.005  # of all tasks


# --- on Spark -----------------------------------------------------------------------------------------------------


def test_the_same_as_the_simulator_says(spark: SparkSession) -> None:
    """Runs equal those of the simulator and bounds those of the judge; every contender has its own number."""
    made = [traces.named("spikes", seed=seed, duration=3600, tasks=3000) for seed in range(2)]
    chosen = tuple(bt.contenders(["deadline", "hybrid"], ["deadline:z=0.5,2"]))
    told: list[tuple[int, int]] = []
    question = bt.Question(tuple(map(Recording.of, made)), chosen, (20.0, 60.0), LIMITS)
    answer = bt.backtest(spark, question, watch=lambda done, of: told.append((done, of)))
    assert [one.score.policy for one in answer.verdicts] == [*(one.label for one in chosen)] * 2
    assert told[0] == (0, 12)
    assert told[-1] == (12, 12)
    for one, found in zip([*chosen, *chosen], answer.verdicts, strict=True):
        cases = [judge.case(trace, replace(LIMITS, sla=found.sla)) for trace in made]
        expected = judge.judge(one.policy, cases)
        for name in ("breach_rate", "worker_seconds", "cost_ratio", "starts", "max_wait", "excess_breach_rate"):
            assert getattr(found.score, name) == pytest.approx(getattr(expected, name)), name
        assert (found.score.seeds, found.late_margin, found.workers_margin) == (2, 0.0, 0.0)
        assert found.workers == pytest.approx(expected.worker_seconds / 3600)
    (cover,) = answer.coverage
    assert (cover.whole, cover.played, cover.tasks) == (True, len(made[0].due), len(made[0].due))
    for promise in answer.promises:
        own = [one for one in answer.verdicts if one.sla == promise.sla]
        assert promise.cheapest is min((one for one in own if one.kept), key=lambda one: one.workers)
        assert promise.sentence.startswith(
            f"a {promise.sla:g} s promise would have cost {promise.cheapest.workers:.1f}"
        )


def test_a_promise_that_no_policy_keeps(spark: SparkSession) -> None:
    made = traces.named("spikes", duration=1800, tasks=1800)
    chosen = tuple(bt.contenders(["static"], ["workers=1,2"]))
    question = bt.Question((Recording.of(made),), chosen, (5.0,), LIMITS, max_workers=2, solve=False)
    (promise,) = bt.backtest(spark, question).promises
    assert promise.cheapest is None
    assert "would have been kept by none of 2; static workers=2 came nearest" in promise.sentence


def test_what_fails_on_an_executor_is_told(spark: SparkSession) -> None:
    made = Recording.of(traces.named("spikes", duration=600, tasks=100))
    broken = bt.Contender(policies.find("deadline"), "deadline", {})
    question = bt.Question((replace(made, service=-made.service),), (broken,), (5.0,), LIMITS, solve=False)
    with pytest.raises(ConfigError, match="busy_seconds: -"):
        bt.backtest(spark, question)


# --- sampled ----------------------------------------------------------------------------------------------------------


def played(recording: Recording, policy: str, sla: float, most: int) -> Estimate:
    """Plays a policy over a sample without Spark."""
    limits = replace(LIMITS, sla=sla, max_workers=40)
    sample = draw_sample(recording, most, ahead=2 * sla + 15)
    one = PlayedRun(0, limits, policies.find(policy))
    rows: Any = [{"window": n, **measure(part, one)} for n, part in enumerate(cut_parts(recording, sample))]
    assert sample.whole == (most >= len(recording))
    return estimate(recording, sample, None, one, rows)


@pytest.mark.parametrize(
    ("trace", "policy"),
    [("spikes", "hybrid"), pytest.param("diurnal", "deadline", marks=pytest.mark.slow), ("steps", "hybrid")],
)
def test_a_sample_says_what_the_whole_does(trace: str, policy: str) -> None:
    """Two fifths of a day are played, warm-ups included."""
    recording = Recording.of(traces.named(trace, duration=86_400, tasks=20_000, service=15.0))
    whole, part = (played(recording, policy, 30.0, most) for most in (10**9, 8_000))
    assert part.workers == pytest.approx(whole.workers, rel=TOLERATED_COST)
    assert abs(part.score.breach_rate - whole.score.breach_rate) <= TOLERATED_LATE
    assert part.score.p50_wait == pytest.approx(whole.score.p50_wait, abs=1.0)
    assert part.score.starts == pytest.approx(whole.score.starts, rel=0.35)
    assert whole.workers_error == 0.0 < part.workers_error


def test_a_part_of_a_trace_is_judged_by_itself() -> None:
    """The scores of two halves add up to the score of the whole."""
    trace, policy = traces.named("steps", duration=7200, tasks=6000), policies.find("hybrid")
    limits = replace(LIMITS, max_workers=30)
    whole, first, second = (
        simulate(trace, policy, limits, judged=one) for one in ((0.0, 7200.0), (0.0, 3600.0), (3600.0, 7200.0))
    )
    assert whole.tasks == first.tasks + second.tasks == len(trace.due)
    assert whole.breaches == first.breaches + second.breaches
    assert whole.worker_seconds == pytest.approx(first.worker_seconds + second.worker_seconds)
    assert (whole.starts, whole.flips) == (first.starts + second.starts, first.flips + second.flips)
    all_of_it = simulate(trace, policy, limits)
    assert (all_of_it.tasks, all_of_it.breaches) == (whole.tasks, whole.breaches)
    assert all_of_it.waits == whole.waits


def test_strata_and_what_they_estimate() -> None:
    recording = Recording.of(traces.named("spikes", duration=86_400, tasks=20_000))
    sample = draw_sample(recording, 5_000, ahead=60.0)
    assert sum(sample.strata) == 48
    assert sum(sample.weights()) == pytest.approx(48)
    assert all(one.until - one.since == WINDOW and one.begin >= 0 for one in sample.windows)
    assert len({one.since for one in sample.windows}) == len(sample.windows)
    assert draw_sample(recording, 5_000, ahead=60.0) == sample, "a sample is the same every time"
    total, off = sample.total([3.0] * len(sample.windows))
    assert total == pytest.approx(144.0)
    assert off == 0.0
    tasks = [len(recording.cut(one.since, one.until).due) for one in sample.windows]
    work = [recording.work(one.since, one.until) for one in sample.windows]
    total, off = sample.total_by(work, work, float(recording.service.sum()))
    assert total == pytest.approx(float(recording.service.sum()))
    assert off == pytest.approx(0.0, abs=1e-6)
    estimate, error = sample.total(tasks)
    assert abs(estimate - len(recording)) < 4 * error


def test_a_margin_holds_what_it_promises() -> None:
    """About 95 in 100 samples of known numbers are within their margin; small strata make it a little less."""
    random = np.random.default_rng(1)
    values, inside = random.gamma(2.0, 1.0, 600), 0
    order = np.argsort(values + random.normal(0, 1, 600))
    for _ in range(400):
        windows, chosen = [], []
        for stratum in range(20):
            for n in random.choice(order[stratum * 30 : stratum * 30 + 30], 2, replace=False):
                windows.append(PlayedWindow(0, 0, 1, 1, stratum))
                chosen.append(float(values[n]))
        estimate, error = WindowSample(tuple(windows), (30,) * 20, whole=False).total(chosen)
        inside += abs(estimate - values.sum()) <= Z_95 * error
    assert inside / 400 > 0.88


def test_quantiles_by_weight() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 8.0])
    assert [weighted_quantile(values, weights, share) for share in (0.05, 0.5, 0.9, 0.99)] == [1.0, 2.0, 2.0, 3.0]
    assert weighted_quantile(np.array([]), np.array([]), 0.5) == 0.0


# --- contenders -------------------------------------------------------------------------------------------------------


def test_knobs() -> None:
    found = bt.contenders(
        ["deadline", "hybrid", "keda-pending"],
        ["z=0.5,2", "deadline:patience=10,20", "numbers.window=30"],
        [{"policy": "static", "workers": 7}, {"policy": "cboxdk", "forecast": False}],
    )
    assert [one.label for one in found] == [
        "deadline z=0.5 patience=10",
        "deadline z=0.5 patience=20",
        "deadline z=2 patience=10",
        "deadline z=2 patience=20",
        "hybrid numbers.window=30",
        "keda-pending",
        "static workers=7",
        "cboxdk forecast=False",
    ]
    policy: Any = found[3].policy
    assert (policy.z, policy.patience, policy.z_service) == (2.0, 20.0, 2.0)
    hybrid: Any = found[4].policy
    assert hybrid.numbers.window == 30.0


@pytest.mark.parametrize(
    ("grid", "sets", "said"),
    [
        (["z"], [], "grid: 'z'"),
        (["z="], [], "grid: 'z='"),
        (["zz=1"], [], "is a knob of none"),
        (["hybrid:z=1"], [], "hybrid is not among"),
        (["z=much"], [], "z: 'much' is not a number"),
        (["z=nan"], [], "z: 'nan' is not a number"),
        ([], [{"z": 1}], "does not name a policy"),
        ([], ["deadline"], "does not name a policy"),
        ([], [{"policy": "deadlien"}], "is not known"),
        ([], [{"policy": "deadline", "patiense": 1}], "is no knob of deadline"),
        ([], [{"policy": "static", "workers": 1.5}], "is not a whole number"),
        ([], [{"policy": "cboxdk", "forecast": "perhaps"}], "is not true or false"),
    ],
)
def test_knobs_that_are_none(grid: list[str], sets: list[Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        bt.contenders(["deadline"], grid, sets)


# --- out of a lake ----------------------------------------------------------------------------------------------------

BEGIN = datetime(2026, 10, 24, 22, 0, tzinfo=UTC)


@pytest.mark.slow
def test_arrivals_of_a_lake(
    spark: SparkSession, app: Penstock, dsn: str, sql: psycopg.Connection, clock: Clock, tmp_path: Path
) -> None:
    """Each attempt arrives when it was due and has its real duration. A retry is known since the failure, a planned
    task since its push, and tasks that still wait come from samples."""

    def at(seconds: float) -> None:
        sql.execute("update penstock_test.clock set fixed = %s, shift = '0'", (BEGIN + timedelta(seconds=seconds),))

    def sample() -> None:
        sql.execute("select penstock._take_samples()")

    at(0)
    mail = app.create_queue("mail", sla="30s", retry="fixed:100s")
    app.create_queue("other", sla="30s").push()
    sample()
    at(600)
    mail.push_many([{}, {}])
    mail.push_many([NewTask({}, due=BEGIN + timedelta(seconds=1200))])
    sample()
    at(610)
    claim = mail.claim(10)
    at(615)
    mail.settle(claim, {claim.ids[0]: Outcome.done(), claim.ids[1]: Outcome.failed("no")})
    sample()
    at(1230)
    claim = mail.claim(10)
    at(1232)
    mail.settle(claim, dict.fromkeys(claim.ids, Outcome.done()))
    sample()
    at(1800)
    mail.push_many([{}] * 40)
    at(1810)
    sample()
    at(3 * 3600)
    sample()
    place = tmp_path / "lake"
    with working(spark, place, dsn=dsn) as work:
        run(work)
    found, other = from_lake(spark, Lake(place), queue="mail", seeds=2)
    begun = sorted(zip(found.due.tolist(), found.service.tolist(), found.known.tolist(), strict=True))
    first = [tuple(round(value, 3) for value in one) for one in begun]
    for expected in ((600.0, 5.0, 600.0), (715.0, 2.0, 615.0), (1200.0, 2.0, 600.0)):
        assert expected in first
    assert len(found) == 4 + 40
    assert found.duration == 3600.0
    (note,) = found.notes
    assert note.startswith("40 arrivals (90.9 %) are known by samples only")
    assert {*np.round(found.service, 3)} == {2.0, 5.0}

    assert (len(other), {*np.round(other.service, 3)}) == (44, {2.0, 5.0})
    assert resample(found, 0) is found
    with pytest.raises(NotFound, match="has no attempt of 'mial'"):
        from_lake(spark, Lake(place), queue="mial")
    with pytest.raises(ValidationError, match="nothing of mail was due"):
        from_lake(spark, Lake(place), queue="mail", since=BEGIN + timedelta(days=3))

    chosen = tuple(bt.contenders(["deadline", "hybrid"]))
    answer = bt.backtest(spark, bt.Question((found,), chosen, (30.0,), replace(LIMITS, min_workers=0)))
    assert answer.coverage[0].notes == found.notes
    assert all(one.score.tasks == 44 for one in answer.verdicts)


def test_an_empty_lake(spark: SparkSession, app: Penstock, dsn: str, tmp_path: Path) -> None:
    app.create_queue("mail")
    with working(spark, tmp_path / "lake", dsn=dsn) as work:
        run(work)
    with pytest.raises(ValidationError, match="the lake has no attempts"):
        from_lake(spark, Lake(tmp_path / "lake"))


def test_a_few_missing_tasks_are_not_added() -> None:
    made = Recording.of(traces.named("diurnal", duration=7200, tasks=10_000))
    assert add_missing(made, [(0.0, 3)], seed=0) is made
    more = add_missing(made, [(3600.0, 500)], seed=0)
    assert len(more) == len(made) + 500
    assert bool((np.diff(more.due) >= 0).all())
    assert int((more.due >= 3600).sum()) == int((made.due >= 3600).sum()) + 500


# --- the command ------------------------------------------------------------------------------------------------------


def test_what_is_refused_before_spark_starts(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text("{}")
    commands: tuple[tuple[tuple[str, ...], str], ...] = (
        ((), "lake, trace"),
        (("--lake", "x", "--trace", "spikes"), "lake, trace"),
        (("--trace", "spikes", "--queue", "mail"), "they need --lake"),
        (("--trace", "spikes", "--policies", "deadlien"), "Did you mean deadline?"),
        (("--trace", "spikes", "--policies", " , "), "none is named"),
        (("--trace", "spikes", "--sla", "0s"), "sla"),
        (("--trace", "spikes", "--sla", "soon"), "sla"),
        (("--trace", "spikes", "--seeds", "0"), "seeds"),
        (("--trace", "spikes", "--knobs", str(tmp_path / "none")), "knobs"),
        (("--trace", "spikes", "--knobs", str(odd)), "is not a list"),
        (("--trace", "spikes", "--grid", "zz=1"), "is a knob of none"),
        (("--trace", "spiky"), "Did you mean spikes?"),
        (("--trace", "spikes", "--plot", str(tmp_path / "no" / "x.svg")), "plot"),
    )
    base = ("pipeline", "backtest")
    for ran, (_, said) in zip(each(*((*base, *one) for one, _ in commands)), commands, strict=True):
        assert ran.code in (2, 3), ran.err
        assert is_one_block(ran.err), ran.err
        assert said in ran.err
    missing = penstock(*base, "--lake", str(tmp_path / "lake"))
    assert (missing.code, "lake: there is none" in missing.err) == (1, True)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    told = ("--tasks", "1500", "--duration", "30m", "--policies", "deadline", "--grid", "z=0,3", "--master", "local[2]")
    ran = penstock(
        "pipeline",
        "backtest",
        "--trace",
        "spikes",
        *told,
        "--sla",
        "20s,60s",
        "--plot",
        str(tmp_path / "f.svg"),
        "--json",
    )
    assert ran.code == 0, ran.err
    found = ran.json
    assert [one["label"] for one in found["verdicts"]] == ["deadline z=0", "deadline z=3"] * 2
    assert [one["sla"] for one in found["promises"]] == [20.0, 60.0]
    assert all(one["text"].startswith(f"a {one['sla']:g} s promise would have ") for one in found["promises"])
    assert found["coverage"][0]["whole"] is True
    assert [Path(one).name for one in found["plots"]] == ["f-20s.svg", "f-60s.svg"]
    assert "deadline z=3" in (tmp_path / "f-60s.svg").read_text()
    assert ran.err == ""


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """No Java and no Python process goes on."""
    told = ("--trace", "diurnal", "--tasks", "2000000", "--duration", "20d", "--policies", "deadline", "--no-bound")
    with subprocess.Popen(
        [*COMMAND, "pipeline", "backtest", *told, "--master", "local[2]", "--most-tasks", "100000000"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        time.sleep(25)  # its Spark may be up by then or not
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    deadline = time.monotonic() + 30
    while members(process.pid):
        assert time.monotonic() < deadline, members(process.pid)
        time.sleep(0.2)


def members(session: int) -> list[str]:
    """Returns the processes of a session that still run."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal():
            try:
                if os.getsid(int(one.name)) == session:
                    found.append((one / "cmdline").read_text().replace("\0", " ")[:80])
            except OSError:
                continue
    return found


def test_answers_are_json(spark: SparkSession) -> None:
    made = Recording.of(traces.named("spikes", duration=600, tasks=300))
    answer = bt.backtest(spark, bt.Question((made,), tuple(bt.contenders(["static"])), (30.0,), LIMITS, solve=False))
    json.dumps([one.to_json() for one in answer.verdicts] + [one.to_json() for one in answer.coverage])
