"""Handlers run in the calling thread, with both clients: whatever a handler does, its task gets an outcome."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from conftest import Clock
from penstock import (
    AsyncContext,
    AsyncPenstock,
    ConfigError,
    Conflict,
    Context,
    CustomRetry,
    Fixed,
    HandlerMisuse,
    LeaseLost,
    NotFound,
    Outcome,
    Penstock,
    PenstockError,
    Queue,
    Task,
    ValidationError,
)
from penstock.client.database import Database
from penstock.client.workers import set_kinds

Drain = Callable[..., dict[str, int]]


@pytest.fixture(params=["sync", "async"])
def drain(request: pytest.FixtureRequest, app: Penstock, dsn: str) -> Drain:
    """`app.drain_inline`, or that of an async client with the same handlers. Most tests check what becomes of a
    failure, so errors are not raised unless a test asks for it."""

    async def main(queues: tuple[str, ...], options: dict[str, Any]) -> dict[str, int]:
        async with AsyncPenstock(dsn) as client:
            client.registry = app.registry
            return await client.drain_inline(*queues, **options)

    def drained(*queues: str, **options: Any) -> dict[str, int]:
        asked = {"raise_errors": False} | options
        return app.drain_inline(*queues, **asked) if request.param == "sync" else asyncio.run(main(queues, asked))

    return drained


@pytest.fixture
def effects(sql: Connection) -> Callable[[], list[int]]:
    """Returns the rows that handlers wrote into a table of their own."""
    sql.execute("create table effects (n int)")
    return lambda: [n for (n,) in sql.execute("select n from effects order by n")]


class End(NamedTuple):
    outcome: str
    attempt: int
    error_class: str | None
    error: str | None


def ends(sql: Connection) -> list[End]:
    """Returns history, in order."""
    rows = sql.execute("select outcome, attempt, error_class, error from penstock.history order by id").fetchall()
    return [End(*row) for row in rows]


def only(sql: Connection) -> End:
    (end,) = ends(sql)
    return end


class State(NamedTuple):
    state: str
    attempts: int | None
    due: datetime | None
    error: str | None


def state(queue: Queue) -> State:
    """Returns the state of the only task."""
    (task,) = queue.tasks()
    return State(task.state, task.attempts, task.due, task.error)


# --- tasks that run ---------------------------------------------------------------------------------------------------


def test_sync_async_and_batch_handlers_are_run(app: Penstock, queue: Queue, drain: Drain) -> None:
    seen: list[object] = []

    @app.task(queue="work")
    def plain(n: int) -> None:
        seen.append(("plain", n))

    @app.task(queue="work")
    async def waiting(n: int) -> None:
        await asyncio.sleep(0.001)
        seen.append(("waiting", n))

    @app.task(queue="work", batch=2)
    def together(tasks: list[Task]) -> None:
        seen.append([task.payload["n"] for task in tasks])

    @app.task(queue="work", batch=10)
    async def together_waiting(tasks: list[Task]) -> None:
        await asyncio.sleep(0.001)
        seen.append({task.payload["n"] for task in tasks})

    plain.push(1)
    waiting.push(2)
    together.push_many([{"n": n} for n in (3, 4, 5)])
    together_waiting.push_many([{"n": n} for n in (6, 7)])
    assert drain() == {"done": 7}
    assert seen == [("plain", 1), ("waiting", 2), [3, 4], [5], {6, 7}]
    assert drain() == {}
    assert queue.status().totals["done"] == 7


def test_async_handlers_run_on_the_loop_of_the_async_client(app: Penstock, queue: Queue, dsn: str) -> None:
    places: list[object] = []

    @app.task(queue="work")
    async def on_the_loop() -> None:
        places.append(asyncio.get_running_loop())

    @app.task(queue="work")
    def beside_it() -> None:
        places.append(threading.current_thread())

    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            client.registry = app.registry
            on_the_loop.push()
            beside_it.push()
            assert await client.drain_inline() == {"done": 2}
            assert places[0] is asyncio.get_running_loop()
            assert places[1] is not threading.current_thread()

    asyncio.run(main())


def test_a_handler_of_an_async_client_pushes_with_await(queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            seen: list[int] = []

            @client.task(queue="work")
            async def collect(n: int) -> None:
                seen.append(n)

            await collect.push(1)
            await collect.push_many([{"n": 2}, {"n": 3}])
            with pytest.raises(ValidationError, match=r"^n: 'x' is not a whole number"):
                await collect.push("x")
            with pytest.raises(ValidationError, match=r"^item 1: n: it is missing"):
                await collect.push_many([{"n": 4}, {}])
            assert await client.drain_inline() == {"done": 3}
            assert seen == [1, 2, 3]

    asyncio.run(main())


def test_tasks_that_a_handler_pushes_are_run_too(app: Penstock, queue: Queue, drain: Drain) -> None:
    other = app.create_queue("other")

    @app.task(queue="work")
    def first(n: int) -> None:
        second.push(n)

    @app.task(queue="other")
    def second(n: int) -> None:
        if n:
            first.push(n - 1)

    first.push(2)
    assert drain() == {"done": 6}
    assert (queue.status().queued, other.status().queued) == (0, 0)


def test_only_the_queues_that_are_named(app: Penstock, queue: Queue, drain: Drain) -> None:
    other = app.create_queue("other")

    @app.task(queue="work")
    def here() -> None: ...

    @app.task(queue="other")
    def there() -> None: ...

    here.push()
    there.push()
    assert drain("other") == {"done": 1}
    assert (queue.status().pending, other.status().pending) == (1, 0)


def test_a_limit_is_kept(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work")
    def count(n: int) -> None: ...

    count.push_many([{"n": n} for n in range(7)])
    assert drain(limit=0) == {}
    assert drain(limit=3) == {"done": 3}
    assert queue.status().pending == 4
    assert drain(limit=100) == {"done": 4}


def test_more_than_one_claim(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work", batch=64)
    def together(tasks: list[Task]) -> None: ...

    together.push_many([{}] * 250)
    assert drain() == {"done": 250}


def test_a_task_that_is_not_due_waits(app: Penstock, queue: Queue, drain: Drain, clock: Clock) -> None:
    @app.task(queue="work")
    def later() -> None: ...

    later.push(due=clock.now() + timedelta(minutes=1))
    assert drain() == {}
    clock.advance(61)
    assert drain() == {"done": 1}


def test_done_tasks_that_are_kept(app: Penstock, drain: Drain) -> None:
    kept = app.create_queue("kept", keep_done="1d")

    @app.task(queue="kept")
    def keep() -> None: ...

    keep.push()
    assert drain() == {"done": 1}
    assert kept.status().done == 1


def test_without_handlers_or_without_the_queue(app: Penstock, queue: Queue, drain: Drain) -> None:
    assert drain() == {}
    with pytest.raises(ConfigError, match="no handler of the application is for 'work'"):
        drain("work")

    @app.task(queue="wrok")
    def lost() -> None: ...

    with pytest.raises(NotFound) as missing:
        drain()
    assert missing.value.hint == "Did you mean 'work'?"


def test_a_rehearsal_runs_nothing(app: Penstock, queue: Queue, dsn: str) -> None:
    """Otherwise its claims would be undone, and the same tasks found again for ever."""
    with Penstock(dsn, rehearse=True) as rehearsal:

        @rehearsal.task(queue="work")
        def never() -> None:
            raise AssertionError

        queue.push(kind="never")
        with pytest.raises(ValidationError, match="drain_inline is done in several transactions"):
            rehearsal.drain_inline()


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failure_is_planned_by_the_kinds_own_retry(app: Penstock, queue: Queue, drain: Drain, clock: Clock) -> None:
    @app.task(queue="work", retry=Fixed("5m"), max_attempts=2)
    def fail() -> None:
        raise ValueError("boom")

    fail.push()
    assert drain() == {"planned": 1}
    assert state(queue)[:3] == ("planned", 1, clock.now() + timedelta(minutes=5))
    clock.advance(301)
    assert drain() == {"dead": 1}, "its kind has two attempts, the queue three"
    assert queue.tasks()[0].reason == "attempts spent"


def test_without_a_retry_of_its_own_a_kind_follows_the_queue(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock
) -> None:
    queue.set(retry="fixed:2m")

    @app.task(queue="work")
    def fail() -> None:
        raise ValueError("boom")

    fail.push()
    for attempt, end in ((1, "planned"), (2, "planned"), (3, "dead")):
        assert drain() == {end: 1}
        if end == "planned":
            assert state(queue)[:3] == ("planned", attempt, clock.now() + timedelta(minutes=2))
        clock.advance(121)


def test_settle_agrees_with_the_code_in_any_process(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, sql: Connection
) -> None:
    @app.task(queue="work", kind="invoice", retry="fixed:9m", max_attempts=7, timeout="1m30s")
    def fail() -> None: ...

    drain()
    rows = sql.execute("select kind, retry, max_attempts, timeout from penstock.kind").fetchall()
    assert rows == [("invoice", {"type": "fixed", "delay": 540}, 7, timedelta(seconds=90))]
    queue.push(kind="invoice")
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.failed("by hand")})
    assert state(queue).due == clock.now() + timedelta(minutes=9)


def test_the_message_comes_first_then_where_it_happened(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection
) -> None:
    def deeper(n: int) -> None:
        raise ValueError(f"no such order: {n}")

    @app.task(queue="work")
    def fail(n: int) -> None:
        deeper(n)

    fail.push(7)
    assert drain() == {"planned": 1}
    end = only(sql)
    assert (end.outcome, end.error_class) == ("failed", "ValueError")
    first, head, *frames = (end.error or "").splitlines()
    assert (first, head) == ("no such order: 7", "Traceback (most recent call last):")
    assert [line.rpartition(", in ")[2] for line in frames if line.startswith("  File ")] == ["fail", "deeper"]
    assert [line.strip() for line in frames if not line.startswith("  File ") and "^" not in line] == [
        "deeper(n)",
        'raise ValueError(f"no such order: {n}")',
    ]
    assert all(f'"{__file__}"' in line for line in frames if line.startswith("  File ")), "no frame of Penstock"
    assert state(queue).error == end.error


async def fail_async() -> None:
    raise ValueError("boom")


def test_the_frames_of_an_async_handler(app: Penstock, queue: Queue, drain: Drain, sql: Connection) -> None:
    app.task(queue="work")(fail_async).push()
    drain()
    lines = (only(sql).error or "").splitlines()
    assert lines[0] == "boom"
    assert [line.rpartition(", in ")[2] for line in lines if line.startswith("  File ")] == ["fail_async"]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Silent(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307 - this is tested


class Fatal(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Wordy(Exception):
    def __str__(self) -> str:
        return "x" * 1_000_000 + "\x00\ud800"


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [Speechless, Silent, Fatal])
def test_an_error_without_a_usable_message(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, kind: type[Exception]
) -> None:
    @app.task(queue="work")
    def fail() -> None:
        raise kind

    fail.push()
    assert drain() == {"planned": 1}
    assert only(sql).error_class == kind.__name__
    assert (only(sql).error or "").startswith(f"<{kind.__name__}>\n")


def test_an_error_without_a_message_is_called_by_its_name_and_a_long_one_is_cut(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection
) -> None:
    @app.task(queue="work")
    def fail(long: bool) -> None:
        raise Wordy if long else KeyError

    fail.push_many([{"long": False}, {"long": True}])
    assert drain() == {"planned": 2}
    short, cut = (end.error or "" for end in ends(sql))
    assert short.startswith("KeyError\n")
    assert len(cut) <= 8192


def test_an_argument_that_sql_pushed_wrongly_fails_before_the_handler_runs(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection
) -> None:
    @app.task(queue="work")
    def never(n: int) -> None:
        raise AssertionError

    sql.execute("""select penstock.push('work', '{"n": "x"}', p_kind => 'never')""")
    assert drain() == {"planned": 1}
    assert only(sql).error_class == "ValidationError"
    assert (only(sql).error or "").startswith("n: 'x' is not a whole number")


def test_a_batch_fails_together(app: Penstock, queue: Queue, drain: Drain, sql: Connection) -> None:
    @app.task(queue="work", batch=10)
    def together(tasks: list[Task]) -> None:
        raise ValueError("boom")

    together.push_many([{}] * 3)
    assert drain() == {"planned": 3}
    assert {(end.outcome, end.error_class) for end in ends(sql)} == {("failed", "ValueError")}


def test_a_batch_returns_the_outcome_of_each(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work", batch=10)
    async def together(tasks: list[Task]) -> dict[int, Outcome]:
        first, second, third, _ = tasks
        return {
            first.id: Outcome.failed("no"),
            second.id: Outcome.dead("never"),
            third.id: Outcome.release(delay="1h"),
        }

    together.push_many([{}] * 4)
    assert drain() == {"planned": 2, "dead": 1, "done": 1}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: [1], "[1] is neither None nor outcomes by id"),
        (lambda _: {-1: Outcome.done()}, "-1 is no task of the batch"),
        (lambda tasks: {tasks[0].id: "done"}, "'done' is not an Outcome"),
        (lambda tasks: {tasks[0].id: Outcome("undone")}, "'undone' is not one of done, again"),
    ],
)
def test_a_batch_with_an_invalid_answer_fails(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, answer: Callable[[list[Task]], Any], words: str
) -> None:
    @app.task(queue="work", batch=10)
    def together(tasks: list[Task]) -> Any:
        return answer(tasks)

    together.push_many([{}] * 2)
    assert drain() == {"planned": 2}
    assert {end.error_class for end in ends(sql)} == {"ValidationError"}
    assert all(words in (end.error or "") for end in ends(sql))


# --- B54: results -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize("result", [object(), {1, 2}, float("nan"), b"x", {1: 2}, ["\x00"], 2**70, lambda: None])
@pytest.mark.parametrize("style", ["sync", "async"])
def test_an_unserialisable_result_fails_the_task(
    app: Penstock, queue: Queue, sql: Connection, result: Any, style: str
) -> None:
    @app.task(queue="work", kind="sync")
    def answer() -> Any:
        return result

    @app.task(queue="work", kind="async")
    async def answer_async() -> Any:
        return result

    queue.push(kind=style)
    assert app.drain_inline() == {"planned": 1}
    end = only(sql)
    assert (end.outcome, end.attempt, end.error_class) == ("failed", 1, "UnserialisableResult")
    assert (end.error or "").startswith("the handler's result: ")


@pytest.mark.sample(2)
@pytest.mark.parametrize("result", [None, 1, "text", [1, {"a": None}], {"a": 1.5}, True, UUID(int=7), ()])
def test_a_serialisable_result_is_fine(app: Penstock, queue: Queue, result: Any) -> None:
    app.task(queue="work", kind="answer")(lambda: result).push()
    assert app.drain_inline() == {"done": 1}


def test_an_outcome_that_is_returned_is_followed(app: Penstock, queue: Queue, drain: Drain, clock: Clock) -> None:
    outcomes = {
        "done": Outcome.done(),
        "again": Outcome.again(delay="2h", payload={"which": "done"}),
        "failed": Outcome.failed("not yet", delay="3h"),
        "dead": Outcome.dead("no such customer"),
        "release": Outcome.release(delay="4h"),
    }

    @app.task(queue="work")
    def told(which: str) -> Outcome:
        return outcomes[which]

    told.push_many([{"which": which} for which in outcomes])
    assert drain() == {"done": 1, "planned": 3, "dead": 1}
    planned = queue.tasks(state="planned")
    assert [one.due for one in planned] == [clock.now() + timedelta(hours=hours) for hours in (2, 3, 4)]
    assert [one.attempts for one in planned] == [0, 1, 0]
    assert queue.tasks(state="dead")[0].reason == "no such customer"


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("dropped"), "outcome: 'dropped' is not one of done, again, failed, dead, release"),
        (Outcome.again(datetime(2030, 1, 1)), "due: '2030-01-01T00:00:00' has no time zone"),  # noqa: DTZ001
        (Outcome.again(delay=-1), "delay: -1 is not between 0 and 10 years"),
        (Outcome.again(payload={"a": {1, 2}}), "payload.a: set is not JSON"),
    ],
)
def test_an_outcome_that_could_not_be_settled_fails_its_task_alone(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, outcome: Outcome, words: str
) -> None:
    @app.task(queue="work")
    def answer(wrong: bool) -> Outcome | None:
        return outcome if wrong else None

    answer.push_many([{"wrong": False}, {"wrong": True}, {"wrong": False}])
    assert drain() == {"done": 2, "planned": 1}
    (end,) = (end for end in ends(sql) if end.outcome == "failed")
    assert (end.error or "").startswith(words)


def test_an_outcome_that_postgresql_refuses_fails_its_task_alone(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection
) -> None:
    queue.set(max_payload=1000)

    @app.task(queue="work")
    def grow(size: int, context: Context) -> None:
        context.again(payload={"size": 0, "text": "x" * size}, delay="1h")

    grow.push_many([{"size": 1}, {"size": 2000}, {"size": 2}])
    assert drain() == {"planned": 3}
    (end,) = (end for end in ends(sql) if end.outcome == "failed")
    assert (end.error_class, (end.error or "").partition(":")[0]) == ("PayloadTooLarge", "the outcome was refused")


# --- B55: exits -------------------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@pytest.mark.parametrize("exit_", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("style", ["sync", "async", "batch", "async batch"])
def test_a_handler_that_ends_its_process_has_failed(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, exit_: BaseException, style: str
) -> None:
    """It also ends the drain, and the tasks that were not begun go back."""
    calls: list[object] = []

    def leave(call: object) -> None:
        calls.append(call)
        raise exit_

    @app.task(queue="work", kind="sync")
    def one() -> None:
        leave(one)

    @app.task(queue="work", kind="async")
    async def one_async() -> None:
        leave(one_async)

    @app.task(queue="work", kind="batch", batch=2)
    def many(tasks: list[Task]) -> None:
        leave(tasks)

    @app.task(queue="work", kind="async batch", batch=2)
    async def many_async(tasks: list[Task]) -> None:
        leave(tasks)

    for _ in range(4):
        queue.push(kind=style)
    ran = 2 if "batch" in style else 1
    assert drain() == {"planned": ran, "pending": 4 - ran}
    assert len(calls) == 1
    assert (
        sorted((one.state, one.attempts) for one in queue.tasks())
        == [("pending", 0)] * (4 - ran) + [("planned", 1)] * ran
    )
    assert Counter((end.outcome, end.error_class) for end in ends(sql)) == {
        ("failed", type(exit_).__name__): ran,
        ("released", None): 4 - ran,
    }


def test_sys_exit_after_an_effect(app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], list[int]]) -> None:
    @app.task(queue="work")
    def leave(context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (1)")
        sys.exit(1)

    leave.push()
    assert drain() == {"done": 1}
    assert effects() == [1]


class Unusual(BaseException):
    pass


@pytest.mark.sample(6)
@pytest.mark.parametrize("error", [Unusual("boom"), StopIteration("boom"), asyncio.CancelledError("boom")], ids=repr)
@pytest.mark.parametrize("style", ["sync", "async", "batch", "async batch"])
def test_any_other_base_exception_is_a_failure(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, error: BaseException, style: str
) -> None:
    @app.task(queue="work", kind="sync")
    def one() -> None:
        raise error

    @app.task(queue="work", kind="async")
    async def one_async() -> None:
        raise error

    @app.task(queue="work", kind="batch", batch=2)
    def many(tasks: list[Task]) -> None:
        raise error

    @app.task(queue="work", kind="async batch", batch=2)
    async def many_async(tasks: list[Task]) -> None:
        raise error

    queue.push(kind=style)
    assert drain() == {"planned": 1}
    end = only(sql)
    name = type(error).__name__
    if isinstance(error, StopIteration) and "async" in style:
        name = "RuntimeError"  # Python turns it into this
    assert (end.outcome, end.attempt, end.error_class) == ("failed", 1, name)
    assert "boom" in (end.error or "") or name == "RuntimeError"


def test_a_cancelled_drain_is_cancelled(app: Penstock, queue: Queue, dsn: str) -> None:
    begun = asyncio.Event()

    @app.task(queue="work")
    async def for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            client.registry = app.registry
            draining = asyncio.create_task(client.drain_inline())
            await asyncio.wait_for(begun.wait(), 30)
            draining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await draining

    for_ever.push()
    asyncio.run(main())
    assert queue.status().active == 1, "the task got no outcome, so its lease will end"


def test_an_async_handler_has_a_timeout(app: Penstock, queue: Queue, drain: Drain, sql: Connection) -> None:
    @app.task(queue="work", timeout="100ms")
    async def slow() -> None:
        await asyncio.sleep(30)

    @app.task(queue="work", timeout="100ms", batch=2)
    async def slow_batch(tasks: list[Task]) -> None:
        await asyncio.sleep(30)

    slow.push()
    slow_batch.push()
    assert drain() == {"planned": 2}
    assert [(end.outcome, end.error_class) for end in ends(sql)] == [("failed", "Timeout")] * 2
    assert (ends(sql)[0].error or "").startswith("timeout: it took longer than 0.1 s")


def test_a_timeout_after_the_task_was_settled_changes_nothing(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work", timeout="3s")
    async def slow(context: AsyncContext) -> None:
        async with context.transaction() as connection:
            await connection.execute("insert into effects values (1)")
        await asyncio.sleep(30)

    slow.push()
    assert drain() == {"done": 1}
    assert effects() == [1]


# --- B58: unknown kinds -----------------------------------------------------------------------------------------------


def test_an_unknown_kind_is_put_back_for_later(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, sql: Connection
) -> None:
    @app.task(queue="work")
    def known() -> None: ...

    known.push()
    queue.push(kind="unknown")
    assert drain() == {"done": 1, "planned": 1}
    assert state(queue)[:3] == ("planned", 0, clock.now() + timedelta(seconds=60))
    told = {(end.outcome, end.attempt, end.error_class) for end in ends(sql)}
    assert told == {("done", 1, None), ("released", 1, "UnknownKind")}

    clock.advance(61)
    app.task(queue="work", kind="unknown")(lambda: None)
    assert drain() == {"done": 1}


def test_a_handler_of_any_kind_leaves_none_unknown(app: Penstock, queue: Queue, drain: Drain) -> None:
    seen: list[str] = []

    @app.task(queue="work", kind="*")
    def anything(task: Task, **rest: Any) -> None:
        seen.append(task.kind)

    for kind in ("a", "b", "a"):
        queue.push({"n": 1}, kind=kind)
    anything.push(n=2)
    assert drain() == {"done": 4}
    assert seen == ["a", "b", "a", "*"]


# --- B46: a custom retry policy ---------------------------------------------------------------------------------------


def failing(app: Penstock, policy: Callable[..., Any]) -> None:
    """Pushes a task that fails, with a policy whose stored fallback is seven minutes."""

    @app.task(queue="work", retry=CustomRetry(policy, Fixed("7m")))
    def fail() -> None:
        raise ValueError("boom")

    fail.push()


def raising(error: BaseException) -> Callable[..., Any]:
    def policy(*_: object) -> None:
        raise error

    return policy


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (lambda *_: -1, "delay: -1 is not between 0 and 10 years"),
        (lambda *_: float("nan"), "delay: nan is not a length of time"),
        (lambda *_: float("inf"), "delay: inf is not a length of time"),
        (lambda *_: timedelta(days=4000), "is not between 0 and 10 years"),
        (lambda *_: "x", "delay: 'x' is not a duration"),
        (lambda *_: True, "delay: True is not a duration"),
        (lambda *_: object(), "is not a duration"),
        (lambda: "1m", "TypeError: "),
        (raising(RuntimeError("of two minds")), "RuntimeError: of two minds"),
        (raising(Speechless()), "Speechless: <Speechless>"),
        (raising(SystemExit(1)), "SystemExit: 1"),
    ],
)
def test_an_invalid_answer_of_a_policy_is_logged_and_the_stored_one_applies(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, policy: Callable[..., Any], words: str
) -> None:
    failing(app, policy)
    assert drain() == {"planned": 1}
    now = state(queue)
    assert (now.attempts, now.due) == (1, clock.now() + timedelta(minutes=7))
    assert (now.error or "").startswith("boom\n")
    last = (now.error or "").splitlines()[-1]
    assert last.startswith("(retry policy: ")
    assert last.endswith("; the stored strategy is followed)")
    assert words in last


def test_a_policy_that_answers_none_ends_the_task(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, sql: Connection
) -> None:
    failing(app, lambda *_: None)
    assert drain() == {"dead": 1}
    assert (queue.tasks()[0].reason or "").startswith("the retry policy ended: boom")
    assert only(sql).error_class == "ValueError"


@pytest.mark.sample(3)
@pytest.mark.parametrize("answer", [90, 90.0, "1m30s", timedelta(seconds=90)])
def test_a_policy_that_answers_a_length_is_followed(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, answer: Any
) -> None:
    failing(app, lambda *_: answer)
    assert drain() == {"planned": 1}
    assert state(queue).due == clock.now() + timedelta(seconds=90)


def test_a_policy_may_try_again_at_once_until_attempts_are_spent(app: Penstock, queue: Queue, drain: Drain) -> None:
    asked: list[tuple[str, int, bool]] = []

    def policy(error: BaseException, attempt: int, age: timedelta) -> int:
        asked.append((str(error), attempt, timedelta() <= age < timedelta(minutes=5)))
        return 0

    failing(app, policy)
    assert drain() == {"pending": 2, "dead": 1}
    assert asked == [("boom", 1, True), ("boom", 2, True), ("boom", 3, True)]


def test_a_policy_is_not_asked_about_an_exit(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work", retry=raising(AssertionError()))
    def leave() -> None:
        raise SystemExit

    leave.push()
    assert drain() == {"planned": 1}
    assert (queue.tasks()[0].error_class, state(queue).attempts) == ("SystemExit", 1)


# --- the context ------------------------------------------------------------------------------------------------------


def test_a_context_knows_its_task(app: Penstock, queue: Queue, drain: Drain, clock: Clock) -> None:
    seen: list[tuple[Any, ...]] = []

    @app.task(queue="work", kind="look", retry="fixed:1s")
    def check(n: int, task: Task, ctx: Context) -> None:
        assert ctx.task is task
        seen.append((ctx.queue, ctx.attempt, ctx.iterations, ctx.cancelled, ctx.stopping, ctx.late, n))
        if ctx.attempt == 1 and not ctx.iterations:
            raise ValueError
        if not ctx.iterations:
            ctx.again(delay="1s")

    check.push(7)
    for state_ in ("planned", "planned", "done"):
        assert drain() == {state_: 1}
        clock.advance(2)
    rest = (False, False, False, 7)
    assert seen == [("work", 1, 0, *rest), ("work", 2, 0, *rest), ("work", 1, 1, *rest)]


@pytest.mark.parametrize("returned", [True, False])
def test_again_at_another_time_with_another_payload(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, returned: bool
) -> None:
    due = clock.now() + timedelta(hours=3)

    @app.task(queue="work")
    async def count(n: int, context: AsyncContext) -> Outcome | None:
        told = context.again(due, {"n": n + 1})
        return told if returned else None

    count.push(1)
    assert drain() == {"planned": 1}
    (task,) = queue.tasks()
    assert (task.due, task.payload, task.iterations, task.attempts) == (due, {"n": 2}, 1, 0)


def test_again_at_once_until_it_is_done(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work")
    def count(n: int, context: Context) -> None:
        if n < 4:
            context.again(payload={"n": n + 1})

    count.push(1)
    assert drain() == {"pending": 3, "done": 1}


WRONG_AGAIN: list[dict[str, Any]] = [
    {"due": datetime(2030, 1, 1)},  # noqa: DTZ001
    {"due": datetime(2300, 1, 1, tzinfo=UTC)},
    {"delay": -1},
    {"payload": {"a": object()}},
    {"payload": [1]},
]


def test_invalid_arguments_of_again_are_an_error_in_the_handler(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work")
    def count(context: Context) -> None:
        for wrong in WRONG_AGAIN:
            with pytest.raises(ValidationError):
                context.again(**wrong)

    count.push()
    assert drain() == {"done": 1}, "the refused call has no effect"


def test_a_failure_after_again_is_a_failure(app: Penstock, queue: Queue, drain: Drain, sql: Connection) -> None:
    @app.task(queue="work")
    def count(context: Context) -> None:
        context.again(delay="1h", payload={"n": 1})
        raise ValueError("boom")

    count.push()
    assert drain() == {"planned": 1}
    assert only(sql).outcome == "failed"
    assert queue.tasks()[0].payload == {}


def test_extend_gives_more_time(app: Penstock, queue: Queue, drain: Drain, clock: Clock) -> None:
    @app.task(queue="work", kind="sync")
    def slow(context: Context) -> None:
        for _ in range(3):
            clock.advance(8)
            context.extend()

    @app.task(queue="work", kind="async")
    async def slow_async(context: AsyncContext) -> None:
        await context.extend("1h")
        clock.advance(3000)

    slow.push()
    assert drain() == {"done": 1}
    slow_async.push()
    assert drain() == {"done": 1}


def test_a_handler_that_lost_the_lease_is_told_and_changes_nothing(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, sql: Connection
) -> None:
    told: list[type] = []

    @app.task(queue="work")
    def slow(context: Context) -> None:
        if context.attempt == 1 and not told:
            clock.advance(11)
            assert len(queue.claim(lease="1h")) == 1
            try:
                context.extend()
            except LeaseLost as error:
                told.append(type(error))
                raise

    slow.push()
    assert drain() == {"lost": 1}
    assert told == [LeaseLost]
    assert queue.status().active == 1, "another worker has it"
    assert [end.outcome for end in ends(sql)] == ["expired"]


def test_a_handler_that_does_not_check_loses_only_its_own_outcome(app: Penstock, queue: Queue, drain: Drain) -> None:
    """One task is cancelled while it runs. The others of its claim end as usual."""

    @app.task(queue="work")
    def mixed(n: int, task: Task) -> Outcome | None:
        if n == 1:
            queue.cancel([task.id])
        return Outcome.release(delay="1h") if n == 2 else None

    mixed.push_many([{"n": n} for n in range(4)])
    assert drain() == {"done": 2, "planned": 1, "lost": 1}
    assert (queue.status().cancelled, queue.status().planned) == (1, 1)


def test_a_handler_sees_that_it_was_cancelled(app: Penstock, queue: Queue, drain: Drain) -> None:
    seen: list[bool] = []

    @app.task(queue="work")
    def look(context: Context) -> None:
        if not seen:
            queue.cancel([context.task.id])
        seen.append(context.cancelled)
        context.extend()
        seen.append(context.cancelled)

    look.push_many([{}, {}])
    assert drain() == {"done": 1, "lost": 1}
    assert seen == [False, True, False, False]


def test_the_lost_lease_of_another_queue_is_an_ordinary_error(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection
) -> None:
    other = app.create_queue("other")
    other.push()
    theirs = other.claim()
    other.settle(theirs)

    @app.task(queue="work")
    def meddle(context: Context) -> None:
        other.settle(theirs)

    meddle.push()
    assert drain() == {"planned": 1}
    assert [end.error_class for end in ends(sql)] == [None, "LeaseLost"]


# --- transaction() ----------------------------------------------------------------------------------------------------


def test_the_effect_and_the_end_happen_together(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def write(n: int, context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (%s)", (n,))
            assert effects() == [*range(n)], "no other session sees it yet"
        assert effects() == [*range(n + 1)]
        assert context.settled

    write.push_many([{"n": n} for n in range(3)])
    assert drain() == {"done": 3}
    assert effects() == [0, 1, 2]
    assert [end.outcome for end in ends(sql)] == ["done"] * 3
    assert drain() == {}


def test_the_effect_and_the_end_of_an_async_handler_happen_together(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    async def write(n: int, context: AsyncContext) -> None:
        async with context.transaction() as connection:
            await connection.execute("insert into effects values (%s)", (n,))
        assert context.settled

    write.push_many([{"n": n} for n in range(3)])
    assert drain() == {"done": 3}
    assert effects() == [0, 1, 2]
    assert [end.outcome for end in ends(sql)] == ["done"] * 3


def test_again_in_a_transaction(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def count(n: int, context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (%s)", (n,))
            context.again(delay="1h", payload={"n": n + 1})

    count.push(1)
    assert drain() == {"planned": 1}
    assert effects() == [1]
    assert (queue.tasks()[0].payload, state(queue).due) == ({"n": 2}, clock.now() + timedelta(hours=1))


def test_an_error_inside_undoes_both(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work", kind="sync")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (1)")
            raise ValueError("boom")

    @app.task(queue="work", kind="async")
    async def write_async(context: AsyncContext) -> None:
        async with context.transaction() as connection:
            await connection.execute("insert into effects values (2)")
            raise ValueError("boom")

    write.push()
    write_async.push()
    assert drain() == {"planned": 2}
    assert effects() == []
    assert {(end.outcome, end.error_class) for end in ends(sql)} == {("failed", "ValueError")}


def test_an_error_afterwards_changes_nothing(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> object:
        with context.transaction() as connection:
            connection.execute("insert into effects values (1)")
        raise ValueError("too late")

    write.push()
    assert drain() == {"done": 1}
    assert effects() == [1]
    assert only(sql).outcome == "done"


def test_a_task_that_was_cancelled_meanwhile_leaves_no_effect(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], list[int]]
) -> None:
    told: list[BaseException] = []

    @app.task(queue="work", kind="sync")
    def write(context: Context) -> None:
        try:
            with context.transaction() as connection:
                connection.execute("insert into effects values (1)")
                queue.cancel([context.task.id])
        except LeaseLost as error:
            told.append(error)
            raise

    @app.task(queue="work", kind="async")
    async def write_async(context: AsyncContext) -> None:
        try:
            async with context.transaction() as connection:
                await connection.execute("insert into effects values (2)")
                await asyncio.to_thread(queue.cancel, [context.task.id])
        except LeaseLost as error:
            told.append(error)
            raise

    write.push()
    write_async.push()
    assert drain() == {"lost": 2}
    assert effects() == []
    assert queue.status().cancelled == 2
    assert [getattr(error, "reason", None) for error in told] == ["cancelled"] * 2


def test_a_lease_that_ended_meanwhile_leaves_no_effect(
    app: Penstock, queue: Queue, drain: Drain, clock: Clock, effects: Callable[[], list[int]]
) -> None:
    runs: list[int] = []

    @app.task(queue="work")
    def write(context: Context) -> None:
        runs.append(context.attempt)
        with context.transaction() as connection:
            connection.execute("insert into effects values (%s)", (len(runs),))
            if len(runs) == 1:
                clock.advance(11)
                assert app.upkeep()["expired"] == 1

    write.push()
    states = drain()
    assert states["lost"] == 1
    clock.advance(3600)
    assert {**drain(), **states} == {"lost": 1, "done": 1}
    assert effects() == [2]


def test_a_second_transaction_leaves_no_effect(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> None:
        for n in (1, 2):
            with context.transaction() as connection:
                connection.execute("insert into effects values (%s)", (n,))

    write.push()
    assert drain() == {"done": 1}
    assert effects() == [1]


def test_a_handler_may_use_savepoints(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (1)")
            with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
                connection.execute("insert into nowhere values (2)")
            connection.execute("insert into effects values (3)")

    write.push()
    assert drain() == {"done": 1}
    assert effects() == [1, 3]


def test_the_users_own_errors_reach_the_handler_as_they_are(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection
) -> None:
    told: list[type] = []

    @app.task(queue="work", kind="sync")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            try:
                connection.execute("insert into nowhere values (1)")
            except psycopg.Error as error:
                told.append(type(error))
                raise

    @app.task(queue="work", kind="async")
    async def write_async(context: AsyncContext) -> None:
        try:
            async with context.transaction() as connection:
                await connection.execute("select 1 / 0")
        except psycopg.Error as error:
            told.append(type(error))
            raise

    write.push()
    write_async.push()
    assert drain() == {"planned": 2}
    assert told == [psycopg.errors.UndefinedTable, psycopg.errors.DivisionByZero]
    assert [end.error_class for end in ends(sql)] == ["UndefinedTable", "DivisionByZero"]


def test_an_error_that_was_swallowed_does_not_pass_for_success(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (1)")
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute("insert into nowhere values (1)")

    write.push()
    assert drain() == {"planned": 1}
    assert effects() == []
    assert "aborted" in (only(sql).error or "")


def test_a_handler_may_set_a_row_factory(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work", kind="sync")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            connection.row_factory = dict_row
            row = connection.execute("insert into effects values (1) returning n").fetchone()
            assert row == {"n": 1}

    @app.task(queue="work", kind="async")
    async def write_async(context: AsyncContext) -> None:
        async with context.transaction() as connection:
            connection.row_factory = dict_row
            connection.cursor_factory = psycopg.AsyncClientCursor
            row = await (await connection.execute("insert into effects values (2) returning n")).fetchone()
            assert row == {"n": 2}

    for _ in range(3):
        write.push()
        write_async.push()
    assert drain() == {"done": 6}
    assert effects() == [1, 1, 1, 2, 2, 2]
    assert queue.status().totals["done"] == 6


# --- B56: misuse ------------------------------------------------------------------------------------------------------


def leave_and_enter(connection: psycopg.Connection) -> None:
    with connection:
        """psycopg commits and closes it here."""


MISUSES: dict[str, Callable[[psycopg.Connection], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "close": lambda connection: connection.close(),
    "with": leave_and_enter,
    "commit in SQL": lambda connection: connection.execute("commit"),
    "rollback in SQL": lambda connection: connection.execute("rollback"),
    "another transaction": lambda connection: [connection.execute(word) for word in (b"commit", b"begin")],
    "a chain": lambda connection: connection.execute("commit and chain"),
    "a chain of rollbacks": lambda connection: connection.execute("rollback and chain"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_handler_that_ends_our_transaction_fails_and_the_next_one_works(
    app: Penstock,
    queue: Queue,
    drain: Drain,
    sql: Connection,
    effects: Callable[[], list[int]],
    misuse: Callable[[psycopg.Connection], object],
) -> None:
    @app.task(queue="work")
    def write(n: int, context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into effects values (%s)", (n,))
            if n == 1:
                misuse(connection)

    write.push_many([{"n": n} for n in range(4)])
    assert drain() == {"done": 3, "planned": 1}
    assert {0, 2, 3} <= {*effects()}
    (end,) = (end for end in ends(sql) if end.outcome == "failed")
    assert end.error_class == HandlerMisuse.__name__
    assert (end.error or "").startswith("the handler closed the connection of transaction(), or ended its transaction")


async def commit(connection: psycopg.AsyncConnection) -> None:
    await connection.commit()


async def close(connection: psycopg.AsyncConnection) -> None:
    await connection.close()


async def chain(connection: psycopg.AsyncConnection) -> None:
    await connection.execute("rollback and chain")


@pytest.mark.sample(3)
@pytest.mark.parametrize("misuse", [commit, close, chain])
def test_an_async_handler_that_ends_our_transaction_fails_too(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], list[int]], misuse: Any
) -> None:
    @app.task(queue="work")
    async def write(n: int, context: AsyncContext) -> None:
        async with context.transaction() as connection:
            await connection.execute("insert into effects values (%s)", (n,))
            if n == 1:
                await misuse(connection)

    write.push_many([{"n": n} for n in range(4)])
    assert drain() == {"done": 3, "planned": 1}
    assert {0, 2, 3} <= {*effects()}
    assert [end.error_class for end in ends(sql) if end.outcome == "failed"] == ["HandlerMisuse"]


# --- B57: a forked child ----------------------------------------------------------------------------------------------


def told_by_a_child(act: Callable[[], object]) -> str:
    """Calls `act` in a forked child, and returns what happened, through a pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return said


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_not_settle(queue: Queue) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim(2)

    def within() -> None:
        with queue.settling(claim, claim.ids[0]):
            """Nothing."""

    for act in (
        lambda: queue.settle(claim),
        lambda: queue.settle(claim, {claim.ids[0]: Outcome.failed("x")}),
        lambda: queue.extend(claim),
        lambda: queue.release(claim),
        within,
    ):
        said = told_by_a_child(act)
        assert said == f"{Conflict.__name__}: claim: it was made by process {os.getpid()}, this is {child_of(said)}"
    assert queue.status().active == 2
    assert len(queue.settle(claim)) == 2


