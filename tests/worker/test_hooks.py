"""Hooks of an application: when a worker starts and stops, and when a task is dead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import NewTask, Penstock, Queue
from shell import is_one_block, penstock
from workers import effects, noted, work, write_app

HOOKS = """
state = {}

@app.on_start
def prepare() -> None:
    note("start")
    state["ready"] = True

@app.on_start
async def prepare_more() -> None:
    await asyncio.sleep(0.01)
    state["more"] = asyncio.get_running_loop()

@app.on_stop
async def finish() -> None:
    assert state["more"] is asyncio.get_running_loop()
    note("stop")

@app.on_settled_dead
def bury(task, error) -> None:
    note("dead", task.payload["n"], task.kind, task.attempt, error.splitlines()[0])

@app.on_settled_dead
async def mourn(task, error) -> None:
    await asyncio.sleep(0.4)
    note("mourned", task.payload["n"])

@app.on_settled_dead
def harm(task, error) -> None:
    raise RuntimeError("harm")

@app.on_settled_dead
async def leave(task, error) -> None:
    raise SystemExit

@app.task(queue="work")
def step(n: int) -> None:
    assert state["ready"] and state["more"]
    time.sleep(0.05)
    note("step", n)

@app.task(queue="work", max_attempts=1)
def dies(n: int) -> None:
    raise LookupError(f"number {n}")
"""


def test_hooks_are_called_where_and_when_they_should(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(40)])
    ran = work(tmp_path, dsn, HOOKS, "-p", "2", "-c", "2")
    assert (ran.code, ran.json["done"]) == (0, 40), ran.err
    by_process: dict[int, list[str]] = {}
    for pid, words in effects(tmp_path):
        by_process.setdefault(pid, []).append(words)
    assert len(by_process) == 2
    for said in by_process.values():
        assert (said[0], said.count("start")) == ("start", 1)
        assert (said[-1], said.count("stop")) == ("stop", 1)

    queue.push_many([NewTask({"n": n}, kind="dies") for n in range(3)])
    ran = work(tmp_path, dsn, HOOKS)
    assert (ran.code, ran.json["dead"]) == (1, 3), "all are dead, and a hook that fails harms no task"
    found = noted(tmp_path)
    assert sorted(found[-8:-1]) == sorted(
        [
            "start",
            *(f"dead {n} dies 1 number {n}" for n in range(3)),
            *(f"mourned {n}" for n in range(3)),
        ]
    )
    assert found[-1] == "stop"
    assert "harm" not in ran.err
    assert ran.err.count('"on_settled_dead hook failed"') == 6


@pytest.mark.parametrize("wrong", ['raise OSError("no disk\\nat all")', 'sys.exit("no disk at all")'])
def test_a_start_that_fails_is_an_error(dsn: str, queue: Queue, tmp_path: Path, wrong: str) -> None:
    queue.push({"n": 0}, kind="step")
    write_app(tmp_path, HOOKS.replace('note("start")', wrong))
    ran = penstock("work", "jobs:app", "-q", dsn=dsn, cwd=tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert is_one_block(ran.err)
    assert re.search("a worker process failed: (OSError|SystemExit): no disk at all\n", ran.err)
    assert (queue.status().pending, noted(tmp_path)) == (1, [])


def test_a_stop_that_fails_is_told_and_nothing_more(dsn: str, app: Penstock, queue: Queue, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(5)])
    ran = work(tmp_path, dsn, HOOKS.replace('note("stop")', 'raise OSError("secret")'))
    assert (ran.code, ran.json["done"]) == (0, 5)
    assert '"process failed"' in ran.err
    assert "secret" not in ran.err


def test_they_are_called_in_processes_of_handlers_too(queue: Queue, dsn: str, tmp_path: Path) -> None:
    code = """
READY = []

@app.on_start
async def prepare() -> None:
    READY.append(os.getpid())

@app.task(queue="work", timeout="20s")
def handle() -> None:
    note("ready", READY == [os.getpid()])
"""
    queue.push_many([NewTask({}, kind="handle")] * 3)
    ran = work(tmp_path, dsn, code, "--concurrency", "1")
    assert (ran.code, ran.json["done"]) == (0, 3), ran.err
    assert noted(tmp_path) == ["ready True"] * 3
