"""Gold: per queue and minute, per kind, per error; and when a promise was broken.

Arrivals and backlog come from samples as well as from history, because tasks that have not finished are not in history,
and in an overload these are most of the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.pipeline.lake.fingerprint import list_paths, make_signature
from penstock.pipeline.lake.lake import WHOLE_TABLE
from penstock.pipeline.lake.schemas import (
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
from penstock.pipeline.lake.state import LakeState
from penstock.pipeline.stages.bronze import count_rows
from penstock.pipeline.stages.silver import describe_days
from penstock.pipeline.work import Work

BY_DAY = (MINUTES, SPANS, KINDS, ERRORS, CHANCES)
LOOKBACK_DAYS = 31  # for the failure before a retry
MAX_GAP = 10  # seconds between two parts of one breach; also the interval of samples
MAX_IDLE_GAP = 660  # seconds between two samples of an idle queue, for which upkeep writes one every ten minutes
DRAINED = ("done", "again", "dead", "revoked", "unstarted")


@dataclass(frozen=True, slots=True)
class Sources:
    """The rows that the given days are made of."""

    days: list[str]
    attempts: DataFrame  # all that concern these days
    earlier: DataFrame  # these and those of the month before
    samples: DataFrame  # of these days and the day before each


def gold(work: Work) -> dict[str, int]:
    """Makes the days of gold that are new or have changed."""
    forget_days(work)
    state = work.lake.state
    wanted = {day: sign_day(state, day) for day in list_days(state)}
    made = state.made.get(MINUTES.name, {})
    days = [day for day, of in wanted.items() if made.get(day) != of]
    counts = {table.name: 0 for table in BY_DAY}
    if days:
        work.tell(f"minutes, kinds and errors of {describe_days(days)}")
        sources = read_sources(work, days)
        makers = {
            MINUTES: make_minutes(sources),
            SPANS: make_spans(sources),
            KINDS: make_kinds(sources),
            ERRORS: make_errors(sources),
            CHANCES: make_chances(sources),
        }
        staged = {table.name: work.lake.stage(frame.repartition(DAY), table) for table, frame in makers.items()}
        work.lake.commit(
            replaces={name: {day: some.get(day, ()) for day in days} for name, some in staged.items()},
            made={**state.made, MINUTES.name: {**made, **{day: wanted[day] for day in days}}},
            versions={**state.versions, **{table.name: table.version for table in BY_DAY}},
        )
        counts = {name: count_rows(some) for name, some in staged.items()}
    return {**counts, **make_breaches(work)}


def forget_days(work: Work) -> None:
    """Removes the days of which the lake no longer has any rows: a failover or a restore took them."""
    state = work.lake.state
    gone = {day for table in BY_DAY for day in state.days(table.name)} - {*list_days(state)}
    if gone:
        made = {day: of for day, of in state.made.get(MINUTES.name, {}).items() if day not in gone}
        work.lake.commit(
            replaces={table.name: dict.fromkeys(gone, ()) for table in BY_DAY},
            made={**state.made, MINUTES.name: made},
        )


def list_days(state: LakeState) -> list[str]:
    """Returns all days from the first one of which the lake has rows."""
    own = {*state.days(HISTORY.name), *state.days(SAMPLE.name)}
    first = min(own, default="")
    return sorted(own | {day for days in state.reach.values() for day in days if day >= first})


def find_feeders(state: LakeState, day: str) -> set[str]:
    """Returns the days of silver whose attempts concern a day."""
    return {one for one, days in state.reach.items() if day in days}


def shift_day(day: str, by: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=by)).isoformat()


def find_earlier(state: LakeState, day: str) -> set[str]:
    first = shift_day(day, -LOOKBACK_DAYS)
    return {one for one in state.days(ATTEMPTS.name) if first <= one <= day}


def sign_day(state: LakeState, day: str) -> str:
    return make_signature(
        *(table.version for table in BY_DAY),
        list_paths(state, ATTEMPTS.name, find_feeders(state, day)),
        list_paths(state, ATTEMPTS.name, find_earlier(state, day)) if state.files(ATTEMPTS.name, {day}) else (),
        list_paths(state, SAMPLE.name, {day, shift_day(day, -1)}),
    )


def read_sources(work: Work, days: Sequence[str]) -> Sources:
    state = work.lake.state

    def read(table: str, of: Collection[str]) -> DataFrame:
        return work.lake.read(work.spark, table, of)

    return Sources(
        days=[*days],
        attempts=read(ATTEMPTS.name, {one for day in days for one in find_feeders(state, day)}),
        earlier=read(ATTEMPTS.name, {one for day in days for one in find_earlier(state, day)}),
        samples=read(SAMPLE.name, {one for day in days for one in (day, shift_day(day, -1))}),
    )


def filter_days(frame: DataFrame, days: Sequence[str], moment: str) -> DataFrame:
    """Returns the rows whose timestamp is in one of the days."""
    return frame.withColumn(DAY, f.to_date(moment)).where(f.col(DAY).isin([date.fromisoformat(day) for day in days]))


def sum_seconds(seconds: str) -> Column:
    """Returns a sum in whole microseconds: it is the same in whatever order the values are added."""
    return f.sum(f.round(f.col(seconds) * 1_000_000).cast("bigint")) / 1_000_000.0


def count_where(test: Column) -> Column:
    return f.count(f.when(test, 1))


# --- minutes ----------------------------------------------------------------------------------------------------------


def make_minutes(sources: Sources) -> DataFrame:
    """Joins four views of the same minutes, each of which has its own columns."""
    sides = [count_arrivals(sources), count_starts(sources), count_finishes(sources), summarize_samples(sources)]
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


def add_minute(frame: DataFrame, days: Sequence[str], moment: str) -> DataFrame:
    return filter_days(frame, days, moment).withColumn("minute", f.date_trunc("minute", moment))


def compute_percentiles(of: str) -> Column:
    """Returns all percentiles in one aggregate: separate ones would each hold all values in memory."""
    return f.percentile(of, f.array(*(f.lit(share) for _, share in QUANTILES)))


def split_percentiles(frame: DataFrame, name: str) -> DataFrame:
    """Puts each percentile into a column of its own."""
    own = {f"{name}_{label}": f.col(name)[n] for n, (label, _) in enumerate(QUANTILES)}
    return frame.withColumns(own).drop(name)


QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def count_arrivals(sources: Sources) -> DataFrame:
    firsts = sources.attempts.where("iteration = 0 and attempt = 1")
    rows = add_minute(firsts, sources.days, "created")
    return rows.groupBy("queue", "minute", DAY).agg(f.count_distinct("task_id").alias("arrivals_seen"))


def count_starts(sources: Sources) -> DataFrame:
    rows = add_minute(sources.attempts, sources.days, "claimed_at")
    found = rows.groupBy("queue", "minute", DAY).agg(
        f.count("*").alias("starts"),
        compute_percentiles("wait_s").alias("wait"),
        count_where(~f.col("late")).alias("kept"),
        count_where(f.col("late")).alias("late"),
        f.max("sla_s").alias("started_sla_s"),
    )
    return split_percentiles(found, "wait")


def count_finishes(sources: Sources) -> DataFrame:
    rows = add_minute(sources.attempts, sources.days, "finished_at")
    found = rows.groupBy("queue", "minute", DAY).agg(
        f.count("*").alias("finishes"),
        count_where(f.col("outcome").isin(*FAILURES)).alias("failures"),
        (count_where(f.col("outcome").isin(*DRAINED)) / 60.0).alias("drain_rate"),
        compute_percentiles("run_s").alias("run"),
    )
    return split_percentiles(found, "run")


def summarize_samples(sources: Sources) -> DataFrame:
    """Summarizes the samples of each minute. Arrivals are the growth of the total since the sample before, if that is
    of the same day or the day before."""
    before = Window.partitionBy("queue_id").orderBy("at")
    near = f.datediff(f.col("at"), f.lag("at").over(before)) <= 1
    grown = f.greatest(f.col("pushed_total") - f.lag("pushed_total").over(before), f.lit(0))
    samples = fill_idle(sources.samples)
    rows = add_minute(samples.withColumn("pushed", f.when(near, grown)), sources.days, "at")
    last = f.struct("at", "queue_id")
    return rows.groupBy("queue", "minute", DAY).agg(
        f.sum("pushed").alias("arrivals_sampled"),
        f.max_by("pending", last).alias("pending"),
        f.max("oldest_age").alias("oldest_age_s"),
        f.avg("workers").alias("workers"),
        f.count("*").alias("samples"),
        f.max_by("sla", last).alias("sampled_sla_s"),
        *(f.avg(f.when(f.col("sla").isNotNull(), match_urgency(name))).alias(name) for name in URGENCIES),
    )


def fill_idle(samples: DataFrame) -> DataFrame:
    """Adds the samples that upkeep leaves out while a queue is idle: between two equal samples of a day, in which no
    task waits, it inserts a copy every ten seconds."""
    by_time = Window.partitionBy("queue_id", f.to_date("at")).orderBy("at")
    following = f.lead("at").over(by_time)
    apart = f.unix_micros(following) - f.unix_micros("at")
    idle = f.col("oldest_age").isNull() & apart.between(MAX_GAP * 1_000_000 + 1, MAX_IDLE_GAP * 1_000_000)
    for name in SAMPLE.names:
        if name not in ("queue", "queue_id", "xid", "at"):
            idle &= f.col(name).eqNullSafe(f.lead(name).over(by_time))
    began = f.unix_micros("at")
    until = f.when(idle, f.unix_micros(following) - MAX_GAP * 1_000_000).otherwise(began)
    return (
        samples.withColumn("steps", f.sequence(began, until, f.lit(MAX_GAP * 1_000_000)))
        .withColumn("step", f.explode("steps"))
        .withColumn("at", f.timestamp_micros("step"))
        .drop("steps", "step")
    )


def match_urgency(name: str) -> Column:
    """Returns 1 if a sample has this urgency, else 0. The urgency depends on how much of the SLA the oldest task has
    used."""
    used = f.coalesce(f.col("oldest_age") / f.col("sla"), f.lit(0.0))
    n = URGENCIES.index(name)
    least = used >= THRESHOLDS[n - 1] if n else f.lit(True)
    below = used < THRESHOLDS[n] if n < len(THRESHOLDS) else f.lit(True)
    return f.when(least & below, 1.0).otherwise(0.0)


# --- breaches ---------------------------------------------------------------------------------------------------------


def make_spans(sources: Sources) -> DataFrame:
    """Returns the parts of breaches by day. Late claims within ten seconds are merged before they are sorted: they
    would be one span in any case."""
    seen = filter_days(sources.samples, sources.days, "at").where("oldest_age >= sla")
    by_samples = seen.select(
        "queue",
        DAY,
        f.col("at").alias("began"),
        add_seconds("at", f.lit(float(MAX_GAP))).alias("ended"),
        f.col("oldest_age").alias("worst_age_s"),
        f.lit(0).cast("bigint").alias("late_tasks"),
    )
    late = filter_days(sources.attempts, sources.days, "claimed_at").where("late")
    bucket = f.floor(f.unix_micros("claimed_at") / (MAX_GAP * 1_000_000))
    by_claims = late.groupBy("queue", DAY, bucket.alias("bucket")).agg(
        f.min(add_seconds("due", f.col("sla_s"))).alias("began"),
        f.max("claimed_at").alias("ended"),
        f.max("wait_s").alias("worst_age_s"),
        f.count("*").alias("late_tasks"),
    )
    return merge_spans(by_samples.unionByName(by_claims.drop("bucket")), "queue", DAY)


def add_seconds(moment: str, seconds: Column) -> Column:
    return f.timestamp_micros(f.unix_micros(moment) + f.round(seconds * 1_000_000).cast("bigint"))


def merge_spans(pieces: DataFrame, *keys: str) -> DataFrame:
    """Merges spans that overlap, or that are at most MAX_GAP seconds apart."""
    before = Window.partitionBy(*keys).orderBy("began", "ended")
    upto = f.max("ended").over(before.rowsBetween(Window.unboundedPreceding, -1))
    new = upto.isNull() | (f.unix_micros("began") > f.unix_micros(upto) + MAX_GAP * 1_000_000)
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
    """Makes gold/breaches from the spans of all days, because a breach does not end at midnight."""
    state = work.lake.state
    of = make_signature(BREACHES.version, list_paths(state, SPANS.name, state.days(SPANS.name)))
    if state.made.get(BREACHES.name, {}).get(WHOLE_TABLE) == of:
        return {BREACHES.name: 0}
    whole = merge_spans(work.lake.read(work.spark, SPANS.name), "queue")
    staged = work.lake.stage(whole.coalesce(1), BREACHES)
    work.lake.commit(
        replaces={BREACHES.name: {WHOLE_TABLE: staged.get(WHOLE_TABLE, ())}},
        made={**state.made, BREACHES.name: {WHOLE_TABLE: of}},
        versions={**state.versions, BREACHES.name: BREACHES.version},
    )
    return {BREACHES.name: count_rows(staged)}


# --- kinds, errors, chances -------------------------------------------------------------------------------------------


def make_kinds(sources: Sources) -> DataFrame:
    rows = filter_days(sources.attempts, sources.days, "finished_at")
    verdicts = f.col("done") + f.col("failed") + f.col("dead")
    return (
        rows.groupBy("queue", "kind", "attempt", DAY)
        .agg(
            f.count("*").alias("runs"),
            count_where(f.col("outcome").isin(*SUCCESSES)).alias("done"),
            count_where(f.col("outcome").isin("failed", "expired")).alias("failed"),
            count_where(f.col("outcome") == "dead").alias("dead"),
            sum_seconds("run_s").alias("run_s_total"),
        )
        .withColumn("failure_rate", f.when(verdicts > 0, (f.col("failed") + f.col("dead")) / verdicts))
    )


def make_errors(sources: Sources) -> DataFrame:
    rows = filter_days(sources.attempts, sources.days, "finished_at").where("fingerprint is not null")
    return rows.groupBy("queue", "kind", "fingerprint", "error_shape", "error_class", DAY).agg(
        f.count("*").alias("runs"),
        f.count_distinct("task_id").alias("tasks"),
        sum_seconds("run_s").alias("run_s_total"),
        f.min("finished_at").alias("first_seen"),
        f.max("finished_at").alias("last_seen"),
    )


def make_chances(sources: Sources) -> DataFrame:
    tries = filter_days(sources.attempts, sources.days, "finished_at").where(
        f.col("outcome").isin(*SUCCESSES, *FAILURES)
    )
    known = tries.where("attempt = 1").withColumn("before", f.lit(None).cast("string"))
    known = known.unionByName(join_failures(tries.where("attempt > 1"), sources.earlier))
    bucket = f.lit(AGES[0])
    for least in AGES[1:]:
        bucket = f.when(f.col("age_s") >= least, f.lit(least)).otherwise(bucket)
    return (
        known.groupBy("queue", "kind", "attempt", bucket.alias("age_bucket_s"), f.col("before"), DAY)
        .agg(
            f.count("*").alias("tries"),
            count_where(f.col("outcome").isin(*SUCCESSES)).alias("successes"),
            sum_seconds("run_s").alias("run_s_total"),
        )
        .withColumnRenamed("before", "fingerprint")
    )


def join_failures(retries: DataFrame, earlier: DataFrame) -> DataFrame:
    """Adds to each retry the fingerprint of the last failure of the attempt before it."""
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
        & (f.datediff(DAY, "failed_day") <= LOOKBACK_DAYS)
    )
    last = f.max_by("failed_with", f.struct("failed_at", "failed_row")).alias("before")
    own = [f.first(name).alias(name) for name in retries.columns if name != "id"]
    return retries.join(failures, follows, "left").groupBy("id").agg(*own, last)
