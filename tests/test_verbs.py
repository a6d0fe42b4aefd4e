"""Verbs on existing tasks and queues: cancel, redrive, reschedule, reprioritise, pause, purge, drop and set."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Conflict, LeaseLost, NewTask, NotFound, Outcome, Penstock, Queue, ValidationError
from penstock.client.database import Database
from penstock.client.workers import extend_leases


def bury(queue: Queue, *errors: str, kind: str = "default") -> list[int]:
    """Makes dead tasks with these errors, and returns their ids."""
    ids = []
    for error in errors:
        ids.append(queue.push({}, kind=kind, priority=0).id)
        claim = queue.claim()
        assert claim.ids == ids[-1:]
        queue.settle(claim, {ids[-1]: Outcome.dead(error)})
    return ids


# --- cancel ---------------------------------------------------------------------------------------------------------


def test_cancel_what_waits_and_what_runs(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([NewTask({}, f"s{n}") for n in range(3)])
    planned = queue.push(due=clock.now() + timedelta(hours=1))
    claim = queue.claim(2)
    waiting = queue.tasks(subject="s2")[0].id
    told = queue.cancel([*claim.ids[:1], waiting, planned.id, 10**9], reason="no longer needed")
    assert told == {claim.ids[0]: "revoked", waiting: "cancelled", planned.id: "cancelled", 10**9: "unknown"}
    assert queue.cancel([waiting]) == {waiting: "ended"}
    status = queue.status()
    assert (status.active, status.cancelled, status.totals["cancelled"], status.totals["revoked"]) == (1, 3, 3, 1)
    assert {task.reason for task in queue.tasks(state="cancelled")} == {"no longer needed"}
    assert sql.execute("select outcome, attempt from penstock.history").fetchall() == [("revoked", 1)]

    assert queue.extend(claim).revoked == (claim.ids[0],)
    with pytest.raises(LeaseLost) as lost:
        queue.settle(claim)
    assert lost.value.revoked == (claim.ids[0],)
    assert queue.status().totals["done"] == 1, "the other one is settled"


def test_a_worker_whose_every_task_was_cancelled_is_told(queue: Queue, clock: Clock) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim(2)
    assert set(queue.cancel(claim.ids).values()) == {"revoked"}
    with pytest.raises(LeaseLost) as lost:
        queue.extend(claim)
    assert (lost.value.reason, set(lost.value.revoked)) == ("cancelled", set(claim.ids))
    clock.advance(60)
    assert queue.claim().tasks == ()
    assert queue.status().cancelled == 2, "expiry of the empty lease brings nothing back"


def test_cancel_by_subject_and_of_a_renewed_task(queue: Queue) -> None:
    pushed = queue.push({"n": 1}, subject="s")
    claim = queue.claim()
    queue.push({"n": 2}, subject="s", on_conflict="update")
    assert queue.cancel(subjects=["s", "unknown"]) == {pushed.id: "revoked"}
    with pytest.raises(LeaseLost):
        queue.settle(claim)
    assert queue.task(pushed.id).state == "cancelled"


def test_a_dead_task_that_is_held_does_not_keep_the_others(
    queue: Queue, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redrive and purge first choose tasks and then lock them, some at a time."""
    monkeypatch.setattr("penstock.client.statements.tasks.MAX_TASKS", 2)
    held, *others = bury(queue, "a", "b", "c", "d")
    with psycopg.connect(dsn) as other:
        other.execute("select from penstock.task where id = %s for update", (held,))
        assert queue.redrive() == {held: "busy"} | dict.fromkeys(others, "redriven")
        queue.cancel(others)
        assert queue.purge("dead", "cancelled") == 3
        assert [task.id for task in queue.tasks(limit=2)] == [held]
    assert queue.purge("dead", "cancelled") == 1


def test_a_task_that_another_session_holds_is_busy_and_not_waited_for(queue: Queue, sql: Connection, dsn: str) -> None:
    held, leased = queue.push(subject="a"), queue.push(subject="b")
    queue.claim()
    with psycopg.connect(dsn) as other:
        other.execute("select from penstock.task where id = %s for update", (leased.id,))
        other.execute("select from penstock.lease for update")
        sql.execute("set lock_timeout = '1s'")
        rows = sql.execute("select * from penstock.cancel('work', %s)", ([held.id, leased.id],)).fetchall()
        assert dict(rows) == {held.id: "busy", leased.id: "busy"}
        for call in ("reschedule('work', now(), %s)", "reprioritise('work', 1::smallint, %s)"):
            assert sql.execute(f"select * from penstock.{call}", ([leased.id],)).fetchall() == [(leased.id, "busy")]
    assert queue.cancel([held.id]) == {held.id: "revoked"}


