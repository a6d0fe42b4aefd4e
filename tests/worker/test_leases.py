"""Leases are kept while their worker lives, whatever its handlers do, and handlers learn when a lease is lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from penstock import Claim, NewTask, Penstock, Queue
from workers import End, alive, effects, ends, eventually, noted, work, working

LONG = """
@app.task(queue="work")
def sleeps() -> None:
    time.sleep(6.5)
    note("sleeps")

@app.task(queue="work")
def computes() -> None:
    until = time.monotonic() + 6.5
    while time.monotonic() < until:
        sum(range(1000))
    note("computes")

@app.task(queue="work")
def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(7)
    note("holds_the_interpreter")
"""


@pytest.fixture
def brief(app: Penstock) -> Queue:
    return app.create_queue("work", max_attempts=3, lease="2s")


def test_a_handler_may_take_longer_than_its_lease(dsn: str, brief: Queue, sql: Connection, tmp_path: Path) -> None:
    kinds = ("sleeps", "computes", "holds_the_interpreter")
    brief.push_many([NewTask({}, kind=kind) for kind in kinds])
    ran = work(tmp_path, dsn, LONG, "-p", "3", "-c", "1")
    assert (ran.code, ran.json["done"]) == (0, 3), ran.err
    assert sorted(noted(tmp_path)) == sorted(kinds)
    assert sorted(ends(sql)) == sorted(End(kind, "done", 1, None) for kind in kinds)


TOLD = """
@app.task(queue="work")
async def on_loop(n: int) -> None:
    note("loop", n)
    try:
        await asyncio.sleep(60 if n == 0 else 0)
    except asyncio.CancelledError:
        note("loop cancelled")
        raise

@app.task(queue="work")
async def ignores_cancel(n: int) -> None:
    note("ignores_cancel", n)
    try:
        await asyncio.sleep(60 if n == 0 else 0)
    except asyncio.CancelledError:
        note("ignores_cancel cancelled")

@app.task(queue="work", timeout="100ms", max_attempts=1)
async def timed() -> None:
    await asyncio.sleep(60)

@app.task(queue="work")
def in_thread(n: int, context: Context) -> None:
    note("thread", n)
    while n == 0 and not context.cancelled:
        time.sleep(0.01)
    note("thread cancelled", context.cancelled)

@app.task(queue="work", run="process")
def in_process(n: int) -> None:
    note("process", n)
    time.sleep(60 if n == 0 else 0)

@app.task(queue="work", batch=2)
async def together(tasks: list[Task]) -> None:
    note("together", len(tasks))
    try:
        await asyncio.sleep(60 if tasks[0].payload["n"] == 0 else 0)
    except asyncio.CancelledError:
        note("together cancelled")
        raise
