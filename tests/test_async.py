"""The async client on a real database: every verb, and what is special in asyncio: cancellation and event loops."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from conftest import Clock
from penstock import (
    AsyncPenstock,
    AsyncQueue,
    AuthError,
    ConfigError,
    Conflict,
    LeaseLost,
    NewTask,
    NotFound,
    Outcome,
    PayloadError,
    Penstock,
    Queue,
    SchemaVersionError,
    Unavailable,
    ValidationError,
)
from workers import eventually

T = TypeVar("T")


def run(dsn: str, act: Callable[[AsyncQueue], Awaitable[T]], **options: Any) -> T:
    """Runs `act` with the queue `work` in an event loop of its own."""

    async def main() -> T:
        async with AsyncPenstock(dsn, **options) as client:
            return await act(client.queue("work"))

    return asyncio.run(main())


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_a_task_is_pushed_claimed_and_settled(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        pushed = await work.push({"to": "ann"}, subject="mail:1", kind="send", priority=3)
        assert (pushed.result, pushed.state) == ("created", "pending")
        assert (await work.push(subject="mail:1")).result == "skipped"
        with pytest.raises(Conflict, match="'mail:1' is taken"):
            await work.push(subject="mail:1", on_conflict="error")
        claim = await work.claim(10, worker="w1")
        (task,) = claim.tasks
        assert (task.id, task.kind, task.payload, task.attempt) == (pushed.id, "send", {"to": "ann"}, 1)
        extended = await work.extend(claim, lease="1m")
        assert claim.until is not None
        assert extended.until > claim.until
        assert await work.settle(claim) == {task.id: "done"}
        assert (await work.status()).totals["done"] == 1

    run(dsn, act)


async def numbered(count: int) -> AsyncIterator[dict[str, int]]:
    for n in range(count):
        await asyncio.sleep(0)
        yield {"n": n}


def test_push_many_takes_any_iterable(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        seen: list[int] = []
        assert (await work.push_many([{"n": 0}, None, NewTask({"n": 2})])).created == 3
        assert (await work.push_many(({"n": n} for n in range(12_000)), progress=seen.append)).created == 12_000
        assert seen == [10_000, 12_000]
        assert (await work.push_many(numbered(777))).created == 777
        assert (await work.push_many([])).total == (await work.push_many(numbered(0))).total == 0

    run(dsn, act)
    assert queue.status().pending == 3 + 12_000 + 777


def test_a_bad_item_names_its_index_and_nothing_is_written(queue: Queue, dsn: str) -> None:
    async def broken() -> AsyncIterator[Any]:
        async for item in numbered(123):
            yield item
        yield {"bad": object()}

    async def failing() -> AsyncIterator[Any]:
        async for item in numbered(60):
            yield item
        raise ZeroDivisionError

    async def act(work: AsyncQueue) -> None:
        with pytest.raises(PayloadError, match=r"^item 123: payload\.bad"):
            await work.push_many(broken())
        with pytest.raises(ValidationError, match=r"^item 1: priority"):
            await work.upsert_many([NewTask(), NewTask(priority=101)])
        with pytest.raises(ZeroDivisionError):
            await work.push_many(failing())

    run(dsn, act)
    assert queue.status().totals["pushed"] == 0


def test_a_repeated_batch_doubles_nothing(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        for items in ([{"n": n} for n in range(10)], [NewTask({"n": n}, f"s{n}") for n in range(10)]):
            batch = uuid4()
            first = await work.push_many(items, batch_id=batch)
            assert await work.push_many(items, batch_id=batch) == first
            with pytest.raises(Conflict, match="other content"):
                await work.push_many(items[:-1], batch_id=batch)

    run(dsn, act)
    assert queue.status().pending == 20


def test_upsert_many(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        await work.push_many([NewTask({"n": 1}, "a"), NewTask({"n": 1}, "b")])
        claim = await work.claim(1)
        report = await work.upsert_many(NewTask({"n": 2}, subject) for subject in ("a", "b", "c", "c"))
        assert (report.renewed, report.updated, report.created, report.superseded) == (1, 1, 1, 1)
        await work.settle(claim)
        assert [task.payload for task in (await work.claim(10)).tasks] == [{"n": 2}] * 3

    run(dsn, act)


def test_strict_pushes_and_taken_subjects(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        await work.push(subject="s00007")
        items = [NewTask({}, f"s{n:05}") for n in range(10_500)]
        with pytest.raises(Conflict, match=r"^item 7: subject 's00007' is taken"):
            await work.push_many(items, on_conflict="error")
        assert (await work.status()).pending == 1
        report = await work.push_many(items)
        assert (report.created, report.skipped) == (10_499, 1)

    run(dsn, act)


def test_a_lost_lease_is_told(queue: Queue, dsn: str, clock: Clock) -> None:
    async def act(work: AsyncQueue) -> None:
        await work.push()
        stale = await work.claim()
        clock.advance(11)
        fresh = await work.claim()
        assert fresh.ids == stale.ids
        for verb in (work.settle, work.extend, work.release):
            with pytest.raises(LeaseLost):
                await verb(stale)
        assert await work.release(fresh, delay="1h") == {fresh.ids[0]: "planned"}
        assert (await work.status()).planned == 1

    run(dsn, act)


def test_each_outcome(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        await work.push_many([{}] * 5)
        claim = await work.claim(5)
        outcomes = (
            Outcome.done(),
            Outcome.again(delay="1h"),
            Outcome.failed(ValueError("boom")),
            Outcome.dead("no"),
            Outcome.release(),
        )
        settled = await work.settle(claim, dict(zip(claim.ids, outcomes, strict=True)))
        assert [*settled.values()].count("planned") == 2
        assert {*settled.values()} == {"done", "planned", "dead", "pending"}

    run(dsn, act)


def test_verbs_on_existing_tasks(queue: Queue, dsn: str, clock: Clock) -> None:
    later = clock.now() + timedelta(hours=1)

    async def act(work: AsyncQueue) -> None:
        ids = [(await work.push({"n": n}, subject=f"s{n}")).id for n in range(4)]
        assert await work.reschedule(later, [ids[0]]) == {ids[0]: "rescheduled"}
        assert await work.reprioritise(1, subjects=["s1"]) == {ids[1]: "reprioritised"}
        assert await work.cancel([ids[2]]) == {ids[2]: "cancelled"}
        assert [one.state for one in await work.tasks()] == ["planned", "pending", "cancelled", "pending"]
        one = await work.task(ids[0])
        assert (one.due, one.subject, one.payload) == (later, "s0", {"n": 0})
        with pytest.raises(NotFound):
            await work.task(10**9)

        claim = await work.claim(1)
        assert claim.ids == [ids[1]]
        await work.settle(claim, {ids[1]: Outcome.dead("x")})
        assert await work.redrive(kind="default") == {ids[1]: "redriven"}
        assert await work.purge("cancelled") == 1
        await work.pause()
        assert (await work.settings()).paused
        assert not await work.claim(10)
        await work.resume()
        assert (await work.set(lease="20s")).lease == timedelta(seconds=20)
        with pytest.raises(Conflict):
            await work.drop()
        assert await work.drop(force=True) == 3

    run(dsn, act)


def test_status_and_verify(app: Penstock, queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            assert repr(client).startswith("<AsyncPenstock <AsyncDatabase test_")
            other = await client.create_queue("other", lease="5s")
            assert await client.create_queue("other", exist_ok=True) is other
            await other.push()
            assert [one.queue for one in await client.queues()] == ["other", "work"]
            assert [one.pending for one in await client.status()] == [1, 0]
            assert (await client.verify()).ok
            assert (await other.verify()).ok
            assert await client.repair() == []
            assert isinstance(await client.upkeep(), dict)
            assert [*await client.beat("w1", ["work"], slots=4)] == ["work"]
            assert await client.init() == await client.plan() == []

    asyncio.run(main())


def test_init_on_an_empty_database(make_database: Callable[..., str]) -> None:
    async def main() -> None:
        async with AsyncPenstock(make_database("template0")) as client:
            with pytest.raises(SchemaVersionError) as missing:
                await client.status()
            assert "penstock init" in (missing.value.hint or "")
            assert await client.plan() == await client.init()
            await (await client.create_queue("work")).push()

    asyncio.run(main())


# --- many at once -----------------------------------------------------------------------------------------------------


def test_fifty_tasks_share_a_client(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        await asyncio.gather(*(work.push_many([{"n": n}] * 20) for n in range(50)))
        seen: list[int] = []

        async def drain() -> None:
            while claim := await work.claim(20):
                seen.extend(claim.ids)
                await work.settle(claim)

        await asyncio.gather(*(drain() for _ in range(50)))
        assert len(seen) == len({*seen}) == 1_000

    run(dsn, act)
    assert queue.status().totals["done"] == 1_000


def test_a_busy_pool_says_so(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        async with work._database.transaction():
            with pytest.raises(Unavailable, match="all 1 connections stayed busy") as busy:
                await work.push()
        assert busy.value.reason == "pool"
        await work.push()

    run(dsn, act, max_connections=1, timeout=0.2)


# --- cancellation -----------------------------------------------------------------------------------------------------


@contextmanager
def locked(dsn: str, table: str) -> Iterator[None]:
    """Locks a table for five seconds at most: a cancel that comes before its statement is lost, and PostgreSQL still
    waits."""
    connection = psycopg.connect(dsn, options="-c idle_in_transaction_session_timeout=5000")
    connection.execute(f"lock table penstock.{table} in access exclusive mode".encode())
    try:
        yield
    finally:
        connection.close()


async def all_connections_work(work: AsyncQueue, count: int) -> None:
    """Checks that the pool has lost no connection: all of them hold a transaction at the same time."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            connection = await stack.enter_async_context(work._database.transaction())
            assert await (await connection.execute("select 1")).fetchone() == (1,)


