"""Days of history that the lake holds, dropped from PostgreSQL: each compared before, by its rows and by a sum over all
that they say. Only days that are over, and of which nothing came after the lake's last window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from pyspark.sql import Column
from pyspark.sql import functions as f

from penstock import queue as seam
from penstock.errors import Conflict
from penstock.pipeline.books import Day, counted
from penstock.pipeline.schemas import DAY, HISTORY
from penstock.pipeline.work import Work

NOTHING = "\x1e"
BETWEEN = "\x1f"


@dataclass(frozen=True, slots=True)
class Released:
    """`busy`: somebody was at that day: the next run will do it."""

    day: date
    rows: int
    busy: bool = False


def release(work: Work) -> list[Released]:
    """Nothing is dropped before every day was compared. Conflict: one of them differs."""
    passed = work.lake.state.passed
    today = seam.today(work.database)
    if passed is None:
        return []
    state = work.lake.state
    if state.scope.queues or state.scope.since:
        raise Conflict(
            "release: this lake is of some queues or some time only: it does not hold whole days",
            hint="Release from a lake that was begun without --queues and --since.",
        )
    work.tell("history's days, row by row")
    there = [day for day in counted(work.database, passed, thorough=True) if day.day < today and day.total]
    copies = copied(work, [day.day for day in there])
    for day in there:
        compare(day, copies.get(day.day, (0, 0)))
    return [
        Released(day.day, day.total, not seam.release_day(work.database, day.day, rows=day.total, below=passed.xid))
        for day in there
    ]


def released(work: Work) -> dict[str, object]:
    """As a stage of the pipeline answers."""
    days = release(work)
    return {
        "days": sum(not one.busy for one in days),
        "rows": sum(one.rows for one in days if not one.busy),
        "busy": [one.day.isoformat() for one in days if one.busy],
    }


def compare(day: Day, copy: tuple[int, int]) -> None:
    for what, expected, found in (("rows", day.total, copy[0]), ("sum over its rows", day.checksum, copy[1])):
        if expected != found:
            raise Conflict(
                f"release: the lake's copy of {day.day} differs: {what} {expected} in history, {found} in the lake",
                hint="Nothing was dropped. `penstock pipeline reconcile` says more.",
            )


def copied(work: Work, days: list[date]) -> dict[date, tuple[int, int]]:
    """Rows and sum of the lake's days."""
    rows = work.lake.read(work.spark, HISTORY.name, days)
    found = rows.groupBy(DAY).agg(f.count("*").alias("rows"), f.sum(row_sum()).alias("total")).collect()
    return {row.day: (int(row["rows"]), int(row["total"])) for row in found}


def row_sum() -> Column:
    """As `penstock.history_sums` makes it."""
    moments = {"created", "due", "claimed_at", "finished_at"}
    nullable = {"subject", "error_class", "error"}

    def said(name: str) -> Column:
        if name in moments:
            return f.unix_micros(name)
        return f.coalesce(name, f.lit(NOTHING)) if name in nullable else f.col(name)

    told = [said(name) for name in HISTORY.names if name not in ("xid", "queue")]
    whole = f.concat_ws(BETWEEN, *(one.cast("string") for one in told))
    return f.conv(f.substring(f.md5(whole), 1, 15), 16, 10).cast("decimal(20,0)")
