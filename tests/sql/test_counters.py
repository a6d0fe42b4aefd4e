"""Counters equal a recount in every snapshot, whoever wrote and however: also by hand."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import Connection

from penstock import Penstock, Queue


def gauges(sql: Connection, name: str = "work") -> dict[str, int]:
    row = sql.execute(
        "select planned, pending, active, done, dead, cancelled from penstock.status(%s)", (name,)
    ).fetchone()
    assert row is not None
    return dict(zip(("planned", "pending", "active", "done", "dead", "cancelled"), row, strict=True))


def test_hand_written_sql_can_not_drift_them(queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}, {}])
    sql.execute("insert into penstock.task (queue_id, due) select id, now() + '1 hour' from penstock.queue")
    assert gauges(sql) == {"planned": 1, "pending": 3, "active": 0, "done": 0, "dead": 0, "cancelled": 0}
    sql.execute("update penstock.agenda set pending = not pending")
    assert gauges(sql)["planned"] == 3
    with sql.transaction():
        sql.execute("update penstock.task set ended = 'cancelled', ended_at = now() where id = 1")
        sql.execute("delete from penstock.agenda where task_id = 1")
    assert gauges(sql)["cancelled"] == 1
    with sql.transaction():
        sql.execute("delete from penstock.agenda where task_id = 2")
        sql.execute("delete from penstock.task where id = 2")
    queue.push({})
    claim = queue.claim(5)
    sql.execute("update penstock.lease set open = set_bit(open, 0, 0)")
    sql.execute(
        "insert into penstock.agenda select %s, now(), queue_id, 5, 0, 0, 0, true, false from penstock.lease",
        (claim.ids[0],),
    )
    assert gauges(sql)["active"] == len(claim) - 1


def test_tasks_moved_to_another_queue_by_hand(app: Penstock, queue: Queue, sql: Connection) -> None:
    app.create_queue("other")
    queue.push_many([{}, {}])
    with sql.transaction():
        sql.execute("update penstock.task set queue_id = (select id from penstock.queue where name = 'other')")
        sql.execute("update penstock.agenda set queue_id = (select id from penstock.queue where name = 'other')")
    assert gauges(sql)["pending"] == 0
    assert gauges(sql, "other")["pending"] == 2


@pytest.mark.parametrize("table", ["task", "agenda", "lease", "counter", "counter_log", "history"])
def test_truncate_is_refused(queue: Queue, sql: Connection, table: str) -> None:
    with pytest.raises(psycopg.Error, match="counters lie"):
        sql.execute(f"truncate penstock.{table}")


def test_a_rollback_leaves_no_trace(queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    before = gauges(sql)
    with sql.transaction(force_rollback=True):
        sql.execute("select penstock.push('work')")
        sql.execute("select * from penstock.claim('work', 10)")
        assert gauges(sql)["active"] == 3
    assert gauges(sql) == before


def test_a_killed_backend_leaves_no_trace(queue: Queue, dsn: str, sql: Connection) -> None:
    queue.push_many([{}, {}])
    victim = psycopg.connect(dsn)
    victim.execute("select penstock.push('work')")
    victim.execute("select * from penstock.claim('work', 10)")
    sql.execute("select pg_terminate_backend(%s, 5000)", (victim.info.backend_pid,))
    assert gauges(sql)["pending"] == 2
    assert len(queue.claim(10)) == 2
    with pytest.raises(psycopg.OperationalError):
        victim.execute("select 1")
    victim.close()


def test_squeeze_waits_for_older_transactions(queue: Queue, dsn: str, sql: Connection) -> None:
    """Ids commit out of order: a row folded before an older one has committed would be lost from the sums."""
    with psycopg.connect(dsn) as old:
        old.execute("select penstock.push('work')")
        for _ in range(3):
            queue.push()
        assert sql.execute("select penstock.squeeze(id) from penstock.queue").fetchone() == (0,)
        assert gauges(sql)["pending"] == 3
        old.commit()
    assert gauges(sql)["pending"] == 4
    # The transactions of other tests are in the same cluster, and older ones among them are waited for too.
    deadline = time.monotonic() + 60
    while sql.execute("select count(*) from penstock.counter_log").fetchone() != (0,):
        assert time.monotonic() < deadline
        sql.execute("select penstock.squeeze(id) from penstock.queue")
        assert gauges(sql)["pending"] == 4
        time.sleep(0.01)


def test_one_squeezer_at_a_time(queue: Queue, dsn: str, sql: Connection) -> None:
    queue.push()
    with psycopg.connect(dsn) as other:
        other.execute("select penstock.squeeze(id) from penstock.queue")
        assert sql.execute("select penstock.squeeze(id) from penstock.queue").fetchone() == (0,)
        assert gauges(sql)["pending"] == 1


def test_a_held_snapshot_sees_its_own_truth(queue: Queue, dsn: str, sql: Connection) -> None:
    queue.push_many([{}, {}])
    with psycopg.connect(dsn) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before = gauges(held)
        queue.settle(queue.claim(1))
        queue.push_many([{} for _ in range(5)])
        sql.execute("select penstock.squeeze(id) from penstock.queue")
        assert gauges(held) == before
        assert held.execute("select count(*) from penstock.verify()").fetchone() == (0,)
    assert gauges(sql)["pending"] == 6


def test_numbers_of_another_cluster_are_folded_whatever_they_are(queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    sql.execute("update penstock.low set system = 1, xid = 9000000000000000000")
    queue.push()
    assert gauges(sql)["pending"] == 3
    sql.execute("select penstock.squeeze(id) from penstock.queue")
    queue.push()
    assert gauges(sql)["pending"] == 4
    assert sql.execute("select system = penstock.system() from penstock.low").fetchone() == (True,)


@pytest.mark.unbalanced
def test_verify_finds_what_is_off(queue: Queue, app: Penstock, sql: Connection) -> None:
    queue.push_many([{}, {}, {}, {}])
    claim = queue.claim(1)
    cases: list[tuple[str, str, Callable[[], int]]] = [
        (
            (
                "update penstock.counter_log set delta = delta + 1"
                " where ctid = (select ctid from penstock.counter_log where metric = 'pending' limit 1)"
            ),
            "drift",
            lambda: app.verify().drift,
        ),
        (
            "delete from penstock.agenda where task_id = (select max(task_id) from penstock.agenda)",
            "orphans",
            lambda: app.verify().orphans,
        ),
        (
            "insert into penstock.counter_log (queue_id, metric, delta) select id, 'done_total', 1 from penstock.queue",
            "history",
            lambda: app.verify().history,
        ),
        (
            (
                "insert into penstock.counter_log (queue_id, metric, delta)"
                " select id, 'pushed_total', 1 from penstock.queue"
            ),
            "balance",
            lambda: app.verify().balance,
        ),
        (
            (
                "insert into penstock.agenda"
                f" select {claim.ids[0]}, now(), id, 5, 0, 0, 0, true, false from penstock.queue"
            ),
            "orphans",
            lambda: app.verify().orphans,
        ),
    ]
    for statement, _, count in cases:
        before = count()
        sql.execute(statement)
        assert count() > before, statement
    assert not app.verify().ok


def test_documents_removed_by_hand_are_not_leased(queue: Queue, app: Penstock, sql: Connection) -> None:
    queue.push_many([{"n": n} for n in range(4)])
    sql.execute("delete from penstock.task where id in (2, 3)")
    assert app.verify().orphans == 2
    claim = queue.claim(10)
    assert claim.ids == [1, 4]
    assert app.verify().orphans == 0
    assert app.verify().dropped == 2
    queue.settle(claim)
