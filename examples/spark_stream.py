"""Spark on both ends: a DataFrame is loaded into a queue, and the queue is drained as a stream. Both may be killed at
any time and started again: no row is loaded twice, and no task is lost. It needs `pip install 'penstock[spark]'`.

penstock up
python examples/spark_stream.py
"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock import Outcome, Penstock
from penstock import spark as penstock_spark

QUEUE = "readings"


def load(spark: SparkSession) -> None:
    """Loads 10,000 readings, of which three are broken. Writing the same job again adds nothing."""
    readings = spark.range(10_000).selectExpr(
        "concat('reading/', id) as subject",
        "named_struct('sensor', id % 7, 'value', if(id % 4000 = 1, null, id * 0.5)) as payload",
    )
    for _ in range(2):
        report = penstock_spark.push(readings, QUEUE, txn_app_id="load", txn_version=1)
        print(f"{report.rows} rows, {report.created} created")


def keep(batch: DataFrame, number: int, place: Path) -> None:
    """Writes good readings to the lake, under the number of their batch. Broken ones fail and are tried again."""
    values = batch.selectExpr("*", "get_json_object(payload, '$.value') as value")
    values.where("value is not null").write.mode("overwrite").parquet(str(place / f"batch={number}"))
    broken = values.where("value is null").select("id", "queue", "token").collect()
    penstock_spark.note_outcomes((row, Outcome.failed("no value")) for row in broken)


def drain(spark: SparkSession, place: Path) -> None:
    tasks = spark.readStream.format("penstock").option("queue", QUEUE).option("maxRowsPerTrigger", 4000).load()
    query = (
        tasks.writeStream.foreachBatch(lambda batch, number: keep(batch, number, place / "lake"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-spark-"))
    with Penstock() as app:
        app.init()
        queue = app.create_queue(QUEUE, sla="1m", exist_ok=True)
        session = penstock_spark.session("readings", **{"spark.ui.enabled": False})
        load(session)
        drain(session, home)
        status, rows = queue.status(), session.read.parquet(str(home / "lake")).count()
        print(f"{rows} readings in {home}/lake; {status.totals['done']} done, {status.planned} to be tried again")
        session.stop()
