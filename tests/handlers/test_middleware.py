"""Middleware: functions around each task, with `drain_inline`. tests/worker/test_middleware.py has real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from penstock import (
    AsyncContext,
    AsyncPenstock,
    AsyncRunHandler,
    ConfigError,
    Context,
    Outcome,
    Penstock,
    Queue,
    RunHandler,
    Task,
    ValidationError,
)
from penstock.handlers import Spec


def attempts(sql: Connection) -> list[tuple[str, str | None]]:
    """Returns the outcomes of history with the classes of their errors."""
    rows = sql.execute("select outcome, error_class from penstock.history order by id").fetchall()
    return [(outcome, error_class) for outcome, error_class in rows]


@pytest.fixture
def seen() -> list[Any]:
    return []


# --- around each task -------------------------------------------------------------------------------------------------


def test_it_sees_the_task_and_the_outcome_of_each_run(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    @app.middleware
    def look(task: Task, run: RunHandler) -> Outcome:
        outcome = run()
        seen.append((task.kind, task.payload, task.attempt, outcome))
        return outcome

    @app.middleware(form_of=look)
    async def look_async(task: Task, run: AsyncRunHandler) -> Outcome:
        outcome = await run()
        seen.append((task.kind, task.payload, task.attempt, outcome))
        return outcome

    @app.task(queue="work")
    def add(n: int) -> int:
        return n

    @app.task(queue="work")
    async def again(context: AsyncContext) -> None:
        if context.iterations == 0:
            context.again()

    add.push(n=1)
    again.push()
    assert app.drain_inline() == {"done": 2, "pending": 1}
    assert seen == [
        ("add", {"n": 1}, 1, Outcome.done()),
        ("again", {}, 1, Outcome.again()),
        ("again", {}, 1, Outcome.done()),
    ]


def test_the_async_client_runs_it_too(app: Penstock, queue: Queue, dsn: str, seen: list[Any]) -> None:
    client = AsyncPenstock(dsn)

    @client.middleware
    def look(task: Task, run: RunHandler) -> Outcome:
        seen.append("sync")
        return run()

    @client.middleware(form_of=look)
    async def look_async(task: Task, run: AsyncRunHandler) -> Outcome:
        seen.append("async")
        return await run()

    @client.task(queue="work")
    def one() -> None: ...

    @client.task(queue="work")
    async def other() -> None: ...

    async def main() -> dict[str, int]:
        async with client:
            await one.push()
            await other.push()
            return await client.drain_inline()

    assert asyncio.run(main()) == {"done": 2}
    assert seen == ["sync", "async"]


def test_an_error_of_the_handler_passes_through_it(
    app: Penstock, queue: Queue, sql: Connection, seen: list[Any]
) -> None:
    @app.middleware
    def report(task: Task, run: RunHandler) -> Outcome:
        try:
            return run()
        except LookupError as error:
            seen.append(str(error))
            raise
        finally:
            seen.append("finally")

    @app.task(queue="work")
    def fail() -> None:
        raise LookupError("no such order")

    fail.push()
    with pytest.raises(LookupError, match="no such order"):
        app.drain_inline()
    assert seen == ["no such order", "finally"]
    assert attempts(sql) == [("failed", "LookupError")]


def test_a_stored_traceback_has_the_frames_of_middleware_and_handler_only(app: Penstock, queue: Queue) -> None:
    @app.middleware
    def around(task: Task, run: RunHandler) -> Outcome:
        return run()

    @app.task(queue="work")
    def fail() -> None:
        raise LookupError("no such order")

    fail.push()
    app.drain_inline(raise_errors=False)
    (task,) = queue.tasks(state="planned")
    assert task.error is not None
    assert [line.rpartition(" in ")[2] for line in task.error.splitlines() if " in " in line] == ["around", "fail"]


def test_a_payload_that_does_not_fit_is_an_error_inside_of_it(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    @app.middleware
    def report(task: Task, run: RunHandler) -> Outcome:
        try:
            return run()
        except ValidationError as error:
            seen.append(error.field)
            return Outcome.dead("a wrong payload")

    @app.task(queue="work")
    def add(n: int) -> None: ...

    queue.push({"n": "one"}, kind="add")
    assert app.drain_inline() == {"dead": 1}
    assert seen == ["n"]


# --- the outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Outcome.done(), ("done", None)),
        (None, ("failed", None)),
        ("text", ("done", None)),
        (object(), ("failed", "UnserialisableResult")),
        (Outcome.dead("no"), ("dead", None)),
        (Outcome("nonsense"), ("failed", "ValidationError")),
    ],
)
def test_what_it_returns_is_treated_as_if_the_handler_had_returned_it(
    app: Penstock, queue: Queue, sql: Connection, answer: Any, expected: tuple[str, str | None]
) -> None:
    """Without an answer, the outcome of the handler stands."""

    @app.middleware
    def change(task, run):  # type: ignore[no-untyped-def]
        assert run().word == "failed"
        return answer

    @app.task(queue="work")
    def handle() -> Outcome:
        return Outcome.failed("by the handler")

    handle.push()
    app.drain_inline(raise_errors=False)
    assert attempts(sql) == [expected]


def test_it_may_leave_out_the_run(app: Penstock, queue: Queue, sql: Connection) -> None:
    @app.middleware
    def skip(task, run):  # type: ignore[no-untyped-def]
        return Outcome.release(delay="1h") if task.payload["n"] else None

    @app.task(queue="work")
    def handle(n: int) -> None:
        raise AssertionError

    handle.push_many([{"n": 0}, {"n": 1}])
    assert app.drain_inline() == {"done": 1, "planned": 1}


def test_it_may_run_the_handler_again(app: Penstock, queue: Queue, sql: Connection, seen: list[Any]) -> None:
    @app.middleware
    def insist(task, run):  # type: ignore[no-untyped-def]
        if run().word == "failed":
            run()

    @app.task(queue="work")
    def handle() -> Outcome | None:
        seen.append("run")
        return Outcome.failed("at first") if len(seen) == 1 else None

    handle.push()
    assert app.drain_inline() == {"done": 1}
    assert seen == ["run", "run"]


def test_an_error_that_it_raises_fails_the_task(app: Penstock, queue: Queue, sql: Connection) -> None:
    @app.middleware
    def fail(task: Task, run: RunHandler) -> Outcome:
        run()
        raise LookupError("after the handler")

    @app.task(queue="work")
    def handle() -> None: ...

    handle.push()
    with pytest.raises(LookupError, match="after the handler"):
        app.drain_inline()
    assert attempts(sql) == [("failed", "LookupError")]


# --- the context ------------------------------------------------------------------------------------------------------


def test_it_gets_the_context_of_the_handler_if_it_asks_for_it(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    @app.middleware
    def look(context: Context, run: RunHandler) -> Outcome:
        seen.append((context.queue, context.task.payload))
        return run()

    @app.middleware(form_of=look)
    async def look_async(context: AsyncContext, run: AsyncRunHandler) -> Outcome:
        seen.append((context.queue, context.task.payload))
        return await run()

    @app.task(queue="work")
    def plain(n: int) -> None: ...

    @app.task(queue="work")
    async def on_a_loop(n: int) -> None: ...

    plain.push(n=1)
    on_a_loop.push(n=2)
    assert app.drain_inline() == {"done": 2}
    assert seen == [("work", {"n": 1}), ("work", {"n": 2})]


def test_what_it_chooses_by_the_context_holds_if_nothing_else_is_returned(app: Penstock, queue: Queue) -> None:
    @app.middleware
    def choose(context: Context, run: RunHandler) -> Outcome:
        context.dead("no longer wanted")
        return run()

    @app.task(queue="work")
    def handle() -> None: ...

    handle.push()
    assert app.drain_inline() == {"dead": 1}


def test_it_sees_with_which_outcome_a_transaction_has_settled_the_task(
    app: Penstock, queue: Queue, sql: Connection, seen: list[Any]
) -> None:
    @app.middleware
    def look(task: Task, run: RunHandler) -> Outcome:
        seen.append(run())
        return Outcome.dead("too late") if task.payload["late"] else seen[-1]

    @app.task(queue="work")
    def settle(late: bool, context: Context) -> None:
        with context.transaction():
            if late:
                context.dead("enough")

    settle.push_many([{"late": False}, {"late": True}])
    assert app.drain_inline(raise_errors=False) == {"done": 1, "dead": 1}
    assert [one.word for one in seen] == ["done", "dead"]
    assert sorted(attempts(sql)) == [("dead", None), ("done", None)]


def test_it_may_open_the_transaction_in_which_the_handler_runs(
    app: Penstock, queue: Queue, sql: Connection, seen: list[Any]
) -> None:
    sql.execute("create table effects (n int)")

    @app.middleware
    def commit(context: Context, run: RunHandler) -> Outcome:
        with context.transaction() as connection:
            connection.execute("insert into effects values (%s)", (context.task.payload["n"],))
            return run()

    @app.task(queue="work")
    def handle(n: int) -> None:
        if n == 2:
            raise LookupError

    handle.push_many([{"n": 1}, {"n": 2}])
    assert app.drain_inline(raise_errors=False) == {"done": 1, "planned": 1}
    assert sql.execute("select n from effects").fetchall() == [(1,)]


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_runs_inside_it_once(app: Penstock, queue: Queue, seen: list[Any], is_async: bool) -> None:
    """Tasks that its answer does not name keep the outcome of the handler."""

    def change(tasks: list[Task], outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        seen.append([outcomes[task.id].word for task in tasks])
        return {task.id: Outcome.release(delay="1h") for task in tasks if task.payload["n"] == 2}

    def handle(tasks: list[Task]) -> dict[int, Outcome]:
        return {task.id: Outcome.dead("no") for task in tasks if task.payload["n"] == 1}

    @app.middleware(batch=True)
    def together(tasks: list[Task], run: Callable[[], dict[int, Outcome]]) -> dict[int, Outcome]:
        return change(tasks, run())

    @app.middleware(batch=True, form_of=together)
    async def together_async(tasks, run):  # type: ignore[no-untyped-def]
        return change(tasks, await run())

    async def handle_async(tasks: list[Task]) -> dict[int, Outcome]:
        return handle(tasks)

    handler = app.task(queue="work", kind="handle", batch=10)(handle_async if is_async else handle)
    handler.push_many([{"n": n} for n in range(3)])
    assert app.drain_inline() == {"done": 1, "dead": 1, "planned": 1}
    assert seen == [["done", "dead", "done"]]


@pytest.mark.parametrize("answer", [None, 7, {0: Outcome.done()}])
def test_a_batch_is_never_stuck(app: Penstock, queue: Queue, answer: Any) -> None:
    @app.middleware(batch=True)
    def together(tasks, run):  # type: ignore[no-untyped-def]
        tasks.clear()
        return answer

    @app.task(queue="work", batch=10)
    def handle(tasks: list[Task]) -> None:
        raise AssertionError

    handle.push_many([{}, {}])
    assert app.drain_inline(raise_errors=False) == ({"done": 2} if answer is None else {"planned": 2})


# --- which handlers, and in which order -------------------------------------------------------------------------------


def test_the_smallest_order_is_the_outermost_and_then_the_first(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    def make(name: str) -> Callable[[Task, RunHandler], Outcome]:
        def middleware(task: Task, run: RunHandler) -> Outcome:
            seen.append(name)
            return run()

        return middleware

    app.middleware(make("second"))
    app.middleware(order=-1)(make("first"))

    @app.task(queue="work")
    def handle() -> None: ...

    app.middleware(make("third"))
    handle.push()
    assert app.drain_inline() == {"done": 1}
    assert seen == ["first", "second", "third"]
    handle()
    assert seen == ["first", "second", "third"], "a call of the handler is only a call"


def test_it_wraps_the_queues_and_kinds_that_it_names(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    app.create_queue("other")

    def middleware(name: str) -> Callable[[Task, RunHandler], Outcome]:
        def note(task: Task, run: RunHandler) -> Outcome:
            seen.append((name, task.kind))
            return run()

        return note

    app.middleware(queue="work")(middleware("queue"))
    app.middleware(kind=["one", "else"])(middleware("kind"))
    app.middleware(queue=("other",), kind="one")(middleware("both"))

    def handle() -> None: ...

    for name, kind in (("work", "one"), ("work", "two"), ("other", "one"), ("other", "*")):
        app.task(queue=name, kind=kind)(handle)
    for name, kind in (("work", "one"), ("work", "two"), ("other", "one"), ("other", "any"), ("other", "else")):
        app.queue(name).push(kind=kind)
        assert app.drain_inline() == {"done": 1}
        seen.append("/")
    assert "".join(f" {one[0]}" if one != "/" else " /" for one in seen) == (
        " queue kind / queue / kind both / / kind /"
    )
    assert app.registry.find("other", "any") is app.registry.find("other", "more"), "compiled once"


def test_wrappers_are_outside_of_it(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    """So Django's connections are looked after also for a middleware that uses them."""

    def wrapper(spec: Spec) -> Callable[..., Any]:
        def run_wrapped(*arguments: Any, **named: Any) -> Any:
            seen.append("wrapper")
            return spec.function(*arguments, **named)

        return run_wrapped

    @app.middleware
    def note(task: Task, run: RunHandler) -> Outcome:
        seen.append("middleware")
        return run()

    @app.task(queue="work")
    def handle() -> None: ...

    app.registry.wrap(wrapper)
    handle.push()
    assert app.drain_inline() == {"done": 1}
    assert seen == ["wrapper", "middleware"]


