"""Two transactions that interleave at the worst moment: only those that must wait do, nothing is lost, and every answer
is right."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection, errors

from conftest import Clock
from penstock import NotFound, Outcome, Penstock, Queue, QueueSettings
from workers import eventually

WAITS = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
def other(dsn: str) -> Iterator[Connection]:
    """Another session, with a transaction of its own."""
    with psycopg.connect(dsn) as connection:
        yield connection


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def until_it_waits(sql: Connection, started: Future[object]) -> None:
    while not sql.execute(WAITS).fetchone():
        assert not started.done(), started.result()


def test_a_task_that_fails_for_ever_stops_no_worker(app: Penstock, clock: Clock, sql: Connection) -> None:
    """A task may fail for ever when its queue sets no limit, but the number of its attempts has a maximum."""
    queue = app.create_queue("endless", max_attempts=None, retry="fixed:1s")
    pushed = queue.push()
    sql.execute("update penstock.agenda set attempts = 32767")
    queue.settle(queue.claim(), {pushed.id: Outcome.failed("x", delay=0)})
    assert queue.claim().tasks[0].attempt == 32768
    clock.advance(60)
    assert queue.claim().tasks[0].attempt == 32768, "and after a crash"
    app.upkeep()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_push_into_a_queue_dropped_meanwhile(queue: Queue, other: Connection, level: str) -> None:
    other.execute(f"set transaction isolation level {level}")
    other.execute("select 1")
    queue.drop()
    with pytest.raises(errors.SerializationFailure):
        other.execute("select * from penstock.push('work')")
    other.rollback()


def test_a_drop_lets_others_pass_while_it_waits(
    app: Penstock, queue: Queue, sql: Connection, other: Connection, pool: ThreadPoolExecutor
) -> None:
    busy = app.create_queue("busy")
    busy.push()
    other.execute("select * from penstock.push('busy')")  # an open transaction holds the tables
    dropping = pool.submit(queue.drop)
    sql.execute("set lock_timeout = '2s'")
    for _ in range(20):
        sql.execute("select * from penstock.claim('busy')")
        sql.execute("select * from penstock.push('busy')")
    assert not dropping.done()
    other.commit()
    assert dropping.result(timeout=30) == 0
    with pytest.raises(NotFound):
        queue.drop()


@pytest.mark.parametrize("outcome", [Outcome.failed("x", delay=0), Outcome.release()], ids=["failed", "release"])
def test_a_new_priority_is_not_lost_to_a_settle(
    queue: Queue, sql: Connection, other: Connection, pool: ThreadPoolExecutor, outcome: Outcome
) -> None:
    pushed = queue.push()
    claim = queue.claim()
    other.execute("select * from penstock.reprioritise('work', 0::smallint, %s)", ([pushed.id],))
    settling: Future[object] = pool.submit(queue.settle, claim, {pushed.id: outcome})
    until_it_waits(sql, settling)
    other.commit()
    settling.result(timeout=30)
    assert sql.execute("select priority from penstock.agenda").fetchone() == (0,)


def test_an_expiry_waits_for_no_lock(app: Penstock, clock: Clock, sql: Connection, other: Connection) -> None:
    queue = app.create_queue("once", max_attempts=1, lease="10s")
    pushed = queue.push()
    queue.claim()
    other.execute("select * from penstock.reprioritise('once', 0::smallint, %s)", ([pushed.id],))
    clock.advance(11)
    sql.execute("set lock_timeout = '1s'")
    assert sql.execute("select * from penstock.claim('once')").fetchall() == []
    assert queue.status().active == 1, "it is held: the next expiry takes it"
    other.rollback()
    assert queue.claim().tasks == ()
    assert queue.status().dead == 1


def test_a_new_priority_is_not_lost_to_an_expiry(
    queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """For a task without a subject that shares a lease, an expiry locks no document."""
    ids = [queue.push().id for _ in range(3)]
    queue.claim(3)
    answer = other.execute("select * from penstock.reprioritise('work', 0::smallint, %s)", (ids[:1],)).fetchall()
    assert answer == [(ids[0], "reprioritised")]
    clock.advance(11)
    sql.execute("set lock_timeout = '1s'")
    assert sql.execute("select penstock._expire(id) from penstock.queue").fetchone() == (0,), "the next expiry takes it"
    other.commit()
    assert sql.execute("select penstock._expire(id) from penstock.queue").fetchone() == (3,)
    rows = sql.execute("select task_id, priority from penstock.agenda order by 1").fetchall()
    assert rows == [(ids[0], 0), (ids[1], 5), (ids[2], 5)]


@pytest.mark.parametrize("first", ["expire", "settle"])
def test_a_task_that_is_being_put_back_is_busy(
    queue: Queue, clock: Clock, sql: Connection, other: Connection, first: str
) -> None:
    """The transaction that puts it back has already read its priority, so a change of priority is not confirmed."""
    ids = [queue.push().id for _ in range(2)]
    claim = queue.claim(2)
    clock.advance(11)
    if first == "expire":
        other.execute("select penstock._expire(id) from penstock.queue")
    else:
        other.execute("select * from penstock.settle(%s, %s, '{failed,failed}')", (claim.token, ids))
    sql.execute("set lock_timeout = '1s'")
    reprioritise = "select result from penstock.reprioritise('work', 0::smallint, %s)"
    assert sql.execute(reprioritise, (ids,)).fetchall() == [("busy",), ("busy",)]
    other.commit()
    assert sql.execute(reprioritise, (ids,)).fetchall() == [("reprioritised",), ("reprioritised",)]
    assert sql.execute("select priority from penstock.agenda").fetchall() == [(0,), (0,)]


def test_a_document_chooses_no_id_of_the_future(queue: Queue, sql: Connection) -> None:
    """Otherwise a role that may COPY could break the next push of another client."""
    for wrong in ("0", "nextval('penstock.task_id_seq') + 1"):
        with pytest.raises(psycopg.Error, match="id: it is not one") as refused:
            sql.execute(f"insert into penstock.task (id, queue_id) select {wrong}, id from penstock.queue")
        assert refused.value.sqlstate == "PS400"


def test_a_pause_is_not_undone_by_another_setting(
    queue: Queue, sql: Connection, other: Connection, pool: ThreadPoolExecutor
) -> None:
    """A change of a setting waits for an earlier change and keeps what that one set."""
    other.execute("""select penstock.set_queue('work', '{"paused": true}')""")
    setting: Future[object] = pool.submit(queue.set, sla="30s")
    until_it_waits(sql, setting)
    other.commit()
    changed = setting.result(timeout=30)
    assert isinstance(changed, QueueSettings)
    assert (changed.paused, changed.sla) == (True, timedelta(seconds=30))
    noted = sql.execute("select detail from penstock.audit where verb = 'set' order by id").fetchall()
    assert noted == [({"paused": True},), ({"sla": "30.0 seconds"},)]


def test_a_queue_dropped_while_its_settings_change(
    queue: Queue, sql: Connection, other: Connection, pool: ThreadPoolExecutor
) -> None:
    other.execute("select penstock.drop_queue('work')")
    setting: Future[object] = pool.submit(queue.set, sla="30s")
    until_it_waits(sql, setting)
    other.commit()
    with pytest.raises(NotFound, match="queue 'work' does not exist"):
        setting.result(timeout=30)
    assert sql.execute("select verb from penstock.audit order by id").fetchall() == [("drop",)]


def test_a_table_abandoned_while_it_is_adopted_again(
    app: Penstock, sql: Connection, other: Connection, pool: ThreadPoolExecutor
) -> None:
    """A caller that gets an id finds the table adopted."""
    adopt = (
        "select penstock.adopt('backlog', 'public', 'backlog', 'observe', '{}', '{\"type\": \"fixed\", \"delay\": 1}')"
    )
    sql.execute(adopt)
    other.execute("select penstock.abandon('backlog')")
    with psycopg.connect(sql.info.dsn, autocommit=True, password=sql.info.password) as third:
        adopting: Future[object] = pool.submit(lambda: third.execute(adopt).fetchone())
        until_it_waits(sql, adopting)
        other.commit()
        found = adopting.result(timeout=30)
    assert sql.execute("select id from penstock.adopted where name = 'backlog'").fetchall() == [found]


def test_verify_waits_for_a_day_that_is_being_dropped(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection, pool: ThreadPoolExecutor
) -> None:
    queue.push()
    queue.settle(queue.claim())
    clock.advance(40 * 86400)
    # Older transactions of other tests delay the count of the day with the attempt; the empty days do not wait.
    count = "select from penstock.upkeep_part('history days counted')"
    counted = "select from penstock.history_sum where rows = 1"
    eventually(lambda: sql.execute(count) and sql.execute(counted).fetchone() is not None, within=60)
    other.execute("select penstock.upkeep_part('history days dropped')")
    verifying = pool.submit(app.verify)
    until_it_waits(sql, verifying)  # type: ignore[arg-type]
    other.commit()
    assert verifying.result(timeout=30).ok


def test_two_upkeeps_at_once(app: Penstock, queue: Queue, sql: Connection, other: Connection) -> None:
    queue.push()
    for part in ("sampled", "squeezed", "promoted"):
        other.execute("select penstock.upkeep_part(%s)", (part,))
    sql.execute("set lock_timeout = '2s'")
    assert app.upkeep()["sampled"] == 0
    sql.execute("call penstock.upkeep()")
    other.commit()


def test_done_tasks_that_are_no_longer_kept_go(app: Penstock, clock: Clock) -> None:
    queue = app.create_queue("kept", keep_done="1h")
    queue.push(subject="s")
    queue.settle(queue.claim())
    queue.set(keep_done=None)
    clock.advance(1)
    assert app.upkeep()["ended tasks retired"] == 1
    assert queue.push(subject="s").result == "created"


@pytest.mark.unbalanced
def test_documents_of_no_queue_are_found_and_removed(app: Penstock, queue: Queue, sql: Connection) -> None:
    queue.push()
    sql.execute("delete from penstock.queue")
    assert [finding.what for finding in app.verify().findings] == ["orphans: of no queue"]
    assert [(one.what, one.rows) for one in app.repair()] == [("of no queue, removed", 1)]
    assert app.verify().ok


def test_a_claim_that_stays_open_holds_up_planned_tasks_for_two_seconds_at_most(
    queue: Queue, clock: Clock, other: Connection
) -> None:
    """Only one session promotes at a time: this one does, and its transaction stays open."""
    first, second = (queue.push(due=clock.now() + timedelta(seconds=n)).id for n in (1, 3))
    clock.advance(2)
    assert other.execute("select id from penstock.claim('work', 5)").fetchall() == [(first,)]
    clock.advance(2)
    assert queue.claim(5).ids == [], "the other session may be about to promote them"
    clock.advance(2)
    assert queue.claim(5).ids == [second]
    other.rollback()
    assert queue.claim(5).ids == [first]
