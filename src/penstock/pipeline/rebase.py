"""A lake whose database was restored into another cluster: from now on it is of that one.

The numbers of transactions mean nothing there, so rows are told by their ids. What the lake lacks is added. If the lake
has rows that the restored history lacks, the backup is older than the lake: both have gone their own ways."""

from __future__ import annotations

from pyspark.sql import DataFrame

from penstock import queue as seam
from penstock.errors import Conflict
from penstock.model import Window
from penstock.pipeline.bronze import PARTS, of_scope, rows_in
from penstock.pipeline.samples import sampled
from penstock.pipeline.schemas import DAY, HISTORY, SAMPLE
from penstock.pipeline.work import Work
from penstock.spark.history import read_history


def rebase(work: Work) -> dict[str, int]:
    state, now = work.lake.state, seam.horizon(work.database)
    seam.note_reader(work.database, state.reader, now._replace(xid=0))
    now = seam.horizon(work.database)
    window = Window(now._replace(xid=0), now)
    ours = work.lake.read(work.spark, HISTORY.name)
    theirs = of_scope(
        work, read_history(work.spark, dsn=work.dsn, since=state.scope.since, window=window[:2], partitions=PARTS)
    )
    check(ours, theirs, work)
    fresh = theirs.join(ours.select("id"), "id", "left_anti").selectExpr("*", f"to_date(finished_at) as {DAY}")
    added = {HISTORY.name: work.lake.stage(fresh, HISTORY)}
    samples = sampled(work, window)
    if samples is not None:
        known = work.lake.read(work.spark, SAMPLE.name).select("queue_id", "at")
        new = of_scope(work, samples).join(known, ["queue_id", "at"], "left_anti")
        added[SAMPLE.name] = work.lake.stage(new, SAMPLE)
    began = now._replace(dropped=state.began.dropped if state.began else now.dropped)
    work.lake.commit(adds=added, system=now.system, database=now.database, passed=now, began=began)
    seam.note_reader(work.database, state.reader, now)
    return {name: rows_in(days) for name, days in added.items()}


def check(ours: DataFrame, theirs: DataFrame, work: Work) -> None:
    """In days that history still has, it has all of the lake's rows, with the same in them."""
    keys = ["id", "task_id", "finished_at", "outcome"]
    days = [span.day for span in seam.find_spans(work.database, whole(work), roughly=True)]
    lost = ours.where(ours[DAY].isin(days)).select(*keys).join(theirs.select(*keys), keys, "left_anti")
    rows = lost.count()
    if rows:
        raise Conflict(
            f"lake: it has {rows:,} rows that this history lacks: the backup is older than the lake",
            hint="Begin a new lake in another directory.",
        )


def whole(work: Work) -> Window:
    now = seam.horizon(work.database)
    return Window(now._replace(xid=0), now)
