"""From the lake to what the report shows. Spark adds up; what comes to the driver is small, however large it is."""

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
from penstock.pipeline.figures import MOST_ATTEMPTS, Breach, Error, Figures, Kind, QueueFigures, Spell, Summary, Tries
from penstock.pipeline.lake import Lake
from penstock.pipeline.schemas import ATTEMPTS, BREACHES, CHANCES, ERRORS, FAILURES, KINDS, MINUTES, URGENCIES

MOST_POINTS = 300  # of a picture
MOST_ROWS = 8  # errors, kinds
MOST_BREACHES = 50
# Seconds that a point may stand for: what people know from clocks and calendars.
WIDTHS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800)


Rows = dict[str, list[Any]]


def collect(
    spark: SparkSession, lake: Lake, *, since: datetime | None = None, queues: Sequence[str] = (), made: float = 0.0
) -> Figures:
    """The last period of the lake, of some queues or of all."""
    asked = Asked(spark, lake, since, tuple(queues))
    period = asked.minutes.agg(f.min(unix("minute")), f.max(unix("minute"))).collect()[0]
    if period[0] is None:
        return Figures(made=made, scope=tuple(queues))
    width = width_of(period[1] + 60 - period[0])
    begins, ends = period[0] // width * width, -(-(period[1] + 60) // width) * width
    return Figures(begins, ends, width, tuple(asked.every(begins, ends, width)), made, tuple(queues))


def width_of(seconds: int) -> int:
    """Of a point, so that not too many are needed; one more may be, since they begin at round moments."""
    least = seconds / (MOST_POINTS - 1)
    return next((one for one in WIDTHS if one >= least), math.ceil(least / WIDTHS[-1]) * WIDTHS[-1])


def unix(column: str) -> Column:
    return f.unix_seconds(f.col(column))


def exactly(column: str) -> Column:
    """With its microseconds."""
    return f.unix_micros(f.col(column)) / 1e6


def grouped(rows: Iterable[Any]) -> Rows:
    found: Rows = {}
    for row in rows:
        found.setdefault(row.queue, []).append(row)
    return found


