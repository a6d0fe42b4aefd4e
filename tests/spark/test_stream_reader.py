"""The stream reader, called as Spark does but without a JVM: offsets, partitions, rows, and a group that is kept."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from conftest import Clock
from penstock import (
    ConfigError,
    Conflict,
    LeaseLost,
    NewTask,
    NotFound,
    Outcome,
    Penstock,
    Queue,
    Unavailable,
    ValidationError,
)
from penstock.spark.options import parse_stream_options
from penstock.spark.outcomes import note_outcomes
from penstock.spark.source import COLUMNS, TaskStream

Streams = Callable[..., TaskStream]


@pytest.fixture
def stream(dsn: str) -> Iterator[Streams]:
    with ExitStack() as stack:

        def make(queue: str = "work", **options: object) -> TaskStream:
            made = TaskStream(
                parse_stream_options(
                    {"dsn": dsn, "queue": queue, **{name: str(value) for name, value in options.items()}}
                )
            )
            stack.callback(made.stop)
            return made

        yield make


def rows(stream: TaskStream, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[InputPartition] = pickle.loads(pickle.dumps(stream.partitions(start, end)))
    reader = pickle.loads(pickle.dumps(TaskStream(stream._asked)))  # as on an executor
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def following(stream: TaskStream, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
    """Returns the next offset, through JSON and with the reader's own limit, as Spark does."""
    limit = limit or stream.getDefaultReadLimit()
    found: dict[str, Any] = json.loads(json.dumps(stream.latestOffset(json.loads(json.dumps(start)), limit)))
    return found


def test_tasks_as_rows(stream: Streams, queue: Queue, clock: Clock) -> None:
    due = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)
    exact = '{"a": 1.0, "b": 1234567890123456789012345678901234567890, "c": "ü€𝄞"}'
    first = queue.push({"n": 1}, subject="sübject", kind="mail", due=due, priority=0)
    second = queue.push({})
    with Penstock(queue.dsn) as app, app._database.transaction() as connection:
        connection.execute("update penstock.task set payload = %s::jsonb where id = %s", (exact, second.id))
    reader = stream(consumerGroup="g")
    start = reader.initialOffset()
    assert start == reader.initialOffset() == {"batch": 0, "queue": "work", "group": "g"}
    end = following(reader, start)
    assert end == {"batch": 1, "queue": "work", "group": "g", "id": reader._hold().held.identity}
    one, other = rows(reader, start, end)
    now = clock.now()
    assert one == {
        "id": first.id, "queue": "work", "kind": "mail", "subject": "sübject", "payload": '{"n": 1}', "priority": 0,
        "due": due, "attempt": 1, "iterations": 0, "created": now, "since": now, "token": one["token"],
    }  # fmt: skip
    assert (other["subject"], other["due"], other["payload"]) == (None, now, exact)
    assert list(one) == COLUMNS.names
    assert rows(reader, start, end) == [one, other], "a replay is the same"
    assert following(reader, end) == end, "nothing is new, so the offset stays"
    assert queue.status().totals["done"] == 2


def test_partitions_are_leases_dealt_out(stream: Streams, queue: Queue) -> None:
    queue.push_many([{"n": n} for n in range(12_000)])
    reader = stream(numPartitions=3, maxRowsPerTrigger=11_000)
    end = following(reader, reader.initialOffset())
    parts = reader.partitions(reader.initialOffset(), end)
    assert [[size for _, size in part.value] for part in parts] == [[3667], [3667], [3666]]
    found = rows(reader, reader.initialOffset(), end)
    assert sorted(json.loads(row["payload"])["n"] for row in found) == list(range(11_000))
    assert reader.partitions(end, end) == []


def test_read_limits(stream: Streams, queue: Queue) -> None:
    queue.push_many([{}] * 100)
    reader = stream(maxRowsPerTrigger=20)
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    at, sizes = reader.initialOffset(), []
    for limit in (ReadMaxRows(7), ReadMinRows(3), None, ReadAllAvailable()):
        end = following(reader, at, limit)
        sizes.append(len(rows(reader, at, end)))
        at = end
    assert sizes == [7, 20, 20, 53]


def test_available_now_reads_the_tasks_that_were_there(stream: Streams, queue: Queue) -> None:
    queue.push_many([{}] * 25)
    reader = stream(maxRowsPerTrigger=10)
    reader.prepareForTriggerAvailableNow()
    queue.push_many([{"late": True}] * 5)
    at, sizes = reader.initialOffset(), []
    while (end := following(reader, at)) != at:
        sizes.append(len(rows(reader, at, end)))
        at = end
    assert sizes == [10, 10, 5]
    assert (queue.status().pending, queue.status().active, queue.status().totals["done"]) == (5, 0, 25)