# --- redrive --------------------------------------------------------------------------------------------------------


def test_redrive_resets_the_attempts(queue: Queue, clock: Clock) -> None:
    (dead,) = bury(queue, "boom")
    cancelled = queue.push()
    queue.cancel([cancelled.id])
    waiting = queue.push()
    clock.advance(5)
    assert queue.redrive([dead, cancelled.id, waiting.id, 10**9]) == {
        dead: "redriven",
        cancelled.id: "redriven",
        waiting.id: "live",
        10**9: "unknown",
    }
    status = queue.status()
    assert (status.pending, status.dead, status.cancelled, status.totals["redriven"]) == (3, 0, 0, 2)
    task = queue.task(dead)
    assert (task.state, task.attempts, task.error, task.due) == ("pending", 0, None, clock.now())


def test_redrive_chooses(queue: Queue, clock: Clock) -> None:
    old = bury(queue, "boom old")
    clock.advance(60)
    since = clock.now()
    boom, other = bury(queue, "boom", "bang")
    (kind,) = bury(queue, "boom", kind="k")
    assert queue.redrive(error="boom", since=since, kind="default") == {boom: "redriven"}
    assert queue.redrive(kind="k") == {kind: "redriven"}
    assert queue.redrive(limit=1) == {old[0]: "redriven"}, "the oldest go first"
    assert queue.redrive() == {other: "redriven"}
    assert queue.redrive() == {}


def test_redrive_of_more_tasks_than_one_call_takes(queue: Queue, sql: Connection) -> None:
    queue.push_many([{}] * 12_000)
    sql.execute("delete from penstock.agenda")
    sql.execute("update penstock.task set ended = 'dead', ended_at = now()")
    assert len(queue.redrive(limit=11_000)) == 11_000
    assert len(queue.redrive()) == 1000


def test_a_done_task_is_not_redriven(app: Penstock) -> None:
    queue = app.create_queue("kept", keep_done="1d")
    (dead,) = bury(queue, "x")
    done = queue.push()
    queue.settle(queue.claim())
    with pytest.raises(Conflict, match=f"id: {done.id} is done"):
        queue.redrive([dead, done.id])
    assert queue.status().dead == 1


# --- reschedule, reprioritise ---------------------------------------------------------------------------------------


def test_reschedule(queue: Queue, clock: Clock) -> None:
    active, waiting, planned = queue.push(), queue.push(), queue.push(due=clock.now() + timedelta(days=1))
    claim = queue.claim()
    due = clock.now() + timedelta(minutes=5)
    told = queue.reschedule(due, [active.id, waiting.id, planned.id, 10**9])
    assert told == {active.id: "active", waiting.id: "rescheduled", planned.id: "rescheduled", 10**9: "unknown"}
    queue.settle(claim)
    assert queue.claim().tasks == ()
    clock.advance(300)
    assert queue.claim(5).ids == [waiting.id, planned.id]


def test_reprioritise(queue: Queue, clock: Clock) -> None:
    ids = [queue.push().id for _ in range(3)]
    claim = queue.claim()
    assert queue.reprioritise(0, [ids[0], ids[2]]) == {ids[0]: "reprioritised", ids[2]: "reprioritised"}
    queue.release(claim)
    assert queue.claim(3).ids == [ids[0], ids[2], ids[1]]


# --- pause, set -----------------------------------------------------------------------------------------------------


def test_pause_and_resume(queue: Queue) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim()
    queue.pause()
    assert queue.claim().tasks == ()
    assert queue.push().state == "pending"
    queue.settle(claim)
    assert queue.status().paused
    queue.resume()
    assert len(queue.claim(5)) == 2


