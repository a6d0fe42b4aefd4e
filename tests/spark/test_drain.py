"""Executors drain queues and adopted tables: everything runs once, even if handlers fail and processes end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Conflict, NewTask, NotFound, Outcome, Penstock, Queue, Task, ValidationError
from penstock.spark import drain, drain_backlog
from penstock.spark.drain import split_limit


def counted(frame: DataFrame) -> Counter[str]:
    return Counter({row.outcome: row["count"] for row in frame.groupBy("outcome").count().collect()})


nothing = print  # takes a task, returns nothing


def test_what_becomes_of_each(spark: SparkSession, app: Penstock, queue: Queue, dsn: str) -> None:
    """Done, failed, dead, again and released: each is reported as history has it, and settled as reported."""
    queue.set(retry="fixed:1h", max_attempts=2)
    queue.push_many([NewTask({"n": n}, f"s{n}", kind=f"k{n % 2}") for n in range(60)])

    def handle(task: Task) -> Outcome | None:
        n = task.payload["n"]
        if n == 1:
            raise ValueError("no\x00 good \ud800")
        if n == 2:
            return Outcome.dead("never")
        if n == 3:
            return Outcome.again(delay="1h", payload={"n": 100})
        if n == 4:
            return Outcome.release(delay="1h")
        if n == 5:
            raise SystemExit(3)
        if n == 6:
            return Outcome.again(delay="1h", payload={"large": "x" * 2_000_000})  # larger than the queue accepts
        if n == 7:
            return {"not json"}  # type: ignore[return-value]
        return None

    frame = drain(spark, "work", handle, dsn=dsn, partitions=2, batch=7)
    assert queue.status().pending == 0, "it ran when it was called, not when the result is read"
    rows = {row.subject: row for row in frame.collect()}
    assert len(rows) == 60
    words = {
        "s1": "failed",
        "s2": "dead",
        "s3": "again",
        "s4": "released",
        "s5": "failed",
        "s6": "failed",
        "s7": "failed",
    }
    assert {subject: row.outcome for subject, row in rows.items() if row.outcome != "done"} == words
    assert rows["s1"].error.startswith("no")
    assert rows["s8"].asDict() | {"id": 0, "seconds": 0.0, "worker": ""} == {
        "id": 0, "kind": "k0", "subject": "s8", "attempt": 1, "outcome": "done", "error": None, "seconds": 0.0,
        "worker": "",
    }  # fmt: skip
    assert {row.worker[:6] for row in rows.values()} == {"spark-"}
    status = queue.status()
    assert (status.planned, status.pending, status.active, status.dead) == (6, 0, 0, 1)
    assert status.totals["done"] == 53
    assert frame.count() == 60
    assert queue.status() == status or queue.status().totals == status.totals, "reading the result drains nothing"


def test_a_failure_is_tried_again_as_the_queue_says(
    spark: SparkSession, app: Penstock, queue: Queue, dsn: str, tmp_path: Path
) -> None:
    """One task fails twice and then succeeds; another one never fails."""
    queue.set(retry="fixed:1ms", max_attempts=3)
    queue.push_many([{"n": n} for n in range(20)])

    def handle(task: Task) -> None:
        with (tmp_path / str(task.payload["n"])).open("a") as file:
            file.write(".")
        if task.payload["n"] == 3 and task.attempt < 3:
            raise RuntimeError("not yet")
        if task.payload["n"] == 4:
            raise RuntimeError("never")

    frame = drain(spark, "work", handle, dsn=dsn, partitions=2)
    assert counted(frame) == {"done": 19, "failed": 4, "dead": 1}
    tries = {int(file.name): len(file.read_text()) for file in tmp_path.iterdir()}
    assert tries == dict.fromkeys(range(20), 1) | {3: 3, 4: 3}


def test_a_handler_that_ends_its_process(spark: SparkSession, app: Penstock, queue: Queue, dsn: str) -> None:
    """The task is blamed each time, until the queue's rules end it. All other tasks are done once."""
    queue.set(retry="fixed:1ms", max_attempts=3)
    queue.push_many([{"n": n} for n in range(30)])

    def handle(task: Task) -> None:
        if task.payload["n"] == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if task.payload["n"] == 8 and task.attempt == 1:
            os._exit(9)

    rows = drain(spark, "work", handle, dsn=dsn, partitions=2, batch=10).collect()
    assert Counter(row.outcome for row in rows) == {"done": 29, "failed": 3, "dead": 1}
    errors = {row.error for row in rows if row.error}
    assert errors == {
        "its handler ended the process: signal 9 (SIGKILL)",
        "its handler ended the process: exit code 9",
    }
    assert queue.status().totals["done"] == 29
    assert queue.status().dead == 1