"""
KINDS = ("on_loop", "ignores_cancel", "in_thread", "in_process", "together")


def revoke(queue: Queue, ids: list[int]) -> None:
    """Revokes tasks. A lease that the supervisor is extending is busy, so it asks until all are revoked."""
    left = {*ids}

    def told() -> bool:
        answers = queue.cancel(sorted(left))
        assert {*answers.values()} <= {"revoked", "busy"}
        left.difference_update(id_ for id_, answer in answers.items() if answer == "revoked")
        return not left

    eventually(told)


def test_a_running_task_that_is_cancelled_is_told(dsn: str, brief: Queue, sql: Connection, tmp_path: Path) -> None:
    brief.push_many([NewTask({"n": 0}, kind=kind) for kind in KINDS])
    with working(tmp_path, dsn, TOLD) as worker:
        eventually(lambda: len(worker.noted) == 5)
        ids = [task.id for task in brief.tasks()]
        (child,) = worker.slot_processes
        revoke(brief, ids)
        eventually(lambda: not alive(child))
        eventually(
            lambda: (
                {*worker.noted}
                >= {"loop cancelled", "ignores_cancel cancelled", "thread cancelled True", "together cancelled"}
            )
        )
        # Their slots still work. The timeouts fail if a cancellation is left over in one.
        brief.push_many([NewTask({"n": 1}, kind=kind) for kind in KINDS for _ in range(3)])
        brief.push_many([NewTask({}, kind="timed")] * 8)
        eventually(lambda: (brief.status().totals["done"], brief.status().dead) == (15, 8))
        assert worker.stop() == 0
        told = worker.report
        assert (told["done"], told["failed"], told["dead"], told["released"]) == (15, 0, 8, 0)
        assert not any(one["event"] == "lease lost" and one.get("refused") for one in worker.events)
    assert {task.state for task in brief.tasks() if task.id in ids} == {"cancelled"}
    assert Counter((end.outcome, end.error_class) for end in ends(sql)) == {
        ("revoked", None): 5,
        ("done", None): 15,
        ("dead", "Timeout"): 8,
    }
    assert len({one.pid for one in effects(tmp_path) if one.words.startswith("process")}) >= 2


def test_a_lease_that_is_lost_is_told_too(dsn: str, brief: Queue, sql: Connection, tmp_path: Path) -> None:
    """The supervisor is frozen until another client has claimed the tasks. Outcomes of this worker no longer count."""
    kinds = ("on_loop", "in_thread", "in_process")
    brief.push_many([NewTask({"n": 0}, kind=kind) for kind in kinds])
    with working(tmp_path, dsn, TOLD) as worker:
        eventually(lambda: len(worker.noted) == 3)
        (child,) = worker.slot_processes
        worker.signal(signal.SIGSTOP)
        mine: list[Claim] = []
        eventually(lambda: mine.append(brief.claim(10, lease="20s")) or sum(map(len, mine)) == 3)  # type: ignore[func-returns-value]
        worker.signal(signal.SIGCONT)
        eventually(lambda: {*worker.noted} >= {"loop cancelled", "thread cancelled True"} and not alive(child))
        for claim in filter(None, mine):
            assert set(brief.settle(claim).values()) == {"done"}
        assert worker.stop() == 0
        assert worker.report["done"] == 0
        assert "lease lost" in [one["event"] for one in worker.events]
    ended = Counter(end.outcome for end in ends(sql))
    assert ended.pop("done") == 3
    assert {*ended} == {"expired"}  # once each, but on a busy machine such a short lease may be lost again


UNUSUAL = """
@app.task(queue="work")
async def waits_in_vain() -> None:
    other = asyncio.create_task(asyncio.sleep(60))
    other.cancel()
    await other

@app.task(queue="work")
async def cancels_itself() -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(60)

@app.task(queue="work")
async def cancels_itself_in_company(task: Task) -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(60)

@app.task(queue="work", batch=3)
async def cancel_themselves(tasks: list[Task]) -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(60)
"""


def test_a_handler_that_cancels_itself_fails(dsn: str, app: Penstock, sql: Connection, tmp_path: Path) -> None:
    """Nothing else would end it: its worker lives, so its lease does not end."""
    queue = app.create_queue("work", max_attempts=1)
    kinds = ("waits_in_vain", "cancels_itself", "cancels_itself_in_company", "cancel_themselves")
    queue.push_many([NewTask({}, kind=kind) for kind in kinds] * 3)
    ran = work(tmp_path, dsn, UNUSUAL, "-c", "2")
    assert (ran.code, ran.json["dead"]) == (1, 12)
    assert sorted(ends(sql)) == sorted(End(kind, "dead", 1, "CancelledError") for kind in kinds * 3)


# --- leases of other workers ------------------------------------------------------------------------------------------

WAITS = """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")

@app.task(queue="other")
def elsewhere() -> None:
    note("elsewhere")
