"""Many idle processes and many queues: which processes are woken, what they find, and how few statements they run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from psycopg import Connection

from penstock import Penstock, Queue
from workers import eventually, registered, working

CODE = """
for name in {names}:
    @app.task(queue=name, kind="default")
    def one(task: Task) -> None:
        note(task.id)
"""
MANY = 8
START = 10.0  # seconds
LISTENING = 4  # the maximum of a fleet
IDLE = "select count(*) from penstock.idle_worker"
CLAIMED = """
    select count(*) from pg_stat_activity
    where datname = current_database() and pid = any(%s) and query like '%%penstock.claim(%%'
"""
LISTENERS = "select pid from pg_stat_activity where datname = current_database() and query like 'listen %'"


def code(*names: str) -> str:
    return CODE.format(names=names)


def all_idle(sql: Connection, many: int) -> None:
    """Waits until all of them are known to listen and to rest."""
    eventually(lambda: sql.execute(IDLE).fetchone() == (many,))
    time.sleep(1.5)


def commits(sql: Connection) -> int:
    sql.execute("select pg_stat_force_next_flush()")
    time.sleep(1.2)  # other sessions report their statistics once a second
    row = sql.execute("select xact_commit from pg_stat_database where datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def test_a_push_wakes_few_of_many_processes(queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path) -> None:
    with working(tmp_path, direct_dsn, code("work"), processes=MANY) as worker:
        all_idle(sql, LISTENING)
        listeners = [pid for (pid,) in sql.execute(LISTENERS)]
        assert len(listeners) == LISTENING
        queue.push()
        eventually(lambda: worker.noted)
        time.sleep(0.3)
        (claimed,) = sql.execute(CLAIMED, (listeners,)).fetchone() or (None,)
        assert claimed <= 1, "the others were not woken"
        assert worker.stop() == 0
    assert sql.execute(IDLE).fetchone() == (0,)


def test_a_push_without_a_notification_is_found(queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path) -> None:
    queue.set(notify=False)
    with working(tmp_path, direct_dsn, code("work")) as worker:
        all_idle(sql, 1)
        for n in range(1, 4):
            queue.push()
            eventually(lambda n=n: len(worker.noted) == n, within=20)  # type: ignore[misc]
        assert worker.stop() == 0


def test_a_wake_up_of_a_dead_process_is_not_missed(
    queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    with working(tmp_path, direct_dsn, code("work"), processes=2) as worker:
        all_idle(sql, 2)
        os.kill(worker.runners[0], signal.SIGSTOP)  # it is known to be idle, but receives nothing
        for n in range(1, 7):
            queue.push()
            eventually(lambda n=n: len(worker.noted) == n, within=20)  # type: ignore[misc]
        os.kill(worker.runners[0], signal.SIGKILL)
        eventually(lambda: len(registered(sql)) == 2 and sql.execute(IDLE).fetchone() == (2,))
        assert worker.stop() == 0


def create_a_thousand(sql: Connection) -> list[str]:
    names = [f"queue-{n:04}" for n in range(1000)]
    sql.execute("select penstock.create_queue(name) from unnest(%s::text[]) as name", (names,))
    return names


def test_a_worker_of_a_thousand_queues_is_not_stuck_when_it_starts(
    app: Penstock, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    """It once prepared its queues one by one, and started in 25 s. This is a time-out: `bench/scale.py` has the bar."""
    names = create_a_thousand(sql)
    app.queue(names[-1]).push()
    began = time.monotonic()
    with working(tmp_path, direct_dsn, code(*names)) as worker:
        eventually(lambda: worker.noted, within=began + START - time.monotonic())
        assert worker.stop() == 0


def test_a_thousand_queues(app: Penstock, sql: Connection, direct_dsn: str, tmp_path: Path) -> None:
    names = create_a_thousand(sql)
    early, late = app.queue(names[7]), app.queue(names[993])
    early.push()
    with working(tmp_path, direct_dsn, code(*names)) as worker:
        eventually(lambda: len(worker.noted) == 1)
        all_idle(sql, 1)
        before, began = commits(sql), time.monotonic()
        time.sleep(4)
        assert (commits(sql) - before) / (time.monotonic() - began) < 20, "transactions a second"
        late.push_many([{}] * 30)
        early.push()
        eventually(lambda: len(worker.noted) == 32)
        eventually(lambda: early.status().active == 0)
        early.drop()
        anew = app.create_queue(names[7])
        late.push()
        anew.push()
        eventually(lambda: len(worker.noted) == 34)
        assert worker.stop() == 0