def test_a_python_worker_that_is_killed(
    spark: SparkSession, app: Penstock, queue: Queue, dsn: str, tmp_path: Path, sql: psycopg.Connection
) -> None:
    """Spark repeats its task, which goes on draining. The tasks in hand come back when their lease ends."""
    queue.push_many([{"n": n} for n in range(40)])

    def handle(task: Task) -> None:
        with (tmp_path / str(task.payload["n"])).open("a") as file:
            file.write(".")
        if task.payload["n"] == 11 and task.attempt == 1 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)  # this process ends too

    frame = drain(spark, "work", handle, dsn=dsn, partitions=1, batch=5, lease="2s")
    attempts = {row.worker.rpartition(".")[2] for row in frame.collect()}
    assert attempts == {"1"}, "the rows of the first attempt are dropped"
    deadline = time.monotonic() + 20
    while queue.status().active and time.monotonic() < deadline:
        time.sleep(0.2)
        drain(spark, "work", handle, dsn=dsn, partitions=1)
    assert queue.status().totals["done"] == 40
    assert queue.status().active == 0
    assert {int(file.name) for file in tmp_path.iterdir() if file.name != "killed"} == {*range(40)}
    twice = {file.name for file in tmp_path.iterdir() if len(file.read_text()) > 1}
    assert "11" in twice
    assert len(twice) <= 5, "only the tasks that were in hand"


def test_a_lease_goes_on_while_a_handler_works(
    spark: SparkSession, app: Penstock, queue: Queue, dsn: str, tmp_path: Path
) -> None:
    """A handler holds the interpreter for longer than the lease. A lost lease is counted and is not fatal."""
    queue.push_many([NewTask({"n": n}, f"s{n}") for n in range(3)])

    def handle(task: Task) -> None:
        if task.payload["n"] == 0:
            time.sleep(2.5)
        if task.payload["n"] == 1:
            with Penstock(dsn) as own:
                own.queue("work").cancel(subjects=["s1", "s2"])

    rows = drain(spark, "work", handle, dsn=dsn, partitions=1, batch=10, lease="1s").collect()
    words = {row.subject: row.outcome for row in rows}
    assert words["s0"] == "done"
    assert words["s1"] == "revoked"
    assert words["s2"] == "revoked"
    assert queue.status().cancelled == 2


def test_a_limit_is_kept(spark: SparkSession, app: Penstock, queue: Queue, dsn: str) -> None:
    queue.push_many([{}] * 50)
    rows = drain(spark, "work", nothing, dsn=dsn, partitions=3, limit=20).collect()
    assert len(rows) == 20
    assert len({row.worker for row in rows}) == 3
    assert queue.status().pending == 30
    queue.pause()
    assert drain(spark, "work", nothing, dsn=dsn, partitions=1).count() == 0
    assert split_limit(2, 5) == (1, 1)
    assert split_limit(None, 2) == (None, None)
    assert split_limit(7, 3) == (3, 2, 2)


