"""Queues as streams in Spark: from readStream to a sink, and again after a restart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from penstock import Outcome, Penstock, Queue
from penstock.spark.outcomes import note_outcomes

SECONDS = 120


def tasks(spark: SparkSession, dsn: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("penstock").option("dsn", dsn).option("queue", "work")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def swallow(frame: DataFrame, _: int) -> None:
    frame.collect()


def run(frame: DataFrame, sink: Any, checkpoint: Path) -> Any:
    """Streams all present tasks into a sink, and returns the query when it has ended."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    return query


def test_a_queue_is_drained_batch_by_batch(spark: SparkSession, queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.push_many([{"n": n} for n in range(500)])
    seen: dict[int, list[int]] = {}

    def sink(frame: DataFrame, batch: int) -> None:
        numbers = frame.select(f.get_json_object("payload", "$.n").cast("int").alias("n"))
        seen[batch] = [row.n for row in numbers.collect()]
        assert frame.rdd.getNumPartitions() == 3
        if batch == 0:
            queue.push({"n": -1})

    query = run(tasks(spark, dsn, maxRowsPerTrigger=200, numPartitions=3), sink, tmp_path / "c")
    assert [len(seen[batch]) for batch in sorted(seen)] == [200, 200, 100]
    assert sorted(n for some in seen.values() for n in some) == list(range(500))
    status = queue.status()
    assert (status.pending, status.active, status.totals["done"]) == (1, 0, 500), "the last batch is settled too"
    backlogs = [json.loads(one.sources[0].latestOffset)["backlog"] for one in query.recentProgress if one.numInputRows]
    assert backlogs == [300, 101, 1], "the backlog after each claim"


def test_a_sink_that_fails_is_given_the_same_again(spark: SparkSession, queue: Queue, dsn: str, tmp_path: Path) -> None:
    """The outcomes that it gave single tasks count."""
    queue.push_many([{"n": n} for n in range(40)])
    given: list[list[Row]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        given.append(rows)
        if len(given) == 1:
            raise ValueError("not today")
        if batch == 0:
            note_outcomes([(rows[0], Outcome.dead("no")), (rows[1], Outcome.failed("perhaps"))], dsn=dsn)

    frame = tasks(spark, dsn, maxRowsPerTrigger=25)
    with pytest.raises(StreamingQueryException, match="not today"):
        run(frame, sink, tmp_path / "c")
    assert queue.status().active == 25
    run(frame, sink, tmp_path / "c")
    first, again, rest = ([(row.id, row.payload, row.attempt) for row in rows] for rows in given)
    assert first == again
    assert len(rest) == 15
    assert {row.token for row in given[0]}.isdisjoint(row.token for row in given[1]), (
        "the leases of the first query are no longer valid"
    )
    status = queue.status()
    assert (status.totals["done"], status.dead, status.planned, status.active) == (38, 1, 1, 0)


def test_a_checkpoint_of_another_group(spark: SparkSession, queue: Queue, dsn: str, tmp_path: Path) -> None:
    """B107: a checkpoint only works with its own group."""
    queue.push_many([{}] * 10)
    run(tasks(spark, dsn), swallow, tmp_path / "c")
    queue.push()
    with pytest.raises(StreamingQueryException) as error:
        run(tasks(spark, dsn, consumerGroup="other"), swallow, tmp_path / "c")
    said = str(error.value)
    assert "ConfigError: checkpointLocation: it is of consumerGroup 'default' of queue 'work', not 'other'" in said
    assert "Every query needs a checkpointLocation of its own." in said
    assert queue.status().pending == 1


def test_a_continuous_query_settles_as_it_goes(
    spark: SparkSession, app: Penstock, queue: Queue, dsn: str, tmp_path: Path
) -> None:
    """Tasks are not done if the query is stopped in its sink: the next query gets them."""
    queue.push_many([{}] * 10)
    query = (
        tasks(spark, dsn).writeStream.foreachBatch(swallow).option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        for _ in range(SECONDS * 10):
            if queue.status().totals["done"] == 10:
                break
            assert query.isActive
            time.sleep(0.1)
        queue.push_many([{}] * 5)
        query.processAllAvailable()
    finally:
        query.stop()
    run(tasks(spark, dsn), swallow, tmp_path / "c")
    assert queue.status().totals["done"] == 15


def test_options_are_checked_before_connecting(spark: SparkSession, tmp_path: Path) -> None:
    frame = tasks(spark, "postgresql://127.0.0.1:1/nowhere", numPartition=2)
    with pytest.raises((AnalysisException, StreamingQueryException), match="Did you mean numPartitions"):
        run(frame, lambda *_: None, tmp_path / "c")
