"""Reads the samples of a window of transactions into a DataFrame: one Spark task for each day, in one short
transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.client import history
from penstock.client.statements.history import sample_rows
from penstock.model import Window
from penstock.pipeline.lake.schemas import DAY, SAMPLE, TOTALS
from penstock.pipeline.work import Work
from penstock.spark.history import TYPES, connect_arrow
from penstock.spark.options import Address

ARROW = pa.schema(
    [(name, {**TYPES, "double": pa.float64()}[kind]) for name, kind, _ in SAMPLE.columns] + [(DAY, pa.date32())]
)


def read_samples(work: Work, window: Window) -> DataFrame | None:
    """Returns the samples of a window. None: no sample was written in it."""
    days = history.sample_days(work.database, window)
    if not days:
        return None
    names = history.queue_names(work.database)
    of_days = work.spark.createDataFrame([(day,) for day in days], f"{DAY} date").repartition(len(days))
    return of_days.mapInArrow(make_reader(work.dsn, window, names), SAMPLE.schema)


def make_reader(
    dsn: str, window: Window, names: Mapping[int, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        days = [day for batch in batches for day in batch[DAY].to_pylist()]
        if not days:
            return
        with connect_arrow(Address(dsn)) as arrow:
            for day in days:
                found = arrow.table(sample_rows(window, list(names), day, TOTALS))
                yield from add_names(found, names, day).to_batches(20_000)

    return read


def add_names(table: pa.Table, names: Mapping[int, str], day: date) -> pa.Table:
    ours = {
        "queue": pa.array([names.get(one) for one in table["queue_id"].to_pylist()], pa.string()),
        DAY: pa.array([day] * table.num_rows, pa.date32()),
    }
    columns = [ours[field.name] if field.name in ours else table[field.name].cast(field.type) for field in ARROW]
    return pa.Table.from_arrays(columns, schema=ARROW)
