"""Gold: what people ask. Per queue and minute, per kind, per error; and when the promise was broken.

Arrivals and backlog come from samples as well as from history: what has not finished is not in history, and in an
overload that is most of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.pipeline.bronze import rows_in
from penstock.pipeline.lake import WHOLE, State
from penstock.pipeline.schemas import (
    AGES,
    ATTEMPTS,
    BREACHES,
    CHANCES,
    DAY,
    ERRORS,
    FAILURES,
    HISTORY,
    KINDS,
    MINUTES,
    SAMPLE,
    SPANS,
    SUCCESSES,
    THRESHOLDS,
    URGENCIES,
)
from penstock.pipeline.silver import said
from penstock.pipeline.work import Work, paths, signature

BY_DAY = (MINUTES, SPANS, KINDS, ERRORS, CHANCES)
BEFORE = 31  # days in which the failure before a try is looked for
APART = 10  # seconds between two pieces of one breach; also how long a sample speaks for
DRAINED = ("done", "again", "dead", "revoked")


@dataclass(frozen=True, slots=True)
class Sources:
    """What the days in question are made of."""

    days: list[str]
    attempts: DataFrame  # all that say something of these days
    earlier: DataFrame  # those of a month before, too
    samples: DataFrame  # of these days and the day before each


def gold(work: Work) -> dict[str, int]:
    state = work.lake.state
    wanted = {day: made_of(state, day) for day in covered(state)}
    made = state.made.get(MINUTES.name, {})
    days = [day for day, of in wanted.items() if made.get(day) != of]
    counts = {table.name: 0 for table in BY_DAY}
    if days:
        work.tell(f"minutes, kinds and errors of {said(days)}")
        sources = sources_of(work, days)
        makers = {
            MINUTES: minutes(sources),
            SPANS: spans(sources),
            KINDS: kinds(sources),
            ERRORS: errors(sources),
            CHANCES: chances(sources),
        }
        staged = {table.name: work.lake.stage(frame.repartition(DAY), table) for table, frame in makers.items()}
        work.lake.commit(
            replaces={name: {day: some.get(day, ()) for day in days} for name, some in staged.items()},
            made={**state.made, MINUTES.name: {**made, **{day: wanted[day] for day in days}}},
            versions={**state.versions, **{table.name: table.version for table in BY_DAY}},
        )
        counts = {name: rows_in(some) for name, some in staged.items()}
    return {**counts, **make_breaches(work)}


def covered(state: State) -> list[str]:
    """From the first day of which the lake has anything."""
    own = {*state.days(HISTORY.name), *state.days(SAMPLE.name)}
    first = min(own, default="")
    return sorted(own | {day for days in state.reach.values() for day in days if day >= first})


def feeders(state: State, day: str) -> set[str]:
    """The days of silver that say something of a day."""
    return {one for one, days in state.reach.items() if day in days}


def shifted(day: str, by: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=by)).isoformat()


def earlier(state: State, day: str) -> set[str]:
    first = shifted(day, -BEFORE)
    return {one for one in state.days(ATTEMPTS.name) if first <= one <= day}


def made_of(state: State, day: str) -> str:
    return signature(
        *(table.version for table in BY_DAY),
        paths(state, ATTEMPTS.name, feeders(state, day)),
        paths(state, ATTEMPTS.name, earlier(state, day)) if state.files(ATTEMPTS.name, {day}) else (),
        paths(state, SAMPLE.name, {day, shifted(day, -1)}),
    )


def sources_of(work: Work, days: Sequence[str]) -> Sources:
    state = work.lake.state

    def read(table: str, of: Collection[str]) -> DataFrame:
        return work.lake.read(work.spark, table, of)

    return Sources(
        days=[*days],
        attempts=read(ATTEMPTS.name, {one for day in days for one in feeders(state, day)}),
        earlier=read(ATTEMPTS.name, {one for day in days for one in earlier(state, day)}),
        samples=read(SAMPLE.name, {one for day in days for one in (day, shifted(day, -1))}),
    )


def of_days(frame: DataFrame, days: Sequence[str], moment: str) -> DataFrame:
    """Those of a moment in the days that are being made."""
    return frame.withColumn(DAY, f.to_date(moment)).where(f.col(DAY).isin([date.fromisoformat(day) for day in days]))


def total(seconds: str) -> Column:
    """In whole microseconds: the same in whatever order they are added."""
    return f.sum(f.round(f.col(seconds) * 1_000_000).cast("bigint")) / 1_000_000.0


def how_many(test: Column) -> Column:
    return f.count(f.when(test, 1))


# --- minutes ----------------------------------------------------------------------------------------------------------


def minutes(sources: Sources) -> DataFrame:
    """Four looks at the same minutes, each with columns of its own, put side by side."""
    sides = [arrived(sources), started(sources), finished(sources), observed(sources)]
    together = sides[0]
    for side in sides[1:]:
        together = together.unionByName(side, allowMissingColumns=True)
    own = [name for name in together.columns if name not in ("queue", "minute", DAY)]
    merged = together.groupBy("queue", "minute", DAY).agg(*(f.max(name).alias(name) for name in own))
    counts = ("arrivals_seen", "starts", "finishes", "failures", "samples", "kept", "late")
    for name in counts:
        merged = merged.withColumn(name, f.coalesce(name, f.lit(0)))
    promised = f.col("kept") + f.col("late")
    return (
        merged.withColumn("drain_rate", f.coalesce("drain_rate", f.lit(0.0)))
        .withColumn("sla_s", f.coalesce("sampled_sla_s", "started_sla_s"))
        .withColumn("compliance", f.when(promised > 0, f.col("kept") / promised))
    )


def by_minute(frame: DataFrame, days: Sequence[str], moment: str) -> DataFrame:
    return of_days(frame, days, moment).withColumn("minute", f.date_trunc("minute", moment))


def percentiles(of: str) -> Column:
    """All of them at once: each alone would keep every value again."""
    return f.percentile(of, f.array(*(f.lit(share) for _, share in QUANTILES)))


def spread(frame: DataFrame, name: str) -> DataFrame:
    """Percentiles, each in a column of its own."""
    own = {f"{name}_{label}": f.col(name)[n] for n, (label, _) in enumerate(QUANTILES)}
    return frame.withColumns(own).drop(name)


QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def arrived(sources: Sources) -> DataFrame:
    firsts = sources.attempts.where("iteration = 0 and attempt = 1")
    rows = by_minute(firsts, sources.days, "created")
    return rows.groupBy("queue", "minute", DAY).agg(f.count_distinct("task_id").alias("arrivals_seen"))


def started(sources: Sources) -> DataFrame:
    rows = by_minute(sources.attempts, sources.days, "claimed_at")
    found = rows.groupBy("queue", "minute", DAY).agg(
        f.count("*").alias("starts"),
        percentiles("wait_s").alias("wait"),
        how_many(~f.col("late")).alias("kept"),
        how_many(f.col("late")).alias("late"),
        f.max("sla_s").alias("started_sla_s"),
    )
    return spread(found, "wait")


def finished(sources: Sources) -> DataFrame:
    rows = by_minute(sources.attempts, sources.days, "finished_at")
    found = rows.groupBy("queue", "minute", DAY).agg(
        f.count("*").alias("finishes"),
        how_many(f.col("outcome").isin(*FAILURES)).alias("failures"),
        (how_many(f.col("outcome").isin(*DRAINED)) / 60.0).alias("drain_rate"),
        percentiles("run_s").alias("run"),
    )
    return spread(found, "run")


def observed(sources: Sources) -> DataFrame:
    """By samples. What was pushed is what the total grew by since the sample before, of the same day or the day
    before it: an older one is not looked for."""
    before = Window.partitionBy("queue_id").orderBy("at")
    near = f.datediff(f.col("at"), f.lag("at").over(before)) <= 1
    grown = f.greatest(f.col("pushed_total") - f.lag("pushed_total").over(before), f.lit(0))
    rows = by_minute(sources.samples.withColumn("pushed", f.when(near, grown)), sources.days, "at")
    last = f.struct("at", "queue_id")
    return rows.groupBy("queue", "minute", DAY).agg(
        f.sum("pushed").alias("arrivals_sampled"),
        f.max_by("pending", last).alias("pending"),
        f.max("oldest_age").alias("oldest_age_s"),
        f.avg("workers").alias("workers"),
        f.count("*").alias("samples"),
        f.max_by("sla", last).alias("sampled_sla_s"),
        *(f.avg(f.when(f.col("sla").isNotNull(), urgency(name))).alias(name) for name in URGENCIES),
    )


def urgency(name: str) -> Column:
    """1 where a sample is so urgent, else 0: by how much of the promise its oldest task has used up."""
    used = f.coalesce(f.col("oldest_age") / f.col("sla"), f.lit(0.0))
    n = URGENCIES.index(name)
    least = used >= THRESHOLDS[n - 1] if n else f.lit(True)
    below = used < THRESHOLDS[n] if n < len(THRESHOLDS) else f.lit(True)
    return f.when(least & below, 1.0).otherwise(0.0)


# --- breaches ---------------------------------------------------------------------------------------------------------


def spans(sources: Sources) -> DataFrame:
    """Pieces by day. Late claims of the same ten seconds are put together before they are put in order: they would
    be one span anyhow."""
    seen = of_days(sources.samples, sources.days, "at").where("oldest_age >= sla")
    by_samples = seen.select(
        "queue",
        DAY,
        f.col("at").alias("began"),
        later("at", f.lit(float(APART))).alias("ended"),
        f.col("oldest_age").alias("worst_age_s"),
        f.lit(0).cast("bigint").alias("late_tasks"),
    )
    late = of_days(sources.attempts, sources.days, "claimed_at").where("late")
    bucket = f.floor(f.unix_micros("claimed_at") / (APART * 1_000_000))
    by_claims = late.groupBy("queue", DAY, bucket.alias("bucket")).agg(
        f.min(later("due", f.col("sla_s"))).alias("began"),
        f.max("claimed_at").alias("ended"),
        f.max("wait_s").alias("worst_age_s"),
        f.count("*").alias("late_tasks"),
    )
    return joined(by_samples.unionByName(by_claims.drop("bucket")), "queue", DAY)


def later(moment: str, seconds: Column) -> Column:
    return f.timestamp_micros(f.unix_micros(moment) + f.round(seconds * 1_000_000).cast("bigint"))


def joined(pieces: DataFrame, *keys: str) -> DataFrame:
    """Pieces that overlap, or are hardly apart, as one."""
    before = Window.partitionBy(*keys).orderBy("began", "ended")
    upto = f.max("ended").over(before.rowsBetween(Window.unboundedPreceding, -1))
    new = upto.isNull() | (f.unix_micros("began") > f.unix_micros(upto) + APART * 1_000_000)
    return (
        pieces.withColumn("new", f.when(new, 1).otherwise(0))
        .withColumn("nth", f.sum("new").over(before.rowsBetween(Window.unboundedPreceding, 0)))
        .groupBy(*keys, "nth")
        .agg(
            f.min("began").alias("began"),
            f.max("ended").alias("ended"),
            f.max("worst_age_s").alias("worst_age_s"),
            f.sum("late_tasks").alias("late_tasks"),
        )
        .drop("nth")
    )


def make_breaches(work: Work) -> dict[str, int]:
    """Over all days: a breach does not end at midnight."""
    state = work.lake.state
    of = signature(BREACHES.version, paths(state, SPANS.name, state.days(SPANS.name)))
    if state.made.get(BREACHES.name, {}).get(WHOLE) == of:
        return {BREACHES.name: 0}
    whole = joined(work.lake.read(work.spark, SPANS.name), "queue")
    staged = work.lake.stage(whole.coalesce(1), BREACHES)
    work.lake.commit(
        replaces={BREACHES.name: {WHOLE: staged.get(WHOLE, ())}},
        made={**state.made, BREACHES.name: {WHOLE: of}},
        versions={**state.versions, BREACHES.name: BREACHES.version},
    )
    return {BREACHES.name: rows_in(staged)}


# --- kinds, errors, chances -------------------------------------------------------------------------------------------


def kinds(sources: Sources) -> DataFrame:
    rows = of_days(sources.attempts, sources.days, "finished_at")
    verdicts = f.col("done") + f.col("failed") + f.col("dead")
    return (
        rows.groupBy("queue", "kind", "attempt", DAY)
        .agg(
            f.count("*").alias("runs"),
            how_many(f.col("outcome").isin(*SUCCESSES)).alias("done"),
            how_many(f.col("outcome").isin("failed", "expired")).alias("failed"),
            how_many(f.col("outcome") == "dead").alias("dead"),
            total("run_s").alias("run_s_total"),
        )
        .withColumn("failure_rate", f.when(verdicts > 0, (f.col("failed") + f.col("dead")) / verdicts))
    )


def errors(sources: Sources) -> DataFrame:
    rows = of_days(sources.attempts, sources.days, "finished_at").where("fingerprint is not null")
    return rows.groupBy("queue", "kind", "fingerprint", "error_shape", "error_class", DAY).agg(
        f.count("*").alias("runs"),
        f.count_distinct("task_id").alias("tasks"),
        total("run_s").alias("run_s_total"),
        f.min("finished_at").alias("first_seen"),
        f.max("finished_at").alias("last_seen"),
    )


def chances(sources: Sources) -> DataFrame:
    tries = of_days(sources.attempts, sources.days, "finished_at").where(f.col("outcome").isin(*SUCCESSES, *FAILURES))
    known = tries.where("attempt = 1").withColumn("before", f.lit(None).cast("string"))
    known = known.unionByName(after_failures(tries.where("attempt > 1"), sources.earlier))
    bucket = f.lit(AGES[0])
    for least in AGES[1:]:
        bucket = f.when(f.col("age_s") >= least, f.lit(least)).otherwise(bucket)
    return (
        known.groupBy("queue", "kind", "attempt", bucket.alias("age_bucket_s"), f.col("before"), DAY)
        .agg(
            f.count("*").alias("tries"),
            how_many(f.col("outcome").isin(*SUCCESSES)).alias("successes"),
            total("run_s").alias("run_s_total"),
        )
        .withColumnRenamed("before", "fingerprint")
    )


def after_failures(retries: DataFrame, earlier: DataFrame) -> DataFrame:
    """Each with the fingerprint of the last failure of the try before it."""
    failures = earlier.where(f.col("outcome").isin(*FAILURES)).select(
        f.col("task_id").alias("failed_id"),
        f.col("iteration").alias("failed_iteration"),
        f.col("attempt").alias("failed_attempt"),
        f.col("finished_at").alias("failed_at"),
        f.col("id").alias("failed_row"),
        f.col(DAY).alias("failed_day"),
        f.col("fingerprint").alias("failed_with"),
    )
    follows = (
        (f.col("task_id") == f.col("failed_id"))
        & (f.col("iteration") == f.col("failed_iteration"))
        & (f.col("attempt") == f.col("failed_attempt") + 1)
        & (f.col("failed_at") <= f.col("claimed_at"))
        & (f.datediff(DAY, "failed_day") <= BEFORE)
    )
    last = f.max_by("failed_with", f.struct("failed_at", "failed_row")).alias("before")
    own = [f.first(name).alias(name) for name in retries.columns if name != "id"]
    return retries.join(failures, follows, "left").groupBy("id").agg(*own, last)