Verb = Callable[[AsyncQueue], Awaitable[object]]
VERBS: dict[str, Verb] = {
    "push": lambda work: work.push(subject="s"),
    "copy": lambda work: work.push_many([{}] * 11_000),
    "parts": lambda work: work.push_many([NewTask({}, f"s{n}") for n in range(100)]),
    "upsert": lambda work: work.upsert_many([NewTask({}, f"s{n}") for n in range(100)]),
    "claim": lambda work: work.claim(10),
}


@pytest.mark.parametrize("name", VERBS)
def test_cancelled_in_the_middle(queue: Queue, dsn: str, name: str) -> None:
    """Calls are cancelled while another session holds a lock, more often than the pool has connections."""
    verb = VERBS[name]

    async def cancelled(work: AsyncQueue) -> bool:
        """Whether the call was cancelled. A cancel that comes before its statement is lost, and the call succeeds."""
        with locked(dsn, "agenda"), suppress(TimeoutError):
            await asyncio.wait_for(verb(work), 0.1)
            return False
        return True

    async def act(work: AsyncQueue) -> None:
        found = [await cancelled(work) for _ in range(5)]
        assert any(found)
        await all_connections_work(work, 2)
        status = await work.status()
        if all(found):
            assert (status.pending, status.active, status.totals["pushed"]) == (0, 0, 0)
        await verb(work)

    run(dsn, act, max_connections=2, timeout=5)
    assert queue.verify().ok