def test_a_handler_without_middleware_keeps_its_quick_way(app: Penstock) -> None:
    @app.middleware(kind="wrapped")
    def around(task: Task, run: RunHandler) -> Outcome:
        return run()

    @app.task(queue="work")
    def plain(n: int) -> None: ...

    @app.task(queue="work")
    def wrapped(n: int) -> None: ...

    found = app.registry.find("work", "plain")
    assert found is plain.spec
    assert found.quick
    inside = app.registry.find("work", "wrapped")
    assert inside is not None
    assert inside.quick_inside
    assert inside is app.registry.find("work", "wrapped"), "it is compiled once"


def test_a_module_that_is_imported_again_replaces_its_middleware(app: Penstock, queue: Queue, seen: list[Any]) -> None:
    code = "def note(task, run):\n    seen.append('note')\n    return run()"
    for _ in range(2):
        names: dict[str, Any] = {"seen": seen, "__name__": "shop"}
        exec(code, names)
        app.middleware(names["note"])

    @app.task(queue="work")
    def handle() -> None: ...

    handle.push()
    assert app.drain_inline() == {"done": 1}
    assert seen == ["note"]


# --- what is refused --------------------------------------------------------------------------------------------------


def around(task: Task, run: RunHandler) -> Outcome:
    return run()


