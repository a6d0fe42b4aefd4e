"""History has a row per finished attempt and a partition per UTC day, which is made ahead or by settle. The sums of a
dropped partition are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
from psycopg import Connection

from conftest import Clock
from penstock import Outcome, Penstock, Queue
from workers import eventually


def partitions(sql: Connection) -> list[str]:
    return [
        row[0]
        for row in sql.execute(
            "select c.relname from pg_inherits as i join pg_class as c on c.oid = i.inhrelid"
            " where inhparent = 'penstock.history'::regclass order by 1"
        )
    ]


def test_fourteen_days_are_made_ahead(app: Penstock, sql: Connection) -> None:
    days = partitions(sql)
    assert len(days) == 15
    assert days[0] == f"history_{datetime.now(UTC):%Y%m%d}"
    assert app.upkeep()["history days made"] == 0


def test_settle_makes_the_day_that_is_missing(queue: Queue, clock: Clock, sql: Connection) -> None:
    clock.advance(60 * 86400)
    queue.push()
    queue.settle(queue.claim())
    assert f"history_{clock.now().astimezone(UTC):%Y%m%d}" in partitions(sql)
    assert sql.execute("select count(*) from penstock.history").fetchone() == (1,)


WAITING_FOR_A_LOCK = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


def test_the_first_settles_of_a_day_may_come_together(queue: Queue, clock: Clock, sql: Connection, dsn: str) -> None:
    clock.advance(60 * 86400)
    queue.push_many([{}, {}])
    first, second = queue.claim(), queue.claim()
    with ThreadPoolExecutor() as pool, psycopg.connect(dsn) as other:
        other.execute(
            "select * from penstock.settle(%s, %s)", (first.token, first.ids)
        )  # this transaction has made the day
        waiting = pool.submit(queue.settle, second)  # it does not see the day, and waits
        while not sql.execute(WAITING_FOR_A_LOCK).fetchone():
            assert not waiting.done()
        other.commit()
        assert waiting.result(timeout=30) == {second.ids[0]: "done"}
    assert sql.execute("select count(*) from penstock.history").fetchone() == (2,)


def test_days_are_utc_whatever_the_session_says(queue: Queue, sql: Connection) -> None:
    sql.execute("set timezone = 'Pacific/Kiritimati'")
    sql.execute("select penstock._make_history('2031-05-05')")
    sql.execute("set timezone = 'UTC'")
    bound = sql.execute(
        "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'history_20310505'"
    ).fetchone()
    assert bound == ("FOR VALUES FROM ('2031-05-05 00:00:00+00') TO ('2031-05-06 00:00:00+00')",)


def test_a_row_tells_the_attempt(queue: Queue, clock: Clock, sql: Connection) -> None:
    created = clock.now()
    pushed = queue.push(subject="s", kind="k")
    clock.advance(2)
    claimed = clock.now()
    claim = queue.claim(worker="w1")
    clock.advance(3)
    queue.settle(claim, {pushed.id: Outcome.failed(KeyError("x"))})
    row = sql.execute(
        "select task_id, kind, subject, attempt, iteration, outcome, created, due, claimed_at, finished_at,"
        " worker, error_class, error from penstock.history"
    ).fetchone()
    assert row == (pushed.id, "k", "s", 1, 0, "failed", created, created, claimed, clock.now(), "w1", "KeyError", "'x'")
    assert sql.execute("select xid > 0 from penstock.history").fetchone() == (True,)


def test_dropped_days_keep_the_counters_balanced(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim(2)
    queue.settle(claim, {claim.ids[0]: Outcome.done(), claim.ids[1]: Outcome.failed("x")})
    clock.advance(32 * 86400)
    eventually(
        lambda: app.upkeep() and dict(sql.execute("select outcome, rows from penstock.history_dropped").fetchall())
    )
    assert sql.execute("select count(*) from penstock.history").fetchone() == (0,)
    assert dict(sql.execute("select outcome, rows from penstock.history_dropped").fetchall()) == {
        "done": 1,
        "failed": 1,
    }
    assert app.verify().ok


def test_samples_are_taken_once_per_ten_seconds(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    assert app.upkeep()["sampled"] == 1
    assert app.upkeep()["sampled"] == 0
    clock.advance(10)
    assert app.upkeep()["sampled"] == 1
    assert sql.execute("select pending, extract(second from at)::int % 10 from penstock.sample limit 1").fetchone() == (
        1,
        0,
    )
    clock.advance(91 * 86400)
    assert app.upkeep()["samples dropped"] == 2
