"""Outcomes that a handler returns or raises inside and after the block of `transaction()`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from penstock import AsyncContext, AsyncPenstock, Context, HandlerMisuse, NewTask, Outcome, Penstock, Queue
from workers import ends, work

Drain = Callable[..., dict[str, int]]
INSERT = "insert into effects values (1)"


@pytest.fixture(params=["sync", "async"])
def drain(request: pytest.FixtureRequest, app: Penstock, dsn: str) -> Drain:
    async def main(options: dict[str, Any]) -> dict[str, int]:
        async with AsyncPenstock(dsn) as client:
            client.registry = app.registry
            return await client.drain_inline(**options)

    def drained(**options: Any) -> dict[str, int]:
        return app.drain_inline(**options) if request.param == "sync" else asyncio.run(main(options))

    return drained


@pytest.fixture
def effects(sql: Connection) -> Callable[[], int]:
    sql.execute("create table effects (n int primary key)")
    return lambda: len(sql.execute("select from effects").fetchall())


SAID: dict[str, tuple[Callable[[Any], Outcome], dict[str, int], str]] = {
    "dead": (lambda context: context.dead("no such customer"), {"dead": 1}, "dead"),
    "failed": (lambda context: context.failed(LookupError("gone"), delay="1h"), {"planned": 1}, "failed"),
    "failed, a text": (lambda context: context.failed("gone", delay="1h"), {"planned": 1}, "failed"),
    "release": (lambda context: context.release(delay="1h"), {"planned": 1}, "released"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("said", SAID)
def test_a_failure_in_the_block_undoes_it_and_is_settled(
    app: Penstock, queue: Queue, drain: Drain, sql: Connection, effects: Callable[[], int], said: str
) -> None:
    say, states, outcome = SAID[said]

    @app.task(queue="work")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            connection.execute(INSERT)
            say(context)

    @app.task(queue="work")
    async def write_async(context: AsyncContext) -> object:
        async with context.transaction() as connection:
            await connection.execute(INSERT)
            return say(context)

    for handler in (write, write_async):
        handler.push()
        assert drain() == states
        assert effects() == 0
    assert {end.outcome for end in ends(sql)} == {outcome}


def test_done_and_again_commit_as_ever(app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int]) -> None:
    @app.task(queue="work")
    def write(context: Context) -> Outcome:
        with context.transaction() as connection:
            connection.execute(INSERT)
            return context.again(delay="1h")

    write.push()
    assert drain() == {"planned": 1}
    assert effects() == 1


def test_in_a_transaction_that_an_error_has_aborted(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int]
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> None:
        with context.transaction() as connection:
            connection.execute(INSERT)
            try:
                connection.execute(INSERT)
            except psycopg.errors.UniqueViolation:
                context.dead("it was charged before")

    write.push()
    assert drain() == {"dead": 1}
    assert effects() == 0
    (task,) = queue.tasks(state="dead")
    assert task.reason == "it was charged before"


def test_without_a_block_they_count_when_the_handler_returns(app: Penstock, queue: Queue, drain: Drain) -> None:
    @app.task(queue="work")
    def give_up(context: Context) -> None:
        context.dead("no such customer")

    @app.task(queue="work")
    def raise_after_all(context: Context) -> None:
        context.dead("no such customer")
        raise ValueError("boom")

    give_up.push()
    assert drain() == {"dead": 1}
    raise_after_all.push()
    assert drain(raise_errors=False) == {"planned": 1}


@pytest.mark.parametrize("bad", ["", None, 7])
def test_a_reason_is_a_text(app: Penstock, queue: Queue, bad: Any) -> None:
    @app.task(queue="work")
    def give_up(context: Context) -> None:
        context.dead(bad)

    give_up.push()
    with pytest.raises(ValueError, match=r"^reason: "):
        app.drain_inline()


RETURNED = [Outcome.dead("x"), Outcome.failed("x"), Outcome.release(), Outcome.again(delay="1h")]


@pytest.mark.sample(4)
@pytest.mark.parametrize("returned", RETURNED, ids=[one.word for one in RETURNED])
def test_an_outcome_returned_after_the_commit_is_misuse(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int], returned: Outcome
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> Outcome:
        with context.transaction() as connection:
            connection.execute(INSERT)
            return returned

    @app.task(queue="work")
    async def write_async(context: AsyncContext) -> Outcome:
        async with context.transaction() as connection:
            await connection.execute("insert into effects values (2)")
        return returned

    for handler in (write, write_async):
        handler.push()
        with pytest.raises(HandlerMisuse) as misuse:
            drain()
        assert misuse.value.hint is not None
        assert all(name in misuse.value.hint for name in ("context.dead", "context.failed", "context.release"))
    assert effects() == 2, "the commit stays"
    assert queue.status().totals["done"] == 2


@pytest.mark.sample(4)
@pytest.mark.parametrize("word", ["dead", "failed", "release", "again"])
def test_an_outcome_made_inside_the_block_is_refused_before_the_commit(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int], word: str
) -> None:
    def made() -> Outcome:
        return Outcome.release() if word == "release" else getattr(Outcome, word)(*["x"] * (word != "again"))

    @app.task(queue="work")
    def write(context: Context) -> Outcome:
        with context.transaction() as connection:
            connection.execute(INSERT)
            return made()

    @app.task(queue="work")
    async def write_async(context: AsyncContext) -> Outcome:
        async with context.transaction() as connection:
            await connection.execute(INSERT)
            return made()

    for handler in (write, write_async):
        pushed = handler.push()
        with pytest.raises(HandlerMisuse, match=rf"Outcome\.{word} inside transaction") as misuse:
            drain()
        assert misuse.value.hint is not None
        assert f"context.{word}(" in misuse.value.hint
        assert queue.task(pushed.id).attempts == 1
    assert effects() == 0
    made()  # outside of a block it is allowed


def test_it_is_logged_where_errors_are_not_raised(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> Outcome:
        with context.transaction():
            return RETURNED[0]

    pushed = write.push()
    with caplog.at_level(logging.ERROR, "penstock.worker"):
        assert drain(raise_errors=False) == {"done": 1}
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    facts = vars(record)
    assert (facts["task"], facts["queue"], facts["kind"]) == (pushed.id, "work", "write")
    assert facts["error_class"] == "HandlerMisuse"


def test_the_same_outcome_again_is_fine(app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int]) -> None:
    @app.task(queue="work")
    def write(context: Context) -> Outcome:
        with context.transaction():
            pass
        return Outcome.done()

    @app.task(queue="work")
    def give_up(context: Context) -> Outcome:
        with context.transaction():
            context.dead("x")
        return Outcome.dead("x")

    write.push()
    assert drain() == {"done": 1}
    give_up.push()
    assert drain() == {"dead": 1}


def test_an_outcome_after_the_block_comes_too_late(
    app: Penstock, queue: Queue, drain: Drain, effects: Callable[[], int]
) -> None:
    @app.task(queue="work")
    def write(context: Context) -> None:
        with context.transaction():
            pass
        context.dead("x")

    @app.task(queue="work")
    def give_up(context: Context) -> None:
        with context.transaction():
            context.dead("x")
        context.release()

    write.push()
    with pytest.raises(HandlerMisuse):
        drain()
    assert queue.status().totals["done"] == 1
    give_up.push()
    with pytest.raises(HandlerMisuse):
        drain()
    assert queue.status().dead == 1, "the outcome in the block stays"


WORKER = """
@app.task(queue="work")
def late(context: Context):
    gone = Outcome.dead("x")
    with context.transaction() as connection:
        connection.execute("insert into effects values (1)")
        return gone

