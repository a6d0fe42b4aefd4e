"""Handlers that misbehave: no task is stuck, no slot is lost, and other tasks are not affected."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from psycopg import Connection

from penstock import NewTask, Queue
from workers import alive, effects, ends, eventually, noted, work, working

CODE = """
@app.task(queue="work", batch=3)
async def together(tasks: list[Task]) -> None:
    note("together", *sorted(task.payload["n"] for task in tasks))
    await asyncio.sleep(60)

@app.task(queue="work")
async def first() -> None:
    note("first")
    while not Path("go").exists():
        await asyncio.sleep(0.01)

@app.task(queue="work")
async def cancels_itself() -> None:
    asyncio.current_task().cancel()

@app.task(queue="work")
async def plain() -> None:
    note("plain")

@app.task(queue="work", run="process")
def in_process(n: Any) -> None:
    note("in process", os.getpid())

@app.task(queue="work", timeout="3s")
def starts_a_program() -> None:
    program = subprocess.Popen(["sleep", "600"])
    note("program", program.pid)
    time.sleep(60)

@app.task(queue="work")
def twice(context: Context) -> None:
    with context.transaction() as connection:
        connection.execute("insert into effect values (1)")
        with context.transaction() as other:
            other.execute("insert into effect values (2)")

@app.task(queue="work")
def long() -> None:
    note("long")
    time.sleep(3)
"""


def test_tasks_of_a_batch_cancelled_before_and_while_it_runs(
    queue: Queue, dsn: str, sql: Connection, tmp_path: Path
) -> None:
    queue.push(kind="first")
    with working(tmp_path, dsn, CODE, "-c", "1", "--grace", "1s") as worker:
        eventually(lambda: "first" in worker.noted)
        ids = [queue.push({"n": n}, kind="together").id for n in range(3)]
        eventually(lambda: sql.execute("select from penstock.lease").rowcount >= 1)
        queue.cancel(ids[:1])
        worker.allow()
        eventually(lambda: any(line.startswith("together") for line in worker.noted))
        queue.cancel(ids[1:])
        queue.push(kind="plain")
        eventually(lambda: "plain" in worker.noted)
        assert worker.stop() == 0
    assert queue.status().active == 0


def test_a_slot_outlives_whatever_its_handler_does(queue: Queue, dsn: str, sql: Connection, tmp_path: Path) -> None:
    """There is one slot: if it died, no later task would run."""
    queue.set(max_attempts=1)
    queue.push(kind="cancels_itself")
    sql.execute(
        "select penstock.push('work', jsonb_build_object('n', repeat('9', 5000)::numeric), p_kind => 'in_process')"
    )
    queue.push_many([NewTask({}, kind="plain"), NewTask({"n": 1}, kind="in_process")])
    ran = work(tmp_path, dsn, CODE, "-c", "1")
    assert ran.code == 0, ran.err
    found = Counter((end.kind, end.outcome) for end in ends(sql))
    assert found["plain", "done"] == 1
    assert found["in_process", "done"] + found["in_process", "dead"] == 2
    assert sum(count for (kind, _), count in found.items() if kind == "cancels_itself") == 1


def test_the_programs_of_a_handler_end_with_it(queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.set(max_attempts=1)
    queue.push(kind="starts_a_program")
    assert work(tmp_path, dsn, CODE).json["dead"] == 1
    (said,) = noted(tmp_path)
    eventually(lambda: not alive(int(said.split()[1])))


def test_a_process_that_died_while_it_rested_costs_no_attempt(queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.set(max_attempts=1)
    queue.push({"n": 1}, kind="in_process")
    with working(tmp_path, dsn, CODE, "-c", "1") as worker:
        eventually(lambda: queue.status().totals["done"] == 1)
        (child,) = worker.slot_processes
        os.kill(child, signal.SIGKILL)
        eventually(lambda: not alive(child))
        queue.push({"n": 2}, kind="in_process")
        eventually(lambda: queue.status().totals["done"] == 2)
    assert len({one.pid for one in effects(tmp_path)}) == 2


def test_one_transaction_in_another_is_refused_and_nothing_is_lost_in_silence(
    queue: Queue, dsn: str, sql: Connection, tmp_path: Path
) -> None:
    sql.execute("create table effect (n int)")
    queue.set(max_attempts=1)
    queue.push(kind="twice")
    assert work(tmp_path, dsn, CODE).json["dead"] == 1
    assert [end.error_class for end in ends(sql)] == ["HandlerMisuse"]
    assert sql.execute("select from effect").rowcount == 0


def test_a_process_that_is_replaced_finishes_what_it_has(
    queue: Queue, dsn: str, sql: Connection, tmp_path: Path
) -> None:
    """It may take any time: the grace period is for workers that are told to stop."""
    queue.push_many([NewTask({}, kind=kind) for kind in ("long", *["plain"] * 10)])
    ran = work(tmp_path, dsn, CODE, "-c", "2", "--grace", "200ms", "--max-tasks", "3")
    assert (ran.code, ran.json["done"]) == (0, 11), ran.err
    assert noted(tmp_path).count("long") == 1
    assert {end.attempt for end in ends(sql)} == {1}
