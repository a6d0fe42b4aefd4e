"""Tasks that wait for others: a document with `waits_for` and no row in the agenda. No public call makes one yet, so
these tests make them by SQL. Every place that counts or changes tasks knows them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Conflict, Outcome, Penstock, Queue
from shell import penstock


@pytest.fixture
def ids(queue: Queue, sql: Connection) -> list[int]:
    """Two tasks that wait for others, beside one in each other state."""
    queue.set(keep_done="1d")
    for state in ("done", "dead", "cancelled", "active"):
        queue.push(subject=state)
    done, dead, _, _ = (claim := queue.claim(4)).ids
    queue.settle(claim, {done: Outcome.done(), dead: Outcome.dead("no")})
    queue.cancel(subjects=["cancelled"])
    queue.push(subject="pending")
    queue.push(subject="planned", delay="1h")
    rows = sql.execute(
        "insert into penstock.task (queue_id, subject, waits_for, key)"
        " select q.id, 'w' || n, n, 'k' from penstock.queue as q, generate_series(1, 2) as n returning id"
    )
    return [id_ for (id_,) in rows]


def test_every_place_agrees(app: Penstock, queue: Queue, sql: Connection, ids: list[int], dsn: str) -> None:
    status = queue.status()
    gauges = {name: getattr(status, name) for name in ("waiting", "planned", "pending", "active", "done", "dead")}
    assert gauges == {"waiting": 2, "planned": 1, "pending": 1, "active": 1, "done": 1, "dead": 1}
    assert status.totals["pushed"] == sum(gauges.values()) + status.cancelled == 8
    assert app.verify().ok
    assert [(task.id, task.state, task.key) for task in queue.tasks(state="waiting")] == [
        (id_, "waiting", "k") for id_ in ids
    ]
    assert sorted(task.state for task in queue.tasks()) == sorted([*gauges, "waiting", "cancelled"])
    places = sql.execute(
        "select p.id from penstock.queue as q, penstock.places_of(q.id) as p where p.place = 'waiting'"
    )
    assert sorted(id_ for (id_,) in places) == ids
    found = queue.why(ids[1])
    assert (found.reason, found.facts["waits_for"]) == ("waiting", 2)
    assert found.text == f"task {ids[1]} waits for 2 other tasks to end"
    assert queue.push(subject="w1").state == "waiting"
    assert app.queue("work").claim(10).ids == [queue.tasks(subject="pending")[0].id]
    (shown,) = penstock("status", "--json", dsn=dsn).json["queues"]
    assert shown["waiting"] == 2
    assert "waiting" in penstock("status", dsn=dsn).out
    assert penstock("tasks", "ls", "work", "--state", "waiting", "--json", dsn=dsn).json["tasks"][0]["id"] == ids[0]
    assert app.board().queues[0].waiting == 2
    app.upkeep()
    assert sql.execute("select waiting from penstock.sample order by at desc limit 1").fetchone() == (2,)


def test_the_status_has_no_such_column_without_such_a_task(queue: Queue, dsn: str) -> None:
    queue.push()
    assert "waiting" not in penstock("status", dsn=dsn).out


def test_an_update_reaches_it(queue: Queue, sql: Connection, ids: list[int]) -> None:
    pushed = queue.push({"n": 1}, subject="w1", on_conflict="update", priority=1, key="l")
    assert (pushed.id, pushed.result, pushed.state) == (ids[0], "updated", "waiting")
    task = queue.task(ids[0])
    assert (task.payload, task.priority, task.key, task.state) == ({"n": 1}, 1, "l", "waiting")
    assert sql.execute("select count(*) from penstock.task where renew is not null").fetchone() == (0,)


def test_the_verbs_reach_it(queue: Queue, clock: Clock, ids: list[int], dsn: str) -> None:
    due = clock.now() + timedelta(hours=1)
    assert queue.reprioritise(2, ids) == dict.fromkeys(ids, "reprioritised")
    assert queue.reschedule(due, ids) == dict.fromkeys(ids, "rescheduled")
    assert queue.redrive(ids) == dict.fromkeys(ids, "live")
    ran = penstock("tasks", "cancel", "work", str(ids[0]), "--dry-run", "--json", dsn=dsn)
    assert ran.json["would"] == {str(ids[0]): "cancelled"}
    assert queue.cancel(ids[:1]) == {ids[0]: "cancelled"}
    assert queue.status().waiting == 1
    assert queue.redrive(ids[:1]) == {ids[0]: "redriven"}, "it waits for nothing any more"
    assert (queue.status().waiting, queue.task(ids[0]).state) == (1, "pending")


def test_it_expires(queue: Queue, clock: Clock, sql: Connection, ids: list[int]) -> None:
    sql.execute("update penstock.task set expires = penstock.clock() + interval '1 min' where id = %s", (ids[0],))
    clock.advance(60)
    assert queue.why(ids[0]).reason == "expired"
    sql.execute("select penstock.upkeep_part('unstarted tasks ended')")
    assert queue.task(ids[0]).reason == "expired"
    assert queue.status().waiting == 1


def test_purge_and_drop_remove_it(app: Penstock, queue: Queue, ids: list[int]) -> None:
    assert queue.purge("waiting", ids=ids[:1]) == 1
    assert queue.status().waiting == 1
    with pytest.raises(Conflict, match="has 7 tasks in it"):
        queue.drop()
    queue.drop(force=True)
    assert app.verify().ok


@pytest.mark.unbalanced
def test_verify_finds_what_only_sql_by_hand_can_do(
    app: Penstock, queue: Queue, sql: Connection, ids: list[int]
) -> None:
    """A task that waits for nothing any more, without an agenda row; and one with a row that waits for others."""
    sql.execute("update penstock.task set waits_for = 0 where id = %s", (ids[0],))
    sql.execute(
        "insert into penstock.agenda (task_id, due, queue_id, priority, pending)"
        " select id, now(), queue_id, 5, true from penstock.task where id = %s",
        (ids[1],),
    )
    found = {one.what for one in app.verify().findings}
    assert found == {"orphans: live, but neither waiting nor leased", "orphans: in two places"}
    app.repair()
    assert app.verify().ok
    assert (queue.task(ids[0]).state, queue.task(ids[1]).state) == ("pending", "waiting")
