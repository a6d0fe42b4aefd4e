"""A queue drained as a Spark stream, beside a plain worker's drain of the same."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from bench.support.harness import Bench, alternate, ratio, report, spread
from bench.support.recovery import ROOT, WORK
from bench.support.spark_bench import ROUNDS, SparkBench
from bench.worker import environment, payloads
from penstock import NewTask, Penstock

TASKS = 200_000
TRIGGER = 50_000


def drained(spark: SparkSession, dsn: str, seen: list[dict[str, float]] | None = None) -> None:
    """Streams all tasks into a sink that reads every row and keeps none."""
    tasks = (
        spark.readStream.format("penstock")
        .option("dsn", dsn)
        .option("queue", "bench")
        .option("maxRowsPerTrigger", TRIGGER)
        .load()
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = tasks.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        if seen is not None:
            seen += [dict(one.durationMs) for one in query.recentProgress if one.numInputRows]


def measured(server: Bench, tasks: int, drain: Callable[[str], None]) -> float:
    """Returns tasks a second by history, from the first claim to the last settle."""
    with server.database() as dsn:
        with Penstock(dsn) as penstock:
            penstock.queue("bench").push_many([NewTask(row, kind="sync") for row in payloads(tasks)])
        with server.sql(dsn) as connection:
            connection.execute("vacuum analyze penstock.task, penstock.agenda")
            connection.execute("checkpoint")
            drain(dsn)
            row = connection.execute(
                "select count(*), extract(epoch from max(finished_at) - min(claimed_at)) from penstock.history"
                " where outcome = 'done'"
            ).fetchone()
        assert row is not None
        assert row[0] == tasks
        return tasks / float(row[1])


def by_worker(processes: int, dsn: str) -> None:
    command = [*WORK, "--until-empty", "--processes", str(processes)]
    subprocess.run(command, env=environment(dsn), cwd=ROOT, check=True, timeout=600)


def stream(spark_bench: SparkBench, rows: int = TASKS, rounds: int = ROUNDS) -> bool:
    """A queue drained as a stream, 50,000 tasks a trigger, beside plain workers. There is no bar."""
    server, spark, tasks = spark_bench.server, spark_bench.spark, rows
    seen: list[dict[str, float]] = []
    measured(server, 2000, lambda dsn: drained(spark, dsn))  # warm up: the second run counts
    sides: dict[str, Callable[[], float]] = {
        "stream": lambda: measured(server, tasks, lambda dsn: drained(spark, dsn, seen)),
        **{f"worker, {n}": partial(measured, server, tasks, partial(by_worker, n)) for n in (1, 2)},
    }
    found = alternate(rounds, sides)
    for name, rates in found.items():
        print(f"{name:<12} {spread(rates)} tasks/s")
    middle: dict[str, Any] = {word: statistics.median(one[word] for one in seen) for word in seen[0]}
    print("one batch, ms: " + ", ".join(f"{word} {value:.0f}" for word, value in middle.items()))
    ratios = {name: ratio(found["stream"], rates) for name, rates in found.items() if name != "stream"}
    for name, value in ratios.items():
        print(f"stream / {name}: {value:.2f}")
    report(
        "spark_stream", {"tasks": tasks, "per_trigger": TRIGGER, "rates": found, "ratios": ratios, "batch_ms": middle}
    )
    return True