def child_of(said: str) -> str:
    return said.rpartition(" ")[2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_handler_that_forks_settles_once(
    app: Penstock, queue: Queue, sql: Connection, effects: Callable[[], list[int]]
) -> None:
    @app.task(queue="work")
    def fork(context: Context) -> None:
        def child() -> None:
            with context.transaction() as connection:
                connection.execute("insert into effects values (2)")

        assert told_by_a_child(child).startswith("Conflict: ")
        with context.transaction() as connection:
            connection.execute("insert into effects values (1)")

    fork.push()
    assert app.drain_inline() == {"done": 1}
    assert effects() == [1]
    assert only(sql).outcome == "done"


# --- pushes in the caller's transaction -------------------------------------------------------------------------------


def test_a_push_in_a_transaction_that_is_rolled_back_leaves_nothing(
    app: Penstock, queue: Queue, drain: Drain, dsn: str
) -> None:
    seen: list[int] = []

    @app.task(queue="work")
    def collect(n: int) -> None:
        seen.append(n)

    with psycopg.connect(dsn) as connection:
        collect.push(1, connection=connection)
        collect.push_many([{"n": 2}, {"n": 3}], connection=connection)
        connection.rollback()
        assert drain() == {}
        collect.push(4, connection=connection)
        with pytest.raises(ValidationError):
            collect.push("x", connection=connection)
        connection.commit()
    assert drain() == {"done": 1}
    assert seen == [4]


def test_a_push_in_the_handlers_own_transaction_goes_with_it(app: Penstock, queue: Queue, drain: Drain) -> None:
    seen: list[int] = []

    @app.task(queue="work")
    def collect(n: int) -> None:
        seen.append(n)

    @app.task(queue="work", max_attempts=1)
    def produce(n: int, context: Context) -> None:
        with context.transaction() as connection:
            collect.push(n, connection=connection)
            if n == 1:
                raise ValueError("boom")

    produce.push_many([{"n": 1}, {"n": 2}])
    assert drain() == {"dead": 1, "done": 2}
    assert seen == [2]


# --- set_kinds --------------------------------------------------------------------------------------------------------


def test_set_kinds_answers_how_many_changed(database: Database, queue: Queue, sql: Connection) -> None:
    kinds: list[dict[str, Any]] = [
        {"kind": "a", "retry": {"type": "fixed", "delay": 1}},
        {"kind": "b", "timeout": "5s"},
    ]
    assert set_kinds(database, "work", kinds) == 2
    assert set_kinds(database, "work", kinds) == 0
    kinds[0]["max_attempts"] = 3
    assert set_kinds(database, "work", kinds) == 1
    assert set_kinds(database, "work", [{"kind": "a"}]) == 1
    rows = sql.execute("select kind, retry, max_attempts, timeout from penstock.kind order by kind").fetchall()
    assert rows == [("a", None, None, None), ("b", None, None, timedelta(seconds=5))]
    assert set_kinds(database, "work", []) == 0


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "kinds",
    [
        None,
        "{}",
        "1",
        "null",
        '[{"kind": null}]',
        "[{}]",
        '[{"kind": ""}]',
        '[{"kind": "%s"}]' % ("k" * 129),
        '[{"kind": "a", "max_attempts": 0}]',
        '[{"kind": "a", "max_attempts": 32768}]',
        '[{"kind": "a", "timeout": "0"}]',
        '[{"kind": "a", "timeout": "-1 second"}]',
        '[{"kind": "a", "timeout": "3651 days"}]',
        '[{"kind": "a", "retry": {}}]',
        '[{"kind": "a", "retry": 5}]',
        '[{"kind": "a", "retry": "fixed:1m"}]',
        '[{"kind": "a", "retry": {"type": "often"}}]',
        '[{"kind": "a", "retry": {"type": "fixed", "delay": -1}}]',
        '[{"kind": "a", "retry": {"type": "fixed", "delay": "1m"}}]',
        '[{"kind": "a", "retry": {"type": "delays", "delays": []}}]',
    ],
)
def test_set_kinds_by_bare_sql_refuses_bad_values(queue: Queue, sql: Connection, kinds: str | None) -> None:
    with pytest.raises(psycopg.Error) as refused:
        sql.execute("select penstock.set_kinds('work', %s::jsonb)", (kinds,))
    assert refused.value.sqlstate == "PS400"
    assert sql.execute("select count(*) from penstock.kind").fetchone() == (0,)


def test_set_kinds_of_no_queue(database: Database, queue: Queue) -> None:
    with pytest.raises(NotFound):
        set_kinds(database, "wrok", [])
    with pytest.raises(PenstockError):
        set_kinds(database, "work", [{"kind": "a", "max_attempts": 0}])


def test_a_sync_client_where_a_loop_runs_already(app: Penstock, queue: Queue) -> None:
    """In a notebook or an async test a loop runs already, and cannot be entered twice."""
    seen: list[int] = []

    @app.task(queue="work")
    async def waiting(n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    async def main() -> dict[str, int]:
        return app.drain_inline()

    waiting.push(1)
    assert asyncio.run(main()) == {"done": 1}
    assert seen == [1]


@pytest.mark.parametrize("kinds", ["[1]", '[{"kind": "a", "max_attempts": "x"}]', '[{"kind": "a", "timeout": "soon"}]'])
def test_kinds_of_the_wrong_type_are_refused_by_sql(queue: Queue, sql: Connection, kinds: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        sql.execute("select penstock.set_kinds('work', %s::jsonb)", (kinds,))
    assert refused.value.sqlstate == "PS400"
