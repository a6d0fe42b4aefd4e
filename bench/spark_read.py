"""The bars of reading history into Spark: how fast, and how little a queue feels of it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Self

import psycopg
from pyspark.sql import DataFrame, SparkSession

from bench.support.harness import alternate, judged, ratio, report, spread
from bench.support.spark_bench import ROUNDS, SparkBench
from penstock import Penstock
from penstock.spark import read_history

SPAWN = multiprocessing.get_context("spawn")
ROWS = 5_000_000
TASKS = 150_000
DAYS = 4
# Rows as settle writes them: half with subjects, every fiftieth failed.
FILL = """
    insert into penstock.history (xid, task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                  outcome, kind, worker, subject, error_class, error)
    select pg_current_xact_id()::text::bigint, n, f - interval '10 s', f - interval '9 s', f - interval '0.5 s', f, 1,
           0, 1, case when n % 50 = 0 then 'failed' else 'done' end, 'kind' || n % 5, 'host:' || n % 8,
           case when n % 2 = 0 then 'order/' || n end, case when n % 50 = 0 then 'ValueError' end,
           case when n % 50 = 0 then repeat('x ', 50) end
    from generate_series(1, {rows}) as n,
         lateral (select date_trunc('day', now()) - interval '{days} days' * (1 - (n - 1)::float8 / {rows}) as f) as s
"""
HELD = """
    select extract(epoch from clock_timestamp() - min(xact_start))::float8
    from pg_stat_activity
    where datname = current_database() and pid <> all(%s) and backend_type = 'client backend'
      and (backend_xmin is not null or xact_start is not null) and query not like '%%pg_stat_activity%%'
      and query like '%%penstock.history%%'
"""


def filled(sql: psycopg.Connection, rows: int) -> None:
    sql.execute(f"select penstock._make_history(current_date - n) from generate_series(0, {DAYS}) as n".encode())
    sql.execute(FILL.format(rows=rows, days=DAYS).encode())
    sql.execute("vacuum analyze penstock.history")
    sql.execute("checkpoint")


def ours(spark: SparkSession, dsn: str) -> DataFrame:
    return read_history(spark, dsn=dsn, partitions=4)


def theirs(spark_bench: SparkBench, dsn: str) -> DataFrame:
    """Reads by JDBC. Its bounds are times, so that each query reads only one day, which is the best case."""
    with psycopg.connect(dsn) as sql:
        bounds = sql.execute("select min(finished_at)::text, max(finished_at)::text from penstock.history").fetchone()
    assert bounds is not None
    return (
        spark_bench.spark.read.format("jdbc")
        .options(**spark_bench.jdbc(dsn), dbtable="penstock.history")
        .options(partitionColumn="finished_at", lowerBound=bounds[0][:19], upperBound=bounds[1][:19])
        .options(numPartitions=4, fetchsize=10_000)
        .load()
    )


def timed(frame: DataFrame, rows: int) -> float:
    """Returns rows a second with all columns. The plan is made anew each time, as for a single read."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - began)


def read(spark_bench: SparkBench, rows: int = ROWS, rounds: int = ROUNDS) -> bool:
    """All columns of all rows of history, beside Spark's JDBC reader with 4 partitions and a fetchsize of 10,000."""
    server, spark = spark_bench.server, spark_bench.spark
    with server.database() as dsn, server.sql(dsn) as sql:
        filled(sql, rows)
        sides: dict[str, Callable[[], float]] = {
            "penstock": lambda: timed(ours(spark, dsn), rows),
            "jdbc": lambda: timed(theirs(spark_bench, dsn), rows),
        }
        for warm in sides.values():
            warm()
        found = alternate(rounds, sides)
    for name, rates in found.items():
        print(f"  {name:<12} rows/s {spread(rates)}")
    share = ratio(found["penstock"], found["jdbc"])
    report("spark-read", {"rows": rows, "rows/s": found, "ratio": share})
    return judged(f"{rows:,} history rows, against Spark's JDBC reader", share, 0.7, at_least=True)


# --- beside a queue ---------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Records the age of the oldest snapshot of the readers, ten times a second."""

    dsn: str
    oldest: float = 0.0
    looks: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as sql:
            while not self._over.wait(0.1):
                row = sql.execute(HELD, ([sql.info.backend_pid],)).fetchone()
                self.looks += 1
                self.oldest = max(self.oldest, float(row[0] or 0.0) if row else 0.0)


def drained(dsn: str, tasks: int) -> float:
    """Returns the tasks a second that a plain loop in one process claims and settles."""
    with Penstock(dsn) as app:
        queue = app.queue("bench")
        queue.push_many({"n": n} for n in range(tasks))
        began, done = time.perf_counter(), 0
        while claim := queue.claim(500):
            queue.settle(claim)
            done += len(claim)
        return done / (time.perf_counter() - began)


def beside(spark_bench: SparkBench, rows: int = ROWS, rounds: int = ROUNDS) -> bool:
    """A queue that one process drains, while history is read again and again, and alone; and the oldest snapshot."""
    server, spark = spark_bench.server, spark_bench.spark
    with server.database() as dsn, server.sql(dsn) as sql, ProcessPoolExecutor(1, SPAWN) as other:
        filled(sql, rows)
        timed(ours(spark, dsn), rows)
        oldest: list[float] = []

        def alone() -> float:
            return other.submit(drained, dsn, TASKS).result()

        def while_read() -> float:
            over = threading.Event()
            thread = threading.Thread(target=reading, args=(spark, dsn, over), daemon=True)
            thread.start()
            time.sleep(2.0)
            with Watch(dsn) as watch:
                found = alone()
            over.set()
            thread.join()
            assert watch.looks > 10
            oldest.append(watch.oldest)
            return found

        found = alternate(rounds, {"read beside": while_read, "alone": alone})
    share = ratio(found["read beside"], found["alone"])
    for name, rates in found.items():
        print(f"  {name:<12} tasks/s {spread(rates)}")
    report("spark-read-beside", {"tasks/s": found, "ratio": share, "oldest snapshot, s": oldest})
    kept = judged("a queue's drain rate while history is read", share, 0.85, at_least=True)
    return judged("the oldest snapshot held by reading, s", max(oldest), 5.0, at_least=False) and kept


def reading(spark: SparkSession, dsn: str, over: threading.Event) -> None:
    while not over.is_set():
        timed(ours(spark, dsn), 1)
