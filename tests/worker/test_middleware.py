"""Middleware with real workers: in each way to run handlers, and whatever it does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from penstock import NewTask, Outcome, Penstock, Queue, RunHandler, Task
from penstock.handlers import Spec
from shell import penstock
from workers import End, ends, eventually, noted, work, write_app

EVERYWHERE = """
here = None

@app.middleware
def around(task: Task, run):
    global here
    here = (os.getpid(), threading.get_ident())
    outcome = run()
    note("around", task.kind, outcome.word)
    return outcome

@app.middleware(form_of=around)
async def around_async(context: AsyncContext, run):
    global here
    here = asyncio.current_task()
    outcome = await run()
    note("around", context.task.kind, outcome.word)
    return outcome

@app.middleware(form_of=around, batch=True)
def around_batch(tasks, run):
    outcomes = run()
    note("around", tasks[0].kind, *sorted(outcomes[task.id].word for task in tasks))
    return outcomes

@app.middleware(form_of=around, batch=True)
async def around_async_batch(tasks, run):
    outcomes = await run()
    note("around", tasks[0].kind, *sorted(outcomes[task.id].word for task in tasks))
    return outcomes

@app.task(queue="work")
def in_thread() -> None:
    note(here == (os.getpid(), threading.get_ident()))

@app.task(queue="work", kind="*", run="process")
def in_process(context: Context) -> Outcome:
    note(here == (os.getpid(), threading.get_ident()))
    return context.dead("enough")

@app.task(queue="work")
async def on_loop() -> None:
    note(here is asyncio.current_task())

@app.task(queue="work", batch=2)
def together(tasks: list[Task]) -> None: ...

@app.task(queue="work", batch=2, run="process")
def together_in_process(tasks: list[Task]) -> dict[int, Outcome]:
    return {tasks[0].id: Outcome.dead("no")}

@app.task(queue="work", batch=2)
async def together_async(tasks: list[Task]) -> None: ...
"""


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("in_thread", ["True", "around in_thread done"]),
        ("any_kind", ["True", "around any_kind dead"]),
        ("on_loop", ["True", "around on_loop done"]),
        ("together", ["around together done done"]),
        ("together_in_process", ["around together_in_process dead done"]),
        ("together_async", ["around together_async done done"]),
    ],
)
def test_it_runs_where_the_handler_runs(queue: Queue, dsn: str, tmp_path: Path, kind: str, expected: list[str]) -> None:
    queue.push_many([NewTask({}, kind=kind)] * (2 if kind.startswith("together") else 1))
    ran = work(tmp_path, dsn, EVERYWHERE)
    assert ran.code == (1 if kind == "any_kind" else 0), ran.err
    assert noted(tmp_path) == expected


ODD = """
@app.middleware(kind=("silent", "wrong", "raises", "slow", "slow_async", "swallows"))
def odd(task: Task, run):
    if task.kind == "slow":
        time.sleep(60)
    if task.kind == "silent":
        return None
    if task.kind == "wrong":
        return object()
    try:
        outcome = run()
    except LookupError:
        return Outcome.done()
    raise KeyError("in the middleware")

@app.middleware(form_of=odd)
async def odd_async(task: Task, run):
    await asyncio.sleep(60)

def kind(name, **options):
    return app.task(queue="work", kind=name, max_attempts=1, **options)

@kind("silent")
@kind("wrong")
@kind("raises")
@kind("slow", timeout="1s")
def handle() -> None:
    note("ran")

@kind("swallows")
def fail() -> None:
    raise LookupError

@kind("slow_async", timeout="1s")
async def handle_async() -> None: ...

@kind("plain")
def plain() -> None: ...
"""


def test_whatever_it_does_the_task_gets_an_outcome(queue: Queue, dsn: str, sql: Connection, tmp_path: Path) -> None:
    kinds = ("silent", "wrong", "raises", "slow", "slow_async", "swallows", "plain")
    queue.push_many([NewTask({}, kind=kind) for kind in kinds])
    ran = work(tmp_path, dsn, ODD, "-c", "2")
    assert ran.code == 0, ran.err
    assert sorted(ends(sql)) == [
        End("plain", "done", 1, None),
        End("raises", "dead", 1, "KeyError"),
        End("silent", "done", 1, None),
        End("slow", "dead", 1, "Timeout"),
        End("slow_async", "dead", 1, "Timeout"),
        End("swallows", "done", 1, None),
        End("wrong", "dead", 1, "UnserialisableResult"),
    ]
    assert noted(tmp_path) == ["ran"]
    assert sql.execute("select count(*) from penstock.lease").fetchone() == (0,)


TINY = """
counts = {}

@app.middleware
def count(task: Task, run):
    try:
        outcome = run()
    except ValueError:
        counts["ValueError"] = counts.get("ValueError", 0) + 1
        raise
    counts[outcome.word] = counts.get(outcome.word, 0) + 1
    return outcome

