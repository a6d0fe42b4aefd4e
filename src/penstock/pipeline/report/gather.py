"""Gathers the figures of the report from the lake. Spark aggregates, so the driver gets few rows, however large the
lake is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from penstock.errors import NotFound, shown
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.schemas import ATTEMPTS, BREACHES, CHANCES, ERRORS, FAILURES, KINDS, MINUTES, URGENCIES
from penstock.pipeline.report.figures import (
    MAX_ATTEMPTS,
    Breach,
    ErrorFigures,
    Figures,
    KindFigures,
    PointFigures,
    QueueFigures,
    QueueSummary,
    TryFigures,
)

MAX_POINTS = 300  # of a chart
MAX_ROWS = 8  # errors, kinds
MAX_BREACHES = 50
# Seconds that a point may cover: durations known from clocks and calendars.
WIDTHS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800)


Rows = dict[str, list[Any]]


def gather_figures(
    spark: SparkSession, lake: Lake, *, since: datetime | None = None, queues: Sequence[str] = (), made: float = 0.0
) -> Figures:
    """Returns the figures of a lake since a time, of some queues or of all."""
    asked = LakeReader(spark, lake, since, tuple(queues))
    period = asked.minutes.agg(f.min(unix_seconds("minute")), f.max(unix_seconds("minute"))).collect()[0]
    if period[0] is None:
        return Figures(made=made, scope=tuple(queues))
    width = choose_width(period[1] + 60 - period[0])
    begins, ends = period[0] // width * width, -(-(period[1] + 60) // width) * width
    return Figures(begins, ends, width, tuple(asked.every(begins, ends, width)), made, tuple(queues))


def choose_width(seconds: int) -> int:
    """Returns the seconds that one point of a chart covers, so that the number of points stays below the limit. One
    more point may be needed, because points begin at round times."""
    least = seconds / (MAX_POINTS - 1)
    return next((one for one in WIDTHS if one >= least), math.ceil(least / WIDTHS[-1]) * WIDTHS[-1])


def unix_seconds(column: str) -> Column:
    return f.unix_seconds(f.col(column))


def exact_seconds(column: str) -> Column:
    """Returns a timestamp as seconds, with microseconds."""
    return f.unix_micros(f.col(column)) / 1e6


def group_by_queue(rows: Iterable[Any]) -> Rows:
    found: Rows = {}
    for row in rows:
        found.setdefault(row.queue, []).append(row)
    return found


class LakeReader:
    """Reads the tables of a lake, limited to the queues and the time that were asked for."""

    def __init__(self, spark: SparkSession, lake: Lake, since: datetime | None, queues: tuple[str, ...]) -> None:
        self._spark, self._lake, self._since, self._queues = spark, lake, since, queues
        if queues:
            self._check_names()
        self.minutes = self._table(MINUTES.name, "minute")
        self.attempts = self._table(ATTEMPTS.name, "claimed_at")

    def _check_names(self) -> None:
        known = {row.queue for row in self._lake.read(self._spark, MINUTES.name).select("queue").distinct().collect()}
        for name in self._queues:
            if name not in known:
                near = get_close_matches(name, sorted(one for one in known if one), 1)
                hint = f"Did you mean {near[0]}?" if near else "It never had a task, or the lake is older than it."
                raise NotFound(f"queue: the lake has no data of queue {shown(name)}", hint=hint)

    def _table(self, name: str, moment: str | None = None) -> DataFrame:
        """Reads a table. Without `moment`, it is limited by whole days."""
        days = None if self._since is None else [day for day in self._lake.days(name) if day >= self._day]
        frame = self._lake.read(self._spark, name, days).where(f.col("queue").isNotNull())
        if self._queues:
            frame = frame.where(f.col("queue").isin(*self._queues))
        if self._since is not None and moment is not None:
            frame = frame.where(exact_seconds(moment) >= self._since.timestamp())
        return frame

    @property
    def _day(self) -> Any:
        assert self._since is not None
        return self._since.astimezone(UTC).date()

    def every(self, begins: int, ends: int, width: int) -> Iterable[QueueFigures]:
        """Returns the figures of each queue: those with most late tasks first, then those that cost most."""
        spells, waits = group_by_queue(self._spells(width)), group_by_queue(self._waits(width))
        starts, sums = group_by_queue(self._starts()), group_by_queue(self._sums())
        breaches, attempts, ages = (
            group_by_queue(self._breaches()),
            group_by_queue(self._attempts()),
            group_by_queue(self._ages()),
        )
        errors, kinds = group_by_queue(self._errors()), group_by_queue(self._kinds())
        found = [
            QueueFigures(
                queue,
                summarize(sums[queue][0], starts.get(queue, [None])[0]),
                tuple(join_points(range(begins, ends, width), spells[queue], waits.get(queue, ()))),
                *select_breaches(breaches.get(queue, ())),
                attempts=tuple(TryFigures(*row[1:]) for row in attempts.get(queue, ())),
                ages=tuple(TryFigures(*row[1:]) for row in ages.get(queue, ())),
                errors=tuple(ErrorFigures(*row[1:]) for row in errors.get(queue, ())[:MAX_ROWS]),
                kinds=tuple(KindFigures(*row[1:]) for row in kinds.get(queue, ())[:MAX_ROWS]),
            )
            for queue in spells
        ]
        return sorted(
            found, key=lambda one: (-one.summary.late, -(one.summary.worker_seconds or one.summary.run_seconds))
        )

    # --- over time ----------------------------------------------------------------------------------------------------

    def _spells(self, width: int) -> list[Any]:
        """Reads the sums and peaks of each period of `width` seconds."""
        judged = f.when(f.col(URGENCIES[0]).isNotNull(), f.col("samples"))
        shares = [(f.sum(f.col(name) * judged) / f.sum(judged)).alias(name) for name in URGENCIES]
        return (
            self.minutes.groupBy("queue", (f.floor(unix_seconds("minute") / width) * width).alias("at"))
            .agg(
                f.sum(f.coalesce("arrivals_sampled", "arrivals_seen")).alias("arrivals"),
                f.sum("finishes").alias("finishes"),
                f.sum("failures").alias("failures"),
                f.max("pending").alias("pending"),
                f.max("oldest_age_s").alias("oldest_age"),
                f.avg("workers").alias("workers"),
                f.max("sla_s").alias("sla"),
                f.sum("kept").alias("kept"),
                f.sum("late").alias("late"),
                *shares,
            )
            .collect()
        )

    def _waits(self, width: int) -> list[Any]:
        """Reads the waits from attempts, because quantiles of minutes cannot be added."""
        quantiles = f.percentile("wait_s", f.array(f.lit(0.5), f.lit(0.95), f.lit(0.99)))
        at = (f.floor(unix_seconds("claimed_at") / width) * width).alias("at")
        return self.attempts.groupBy("queue", at).agg(quantiles.alias("waits")).collect()

    # --- all in all ---------------------------------------------------------------------------------------------------

    def _starts(self) -> list[Any]:
        ended = f.col("ended")
        failed = f.col("outcome").isin(*FAILURES)
        return (
            self.attempts.groupBy("queue")
            .agg(
                f.count("*").alias("attempts"),
                f.max("wait_s").alias("worst_wait"),
                f.max("late_by_s").alias("worst_late_by"),
                f.percentile("wait_s", f.lit(0.95)).alias("wait_p95"),
                f.count_if(ended & (f.col("outcome") == "done")).alias("done"),
                f.count_if(ended & (f.col("outcome") == "dead")).alias("dead"),
                f.count_if(f.col("attempt") > 1).alias("retries"),
                f.sum("run_s").alias("run_seconds"),
                f.sum(f.when(failed, f.col("run_s")).otherwise(0.0)).alias("failed_seconds"),
            )
            .collect()
        )

    def _sums(self) -> list[Any]:
        return (
            self.minutes.groupBy("queue")
            .agg(
                f.sum("kept").alias("kept"),
                f.sum("late").alias("late"),
                (f.sum("workers") * 60).alias("worker_seconds"),
                f.min("sla_s").alias("least"),
                f.max("sla_s").alias("most"),
            )
            .collect()
        )

    def _breaches(self) -> list[Any]:
        frame = self._lake.read(self._spark, BREACHES.name).where(f.col("queue").isNotNull())
        if self._queues:
            frame = frame.where(f.col("queue").isin(*self._queues))
        if self._since is not None:
            frame = frame.where(exact_seconds("ended") >= self._since.timestamp())
        per_queue = f.struct(exact_seconds("began"), exact_seconds("ended"), "worst_age_s", "late_tasks")
        longest = f.slice(
            f.sort_array(f.collect_list(f.struct(breach_seconds(), per_queue)), asc=False), 1, MAX_BREACHES
        )
        return (
            frame.groupBy("queue")
            .agg(longest.alias("worst"), f.count("*").alias("count"), f.sum(breach_seconds()).alias("seconds"))
            .collect()
        )

    def _attempts(self) -> list[Any]:
        at = f.least("attempt", f.lit(MAX_ATTEMPTS))
        return self._sum_table(
            KINDS.name, at, judged=f.col("done") + f.col("failed") + f.col("dead"), good=f.col("done")
        )

    def _ages(self) -> list[Any]:
        """Reads retries by age. First attempts say nothing about when to retry."""
        frame = self._table(CHANCES.name).where(f.col("attempt") > 1)
        return self._sum_runs(frame, f.col("age_bucket_s"), f.col("tries"), f.col("successes"))

    def _sum_table(self, table: str, at: Column, *, judged: Column, good: Column) -> list[Any]:
        return self._sum_runs(self._table(table), at, judged, good)

    def _sum_runs(self, frame: DataFrame, at: Column, judged: Column, good: Column) -> list[Any]:
        return (
            frame.groupBy("queue", at.alias("at"))
            .agg(f.sum(judged).alias("runs"), f.sum(good).alias("successes"), f.sum("run_s_total").alias("seconds"))
            .where(f.col("runs") > 0)
            .orderBy("queue", "at")
            .collect()
        )

    def _errors(self) -> list[Any]:
        return (
            self._table(ERRORS.name)
            .groupBy("queue", "fingerprint")
            .agg(
                f.max("error_shape").alias("shape"),
                f.max(f.coalesce("error_class", f.lit(""))).alias("error_class"),
                f.sum("runs").alias("runs"),
                f.sum("tasks").alias("tasks"),
                f.sum("run_s_total").alias("seconds"),
            )
            .transform(lambda frame: keep_first(frame, "seconds"))
            .collect()
        )

    def _kinds(self) -> list[Any]:
        quantiles = f.percentile("run_s", f.array(f.lit(0.5), f.lit(0.95))).alias("quantiles")
        totals = self.attempts.groupBy("queue", "kind").agg(
            f.count("*").alias("runs"),
            quantiles,
            f.max("run_s").alias("longest"),
            f.sum("run_s").alias("seconds"),
        )
        spread = totals.select(
            "queue",
            "kind",
            "runs",
            f.col("quantiles")[0].alias("p50"),
            f.col("quantiles")[1].alias("p95"),
            "longest",
            "seconds",
        )
        return keep_first(spread, "p95").collect()


def breach_seconds() -> Column:
    """Returns the duration of a breach."""
    return exact_seconds("ended") - exact_seconds("began")


def keep_first(frame: DataFrame, by: str) -> DataFrame:
    """Keeps the rows of each queue with the highest values of a column, the highest first."""
    order = Window.partitionBy("queue").orderBy(f.col(by).desc(), f.col(frame.columns[1]))
    return (
        frame.withColumn("rank", f.row_number().over(order))
        .where(f.col("rank") <= MAX_ROWS)
        .orderBy("queue", "rank")
        .drop("rank")
    )


def join_points(moments: Iterable[int], spells: Iterable[Any], waits: Iterable[Any]) -> Iterable[PointFigures]:
    """Yields the figures of every point, also of those without a sample."""
    known, waited = {row.at: row for row in spells}, {row.at: row.waits for row in waits}
    for at in moments:
        p50, p95, p99 = waited.get(at) or (None, None, None)
        row = known.get(at)
        if row is None:
            yield PointFigures(at, wait_p50=p50, wait_p95=p95, wait_p99=p99)
            continue
        shares = tuple(row[name] for name in URGENCIES)
        yield PointFigures(
            at,
            row.arrivals,
            row.finishes or 0,
            row.failures or 0,
            row.pending,
            row.oldest_age,
            row.workers,
            row.sla,
            row.kept or 0,
            row.late or 0,
            p50,
            p95,
            p99,
            None if shares[0] is None else shares,
        )


def summarize(sums: Any, starts: Any) -> QueueSummary:
    """Returns the summary of a queue. `starts` is None if no task was claimed yet."""
    summary = QueueSummary(
        kept=sums.kept or 0,
        late=sums.late or 0,
        worker_seconds=sums.worker_seconds,
        slas=None if sums.most is None else (sums.least, sums.most),
    )
    if starts is None:
        return summary
    return replace(
        summary,
        attempts=starts.attempts,
        worst_wait=starts.worst_wait or 0.0,
        worst_late_by=starts.worst_late_by or 0.0,
        wait_p95=starts.wait_p95,
        done=starts.done,
        dead=starts.dead,
        retries=starts.retries,
        run_seconds=starts.run_seconds or 0.0,
        failed_seconds=starts.failed_seconds or 0.0,
    )


def select_breaches(rows: Sequence[Any]) -> tuple[tuple[Breach, ...], int, float]:
    """Returns the longest breaches in the order of time, the number of all breaches, and their total duration."""
    if not rows:
        return (), 0, 0.0
    worst = [Breach(*one[1]) for one in rows[0].worst]
    return tuple(sorted(worst, key=lambda one: one.began)), rows[0]["count"], rows[0].seconds