class Asked:
    """The tables, cut to what was asked for."""

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
                raise NotFound(f"queue: there is nothing of {shown(name)} in the lake", hint=hint)

    def _table(self, name: str, moment: str | None = None) -> DataFrame:
        """Without a moment the days are what is cut by."""
        days = None if self._since is None else [day for day in self._lake.days(name) if day >= self._day]
        frame = self._lake.read(self._spark, name, days).where(f.col("queue").isNotNull())
        if self._queues:
            frame = frame.where(f.col("queue").isin(*self._queues))
        if self._since is not None and moment is not None:
            frame = frame.where(exactly(moment) >= self._since.timestamp())
        return frame

    @property
    def _day(self) -> Any:
        assert self._since is not None
        return self._since.astimezone(UTC).date()

    def every(self, begins: int, ends: int, width: int) -> Iterable[QueueFigures]:
        """The worst first: whose promise was broken most often, then whoever cost most."""
        spells, waits = grouped(self._spells(width)), grouped(self._waits(width))
        starts, sums = grouped(self._starts()), grouped(self._sums())
        breaches, attempts, ages = grouped(self._breaches()), grouped(self._attempts()), grouped(self._ages())
        errors, kinds = grouped(self._errors()), grouped(self._kinds())
        found = [
            QueueFigures(
                queue,
                summary(sums[queue][0], starts.get(queue, [None])[0]),
                tuple(joined(range(begins, ends, width), spells[queue], waits.get(queue, ()))),
                *ended_breaches(breaches.get(queue, ())),
                attempts=tuple(Tries(*row[1:]) for row in attempts.get(queue, ())),
                ages=tuple(Tries(*row[1:]) for row in ages.get(queue, ())),
                errors=tuple(Error(*row[1:]) for row in errors.get(queue, ())[:MOST_ROWS]),
                kinds=tuple(Kind(*row[1:]) for row in kinds.get(queue, ())[:MOST_ROWS]),
            )
            for queue in spells
        ]
        return sorted(
            found, key=lambda one: (-one.summary.late, -(one.summary.worker_seconds or one.summary.run_seconds))
        )

    # --- over time ----------------------------------------------------------------------------------------------------

    def _spells(self, width: int) -> list[Any]:
        judged = f.when(f.col(URGENCIES[0]).isNotNull(), f.col("samples"))
        shares = [(f.sum(f.col(name) * judged) / f.sum(judged)).alias(name) for name in URGENCIES]
        return (
            self.minutes.groupBy("queue", (f.floor(unix("minute") / width) * width).alias("at"))
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
        """From the attempts themselves: quantiles of minutes can not be added up."""
        quantiles = f.percentile("wait_s", f.array(f.lit(0.5), f.lit(0.95), f.lit(0.99)))
        at = (f.floor(unix("claimed_at") / width) * width).alias("at")
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
            frame = frame.where(exactly("ended") >= self._since.timestamp())
        per_queue = f.struct(exactly("began"), exactly("ended"), "worst_age_s", "late_tasks")
        longest = f.slice(f.sort_array(f.collect_list(f.struct(spoiled(), per_queue)), asc=False), 1, MOST_BREACHES)
        return (
            frame.groupBy("queue")
            .agg(longest.alias("worst"), f.count("*").alias("count"), f.sum(spoiled()).alias("seconds"))
            .collect()
        )

    def _attempts(self) -> list[Any]:
        at = f.least("attempt", f.lit(MOST_ATTEMPTS))
        return self._added(KINDS.name, at, judged=f.col("done") + f.col("failed") + f.col("dead"), good=f.col("done"))

    def _ages(self) -> list[Any]:
        """Of retries: first tries say nothing about when to come again."""
        frame = self._table(CHANCES.name).where(f.col("attempt") > 1)
        return self._summed(frame, f.col("age_bucket_s"), f.col("tries"), f.col("successes"))

    def _added(self, table: str, at: Column, *, judged: Column, good: Column) -> list[Any]:
        return self._summed(self._table(table), at, judged, good)

    def _summed(self, frame: DataFrame, at: Column, judged: Column, good: Column) -> list[Any]:
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
            .transform(lambda frame: first_of_each(frame, "seconds"))
            .collect()
        )

    def _kinds(self) -> list[Any]:
        quantiles = f.percentile("run_s", f.array(f.lit(0.5), f.lit(0.95))).alias("quantiles")
        told = self.attempts.groupBy("queue", "kind").agg(
            f.count("*").alias("runs"),
            quantiles,
            f.max("run_s").alias("longest"),
            f.sum("run_s").alias("seconds"),
        )
        spread = told.select(
            "queue",
            "kind",
            "runs",
            f.col("quantiles")[0].alias("p50"),
            f.col("quantiles")[1].alias("p95"),
            "longest",
            "seconds",
        )
        return first_of_each(spread, "p95").collect()


def spoiled() -> Column:
    """How long a breach lasted."""
    return exactly("ended") - exactly("began")


def first_of_each(frame: DataFrame, by: str) -> DataFrame:
    """The rows of each queue with the most of something, the most first."""
    order = Window.partitionBy("queue").orderBy(f.col(by).desc(), f.col(frame.columns[1]))
    return (
        frame.withColumn("place", f.row_number().over(order))
        .where(f.col("place") <= MOST_ROWS)
        .orderBy("queue", "place")
        .drop("place")
    )


def joined(moments: Iterable[int], spells: Iterable[Any], waits: Iterable[Any]) -> Iterable[Spell]:
    """A spell for every moment, also for those in which nobody looked."""
    known, waited = {row.at: row for row in spells}, {row.at: row.waits for row in waits}
    for at in moments:
        p50, p95, p99 = waited.get(at) or (None, None, None)
        row = known.get(at)
        if row is None:
            yield Spell(at, wait_p50=p50, wait_p95=p95, wait_p99=p99)
            continue
        shares = tuple(row[name] for name in URGENCIES)
        yield Spell(
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


def summary(sums: Any, starts: Any) -> Summary:
    """`starts` is None: nobody has claimed anything yet."""
    told = Summary(
        kept=sums.kept or 0,
        late=sums.late or 0,
        worker_seconds=sums.worker_seconds,
        slas=None if sums.most is None else (sums.least, sums.most),
    )
    if starts is None:
        return told
    return replace(
        told,
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


def ended_breaches(rows: Sequence[Any]) -> tuple[tuple[Breach, ...], int, float]:
    """The longest, in the order of time; how many there were, and how long all of them lasted."""
    if not rows:
        return (), 0, 0.0
    worst = [Breach(*one[1]) for one in rows[0].worst]
    return tuple(sorted(worst, key=lambda one: one.began)), rows[0]["count"], rows[0].seconds
