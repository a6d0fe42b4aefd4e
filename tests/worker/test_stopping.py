"""SIGTERM and Ctrl-C: no task is begun, running tasks may finish in time, and the rest goes back unharmed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from psycopg import Connection

from penstock import NewTask, Queue
from workers import alive, ends, eventually, noted, registered, work, working

QUICK_THEN_SLOW = """
@app.task(queue="work")
def step(n: int) -> None:
    if n >= 300:
        note("slow")
        wait_for("go")
"""


def untouched(sql: Connection) -> bool:
    """Whether all waiting tasks have all their attempts left, and no crash is counted against them."""
    return not sql.execute("select from penstock.agenda where attempts > 0 or quarantine <> 0").rowcount


def test_what_waits_goes_back_at_once_and_what_runs_may_finish(
    dsn: str, queue: Queue, sql: Connection, tmp_path: Path
) -> None:
    """Quick tasks come first, so that it has more tasks in hand than it can begin."""
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(1000)])
    with working(tmp_path, dsn, QUICK_THEN_SLOW, "-c", "2") as worker:
        eventually(lambda: len(worker.noted) == 2)
        worker.terminate()
        eventually(lambda: queue.status().active == 2)
        assert queue.status().pending == 698
        assert untouched(sql)
        assert worker.process.poll() is None
        worker.allow()
        assert worker.wait() == 0
        assert [one["event"] for one in worker.events] == ["stopping", "process ended"]
        assert worker.events[0]["signal"] == "SIGTERM"
        assert (worker.report["done"], worker.report["failed"]) == (302, 0)
        assert len(worker.noted) == 2, "no other task was begun"
    assert (queue.status().pending, queue.status().active) == (698, 0)
    assert untouched(sql)
    assert registered(sql) == []
    counts = Counter(end.outcome for end in ends(sql))
    assert counts["done"] == 302
    assert counts.keys() <= {"done", "released"}


LONG = """
@app.task(queue="work")
def in_thread() -> None:
    note("thread")
    time.sleep(60)

@app.task(queue="work")
async def on_loop() -> None:
    note("loop")
    await asyncio.sleep(60)

@app.task(queue="work")
async def ignores_cancel() -> None:
    note("ignores_cancel")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("not impressed")

@app.task(queue="work")
async def ignores_always(task: Task) -> None:
    note("ignores always")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.task(queue="work", run="process")
def in_process() -> None:
    note("process")
    time.sleep(60)

@app.task(queue="work")
def polite(context: Context) -> Outcome:
    note("polite")
    while not context.stopping:
        time.sleep(0.01)
    return context.again(payload={})

@app.task(queue="work")
async def polite_too(context: AsyncContext) -> None:
    note("polite too")
    while not context.stopping:
        await asyncio.sleep(0.01)
"""
KINDS = ("in_thread", "on_loop", "ignores_cancel", "ignores_always", "in_process", "polite", "polite_too")


def test_what_does_not_finish_in_time_goes_back_unharmed(
    dsn: str, queue: Queue, sql: Connection, tmp_path: Path
) -> None:
    queue.push_many([NewTask({}, kind=kind) for kind in KINDS])
    with working(tmp_path, dsn, LONG, "--grace", "3s") as worker:
        eventually(lambda: len(worker.noted) == len(KINDS))
        family = worker.family
        assert len(family) == 3
        worker.terminate()
        assert worker.wait(20) == 0, "long before the sixty seconds of any task, or our own patience, are over"
        assert (worker.report["done"], worker.report["released"]) == (2, 5)
        assert [one["event"] for one in worker.events] == ["stopping", "process ended"]
    assert not any(map(alive, family))
    assert untouched(sql)
    assert Counter((end.kind, end.outcome) for end in ends(sql)) == {
        ("polite", "again"): 1,
        ("polite_too", "done"): 1,
        **{(kind, "released"): 1 for kind in KINDS if not kind.startswith("polite")},
    }
    assert queue.status().pending == 6


SLEEP = """
@app.task(queue="work")
def sleeps() -> None:
    note("asleep")
    time.sleep(60)
