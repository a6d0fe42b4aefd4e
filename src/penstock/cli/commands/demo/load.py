"""Makes the tasks of the demo, as a Parquet file for Spark or in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.commands.pipeline import QUIET_SPARK, silence_children
from penstock.model import NewTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "demo"
POISON_TASKS = 12
SUBJECT_EVERY, PLANNED_EVERY = 10, 20  # one of so many tasks has a subject, or is planned for later
MIN_DELAY = 2  # seconds, of planned tasks
SPARK_SETTINGS = {**QUIET_SPARK, "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 2}


@contextmanager
def open_spark() -> Iterator[SparkSession]:
    from penstock.spark import session  # noqa: PLC0415 - an extra

    with silence_children(True):
        spark = session("penstock demo", master="local[*]", **SPARK_SETTINGS)
    try:
        yield spark
    finally:
        spark.stop()


def write_parquet(spark: SparkSession, file: Path, count: int) -> None:
    make_frame(spark, count).write.mode("overwrite").parquet(str(file))


def push_parquet(spark: SparkSession, file: Path, dsn: str) -> int:
    from penstock.spark import push  # noqa: PLC0415 - an extra

    return push(spark.read.parquet(str(file)), QUEUE, dsn=dsn).created


def make_frame(spark: SparkSession, count: int) -> DataFrame:
    """Makes the same tasks as `make_tasks`, as rows of a DataFrame."""
    step = find_poison_step(count)
    cents = f"if(id % {step} = 7 and id < {step * POISON_TASKS}, -1, id % 9973)"
    later = f"timestampadd(SECOND, {MIN_DELAY} + id % {spread_seconds(count)}, current_timestamp())"
    return spark.range(count).selectExpr(
        f"named_struct('invoice', id, 'to', concat('customer-', id, '@example.com'), 'cents', {cents}) as payload",
        "'bill' as kind",
        f"if(id % {SUBJECT_EVERY} = 0, concat('invoice/', id), null) as subject",
        f"if(id % {PLANNED_EVERY} = 0, {later}, null) as due",
    )


def make_tasks(count: int, first: int = 0) -> Iterator[NewTask]:
    now, step = datetime.now(UTC), find_poison_step(count)
    for n in range(first, first + count):
        later = now + timedelta(seconds=MIN_DELAY + n % spread_seconds(count))
        poison = not first and n % step == 7 and n < step * POISON_TASKS
        yield NewTask(
            {"invoice": n, "to": f"customer-{n}@example.com", "cents": -1 if poison else n % 9973},
            subject=f"invoice/{n}" if n % SUBJECT_EVERY == 0 else None,
            kind="bill",
            due=later if n % PLANNED_EVERY == 0 else None,
        )


def spread_seconds(count: int) -> int:
    """Returns the seconds over which planned tasks are spread. They are few in a small demo."""
    return min(1 + count // 10_000, 15)


def find_poison_step(count: int) -> int:
    return max(count // POISON_TASKS, 8)
