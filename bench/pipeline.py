"""The bars of the pipeline: python bench/pipeline.py stages|beside|all

stages: 5 M rows of history into a lake: rows a second of each stage, and a second run without new rows.
beside: how fast a queue is drained meanwhile, against a drain alone."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    # If this runs as a script, bench/queue.py would hide the standard library's `queue`.
    sys.path[0] = str(Path(__file__).parent.parent)

from concurrent.futures import Executor, ProcessPoolExecutor

import psycopg
from pyspark.sql import SparkSession

from bench.spark_read import DAYS, TASKS, Watch, drained, filled
from bench.support.harness import Bench, alternate, bench, judged, ratio, report, spread
from penstock.cli.commands.pipeline import NICE
from penstock.pipeline.run import StageOutcome, run
from penstock.pipeline.work import working
from penstock.spark import session as our_session

SPAWN = multiprocessing.get_context("spawn")
ROWS = 5_000_000
ROUNDS = 3
# Samples every ten seconds of these days, and counters that include the rows: otherwise reconcile would report them.
SAMPLED = """
    insert into penstock.sample (queue_id, at, planned, pending, active, done, dead, cancelled, oldest_age, sla,
                                 workers, totals)
    select 1, t, 0, 0, 0, 0, 0, 0, null, interval '8 s', 4,
           '{{"pushed": 0, "removed": 0, "done": 0, "failed": 0}}'
    from (select date_trunc('day', now()) as day) as today,
         generate_series(day - interval '{days} days', day, interval '10 s') as t
"""
NOTED = """
    insert into penstock.counter as c (queue_id, xid, metric, value)
    select h.queue_id, l.sums, h.outcome || '_total', count(*)
    from penstock.history as h join penstock.watermark as l using (queue_id) group by 1, 2, 3
    on conflict (queue_id, xid, metric) do update set value = excluded.value
"""


@contextmanager
def session() -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "ERROR",
        "spark.driver.memory": "4g",
    }
    spark = our_session("bench", master=f"local[{os.cpu_count()}]", **settings)
    yield spark
    spark.stop()


@contextmanager
def directory() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="penstock-lake-"))
    try:
        yield home / "lake"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def prepared(sql: psycopg.Connection, rows: int) -> None:
    filled(sql, rows)
    sql.execute(SAMPLED.format(days=DAYS).encode())
    sql.execute(NOTED)


def once(spark: SparkSession, lake: Path, dsn: str) -> list[StageOutcome]:
    with working(spark, lake, dsn=dsn) as work:
        found = run(work)
    assert all(one.ok for one in found), found[-1].answer
    return found


def stages(server: Bench, spark: SparkSession, rows: int) -> bool:
    with server.database() as dsn, server.sql(dsn) as sql:
        prepared(sql, min(rows, 1000))
        with directory() as warm:
            once(spark, warm, dsn)
    with server.database() as dsn, server.sql(dsn) as sql, directory() as lake:
        prepared(sql, rows)
        with Watch(dsn) as watch:
            first = once(spark, lake, dsn)
        second = once(spark, lake, dsn)
    took, empty = (sum(one.seconds for one in some) for some in (first, second))
    rates = {one.stage: rows / one.seconds for one in first}
    for name, found in rates.items():
        print(f"  {name:<12} rows/s {found:,.0f}")
    figures = {"rows": rows, "rows/s": rates, "seconds": took, "empty": empty, "oldest snapshot, s": watch.oldest}
    report("pipeline-stages", figures)
    return judged("a second, empty run against the first", empty / took, 0.25, at_least=False)


def beside(server: Bench, spark: SparkSession, rows: int, rounds: int, other: Executor) -> bool:
    with server.database() as dsn, server.sql(dsn) as sql:
        filled(sql, rows)

        def alone() -> float:
            return other.submit(drained, dsn, TASKS).result()

        def while_it_runs() -> float:
            over = threading.Event()
            thread = threading.Thread(target=running, args=(spark, dsn, over), daemon=True)
            thread.start()
            time.sleep(2.0)
            found = alone()
            over.set()
            thread.join()
            return found

        found = alternate(rounds, {"pipeline beside": while_it_runs, "alone": alone})
    for name, rates in found.items():
        print(f"  {name:<16} tasks/s {spread(rates)}")
    share = ratio(found["pipeline beside"], found["alone"])
    report("pipeline-beside", {"tasks/s": found, "ratio": share})
    return judged("a queue's drain rate while the pipeline runs", share, 0.8, at_least=True)


def running(spark: SparkSession, dsn: str, over: threading.Event) -> None:
    """Makes new lakes one after the other. The findings of reconcile about these rows do not matter."""
    while not over.is_set():
        with directory() as lake, working(spark, lake, dsn=dsn) as work:
            run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["stages", "beside", "all"])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    names = ["stages", "beside"] if asked.what == "all" else [asked.what]
    with bench() as server, ProcessPoolExecutor(1, SPAWN) as other:
        other.submit(os.getpid).result()
        os.nice(NICE)  # as the command does, but after the start of the server and the drainer, which do not
        with session() as spark:
            kept = [
                stages(server, spark, asked.rows)
                if name == "stages"
                else beside(server, spark, asked.rows, asked.rounds, other)
                for name in names
            ]
    sys.exit(not all(kept))


if __name__ == "__main__":
    main()
