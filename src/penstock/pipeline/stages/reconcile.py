"""Compares the queue's counters, its samples, its history and the lake. Each difference names the queue, what differs,
and the two numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from penstock.client import history, queues
from penstock.errors import Conflict
from penstock.model import GAUGES, QueueStatus
from penstock.pipeline.lake.schemas import ATTEMPTS, DAY, HISTORY, MINUTES, REJECTED, SAMPLE, TOTALS
from penstock.pipeline.stages.history_counts import count_history
from penstock.pipeline.work import Work

MAX_ROUNDS = 3  # attempts to count without a day being dropped meanwhile
MAX_SHOWN = 20  # differences of one kind


@dataclass(frozen=True, slots=True)
class Difference:
    """Two numbers that should be equal. `where` is what does not agree: counters, samples, history or lake."""

    where: str
    queue: str
    what: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result. `compared`: how many numbers of each kind were compared."""

    differences: tuple[Difference, ...]
    compared: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON."""
        differences = [asdict(one) for one in self.differences]
        return {"ok": self.ok, "compared": dict(self.compared), "differences": differences}


def reconcile(work: Work) -> Reconciled:
    """Compares everything. The lake is compared with history up to the lake's horizon, so workers may go on
    meanwhile."""
    work.tell("the queue's counters")
    status = [one for one in queues.status(work.database) if in_scope(work, one.queue)]
    found = [*check_counters(work, status)]
    work.tell("samples")
    found += check_samples(work, status)
    work.tell("history against the lake")
    days, against = compare_history(work)
    found += against
    work.tell("the lake's layers")
    found += check_layers(work)
    compared = {
        "queues": len(status),
        "samples": work.lake.state.rows(SAMPLE.name),
        "days": days,
        "rows": work.lake.state.rows(HISTORY.name),
    }
    return Reconciled(tuple(found), compared)


def in_scope(work: Work, queue: str) -> bool:
    scope = work.lake.state.scope.queues
    return not scope or queue in scope


# --- counters ---------------------------------------------------------------------------------------------------------


def check_counters(work: Work, status: list[QueueStatus]) -> Iterator[Difference]:
    """Checks that every task pushed is in a state or removed, and compares the totals with the tasks and with
    history. Of dropped days the sums are known."""
    for one in status:
        there = sum(getattr(one, gauge) for gauge in GAUGES) + one.totals["removed"]
        if there != one.totals["pushed"]:
            yield Difference("counters", one.queue, "pushed", one.totals["pushed"], there)
    for finding in queues.verify(work.database).findings:
        if in_scope(work, finding.queue) and finding.what != "balance: pushed":
            yield Difference("counters", finding.queue, finding.what, finding.expected, finding.found)


# --- samples ----------------------------------------------------------------------------------------------------------


def check_samples(work: Work, status: list[QueueStatus]) -> Iterator[Difference]:
    """Checks that each sample adds up, that totals never shrink, and that the newest sample is not ahead of the
    counters."""
    rows = work.lake.read(work.spark, SAMPLE.name)
    # The samples of days that an older Penstock wrote have no `waiting`.
    there = sum((f.coalesce(f.col(name), f.lit(0)) for name in GAUGES[1:]), f.coalesce(f.col(GAUGES[0]), f.lit(0)))
    odd = rows.withColumn("there", there + f.col("removed_total")).where("there <> pushed_total")
    for row in odd.orderBy("queue", "at").limit(MAX_SHOWN).collect():
        yield Difference("samples", row.queue, f"pushed at {format_moment(row['at'])}", row.pushed_total, row.there)
    yield from find_shrunk(rows)
    newest = rows.groupBy("queue", "queue_id").agg(*(f.max_by(total_column(name), "at").alias(name) for name in TOTALS))
    now = {one.queue: one.totals for one in status}
    present = find_present_ids(work)
    for row in newest.collect():  # one row per queue
        if present.get(row.queue) == row.queue_id:
            yield from find_ahead(row, now.get(row.queue, {}))


def find_present_ids(work: Work) -> dict[str, int]:
    """Returns the id of each queue by name. If several queues had one name, it is the id of the last one: ids only
    grow."""
    return {name: id_ for id_, name in sorted(history.queue_names(work.database).items())}


def total_column(name: str) -> Column:
    return f.col(f"{name}_total")


def find_shrunk(rows: DataFrame) -> Iterator[Difference]:
    before = Window.partitionBy("queue_id").orderBy("at")
    totals = f.array(
        *(
            f.struct(
                f.lit(name).alias("what"),
                total_column(name).alias("now"),
                f.lag(total_column(name)).over(before).alias("was"),
            )
            for name in TOTALS
        )
    )
    found = rows.select("queue", "at", totals.alias("told")).select("queue", "at", f.inline("told")).where("now < was")
    for row in found.orderBy("queue", "at").limit(MAX_SHOWN).collect():
        yield Difference("samples", row.queue, f"{row.what} shrank at {format_moment(row['at'])}", row.was, row.now)


def find_ahead(row: Row, now: Mapping[str, int]) -> Iterator[Difference]:
    for name in TOTALS:
        if name in now and row[name] > now[name]:
            what = f"{name}: the newest sample is ahead of the counter"
            yield Difference("samples", row.queue, what, now[name], row[name])


def format_moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


# --- history and the lake ---------------------------------------------------------------------------------------------


def compare_history(work: Work) -> tuple[int, list[Difference]]:
    """Compares rows by day and queue: those in the lake with those that history has, or had when the day was dropped.
    Returns the number of days, and the differences."""
    names = history.queue_names(work.database)
    expected = count_history_rows(work)
    found = count_lake_rows(work)
    differences = [
        Difference("lake", names.get(queue, str(queue)), f"rows of {day}", expected[day, queue], found[day, queue])
        for day, queue in sorted({*expected, *found})
        if expected[day, queue] != found[day, queue]
    ]
    return len({day for day, _ in {*expected, *found}}), differences


def count_history_rows(work: Work) -> Counter[tuple[date, int]]:
    state = work.lake.state
    passed, began, since = state.passed, state.began, state.scope.since
    if passed is None or began is None:
        return Counter()
    for _ in range(MAX_ROUNDS):
        known = history.read_horizon(work.database).dropped
        gone = history.history_gone(work.database, began.dropped)
        rows = Counter(gone)
        for day in count_history(work.database, passed):
            for (queue, _outcome), count in day.rows.items():
                rows[day.day, queue] += count
        if history.read_horizon(work.database).dropped == known:
            return filter_counts(work, rows, since)
    raise Conflict("reconcile: days of history were dropped during each attempt", hint="Try again.")


def filter_counts(work: Work, rows: Counter[tuple[date, int]], since: str | None) -> Counter[tuple[date, int]]:
    """Keeps the counts that belong to the lake. If the lake begins in the middle of a day, that day is not compared."""
    names = history.queue_names(work.database)
    first = None if since is None else datetime.fromisoformat(since).date()
    return Counter(
        {
            (day, queue): count
            for (day, queue), count in rows.items()
            if in_scope(work, names.get(queue, "")) and (first is None or day > first)
        }
    )


def count_lake_rows(work: Work) -> Counter[tuple[date, int]]:
    rows = work.lake.read(work.spark, HISTORY.name).groupBy(DAY, "queue_id").count().collect()  # few
    counts = Counter({(row.day, row.queue_id): row["count"] for row in rows})
    return filter_counts(work, counts, work.lake.state.scope.since)


def check_layers(work: Work) -> Iterator[Difference]:
    """Checks for each day that bronze = silver + rejected, and that gold counts as many finishes as silver has rows."""
    state = work.lake.state
    minutes = work.lake.read(work.spark, MINUTES.name).groupBy(DAY).agg(f.sum("finishes").alias("rows")).collect()
    finished = {row.day.isoformat(): row["rows"] for row in minutes}
    for day in state.days(HISTORY.name):
        came = state.rows(HISTORY.name, {day})
        kept = state.rows(ATTEMPTS.name, {day})
        kept_or_not = kept + state.rows(REJECTED.name, {day})
        if came != kept_or_not:
            yield Difference("lake", "", f"silver of {day}", came, kept_or_not)
        if finished.get(day, 0) != kept:
            yield Difference("lake", "", f"gold of {day}", kept, finished.get(day, 0))
