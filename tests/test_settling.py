"""`queue.settling`: a transaction for the caller's writes whose last statement settles a task, with both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from conftest import Clock
from penstock import (
    AsyncPenstock,
    AsyncQueue,
    Claim,
    HandlerMisuse,
    LeaseLost,
    NotFound,
    Outcome,
    PayloadTooLarge,
    Penstock,
    PenstockError,
    Queue,
    Unavailable,
    ValidationError,
)

Step = str | Callable[[Any], object]
Settle = Callable[..., None]
INSERT = "insert into effects values (1)"


@pytest.fixture(params=["sync", "async"])
def settle(request: pytest.FixtureRequest, queue: Queue, dsn: str) -> Settle:
    """Runs steps (statements or functions of the connection) and settles a task in one transaction."""

    def taken(connection: Any, step: Step) -> Any:
        return connection.execute(step.encode()) if isinstance(step, str) else step(connection)

    def sync(claim: Claim, id_: int, *steps: Step, **options: Any) -> None:
        with queue.settling(claim, id_, **options) as connection:
            for step in steps:
                taken(connection, step)

    async def main(claim: Claim, id_: int, steps: tuple[Step, ...], options: dict[str, Any]) -> None:
        async with AsyncPenstock(dsn) as client, client.queue("work").settling(claim, id_, **options) as connection:
            for step in steps:
                done = taken(connection, step)
                if inspect.isawaitable(done):
                    await done

    def asynchronous(claim: Claim, id_: int, *steps: Step, **options: Any) -> None:
        asyncio.run(main(claim, id_, steps, options))

    return sync if request.param == "sync" else asynchronous


@pytest.fixture
def effects(sql: Connection) -> Callable[[], int]:
    """Returns the number of effects."""
    sql.execute("create table effects (n int)")

    def count() -> int:
        row = sql.execute("select count(*) from effects").fetchone()
        assert row is not None
        return int(row[0])

    return count


@pytest.fixture
def claim(queue: Queue) -> Claim:
    queue.push_many([{"n": 0}, {"n": 1}])
    return queue.claim(2)


def fail(_: object) -> None:
    raise ZeroDivisionError


def asynchronously(dsn: str, act: Callable[[AsyncQueue], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn, **options) as client:
            await act(client.queue("work"))

    asyncio.run(main())


# --- both, or neither -------------------------------------------------------------------------------------------------


def test_the_write_and_the_settle_happen_together(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    settle(claim, claim.ids[0], INSERT, INSERT)
    assert effects() == 2
    assert (queue.status().active, queue.status().totals["done"]) == (1, 1)
    assert queue.settle(claim, claim.ids[1:]) == {claim.ids[1]: "done"}


def test_a_block_without_writes_settles_too(queue: Queue, claim: Claim, settle: Settle) -> None:
    settle(claim, claim.ids[0])
    assert queue.status().totals["done"] == 1


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.done(), None),
        (Outcome.again(delay="1h", payload={"n": 7}), "planned"),
        (Outcome.again(), "pending"),
        (Outcome.failed(ValueError("boom")), "planned"),
        (Outcome.dead("no"), "dead"),
        (Outcome.release(), "pending"),
    ],
)
def test_any_outcome(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int], outcome: Outcome, state: str | None
) -> None:
    id_ = claim.ids[0]
    settle(claim, id_, INSERT, outcome=lambda: outcome)
    assert effects() == 1
    found = {task.id: task for task in queue.tasks()}
    assert (found[id_].state if id_ in found else None) == state
    assert outcome.payload is None or found[id_].payload == outcome.payload


def test_the_outcome_is_asked_for_when_the_block_ends(queue: Queue, claim: Claim, clock: Clock) -> None:
    outcomes = [Outcome.done()]
    with queue.settling(claim, claim.ids[0], lambda: outcomes[-1]):
        outcomes.append(Outcome.again(delay="1h"))
    assert queue.task(claim.ids[0]).due == clock.now() + timedelta(hours=1)


def test_an_error_in_the_block_undoes_both_and_is_passed_on(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    with pytest.raises(ZeroDivisionError):
        settle(claim, claim.ids[0], INSERT, fail)
    assert effects() == 0
    assert len(queue.settle(claim)) == 2


def test_a_cancelled_block_undoes_both(queue: Queue, claim: Claim, effects: Callable[[], int], dsn: str) -> None:
    async def write(work: AsyncQueue, seconds: float) -> None:
        async with work.settling(claim, claim.ids[0]) as connection:
            await connection.execute(INSERT)
            await connection.execute("select pg_sleep(%s)", (seconds,))

    async def act(work: AsyncQueue) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write(work, 30), 0.3)
        await write(work, 0)

    asynchronously(dsn, act, max_connections=1, timeout=5)
    assert effects() == 1
    assert queue.status().totals["done"] == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("insert into nowhere values (1)", psycopg.errors.UndefinedTable),
        ("select 1 / 0", psycopg.errors.DivisionByZero),
        ("insert into effects values ('x')", psycopg.errors.InvalidTextRepresentation),
        ("nonsense", psycopg.errors.SyntaxError),
    ],
)
def test_errors_of_the_callers_statements_are_psycopgs_own(
    queue: Queue,
    claim: Claim,
    settle: Settle,
    effects: Callable[[], int],
    statement: str,
    error: type[psycopg.Error],
) -> None:
    with pytest.raises(error):
        settle(claim, claim.ids[0], INSERT, statement)
    assert effects() == 0
    assert queue.status().active == 2


def test_an_error_that_was_swallowed_settles_nothing(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    def swallow(connection: psycopg.Connection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")

    async def swallow_async(connection: psycopg.AsyncConnection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("select 1 / 0")

    def either(connection: Any) -> object:
        return (swallow_async if isinstance(connection, psycopg.AsyncConnection) else swallow)(connection)

    with pytest.raises(PenstockError, match="aborted"):
        settle(claim, claim.ids[0], INSERT, either)
    assert effects() == 0
    assert queue.status().active == 2


def test_a_constraint_that_is_checked_at_commit_undoes_both(
    queue: Queue, claim: Claim, settle: Settle, sql: Connection, effects: Callable[[], int]
) -> None:
    sql.execute("alter table effects add constraint once unique (n) deferrable initially deferred")
    with pytest.raises(PenstockError, match="once"):
        settle(claim, claim.ids[0], INSERT, INSERT)
    assert effects() == 0
    assert queue.status().active == 2


# --- lost leases ------------------------------------------------------------------------------------------------------


def test_a_task_that_was_cancelled_leaves_no_effect(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    queue.cancel(claim.ids[:1])
    with pytest.raises(LeaseLost) as lost:
        settle(claim, claim.ids[0], INSERT)
    assert (lost.value.reason, lost.value.revoked) == ("cancelled", (claim.ids[0],))
    assert effects() == 0


def test_a_lease_that_ended_leaves_no_effect(
    queue: Queue, clock: Clock, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    clock.advance(11)
    fresh = queue.claim(2, lease="1h")
    with pytest.raises(LeaseLost) as lost:
        settle(claim, claim.ids[0], INSERT)
    assert lost.value.refused == (claim.ids[0],)
    assert effects() == 0
    queue.settle(fresh)


def test_settling_twice_leaves_one_effect(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    settle(claim, claim.ids[0], INSERT)
    with pytest.raises(LeaseLost):
        settle(claim, claim.ids[0], INSERT)
    assert effects() == 1


def test_a_task_of_another_claim_leaves_no_effect(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    queue.push()
    other = queue.claim()
    with pytest.raises(NotFound, match="never in this lease"):
        settle(claim, other.ids[0], INSERT)
    assert effects() == 0
    assert queue.status().active == 3


def test_the_claim_of_another_queue_is_refused(
    app: Penstock, queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int]
) -> None:
    other = app.create_queue("other")
    other.push()
    theirs = other.claim()
    with pytest.raises(ValidationError, match="it is of queue 'other', not 'work'"):
        settle(theirs, theirs.ids[0], INSERT)
    assert effects() == 0


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ("done", ValidationError),
        (Outcome("undone"), ValidationError),
        (Outcome.again(delay=-1), ValidationError),
        (Outcome.again(payload={"text": "x" * 2_000_000}), PayloadTooLarge),
    ],
)
def test_an_outcome_that_is_refused_leaves_no_effect(
    queue: Queue,
    claim: Claim,
    settle: Settle,
    effects: Callable[[], int],
    outcome: Any,
    error: type[PenstockError],
) -> None:
    with pytest.raises(error):
        settle(claim, claim.ids[0], INSERT, outcome=lambda: outcome)
    assert effects() == 0
    assert queue.status().active == 2


# --- the block must not end the transaction ---------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "statements",
    [["commit"], ["rollback"], ["commit", "begin"], ["commit and chain"], ["rollback", INSERT]],
    ids=", ".join,
)
def test_a_block_that_ends_the_transaction_is_refused(
    queue: Queue, claim: Claim, settle: Settle, effects: Callable[[], int], statements: list[str]
) -> None:
    with pytest.raises(HandlerMisuse) as misuse:
        settle(claim, claim.ids[0], *statements)
    assert misuse.value.code == "PS2004"
    assert misuse.value.hint == "Leave it open: it is committed, with the task, at the end of the block."
    assert queue.status().active == 2
    settle(claim, claim.ids[0], INSERT)
    assert queue.status().active == 1


def test_a_block_that_closes_the_connection_is_refused(claim: Claim, dsn: str) -> None:
    with Penstock(dsn, max_connections=1, timeout=5) as client:
        work = client.queue("work")
        for _ in range(3):
            with pytest.raises(HandlerMisuse), work.settling(claim, claim.ids[0]) as connection:
                connection.close()
        with work.settling(claim, claim.ids[0]):
            """Nothing."""

    async def act(work: AsyncQueue) -> None:
        for _ in range(3):
            with pytest.raises(HandlerMisuse):
                async with work.settling(claim, claim.ids[1]) as connection:
                    await connection.close()
        async with work.settling(claim, claim.ids[1]):
            """Nothing."""

    asynchronously(dsn, act, max_connections=1, timeout=5)


def test_a_savepoint_is_allowed(queue: Queue, claim: Claim, effects: Callable[[], int], dsn: str) -> None:
    def undone(connection: psycopg.Connection) -> None:
        with connection.transaction():
            connection.execute(INSERT)
            raise ZeroDivisionError

    with queue.settling(claim, claim.ids[0]) as connection:
        with connection.transaction():
            connection.execute(INSERT)
        with pytest.raises(ZeroDivisionError):
            undone(connection)

    async def act(work: AsyncQueue) -> None:
        async with work.settling(claim, claim.ids[1]) as connection, connection.transaction():
            await connection.execute(INSERT)

    asynchronously(dsn, act)
    assert effects() == 2
    assert queue.status().totals["done"] == 2


def cutting(sql: Connection) -> Step:
    """Returns a step that cuts the connection."""
    return lambda connection: sql.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,)) and None


def test_a_connection_that_breaks_in_the_block_is_psycopgs_error(
    queue: Queue, claim: Claim, settle: Settle, sql: Connection, effects: Callable[[], int]
) -> None:
    with pytest.raises(psycopg.OperationalError):
        settle(claim, claim.ids[0], INSERT, cutting(sql), INSERT)
    assert effects() == 0
    assert len(queue.settle(claim)) == 2


def test_a_connection_that_breaks_before_the_settle_is_ours(
    queue: Queue, claim: Claim, settle: Settle, sql: Connection, effects: Callable[[], int]
) -> None:
    with pytest.raises(Unavailable):
        settle(claim, claim.ids[0], INSERT, cutting(sql))
    assert effects() == 0
    assert len(queue.settle(claim)) == 2


def test_rows_in_another_shape_do_not_reach_the_next_borrower(claim: Claim, dsn: str) -> None:
    """All blocks use the same connection."""

    def block(work: Queue, id_: int, *, wrong: bool) -> None:
        with work.settling(claim, id_) as connection:
            mine: Any = connection
            mine.row_factory = dict_row
            mine.cursor_factory = psycopg.ClientCursor
            assert mine.execute("select 1 as n").fetchone() == {"n": 1}
            if wrong:
                raise ZeroDivisionError

    with Penstock(dsn, max_connections=1) as client:
        work = client.queue("work")
        block(work, claim.ids[0], wrong=False)
        assert work.status().totals["done"] == 1
        with pytest.raises(ZeroDivisionError):
            block(work, claim.ids[1], wrong=True)
        assert work.status().active == 1


def test_a_rehearsal_leaves_neither(queue: Queue, claim: Claim, effects: Callable[[], int], dsn: str) -> None:
    with (
        Penstock(dsn, rehearse=True) as client,
        client.queue("work").settling(claim, claim.ids[0]) as connection,
    ):
        connection.execute(INSERT)
    assert effects() == 0
    assert queue.status().active == 2


def test_a_full_pool_says_so_before_anything_is_written(queue: Queue, claim: Claim, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        async with work.settling(claim, claim.ids[0]):
            with pytest.raises(Unavailable, match="all 1 connections stayed busy"):
                async with lent_again(work, claim):
                    raise AssertionError

    asynchronously(dsn, act, max_connections=1, timeout=0.2)
    assert queue.status().totals["done"] == 1


def lent_again(work: AsyncQueue, claim: Claim) -> AbstractAsyncContextManager[Any]:
    return work.settling(claim, claim.ids[1])
