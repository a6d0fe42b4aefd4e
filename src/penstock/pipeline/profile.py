"""What history says of each queue, for the scaler: arrivals by the hour of the week, how long tasks take, how long
workers take to start. Spark counts, `lasting` judges, PostgreSQL keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from penstock import queue as seam
from penstock.database import Database
from penstock.model import Json, Latency, Running
from penstock.pipeline.content import content
from penstock.pipeline.lake import Lake
from penstock.pipeline.lasting import PER_DECADE, SHORTEST, Runs, service
from penstock.pipeline.schemas import ATTEMPTS, FAILURES, MINUTES, SUCCESSES
from penstock.scaler.forecast import HOURS, MONDAY, PROFILE_VERSION

DAY = timedelta(days=1)
WEEKS = 8  # that a profile is made of: what was usual last year is not what is usual
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
EXPIRED = "expired"  # the worker is gone, and with it how long it would have taken


@dataclass(frozen=True, slots=True)
class Learnt:
    """What was written, and of which queues nothing is known."""

    profiles: list[Json]
    written: int
    without: list[str]


def make_profiles(
    spark: SparkSession, lake: Lake, database: Database, *, queues: Sequence[str] = (), weeks: int = WEEKS
) -> Learnt:
    """Learns from the lake and writes what was learnt."""
    running, latencies, made_of = seam.running_times(database), seam.start_latencies(database), content(lake)
    profiles = learn(spark, lake, running, latencies, queues=queues, weeks=weeks)
    for one in profiles:
        one["data"]["content"] = made_of
    written = seam.set_profiles(database, profiles) if profiles else 0
    known = {one["queue"] for one in profiles}
    there = [one.queue for one in seam.profiles(database) if not queues or one.queue in queues]
    return Learnt(profiles, written, [name for name in there if name not in known])


def up_to_date(lake: Lake, database: Database) -> bool:
    """The profiles there are were made of what the lake holds now, today."""
    there = [(one.age, one.data) for one in seam.profiles(database) if one.age is not None and one.data is not None]
    made_of = content(lake)
    return bool(there) and all(age < DAY and data.get("content") == made_of for age, data in there)


def learn(
    spark: SparkSession,
    lake: Lake,
    running: Iterable[Running] = (),
    latencies: Iterable[Latency] = (),
    *,
    queues: Sequence[str] = (),
    weeks: int = WEEKS,
) -> list[Json]:
    """A profile of each queue of which there are minutes in the lake."""
    minutes = chosen(lake.read(spark, MINUTES.name, last_days(lake.days(MINUTES.name), weeks)), queues)
    attempts = chosen(lake.read(spark, ATTEMPTS.name, last_days(lake.days(ATTEMPTS.name), weeks)), queues)
    hours = by_queue(arrivals(minutes).collect())
    runs = by_queue(run_times(attempts).collect())
    still = by_queue(running)
    starts = {one.queue: one for one in latencies}
    return [
        profile(queue, hours[queue], [*ended(runs.get(queue, ())), *going(still.get(queue, ()))], starts.get(queue))
        for queue in sorted(hours)
    ]


def last_days(days: Sequence[date], weeks: int) -> list[date]:
    return [day for day in days if day > max(days) - timedelta(weeks=weeks)]


def chosen(frame: DataFrame, queues: Sequence[str]) -> DataFrame:
    known = frame.where(f.col("queue").isNotNull())
    return known.where(f.col("queue").isin(*queues)) if queues else known


def by_queue(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.queue, []).append(row)
    return found


# --- what Spark counts ------------------------------------------------------------------------------------------------


def arrivals(minutes: DataFrame) -> DataFrame:
    """Per queue and hour of the week. By samples where there are any: history does not know what has not ended."""
    came = f.coalesce("arrivals_sampled", "arrivals_seen").cast("double")
    quantiles = f.percentile("came", f.array(*map(f.lit, QUANTILES.values())))
    return (
        minutes.select("queue", "minute", came.alias("came"), hour_of_week(f.col("minute")).alias("hour"))
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


def hour_of_week(moment: Column) -> Column:
    """0: Monday, from midnight UTC, whatever the session's time zone is."""
    return f.pmod(f.floor((f.unix_seconds(moment) - MONDAY) / 3600), f.lit(HOURS)).cast("int")


def run_times(attempts: DataFrame) -> DataFrame:
    """Per queue, kind and bucket. What was taken away from its worker had not ended."""
    seconds = f.greatest(f.col("run_s"), f.lit(SHORTEST))
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


def ended(rows: Iterable[Row]) -> list[Runs]:
    return [Runs(row.kind, row.bucket, row.ended, row.runs, row.seconds, row.squares) for row in rows]


def going(rows: Iterable[Running]) -> list[Runs]:
    return [Runs(one.kind, one.bucket, False, one.tasks, one.seconds) for one in rows]


def profile(queue: str, hours: Sequence[Row], runs: Sequence[Runs], start: Latency | None) -> Json:
    minutes = sum(row.minutes for row in hours)
    return {
        "queue": queue,
        "version": PROFILE_VERSION,
        "covers_from": moment(min(row.first for row in hours)),
        "covers_to": moment(max(row.last for row in hours) + 60),
        "data": {
            "hours": by_hour(hours),
            "level": sum(row.mean * row.minutes for row in hours) / minutes,
            "minutes": minutes,
            "dispersion": dispersion(hours),
            "service": service(runs),
            "start": None if start is None else {"workers": start.workers, "p50": start.p50, "p90": start.p90},
        },
    }


def moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def by_hour(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """Tasks a minute, for each hour of the week; null: never seen."""
    at: Mapping[int, Row] = {row.hour: row for row in rows}
    found: dict[str, list[float | None]] = {
        name: [at[hour].quantiles[n] if hour in at else None for hour in range(HOURS)]
        for n, name in enumerate(QUANTILES)
    }
    return found | {"minutes": [at[hour].minutes if hour in at else 0 for hour in range(HOURS)]}


def dispersion(rows: Sequence[Row]) -> float:
    """Variance / mean of the counts of minutes, around the mean of their own hour: that nights are quiet is no whim. 1,
    as by chance, where too little was seen."""
    known = [row for row in rows if row.minutes > 1]
    mean = sum((row.minutes - 1) * row.mean for row in known)
    return sum((row.minutes - 1) * row.variance for row in known) / mean if mean else 1.0
