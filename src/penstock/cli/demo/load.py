"""Where the demo's tasks come from: a Parquet file and Spark, or Python alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.pipeline import QUIET, unheard
from penstock.model import NewTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "demo"
POISONED = 12
NAMED, PLANNED = 10, 20  # every so many-th has a subject, or is for later
SOONEST = 2  # seconds from now
SETTINGS = {**QUIET, "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 2}


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    from penstock.spark import session  # noqa: PLC0415 - an extra

    with unheard(True):
        spark = session("penstock demo", master="local[*]", **SETTINGS)
    try:
        yield spark
    finally:
        spark.stop()


def write_parquet(spark: SparkSession, file: Path, count: int) -> None:
    frame(spark, count).write.mode("overwrite").parquet(str(file))


def push_parquet(spark: SparkSession, file: Path, dsn: str) -> int:
    from penstock.spark import push  # noqa: PLC0415 - an extra

    return push(spark.read.parquet(str(file)), QUEUE, dsn=dsn).created


def frame(spark: SparkSession, count: int) -> DataFrame:
    """What `tasks` gives, as rows."""
    step = poison_step(count)
    cents = f"if(id % {step} = 7 and id < {step * POISONED}, -1, id % 9973)"
    later = f"timestampadd(SECOND, {SOONEST} + id % {span(count)}, current_timestamp())"
    return spark.range(count).selectExpr(
        f"named_struct('invoice', id, 'to', concat('customer-', id, '@example.com'), 'cents', {cents}) as payload",
        "'bill' as kind",
        f"if(id % {NAMED} = 0, concat('invoice/', id), null) as subject",
        f"if(id % {PLANNED} = 0, {later}, null) as due",
    )


def tasks(count: int, first: int = 0) -> Iterator[NewTask]:
    now, step = datetime.now(UTC), poison_step(count)
    for n in range(first, first + count):
        later = now + timedelta(seconds=SOONEST + n % span(count))
        poison = not first and n % step == 7 and n < step * POISONED
        yield NewTask(
            {"invoice": n, "to": f"customer-{n}@example.com", "cents": -1 if poison else n % 9973},
            subject=f"invoice/{n}" if n % NAMED == 0 else None,
            kind="bill",
            due=later if n % PLANNED == 0 else None,
        )


def span(count: int) -> int:
    """Seconds over which the planned ones are spread: nobody waits long for a small demo."""
    return min(1 + count // 10_000, 15)


def poison_step(count: int) -> int:
    return max(count // POISONED, 8)
