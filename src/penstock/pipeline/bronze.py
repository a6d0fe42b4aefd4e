"""Bronze: history and samples as they came, from the window of transactions after the last one that the lake has.

The rows and how far they go are one change of the lake: a window is there, whole, or it is read again, the same."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock import queue as seam
from penstock.model import Window
from penstock.pipeline.lake import File
from penstock.pipeline.samples import sampled
from penstock.pipeline.schemas import DAY, HISTORY, SAMPLE, Table
from penstock.pipeline.work import Work
from penstock.spark.history import read_history

MOST_FILES = 32  # of a day: then they become few again, or who comes every minute would drown in them
PARTS = 8


def bronze(work: Work) -> dict[str, int]:
    """What is new. Upkeep keeps it from before the first look until it is in the lake."""
    state, now = work.lake.state, seam.horizon(work.database)
    seam.note_reader(work.database, state.reader, state.passed or now._replace(xid=0))
    now = seam.horizon(work.database)
    window = Window(state.passed or now._replace(xid=0), now)
    found = {HISTORY.name: new_history(work, window), SAMPLE.name: new_samples(work, window)}
    added = {name: days for name, days in found.items() if days}
    if added or state.passed is None:
        work.lake.commit(adds=added, passed=now, began=state.began or now)
    seam.note_reader(work.database, state.reader, now)
    for table in (HISTORY, SAMPLE):
        compact(work, table)
    return {name: rows_in(days) for name, days in found.items()}


def new_history(work: Work, window: Window) -> dict[str, tuple[File, ...]]:
    if not seam.written(work.database, window.start, window.end):
        return {}
    work.tell(f"transactions {window.start.xid:,} to {window.end.xid:,}")
    scope = work.lake.state.scope
    frame = read_history(
        work.spark, dsn=work.dsn, since=scope.since, window=(window.start, window.end), partitions=PARTS
    )
    return work.lake.stage(of_scope(work, frame).withColumn(DAY, f.to_date("finished_at")), HISTORY)


def new_samples(work: Work, window: Window) -> dict[str, tuple[File, ...]]:
    frame = sampled(work, window)
    if frame is None:
        return {}
    since = work.lake.state.scope.since
    if since is not None:
        frame = frame.where(f.col("at") >= f.lit(since).cast("timestamp"))
    return work.lake.stage(of_scope(work, frame).coalesce(PARTS), SAMPLE)


def of_scope(work: Work, frame: DataFrame) -> DataFrame:
    queues = work.lake.state.scope.queues
    return frame.where(f.col("queue").isin(*queues)) if queues else frame


def compact(work: Work, table: Table) -> None:
    """Days of many small files, each again as one."""
    state = work.lake.state
    days = [day for day in state.days(table.name) if len(state.files(table.name, {day})) > MOST_FILES]
    for day in days:
        work.tell(f"{table.name} of {day} in one file")
        staged = work.lake.stage(work.lake.read(work.spark, table.name, [day]).coalesce(1), table)
        work.lake.commit(replaces={table.name: staged})


def rows_in(days: dict[str, tuple[File, ...]]) -> int:
    return sum(file.rows for files in days.values() for file in files)
