"""Drivers that are killed, frozen, started twice or lose their checkpoint: every task is settled once, and every effect
happens once.

The drivers are processes of their own, killed with all their children. Their successors run in the tests' own Spark.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from psycopg import Connection
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import stream_driver
from conftest import TEMPLATE, Clock, with_database
from penstock import Penstock
from stream_driver import Asked, begin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE = 240.0  # seconds: a JVM on a busy machine
TASKS = 50
READER = "python_streaming_source_runner"
T = TypeVar("T")

# The commit of the second batch waits until the test lets it go on, so that the reader can be stopped before it has the
# answer.
SLOW_COMMIT = """
    create table penstock_test.go ();
    create function penstock_test.wait() returns trigger language plpgsql as $$
        begin
            while not exists (select from penstock_test.go) loop perform pg_sleep(0.05); end loop;
            return null;
        end $$;
    create constraint trigger slow_commit after update on penstock.stream deferrable initially deferred
        for each row when (old.batch = 1 and new.batch = 2) execute function penstock_test.wait();
"""


def eventually(found: Callable[[], T], process: subprocess.Popen[bytes] | None = None) -> T:
    deadline = time.monotonic() + PATIENCE
    while not (answer := found()):
        assert process is None or process.poll() is None, "the driver ended"
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        time.sleep(0.01)
    return answer


class Stage:
    """A database with a queue of tasks, and a directory for checkpoints."""

    def __init__(self, server_dsn: str, home: Path, name: str) -> None:
        with psycopg.connect(server_dsn, autocommit=True) as connection:
            connection.execute(f"create database {name} template {TEMPLATE}".encode())
        self.name = name
        self.dsn = with_database(server_dsn, name)
        self.home = home / name
        self.app = Penstock(self.dsn)
        self.queue = self.app.create_queue("work")
        self.queue.push_many([{"n": n} for n in range(TASKS)])
        self.sql: Connection = psycopg.connect(self.dsn, autocommit=True)
        self.sql.execute(stream_driver.TABLES)

    @property
    def checkpoint(self) -> Path:
        return self.home.with_name(f"{self.name}.checkpoint")

    def close(self) -> None:
        self.app.close()
        self.sql.close()

    def logged(self, log: str) -> set[str]:
        """Returns the batches in one of Spark's logs."""
        return {one.name for one in (self.checkpoint / log).glob("[0-9]*")}

    def drain(self, spark: SparkSession, asked: Asked) -> None:
        query = begin(spark, asked, available_now=True)
        assert query.awaitTermination(int(PATIENCE))

    def check(self, *, expired: int = 0) -> None:
        """Checks that all tasks are done once, with one effect each, and that the counters are right."""
        outcomes = self.sql.execute("select outcome, count(*) from penstock.history group by outcome").fetchall()
        assert dict(outcomes) == {"done": TASKS} | ({"expired": expired} if expired else {})
        once = "select count(*), count(distinct {}) from {}"
        assert self.sql.execute(
            once.format("task_id", "penstock.history where outcome = 'done'").encode()
        ).fetchall() == [(TASKS, TASKS)]
        assert self.sql.execute(once.format("task", "sink.effect").encode()).fetchall() == [(TASKS, TASKS)]
        status = self.queue.status()
        assert (status.pending, status.planned, status.active, status.totals["done"]) == (0, 0, 0, TASKS)
        assert self.app.verify().ok, self.app.verify().findings


@pytest.fixture(scope="module")
def make_stage(server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stage]]:
    made: list[Stage] = []
    home = tmp_path_factory.mktemp("streams")

    def make() -> Stage:
        made.append(Stage(server_dsn, home, f"stream_{os.getpid()}_{len(made)}"))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        for stage in made:
            connection.execute(f"drop database {stage.name} with (force)".encode())