"""


def test_a_second_signal_does_not_wait(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    queue.push(kind="sleeps")
    with working(tmp_path, dsn, SLEEP) as worker:
        eventually(lambda: worker.noted)
        worker.signal(signal.SIGINT)
        eventually(lambda: worker.events)
        assert worker.process.poll() is None
        worker.signal(signal.SIGINT)
        assert worker.wait(15) == 130
        assert [one["grace"] for one in worker.events if one["event"] == "stopping"] == [30.0, 0]
        assert worker.report["released"] == 1
    assert (queue.status().pending, untouched(sql)) == (1, True)


WAIT = """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")
    note("done", n)
"""


def test_a_process_that_is_told_to_go_is_replaced(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    """A signal is sent to one process: its running tasks may finish, and the worker goes on."""
    queue.push({"n": 0}, kind="waits")
    with working(tmp_path, dsn, WAIT, "-c", "1") as worker:
        eventually(lambda: worker.noted)
        (first,) = worker.runners
        os.kill(first, signal.SIGTERM)
        queue.push({"n": 1}, kind="waits")
        worker.allow()
        eventually(lambda: queue.status().totals["done"] == 2)
        assert worker.noted == ["begun 0", "done 0", "begun 1", "done 1"]
        (second,) = eventually(lambda: [pid for pid in worker.runners if pid != first])
        eventually(lambda: registered(sql) == [second])
        assert worker.stop() == 0
        assert worker.report["done"] == 2
    assert {end.attempt for end in ends(sql)} == {1}


STARTS = """
def end_one(number):
    with subprocess.Popen(["sleep", "60"]) as other:
        other.send_signal(number)
        note(other.wait(5))

@app.task(queue="work")
def in_thread() -> None:
    end_one(signal.SIGINT)
    end_one(signal.SIGTERM)

@app.task(queue="work", run="process")
def in_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    end_one(signal.SIGINT)
    end_one(signal.SIGTERM)
"""


def test_programs_that_handlers_start_heed_their_signals(dsn: str, queue: Queue, tmp_path: Path) -> None:
    queue.push_many([NewTask({}, kind=kind) for kind in ("in_thread", "in_process")])
    assert work(tmp_path, dsn, STARTS).json["done"] == 2
    assert sorted(noted(tmp_path)) == ["-15", "-15", "-2", "-2"]


SLOW_BEATS = """
    create function penstock_test.rest() returns trigger language plpgsql
        as $$ begin perform pg_sleep(1); return new; end $$;
    create trigger rest before insert on penstock.worker execute function penstock_test.rest();
"""
BEATING = """
    select from pg_stat_activity
    where datname = current_database() and wait_event = 'PgSleep' and backend_start > now() - interval '1 hour'
"""


def test_a_beat_under_way_does_not_bring_back_a_process_that_left(
    dsn: str, queue: Queue, sql: Connection, tmp_path: Path
) -> None:
    """One process is idle and leaves at once. The supervisor stays for the other one and still beats."""
    queue.push({"n": 300}, kind="step")
    with working(tmp_path, dsn, QUICK_THEN_SLOW, "-c", "1", processes=2) as worker:
        eventually(lambda: worker.noted)
        sql.execute(SLOW_BEATS)
        eventually(lambda: sql.execute(BEATING).rowcount)
        worker.signal(signal.SIGINT)
        eventually(lambda: len(worker.runners) == 1)
        eventually(lambda: not sql.execute(BEATING).rowcount)
        worker.allow()
        assert worker.wait() == 130
    assert registered(sql) == []


MIXED = """
@app.task(queue="work", max_attempts=1)
def step(n: int):
    if n == 1:
        raise KeyError(n)
    return Outcome.dead("no use") if n == 2 else None
"""


def test_each_task_is_counted_once(dsn: str, queue: Queue, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(4)])
    ran = work(tmp_path, dsn, MIXED)
    assert ran.code == 0
    assert (ran.json["done"], ran.json["failed"], ran.json["dead"]) == (2, 0, 2)


def test_when_every_task_failed_so_did_the_command(dsn: str, queue: Queue, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in (1, 2)])
    ran = work(tmp_path, dsn, MIXED)
    assert ran.code == 1, ran.err
    assert (ran.json["done"], ran.json["dead"]) == (0, 2)
    assert work(tmp_path, dsn, MIXED).code == 0, "there was nothing to do"
