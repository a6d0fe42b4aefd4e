"""Bronze: history and samples as PostgreSQL has them, from the window of transactions after the last one of the lake.

The rows and the end of their window are one change of the lake. A window is in the lake completely, or it is read
again, with the same rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.client import history
from penstock.model import Window
from penstock.pipeline.lake.schemas import DAY, HISTORY, SAMPLE, LakeTable
from penstock.pipeline.lake.state import File
from penstock.pipeline.stages.sample_rows import read_samples
from penstock.pipeline.work import Work
from penstock.spark.history import read_history

MAX_FILES = 32  # of a day; more are rewritten as one, because a run every minute adds a file each time
PARTITIONS = 8


def bronze(work: Work) -> dict[str, int]:
    """Adds what is new. Upkeep keeps the rows in PostgreSQL until they are in the lake."""
    state = work.lake.state
    history.note_reader(
        work.database, state.reader, state.passed or history.read_horizon(work.database)._replace(xid=0)
    )
    now = history.note_horizon(work.database)
    window = Window(state.passed or now._replace(xid=0), now)
    found = {HISTORY.name: stage_history(work, window), SAMPLE.name: stage_samples(work, window)}
    added = {name: days for name, days in found.items() if days}
    if added or state.passed is None:
        work.lake.commit(adds=added, passed=now, began=state.began or now)
    history.note_reader(work.database, state.reader, now)
    for table in (HISTORY, SAMPLE):
        compact(work, table)
    return {name: count_rows(days) for name, days in found.items()}


def stage_history(work: Work, window: Window) -> dict[str, tuple[File, ...]]:
    if not history.was_written(work.database, window.start, window.end):
        return {}
    work.tell(f"transactions {window.start.xid:,} to {window.end.xid:,}")
    scope = work.lake.state.scope
    frame = read_history(
        work.spark, dsn=work.dsn, since=scope.since, window=(window.start, window.end), partitions=PARTITIONS
    )
    return work.lake.stage(filter_scope(work, frame).withColumn(DAY, f.to_date("finished_at")), HISTORY)


def stage_samples(work: Work, window: Window) -> dict[str, tuple[File, ...]]:
    frame = read_samples_in_scope(work, window)
    return {} if frame is None else work.lake.stage(frame.coalesce(PARTITIONS), SAMPLE)


def read_samples_in_scope(work: Work, window: Window) -> DataFrame | None:
    """Returns the samples of a window that belong to the lake. None: no sample was written in the window."""
    frame, since = read_samples(work, window), work.lake.state.scope.since
    if frame is not None and since is not None:
        frame = frame.where(f.col("at") >= f.lit(since).cast("timestamp"))
    return None if frame is None else filter_scope(work, frame)


def filter_scope(work: Work, frame: DataFrame) -> DataFrame:
    queues = work.lake.state.scope.queues
    return frame.where(f.col("queue").isin(*queues)) if queues else frame


def compact(work: Work, table: LakeTable) -> None:
    """Rewrites each day that has many small files as one file."""
    state = work.lake.state
    days = [day for day in state.days(table.name) if len(state.files(table.name, {day})) > MAX_FILES]
    for day in days:
        work.tell(f"{table.name} of {day} in one file")
        staged = work.lake.stage(work.lake.read(work.spark, table.name, [day]).coalesce(1), table)
        work.lake.commit(replaces={table.name: staged})


def count_rows(days: dict[str, tuple[File, ...]]) -> int:
    return sum(file.rows for files in days.values() for file in files)