def test_a_cancelled_push_leaves_the_callers_transaction_open(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as mine:
            with locked(dsn, "agenda"), pytest.raises(TimeoutError):
                await asyncio.wait_for(work.push(connection=mine), 1.0)
            assert mine.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            await mine.rollback()
            await work.push(connection=mine)

    run(dsn, act)
    assert queue.status().pending == 1


def test_a_storm_of_cancellations_loses_no_connection(queue: Queue, dsn: str) -> None:
    chance = random.Random(7)

    async def one(work: AsyncQueue) -> bool:
        try:
            await asyncio.wait_for(work.push(), chance.uniform(0, 0.05))
        except TimeoutError:
            return False
        return True

    async def act(work: AsyncQueue) -> int:
        await work.status()
        kept = 0
        for _ in range(6):
            kept += sum(await asyncio.gather(*(one(work) for _ in range(40))))
        await all_connections_work(work, 4)
        return kept

    kept = run(dsn, act, max_connections=4, timeout=20)
    assert kept <= queue.status().pending <= 240, "pushes that were confirmed are there, the others may be"


def test_cancelled_while_connecting(queue: Queue, dsn: str) -> None:
    async def act(work: AsyncQueue) -> None:
        for delay in (0, 0.0001, 0.001, 0.003, 0.01):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(work.push() for _ in range(200))), delay)
        await all_connections_work(work, 8)

    run(dsn, act)
    # psycopg leaves the socket of a cancelled connect to the garbage collector. Until then PostgreSQL waits for the
    # password, and every DROP DATABASE of the cluster waits too: for a minute.
    gc.collect()


# --- event loops and processes ----------------------------------------------------------------------------------------