@app.task(queue="work", run="process")
def late_in_process(context: Context):
    with context.transaction() as connection:
        connection.execute("insert into effects values (2)")
    return Outcome.release()

@app.task(queue="work")
async def late_async(context: AsyncContext):
    async with context.transaction() as connection:
        await connection.execute("insert into effects values (3)")
    return Outcome.dead("x")

@app.task(queue="work")
def said(context: Context):
    with context.transaction() as connection:
        connection.execute("insert into effects values (4)")
        return context.dead("said")

@app.task(queue="work", run="process")
def said_in_process(context: Context):
    with context.transaction() as connection:
        connection.execute("insert into effects values (5)")
        context.dead("said")

@app.task(queue="work")
async def said_async(context: AsyncContext):
    async with context.transaction() as connection:
        await connection.execute("insert into effects values (6)")
        context.dead("said")

@app.task(queue="work", max_attempts=1)
def inside(context: Context):
    with context.transaction() as connection:
        connection.execute("insert into effects values (7)")
        return Outcome.dead("x")

@app.on_settled_dead
def bury(task, error):
    note("dead", task.kind, error)
"""


def test_in_a_worker(queue: Queue, dsn: str, sql: Connection, effects: Callable[[], int], tmp_path: Path) -> None:
    late, said = ["late", "late_in_process", "late_async"], ["said", "said_in_process", "said_async"]
    queue.push_many([NewTask(kind=kind) for kind in (*late, *said, "inside")])
    ran = work(tmp_path, dsn, WORKER, "--log-format", "json")
    assert ran.code == 0, ran.err
    assert (ran.json["done"], ran.json["dead"]) == (3, 4)
    assert {(end.kind, end.outcome) for end in ends(sql)} == {
        *((kind, "done") for kind in late),
        *((kind, "dead") for kind in (*said, "inside")),
    }
    (failed,) = [task for task in queue.tasks(state="dead") if task.kind == "inside"]
    assert (failed.error_class, failed.reason) == ("HandlerMisuse", "attempts spent")
    assert effects() == 3
    events = [json.loads(line) for line in ran.err.splitlines() if line.startswith("{")]
    errors = {one["kind"]: one for one in events if one["level"] == "error"}
    assert errors.keys() == {*late}, ran.err
    for error in errors.values():
        assert (error["queue"], error["error_class"]) == ("work", "HandlerMisuse")
        assert isinstance(error["task"], int)
        assert "context.dead" in error["hint"]
    noted = {line.partition(" ")[2] for line in (tmp_path / "effects").read_text("utf-8").splitlines()}
    assert {line for line in noted if line.endswith(" said")} == {f"dead {kind} said" for kind in said}


# --- the session of a handler -----------------------------------------------------------------------------------------


def test_a_session_goes_back_to_the_pool_as_it_was(dsn: str, queue: Queue, sql: Connection) -> None:
    """One connection is used again and again: our prepared statements stay, the changes of handlers do not."""
    with Penstock(dsn, max_connections=1) as app:

        @app.task(queue="work")
        def leave_traces(n: int, context: Context) -> None:
            with context.transaction() as connection:
                connection.execute("set search_path = nowhere")
                connection.execute("create temporary table traces (n int)")
                connection.execute("select pg_advisory_lock(4711)")
                connection.execute("declare left_open cursor with hold for select 1")
                if n == 2:
                    connection.execute("prepare again as select 1")

        for n in range(5):
            leave_traces.push(n=n)
            assert app.drain_inline() == {"done": 1}
    assert sql.execute("select pg_try_advisory_lock(4711)").fetchone() == (True,)
