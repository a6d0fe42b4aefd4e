"""Reads arrivals from a lake, for a backtest: each attempt is a task with its due time and run time.

A retry counts as load like any other; it is known from the end of the attempt before. A task that was pushed for later
is known from its push. Tasks without an attempt in history (they still wait, or were never claimed) are known by
samples only: for each hour, as many are added as are missing, at random times and with random run times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from penstock.errors import NotFound, ValidationError, shown
from penstock.pipeline.backtest.stratified import Floats, Recording
from penstock.pipeline.lake.lake import Lake

HOUR = 3600.0
MIN_SECONDS = 1e-6  # of a task: with 0 it would never occupy a slot
MIN_NOTICE = 1.0  # seconds before its due time at which a planned task must be known
MAX_ATTEMPTS_READ = 40_000_000  # three numbers of each fit into the memory of one process
MIN_MISSING_SHARE = 0.0005  # of all arrivals: a smaller difference comes from the times at which samples were taken


def from_lake(
    spark: SparkSession,
    lake: Lake,
    *,
    queue: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    seeds: int = 1,
) -> list[Recording]:
    """Returns the arrivals of a queue, or of the only queue there is: one recording per seed, each with new random
    values."""
    attempts = lake.read(spark, "silver/attempts")
    name = choose_queue(attempts, queue)
    own = attempts.where(f.col("queue") == name)
    begin, end = find_bounds(own, name, since, until)
    check_size(own, begin, end)
    columns = collect_attempts(own, begin, end)
    due, service, known = (np.asarray(columns[one], dtype=float) for one in ("due", "service", "known"))
    order = np.argsort(due, kind="stable")
    found = Recording(name, due[order], service[order], known[order], (end - begin).total_seconds())
    more = find_missing(spark, lake, name, begin, end)
    return [resample(add_missing(found, more, seed), seed) for seed in range(seeds)]


def choose_queue(attempts: DataFrame, queue: str | None) -> str:
    names = sorted(row["queue"] for row in attempts.select("queue").where("queue is not null").distinct().collect())
    if queue is not None:
        if queue not in names:
            near = get_close_matches(queue, names, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(names) or 'none'}."
            raise NotFound(f"queue: the lake has no attempt of {shown(queue)}", hint=hint)
        return queue
    if len(names) != 1:
        hint = f"--queue is one of {', '.join(names)}." if names else "penstock pipeline run fills it."
        what = f"the lake has {len(names)} queues" if names else "the lake has no attempts"
        raise ValidationError(f"queue: {what}", hint=hint, field="queue")
    return str(names[0])


def find_bounds(own: DataFrame, name: str, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    """Returns the hours in which tasks were due, or the part of them that was asked for."""
    row = own.agg(f.unix_micros(f.min("due")).alias("first"), f.unix_micros(f.max("due")).alias("last")).collect()[0]
    first, last = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row[one]) for one in ("first", "last"))
    begin = first.replace(minute=0, second=0, microsecond=0)
    end = last.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    begin, end = (begin if since is None else since), (end if until is None else until)
    if begin >= end or begin > last or end < first:
        raise ValidationError(
            f"since: nothing of {name} was due from {begin:%Y-%m-%d %H:%M}Z to {end:%Y-%m-%d %H:%M}Z",
            hint=f"The lake has it from {first:%Y-%m-%d %H:%M}Z to {last:%Y-%m-%d %H:%M}Z.",
            field="since",
        )
    return begin, end


def check_size(own: DataFrame, begin: datetime, end: datetime) -> None:
    count = own.where((f.col("due") >= f.lit(begin)) & (f.col("due") < f.lit(end))).count()
    if count > MAX_ATTEMPTS_READ:
        raise ValidationError(
            f"since: {count:,} attempts are more than {MAX_ATTEMPTS_READ:,}",
            hint="Take a part: --since, --until.",
            field="since",
        )


def collect_attempts(own: DataFrame, begin: datetime, end: datetime) -> pa.Table:
    """Returns three numbers for each attempt, which is all that a simulation needs."""
    before = Over.partitionBy("queue_id", "task_id").orderBy("finished_at", "id")
    arrival = f.least("due", "claimed_at")
    known = f.coalesce(f.lag("finished_at").over(before), f.col("created"))
    origin = int(begin.timestamp() * 1e6)
    named = own.select(
        ((f.unix_micros(arrival) - f.lit(origin)) / 1e6).alias("due"),
        f.greatest("run_s", f.lit(MIN_SECONDS)).alias("service"),
        ((f.unix_micros(known) - f.lit(origin)) / 1e6).alias("known"),
    )
    early = f.when(f.col("known") < f.col("due") - MIN_NOTICE, f.col("known")).otherwise(f.col("due"))
    inside = named.where((f.col("due") >= 0) & (f.col("due") < (end - begin).total_seconds()))
    return inside.select("due", "service", early.alias("known")).toArrow()


def find_missing(spark: SparkSession, lake: Lake, name: str, begin: datetime, end: datetime) -> list[tuple[float, int]]:
    """Returns (seconds from the beginning, tasks) of hours in which samples count more pushes than there are first
    attempts."""
    minutes = lake.read(spark, "gold/minutes").where((f.col("queue") == name) & f.col("arrivals_sampled").isNotNull())
    since = (f.unix_seconds("minute") - f.lit(int(begin.timestamp()))).alias("since")
    hour = f.floor(f.col("since") / HOUR).alias("hour")
    rows = (
        minutes.select(since, "arrivals_sampled", "arrivals_seen")
        .where((f.col("since") >= 0) & (f.col("since") < (end - begin).total_seconds()))
        .groupBy(hour)
        .agg(f.sum(f.col("arrivals_sampled") - f.col("arrivals_seen")).alias("more"))
        .where("more > 0")
        .orderBy("hour")
        .collect()
    )
    return [(row["hour"] * HOUR, int(row["more"])) for row in rows]


def add_missing(found: Recording, more: Sequence[tuple[float, int]], seed: int) -> Recording:
    count = sum(tasks for _, tasks in more)
    if count <= MIN_MISSING_SHARE * len(found):
        return found
    random: Any = np.random.default_rng([seed, 1])
    due = np.concatenate([random.uniform(at, min(at + HOUR, found.duration), tasks) for at, tasks in more])
    service = random.choice(found.service, len(due)) if len(found) else np.full(len(due), MIN_SECONDS)
    return add_arrivals(found, due, service)


def add_arrivals(found: Recording, due: Floats, service: Floats) -> Recording:
    share = 100 * len(due) / (len(due) + len(found))
    note = (
        f"{len(due):,} arrivals ({share:.1f} %) are known by samples only, because history has no attempt of them: "
        "when in their hour they came, and how long they take, is drawn"
    )
    order = np.argsort(np.concatenate([found.due, due]), kind="stable")
    return replace(
        found,
        due=np.concatenate([found.due, due])[order],
        service=np.concatenate([found.service, service])[order],
        known=np.concatenate([found.known, due])[order],
        notes=(*found.notes, note),
    )


def resample(found: Recording, seed: int) -> Recording:
    """Returns the recording itself for seed 0; for other seeds, with service times drawn from all of them."""
    if not seed:
        return found
    random: Any = np.random.default_rng([seed, 2])
    return replace(found, service=random.choice(found.service, len(found)))
