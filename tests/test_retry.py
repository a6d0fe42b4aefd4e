"""When a failed task is tried again: SQL and Python agree to the microsecond, and both follow the design."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from psycopg import Connection, errors

from penstock import Delays, Exponential, Fibonacci, Fixed, Penstock, Progressive, ValidationError
from penstock.retry import Strategy, from_json, parse

LONGEST = timedelta(days=3650)
MAX_FAILURES = 32_767

# -- SQL and Python agree ---------------------------------------------------------------------------------------------

Asked = tuple[int, timedelta, int]  # failures, age, seed

WAITS = st.one_of(
    st.sampled_from(
        [timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=5), timedelta(hours=1), LONGEST]
    ),
    st.timedeltas(timedelta(microseconds=1), timedelta(minutes=1)),
    st.timedeltas(timedelta(microseconds=1), LONGEST),
    st.floats(1e-6, LONGEST.total_seconds()),
)
AGES = st.timedeltas(timedelta(microseconds=1), timedelta(days=36_500))
FACTORS = st.sampled_from([1, 1.0000001, 1.5, 2, 10, 1000]) | st.floats(1, 1000)
SPREADS = st.sampled_from([0, 0.1, 1]) | st.floats(0, 1)

FIBONACCI = st.builds(Fibonacci, WAITS, st.none() | WAITS)
EXPONENTIAL = st.builds(Exponential, WAITS, FACTORS, st.none() | WAITS, SPREADS)
FIXED = st.builds(Fixed, WAITS)
DELAYS = st.builds(Delays, st.lists(WAITS, min_size=1, max_size=12))
PROGRESSIVE = st.just(Progressive.default()) | st.lists(st.tuples(AGES, WAITS), min_size=1, max_size=8).map(
    lambda tiers: Progressive(sorted({age: (age, every) for age, every in tiers}.values(), key=lambda tier: tier[0]))
)
STRATEGIES = st.one_of(FIBONACCI, EXPONENTIAL, FIXED, DELAYS, PROGRESSIVE)

# Few failures, many, and the most that fit; ages at a tier's edge and on both sides of it; usual ids, and any number.
EDGES = [timedelta(days=days) for days in (1, 7, 14, 30, 180, 360)]
ASKED: st.SearchStrategy[list[Asked]] = st.lists(
    st.tuples(
        st.integers(1, 12) | st.integers(1, 100) | st.integers(1, MAX_FAILURES),
        st.builds(lambda edge, by: edge + timedelta(microseconds=by), st.sampled_from(EDGES), st.integers(-1, 1))
        | st.timedeltas(timedelta(days=-1), timedelta(days=40_000)),
        st.integers(1, 10_000) | st.integers(-(2**63) + 1, 2**63 - 1),
    ),
    min_size=100,
    max_size=100,
)
BATCHES = settings(
    max_examples=30,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # the message names those that differ: no need to shrink
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
PLAIN: list[Asked] = [(failures, timedelta(), 7) for failures in (1, 2, 3, 31, 32, 1023, 1024, 1025, MAX_FAILURES)]


def in_sql(sql: Connection, strategy: Strategy, asked: list[Asked]) -> list[int | None]:
    """Returns the delays in microseconds."""
    failures, ages, seeds = (list(column) for column in zip(*asked, strict=True))
    rows = sql.execute(
        "select (extract(epoch from penstock.retry_delay(%s::jsonb, a.failures, a.age, a.seed)) * 1000000)::bigint"
        " from unnest(%s::int[], %s::interval[], %s::bigint[]) with ordinality as a(failures, age, seed, n)"
        " order by a.n",
        (orjson.dumps(strategy.to_json()).decode(), failures, ages, seeds),
    ).fetchall()
    return [row[0] for row in rows]


def in_python(strategy: Strategy, asked: list[Asked]) -> list[int | None]:
    waits = (strategy.delay(*one) for one in asked)
    return [None if wait is None else wait // timedelta(microseconds=1) for wait in waits]


def assert_equal(sql: Connection, strategy: Strategy, asked: list[Asked]) -> None:
    here, there = in_python(strategy, asked), in_sql(sql, strategy, asked)
    differ = [row for row in zip(asked, here, there, strict=True) if row[1] != row[2]]
    assert not differ, f"{strategy}: {len(differ)} differ; (asked, Python, SQL): {differ[:3]}"


@BATCHES
@example(Fibonacci(), PLAIN)
@given(FIBONACCI, ASKED)
def test_fibonacci_is_the_same_in_sql(sql: Connection, strategy: Fibonacci, asked: list[Asked]) -> None:
    assert_equal(sql, strategy, asked)


@BATCHES
@example(Exponential(), PLAIN)
@example(Exponential("1us", factor=1000, cap=None, jitter=1), PLAIN)
@example(Exponential("1h", factor=1, cap="1s", jitter=0), PLAIN)
@example(Exponential("1h", factor=1, cap="1s", jitter=5e-324), PLAIN)
@given(EXPONENTIAL, ASKED)
def test_exponential_is_the_same_in_sql(sql: Connection, strategy: Exponential, asked: list[Asked]) -> None:
    assert_equal(sql, strategy, asked)


@BATCHES
@given(FIXED, ASKED)
def test_fixed_is_the_same_in_sql(sql: Connection, strategy: Fixed, asked: list[Asked]) -> None:
    assert_equal(sql, strategy, asked)


@BATCHES
@given(DELAYS, ASKED)
def test_delays_are_the_same_in_sql(sql: Connection, strategy: Delays, asked: list[Asked]) -> None:
    assert_equal(sql, strategy, asked)


@BATCHES
@example(Progressive.default(), [(1, edge + timedelta(microseconds=by), 0) for edge in EDGES for by in (-1, 0, 1)])
@given(PROGRESSIVE, ASKED)
def test_progressive_is_the_same_in_sql(sql: Connection, strategy: Progressive, asked: list[Asked]) -> None:
    assert_equal(sql, strategy, asked)


@settings(max_examples=200, deadline=None)
@given(STRATEGIES, st.integers(1, MAX_FAILURES), AGES, st.integers(1, 2**63 - 1))
def test_a_wait_is_never_negative_nor_endless(strategy: Strategy, failures: int, age: timedelta, seed: int) -> None:
    wait = strategy.delay(failures, age, seed)
    assert wait is None or timedelta() <= wait <= 2 * LONGEST  # at most, with a jitter of 1 above the cap


# -- The design -------------------------------------------------------------------------------------------------------


def minutes(strategy: Strategy, failures: int) -> list[float | None]:
    waits = (strategy.delay(n) for n in range(1, failures + 1))
    return [None if wait is None else wait / timedelta(minutes=1) for wait in waits]


def test_fibonacci_by_failures() -> None:
    """After one or two failures a task waits 1 unit, after six it waits 8."""
    assert minutes(Fibonacci("1m"), 8) == [1, 1, 2, 3, 5, 8, 13, 21]
    assert minutes(Fibonacci("10m", cap="1h"), 6) == [10, 10, 20, 30, 50, 60]
    assert minutes(Fibonacci("2h", cap="1h"), 2) == [60, 60]
    assert Fibonacci("1m").delay(MAX_FAILURES) == LONGEST


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("age", "every"),
    [
        (timedelta(), timedelta(minutes=5)),
        (timedelta(days=-1), timedelta(minutes=5)),
        (timedelta(days=1) - timedelta(microseconds=1), timedelta(minutes=5)),
        (timedelta(days=1), timedelta(hours=1)),
        (timedelta(days=7) - timedelta(microseconds=1), timedelta(hours=1)),
        (timedelta(days=7), timedelta(hours=12)),
        (timedelta(days=14), timedelta(hours=24)),
        (timedelta(days=30), timedelta(hours=96)),
        (timedelta(days=180), timedelta(hours=192)),
        (timedelta(days=360) - timedelta(microseconds=1), timedelta(hours=192)),
        (timedelta(days=360), None),
        (timedelta(days=36_500), None),
    ],
)
def test_progressive_by_age(sql: Connection, age: timedelta, every: timedelta | None) -> None:
    """Up to an age of 1 day every 5 min, 7 days 1 h, 14 days 12 h, 30 days 24 h, 180 days 96 h, 360 days 192 h."""
    strategy = Progressive.default()
    assert {strategy.delay(failures, age) for failures in (1, 2, 500, MAX_FAILURES)} == {every}
    assert_equal(sql, strategy, [(failures, age, 3) for failures in (1, 2, 500, MAX_FAILURES)])


def test_progressive_with_custom_tiers() -> None:
    strategy = Progressive([("1h", "1m"), (timedelta(days=2), 600)])
    ages = (timedelta(minutes=59), timedelta(hours=1), timedelta(days=2))
    assert [strategy.delay(9, age) for age in ages] == [timedelta(minutes=1), timedelta(minutes=10), None]


def test_exponential_doubles_up_to_its_cap() -> None:
    strategy = Exponential("5s", factor=2, cap="1h", jitter=0)
    waits = [strategy.delay(failures) for failures in (1, 2, 3, 10, 11, 12, MAX_FAILURES)]
    assert waits == [timedelta(seconds=s) for s in (5, 10, 20, 2560, 3600, 3600, 3600)]
    assert Exponential("5s", factor=1000, cap=None, jitter=0).delay(MAX_FAILURES) == LONGEST
    assert Exponential("2h", cap="1h", jitter=0).delay(1) == timedelta(hours=1)


def test_the_default_of_a_queue(app: Penstock) -> None:
    """The default is exponential (5 s, × 2, cap 1 h, jitter 10 %) with max_attempts 20."""
    app.create_queue("plain")
    (stored,) = app.queues()
    assert stored.max_attempts == 20
    assert from_json(stored.retry) == Exponential() == Exponential("5s", factor=2, cap="1h", jitter=0.1)


@given(st.integers(1, MAX_FAILURES), st.integers(1, 2**63 - 1))
def test_jitter_stays_within_its_tenth(failures: int, seed: int) -> None:
    wait, middle = Exponential().delay(failures, seed=seed), Exponential(jitter=0).delay(failures)
    assert wait is not None
    assert middle is not None
    assert abs(wait - middle) <= 0.1 * middle + timedelta(microseconds=1)


def test_jitter_is_a_hash_of_id_and_attempts() -> None:
    """It is the same every time, and tasks that failed together do not come back together."""
    waits = [Exponential("1h", jitter=0.1).delay(1, seed=seed) for seed in range(1, 1001)]
    assert waits == [Exponential("1h", jitter=0.1).delay(1, seed=seed) for seed in range(1, 1001)]
    tenths = [sum(1 for wait in waits if wait and wait // timedelta(seconds=72) == tenth) for tenth in range(45, 55)]
    assert all(80 <= count <= 120 for count in tenths), tenths
    same_cap = {Exponential("1h", jitter=0.1).delay(failures, seed=1) for failures in range(1, 11)}
    assert len(same_cap) == 10


def test_delays_stop_after_the_last() -> None:
    assert minutes(Delays(["1m", "5m", "1h"]), 5) == [1, 5, 60, None, None]
    assert minutes(Fixed("30s"), 3) == [0.5, 0.5, 0.5]


# -- Written, stored, read ---------------------------------------------------------------------------------------------


@given(STRATEGIES)
def test_what_is_stored_is_read_back(strategy: Strategy) -> None:
    stored = orjson.loads(orjson.dumps(strategy.to_json()))
    assert from_json(stored) == strategy
    assert from_json(stored).to_json() == strategy.to_json()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategy=STRATEGIES)
def test_what_a_queue_stores_is_read_back(app: Penstock, sql: Connection, strategy: Strategy) -> None:
    """It goes through jsonb, whose numbers are decimal."""
    row = sql.execute("select %s::jsonb::text", (orjson.dumps(strategy.to_json()).decode(),)).fetchone()
    assert row is not None
    assert from_json(orjson.loads(row[0])) == strategy


def test_what_is_not_stored_has_a_default() -> None:
    assert from_json({"type": "fibonacci", "unit": 60}) == Fibonacci("1m")
    assert from_json({"type": "exponential", "base": 5}) == Exponential("5s", factor=2, cap=None, jitter=0)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("fibonacci", Fibonacci("1m")),
        ("fibonacci:30s", Fibonacci("30s")),
        ("fibonacci:1m,cap=1d", Fibonacci("1m", cap="1d")),
        ("exponential", Exponential()),
        ("exponential:5s", Exponential("5s", factor=2, cap="1h", jitter=0.1)),
        ("exponential:1m30s,factor=1.5,cap=2h,jitter=0", Exponential("90s", factor=1.5, cap="2h", jitter=0)),
        ("exponential:factor=3", Exponential(factor=3)),
        ("fixed:30s", Fixed(30)),
        ("fixed:250ms", Fixed(0.25)),
        ("delays:1m,5m,1h", Delays([60, 300, 3600])),
        ("progressive", Progressive.default()),
        ("progressive:1d=5m,7d=1h", Progressive([("1d", "5m"), ("7d", "1h")])),
    ],
)
def test_a_strategy_as_one_writes_it_in_a_shell(text: str, strategy: Strategy) -> None:
    assert parse(text) == strategy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a strategy"),
        ("linear:5s", "is not a strategy"),
        ("Fixed:5s", "is not a strategy"),
        ("fixed", "is not a strategy"),
        ("fixed:5s,6s", "is not a strategy"),
        ("fixed:5s,cap=1m", "is not a strategy"),
        ("fixed:soon", "delay: 'soon' is not a duration"),
        ("fixed:0s", "delay: '0s' is not more than 0"),
        ("fixed:11000d", "delay: '11000d' is not more than 0 and at most"),
        ("fibonacci:1m,2m", "is not a strategy"),
        ("fibonacci:1m,jitter=0.1", "is not a strategy"),
        ("fibonacci:x", "unit: 'x' is not a duration"),
        ("fibonacci:1m,cap=never", "cap: 'never' is not a duration"),
        ("exponential:5s,factor=x", "is not a strategy"),
        ("exponential:5s,factor=0.5", "factor: 0.5 is not between 1 and 1000"),
        ("exponential:5s,factor=inf", "factor: inf is not between 1 and 1000"),
        ("exponential:5s,jitter=2", "jitter: 2.0 is not between 0 and 1"),
        ("exponential:5s,jitter=nan", "jitter: nan is not between 0 and 1"),
        ("exponential:-5s", "base: '-5s' is not a duration"),
        ("exponential:5s,speed=3", "is not a strategy"),
        ("delays", "is not a strategy"),
        ("delays:", "is not a strategy"),
        ("delays:1m,a=5m", "is not a strategy"),
        ("delays:1m,later", "delays: 'later' is not a duration"),
        ("progressive:5m", "is not a strategy"),
        ("progressive:7d=1h,1d=5m", "do not grow by age"),
        ("progressive:1d=x", "tiers: 'x' is not a duration"),
    ],
)
def test_a_strategy_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match=r"^retry: ") as refused:
        parse(text)
    assert said in refused.value.message
    assert refused.value.field == "retry"
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("Write fibonacci:1m")


BAD: list[tuple[type, tuple[Any, ...], dict[str, Any], str]] = [
    (Fibonacci, (0,), {}, "unit"),
    (Fibonacci, (-1,), {}, "unit"),
    (Fibonacci, (None,), {}, "unit"),
    (Fibonacci, (True,), {}, "unit"),
    (Fibonacci, (float("nan"),), {}, "unit"),
    (Fibonacci, ("1m",), {"cap": 0}, "cap"),
    (Fibonacci, ("1m",), {"cap": "x"}, "cap"),
    (Exponential, ("",), {}, "base"),
    (Exponential, (float("inf"),), {}, "base"),
    (Exponential, (LONGEST + timedelta(seconds=1),), {}, "base"),
    (Exponential, (), {"factor": 0.99}, "factor"),
    (Exponential, (), {"factor": 1001}, "factor"),
    (Exponential, (), {"factor": True}, "factor"),
    (Exponential, (), {"factor": "2"}, "factor"),
    (Exponential, (), {"cap": -5}, "cap"),
    (Exponential, (), {"jitter": -0.1}, "jitter"),
    (Exponential, (), {"jitter": 1.1}, "jitter"),
    (Exponential, (), {"jitter": float("nan")}, "jitter"),
    (Exponential, (), {"jitter": False}, "jitter"),
    (Fixed, (timedelta(),), {}, "delay"),
    (Fixed, (1e12,), {}, "delay"),
    (Delays, ([],), {}, "delays"),
    (Delays, ("1m",), {}, "delays"),
    (Delays, ([1] * 1001,), {}, "delays"),
    (Delays, (["1m", 0],), {}, "delays"),
    (Progressive, ([],), {}, "tiers"),
    (Progressive, ([("1d", "0s")],), {}, "tiers"),
    (Progressive, ([("0d", "5m")],), {}, "tiers"),
    (Progressive, ([("1d", "5m"), ("1d", "1h")],), {}, "tiers"),
    (Progressive, ([("2d", "5m"), ("1d", "1h")],), {}, "tiers"),
    (Progressive, ([(n, 1) for n in range(1, 102)],), {}, "tiers"),
]


@pytest.mark.parametrize(("kind", "args", "named", "field"), BAD)
def test_a_bad_value_is_named(kind: type, args: tuple[Any, ...], named: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=f"^{field}: ") as refused:
        kind(*args, **named)
    assert refused.value.field == field


@pytest.mark.parametrize("failures", [0, -1, 1.0, True, None, "1"])
@pytest.mark.parametrize("strategy", [Fibonacci(), Exponential(), Fixed("1s"), Delays(["1s"]), Progressive()])
def test_failures_are_counted_from_one(strategy: Strategy, failures: Any) -> None:
    with pytest.raises(ValidationError, match=r"^failures: ") as refused:
        strategy.delay(failures)
    assert refused.value.field == "failures"


@pytest.mark.parametrize("stored", [{}, {"type": None}, {"type": "linear"}])
def test_an_unknown_type(sql: Connection, stored: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"^retry: type") as refused:
        from_json(stored)
    assert refused.value.field == "retry"
    with pytest.raises(errors.Error, match="retry: type") as in_sql_too:
        sql.execute("select penstock.retry_delay(%s::jsonb, 1)", (orjson.dumps(stored).decode(),))
    assert in_sql_too.value.sqlstate == "PS400"


@pytest.mark.parametrize("failures", [0, -1, None])
def test_failures_are_counted_from_one_in_sql(sql: Connection, failures: int | None) -> None:
    with pytest.raises(errors.Error, match="failures") as refused:
        sql.execute("select penstock.retry_delay(%s::jsonb, %s)", ('{"type": "fixed", "delay": 1}', failures))
    assert refused.value.sqlstate == "PS400"
