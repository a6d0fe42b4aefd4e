"""`penstock pipeline` in a process of its own with a Spark of its own, which is stopped and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from pyspark.sql import SparkSession

import penstock as package
from penstock import Penstock, Queue
from penstock.pipeline.lake import Lake
from penstock.pipeline.lake.schemas import TABLES
from pipeline.conftest import Story
from shell import COMMAND, Ran, environment, is_one_block

PATIENCE = 240.0  # seconds: a JVM on a busy machine
OURS = {"PYTHONPATH": str(Path(package.__file__).parents[1]), "HOME": os.environ.get("HOME", "/")}


def pipeline(*arguments: str, dsn: str | None = None) -> Ran:
    done = subprocess.run(
        [*COMMAND, "pipeline", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(dsn, OURS),
        timeout=PATIENCE,
        check=False,
    )
    ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in ran.out + ran.err, ran.err
    return ran


def test_what_is_wrong_is_told_before_spark_starts(app: Penstock, dsn: str, lake: Path, tmp_path: Path) -> None:
    app.create_queue("mail")
    file = tmp_path / "file"
    file.touch()
    began = time.monotonic()
    for arguments, where, code, said in (
        (("run", "--lake", str(lake), "--queues", "mial"), dsn, 1, "mail"),
        (("run", "--lake", str(lake), "--queues", "A B"), dsn, 2, "queue"),
        (("run", "--lake", str(lake), "--since", "soon"), dsn, 2, "since"),
        (("run", "--lake", str(file)), dsn, 2, "not a directory"),
        (("run", "--lake", ""), dsn, 2, "lake"),
        (("run", "--lake", str(lake)), "postgresql://user:wrong@127.0.0.1:1/none", 4, "127.0.0.1"),
        (("silver", "--lake", str(lake)), dsn, 1, "there is none"),
        (("forget",), dsn, 2, "--lake"),
        (("forget", "lake x"), dsn, 1, "lake x"),
    ):
        ran = pipeline(*arguments, dsn=where)
        assert ran.code == code, (arguments, ran)
        assert said in ran.err, (arguments, ran)
        assert ran.out == ""
        assert is_one_block(ran.err), ran.err
    assert not lake.exists()
    assert time.monotonic() - began < PATIENCE


@pytest.mark.slow
def test_run_and_forget(queue: Queue, sql: psycopg.Connection, dsn: str, lake: Path) -> None:
    queue.push_many([{}] * 20)
    queue.settle(queue.claim(20))
    ran = pipeline("run", "--lake", str(lake), "--json", dsn=dsn)
    assert (ran.code, ran.err) == (0, ""), ran
    assert ran.json["ok"] is True
    assert [*ran.json["stages"]][:3] == ["bronze", "silver", "gold"]
    assert ran.json["stages"]["bronze"]["bronze/history"] == 20
    assert ran.json["stages"]["reconcile"]["differences"] == []
    (reader,) = [name for (name,) in sql.execute("select name from penstock.history_reader")]
    assert reader == Lake(lake).state.reader
    ran = pipeline("forget", "--lake", str(lake), dsn=dsn)
    assert (ran.code, ran.out) == (0, f"forgotten: {reader}\n")
    assert sql.execute("select from penstock.history_reader").fetchall() == []


# --- stopped and killed -----------------------------------------------------------------------------------------------


@contextmanager
def running(lake: Path, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the pipeline in a process group of its own, and ends all of it."""
    process = subprocess.Popen(
        [*COMMAND, "pipeline", "run", "--lake", str(lake)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(dsn, OURS),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def until(test: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not test():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        assert process is None or process.poll() is None, "it ended before"
        time.sleep(0.002)


def number(lake: Path) -> int:
    log = lake / "lake.json"
    return int(orjson.loads(log.read_bytes())["number"]) if log.exists() else -1


def staged(lake: Path) -> bool:
    return any((lake / "_staging").rglob("*.parquet"))


def content(spark: SparkSession, lake: Path) -> dict[str, Counter[Any]]:
    found = Lake(lake)
    return {name: Counter(tuple(row) for row in found.read(spark, name).collect()) for name in TABLES}


def killed(lake: Path, dsn: str, nth: int, *, staging: bool) -> bool:
    """Kills a run while it stages files for its nth change, or just after that change. Returns False if the run ended
    before."""
    with running(lake, dsn) as process:
        until(
            lambda: (
                process.poll() is not None or (number(lake) == nth and staged(lake) if staging else number(lake) > nth)
            )
        )
        if process.poll() is not None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_anywhere(spark: SparkSession, story: Story, direct_dsn: str, lake: Path, tmp_path: Path) -> None:
    """The run is killed while it stages the nth change and right after it, for every n."""
    story.live(40)
    assert pipeline("run", "--lake", str(tmp_path / "peace"), dsn=direct_dsn).code == 0
    changes = number(tmp_path / "peace")
    assert changes >= 4
    kills = sum(killed(lake, direct_dsn, nth, staging=staging) for nth in range(changes) for staging in (True, False))
    assert kills >= changes, "some of the kills were in time"
    assert pipeline("run", "--lake", str(lake), dsn=direct_dsn).code == 0
    assert content(spark, lake) == content(spark, tmp_path / "peace")
    assert not staged(lake)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupted(queue: Queue, direct_dsn: str, lake: Path) -> None:
    """Ctrl-C gives exit code 130 and one line, and leaves no process."""
    queue.push_many([{}] * 2_000)
    queue.settle(queue.claim(2_000))
    with running(lake, direct_dsn) as process:
        until(lambda: staged(lake), process)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert said.startswith("interrupted; the lake is as it was")
        assert "Traceback" not in said
        until(lambda: not alive(process.pid))
    shutil.rmtree(lake)
