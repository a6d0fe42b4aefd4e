"""Counters equal a recount in every snapshot, whatever wrote the rows: hand-written SQL too."""

from __future__ import annotations

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


def test_hand_written_sql_cannot_drift_them(queue: Queue, sql: Connection) -> None:
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


@pytest.mark.sample(3)
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


def test_squeeze_leaves_the_rows_of_transactions_that_run(queue: Queue, dsn: str, sql: Connection) -> None:
    """Ids commit out of order. The rows of an older transaction that commits later are found too."""
    left = "select count(*) from penstock.counter_log"
    with psycopg.connect(dsn) as old, psycopg.connect(dsn) as older:
        older.execute("select penstock.push('work')")
        old.execute("select penstock.push('work')")
        for pending in (1, 2, 3):
            queue.push()
            sql.execute("select penstock._squeeze(id) from penstock.queue")
            assert sql.execute(left).fetchone() == (0,)  # a transaction that stays open holds up only its own rows
            assert gauges(sql)["pending"] == pending
        old.commit()
        assert gauges(sql)["pending"] == 4
        sql.execute("select penstock._squeeze(id) from penstock.queue")
        assert sql.execute(left).fetchone() == (0,)
        assert gauges(sql)["pending"] == 4
        older.rollback()
    sql.execute("select penstock._squeeze(id) from penstock.queue")
    assert gauges(sql)["pending"] == 4


def test_squeeze_in_a_transaction_that_counts_before_and_after(queue: Queue, sql: Connection) -> None:
    queue.push()
    with sql.transaction():
        for pushed in (2, 3, 4):
            sql.execute("select penstock.push('work')")
            sql.execute("select penstock._squeeze(id) from penstock.queue")
            assert gauges(sql)["pending"] == pushed
        sql.execute("select penstock.push('work')")
    assert gauges(sql)["pending"] == 5
    sql.execute("select penstock._squeeze(id) from penstock.queue")
    assert sql.execute("select count(*) from penstock.counter_log").fetchone() == (0,)
    assert gauges(sql)["pending"] == 5


def test_a_squeeze_of_a_long_log_is_cut_short(queue: Queue, sql: Connection) -> None:
    queue.push()
    sql.execute(
        "insert into penstock.counter_log (queue_id, metric, delta, xid)"
        " select id, 'done_total', 0, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1"
        " from penstock.queue, generate_series(1, 70000)"
    )
    queue.push()
    for left in (True, False):
        sql.execute("select penstock._squeeze(id) from penstock.queue")
        assert sql.execute("select count(*) > 0 from penstock.counter_log").fetchone() == (left,)
        assert gauges(sql)["pending"] == 2


def test_one_squeezer_at_a_time(queue: Queue, dsn: str, sql: Connection) -> None:
    queue.push()
    with psycopg.connect(dsn) as other:
        other.execute("select penstock._squeeze(id) from penstock.queue")
        assert sql.execute("select penstock._squeeze(id) from penstock.queue").fetchone() == (0,)
        assert gauges(sql)["pending"] == 1


def test_a_held_snapshot_sees_its_own_truth(queue: Queue, dsn: str, sql: Connection) -> None:
    queue.push_many([{}, {}])
    with psycopg.connect(dsn) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before = gauges(held)
        queue.settle(queue.claim(1))
        queue.push_many([{} for _ in range(5)])
        sql.execute("select penstock._squeeze(id) from penstock.queue")
        assert gauges(held) == before
        assert held.execute("select count(*) from penstock.verify()").fetchone() == (0,)
    assert gauges(sql)["pending"] == 6


def test_numbers_of_another_cluster_are_folded_whatever_they_are(queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    sql.execute("update penstock.watermark set system = 1, xid = 9000000000000000000")
    queue.push()
    assert gauges(sql)["pending"] == 3
    sql.execute("select penstock._squeeze(id) from penstock.queue")
    queue.push()
    assert gauges(sql)["pending"] == 4
    assert sql.execute("select system = penstock._system() from penstock.watermark").fetchone() == (True,)


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
        (
            "update penstock.agenda set priority = 101 where task_id = (select min(task_id) from penstock.agenda)",
            "orphans",
            lambda: app.verify().orphans,
        ),
        ("update penstock.lease set dues = '{}'", "orphans", lambda: app.verify().orphans),
    ]
    for statement, _, count in cases:
        before = count()
        sql.execute(statement)
        assert count() > before, statement
    assert not app.verify().ok


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("priority", "101", "priority: 101 is not between -100 and 100"),
        ("kind", "''", "kind: 0 bytes are not between 1 and 128"),
        ("kind", "repeat('é', 65)", "kind: 130 bytes are not between 1 and 128"),
        ("subject", "''", "subject: 0 bytes are not between 1 and 512"),
        ("payload", "'[]'", "payload: it is not a JSON object"),
        ("due", "'infinity'", "due: infinity is not between 0001-01-02 and 9999-12-30"),
        ("ended", "'lost'", "ended: lost is not done, dead or cancelled"),
        ("ended_at", "now()", "ended_at: it is given just when the task has ended"),
    ],
)
def test_a_document_written_by_hand_is_checked(
    queue: Queue, app: Penstock, sql: Connection, column: str, value: str, said: str
) -> None:
    queue.push_many([{}, {}])
    insert = f"insert into penstock.task (queue_id, {column}) select id, {value} from penstock.queue"
    update = f"update penstock.task set {column} = {value} where id = (select max(id) from penstock.task)"
    for statement in (insert, update):
        with pytest.raises(psycopg.Error, match=said) as refused:
            sql.execute(statement.encode())
        assert refused.value.sqlstate == "PS400"
    assert queue.status().pending == 2
    assert app.verify().ok


def test_documents_removed_by_hand_are_not_leased(queue: Queue, app: Penstock, sql: Connection) -> None:
    queue.push_many([{"n": n} for n in range(4)])
    sql.execute("delete from penstock.task where id in (2, 3)")
    assert app.verify().orphans == 2
    claim = queue.claim(10)
    assert claim.ids == [1, 4]
    assert app.verify().orphans == 0
    assert app.verify().dropped == 2
    queue.settle(claim)