def connections(sql: Connection) -> int:
    row = sql.execute(
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name = 'penstock' and pid <> pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_one_client_in_one_event_loop_after_another(
    queue: Queue, dsn: str, sql: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Each loop has a pool of its own, and the pools of closed loops do not pile up."""
    # A captured record of a cancelled connect would keep its traceback, and so its connection, alive.
    caplog.set_level(logging.CRITICAL, logger="psycopg.pool")
    client = AsyncPenstock(dsn, max_connections=3)
    work = client.queue("work")
    before = connections(sql)

    async def main() -> None:
        await asyncio.gather(*(work.push() for _ in range(20)))

    for _ in range(8):
        asyncio.run(main())
    gc.collect()
    assert len(client._database._homes) == 1
    until = time.monotonic() + 20  # PostgreSQL takes a moment to end sessions whose sockets are closed
    while connections(sql) - before > 3:
        assert time.monotonic() < until
        time.sleep(0.05)
        gc.collect()  # it closes the connections of cancelled connects
    assert queue.status().pending == 160

    async def last() -> None:
        await work.push()
        await client.close()

    asyncio.run(last())
    assert client._database._homes.keys() == {place for place in client._database._homes if place[1].is_closed()}


@pytest.mark.usefixtures("queue")
@pytest.mark.timeout(60)
def test_a_loop_that_ends_while_connections_are_made_does_end(dsn: str) -> None:
    """The client is never closed: a pool takes a cancellation for an error of the server, and tries again."""

    async def main(client: AsyncPenstock, after: float) -> None:
        pushes = [asyncio.create_task(client.queue("work").push()) for _ in range(20)]
        await asyncio.wait(pushes, timeout=after)

    for n in range(60):
        asyncio.run(main(AsyncPenstock(dsn, max_connections=3), n % 20 / 500))
    gc.collect()


def test_one_client_in_two_event_loops_at_once(queue: Queue, dsn: str) -> None:
    client = AsyncPenstock(dsn, max_connections=2)
    work = client.queue("work")
    pools: list[int] = []

    async def main() -> None:
        for _ in range(10):
            await asyncio.gather(*(work.push() for _ in range(5)))
        pools.append(id(await client._database._open_pool()))
        await client.close()

    threads = [threading.Thread(target=asyncio.run, args=[main()]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*pools}) == 3
    assert queue.status().pending == 150


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(queue: Queue, dsn: str) -> None:
    client = AsyncPenstock(dsn)
    work = client.queue("work")

    async def push() -> int:
        await work.push()
        return (await work.status()).pending

    with asyncio.Runner() as runner:
        assert runner.run(push()) == 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if asyncio.run(push()) == 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert runner.run(push()) == 3
        runner.run(client.close())


def test_closing(queue: Queue, dsn: str, sql: Connection) -> None:
    async def main() -> None:
        client = AsyncPenstock(dsn)
        await client.close()
        async with client:
            await client.queue("work").push()
            await client.close()
        await client.close()
        await client.queue("work").push()  # the pool opens again
        await client.close()

    before = connections(sql)
    asyncio.run(main())
    eventually(lambda: connections(sql) == before)  # PostgreSQL notices a little later
    assert queue.status().pending == 2


def test_closed_while_a_call_waits(queue: Queue, dsn: str) -> None:
    async def main() -> None:
        client = AsyncPenstock(dsn, max_connections=1, timeout=5)
        async with client._database.transaction():
            waiting = asyncio.create_task(client.queue("work").push())
            await asyncio.sleep(0.1)
            await client.close()
            with pytest.raises(Unavailable, match="closed meanwhile"):
                await waiting

    asyncio.run(main())


# --- no connection ----------------------------------------------------------------------------------------------------


def test_no_connection_can_be_made(dsn: str) -> None:
    cases: list[tuple[str, type[Exception]]] = [
        (make_conninfo(dsn, host="127.0.0.1", port=1), Unavailable),
        (make_conninfo(dsn, user="penstock_missing", password="wrong"), AuthError),
        (make_conninfo(dsn, dbname="no_such_database"), ConfigError),
        ("postgresql://me:p@ss@host/db", ConfigError),
        ("no dsn at all", ConfigError),
    ]

    async def main(target: str, error: type[Exception]) -> None:
        async with AsyncPenstock(target, timeout=1) as client:
            for act in (client.status, client.queue("work").push, client.verify):
                with pytest.raises(error) as refused:
                    await act()
                assert refused.type is error, refused.value
                assert "wrong" not in str(refused.value)

    for target, error in cases:
        asyncio.run(main(target, error))


def test_an_idle_connection_that_was_cut_is_replaced(queue: Queue, dsn: str, sql: Connection) -> None:
    async def act(work: AsyncQueue) -> None:
        await work.push()
        sql.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        await work.push()

    run(dsn, act)
    assert queue.status().pending == 2


# --- sync and async ---------------------------------------------------------------------------------------------------


def shape(kind: type) -> dict[str, str]:
    """Returns the public names and their signatures, with the names of the sync client."""
    found = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") and name not in ("__init__", "__enter__", "__exit__", "__aenter__", "__aexit__"):
            continue
        said = str(inspect.signature(member)) if callable(member) else "property"
        found[name.replace("__a", "__")] = said.replace("Async", "")
    return found


@pytest.mark.parametrize(("one", "other"), [(Penstock, AsyncPenstock), (Queue, AsyncQueue)])
def test_both_clients_have_the_same_methods(one: type, other: type) -> None:
    assert shape(one) == shape(other)
    ordinary = {"queue", "dsn", "dsn_source", "name", "settling", "look_afresh"}
    ordinary |= {
        "task",
        "schedule",
        "middleware",
        "on_start",
        "on_stop",
        "on_settled_dead",
        "run_worker",
        "work",
        "scale",
    }
    for name, member in inspect.getmembers(other, inspect.isfunction):
        if not name.startswith("_") and name not in ordinary:
            assert inspect.iscoroutinefunction(member), name
