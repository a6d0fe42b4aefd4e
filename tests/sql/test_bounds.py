"""The bounds of `penstock.watermark`: no query walks over dead rows of a held snapshot, and no bound hides a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import NewTask, Outcome, Penstock, Queue
from workers import eventually

TASKS = 3000
LEASES = 500


def entries(sql: Connection, query: str) -> int:
    """How many index entries a query and its functions read, entries of dead rows included."""
    with sql.transaction(force_rollback=True):
        before = entries_read(sql)
        sql.execute(query.encode())
        return entries_read(sql) - before


def entries_read(sql: Connection) -> int:
    row = sql.execute(
        "select sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint from pg_class as c"
        " where c.relkind = 'i' and c.relnamespace = 'penstock'::regnamespace"
    ).fetchone()
    assert row is not None
    return int(row[0])


def pages(sql: Connection, query: str) -> int:
    """How many pages of tables and indexes a query and its functions touch. The first run plans the statements and is
    not counted."""
    with sql.transaction(force_rollback=True):
        sql.execute(query.encode())
    with sql.transaction(force_rollback=True):
        row = sql.execute(f"explain (analyze, buffers, format json) {query}").fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Shared Hit Blocks"])


@contextmanager
def held_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select count(*) from penstock.history")
        yield


def move(clock: Clock, sql: Connection) -> None:
    """Moves the bounds beyond this moment, which needs every transaction of the cluster that runs now to end."""
    target = clock.now()

    def passed() -> bool:
        clock.advance(1.1)
        sql.execute("select penstock._squeeze(id) from penstock.queue")
        moved = sql.execute("select first_planned >= %s from penstock.watermark", (target,))
        return moved.fetchone() == (True,)

    eventually(passed)


STATUS = "select * from penstock.status('work')"
EMPTY = "select * from penstock.claim('work')"
HEARD = "select * from penstock.claim('work', p_hint => penstock.at_place(0::smallint, '-infinity', 0))"


LOOK = "select * from penstock.find_work(array['work'])"
PROMOTED = "select * from penstock.upkeep_part('promoted')"
EXPIRED = "select * from penstock.upkeep_part('expired')"


@pytest.mark.sample(4)
@pytest.mark.parametrize("query", [STATUS, EMPTY, HEARD, LOOK, PROMOTED, EXPIRED])
@pytest.mark.parametrize("planned", [False, True])
def test_dead_rows_are_not_walked_over(
    queue: Queue, clock: Clock, dsn: str, sql: Connection, query: str, planned: bool
) -> None:
    clock.freeze()
    before = entries(sql, query)
    with held_snapshot(dsn):
        due = clock.now() + timedelta(seconds=1) if planned else None
        queue.push_many([NewTask(due=due) for _ in range(TASKS)])
        clock.advance(1.5)
        while claim := queue.claim(1000):
            queue.settle(claim)
        move(clock, sql)
        assert entries(sql, query) < before + TASKS / 10


def test_dead_leases_are_not_walked_over(queue: Queue, clock: Clock, dsn: str, sql: Connection) -> None:
    clock.freeze()
    before = entries(sql, EXPIRED)
    with held_snapshot(dsn):
        queue.push_many([NewTask() for _ in range(LEASES)])
        for _ in range(LEASES):
            queue.settle(queue.claim(lease="100ms"))
        move(clock, sql)
        assert entries(sql, EXPIRED) > before + LEASES / 2, "once a minute it reads all of them"
        sql.execute(EXPIRED)
        assert entries(sql, EXPIRED) < before + LEASES / 10


def test_upkeep_expires_a_lease_behind_the_bound_within_a_minute(queue: Queue, clock: Clock, sql: Connection) -> None:
    clock.freeze()
    queue.push()
    claim = queue.claim(lease="1h")
    sql.execute("update penstock.watermark set until = 'infinity'")
    clock.advance(3601)
    sql.execute("update penstock.chore set done_at = penstock.clock() where name = 'expire_all'")
    assert [rows for rows, _ in sql.execute(EXPIRED)] == [0]
    clock.advance(61)
    assert [rows for rows, _ in sql.execute(EXPIRED)] == [1]
    assert queue.claim().ids == claim.ids


@pytest.mark.parametrize("query", [STATUS, EMPTY, HEARD, LOOK])
def test_what_earlier_squeezes_wrote_is_not_walked_over(
    queue: Queue, clock: Clock, dsn: str, sql: Connection, query: str
) -> None:
    """Each squeeze replaces the sums and the watermark of a queue."""
    clock.freeze()
    queue.push()
    queue.settle(queue.claim())
    move(clock, sql)
    before = pages(sql, query)
    nothing = "insert into penstock.counter_log (queue_id, metric, delta) select id, 'dead', 0 from penstock.queue"
    with held_snapshot(dsn):
        for _ in range(400):
            sql.execute(nothing)
            sql.execute("select penstock._squeeze(id) from penstock.queue")
        assert pages(sql, query) < before + 15


@pytest.fixture
def passed(queue: Queue, clock: Clock) -> Queue:
    """A queue whose tasks have waited for an hour."""
    clock.freeze()
    queue.push_many([{"n": 1}, {"n": 2}])
    clock.advance(3600)
    return queue


def test_a_released_task_is_found(passed: Queue, clock: Clock, sql: Connection) -> None:
    claim = passed.claim(2, lease="2h")
    move(clock, sql)
    passed.settle(claim, {one: Outcome.release() for one in claim.ids})
    age = passed.status().oldest_pending_age
    assert age is not None
    assert age > 3600
    assert passed.claim(2).ids == claim.ids


def test_a_task_whose_worker_died_is_found(passed: Queue, clock: Clock, sql: Connection) -> None:
    claim = passed.claim(2, lease="2h")
    move(clock, sql)
    clock.advance(7200)
    assert {*passed.claim(1).ids, *passed.claim(1).ids} == {*claim.ids}


def test_another_priority_is_found(passed: Queue, clock: Clock, sql: Connection) -> None:
    _, second = sql.execute("select array_agg(task_id order by task_id) from penstock.agenda").fetchone()[0]  # type: ignore[index]
    move(clock, sql)
    passed.reprioritise(0, ids=[second])
    assert passed.claim(1).ids == [second]


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_a_push_with_a_due_in_the_past_is_found(queue: Queue, clock: Clock, sql: Connection, priority: int) -> None:
    clock.freeze()
    move(clock, sql)
    pushed = queue.push(due=clock.now() - timedelta(days=1), priority=priority)
    assert queue.status().oldest_pending_age is not None
    assert queue.claim().ids == [pushed.id]


def test_what_commits_late_is_found(queue: Queue, clock: Clock, dsn: str, sql: Connection) -> None:
    """Its due is older than every bound that can be set before it commits."""
    clock.freeze()
    with psycopg.connect(dsn) as late:
        late.execute("select penstock.push('work')")
        for _ in range(5):
            clock.advance(10)
            queue.push()
            sql.execute("select penstock._squeeze(id) from penstock.queue")
            queue.settle(queue.claim())
    assert len(queue.claim()) == 1


def test_a_clock_that_is_set_back_hides_nothing(queue: Queue, clock: Clock, sql: Connection) -> None:
    clock.freeze()
    move(clock, sql)
    clock.advance(-600)
    pushed = queue.push()
    assert queue.claim().ids == [pushed.id]


def test_rows_written_by_hand_are_found(queue: Queue, clock: Clock, sql: Connection) -> None:
    clock.freeze()
    pushed = queue.push(due=clock.now() + timedelta(days=1))
    move(clock, sql)
    sql.execute("update penstock.agenda set due = '2000-01-01', pending = true where task_id = %s", (pushed.id,))
    assert queue.claim().ids == [pushed.id]


@pytest.mark.unbalanced
def test_verify_finds_a_task_behind_a_bound(queue: Queue, app: Penstock, clock: Clock, sql: Connection) -> None:
    queue.push_many([NewTask(), NewTask(due=clock.now() + timedelta(hours=1))])
    sql.execute("update penstock.watermark set first_due[2] = 'infinity', first_planned = 'infinity'")
    assert not queue.claim()
    assert app.verify().orphans == 2
    app.repair()
    assert app.verify().ok
    assert len(queue.claim()) == 1
