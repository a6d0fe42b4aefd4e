"""Profiles of queues for the scaler: arrivals by the hour of the week, how long tasks run, how long workers take to
start. Spark counts, `service_times` estimates, and PostgreSQL stores the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from penstock.client import profiles
from penstock.client.database import Database
from penstock.model import Json, Latency, RunningTasks
from penstock.pipeline.lake.fingerprint import fingerprint_lake
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.schemas import ATTEMPTS, FAILURES, MINUTES, SUCCESSES
from penstock.pipeline.learn.service_times import MIN_SECONDS, PER_DECADE, Runs, summarize_service
from penstock.scaler.policy.forecast import HOURS, MONDAY, PROFILE_VERSION

DAY = timedelta(days=1)
WEEKS = 8  # of history in a profile: older weeks say little about the present
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
EXPIRED = "expired"  # the worker is gone, so the run time is unknown


@dataclass(frozen=True, slots=True)
class Learnt:
    """The profiles, how many were written, and the queues without one."""

    profiles: list[Json]
    written: int
    without: list[str]


def make_profiles(
    spark: SparkSession, lake: Lake, database: Database, *, queues: Sequence[str] = (), weeks: int = WEEKS
) -> Learnt:
    """Learns profiles from the lake and writes them to PostgreSQL."""
    running, latencies, fingerprint = (
        profiles.running_times(database),
        profiles.start_latencies(database),
        fingerprint_lake(lake),
    )
    learnt = learn_profiles(spark, lake, running, latencies, queues=queues, weeks=weeks)
    for one in learnt:
        one["data"]["fingerprint"] = fingerprint
    written = profiles.set_profiles(database, learnt) if learnt else 0
    known = {one["queue"] for one in learnt}
    there = [one.queue for one in profiles.find_profiles(database) if not queues or one.queue in queues]
    return Learnt(learnt, written, [name for name in there if name not in known])


def up_to_date(lake: Lake, database: Database) -> bool:
    """Returns whether the stored profiles are less than a day old and were made of what the lake holds now."""
    there = [
        (one.age, one.data) for one in profiles.find_profiles(database) if one.age is not None and one.data is not None
    ]
    fingerprint = fingerprint_lake(lake)
    return bool(there) and all(age < DAY and data.get("fingerprint") == fingerprint for age, data in there)


def learn_profiles(
    spark: SparkSession,
    lake: Lake,
    running: Iterable[RunningTasks] = (),
    latencies: Iterable[Latency] = (),
    *,
    queues: Sequence[str] = (),
    weeks: int = WEEKS,
) -> list[Json]:
    """Returns a profile of each queue that has minutes in the lake."""
    minutes = filter_queues(lake.read(spark, MINUTES.name, select_last_days(lake.days(MINUTES.name), weeks)), queues)
    attempts = filter_queues(lake.read(spark, ATTEMPTS.name, select_last_days(lake.days(ATTEMPTS.name), weeks)), queues)
    hours = group_by_queue(count_arrivals(minutes).collect())
    runs = group_by_queue(count_run_times(attempts).collect())
    still = group_by_queue(running)
    starts = {one.queue: one for one in latencies}
    return [
        make_profile(
            queue,
            hours[queue],
            [*read_ended(runs.get(queue, ())), *read_running(still.get(queue, ()))],
            starts.get(queue),
        )
        for queue in sorted(hours)
    ]


def select_last_days(days: Sequence[date], weeks: int) -> list[date]:
    return [day for day in days if day > max(days) - timedelta(weeks=weeks)]


def filter_queues(frame: DataFrame, queues: Sequence[str]) -> DataFrame:
    known = frame.where(f.col("queue").isNotNull())
    return known.where(f.col("queue").isin(*queues)) if queues else known


def group_by_queue(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.queue, []).append(row)
    return found


# --- what Spark counts ------------------------------------------------------------------------------------------------


def count_arrivals(minutes: DataFrame) -> DataFrame:
    """Counts arrivals per queue and hour of the week: by samples where there are any, because history lacks tasks that
    have not ended."""
    came = f.coalesce("arrivals_sampled", "arrivals_seen").cast("double")
    quantiles = f.percentile("came", f.array(*map(f.lit, QUANTILES.values())))
    return (
        minutes.select("queue", "minute", came.alias("came"), to_hour_of_week(f.col("minute")).alias("hour"))
        .where(f.col("came").isNotNull())
        .groupBy("queue", "hour")
        .agg(
            f.count("*").alias("minutes"),
            quantiles.alias("quantiles"),
            f.avg("came").alias("mean"),
            f.var_samp("came").alias("variance"),
            f.min(f.unix_seconds("minute")).alias("first"),
            f.max(f.unix_seconds("minute")).alias("last"),
        )
    )


def to_hour_of_week(moment: Column) -> Column:
    """Returns the hour of the week. 0 is Monday from midnight UTC, whatever the session's time zone is."""
    return f.pmod(f.floor((f.unix_seconds(moment) - MONDAY) / 3600), f.lit(HOURS)).cast("int")


