"""The attempts of one task: finished ones by history, and the running one."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import AsyncPenstock, Attempt, NotFound, Outcome, Penstock, Queue, ValidationError
from shell import each, penstock

UNKNOWN_ID = 10**9
ERROR = 'no such page\nTraceback (most recent call last):\n  File "x.py", line 1, in x\n'


def fail_once(queue: Queue, worker: str = "") -> int:
    """Pushes a task that fails once and may run again at once."""
    pushed = queue.push({}, subject="a", kind="k")
    queue.settle(queue.claim(worker=worker), {pushed.id: Outcome.failed(ERROR, error_class="KeyError", delay="0s")})
    return pushed.id


def test_every_attempt_oldest_first_and_the_running_one(queue: Queue, clock: Clock) -> None:
    pushed = queue.push()
    began = clock.now()
    clock.advance(5)
    queue.settle(queue.claim(worker="w1"), {pushed.id: Outcome.failed(ERROR, error_class="KeyError", delay="60s")})
    clock.advance(60)
    queue.settle(queue.claim(worker="w2"), {pushed.id: Outcome.again()})
    clock.advance(5)
    claim = queue.claim(worker="w3")
    failed, again, running = queue.attempts(pushed.id)
    assert [(one.attempt, one.iteration, one.worker, one.outcome) for one in (failed, again, running)] == [
        (1, 0, "w1", "failed"), (2, 0, "w2", "again"), (1, 1, "w3", None),
    ]  # fmt: skip
    assert (failed.due, failed.claimed_at, failed.finished_at) == (began, *[began + timedelta(seconds=5)] * 2)
    assert (failed.error_class, failed.message, failed.traceback) == (
        "KeyError",
        "no such page",
        ERROR.split("\n", 1)[1],
    )
    assert (again.due, again.error, again.lease_until) == (began + timedelta(seconds=65), None, None)
    assert (running.finished_at, running.lease_until, running.claimed_at) == (None, claim.until, clock.now())
    assert running.traceback is None
    assert queue.attempts(pushed.id, limit=2) == [again, running]
    assert queue.attempts(pushed.id, limit=1) == [running]


def test_a_task_without_attempts_has_none(queue: Queue) -> None:
    assert queue.attempts(queue.push().id) == []


def test_attempts_of_leases_and_cancels(queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 3)
    claim = queue.claim(3)
    expired, released, revoked = claim.ids
    queue.settle(claim, {released: Outcome.release()})
    queue.cancel([revoked])
    clock.advance(11)
    queue.claim(1)  # takes the released task
    assert [one.outcome for one in queue.attempts(expired)] == ["expired"]
    assert [one.outcome for one in queue.attempts(released)] == ["released", None]
    assert [one.outcome for one in queue.attempts(revoked)] == ["revoked"]


def test_attempts_of_a_removed_task_and_of_a_dropped_queue(app: Penstock, queue: Queue) -> None:
    done = fail_once(queue, "w")
    queue.settle(queue.claim())
    assert [one.outcome for one in queue.attempts(done)] == ["failed", "done"]
    other = app.create_queue("other")
    for asked in (done, UNKNOWN_ID):
        with pytest.raises(NotFound, match=f"there is no task {asked} in queue 'other'"):
            other.attempts(asked)
    queue.drop(force=True)
    assert [(one.queue, one.outcome) for one in app.attempts(done)] == [("work", "failed"), ("work", "done")]
    with pytest.raises(NotFound, match="queue 'work' does not exist"):
        queue.attempts(done)


def test_attempts_that_cannot_be_asked_for(app: Penstock, queue: Queue, sql: Connection) -> None:
    with pytest.raises(NotFound, match=f"there is no task {UNKNOWN_ID}\n"):
        app.attempts(UNKNOWN_ID)
    for bad in ("1", 1.0, True, 0, None, 2**63):
        with pytest.raises(ValidationError, match=r"id: .* is not a whole number"):
            queue.attempts(bad)  # type: ignore[arg-type]
    for limit in (0, 10_001):
        with pytest.raises(ValidationError, match="limit: "):
            queue.attempts(1, limit=limit)
    for call in ("null", "1, null, 0"):
        with pytest.raises(psycopg.Error, match=r"id: it is null|limit: 0 is not between") as refused:
            sql.execute(f"select * from penstock.attempts({call})".encode())
        assert refused.value.sqlstate == "PS400"


def test_the_async_client_has_them_too(queue: Queue, dsn: str) -> None:
    async def ask(id_: int) -> tuple[list[Attempt], list[Attempt], str]:
        async with AsyncPenstock(dsn) as app:
            own = app.queue("work")
            return await app.attempts(id_), await own.attempts(id_), (await own.why(id_)).reason

    id_ = fail_once(queue)
    attempts = queue.attempts(id_)
    assert asyncio.run(ask(id_)) == (attempts, attempts, "no_worker")
    assert attempts[0].finished_at is not None
    assert attempts[0].finished_at.utcoffset() is not None


def test_they_are_found_by_the_index(queue: Queue, sql: Connection) -> None:
    """Whatever the session has switched off."""
    queue.push_many([{}] * 40_000)
    last = 0
    while claim := queue.claim(5_000):
        queue.settle(claim)
        last = claim.ids[-1]
    read = "select sum(seq_tup_read) from pg_stat_xact_user_tables where relname like 'history\\_2%'"
    with sql.transaction():
        sql.execute("set local enable_bitmapscan = off")
        assert sql.execute("select state from penstock.find_removed(%s)", (last,)).fetchone() == ("done",)
        assert sql.execute("select outcome from penstock.attempts(%s)", (last,)).fetchall() == [("done",)]
        assert sql.execute(read).fetchone() == (0,)


def test_days_before_the_task_are_not_read(queue: Queue, sql: Connection) -> None:
    """Nothing of such a day is read, not even its index."""
    id_ = fail_once(queue)
    sql.execute("select penstock._make_history((penstock.clock() at time zone 'UTC')::date - 3)")
    read = (
        "select relname, idx_scan > 0 from pg_stat_xact_user_tables where relname like 'history\\_2%'"
        " and relname <= 'history_' || to_char(penstock.clock() at time zone 'UTC', 'YYYYMMDD') order by 1"
    )
    with sql.transaction():
        assert len(sql.execute("select from penstock.attempts(%s)", (id_,)).fetchall()) == 1
        assert [used for _, used in sql.execute(read).fetchall()] == [False, True]


# --- the shell --------------------------------------------------------------------------------------------------------


def test_the_shell_shows_them_under_the_task(dsn: str, queue: Queue) -> None:
    id_ = fail_once(queue, "worker-1")
    queue.claim(worker="worker-2")
    shown = penstock("tasks", "show", str(id_), dsn=dsn, tracebacks=True)
    value = penstock("tasks", "show", str(id_), "--json", dsn=dsn, tracebacks=True)
    lines = shown.out.splitlines()
    head = lines.index("history") + 1
    assert lines[head].split()[:3] == ["attempt", "iteration", "worker"]
    first, second = lines[head + 1 : head + 3]
    assert first.split()[:3] == ["1", "0", "worker-1"]
    assert "KeyError: no such page" in first
    assert "active until " in second
    assert "worker-2" in second
    failed, running = value.json["history"]
    assert (failed["outcome"], failed["message"], running["outcome"]) == ("failed", "no such page", None)
    assert running["lease_until"] == value.json["lease_until"]


def test_the_shell_shows_those_of_removed_tasks(dsn: str, app: Penstock, queue: Queue) -> None:
    ended = fail_once(queue)
    queue.settle(queue.claim())
    id_ = fail_once(queue)
    queue.purge("pending")
    shown, gone = each(("tasks", "show", str(id_)), ("tasks", "show", str(ended)), dsn=dsn)
    value = penstock("tasks", "show", str(id_), "--json", dsn=dsn, tracebacks=True)
    assert shown.out.startswith(f"task {id_} of queue work is removed; history has its attempts\n")
    assert "KeyError: no such page" in shown.out
    assert (value.json["removed"], [one["outcome"] for one in value.json["history"]]) == (True, ["failed"])
    assert [word in gone.out for word in ("removed  ", "failed", "done")] == [True] * 3
    missing = penstock("tasks", "show", str(UNKNOWN_ID), dsn=dsn)
    assert (missing.code, f"there is no task {UNKNOWN_ID}" in missing.err) == (1, True)


def test_the_shell_shows_the_last_of_many(dsn: str, queue: Queue) -> None:
    id_ = queue.push().id
    for _ in range(52):
        queue.settle(queue.claim(), {id_: Outcome.again()})
    shown, value = each(("tasks", "show", str(id_)), ("tasks", "show", str(id_), "--json"), dsn=dsn)
    assert "history, without 2 earlier attempts (--json)" in shown.out
    assert shown.out.count(" again ") == 50
    assert len(value.json["history"]) == 52