"""


def seconds_until_expired(foreign: Queue, sql: Connection, dsn: str) -> float:
    """A client claims a task for three seconds and disappears. Returns how long after the claim the lease was expired.
    Upkeep, which looks only every few seconds, is blocked."""
    with psycopg.connect(dsn) as upkeep:
        upkeep.execute("select from penstock.chore where name = 'expired' for update")
        foreign.push({"n": 9}, kind="waits")
        (task,) = foreign.claim(lease="3s").ids
        expired = "select extract(epoch from finished_at - claimed_at) from penstock.history where task_id = %s"
        (seconds,) = eventually(lambda: sql.execute(expired, (task,)).fetchall())[0]
        return float(seconds)


def test_a_foreign_lease_ends_while_all_slots_are_busy(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    """Claims expire leases. Without claims the supervisor does it, within a second if the machine is idle."""
    queue.push_many([NewTask({"n": n}, kind="waits") for n in range(2)])
    with working(tmp_path, dsn, WAITS, "--queues", "work", "-c", "2") as worker:
        eventually(lambda: len(worker.noted) == 2)
        assert 3 <= seconds_until_expired(queue, sql, dsn) < 20
        assert queue.status().pending == 1
        worker.allow()
        eventually(lambda: queue.status().totals["done"] == 3)
        assert worker.stop() == 0


def test_leases_of_a_dead_worker_expire_while_every_other_worker_is_busy(
    dsn: str, app: Penstock, sql: Connection, tmp_path: Path
) -> None:
    """All processes of one worker die at once, so that none of them ends its leases. The other worker has no free slot,
    so it claims nothing, and upkeep is blocked: only its supervisor can expire the lease."""
    queue = app.create_queue("work", lease="3s")
    dying, busy = tmp_path / "dying", tmp_path / "busy"
    dying.mkdir()
    busy.mkdir()
    with working(dying, dsn, WAITS, "--queues", "work", "-c", "1") as dead:
        task = queue.push({"n": 0}, kind="waits").id
        eventually(lambda: dead.noted == ["begun 0"])
        with working(busy, dsn, WAITS, "--queues", "work", "-c", "1") as worker, psycopg.connect(dsn) as upkeep:
            queue.push({"n": 1}, kind="waits")
            eventually(lambda: worker.noted == ["begun 1"])
            upkeep.execute("select from penstock.chore where name in ('expired', 'expire_all') for update")
            for pid in dead.family:
                os.kill(pid, signal.SIGSTOP)
            dead.kill()
            (until,) = sql.execute("select until from penstock.lease where %s = any(ids)", (task,)).fetchall()[0]
            expired = "select outcome, finished_at from penstock.history where task_id = %s"
            ((outcome, at),) = eventually(lambda: sql.execute(expired, (task,)).fetchall())
            assert outcome == "expired"
            assert timedelta(0) <= at - until < timedelta(seconds=5), "upkeep alone would need eight seconds or more"
            assert worker.noted == ["begun 1"]
            worker.allow()
            eventually(lambda: queue.status().totals["done"] == 2)
            assert worker.stop() == 0
            assert worker.noted == ["begun 1", "begun 0"]


def test_a_foreign_lease_ends_while_a_process_empties_itself(
    app: Penstock, queue: Queue, dsn: str, sql: Connection, tmp_path: Path
) -> None:
    """The process has free slots but claims nothing: it runs a task, and a task of another queue must run alone."""
    other = app.create_queue("other", retry="fixed:1ms")
    other.push(kind="elsewhere")
    for _ in range(2):
        eventually(lambda: other.claim(2, lease="100ms"))
        eventually(lambda: app.upkeep() and not other.status().active)
    other.pause()
    queue.push({"n": 0}, kind="waits")
    with working(tmp_path, dsn, WAITS, "-c", "4") as worker:
        eventually(lambda: worker.noted == ["begun 0"])
        other.resume()
        eventually(
            lambda: sql.execute("select from penstock.watermark where quarantine_until > penstock.clock()").rowcount
        )
        assert 3 <= seconds_until_expired(queue, sql, dsn) < 20
        assert "elsewhere" not in worker.noted
        worker.allow()
        eventually(lambda: {*worker.noted} == {"begun 0", "elsewhere", "begun 9"})
        assert worker.stop() == 0
