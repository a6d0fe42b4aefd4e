"""Profiles: every number equals that of plain Python over the same rows; running tasks are censored, not ignored."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean, pvariance, variance
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conftest import Clock
from made_lake import BEGINS, World, make_lake, minutes, percentile, since_begin
from penstock import NotFound, Penstock, Queue, ValidationError
from penstock.client import profiles
from penstock.client.database import Database
from penstock.model import Latency, RunningTasks
from penstock.pipeline.lake import Lake, LakeState
from penstock.pipeline.learn.profile import learn_profiles, make_profiles
from penstock.pipeline.learn.service_times import (
    PRIOR_RUNS,
    Runs,
    estimate_survival,
    find_bucket,
    find_quantile,
    lower_end,
    summarize_service,
)
from penstock.scaler.policy.forecast import HOURS, Profile, hour_of_week


@pytest.fixture(scope="module")
def learnt(spark: SparkSession, made: Lake) -> dict[str, dict[str, Any]]:
    running = [RunningTasks("orders", "mail", 20, 5, 600.0), RunningTasks("unknown", "mail", 1, 1, 2.0)]
    return {one["queue"]: one for one in learn_profiles(spark, made, running, [Latency("orders", 7, 3.0, 9.5)])}


def test_arrivals_by_the_hour_of_the_week(learnt: dict[str, dict[str, Any]], world: World) -> None:
    for queue in world.queues:
        data = learnt[queue.name]["data"]
        counts = defaultdict(list)
        for row in minutes(world, queue):
            counts[hour_of_week(row["minute"].timestamp())].append(row["arrivals_sampled"])
        for hour in range(HOURS):
            seen = counts.get(hour, [])
            assert data["hours"]["minutes"][hour] == len(seen)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                expected = percentile(seen, share)
                assert data["hours"][name][hour] == (None if expected is None else pytest.approx(expected))
        assert data["level"] == pytest.approx(fmean(n for seen in counts.values() for n in seen))
        within = sum((len(seen) - 1) * variance(seen) for seen in counts.values())
        assert data["dispersion"] == pytest.approx(
            within / sum((len(seen) - 1) * fmean(seen) for seen in counts.values())
        )


def test_what_it_covers(learnt: dict[str, dict[str, Any]]) -> None:
    one = learnt["orders"]
    assert datetime.fromisoformat(one["covers_from"]).timestamp() == BEGINS
    assert datetime.fromisoformat(one["covers_to"]).timestamp() == BEGINS + 13 * 3600
    assert sum(one["data"]["hours"]["minutes"]) == one["data"]["minutes"] == 13 * 60


def test_service_times(learnt: dict[str, dict[str, Any]], world: World) -> None:
    rows = world.of("orders")
    found = learnt["orders"]["data"]["service"]
    times = [max(0.001, row["run_s"]) for row in rows]
    assert (found["ended"], found["censored"]) == (len(rows), 5)
    assert found["mean"] == pytest.approx((sum(times) + 600) / len(rows))
    assert found["cv"] == pytest.approx(math.sqrt(pvariance(times)) / fmean(times))
    for kind in ("mail", "invoice"):
        own = [max(0.001, row["run_s"]) for row in rows if row["kind"] == kind]
        spent = sum(own) + (600 if kind == "mail" else 0)
        assert found["kinds"][kind]["runs"] == len(own)
        assert found["kinds"][kind]["mean"] == pytest.approx(
            (spent + PRIOR_RUNS * found["mean"]) / (len(own) + PRIOR_RUNS)
        )
    counts = Counter(math.floor(10 * math.log10(one)) for one in times)
    assert sum(share for _, share in found["buckets"]) + found["beyond"] == pytest.approx(1.0)
    assert {bucket for bucket, _ in found["buckets"]} == {*counts}
    by_share = dict(map(tuple, found["buckets"]))
    for bucket, count in counts.items():  # up to the first tasks that still run, as if there were none
        if bucket <= 20:
            assert by_share[bucket] == pytest.approx(count / (len(rows) + 5))


def test_workers_start(learnt: dict[str, dict[str, Any]]) -> None:
    assert learnt["orders"]["data"]["start"] == {"workers": 7, "p50": 3.0, "p90": 9.5}
    assert learnt["mail"]["data"]["start"] is None


def test_nothing_depends_on_the_time_zone_of_a_session(
    spark: SparkSession, made: Lake, learnt: dict[str, dict[str, Any]]
) -> None:
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    again = {one["queue"]: one for one in learn_profiles(elsewhere, made)}
    for queue, one in learnt.items():
        assert again[queue]["data"]["hours"] == one["data"]["hours"]
        assert again[queue]["covers_from"] == one["covers_from"]


def test_a_queue_can_be_chosen_and_a_lake_be_empty(spark: SparkSession, made: Lake, tmp_path: Path) -> None:
    assert [one["queue"] for one in learn_profiles(spark, made, queues=["mail"])] == ["mail"]
    empty = Lake(tmp_path / "empty")
    with empty.writing():
        empty.begin(LakeState(id="empty", system="1", database=1))
    assert learn_profiles(spark, empty) == []


def test_the_scaler_reads_what_was_learnt(learnt: dict[str, dict[str, Any]]) -> None:
    for one in learnt.values():
        stored = json.loads(json.dumps(one["data"]))
        profile = Profile.from_json(stored, version=one["version"], made=float(BEGINS))
        assert sum(value is not None for value in profile.p50) == 13
        assert profile.usual(BEGINS) == pytest.approx(one["data"]["hours"]["p50"][12] / 60)


# --- tasks that still run ---------------------------------------------------------------------------------------------

TIMES = st.lists(st.tuples(st.floats(0.0005, 5000), st.booleans()), min_size=1, max_size=40)


@given(TIMES)
@settings(max_examples=200, deadline=None)
def test_survival_is_kaplan_and_meiers(times: list[tuple[float, bool]]) -> None:
    """It equals a computation task by task, in which tasks that end come before censored ones of the same bucket."""
    seen = sorted((find_bucket(seconds), not ended) for seconds, ended in times)
    alive, left = 1.0, len(seen)
    expected: dict[int, float] = defaultdict(float)
    for bucket, cut in seen:
        if not cut:
            expected[bucket] += alive / left
            alive -= alive / left
        left -= 1
    ended = Counter(bucket for bucket, cut in seen if not cut)
    shares, beyond = estimate_survival(ended, Counter(bucket for bucket, cut in seen if cut))
    assert shares == pytest.approx(dict(expected))
    assert beyond == pytest.approx(alive, abs=1e-9)


def test_slow_tasks_that_run_make_a_queue_look_slower() -> None:
    fast = Runs("k", find_bucket(1.0), True, 90, 90.0, 90.0)
    stuck = Runs("k", find_bucket(100.0), False, 10, 1000.0)
    without, told = summarize_service([fast]), summarize_service([fast, stuck])
    assert without is not None
    assert told is not None
    assert (without["mean"], told["mean"]) == (1.0, pytest.approx(1090 / 90))
    assert told["beyond"] == pytest.approx(0.1)
    assert told["p99"] is None  # not known
    assert told["p90"] == pytest.approx(lower_end(1))
    assert summarize_service([stuck]) is None


def test_few_runs_of_a_kind_say_little() -> None:
    told = summarize_service([Runs("usual", 0, True, 1000, 1000.0, 1000.0), Runs("rare", 20, True, 1, 100.0, 10_000.0)])
    assert told is not None
    assert told["kinds"]["rare"]["mean"] == pytest.approx((100 + PRIOR_RUNS * told["mean"]) / (1 + PRIOR_RUNS))
    assert told["kinds"]["usual"]["mean"] == pytest.approx(1.0, rel=0.01)


def test_quantiles_are_upper_ends() -> None:
    assert find_quantile({0: 0.5, 10: 0.5}, 0.5) == pytest.approx(10**0.1)
    assert find_quantile({0: 0.5, 10: 0.5}, 0.51) == pytest.approx(10**1.1)


# --- in the database --------------------------------------------------------------------------------------------------


@pytest.fixture
def database(dsn: str) -> Any:
    found = Database(dsn)
    yield found
    found.close()


def test_what_runs_now(queue: Queue, database: Database, clock: Clock) -> None:
    clock.freeze()
    queue.push_many([{"n": n} for n in range(5)])
    queue.claim(3)
    clock.advance(40)
    queue.claim(1)
    clock.advance(2.5)
    found = {one.bucket: (one.tasks, round(one.seconds, 6)) for one in profiles.running_times(database)}
    assert found == {16: (3, 127.5), 3: (1, 2.5)}
    assert find_bucket(42.5) == 16
    assert find_bucket(2.5) == 3


def test_how_long_workers_took_to_start(
    app: Penstock, queue: Queue, sql: psycopg.Connection, database: Database
) -> None:
    waits = [1.0, 2.0, 3.0, 10.0]
    for n, wait in enumerate(waits):
        app.beat(f"w{n}", [queue.name])
        sql.execute(
            "update penstock.worker set requested_at = now(), first_claim_at = now() + make_interval(secs => %s)"
            " where name = %s",
            (wait, f"w{n}"),
        )
    app.beat("idle", [queue.name])  # this worker has claimed nothing yet
    (found,) = profiles.start_latencies(database)
    assert found[:2] == (queue.name, 4)
    assert found.p50 == pytest.approx(percentile(waits, 0.5))
    assert found.p90 == pytest.approx(percentile(waits, 0.9))


def written(name: str, **changes: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    told = {
        "queue": name,
        "version": 1,
        "covers_from": now.isoformat(),
        "covers_to": now.isoformat(),
        "data": {"a": 1},
    }
    return told | changes


def test_profiles_are_kept_and_get_old(app: Penstock, queue: Queue, database: Database, clock: Clock) -> None:
    app.create_queue("other")
    clock.freeze()
    assert profiles.set_profiles(database, [written(queue.name), written("gone")]) == 1
    clock.advance(3600)
    found = {one.queue: one for one in profiles.find_profiles(database)}
    assert found[queue.name].age == timedelta(hours=1)
    assert found[queue.name].data == {"a": 1}
    assert (found["other"].made, found["other"].data) == (None, None)
    assert profiles.set_profiles(database, [written(queue.name, data={"a": 2})]) == 1
    assert [(one.data, one.age) for one in profiles.find_profiles(database, queue.name)] == [({"a": 2}, timedelta())]
    with pytest.raises(NotFound):
        profiles.find_profiles(database, "none")
    queue.drop()
    assert [one.queue for one in profiles.find_profiles(database)] == ["other"]


@pytest.mark.parametrize(
    "bad", [{"queue": None}, {"version": "1"}, {"data": []}, {"covers_from": None}, {"covers_to": None}, {"data": None}]
)
def test_an_invalid_profile_is_refused(queue: Queue, database: Database, bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="profiles"):
        profiles.set_profiles(database, [written(queue.name), written(queue.name, **bad)])
    assert profiles.find_profiles(database, queue.name)[0].made is None


def test_from_the_lake_into_the_database(
    app: Penstock, database: Database, spark: SparkSession, world: World, tmp_path: Path
) -> None:
    app.create_queue("orders")
    app.create_queue("quiet")
    small = World(1.0, world.queues[:2])
    lake = make_lake(spark, tmp_path / "lake", small)
    told = make_profiles(spark, lake, database)
    assert (told.written, told.without) == (1, ["quiet"])
    stored = profiles.find_profiles(database, "orders")[0]
    assert stored.data is not None
    assert stored.covers_from is not None
    assert since_begin(stored.covers_from) == 0
    assert stored.data["service"]["ended"] == len(small.of("orders"))
