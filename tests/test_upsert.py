"""Upsert: a waiting task is updated, a running task runs again, an ended task is re-opened, and nothing is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from conftest import Clock
from penstock import LeaseLost, NewTask, Outcome, Penstock, Queue


def upsert(queue: Queue, payload: dict[str, object], subject: str = "s", **options: object) -> tuple[int, str, str]:
    pushed = queue.push(payload, subject=subject, on_conflict="update", **options)  # type: ignore[arg-type]
    return pushed.id, pushed.result, pushed.state


def test_a_waiting_task_gets_everything_new(queue: Queue, clock: Clock, sql: Connection) -> None:
    first = queue.push({"n": 1}, subject="s", kind="a", priority=7)
    later = clock.now() + timedelta(hours=1)
    assert upsert(queue, {"n": 2}, kind="b", priority=2, due=later) == (first.id, "updated", "planned")
    assert upsert(queue, {"n": 3}, kind="c") == (first.id, "updated", "planned"), "its due stays"
    assert queue.claim().tasks == ()
    clock.advance(3600)
    (task,) = queue.claim().tasks
    assert (task.id, task.payload, task.kind, task.priority, task.due) == (first.id, {"n": 3}, "c", 5, later)
    assert sql.execute("select due from penstock.task").fetchone() == (later,)


def test_attempts_of_a_waiting_task_stay(queue: Queue, clock: Clock) -> None:
    queue.push(subject="s")
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.failed("x", delay=0)})
    assert upsert(queue, {"n": 2})[1] == "updated"
    assert queue.claim().tasks[0].attempt == 2


@pytest.mark.parametrize("word", ["done", "again", "failed", "dead", "release"])
def test_a_renewed_task_runs_again_whatever_became_of_this_run(queue: Queue, clock: Clock, word: str) -> None:
    pushed = queue.push({"n": 1}, subject="s")
    claim = queue.claim()
    assert upsert(queue, {"n": 2}) == (pushed.id, "renewed", "active")
    outcome = {
        "done": Outcome.done(),
        "again": Outcome.again(delay=60, payload={"n": "again"}),
        "failed": Outcome.failed("x"),
        "dead": Outcome.dead("x"),
        "release": Outcome.release(delay=60),
    }[word]
    assert queue.settle(claim, {pushed.id: outcome}) == {pushed.id: "pending"}
    (task,) = (again := queue.claim()).tasks
    assert (task.id, task.payload, task.attempt) == (pushed.id, {"n": 2}, 1)
    assert queue.settle(again) == {pushed.id: "done"}


def test_a_renewed_task_survives_its_workers_death(queue: Queue, clock: Clock) -> None:
    pushed = queue.push({"n": 1}, subject="s")
    queue.claim()
    assert upsert(queue, {"n": 2}, due=clock.now() + timedelta(seconds=60))[1] == "renewed"
    assert upsert(queue, {"n": 3}, due=clock.now() + timedelta(seconds=30))[1] == "renewed"
    clock.advance(11)
    assert queue.claim().tasks == ()
    assert queue.status().planned == 1
    clock.advance(20)
    (task,) = queue.claim().tasks
    assert (task.id, task.payload, task.attempt) == (pushed.id, {"n": 3}, 1)


@pytest.mark.parametrize("ended", ["done", "dead", "cancelled"])
def test_an_ended_task_begins_anew(app: Penstock, clock: Clock, ended: str) -> None:
    queue = app.create_queue("kept", keep_done="1d")
    pushed = queue.push({"n": 1}, subject="s")
    if ended == "cancelled":
        queue.cancel([pushed.id])
    else:
        claim = queue.claim()
        queue.settle(claim, {pushed.id: Outcome.done() if ended == "done" else Outcome.dead("x")})
    assert getattr(queue.status(), ended) == 1
    clock.advance(5)
    assert upsert(queue, {"n": 2}) == (pushed.id, "reopened", "pending")
    task = queue.task(pushed.id)
    assert (task.state, task.attempts, task.reason, task.error, task.ended_at) == ("pending", 0, None, None, None)
    claim = queue.claim()
    assert (claim.tasks[0].payload, claim.tasks[0].attempt) == ({"n": 2}, 1)
    queue.settle(claim)


def test_a_revoked_task_that_is_reopened_refuses_its_old_token(queue: Queue) -> None:
    pushed = queue.push({"n": 1}, subject="s")
    old = queue.claim()
    assert queue.cancel([pushed.id]) == {pushed.id: "revoked"}
    assert upsert(queue, {"n": 2})[1] == "reopened"
    new = queue.claim()
    assert new.tasks[0].payload == {"n": 2}
    with pytest.raises(LeaseLost) as lost:
        queue.settle(old)
    assert (lost.value.revoked, lost.value.reason) == ((pushed.id,), "cancelled")
    assert queue.settle(new) == {pushed.id: "done"}


def test_many_at_once_are_reported_one_by_one(app: Penstock, clock: Clock, sql: Connection) -> None:
    queue = app.create_queue("kept", keep_done="1d")
    queue.push_many([NewTask({}, f"s{n}") for n in range(4)])
    claim = queue.claim(2)
    queue.settle(claim, [claim.ids[0]])
    items = [NewTask({"v": n}, subject) for n, subject in enumerate(["s0", "s1", "s2", "new", None, "s2", "s3"])]
    report = queue.upsert_many(items)
    assert report.counts == {
        "created": 2,
        "updated": 2,
        "renewed": 1,
        "reopened": 1,
        "skipped": 0,
        "superseded": 1,
    }
    rows = sql.execute(
        "select n, result, state from penstock.push_many('kept', %s, %s, p_on_conflict => 'update') order by n",
        (["{}"] * 3, ["s1", "s2", "s1"]),
    ).fetchall()
    assert rows == [(1, "superseded", "active"), (2, "updated", "pending"), (3, "renewed", "active")]
    assert queue.tasks(subject="s2")[0].payload == {}
    queue.settle(claim.token, [claim.ids[1]])  # type: ignore[arg-type]


def test_chunks_and_a_repeated_batch(queue: Queue) -> None:
    queue.push_many([NewTask({"v": 0}, f"s{n:05}") for n in range(0, 25_000, 2)])
    items = [NewTask({"v": 1}, f"s{n:05}") for n in range(25_000)]
    report = queue.upsert_many(items)
    assert (report.created, report.updated) == (12_500, 12_500)
    assert queue.upsert_many(items, batch_id=report.batch_id) == report
    assert {task.payload["v"] for task in queue.claim(10_000).tasks} == {1}


def test_the_shapes_of_an_empty_or_plain_upsert(queue: Queue) -> None:
    assert queue.upsert_many([]).total == 0
    assert queue.upsert_many([{"a": 1}, None]).created == 2


# --- a push that was reported must be followed by a run with it -------------------------------------------------------


def test_a_claim_under_way_gets_the_old_payload_and_the_task_is_renewed(
    queue: Queue, sql: Connection, direct_dsn: str
) -> None:
    """The claim has taken the row and not committed: the upsert must wait for it and then renew the task."""
    queue.push({"n": 1}, subject="s")
    with sql.transaction():
        rows = sql.execute("select token, id, payload from penstock.claim('work')").fetchall()
        with (
            pytest.raises(Exception, match=r"lock timeout|canceling"),
            Penstock(make_conninfo(direct_dsn, options="-c lock_timeout=200")) as other,
        ):
            other.queue("work").push({"n": 2}, subject="s", on_conflict="update")
    assert upsert(queue, {"n": 2})[1] == "renewed"
    token, id_, payload = rows[0]
    assert payload == {"n": 1}
    queue.settle(token, [id_])
    assert queue.claim().tasks[0].payload == {"n": 2}
