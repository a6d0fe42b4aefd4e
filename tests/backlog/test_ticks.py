"""When adopted records are due: the arithmetic, and that SQL finds exactly these records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import Connection

from penstock import Delays, Fibonacci, Fixed, Penstock, Progressive
from penstock.backlog import ticks
from penstock.backlog.claim import Statements, fetch_candidates
from penstock.backlog.ticks import Mark

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def last_tick_by_hand(strategy: Progressive, inserted: datetime, now: datetime) -> datetime | None:
    """Computes the last tick from the rule: k × period of each tier, one by one."""
    age = (now - inserted).total_seconds()
    begin, found = 0.0, None
    for until, every in strategy.tiers:
        k = 1
        while k * every < until:
            if begin <= k * every <= age:
                found = k * every
            k += 1
        begin = until
    return None if found is None else inserted + timedelta(seconds=found)


def test_the_default_ladder() -> None:
    rungs = ticks.build_ladder(Progressive.default())
    assert rungs[:2] == [timedelta(minutes=5), timedelta(minutes=10)]
    assert rungs[286:289] == [timedelta(hours=23, minutes=55), timedelta(days=1), timedelta(hours=25)]
    assert rungs[-1] == timedelta(days=352)
    assert len(rungs) == 287 + 144 + 14 + 16 + 37 + 22
    assert not ticks.has_ended(rungs, NOW - timedelta(days=351), NOW)
    assert ticks.has_ended(rungs, NOW - timedelta(days=352), NOW)


TIERS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 120)), min_size=1, max_size=4, unique_by=lambda t: t[0])
MOMENTS = st.integers(0, 500)


@given(TIERS, st.lists(MOMENTS, max_size=30), MOMENTS, st.data())
def test_windows_hold_the_ticks_of_the_rule(
    tiers: list[tuple[int, int]], ages: list[int], since: int, data: st.DataObject
) -> None:
    strategy = Progressive(sorted(tiers))
    if not any(every * max(-(-begin // every), 1) < until for begin, until, every in spans(strategy)):
        return
    rungs = ticks.build_ladder(strategy)
    mark = Mark(NOW - since * SECOND)
    windows = ticks.find_windows(rungs, mark, NOW)
    for age in ages:
        inserted = NOW - age * SECOND
        tick = last_tick_by_hand(strategy, inserted, NOW)
        assert ticks.find_last_tick(rungs, inserted, NOW) == tick
        found = [inserted + one.age for one in windows if one.after < inserted <= one.until]
        wanted = [tick] if tick is not None and tick >= mark.tick else []
        assert found == wanted, "each is in at most one window"


def test_moments_in_a_zone_with_summer_time() -> None:
    """The session may have any zone: the night of the change is 25 hours long, and a record waits no hour more."""
    rome = ZoneInfo("Europe/Rome")
    rungs = [timedelta(hours=hours) for hours in (1, 24, 25)]
    inserted = datetime(2026, 10, 24, 12, tzinfo=rome)
    now = inserted.astimezone(UTC) + timedelta(hours=24, minutes=30)
    assert ticks.find_last_tick(rungs, inserted, now) == inserted.astimezone(UTC) + timedelta(hours=24)
    mark = (now - timedelta(minutes=1)).astimezone(rome)
    assert ticks.find_windows(rungs, Mark(mark), now) == ticks.find_windows(rungs, Mark(mark.astimezone(UTC)), now)


def spans(strategy: Progressive) -> list[tuple[float, float, float]]:
    begins = [0.0, *(until for until, _ in strategy.tiers)]
    return [(begin, until, every) for begin, (until, every) in zip(begins, strategy.tiers, strict=False)]


@pytest.fixture
def records(sql: Connection) -> Connection:
    sql.execute("create table public.record (id int primary key, status text, at timestamptz)")
    return sql


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from([Progressive(), Progressive([("10m", "1m"), ("1h", "7m")]), Progressive([("1h", "25m")])]),
    st.lists(st.integers(0, 40 * 86400), max_size=40),
    st.one_of(st.none(), st.tuples(st.integers(0, 86400), st.one_of(st.none(), st.integers(0, 40)))),
    st.sampled_from([5, 1000]),
)
def test_sql_and_python_agree(
    app: Penstock,
    records: Connection,
    strategy: Progressive,
    ages: list[int],
    at: tuple[int, int | None] | None,
    limit: int,
) -> None:
    """SQL finds the same records, in the same order, as the rule for each record."""
    mark = ticks.START if at is None else Mark(NOW - at[0] * SECOND, None if at[1] is None else (str(at[1]),))
    terms = app.adopt("public.record", inserted="at", retry="ERROR", strategy=strategy).terms
    statements = Statements(terms)
    rows = [(n, NOW - age * SECOND) for n, age in enumerate(ages)]
    records.execute("truncate public.record")
    with records.cursor() as cursor:
        cursor.executemany("insert into public.record values (%s, 'ERROR', %s)", rows)
    due = []
    for n, inserted in rows:
        tick = last_tick_by_hand(strategy, inserted, NOW)
        if tick is not None and after(mark, tick, (str(n),)):
            due.append((tick, (str(n),)))
    found = fetch_candidates(records, *statements.due_by_ticks(NOW, mark, None, limit))
    assert [(one.due, one.key) for one in found] == sorted(due)[:limit]


def after(mark: Mark, tick: datetime, key: tuple[str, ...]) -> bool:
    return tick > mark.tick or (mark.key is not None and tick == mark.tick and key > mark.key)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from([Fibonacci("1m"), Fibonacci("1m", cap="5m"), Fixed("90s"), Delays(["1m", "10m", "1h"])]),
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(0, 60)), st.one_of(st.none(), st.integers(0, 40000))), max_size=40
    ),
    st.sampled_from([None, 1, 4]),
)
def test_waits_in_sql_and_python_agree(
    app: Penstock,
    sql: Connection,
    strategy: Fibonacci | Fixed | Delays,
    rows: list[tuple[int | None, int | None]],
    max_attempts: int | None,
) -> None:
    sql.execute("drop table if exists public.counted")
    sql.execute(
        "create table public.counted (id int primary key, status text, at timestamptz, n int, last timestamptz)"
    )
    told = [(i, failures, None if ago is None else NOW - ago * SECOND) for i, (failures, ago) in enumerate(rows)]
    with sql.cursor() as cursor:
        cursor.executemany("insert into public.counted values (%s, 'ERROR', now(), %s, %s)", told)
    terms = app.adopt(
        "public.counted",
        inserted="at",
        retry="ERROR",
        failures="n",
        last_failure="last",
        strategy=strategy,
        max_attempts=max_attempts,
    ).terms
    due = set()
    for i, failures, last in told:
        ended = max_attempts is not None and (failures or 0) >= max_attempts
        wait = timedelta() if not failures else strategy.delay(failures)
        if failures is None or last is None or (not ended and wait is not None and last + wait <= NOW):
            due.add((str(i),))
    found = fetch_candidates(sql, *Statements(terms).due_by_columns(NOW, None, None, 1000))
    assert {one.key for one in found} == due
    assert len(found) == len(due)