def test_set(queue: Queue, sql: Connection) -> None:
    found = queue.set(lease="1m", max_attempts=None, retry="fibonacci:1m", sla="30s", keep_dead="7d", max_payload=2000)
    assert (found.lease, found.max_attempts, found.sla) == (timedelta(minutes=1), None, timedelta(seconds=30))
    assert (found.retry, found.keep_dead, found.max_payload) == (
        {"type": "fibonacci", "unit": 60.0},
        timedelta(days=7),
        2000,
    )
    assert queue.set(sla=None).sla is None
    before = queue.settings()
    for changes in ({"lease": 0}, {"max_attempts": 0}, {"retry": "never"}, {"max_payload": 1}, {"colour": "red"}, {}):
        with pytest.raises(ValidationError):
            queue.set(**changes)
    bad = ('{"lease": "abc"}', '{"lease": null}', '{"retry": {"type": "fixed"}}', '{"x": 1}', "[]", '{"paused": null}')
    for text in bad:
        with pytest.raises(psycopg.Error) as refused:
            sql.execute("select penstock.set_queue('work', %s::jsonb)", (text,))
        assert refused.value.sqlstate == "PS400", text
    assert queue.settings() == before
    with pytest.raises(NotFound):
        Queue(queue._database, "nowhere").settings()


# --- purge, drop, retention -----------------------------------------------------------------------------------------


def test_purge(queue: Queue, clock: Clock) -> None:
    boom, _ = bury(queue, "boom", "bang")
    queue.cancel([queue.push().id])
    queue.push()
    queue.push(due=clock.now() + timedelta(hours=1))
    assert queue.purge("dead", error="BOOM") == 1, "case does not matter"
    assert queue.purge("dead", ids=[boom]) == 0
    assert queue.purge("dead", "cancelled") == 2
    assert queue.purge("planned") == 1
    assert queue.purge("pending", "planned") == 1
    assert queue.status().totals["removed"] == 5
    active = queue.push()
    queue.claim()
    with pytest.raises(Conflict, match="active"):
        queue.purge("active")
    with pytest.raises(Conflict, match=f"id: {active.id} is active"):
        queue.purge("pending", ids=[active.id])
    with pytest.raises(ValidationError, match="state: 'lost'"):
        queue.purge("lost")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="states"):
        queue.purge()


