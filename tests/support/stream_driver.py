"""A Spark driver as users write one: it streams tasks out of queues into a sink that writes each effect once.

As a program it runs the queries of a JSON file until it is ended. A sink can stop at a point that the test names, and
goes on when the test says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import LeaseLost, Outcome
from penstock.spark.outcomes import note_outcomes

TABLES = """
    create schema sink;
    create table sink.ledger (key text primary key);
    create table sink.effect (task bigint not null, query text not null);
"""


@dataclass(frozen=True)
class Asked:
    """One query. Its sink stops in Spark's second batch: before its transaction, in the midst of it, or after."""

    dsn: str
    checkpoint: str
    rows: int = 20
    ledger: Literal["batch", "run"] = "batch"
    stop: Literal["before", "midst", "after"] | None = None
    name: str = "driver"

    @property
    def at(self) -> Path:
        return Path(f"{self.checkpoint}.at")

    @property
    def go(self) -> Path:
        return Path(f"{self.checkpoint}.go")

    @property
    def told(self) -> Path:
        return Path(f"{self.checkpoint}.told")


def begin(spark: SparkSession, asked: Asked, *, available_now: bool = False) -> StreamingQuery:
    tasks = (
        spark.readStream.format("penstock")
        .option("dsn", asked.dsn)
        .option("queue", "work")
        .option("maxRowsPerTrigger", asked.rows)
        .load()
    )
    writer = tasks.writeStream.foreachBatch(ledgered(asked)).option("checkpointLocation", asked.checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def ledgered(asked: Asked) -> Callable[[DataFrame, int], None]:
    """Returns a sink that writes effects and ledger in one transaction. The key is Spark's batch, or the run of the
    task, which does not depend on the checkpoint."""

    def pause(where: str, batch: int) -> None:
        if asked.stop == where and batch == 1:
            asked.at.touch()
            while not asked.go.exists():
                time.sleep(0.02)

    def key(row: Any, batch: int) -> str:
        if asked.ledger == "batch":
            return f"{asked.checkpoint} {batch} {row.id}"
        return f"{row.id} {row.iterations} {row.attempt}"

    def sink(frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        pause("before", batch)
        with psycopg.connect(asked.dsn) as connection:
            for n, row in enumerate(rows):
                if n == len(rows) // 2:
                    pause("midst", batch)
                new = connection.execute(
                    "insert into sink.ledger values (%s) on conflict do nothing returning key", (key(row, batch),)
                ).fetchone()
                if new is not None:
                    connection.execute("insert into sink.effect (task, query) values (%s, %s)", (row.id, asked.name))
        pause("after", batch)
        if asked.stop == "before" and batch == 1:  # a zombie: what it settles now must not count
            try:
                note_outcomes([(row, Outcome.dead("said by a zombie")) for row in rows], dsn=asked.dsn)
                asked.told.write_text("accepted")
            except LeaseLost as error:
                asked.told.write_text(f"LeaseLost {len(error.refused)}")

    return sink


def session() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def write(asked: list[Asked], path: Path) -> None:
    path.write_text(json.dumps([asdict(one) for one in asked]))


def main() -> None:
    spark = session()
    queries = []
    for one in json.loads(Path(sys.argv[1]).read_text()):
        queries.append(begin(spark, Asked(**one)))
        while queries[-1].isActive and queries[-1].lastProgress is None:
            time.sleep(0.05)  # one by one: Spark gives a reader ten seconds to start, and the machine may be busy
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
