"""The bars of reading history into Spark: python bench/spark_read.py rate|beside|all

rate: 5 M rows, beside Spark's own JDBC reader. beside: how fast a queue is drained while they are read, and the oldest
snapshot that reading holds."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

if __name__ in ("__main__", "__mp_main__"):
    # Run as a script, bench/queue.py would stand before the standard library's `queue`.
    sys.path[0] = str(Path(__file__).parent.parent)

from concurrent.futures import Executor, ProcessPoolExecutor

import psycopg
from pyspark.sql import DataFrame, SparkSession

from bench.harness import Bench, alternate, bench, judged, ratio, report, spread
from penstock import Penstock
from penstock.spark import read_history

SETUP = Path(__file__).parent.parent / "scripts/setup-jdbc"
SPAWN = multiprocessing.get_context("spawn")
ROUNDS = 3
ROWS = 5_000_000
TASKS = 150_000
DAYS = 4
# As settle writes them: half with subjects, every fiftieth failed.
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


@contextmanager
def session(jar: str) -> Iterator[SparkSession]:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraClassPath": jar,
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("bench")
    spark = builder.config(map=settings).getOrCreate()
    yield spark
    spark.stop()


def filled(sql: psycopg.Connection, rows: int) -> None:
    sql.execute(f"select penstock.make_history(current_date - n) from generate_series(0, {DAYS}) as n".encode())
    sql.execute(FILL.format(rows=rows, days=DAYS).encode())
    sql.execute("vacuum analyze penstock.history")
    sql.execute("checkpoint")


def ours(spark: SparkSession, dsn: str) -> DataFrame:
    return read_history(spark, dsn=dsn, partitions=4)


def theirs(spark: SparkSession, dsn: str) -> DataFrame:
    """Its bounds are moments, so that each of its queries reads one day and no more: the best it can do here."""
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    password = Path(str(told["passfile"])).read_text("utf-8").strip().rpartition(":")[2]
    with psycopg.connect(dsn) as sql:
        bounds = sql.execute("select min(finished_at)::text, max(finished_at)::text from penstock.history").fetchone()
    assert bounds is not None
    return (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://127.0.0.1:{told['port']}/{told['dbname']}")
        .options(user=told["user"], password=password, driver="org.postgresql.Driver", dbtable="penstock.history")
        .options(partitionColumn="finished_at", lowerBound=bounds[0][:19], upperBound=bounds[1][:19])
        .options(numPartitions=4, fetchsize=10_000)
        .load()
    )


def timed(frame: DataFrame, rows: int) -> float:
    """Rows a second, all columns of them. The plan is made anew each time, as for whoever reads once."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - began)


def rate(server: Bench, spark: SparkSession, rows: int, rounds: int) -> bool:
    with server.database() as dsn, server.sql(dsn) as sql:
        filled(sql, rows)
        sides: dict[str, Callable[[], float]] = {
            "penstock": lambda: timed(ours(spark, dsn), rows),
            "jdbc": lambda: timed(theirs(spark, dsn), rows),
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
    """The oldest snapshot of those that read, looked at ten times a second."""

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
    """Tasks a second, by one process, as a plain loop takes and settles them."""
    with Penstock(dsn) as app:
        queue = app.queue("bench")
        queue.push_many({"n": n} for n in range(tasks))
        began, done = time.perf_counter(), 0
        while claim := queue.claim(500):
            queue.settle(claim)
            done += len(claim)
        return done / (time.perf_counter() - began)


def beside(server: Bench, spark: SparkSession, rows: int, rounds: int, other: Executor) -> bool:
    with server.database() as dsn, server.sql(dsn) as sql:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rate", "beside", "all"])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nice", action="store_true", help="Spark steps back")
    asked = parser.parse_args()
    names = ["rate", "beside"] if asked.what == "all" else [asked.what]
    jar = subprocess.run([SETUP], capture_output=True, text=True, check=True).stdout.strip()
    with bench() as server, ProcessPoolExecutor(1, SPAWN) as other:
        other.submit(os.getpid).result()
        if asked.nice:
            os.nice(19)  # after the server and the drainer: Java, and all that it starts, inherits it
        with session(jar) as spark:
            kept = [
                rate(server, spark, asked.rows, asked.rounds)
                if name == "rate"
                else beside(server, spark, asked.rows, asked.rounds, other)
                for name in names
            ]
    sys.exit(not all(kept))


if __name__ == "__main__":
    main()