@app.middleware(form_of=count)
async def count_async(task: Task, run):
    try:
        outcome = await run()
    except ValueError:
        counts["ValueError"] = counts.get("ValueError", 0) + 1
        raise
    counts[outcome.word] = counts.get(outcome.word, 0) + 1
    return outcome

@app.task(queue="work", retry=Fixed("1h"))
def step(n: int) -> None:
    if n % 1000 == 999:
        raise ValueError("odd")

@app.task(queue="work", retry=Fixed("1h"))
async def step_async(n: int) -> None:
    if n % 1000 == 999:
        raise ValueError("odd")

@app.on_stop
def tell() -> None:
    note(counts.get("done", 0), counts.get("ValueError", 0))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["step", "step_async"])
def test_tiny_tasks_run_inside_it_each_once(
    dsn: str, app: Penstock, queue: Queue, sql: Connection, tmp_path: Path, kind: str
) -> None:
    """With as many processes as cores, one thread claims, runs and settles them."""
    queue.push_many([NewTask({"n": n}, kind=kind) for n in range(8000)])
    ran = work(tmp_path, dsn, TINY, "--processes", str(os.cpu_count() or 1), "--concurrency", "4")
    assert (ran.code, ran.json["done"], ran.json["failed"]) == (0, 7992, 8), ran.err
    assert Counter((end.outcome, end.error_class) for end in ends(sql)) == {
        ("done", None): 7992,
        ("failed", "ValueError"): 8,
    }
    told = [[int(word) for word in words.split()] for words in noted(tmp_path)]
    assert [sum(numbers) for numbers in zip(*told, strict=True)] == [7992, 8]
    assert app.verify().ok


def test_a_worker_does_not_start_if_it_cannot_wrap_a_handler(queue: Queue, dsn: str, tmp_path: Path) -> None:
    code = """
@app.middleware
def timing(task, run):
    return run()

@app.task(queue="work")
async def fetch() -> None: ...
"""
    ran = work(tmp_path, dsn, code)
    assert ran.code == 3
    assert "middleware timing: it cannot wrap work/fetch, because its form is for sync handlers" in ran.err
    assert "@app.middleware(form_of=timing) above another async def" in ran.err


DRAINED = """
@app.middleware(queue="elsewhere")
def around(context: Context, run):
    outcome = run()
    note("around", context.queue, context.task.kind)
    return outcome

@app.task(queue="elsewhere", kind="other")
def thread(n: int) -> None:
    note("ran", n)

@app.task(queue="elsewhere", run="process")
def process(n: int) -> None:
    note("ran", n)
"""


@pytest.mark.parametrize("function", ["thread", "process"])
def test_a_drain_with_one_handler_runs_the_middleware_of_this_handler(
    queue: Queue, dsn: str, tmp_path: Path, function: str
) -> None:
    queue.push({"n": 1}, kind="mail")
    write_app(tmp_path, DRAINED)
    ran = penstock("drain", "work", "--handler", f"jobs:{function}", "--json", dsn=dsn, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert noted(tmp_path) == ["ran 1", "around work mail"]


def test_a_worker_in_this_process_runs_it(app: Penstock, queue: Queue) -> None:
    seen: list[Any] = []

    @app.middleware
    def around(task: Task, run: RunHandler) -> Outcome:
        outcome = run()
        seen.append((task.payload["n"], outcome.word))
        return outcome

    @app.task(queue="work")
    def handle(n: int) -> None: ...

    with app.run_worker("work", concurrency=2) as worker:
        handle.push_many([{"n": n} for n in range(5)])
        eventually(lambda: worker.report.done == 5)
    assert sorted(seen) == [(n, "done") for n in range(5)]


def test_a_wrapper_around_it_may_drop_its_answer(app: Penstock, queue: Queue) -> None:
    @app.middleware
    def around(task: Task, run: RunHandler) -> Outcome:
        run()
        return Outcome.dead("dropped by the wrapper")

    @app.task(queue="work")
    def handle(n: int) -> None: ...

    def wrapper(spec: Spec) -> Callable[..., None]:
        def drop(*arguments: Any, **named: Any) -> None:
            spec.function(*arguments, **named)

        return drop

    app.registry.wrap(wrapper)
    with app.run_worker("work", concurrency=2) as worker:
        handle.push(n=1)
        eventually(lambda: worker.report.done == 1)


def test_the_process_of_a_handler_may_end_in_it(queue: Queue, dsn: str, sql: Connection, tmp_path: Path) -> None:
    code = """
@app.middleware
def ends(task: Task, run):
    os._exit(3)

@app.task(queue="work", run="process", max_attempts=1)
def handle() -> None:
    note("ran")
"""
    queue.push(kind="handle")
    work(tmp_path, dsn, code)
    assert ends(sql) == [End("handle", "dead", 1, "HandlerCrashed")]
    assert noted(tmp_path) == []