def count_run_times(attempts: DataFrame) -> DataFrame:
    """Counts attempts by queue, kind and bucket of run time. An attempt that was taken from its worker had not
    ended."""
    seconds = f.greatest(f.col("run_s"), f.lit(MIN_SECONDS))
    judged = f.col("outcome").isin(*(one for one in (*SUCCESSES, *FAILURES) if one != EXPIRED))
    return (
        attempts.where(f.col("run_s").isNotNull())
        .select("queue", "kind", seconds.alias("seconds"), judged.alias("ended"))
        .withColumn("bucket", f.floor(PER_DECADE * f.log10("seconds")).cast("int"))
        .groupBy("queue", "kind", "bucket", "ended")
        .agg(
            f.count("*").alias("runs"),
            f.sum("seconds").alias("seconds"),
            f.sum(f.col("seconds") * f.col("seconds")).alias("squares"),
        )
    )


# --- what a profile says ----------------------------------------------------------------------------------------------


def read_ended(rows: Iterable[Row]) -> list[Runs]:
    return [Runs(row.kind, row.bucket, row.ended, row.runs, row.seconds, row.squares) for row in rows]


def read_running(rows: Iterable[RunningTasks]) -> list[Runs]:
    return [Runs(one.kind, one.bucket, False, one.tasks, one.seconds) for one in rows]


def make_profile(queue: str, hours: Sequence[Row], runs: Sequence[Runs], start: Latency | None) -> Json:
    minutes = sum(row.minutes for row in hours)
    return {
        "queue": queue,
        "version": PROFILE_VERSION,
        "covers_from": format_moment(min(row.first for row in hours)),
        "covers_to": format_moment(max(row.last for row in hours) + 60),
        "data": {
            "hours": spread_hours(hours),
            "level": sum(row.mean * row.minutes for row in hours) / minutes,
            "minutes": minutes,
            "dispersion": compute_dispersion(hours),
            "service": summarize_service(runs),
            "start": None if start is None else {"workers": start.workers, "p50": start.p50, "p90": start.p90},
        },
    }


def format_moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def spread_hours(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """Returns tasks per minute for each hour of the week; null: no minute of that hour was seen."""
    at: Mapping[int, Row] = {row.hour: row for row in rows}
    found: dict[str, list[float | None]] = {
        name: [at[hour].quantiles[n] if hour in at else None for hour in range(HOURS)]
        for n, name in enumerate(QUANTILES)
    }
    return found | {"minutes": [at[hour].minutes if hour in at else 0 for hour in range(HOURS)]}


def compute_dispersion(rows: Sequence[Row]) -> float:
    """Returns variance / mean of the arrivals per minute, around the mean of their own hour, so that quiet nights do
    not count as variance. With too few minutes it returns 1, as for random arrivals."""
    known = [row for row in rows if row.minutes > 1]
    mean = sum((row.minutes - 1) * row.mean for row in known)
    return sum((row.minutes - 1) * row.variance for row in known) / mean if mean else 1.0