def test_what_is_refused(spark: SparkSession, app: Penstock, queue: Queue, dsn: str) -> None:
    """All of this is refused before a Spark task is made."""

    async def later(task: Task) -> None: ...

    lock: Any = __import__("threading").Lock()
    for wrong, handler in (
        ({"batch": 0}, print),
        ({"batch": 10_001}, print),
        ({"partitions": 0}, print),
        ({"limit": 0}, print),
        ({"lease": "1ms"}, print),
        ({}, later),
        ({}, "print"),
        ({}, lambda _: lock),
    ):
        with pytest.raises(ValidationError) as told:
            drain(spark, "work", handler, dsn=dsn, **wrong)  # type: ignore[arg-type]
        assert told.value.field
    with pytest.raises(NotFound):
        drain(spark, "wrok", print, dsn=dsn)


def test_a_handler_that_cannot_be_loaded(spark: SparkSession, app: Penstock, queue: Queue, dsn: str) -> None:
    """The executors do not have its module: this is reported at once, and no task is lost."""
    queue.push_many([{}] * 3)

    class Handler:
        def __reduce__(self) -> Any:
            return (__import__, ("no_such_module_there",))

        def __call__(self, task: Task) -> None: ...

    with pytest.raises(PySparkException, match="it cannot be loaded on the executor: ModuleNotFoundError"):
        drain(spark, "work", Handler(), dsn=dsn, partitions=1)
    assert queue.status().pending == 3


# --- adopted tables ---------------------------------------------------------------------------------------------------

TABLE = """
    create table public.orders (
        id bigint primary key, status text not null, date_inserted timestamptz not null,
        failures int not null default 0, last_failure timestamptz, handled text
    );
    insert into public.orders (id, status, date_inserted)
    select n, 'NEW', now() - interval '1 hour' + n * interval '1 ms' from generate_series(1, 1200) as n
"""


def test_an_adopted_table(spark: SparkSession, app: Penstock, dsn: str, sql: psycopg.Connection) -> None:
    """Several executors handle each record once. One record ends every process that handles it, and is found."""
    sql.execute(TABLE)
    terms: dict[str, Any] = {
        "key": "id", "status": "status", "inserted": "date_inserted", "ready": ["NEW"], "retry": ["ERROR"],
        "done": "SUCCESS", "failed": "ERROR", "dead": "DEAD", "failures": "failures", "last_failure": "last_failure",
        "strategy": "fixed:1h",
    }  # fmt: skip
    app.adopt("public.orders", **terms)

    def handle(record: dict[str, Any], transaction: Any) -> None:
        if record["id"] == 600:
            os.kill(os.getpid(), signal.SIGKILL)
        if record["id"] % 500 == 0:
            raise ValueError("no")
        transaction.execute(
            "update public.orders set handled = coalesce(handled, '') || '.' where id = %s", [record["id"]]
        )

    rows = drain_backlog(spark, "orders", handle, dsn=dsn, partitions=2).collect()
    assert sum(row.done for row in rows) <= 1197
    assert {row.worker[:6] for row in rows} == {"spark-"}
    found = sql.execute(
        "select status, count(*), count(handled), max(handled) from public.orders group by 1"
    ).fetchall()
    assert sorted(found) == [("ERROR", 3, 0, None), ("SUCCESS", 1197, 1197, ".")]
    assert drain_backlog(spark, "orders", handle, dsn=dsn, partitions=1).collect()[0].done == 0

    sql.execute("update public.orders set status = 'NEW' where id <= 100")
    rows = drain_backlog(spark, "orders", handle, dsn=dsn, partitions=2, limit=10).collect()
    assert sum(row.done for row in rows) == 10
    with pytest.raises(NotFound):
        drain_backlog(spark, "nothing", handle, dsn=dsn)
    app.adopt("public.orders", name="watched", **terms | {"mode": "observe"})
    with pytest.raises(Conflict, match="observed only"):
        drain_backlog(spark, "watched", handle, dsn=dsn)
