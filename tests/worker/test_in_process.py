"""A worker inside your own process: `app.run_worker()`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock import AsyncPenstock, ConfigError, NotFound, Penstock, ValidationError
from penstock.worker.in_process import supervise_thread
from penstock.worker.plan import Plan
from shell import environment


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def app(dsn: str) -> Penstock:
    penstock = Penstock(dsn)
    penstock.create_queue("default")
    return penstock


def test_tasks_run_here_while_the_block_runs(app: Penstock, sql: psycopg.Connection) -> None:
    """Handlers may be functions that no other process can import, as in a notebook or a test."""
    seen: list[tuple[int, int]] = []
    others = {*threading.enumerate()}

    @app.task
    def note(n: int) -> None:
        seen.append((os.getpid(), n))

    note.push(n=1)
    with app.run_worker(concurrency=3) as worker:
        note.push_many([{"n": n} for n in range(2, 20)])
        wait_until(lambda: len(seen) == 19)
        wait_until(lambda: worker.report.done == 19)
        wait_until(lambda: sql.execute("select pid from penstock.worker").fetchall() == [(os.getpid(),)])
        note.push(n=20)
        wait_until(lambda: len(seen) == 20)
    assert sorted(seen) == [(os.getpid(), n) for n in range(1, 21)]
    assert app.queue("default").status().active == 0
    assert sql.execute("select count(*) from penstock.worker").fetchone() == (0,)
    app.close()
    wait_until(lambda: others.issuperset(threading.enumerate()))
    mine = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    wait_until(lambda: sql.execute(mine).fetchone() == (0,))


def test_an_end_without_a_report_names_the_tasks_that_are_still_held(app: Penstock, dsn: str) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.task
    def waits() -> None:
        begun.set()
        go.wait(30)

    async def script() -> list[int]:
        supervisor = supervise_thread(Plan(target="", dsn=dsn, queues={"default": 1}), app.registry)
        codes = [supervisor.shutdown.late_code]
        running = asyncio.create_task(supervisor.run(lambda: None))
        waits.push()
        async with asyncio.timeout(30):
            while not begun.is_set() or not supervisor.shutdown.late_code:
                await asyncio.sleep(0.01)
            codes.append(supervisor.shutdown.late_code)
            go.set()
            while supervisor.shutdown.late_code:
                await asyncio.sleep(0.01)
        codes.append(supervisor.shutdown.late_code)
        supervisor.shutdown.stop()
        assert (await running).done == 1
        return codes

    assert asyncio.run(script()) == [0, 4, 0]
    app.close()


def test_an_async_application_does_the_same(dsn: str) -> None:
    async def script() -> list[int]:
        seen: list[int] = []
        async with AsyncPenstock(dsn) as app:
            await app.create_queue("default")

            @app.task
            async def note(n: int) -> None:
                await asyncio.sleep(0)
                seen.append(n)

            async with app.run_worker():
                await note.push_many([{"n": n} for n in range(5)])
                async with asyncio.timeout(20):
                    while len(seen) < 5:
                        await asyncio.sleep(0.01)
        return sorted(seen)

    assert asyncio.run(script()) == [0, 1, 2, 3, 4]


def test_leases_are_kept_while_a_handler_takes_longer(app: Penstock) -> None:
    app.queue("default").set(lease="2s")
    runs: list[int] = []

    @app.task
    def slow() -> None:
        runs.append(1)
        time.sleep(5)

    slow.push()
    with app.run_worker():
        wait_until(lambda: bool(runs))
    assert runs == [1]
    assert app.queue("default").status().totals["done"] == 1


def test_what_is_not_finished_in_time_goes_back(app: Penstock) -> None:
    begun, over = threading.Event(), threading.Event()

    @app.task
    def endless() -> None:
        begun.set()
        over.wait(60)

    endless.push_many([{}, {}])
    try:
        with app.run_worker(concurrency=1, grace=0):
            assert begun.wait(20)
        status = app.queue("default").status()
        assert (status.pending, status.active) == (2, 0)
    finally:
        over.set()


def test_the_report_counts_tasks_that_could_not_be_settled(app: Penstock, dsn: str) -> None:
    """Another transaction holds a task that has run, until the worker has ended."""

    @app.task
    def note() -> None: ...

    note.push_many([{}] * 3)
    (held, *_) = [task.id for task in app.queue("default").tasks()]
    with psycopg.connect(dsn) as other:
        other.execute("select from penstock.task where id = %s for update", (held,))
        with app.run_worker(grace="1s") as worker:
            wait_until(lambda: worker.report.done == 2)
            assert worker.report.unsettled == 0, "its outcome may still be accepted"
        assert (worker.report.done, worker.report.unsettled) == (2, 1)
    assert app.queue("default").status().active == 1, "it runs again when its lease ends"


def test_an_error_in_the_block_stops_the_worker_and_is_raised(app: Penstock, sql: psycopg.Connection) -> None:
    @app.task
    def note() -> None: ...

    with pytest.raises(ZeroDivisionError), app.run_worker():
        raise ZeroDivisionError
    assert sql.execute("select count(*) from penstock.worker").fetchone() == (0,)


SCRIPT = """
import logging, sys, time
from penstock import Penstock

app = Penstock()

@app.task
def look_up(word: str) -> None:
    raise LookupError("no such entry")

if "own" in sys.argv:
    logging.basicConfig(format="OWN %(name)s %(message)s", level=logging.WARNING)
look_up.push("hunter2")
with app.run_worker() as worker:
    while worker.report.failed == 0:
        time.sleep(0.02)
"""


def run_script(home: Path, dsn: str, *words: str) -> str:
    """Runs a script with a worker, and returns what it writes to standard error."""
    (home / "script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "script.py", *words]
    ran = subprocess.run(
        command, env=environment(dsn), cwd=home, capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stderr


def test_a_script_without_logging_sees_why_a_task_failed(app: Penstock, dsn: str, tmp_path: Path) -> None:
    (line,) = run_script(tmp_path, dsn).splitlines()
    assert "warning failed" in line
    assert "kind=look_up" in line
    assert line.endswith("LookupError: no such entry")
    assert "hunter2" not in line


def test_the_logging_of_a_script_is_kept(app: Penstock, dsn: str, tmp_path: Path) -> None:
    assert run_script(tmp_path, dsn, "own") == "OWN penstock.worker failed\n"


def test_what_is_wrong_is_said_at_once(app: Penstock) -> None:
    @app.task(queue="nowhere")
    def note() -> None: ...

    @app.task(queue="default", timeout="1s")
    def timed() -> None: ...

    with pytest.raises(NotFound, match="nowhere"), app.run_worker("nowhere"):
        pytest.fail("it began")
    with pytest.raises(ConfigError, match="default/timed: its tasks need processes"), app.run_worker("default"):
        pytest.fail("it began")
    with pytest.raises(ConfigError, match="other"), app.run_worker("other"):
        pytest.fail("it began")
    with pytest.raises(ValidationError, match="concurrency: 0"), app.run_worker(concurrency=0):
        pytest.fail("it began")
    with pytest.raises(ValidationError, match="grace"), app.run_worker(grace=-1):
        pytest.fail("it began")
