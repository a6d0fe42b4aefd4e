"""Repairs a lake whose database was restored into another cluster, restored from an older copy, or failed over to a
standby that lagged. Transaction ids mean nothing then, so the lake is compared with history day by day.

Days that differ are read again: rows that no longer exist are removed, missing rows are added. Upkeep drops nothing
until then. From another cluster the lake only adds rows and removes none, because that cluster may be the wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.client import history
from penstock.errors import Conflict
from penstock.model import Horizon, Window
from penstock.pipeline.lake.schemas import DAY, HISTORY, SAMPLE
from penstock.pipeline.lake.state import File
from penstock.pipeline.stages.bronze import PARTITIONS, filter_scope, read_samples_in_scope
from penstock.pipeline.stages.history_counts import count_history
from penstock.pipeline.stages.release import hash_row, sum_copies
from penstock.pipeline.work import Work
from penstock.spark.history import read_history

MAX_SAMPLE_DELAY = timedelta(hours=1)  # a sample is written at most so long after its moment
ONE_DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RepairedDays:
    """The new files of the days of a table; a day without files is removed."""

    days: dict[str, tuple[File, ...]] = field(default_factory=dict)
    added: int = 0
    removed: int = 0


def rebase(work: Work) -> dict[str, int]:
    """Makes the lake equal to what its database has, or had before it dropped a day. The lake continues from there."""
    state, here = work.lake.state, history.read_horizon(work.database)
    elsewhere = (state.system, state.database) != here[:2]
    known = history.find_reader(work.database, state.reader)
    if known is None:
        history.note_reader(work.database, state.reader, here._replace(xid=0))
    # The note of a known reader stays until the end: it says what this database remembers of the reader, and while it
    # is of another branch, upkeep drops nothing.
    now = history.note_horizon(work.database)
    if elsewhere:
        refuse_older_copy(work, now)
    repaired = repair_history(work, now)
    samples = repair_samples(work, now, lambda theirs: None if elsewhere else find_drop_time(known, theirs))
    dropped = min(state.began.dropped if state.began else now.dropped, now.dropped)
    work.lake.commit(
        replaces={HISTORY.name: repaired.days, SAMPLE.name: samples.days},
        system=now.system,
        database=now.database,
        passed=now,
        began=now._replace(dropped=dropped),
    )
    history.note_reader(work.database, state.reader, now)
    return {
        "days": len({*repaired.days, *samples.days}),
        HISTORY.name: repaired.added,
        SAMPLE.name: samples.added,
        f"{HISTORY.name} removed": repaired.removed,
        f"{SAMPLE.name} removed": samples.removed,
    }


# --- history ----------------------------------------------------------------------------------------------------------


def repair_history(work: Work, now: Horizon) -> RepairedDays:
    """Makes days equal to what PostgreSQL has. Days that PostgreSQL dropped are kept: the lake had passed them."""
    dropped = {day for day, _ in history.history_gone(work.database, 0)}
    days = find_differing_days(work, now, dropped)
    if not days:
        return RepairedDays()
    work.tell(f"history of {len(days)} days again")
    fresh = read_days(work, now, days)
    before = work.lake.read(work.spark, HISTORY.name, days)
    kept = before.where(f.col(DAY).isin(*dropped)).join(fresh.select("id"), "id", "left_anti") if dropped else None
    wanted = fresh if kept is None else fresh.unionByName(kept)
    staged = work.lake.stage(wanted, HISTORY)
    after = work.lake.frame(work.spark, HISTORY, [file for files in staged.values() for file in files])
    return count_changes(before, after, hash_row(), days, staged)


def find_differing_days(work: Work, now: Horizon, dropped: Collection[date]) -> list[date]:
    """Returns the days of which history and the lake have different rows. If the lake begins in the middle of a day,
    that day cannot be compared, and always counts as different."""
    work.tell("history's days, row by row")
    scope = work.lake.state.scope
    first = date.min if scope.since is None else datetime.fromisoformat(scope.since).astimezone(UTC).date()
    names = history.queue_names(work.database)
    queues = {id_ for id_, name in names.items() if name in scope.queues} if scope.queues else None
    theirs = {day.day: day.of(queues) for day in count_history(work.database, now, thorough=True) if day.day >= first}
    theirs = {day: sums for day, sums in theirs.items() if sums[0]}
    there = {*theirs, *(day for day in work.lake.days(HISTORY.name) if day not in dropped)}
    ours = sum_copies(work, sorted(there))
    nothing = (0, 0)
    return sorted(
        day
        for day in there
        if theirs.get(day, nothing) != ours.get(day, nothing) or (scope.since is not None and day == first)
    )


def read_days(work: Work, now: Horizon, days: list[date]) -> DataFrame:
    since = to_midnight(days[0])
    if work.lake.state.scope.since is not None:
        since = max(since, datetime.fromisoformat(work.lake.state.scope.since))
    rows = read_history(
        work.spark,
        dsn=work.dsn,
        since=since,
        until=to_midnight(days[-1]) + ONE_DAY,
        window=(now._replace(xid=0), now),
        partitions=PARTITIONS,
    )
    return filter_scope(work, rows).withColumn(DAY, f.to_date("finished_at")).where(f.col(DAY).isin(*days))


def to_midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def refuse_older_copy(work: Work, now: Horizon) -> None:
    """Raises Conflict if history lacks rows of the lake in days that history still has."""
    keys = ["id", "task_id", "finished_at", "outcome"]
    window = Window(now._replace(xid=0), now)
    days = [span.day for span in history.find_spans(work.database, window, roughly=True)]
    since = work.lake.state.scope.since
    theirs = filter_scope(
        work, read_history(work.spark, dsn=work.dsn, since=since, window=window[:2], partitions=PARTITIONS)
    )
    ours = work.lake.read(work.spark, HISTORY.name)
    lost = ours.where(ours[DAY].isin(days)).select(*keys).join(theirs.select(*keys), keys, "left_anti")
    rows = lost.count()
    if rows:
        raise Conflict(
            f"lake: it has {rows:,} rows that this history lacks: the backup is older than the lake",
            hint="Begin a new lake in another directory.",
        )


# --- samples ----------------------------------------------------------------------------------------------------------


def find_drop_time(known: tuple[int, datetime] | None, theirs: DataFrame) -> datetime | None:
    """Returns the time before which a sample that PostgreSQL lacks was dropped as too old, and after which it was lost.

    Upkeep drops no sample that the lake has not passed, and lost samples were written after the lake's last run, as
    PostgreSQL remembers it. If PostgreSQL does not know the lake, the time is that of its oldest sample, because upkeep
    drops the oldest first. None: PostgreSQL has no samples.
    """
    if known is not None and known[0] > 0:
        return known[1] - MAX_SAMPLE_DELAY
    first = theirs.agg(f.unix_micros(f.min("at"))).collect()[0][0]
    return None if first is None else EPOCH + timedelta(microseconds=first)


def repair_samples(work: Work, now: Horizon, dropped: Callable[[DataFrame], datetime | None]) -> RepairedDays:
    """Makes samples equal to what PostgreSQL has, but keeps those before the time that `dropped` returns. None: it
    keeps all."""
    work.tell("samples")
    before = work.lake.read(work.spark, SAMPLE.name)
    found = read_samples_in_scope(work, Window(now._replace(xid=0), now))
    theirs = (before.limit(0) if found is None else found.select(*before.columns)).persist()
    try:
        moment = dropped(theirs)
        older = before if moment is None else before.where(f.col("at") < f.lit(moment))
        wanted = theirs.unionByName(older.join(theirs.select("queue_id", "at"), ["queue_id", "at"], "left_anti"))
        sums = [sum_by_day(one, hash_sample()) for one in (before, wanted)]
        days = sorted(day for day in {*sums[0], *sums[1]} if sums[0].get(day) != sums[1].get(day))
        if not days:
            return RepairedDays()
        staged = work.lake.stage(wanted.where(f.col(DAY).isin(*days)).coalesce(PARTITIONS), SAMPLE)
        after = work.lake.frame(work.spark, SAMPLE, [file for files in staged.values() for file in files])
        return count_changes(before.where(f.col(DAY).isin(*days)), after, hash_sample(), days, staged)
    finally:
        theirs.unpersist()


def hash_sample() -> Column:
    return f.xxhash64(*(name for name in SAMPLE.names if name != "xid"))


def sum_by_day(frame: DataFrame, of: Column) -> dict[date, tuple[int, int]]:
    rows = frame.groupBy(DAY).agg(f.count("*").alias("rows"), f.sum(of.cast("decimal(38,0)")).alias("total")).collect()
    return {row.day: (row["rows"], int(row.total)) for row in rows}


def count_changes(
    before: DataFrame, after: DataFrame, of: Column, days: Collection[date], staged: dict[str, tuple[File, ...]]
) -> RepairedDays:
    """Counts the added and removed rows."""
    old, new = (frame.select(of.alias("sum")) for frame in (before, after))
    files = {day.isoformat(): staged.get(day.isoformat(), ()) for day in days}
    return RepairedDays(files, new.exceptAll(old).count(), old.exceptAll(new).count())
