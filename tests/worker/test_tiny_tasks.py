"""Tiny tasks in as many processes as cores: one thread claims, runs and settles them, with the usual results."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import NewTask, Penstock, Queue
from workers import ends, eventually, noted, work, working

FULL = ("--processes", str(os.cpu_count() or 1), "--concurrency", "4")

STEPS = """
@app.task(queue="work", retry=Fixed("1h"))
def step(n: int) -> None:
    odd(n)

@app.task(queue="work", retry=Fixed("1h"))
async def step_async(n: int) -> None:
    odd(n)

def odd(n):
    if n % 1000 == 999:
        raise ValueError("odd")

ran = 0

@app.task(queue="work")
def counted() -> None:
    global ran
    ran += 1

@app.task(queue="work")
async def counted_async() -> None:
    global ran
    ran += 1

@app.on_stop
def tell() -> None:
    note("ran", ran)

@app.task(queue="work")
def slow() -> None:
    note("slow")
    wait_for("go")

@app.task(queue="work")
async def slow_async() -> None:
    note("slow")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["step", "step_async"])
def test_each_is_settled_once_and_as_it_ended(
    dsn: str, app: Penstock, queue: Queue, sql: Connection, tmp_path: Path, kind: str
) -> None:
    queue.push_many([NewTask({"n": n}, kind=kind) for n in range(8000)])
    queue.push({"n": "not a number"}, kind=kind)
    ran = work(tmp_path, dsn, STEPS, *FULL)
    assert (ran.code, ran.json["done"], ran.json["failed"], ran.json["planned"]) == (0, 7992, 9, 9), ran.err
    found = Counter((end.outcome, end.error_class) for end in ends(sql))
    assert found == {("done", None): 7992, ("failed", "ValueError"): 8, ("failed", "ValidationError"): 1}
    assert sql.execute("select count(*) from penstock.lease").fetchone() == (0,)
    assert app.verify().ok


@pytest.mark.parametrize("kinds", [("step", "slow"), ("step_async", "slow_async"), ("step", "slow_async")])
def test_a_slow_task_holds_up_no_other(dsn: str, queue: Queue, tmp_path: Path, kinds: tuple[str, str]) -> None:
    """There is one slow task for each process, in the middle of a long queue of tiny ones."""
    tiny, slow = kinds
    queue.push_many([NewTask({"n": 0}, kind=tiny) for _ in range(6000)])
    queue.push_many([NewTask({}, kind=slow) for _ in range(os.cpu_count() or 1)])
    queue.push_many([NewTask({"n": 0}, kind=tiny) for _ in range(6000)])
    with working(tmp_path, dsn, STEPS, *FULL) as worker:
        eventually(lambda: queue.status().pending == 0 and queue.status().active == (os.cpu_count() or 1))
        eventually(lambda: worker.noted == ["slow"] * queue.status().active)  # a quarter of a second after the first
        worker.allow()
        eventually(lambda: not queue.status().active)


def fewer_than(queue: Queue, left: int) -> bool:
    return queue.status().pending < left


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["counted", "counted_async"])
def test_a_stop_in_the_middle_loses_nothing(
    dsn: str, app: Penstock, queue: Queue, sql: Connection, tmp_path: Path, kind: str
) -> None:
    """All tasks that ran are done, and no others: a stop gives back no task that is being settled."""
    queue.push_many([NewTask({}, kind=kind) for _ in range(60_000)])
    done = 0
    for left in (55_000, 45_000, 35_000):
        with working(tmp_path, dsn, STEPS, *FULL) as worker:
            eventually(partial(fewer_than, queue, left))
            worker.terminate()
            assert worker.wait() == 0
            done += worker.report["done"]
            assert {one["event"] for one in worker.events} <= {"stopping", "process ended"}
    status = queue.status()
    assert (status.totals["done"], status.active, status.pending) == (done, 0, 60_000 - done)
    assert sum(int(words.removeprefix("ran ")) for words in noted(tmp_path)) == done
    assert sql.execute("select count(*) from penstock.agenda where attempts > 0").fetchone() == (0,)
    assert app.verify().ok
