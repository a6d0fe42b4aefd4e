"""Evidence for retries: the real shares of success, and a suggested schedule only if there is enough evidence."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from made_lake import World
from penstock import NotFound, Penstock, retry
from penstock.cli.terminal.queue_settings import format_strategy as spelt
from penstock.client.database import Database
from penstock.client.workers import set_kinds
from penstock.pipeline.lake import Lake
from penstock.pipeline.lake.schemas import AGES
from penstock.pipeline.learn.evidence import Evidence, find_evidence, present_plans
from penstock.pipeline.learn.retry_advice import (
    MIN_RETRIES,
    Chance,
    Chances,
    RetryPlan,
    advise,
    format_code,
    list_candidates,
    predict,
)
from penstock.pipeline.learn.wilson import wilson_interval
from penstock.retry import Delays, Exponential, Fibonacci, Fixed, Progressive, Strategy

PRESENT = RetryPlan(Exponential("20s", 2, "1h", 0.1), 6)


@pytest.fixture(scope="module")
def found(spark: SparkSession, made: Lake) -> list[Evidence]:
    return find_evidence(spark, made, {("orders", ""): PRESENT})


def test_shares_are_those_of_the_attempts(found: list[Evidence], world: World) -> None:
    assert {(one.queue, one.kind) for one in found} == {(row["queue"], row["kind"]) for row in world.attempts}
    for one in found:
        rows = [row for row in world.of(one.queue) if row["kind"] == one.kind]
        again = [row for row in rows if row["attempt"] > 1]
        assert one.first.tries == len(rows) - len(again)
        assert one.retries.tries == len(again)
        assert one.retries.successes == sum(row["outcome"] == "done" for row in again)
        assert one.retries.seconds == pytest.approx(sum(row["run_s"] for row in again))
        by_attempt = Counter(row["attempt"] for row in rows)
        assert {attempt: chance.tries for attempt, chance in one.attempts} == by_attempt
        by_age = Counter(max(age for age in AGES if age <= row["age_s"]) for row in again)
        assert {age: chance.tries for age, chance in one.ages} == by_age
        assert sum(cell.chance.tries for cell in one.cells) == len(rows)


def test_errors_and_what_they_cost(found: list[Evidence], world: World) -> None:
    one = next(one for one in found if (one.queue, one.kind) == ("orders", "mail"))
    rows = [row for row in world.of("orders") if row["kind"] == "mail"]
    for met in one.fingerprints:
        own = [row for row in rows if row["fingerprint"] == met.fingerprint]
        assert met.cost == pytest.approx(sum(row["run_s"] for row in own))
        assert met.shape == f"{own[0]['error_class']}: {own[0]['error_shape']}"
        after = {(row["task_id"], row["attempt"] + 1) for row in own}
        assert met.chance.tries == sum((row["task_id"], row["attempt"]) in after for row in rows)


def test_it_can_be_printed(found: list[Evidence]) -> None:
    told = json.loads(json.dumps([one.to_json() for one in found]))
    assert told[0]["queue"] == "orders"
    assert told[0]["advice"]["present"]["waits"] == [20, 40, 80, 160, 320]
    least, most = told[0]["retries"]["surely_between"]
    assert least < told[0]["retries"]["share"] < most


def test_a_queue_that_the_lake_does_not_know(spark: SparkSession, made: Lake) -> None:
    with pytest.raises(NotFound, match="order") as refused:
        find_evidence(spark, made, {}, queue="order")
    assert refused.value.hint == "Did you mean orders?"
    assert {one.queue for one in find_evidence(spark, made, {}, queue="mail")} == {"mail"}


def test_present_plans_are_those_of_kinds_and_queues(app: Penstock, database: Database) -> None:
    app.create_queue("mail", retry=Fibonacci("1m"), max_attempts=5)
    app.create_queue("rest", retry=Fixed("30s"))

    set_kinds(database, "mail", [{"kind": "invoice", "retry": Fixed("5m").to_json(), "max_attempts": 2}])
    plans = present_plans(database)
    assert plans["mail", ""] == RetryPlan(Fibonacci("1m"), 5)
    assert plans["mail", "invoice"] == RetryPlan(Fixed("5m"), 2)
    assert plans["rest", ""].strategy == Fixed("30s")


# --- Wilson -----------------------------------------------------------------------------------------------------------


def test_wilsons_interval() -> None:
    """It equals the figures of a textbook, and its definition: the shares that are z standard deviations away."""
    least, most = wilson_interval(8, 10)
    assert [round(least, 4), round(most, 4)] == [0.4902, 0.9433]
    for end in (least, most):
        assert abs(0.8 - end) / math.sqrt(end * (1 - end) / 10) == pytest.approx(1.96)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10**6), st.floats(0, 1))
@settings(deadline=None)
def test_the_share_is_inside(tries: int, share: float) -> None:
    successes = round(share * tries)
    least, most = wilson_interval(successes, tries)
    assert 0 <= least <= successes / tries + 1e-12
    assert successes / tries - 1e-12 <= most <= 1


# --- a schedule -------------------------------------------------------------------------------------------------------


def ages(*pairs: tuple[float, int, int], end: float = 14_400.0) -> Chances:
    """Makes chances of (age, tries, successes), with one second of work per try."""
    return Chances.by_age(((age, Chance(tries, good, float(tries))) for age, tries, good in pairs), end)


OUTAGE = ages((0, 500, 10), (60, 500, 20), (900, 400, 360), (3600, 100, 90))  # an outage of a quarter of an hour


def test_a_prospect_is_counted_step_by_step() -> None:
    told = predict(RetryPlan(Delays(["10s", "20m"]), 10), ages((0, 100, 20), (900, 100, 50)))
    assert told.recovered == pytest.approx(0.2 + 0.8 * 0.5)
    assert told.retries == pytest.approx(1 + 0.8)
    assert told.until == pytest.approx((0.2 * 10 + 0.4 * 1210) / 0.6)
    assert told.seconds == pytest.approx(0.8 + 0.4)
    assert told.least == pytest.approx(told.recovered)  # each is in a bucket of its own
    twice = predict(RetryPlan(Delays(["10s", "10s"]), 10), ages((0, 100, 20), (900, 100, 50)))
    assert (round(twice.recovered, 6), round(twice.least, 6)) == (0.36, 0.2)


def test_tries_that_may_be_alike_are_not_saved() -> None:
    """A third of all tries succeed, at any time: many tries are worth it. So are few, if they all end alike."""
    told = advise(ages((0, 300, 100), (60, 300, 100), (300, 300, 100)), RetryPlan(Fixed("30s"), 11))
    assert told.present is not None
    assert told.present.recovered > 0.98
    if told.suggested is not None:
        assert told.suggested.recovered > 0.97


def test_an_outage_is_waited_for() -> None:
    hasty = RetryPlan(Fixed("30s"), 60)
    told = advise(OUTAGE, hasty)
    assert told.present is not None
    assert told.suggested is not None
    assert told.suggested.recovered >= told.present.recovered - 0.005
    assert told.suggested.retries < 0.5 * told.present.retries
    assert told.suggested.until <= 2 * told.present.until
    assert "recover after" in told.said
    assert "90 % of 400" in told.said


def test_what_is_good_is_kept() -> None:
    best = advise(OUTAGE, RetryPlan(Fixed("30s"), 60)).suggested
    assert best is not None
    told = advise(OUTAGE, best.plan)
    assert told.suggested is None
    assert told.said.startswith("Keep it")


@pytest.mark.parametrize("seen", [0, 1, MIN_RETRIES - 1])
def test_too_little_evidence_is_reported(seen: int) -> None:
    told = advise(ages((60, seen, seen // 2)) if seen else ages(), PRESENT)
    assert told.suggested is None
    assert told.said == f"Too little is known: {seen} retries were seen, {MIN_RETRIES} are needed."


def test_an_error_that_never_recovers_gets_no_schedule() -> None:
    told = advise(ages((60, 1000, 0)), PRESENT)
    assert told.suggested is None
    assert "errors that must be mended" in told.said


def test_there_is_a_suggestion_without_a_present_plan() -> None:
    told = advise(OUTAGE, None)
    assert told.present is None
    assert told.suggested is not None
    assert told.suggested.recovered > 0.9


@given(
    st.lists(
        st.tuples(st.sampled_from(AGES), st.integers(0, 300), st.floats(0, 1)), max_size=8, unique_by=lambda a: a[0]
    ),
    st.sampled_from(
        [PRESENT, RetryPlan(Fixed("1s"), None), RetryPlan(Progressive(), 30), RetryPlan(Delays(["1h"]), 5), None]
    ),
)
@settings(max_examples=40, deadline=None)
def test_a_suggestion_is_never_worse(seen: list[tuple[int, int, float]], present: RetryPlan | None) -> None:
    chances = ages(*((age, tries, round(share * tries)) for age, tries, share in seen if tries), end=7_200_000.0)
    told = advise(chances, present)
    if told.suggested is not None and told.present is not None:
        assert told.suggested.recovered >= told.present.recovered - 0.005
        assert told.suggested.least >= told.present.least - 0.005
        assert told.suggested.until <= 2 * told.present.until
        assert told.suggested.retries <= told.present.retries
    if told.suggested is not None:
        first = next(iter(told.suggested.plan.waits()))[0]
        assert first >= min(age for age, tries, _ in seen if tries)  # never sooner than any try so far


@pytest.mark.parametrize(
    "strategy",
    [
        Fibonacci("90s"),
        Fibonacci("1m", cap="1d"),
        Exponential("250ms", 1.5, None, 0),
        Exponential("30s", 3, "1d", 0.1),
        Fixed("1.5s"),
        Delays(["1m", "90m", "36h"]),
        Progressive(),
    ],
)
def test_what_is_suggested_can_be_pasted(strategy: Strategy) -> None:
    names = {name: getattr(retry, name) for name in ("Fibonacci", "Exponential", "Fixed", "Delays", "Progressive")}
    assert eval(format_code(strategy), names) == strategy
    waits = [strategy.delay(n, timedelta(hours=n)) for n in range(1, 4)]
    pasted = retry.parse(spelt(strategy.to_json()))
    if not (isinstance(strategy, Exponential) and strategy.cap is None):  # which the shell cannot express
        assert [pasted.delay(n, timedelta(hours=n)) for n in range(1, 4)] == waits


def test_there_are_not_too_many_to_look_at() -> None:
    assert (
        len({(format_code(one.strategy), one.max_attempts) for one in list_candidates()})
        == len([*list_candidates()])
        < 1000
    )
