"""`drain_inline` shows what handlers raise, and calls its hooks for dead tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock import AsyncPenstock, Context, Penstock, Queue, Task
from penstock.handlers import Spec

Drain = Callable[..., dict[str, int]]


@pytest.fixture(params=["sync", "async"])
def drain(request: pytest.FixtureRequest, app: Penstock, dsn: str) -> Drain:
    async def main(options: dict[str, Any]) -> dict[str, int]:
        async with AsyncPenstock(dsn) as client:
            client.registry = app.registry
            return await client.drain_inline(**options)

    def drained(**options: Any) -> dict[str, int]:
        return app.drain_inline(**options) if request.param == "sync" else asyncio.run(main(options))

    return drained


def test_what_a_handler_raises_is_raised_and_the_task_has_failed(app: Penstock, queue: Queue, drain: Drain) -> None:
    ran: list[int] = []

    @app.task(queue="work")
    def fail(n: int) -> None:
        ran.append(n)
        if n == 1:
            raise LookupError("no such order")

    fail.push_many([{"n": 0}, {"n": 1}, {"n": 2}])
    with pytest.raises(LookupError, match="no such order") as raised:
        drain()
    assert raised.traceback[-1].name == "fail"
    (note,) = raised.value.__notes__
    assert "kind 'fail'" in note
    status = queue.status()
    assert (status.totals["done"], status.planned, status.pending) == (1, 1, 1), (
        "one has failed, and the last was not begun"
    )
    assert ran == [0, 1]
    (failed,) = queue.tasks(state="planned")
    assert failed.attempts == 1
    assert drain() == {"done": 1}
    assert ran == [0, 1, 2]


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", ["async", "batch", "arguments", "timeout"])
def test_whatever_raised_it(app: Penstock, queue: Queue, drain: Drain, mode: str) -> None:
    async def on_a_loop() -> None:
        raise LookupError("boom")

    def batch(tasks: list[Task]) -> None:
        raise LookupError("boom")

    def typed(n: int) -> None: ...

    async def slow() -> None:
        await asyncio.sleep(10)

    if mode == "async":
        app.task(queue="work", kind="k")(on_a_loop)
    elif mode == "batch":
        app.task(queue="work", kind="k", batch=10)(batch)
    elif mode == "arguments":
        app.task(queue="work", kind="k")(typed)
    else:
        app.task(queue="work", kind="k", timeout="10ms")(slow)
    queue.push({}, kind="k")
    expected = {"arguments": ValueError, "timeout": TimeoutError}.get(mode, LookupError)
    with pytest.raises(expected):
        drain()
    assert queue.status().planned == 1


def test_errors_that_are_not_raised_are_counted(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work", max_attempts=1)
    def die() -> None:
        raise LookupError("boom")

    die.push_many([{}, {}])
    assert drain(raise_errors=False) == {"dead": 2}


def test_the_hooks_for_dead_tasks_are_called(app: Penstock, queue: Queue, drain: Drain) -> None:
    seen: list[tuple[str, str, str]] = []

    @app.task(queue="work")
    def give_up(context: Context) -> None:
        context.dead("no such customer")

    @app.task(queue="work", max_attempts=1)
    def die() -> None:
        raise LookupError("boom")

    @app.on_settled_dead
    def bury(task: Task, error: str) -> None:
        seen.append(("sync", task.kind, error.splitlines()[0]))

    @app.on_settled_dead
    async def bury_async(task: Task, error: str) -> None:
        await asyncio.sleep(0)
        seen.append(("async", task.kind, error.splitlines()[0]))

    give_up.push()
    assert drain() == {"dead": 1}
    assert seen == [("sync", "give_up", "no such customer"), ("async", "give_up", "no such customer")]
    seen.clear()
    die.push()
    with pytest.raises(LookupError):
        drain()
    assert seen == [("sync", "die", "boom"), ("async", "die", "boom")]


def test_hooks_for_dead_tasks_run_inside_the_wrappers_of_handlers(app: Penstock, queue: Queue, drain: Drain) -> None:
    seen: list[str] = []

    def wrapper(spec: Spec) -> Callable[..., Any]:
        async def run_async(*arguments: Any, **named: Any) -> Any:
            seen.append("enter")
            return await spec.function(*arguments, **named)

        def run(*arguments: Any, **named: Any) -> Any:
            seen.append("enter")
            return spec.function(*arguments, **named)

        return run_async if spec.mode == "async" else run

    @app.on_settled_dead
    def bury(task: Task, error: str) -> None:
        seen.append("sync")

    app.registry.wrap(wrapper)

    @app.on_settled_dead
    async def bury_async(task: Task, error: str) -> None:
        seen.append("async")

    @app.task(queue="work")
    def give_up(context: Context) -> None:
        seen.append("handler")
        context.dead("no such customer")

    give_up.push()
    assert drain() == {"dead": 1}
    assert seen == ["enter", "handler", "enter", "sync", "enter", "async"]


def test_what_a_hook_raises_is_raised_too(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work")
    def give_up(context: Context) -> None:
        context.dead("no such customer")

    @app.on_settled_dead
    def harm(task: Task, error: str) -> None:
        raise RuntimeError("harm")

    give_up.push()
    with pytest.raises(RuntimeError, match="harm"):
        drain()
    give_up.push()
    assert drain(raise_errors=False) == {"dead": 1}
    assert queue.status().dead == 2