async def around_async(task: Task, run: AsyncRunHandler) -> Outcome:
    return await run()


def one_more(task: Task, run: RunHandler) -> Outcome:
    return run()


def one() -> None: ...


async def one_async() -> None: ...


def many(tasks: list[Task]) -> None: ...


@pytest.mark.sample(4)
@pytest.mark.parametrize("filters", [{}, {"kind": "handle"}, {"queue": "work"}])
@pytest.mark.parametrize(
    ("middleware", "handler", "options", "shape"),
    [
        (around, one_async, {}, "sync handlers, and this handler is async"),
        (around_async, one, {}, "async handlers, and this handler is sync"),
        (around, many, {"batch": 5}, "sync handlers, and this handler is sync batch"),
    ],
)
def test_a_middleware_without_a_form_for_a_handler_is_refused_at_the_start(
    app: Penstock, queue: Queue, middleware: Any, handler: Any, options: Any, shape: str, filters: dict[str, Any]
) -> None:
    app.middleware(middleware, **filters)
    app.task(queue="work", kind="handle", **options)(handler)
    with pytest.raises(ConfigError, match=rf"{middleware.__name__}: it cannot wrap work/handle, .* {shape}") as refused:
        app.drain_inline()
    assert f"form_of={middleware.__name__}{', batch=True' if options else ''})" in str(refused.value.hint)
    with pytest.raises(ConfigError), app.run_worker():
        pass


