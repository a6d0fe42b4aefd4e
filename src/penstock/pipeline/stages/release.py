"""Drops days of history that the lake holds from PostgreSQL. Each day is compared first, by the number of its rows and
by a checksum over all their columns. Only past days are dropped, and only if no row was added after the lake's last
window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from pyspark.sql import Column
from pyspark.sql import functions as f

from penstock.client import history
from penstock.errors import Conflict
from penstock.pipeline.lake.schemas import DAY, HISTORY
from penstock.pipeline.stages.history_counts import DayCount, count_history
from penstock.pipeline.work import Work

NULL_MARK = "\x1e"
SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class Released:
    """A released day. `busy`: another session used the day, so it was not dropped; the next run drops it."""

    day: date
    rows: int
    busy: bool = False


def release(work: Work) -> list[Released]:
    """Compares every day, then drops them. Raises Conflict if a day differs; then nothing is dropped."""
    passed = work.lake.state.passed
    today = history.today(work.database)
    if passed is None:
        return []
    state = work.lake.state
    if state.scope.queues or state.scope.since:
        raise Conflict(
            "release: no day can be released: this lake was begun with --queues or --since, and holds parts of days",
            hint="Use a lake that was begun without --queues and --since.",
        )
    work.tell("history's days, row by row")
    there = [day for day in count_history(work.database, passed, thorough=True) if day.day < today and day.total]
    copies = sum_copies(work, [day.day for day in there])
    for day in there:
        check_copy(day, copies.get(day.day, (0, 0)))
    return [
        Released(day.day, day.total, not history.release_day(work.database, day.day, rows=day.total, below=passed.xid))
        for day in there
    ]


def run_release(work: Work) -> dict[str, object]:
    """Releases days, and returns the result as a stage does."""
    days = release(work)
    return {
        "days": sum(not one.busy for one in days),
        "rows": sum(one.rows for one in days if not one.busy),
        "busy": [one.day.isoformat() for one in days if one.busy],
    }


def check_copy(day: DayCount, copy: tuple[int, int]) -> None:
    """Raises Conflict if the lake's copy of a day differs from history."""
    for what, expected, found in (("rows", day.total, copy[0]), ("sum over its rows", day.checksum, copy[1])):
        if expected != found:
            raise Conflict(
                f"release: the lake's copy of {day.day} differs: {what} {expected} in history, {found} in the lake",
                hint="Nothing was dropped. `penstock pipeline reconcile` says more.",
            )


def sum_copies(work: Work, days: list[date]) -> dict[date, tuple[int, int]]:
    """Returns the number of rows and the checksum of days in the lake."""
    rows = work.lake.read(work.spark, HISTORY.name, days)
    found = rows.groupBy(DAY).agg(f.count("*").alias("rows"), f.sum(hash_row()).alias("total")).collect()
    return {row.day: (int(row["rows"]), int(row["total"])) for row in found}


def hash_row() -> Column:
    """Returns the checksum of a row, as `penstock.history_sums` computes it."""
    moments = {"created", "due", "claimed_at", "finished_at"}
    nullable = {"subject", "error_class", "error"}

    def said(name: str) -> Column:
        if name in moments:
            return f.unix_micros(name)
        return f.coalesce(name, f.lit(NULL_MARK)) if name in nullable else f.col(name)

    columns = [said(name) for name in HISTORY.names if name not in ("xid", "queue")]
    whole = f.concat_ws(SEPARATOR, *(one.cast("string") for one in columns))
    return f.conv(f.substring(f.md5(whole), 1, 15), 16, 10).cast("decimal(20,0)")