def test_available_now_ends_though_tasks_come_back(stream: Streams, queue: Queue, dsn: str) -> None:
    """Otherwise a sink that puts all tasks back would get them again for ever."""
    queue.push_many([{}] * 10)
    reader = stream(maxRowsPerTrigger=5)
    reader.prepareForTriggerAvailableNow()
    at, batches = reader.initialOffset(), 0
    while (end := following(reader, at)) != at:
        note_outcomes([(row, Outcome.release()) for row in rows(reader, at, end)], dsn=dsn)
        at, batches = end, batches + 1
    assert batches == 2
    assert queue.status().pending == 10


def test_the_backlog_is_reported(stream: Streams, queue: Queue) -> None:
    queue.push_many([{}] * 30)
    queue.push(due=datetime.now(UTC) + timedelta(days=1))
    reader = stream(maxRowsPerTrigger=10)
    following(reader, reader.initialOffset())
    assert reader.reportLatestOffset() == {
        "batch": 1, "queue": "work", "group": "default", "backlog": 20, "planned": 1,
    }  # fmt: skip
    reader.commit(reader.initialOffset())
    assert queue.status().totals["done"] == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queue": "other"}, r"it is of consumerGroup 'default' of queue 'other', not 'default' of 'work'"),
        ({"group": "other"}, r"it is of consumerGroup 'other' of queue 'work', not 'default' of 'work'"),
        ({"id": "0" * 32}, "it is of another queue that was called 'work'"),
        ({"batch": 2}, "it is at batch 2, the consumerGroup only at 1"),
        ({"batch": "x"}, "is not an offset of a queue"),
    ],
)
def test_a_checkpoint_of_something_else(stream: Streams, queue: Queue, change: dict[str, Any], words: str) -> None:
    """B107: this is refused when the query begins with a new batch, and when it replays one."""
    queue.push_many([{}] * 5)
    reader = stream()
    start = reader.initialOffset()
    end = following(reader, start)
    reader.stop()
    restarted = stream()
    for call in (lambda: following(restarted, end | change), lambda: restarted.partitions(start, end | change)):
        with pytest.raises(ConfigError, match=f"^checkpointLocation: {words}|^checkpointLocation: .*{words}") as error:
            call()
        assert error.value.__notes__ == [f"Hint: {error.value.hint}"]
    assert len(rows(restarted, start, end)) == 5, "nothing was changed"


def test_an_offset_of_another_source(stream: Streams, queue: Queue) -> None:
    with pytest.raises(ConfigError, match="checkpointLocation: 17 is not an offset of a queue"):
        stream().latestOffset(17, ReadAllAvailable())  # type: ignore[arg-type]


def test_a_queue_that_is_not_there(stream: Streams, queue: Queue) -> None:
    reader = stream("wrok")
    with pytest.raises(NotFound, match="queue 'wrok' does not exist") as error:
        following(reader, reader.initialOffset())
    assert error.value.__notes__ == ["Hint: Did you mean 'work'?"]


def test_two_readers_of_one_group(stream: Streams, queue: Queue) -> None:
    queue.push_many([{}] * 5)
    first, second = stream(), stream()
    end = following(first, first.initialOffset())
    with pytest.raises(Conflict, match="consumerGroup: 'default' of queue 'work' is held by driver"):
        following(second, second.initialOffset())
    assert following(first, end) == end
    first.stop()
    assert following(second, end) == end, "it is accepted as soon as the first reader is gone"


def test_outcomes_of_rows_that_were_lost(stream: Streams, queue: Queue, dsn: str) -> None:
    queue.push_many([{}] * 5)
    first = stream()
    end = following(first, first.initialOffset())
    found = rows(first, first.initialOffset(), end)
    assert note_outcomes([(found[0], Outcome.dead("no"))], dsn=dsn) == {found[0]["id"]: "dead"}
    assert note_outcomes([], dsn=dsn) == {}
    queue.cancel([found[1]["id"]])
    with pytest.raises(LeaseLost) as lost:
        note_outcomes([(row, Outcome.failed("no")) for row in found], dsn=dsn)
    assert (lost.value.refused, lost.value.revoked) == ((found[0]["id"],), (found[1]["id"],))
    assert queue.status().totals["failed"] == 3, "the rest is applied"
    with pytest.raises(ValidationError, match="token: 'dict' has no such column"):
        note_outcomes([({"id": 1, "queue": "work"}, Outcome.done())], dsn=dsn)


# --- a group that is kept ---------------------------------------------------------------------------------------------


