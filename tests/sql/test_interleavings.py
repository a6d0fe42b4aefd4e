"""Two transactions at the worst moment: nobody waits who must not, nothing is lost, no answer is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from psycopg import Connection, errors

from conftest import Clock
from penstock import NotFound, Outcome, Penstock, Queue

WAITS = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
def other(dsn: str) -> Iterator[Connection]:
    """Somebody with a transaction of his own."""
    with psycopg.connect(dsn) as connection:
        yield connection


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def until_it_waits(sql: Connection, started: Future[object]) -> None:
    while not sql.execute(WAITS).fetchone():
        assert not started.done(), started.result()


def test_attempts_without_end_stop_nobody(app: Penstock, clock: Clock, sql: Connection) -> None:
    """A task may fail for ever where nothing says stop; the number of its attempts has an end."""
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


def test_an_expiry_waits_for_nobody(app: Penstock, clock: Clock, sql: Connection, other: Connection) -> None:
    queue = app.create_queue("once", max_attempts=1, lease="10s")
    pushed = queue.push()
    queue.claim()
    other.execute("select * from penstock.reprioritise('once', 0::smallint, %s)", ([pushed.id],))
    clock.advance(11)
    sql.execute("set lock_timeout = '1s'")
    assert sql.execute("select * from penstock.claim('once')").fetchall() == []
    assert queue.status().active == 1, "it is held: the next round will do it"
    other.rollback()
    assert queue.claim().tasks == ()
    assert queue.status().dead == 1


def test_a_document_chooses_no_id_of_the_future(queue: Queue, sql: Connection) -> None:
    """Whoever may COPY could otherwise break the next push of somebody else."""
    for wrong in ("0", "nextval('penstock.task_id_seq') + 1"):
        with pytest.raises(psycopg.Error, match="id: it is not one") as refused:
            sql.execute(f"insert into penstock.task (id, queue_id) select {wrong}, id from penstock.queue")
        assert refused.value.sqlstate == "PS400"


def test_verify_waits_for_a_day_that_is_being_dropped(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection, pool: ThreadPoolExecutor
) -> None:
    queue.push()
    queue.settle(queue.claim())
    clock.advance(40 * 86400)
    other.execute("select penstock.drop_history(penstock.clock() - interval '30 days')")
    verifying = pool.submit(app.verify)
    until_it_waits(sql, verifying)  # type: ignore[arg-type]
    other.commit()
    assert verifying.result(timeout=30).ok


def test_two_upkeeps_at_once(app: Penstock, queue: Queue, sql: Connection, other: Connection) -> None:
    queue.push()
    other.execute("select * from penstock.upkeep()")
    sql.execute("set lock_timeout = '2s'")
    parts: dict[str, int] = dict(sql.execute("select * from penstock.upkeep()").fetchall())
    assert parts["sampled"] == 0
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