@pytest.mark.parametrize(
    ("filters", "error"),
    [({"queue": "wrok"}, "queue 'wrok'"), ({"kind": "x"}, "kind 'x'"), ({"queue": "work", "kind": "y"}, "kind 'y'")],
)
def test_a_name_without_a_handler_is_refused_at_the_start(
    app: Penstock, queue: Queue, filters: dict[str, Any], error: str
) -> None:
    app.middleware(around, **filters)
    app.task(queue="work", kind="handle")(one)
    app.task(queue="other", kind="y")(one)
    with pytest.raises(ConfigError, match=f"middleware around: no handler is for {error}"):
        app.drain_inline("work")


def test_a_form_that_cannot_work_is_refused_at_decoration(app: Penstock) -> None:
    def alone(task: Task) -> None: ...

    def other_context(context: AsyncContext, run: RunHandler) -> None: ...

    def with_tasks(tasks: list[Task], run: RunHandler) -> None: ...

    def with_context(context: Context, run: RunHandler) -> None: ...

    refused: list[tuple[Any, dict[str, Any], str]] = [
        (7, {}, "cannot be called"),
        (alone, {}, "it is called with task and run"),
        (other_context, {}, "sync handlers have Context"),
        (with_tasks, {}, "it takes a list of tasks"),
        (with_context, {"batch": True}, "a batch has no context"),
        (around_async, {"form_of": one}, "is no middleware"),
        (around, {"kind": ()}, "it names none"),
    ]
    for wrong, options, error in refused:
        with pytest.raises(ConfigError, match=error):
            app.middleware(wrong, **options)
    invalid: list[dict[str, Any]] = [{"queue": "Mail"}, {"kind": ""}, {"order": "1"}]
    for options in invalid:
        with pytest.raises(ValidationError):
            app.middleware(around, **options)
    app.middleware(around)
    with pytest.raises(ConfigError, match="form for sync handlers already"):
        app.middleware(form_of=around)(one_more)
    with pytest.raises(ConfigError, match="has queue, kind and order already"):
        app.middleware(form_of=around, order=1)(around_async)