@contextmanager
def driving(home: Path, asked: list[Asked]) -> Iterator[subprocess.Popen[bytes]]:
    stream_driver.write(asked, home / "asked.json")
    said = (home / "said").open("wb")
    program = [sys.executable, stream_driver.__file__, str(home / "asked.json")]
    with said, subprocess.Popen(program, stdout=said, stderr=said, start_new_session=True) as process:
        try:
            yield process
        finally:
            kill(process, signal.SIGCONT)
            kill(process, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def kill(process: subprocess.Popen[bytes], number: int, only: str = "") -> None:
    for pid in family(process.pid) if process.poll() is None else []:
        try:
            if only in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, number)
        except (ProcessLookupError, FileNotFoundError):
            continue


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(make_stage: Callable[[], Stage], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    """Kills a driver with five queries, each at a different point of its second batch."""
    found = {name: make_stage() for name in ("claimed", "midst", "after", "away", "lost")}
    asked = {
        "claimed": Asked(found["claimed"].dsn, str(found["claimed"].checkpoint)),
        "midst": Asked(found["midst"].dsn, str(found["midst"].checkpoint), stop="midst"),
        "after": Asked(found["after"].dsn, str(found["after"].checkpoint), stop="after"),
        "away": Asked(found["away"].dsn, str(found["away"].checkpoint), stop="after", ledger="run"),
        "lost": Asked(found["lost"].dsn, str(found["lost"].checkpoint), stop="after", ledger="run"),
    }
    claimed = found["claimed"]
    claimed.sql.execute(SLOW_COMMIT)
    sleeping = "select from pg_stat_activity where datname = %s and wait_event = 'PgSleep'"
    batch = "select batch from penstock.stream"
    with driving(tmp_path_factory.mktemp("killed"), list(asked.values())) as process:
        eventually(lambda: all(one.at.exists() for one in asked.values() if one.stop), process)
        eventually(lambda: claimed.sql.execute(sleeping, (claimed.name,)).fetchone() is not None, process)
        kill(process, signal.SIGSTOP, READER)
        claimed.sql.execute("insert into penstock_test.go default values")
        eventually(lambda: claimed.sql.execute(batch).fetchone() == (2,), process)
        kill(process, signal.SIGKILL)
        process.wait()
    claimed.sql.execute("drop trigger slow_commit on penstock.stream")
    return found


def test_killed_after_the_claim_before_the_offset_log(spark: SparkSession, killed: dict[str, Stage]) -> None:
    stage = killed["claimed"]
    assert (stage.logged("offsets"), stage.logged("commits")) == ({"0"}, {"0"})
    assert (stage.queue.status().active, stage.queue.status().totals["done"]) == (20, 20)
    stage.drain(spark, Asked(stage.dsn, str(stage.checkpoint)))
    assert stage.logged("offsets") == {"0", "1", "2"}, "the claimed batch becomes the next one"
    stage.check()


def test_killed_in_the_midst_of_the_sink(spark: SparkSession, killed: dict[str, Stage]) -> None:
    stage = killed["midst"]
    assert (stage.logged("offsets"), stage.logged("commits")) == ({"0", "1"}, {"0"})
    assert stage.sql.execute("select count(*) from sink.effect").fetchone() == (20,)
    stage.drain(spark, Asked(stage.dsn, str(stage.checkpoint)))
    stage.check()


def test_killed_after_the_sink_before_the_commit_log(spark: SparkSession, killed: dict[str, Stage]) -> None:
    stage = killed["after"]
    assert (stage.logged("offsets"), stage.logged("commits")) == ({"0", "1"}, {"0"})
    assert stage.sql.execute("select count(*) from sink.effect").fetchone() == (40,)
    stage.drain(spark, Asked(stage.dsn, str(stage.checkpoint), name="second"))
    assert stage.sql.execute("select count(*) from sink.effect where query = 'second'").fetchone() == (10,)
    stage.check()


def test_away_for_longer_than_its_lease(spark: SparkSession, killed: dict[str, Stage]) -> None:
    """The batch that Spark has logged is empty when it is replayed, and its tasks come in another batch."""
    stage = killed["away"]
    Clock(stage.sql).advance(400)
    stage.app.upkeep()
    assert (stage.queue.status().active, stage.queue.status().pending) == (0, 30)
    stage.drain(spark, Asked(stage.dsn, str(stage.checkpoint), ledger="run", name="second"))
    assert stage.logged("commits") >= {"0", "1", "2"}
    assert stage.sql.execute("select count(*) from sink.effect where query = 'second'").fetchone() == (10,)
    stage.check(expired=20)


def test_a_lost_checkpoint(spark: SparkSession, killed: dict[str, Stage]) -> None:
    """The first batch is settled and not read again; the second was not settled, and is. Its effects were written
    already, which only a ledger of runs knows, because for Spark it is a new query."""
    stage = killed["lost"]
    shutil.rmtree(stage.checkpoint)
    assert stage.queue.status().active == 20
    stage.drain(spark, Asked(stage.dsn, f"{stage.checkpoint}.new", ledger="run", name="second"))
    assert stage.sql.execute("select count(*) from sink.effect where query = 'second'").fetchone() == (10,)
    stage.check()


# --- frozen, and two at once ------------------------------------------------------------------------------------------


def test_a_second_driver_is_refused_and_a_zombie_fenced(
    spark: SparkSession, make_stage: Callable[[], Stage], tmp_path: Path
) -> None:
    stage = make_stage()
    zombie = Asked(stage.dsn, str(stage.checkpoint), stop="before", ledger="run", name="zombie")
    second = Asked(stage.dsn, f"{stage.checkpoint}.new", ledger="run", name="second")
    with driving(tmp_path, [zombie]) as process:
        eventually(zombie.at.exists, process)
        with pytest.raises(StreamingQueryException) as refusal:
            stage.drain(spark, second)
        assert "consumerGroup: 'default' of queue 'work' is held by driver" in str(refusal.value)
        assert "give this one a consumerGroup of its own" in str(refusal.value)

        kill(process, signal.SIGSTOP)
        Clock(stage.sql).advance(400)
        stage.app.upkeep()
        assert stage.queue.status().totals["expired"] == 20
        stage.drain(spark, second)
        assert stage.sql.execute("select query, count(*) from sink.effect group by 1 order by 1").fetchall() == [
            ("second", 30), ("zombie", 20),
        ]  # fmt: skip

        zombie.go.touch()
        kill(process, signal.SIGCONT)
        assert process.wait(PATIENCE) != 0
    said = (tmp_path / "said").read_text()
    assert zombie.told.read_text() == "LeaseLost 20"
    assert "penstock.errors.Conflict: consumerGroup: driver" in said
    assert "has taken over 'default'" in said
    stage.check(expired=20)
