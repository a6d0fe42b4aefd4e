"""Whether everything adds up: the queue's books, its samples, its history, and the lake's copy of them. A difference is
a value: which queue, what, and the two numbers that should be one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from penstock import queue as seam
from penstock.errors import Conflict
from penstock.model import QueueStatus
from penstock.pipeline.books import counted
from penstock.pipeline.schemas import ATTEMPTS, DAY, HISTORY, MINUTES, REJECTED, SAMPLE, TOTALS
from penstock.pipeline.work import Work

ROUNDS = 3  # tries to count while nobody drops a day
SHOWN = 20  # differences of one kind that are named


@dataclass(frozen=True, slots=True)
class Difference:
    """`where` is what does not agree: books, samples, history, lake."""

    where: str
    queue: str
    what: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """`compared`: how many numbers were; of each place."""

    differences: tuple[Difference, ...]
    compared: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        differences = [asdict(one) for one in self.differences]
        return {"ok": self.ok, "compared": dict(self.compared), "differences": differences}


def reconcile(work: Work) -> Reconciled:
    """The lake is compared with history as far as the lake has it, so workers may go on meanwhile."""
    work.tell("the queue's books")
    status = [one for one in seam.status(work.database) if in_scope(work, one.queue)]
    found = [*books(work, status)]
    work.tell("samples")
    found += samples(work, status)
    work.tell("history against the lake")
    days, against = lake(work)
    found += against
    work.tell("the lake's layers")
    found += layers(work)
    compared = {
        "queues": len(status),
        "samples": work.lake.state.rows(SAMPLE.name),
        "days": days,
        "rows": work.lake.state.rows(HISTORY.name),
    }
    return Reconciled(tuple(found), compared)


def in_scope(work: Work, queue: str) -> bool:
    queues = work.lake.state.scope.queues
    return not queues or queue in queues


# --- the queue's own books --------------------------------------------------------------------------------------------


def books(work: Work, status: list[QueueStatus]) -> Iterator[Difference]:
    """pushed = waiting + active + done + dead + cancelled + removed; and totals against what there is, and against
    history, of which dropped days are known by their sums."""
    for one in status:
        there = one.planned + one.pending + one.active + one.done + one.dead + one.cancelled + one.totals["removed"]
        if there != one.totals["pushed"]:
            yield Difference("books", one.queue, "pushed", one.totals["pushed"], there)
    for finding in seam.verify(work.database).findings:
        if in_scope(work, finding.queue) and finding.what != "balance: pushed":
            yield Difference("books", finding.queue, finding.what, finding.expected, finding.found)


# --- samples ----------------------------------------------------------------------------------------------------------


def samples(work: Work, status: list[QueueStatus]) -> Iterator[Difference]:
    """Each adds up; totals never shrink; and the newest is not ahead of the queue."""
    rows = work.lake.read(work.spark, SAMPLE.name)
    there = sum((f.col(name) for name in ("planned", "pending", "active", "done", "dead")), f.col("cancelled"))
    odd = rows.withColumn("there", there + f.col("removed_total")).where("there <> pushed_total")
    for row in odd.orderBy("queue", "at").limit(SHOWN).collect():
        yield Difference("samples", row.queue, f"pushed at {said(row['at'])}", row.pushed_total, row.there)
    yield from shrunk(rows)
    newest = rows.groupBy("queue", "queue_id").agg(*(f.max_by(total(name), "at").alias(name) for name in TOTALS))
    now = {one.queue: one.totals for one in status}
    present = present_ids(work)
    for row in newest.collect():  # a row per queue
        if present.get(row.queue) == row.queue_id:
            yield from ahead(row, now.get(row.queue, {}))


def present_ids(work: Work) -> dict[str, int]:
    """Of queues of one name the last: ids only grow."""
    return {name: id_ for id_, name in sorted(seam.queue_names(work.database).items())}


def total(name: str) -> Column:
    return f.col(f"{name}_total")


def shrunk(rows: DataFrame) -> Iterator[Difference]:
    before = Window.partitionBy("queue_id").orderBy("at")
    told = f.array(
        *(
            f.struct(f.lit(name).alias("what"), total(name).alias("now"), f.lag(total(name)).over(before).alias("was"))
            for name in TOTALS
        )
    )
    found = rows.select("queue", "at", told.alias("told")).select("queue", "at", f.inline("told")).where("now < was")
    for row in found.orderBy("queue", "at").limit(SHOWN).collect():
        yield Difference("samples", row.queue, f"{row.what} shrank at {said(row['at'])}", row.was, row.now)


def ahead(row: Row, now: Mapping[str, int]) -> Iterator[Difference]:
    for name in TOTALS:
        if name in now and row[name] > now[name]:
            what = f"{name}: the newest sample is ahead of the counter"
            yield Difference("samples", row.queue, what, now[name], row[name])


def said(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


# --- history and the lake ---------------------------------------------------------------------------------------------


def lake(work: Work) -> tuple[int, list[Difference]]:
    """By day and queue: what history has of the lake's windows, or had when the day was dropped."""
    names = seam.queue_names(work.database)
    expected = history(work)
    found = in_lake(work)
    differences = [
        Difference("lake", names.get(queue, str(queue)), f"rows of {day}", expected[day, queue], found[day, queue])
        for day, queue in sorted({*expected, *found})
        if expected[day, queue] != found[day, queue]
    ]
    return len({day for day, _ in {*expected, *found}}), differences


def history(work: Work) -> Counter[tuple[date, int]]:
    state = work.lake.state
    passed, began, since = state.passed, state.began, state.scope.since
    if passed is None or began is None:
        return Counter()
    for _ in range(ROUNDS):
        known = seam.horizon(work.database).dropped
        gone = seam.history_gone(work.database, began.dropped)
        rows = Counter(gone)
        for day in counted(work.database, passed):
            for (queue, _outcome), count in day.rows.items():
                rows[day.day, queue] += count
        if seam.horizon(work.database).dropped == known:
            return scoped(work, rows, since)
    raise Conflict("reconcile: history's days were being dropped all the time", hint="Try again.")


def scoped(work: Work, rows: Counter[tuple[date, int]], since: str | None) -> Counter[tuple[date, int]]:
    """Of a lake that begins in the midst of a day, that day is not compared."""
    names = seam.queue_names(work.database)
    first = None if since is None else datetime.fromisoformat(since).date()
    return Counter(
        {
            (day, queue): count
            for (day, queue), count in rows.items()
            if in_scope(work, names.get(queue, "")) and (first is None or day > first)
        }
    )


def in_lake(work: Work) -> Counter[tuple[date, int]]:
    rows = work.lake.read(work.spark, HISTORY.name).groupBy(DAY, "queue_id").count().collect()  # few
    counts = Counter({(row.day, row.queue_id): row["count"] for row in rows})
    return scoped(work, counts, work.lake.state.scope.since)


def layers(work: Work) -> Iterator[Difference]:
    """By day: bronze = silver + rejected, and gold's finishes are silver's rows."""
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