def test_drop(app: Penstock, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim()
    with pytest.raises(Conflict, match="has 2 tasks"):
        queue.drop()
    assert queue.drop(force=True) == 2
    with pytest.raises(LeaseLost):
        queue.settle(claim)
    for call in (queue.push, queue.claim, queue.status, queue.settings, queue.drop):
        with pytest.raises(NotFound, match="work"):
            call()
    assert app.queues() == []
    new = app.create_queue("work")
    assert new.push().result == "created"
    audit = sql.execute("select verb, queue from penstock.audit order by id").fetchall()
    assert audit == [("set", "work"), ("purge", "work"), ("drop", "work")]


def test_a_document_for_no_queue_is_refused(sql: Connection, queue: Queue) -> None:
    with pytest.raises(psycopg.Error, match="there is no queue 77") as refused:
        sql.execute("insert into penstock.task (queue_id) values (77)")
    assert refused.value.sqlstate == "PS404"


def test_tasks_that_are_no_longer_kept_are_removed(app: Penstock, clock: Clock) -> None:
    queue = app.create_queue("kept", keep_done="1h", keep_dead="2h", keep_cancelled="3h")
    bury(queue, "x")
    queue.cancel([queue.push().id])
    queue.push()
    queue.settle(queue.claim())
    for gone in ("done", "dead", "cancelled"):
        clock.advance(3601)
        assert app.upkeep()["ended tasks retired"] == 1
        assert getattr(queue.status(), gone) == 0
    assert queue.status().totals["removed"] == 3


# --- the list -------------------------------------------------------------------------------------------------------


def test_tasks_are_listed_in_pages(queue: Queue) -> None:
    queue.push_many([NewTask({"n": n}, f"s{n}", kind="k" if n % 2 else "default") for n in range(10)])
    assert [task.payload for task in queue.tasks(kind="k")] == [{"n": n} for n in (1, 3, 5, 7, 9)]
    first = queue.tasks(limit=4)
    assert [task.subject for task in queue.tasks(after=first[-1].id, limit=2)] == ["s4", "s5"]
    with pytest.raises(NotFound, match="no task 99999"):
        queue.task(99999)
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        Queue(queue._database, "nowhere").tasks()


# --- waking idle workers ----------------------------------------------------------------------------------------------


def test_a_push_wakes_an_idle_worker_and_no_other(app: Penstock, queue: Queue, clock: Clock, direct_dsn: str) -> None:
    channel = app.beat("w1", ["work"], slots=2, busy=0)["work"]
    with psycopg.connect(direct_dsn, autocommit=True) as listener:  # LISTEN does not work through a pooler
        listener.execute(f"listen {channel}")

        def received() -> int:
            listener.execute("select")  # notifications are sent before its answer
            return len(list(listener.notifies(timeout=0)))

        queue.push()
        assert received() == 1
        queue.push_many([{}] * 15_000)
        assert received() == 1, "equal notifications of a transaction are one"
        app.beat("w1", ["work"], slots=2, busy=2)
        app.beat("w1", ["work"], slots=2, busy=2)
        queue.push()
        assert received() == 0, "it is busy, as it was at the beat before"
        app.beat("w1", ["work"], slots=2, busy=1)
        clock.advance(11)
        assert app.upkeep()["idle workers forgotten"] == 1
        queue.push()
        assert received() == 0, "it has not beaten for ten seconds"
        app.beat("w1", ["work"], slots=2, busy=1)
        assert queue.set(notify=False).notify is False
        queue.push()
        assert received() == 0, "switched off"
    clock.advance(301)
    forgotten = app.upkeep()
    assert (forgotten["idle workers forgotten"], forgotten["workers forgotten"]) == (1, 1)


def test_a_beat_is_checked(app: Penstock, queue: Queue, sql: Connection) -> None:
    for arguments in (
        "null, '{work}'", "'', '{work}'", "'w', null", "'w', '{null}'", "'w', '{work}', 0", "'w', '{work}', 1, 2",
        "'w', '{work}', 1, -1", "'w', '{work}', null", "'w', '{work}', 1, 0, null",
        "'w', '{work}', p_listens => null",
    ):  # fmt: skip
        with pytest.raises(psycopg.Error) as refused:
            sql.execute(f"select * from penstock.beat({arguments})")
        assert refused.value.sqlstate == "PS400", arguments
    with pytest.raises(NotFound):
        app.beat("w", ["nowhere"])


# --- repair -----------------------------------------------------------------------------------------------------------


def test_repair_puts_right_what_verify_finds(app: Penstock, queue: Queue, sql: Connection) -> None:
    queue.push_many([NewTask({}, f"s{n}") for n in range(8)])
    claim = queue.claim(3)
    queue.push_many([{}] * 2)
    leased, waiting = claim.ids, [task.id for task in queue.tasks(state="pending")]
    sql.execute("delete from penstock.task where id = %s", (leased[0],))  # leased without a document
    sql.execute("delete from penstock.task where id = %s", (waiting[0],))  # waiting without a document
    sql.execute("delete from penstock.agenda where task_id = %s", (waiting[1],))  # live, but neither waiting nor leased
    sql.execute("update penstock.task set ended = 'dead', ended_at = now() where id = %s", (waiting[2],))
    twice = "insert into penstock.agenda select %s, now(), id, 5, 0, 0, 0, true, true from penstock.queue"
    sql.execute(twice, (leased[1],))
    wrong = "insert into penstock.counter_log (queue_id, metric, delta) select id, %s, %s from penstock.queue"
    for metric, delta in (("pending", 5), ("done_total", 7), ("pushed_total", 9)):
        sql.execute(wrong, (metric, delta))
    assert not app.verify().ok
    did = {one.what for one in app.repair()}
    assert did >= {
        "taken out of a lease",
        "taken out of the agenda",
        "put back into the agenda",
        "counter pending corrected",
        "counter done corrected",
        "counter pushed corrected",
    }
    assert app.verify().ok, app.verify().findings
    assert app.repair() == []
    assert queue.settle(claim, leased[1:]) == dict.fromkeys(leased[1:], "done")
    assert queue.claim(10).ids == [*waiting[3:], waiting[1]]


def test_many_leases_go_on_together(queue: Queue, clock: Clock, dsn: str, database: Database) -> None:
    """Each lease has a row, without an end for one that is being settled. A lost lease has none."""
    queue.push_many([{} for _ in range(4)])
    one, other, gone, busy = (queue.claim() for _ in range(4))
    queue.settle(gone)
    queue.cancel(other.ids)
    clock.advance(5)
    with psycopg.connect(dsn) as settling:
        settling.execute("select * from penstock.settle(%s, %s)", (busy.token, busy.ids))
        kept = extend_leases(database, [str(claim.token) for claim in (one, other, gone, busy)], lease="20s")
        settling.rollback()
    assert kept.keys() == {str(one.token), str(other.token), str(busy.token)}
    assert kept[str(one.token)] == (clock.now() + timedelta(seconds=20), ())
    assert kept[str(other.token)].revoked == tuple(other.ids)
    assert kept[str(busy.token)] == (None, ())
    clock.advance(6)
    assert queue.claim(10).ids == busy.ids, "the others were kept alive"
