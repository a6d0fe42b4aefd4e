"""The bars of writing DataFrames into a queue."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession

from bench.support.harness import alternate, judged, ratio, report, spread
from bench.support.spark_bench import ROUNDS, SparkBench
from penstock import NewTask, Penstock
from penstock.model import Json


def write(spark_bench: SparkBench, rows: int = 1_000_000, rounds: int = ROUNDS) -> bool:
    """df.write against push_many by one plain process, and against Spark's JDBC writer, into the real task table."""
    frame = frame_of(spark_bench.spark, rows)
    items, names = payloads(rows), [f"customer-{n:09d}" for n in range(rows)]
    plain, named = frame.select("payload"), frame.select("payload", "subject")
    print(f"warming up: {written(spark_bench, plain.limit(rows // 10), rows // 10):,.0f} tasks/s", flush=True)
    found = alternate(
        rounds,
        {
            "push_many": lambda: pushed(spark_bench, items, None),
            "spark": lambda: written(spark_bench, plain, rows),
            "jdbc": lambda: through_jdbc(spark_bench, plain.limit(rows // 5).repartition(2), rows // 5),
            "push_many, subjects": lambda: pushed(spark_bench, items, names),
            "spark, subjects": lambda: written(spark_bench, named, rows),
        },
    )
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    ratios = {
        "plain": ratio(found["spark"], found["push_many"]),
        "subjects": ratio(found["spark, subjects"], found["push_many, subjects"]),
        "jdbc": ratio(found["spark"], found["jdbc"]),
    }
    report("spark_write", {"rows": rows, "rates": found, "ratios": ratios})
    return all(
        [
            judged("Spark write / push_many", ratios["plain"], 0.9, at_least=True),
            judged("Spark write / push_many, with subjects", ratios["subjects"], 0.9, at_least=True),
            judged("Spark write / Spark's JDBC writer", ratios["jdbc"], 3.0, at_least=True),
        ]
    )


def payloads(count: int) -> list[Json]:
    """Makes payloads of about 100 bytes of JSON each, the same as `frame_of`."""
    return [{"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50} for n in range(count)]


def frame_of(spark: SparkSession, count: int) -> DataFrame:
    """Makes a DataFrame in memory, as the other side's list is."""
    note = "x" * 50
    frame = spark.range(0, count, 1, 2).selectExpr(
        f"""concat('{{"invoice":', id, ',"to":"customer-', id, '@example.com","note":"{note}"}}') as payload""",
        "concat('customer-', lpad(id, 9, '0')) as subject",
    )
    frame.cache().count()
    return frame


def pushed(spark_bench: SparkBench, items: list[Json], names: list[str] | None) -> float:
    with spark_bench.server.database() as dsn, Penstock(dsn) as penstock:
        queue = penstock.queue("bench")
        queue.status()
        began = time.perf_counter()
        if names is None:
            done = queue.push_many(items)
        else:
            done = queue.push_many(NewTask(row, name) for row, name in zip(items, names, strict=True))
        seconds = time.perf_counter() - began
        assert done.created == len(items)
        return len(items) / seconds


def written(spark_bench: SparkBench, frame: DataFrame, rows: int) -> float:
    with spark_bench.server.database() as dsn, Penstock(dsn) as penstock:
        began = time.perf_counter()
        frame.write.format("penstock").options(queue="bench", dsn=dsn).mode("append").save()
        seconds = time.perf_counter() - began
        assert penstock.queue("bench").status().pending == rows
        return rows / seconds


def through_jdbc(spark_bench: SparkBench, frame: DataFrame, rows: int) -> float:
    """Writes by JDBC, with a fifth of the rows: it is that much slower, and its rate is the same with all rows."""
    with spark_bench.server.database() as dsn, Penstock(dsn) as penstock:
        found = frame.selectExpr("1 as queue_id", "payload")
        found.cache().count()
        began = time.perf_counter()
        found.write.format("jdbc").options(dbtable="penstock.task", **spark_bench.jdbc(dsn)).mode("append").save()
        seconds = time.perf_counter() - began
        found.unpersist()
        assert penstock.queue("bench").status().pending == rows
        return rows / seconds