def test_a_group_is_kept_while_its_driver_lives(stream: Streams, app: Penstock, queue: Queue) -> None:
    queue.push_many([{}] * 5)
    reader = stream(lease="2s")
    end = following(reader, reader.initialOffset())
    for _ in range(10):
        time.sleep(0.3)
        app.upkeep()
    with pytest.raises(Conflict, match="is held by driver"):
        following(stream(), reader.initialOffset())
    assert len(rows(reader, reader.initialOffset(), end)) == 5
    following(reader, end)
    assert (queue.status().totals["done"], queue.status().totals["expired"]) == (5, 0)


def test_a_lost_lock_is_taken_again(stream: Streams, queue: Queue, sql: Connection) -> None:
    """A restart of PostgreSQL ends every session, but the group keeps its driver."""
    reader = stream(lease="900ms")
    following(reader, reader.initialOffset())
    held = "select l.pid from pg_locks as l where l.locktype = 'advisory' and l.classid = 1346719303"
    (before,) = sql.execute(held).fetchall()
    sql.execute("select pg_terminate_backend(%s)", before)
    deadline = time.monotonic() + 20
    while sql.execute(held).fetchall() in ([], [before]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(Conflict, match="is held by driver"):
        following(stream(), reader.initialOffset())


def test_no_other_session_can_stop_a_driver(stream: Streams, queue: Queue, direct_dsn: str) -> None:
    """Any login may take an advisory lock, for example that of the next epochs."""
    queue.push_many([{}] * 5)
    with psycopg.connect(direct_dsn, autocommit=True) as other_session, ThreadPoolExecutor(1) as pool:
        other_session.execute("select pg_advisory_lock(1346719303, n) from generate_series(1, 3) as n")
        reader = stream()
        try:
            end = pool.submit(following, reader, reader.initialOffset()).result(30)
        finally:
            other_session.close()
    assert len(rows(reader, reader.initialOffset(), end)) == 5


def test_a_reader_that_lost_the_group_learns_it_at_the_next_call(
    stream: Streams, queue: Queue, sql: Connection
) -> None:
    queue.push_many([{}] * 5)
    reader = stream(lease="300ms")
    end = following(reader, reader.initialOffset())
    sql.execute("update penstock.stream set epoch = 99, driver = 'host:99'")
    deadline = time.monotonic() + 20
    while reader._group is not None and reader._group._renewal.alive:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for call in (lambda: following(reader, end), lambda: reader.partitions(reader.initialOffset(), end)):
        with pytest.raises(Conflict, match="driver host:99 has taken over 'default'") as error:
            call()
        assert error.value.__notes__ == [f"Hint: {error.value.hint}"]


HOLDER = """
import sys, time
from penstock.spark.options import parse_stream_options
from penstock.spark.source import TaskStream
from pyspark.sql.streaming.datasource import ReadMaxRows
reader = TaskStream(parse_stream_options({"queue": "work", "lease": "3s"}))
reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
print("held", flush=True)
time.sleep(60)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_frozen_driver_is_not_kept_alive_by_its_reader(
    stream: Streams, app: Penstock, queue: Queue, dsn: str
) -> None:
    """The reader is a process of its own, which could go on while the driver's JVM hangs."""
    queue.push_many([{}] * 5)
    environment = {**os.environ, "PENSTOCK_DSN": dsn}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, HOLDER], env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == b"held\n"
            time.sleep(4)
            with pytest.raises(Conflict, match="is held by driver"):
                stream().latestOffset(stream().initialOffset(), ReadMaxRows(10))
            os.kill(driver.pid, signal.SIGSTOP)
            time.sleep(4)
            reader = stream()
            end = following(reader, reader.initialOffset())
            assert len(rows(reader, reader.initialOffset(), end)) == 5
            following(reader, end)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert queue.status().totals["done"] == 5


def test_no_password_is_shown(dsn: str) -> None:
    reader = TaskStream(parse_stream_options({"url": "postgresql://me:s3cret@127.0.0.1:1/x", "queue": "work"}))
    assert "s3cret" not in repr(reader) + repr(reader._asked)
    with pytest.raises(Unavailable) as error:
        reader.prepareForTriggerAvailableNow()
    assert "s3cret" not in f"{error.value!r} {error.value.__cause__!r} {error.getrepr(style='native')}"


def test_plain_tasks_and_others(stream: Streams, queue: Queue) -> None:
    """Attempts go on counting, and a stream beside plain workers takes the tasks that they leave."""
    queue.set(retry="fixed:1ms")
    queue.push_many([NewTask({}, f"s{n}") for n in range(4)])
    claim = queue.claim(2)
    queue.settle(claim, {id_: Outcome.failed("no") for id_ in claim.ids})
    time.sleep(0.05)
    reader = stream()
    end = following(reader, reader.initialOffset())
    assert sorted(row["attempt"] for row in rows(reader, reader.initialOffset(), end)) == [1, 1, 2, 2]
