"""A connection that still acknowledges TCP but does not answer: behind a hung proxy, only a deadline notices."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from penstock import NewTask, Queue, Unavailable
from penstock.client.database import Database
from penstock.client.database_async import AsyncDatabase
from proxy import Lane
from workers import eventually, free_port, probe, working


def select(database: Database) -> list[tuple[object, ...]]:
    with database.transaction() as connection:
        return connection.execute("select 1").fetchall()


async def select_async(database: AsyncDatabase) -> list[tuple[object, ...]]:
    async with database.transaction() as connection:
        return await (await connection.execute("select 1")).fetchall()


def test_a_statement_that_is_not_answered_fails(dsn: str, queue: Queue, lane: Lane) -> None:
    database = Database(lane.dsn(dsn), deadline=3.0)
    try:
        assert select(database) == [(1,)]
        lane.hang()
        for ask in (lambda: select(database), lambda: database.once("select 1", ())):
            began = time.monotonic()
            with pytest.raises(Unavailable) as late:
                ask()
            assert time.monotonic() - began < 30
            assert late.value.reason in ("deadline", "unreachable"), "its connection hangs, or no new one can be opened"
        lane.heal()
        assert select(database) == [(1,)]
    finally:
        database.close()


def test_a_new_connection_that_answers_no_statement_fails(dsn: str, queue: Queue, lane: Lane) -> None:
    """The first statements of a client and of a connection have the same deadline as all others do."""
    database = Database(lane.dsn(dsn), deadline=3.0)
    try:
        for reasons in (("deadline",), ("deadline", "pool")):  # the second time there is a pool, without connections
            lane.hang_statements()
            late: Future[str] = Future()
            threading.Thread(target=lambda told=late: told.set_result(failure(database)), daemon=True).start()
            assert late.result(60) in reasons
            lane.heal()
            assert select(database) == [(1,)]
            lane.reset()
    finally:
        database.close()


def failure(database: Database) -> str:
    """Runs a statement that must fail, and returns the reason."""
    with pytest.raises(Unavailable) as late:
        select(database)
    return late.value.reason


def test_the_same_in_asyncio(dsn: str, queue: Queue, lane: Lane) -> None:
    async def run() -> str:
        database = AsyncDatabase(lane.dsn(dsn), deadline=3.0)
        assert await select_async(database) == [(1,)]
        lane.hang()
        with pytest.raises(Unavailable) as late:
            await select_async(database)
        lane.heal()
        assert await select_async(database) == [(1,)]
        await database.close()
        return late.value.reason

    assert asyncio.run(run()) == "deadline"


SLOW = """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")
"""


def test_a_worker_goes_on_by_new_connections(dsn: str, queue: Queue, lane: Lane, tmp_path: Path) -> None:
    """All its connections hang, but new connections get through."""
    with working(tmp_path, lane.dsn(dsn), SLOW, "--concurrency", "2") as worker:
        queue.push_many([NewTask({"n": n}, kind="waits") for n in range(4)])
        eventually(lambda: len(worker.noted) == 2)
        lane.hang_present()
        worker.allow()
        eventually(lambda: queue.status().totals["done"] == 4, within=90)
        assert any(one["event"] == "database lost" and one["reason"] == "deadline" for one in worker.events)


def test_the_probe_tells_of_a_process_that_reaches_nothing(dsn: str, queue: Queue, lane: Lane, tmp_path: Path) -> None:
    """Only the runner's connections hang; the supervisor's beats and its searches for work get through."""
    port = free_port()
    with working(tmp_path, lane.dsn(dsn), SLOW, "--health", str(port), "--silence", "2") as worker:
        eventually(lambda: probe(port)[0] == 200)
        (runner,) = worker.runners
        lane.hang_process(runner)
        queue.push({"n": 1}, kind="waits")
        status, told = eventually(lambda: found if (found := probe(port))[0] != 200 else None, within=90)  # type: ignore[misc]
        assert (status, told["silent"], told["database"]) == (503, [], True)
        assert [name.split(":")[-1] for name in told["stalled"]] == [str(runner)]
        worker.allow()
        lane.heal()
        eventually(lambda: queue.status().totals["done"] == 1, within=90)
        eventually(lambda: probe(port)[0] == 200)
        assert worker.stop() == 0
