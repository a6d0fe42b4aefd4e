"""Silver: one row per attempt, with what can be said of it alone. DataFrame in, DataFrame out; days that are new or
have changed are made again, each as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.pipeline.bronze import rows_in
from penstock.pipeline.lake import File
from penstock.pipeline.schemas import (
    ATTEMPTS,
    DAY,
    ENDS,
    FAILURES,
    HISTORY,
    PROMISES,
    REJECTED,
    SAMPLE,
)
from penstock.pipeline.work import Work, paths, signature

SHAPE = 200  # characters of an error that are kept
READ = 4000  # characters of it that are looked at
# What differs from one error to the next, in the order in which it is taken out. Written so that Java and PostgreSQL
# understand the same: no \b, no \d, no look-ahead.
BLANKS: tuple[tuple[str, str], ...] = (
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?", "<time>"),
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"'[^']*'", "<text>"),
    (r'"[^"]*"', "<text>"),
    (r"0[xX][0-9a-fA-F]+", "<hex>"),
    (r"[0-9a-fA-F]*[0-9][0-9a-fA-F]*[a-fA-F][0-9a-fA-F]{6,}", "<hex>"),
    (r"[0-9]+([.,][0-9]+)*", "<n>"),
    (r"[ \t\r\n]+", " "),
)
IMPOSSIBLE: tuple[tuple[str, str], ...] = (
    ("queue is null", "a queue of which nothing is known"),
    ("finished_at < claimed_at", "finished before claimed"),
    ("claimed_at < created", "claimed before created"),
    ("attempt < 1", "attempt below 1"),
    ("iteration < 0", "iteration below 0"),
)


def silver(work: Work) -> dict[str, int]:
    found = make_promises(work)
    state = work.lake.state
    wanted = {day: made_of(work, day) for day in state.days(HISTORY.name)}
    made = state.made.get(ATTEMPTS.name, {})
    days = [day for day, of in wanted.items() if made.get(day) != of]
    if not days:
        return {**found, ATTEMPTS.name: 0, REJECTED.name: 0}
    work.tell(f"attempts of {said(days)}")
    rows = work.lake.read(work.spark, HISTORY.name, days)
    twice = doubled(rows)
    good = attempts(without(rows, twice), promised(work, max(days)))
    kept = work.lake.stage(good, ATTEMPTS)
    bad = work.lake.stage(rejected(rows, twice), REJECTED)
    work.lake.commit(
        replaces={
            ATTEMPTS.name: {day: kept.get(day, ()) for day in days},
            REJECTED.name: {day: bad.get(day, ()) for day in days},
        },
        made={**state.made, ATTEMPTS.name: {**made, **{day: wanted[day] for day in days}}},
        reach={**state.reach, **reached(work, kept, days)},
        versions={**state.versions, ATTEMPTS.name: ATTEMPTS.version, REJECTED.name: REJECTED.version},
    )
    return {**found, ATTEMPTS.name: rows_in(kept), REJECTED.name: rows_in(bad)}


def said(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{len(days)} days, {days[0]} to {days[-1]}"


def made_of(work: Work, day: str) -> str:
    """The day's own rows, and every promise that could hold for them."""
    state = work.lake.state
    earlier = {one for one in state.days(PROMISES.name) if one <= day}
    return signature(
        ATTEMPTS.version,
        REJECTED.version,
        paths(state, HISTORY.name, {day}),
        paths(state, PROMISES.name, earlier),
    )


# --- promises ---------------------------------------------------------------------------------------------------------


def make_promises(work: Work) -> dict[str, int]:
    state = work.lake.state
    wanted = {day: signature(PROMISES.version, paths(state, SAMPLE.name, {day})) for day in state.days(SAMPLE.name)}
    made = state.made.get(PROMISES.name, {})
    days = [day for day, of in wanted.items() if made.get(day) != of]
    if not days:
        return {PROMISES.name: 0}
    work.tell(f"promises of {said(days)}")
    staged = work.lake.stage(promises(work.lake.read(work.spark, SAMPLE.name, days)).repartition(DAY), PROMISES)
    work.lake.commit(
        replaces={PROMISES.name: {day: staged.get(day, ()) for day in days}},
        made={**state.made, PROMISES.name: wanted},
        versions={**state.versions, PROMISES.name: PROMISES.version},
    )
    return {PROMISES.name: rows_in(staged)}


def promises(samples: DataFrame) -> DataFrame:
    """The first sample of a queue and day, and each whose SLA is not that of the one before."""
    before = Window.partitionBy("queue_id", DAY).orderBy("at")
    changed = f.lag("at").over(before).isNull() | ~f.col("sla").eqNullSafe(f.lag("sla").over(before))
    return samples.withColumn("changed", changed).where("changed").withColumn("sla_s", f.col("sla"))


def promised(work: Work, upto: str) -> DataFrame:
    """What was promised in [at, until): few rows, however long the lake is."""
    days = [day for day in work.lake.state.days(PROMISES.name) if day <= upto]
    all_of_them = work.lake.read(work.spark, PROMISES.name, days)
    before = Window.partitionBy("queue_id").orderBy("at")
    changed = f.lag("at").over(before).isNull() | ~f.col("sla_s").eqNullSafe(f.lag("sla_s").over(before))
    return (
        all_of_them.withColumn("changed", changed)
        .where("changed")
        .select(
            f.col("queue_id").alias("promised_id"),
            f.col("at").alias("promised_from"),
            f.lead("at").over(before).alias("promised_until"),
            "sla_s",
        )
    )


# --- attempts ---------------------------------------------------------------------------------------------------------


def attempts(rows: DataFrame, promised: DataFrame) -> DataFrame:
    holds = (
        (f.col("queue_id") == f.col("promised_id"))
        & (f.col("claimed_at") >= f.col("promised_from"))
        & (f.col("promised_until").isNull() | (f.col("claimed_at") < f.col("promised_until")))
    )
    possible = rows.where(impossible().isNull())
    known = possible.join(f.broadcast(promised), holds, "left")
    wait = f.greatest(between("due", "claimed_at"), f.lit(0.0))
    late = f.col("wait_s") > f.col("sla_s")
    wrong = shape()
    return (
        known.withColumn("wait_s", wait)
        .withColumn("run_s", between("claimed_at", "finished_at"))
        .withColumn("age_s", between("created", "claimed_at"))
        .withColumn("late", late)
        .withColumn("late_by_s", f.when(late, f.col("wait_s") - f.col("sla_s")).when(~late, f.lit(0.0)))
        .withColumn("ended", f.col("outcome").isin(*ENDS))
        .withColumn("error_shape", wrong)
        .withColumn("fingerprint", fingerprint())
    )


def between(first: str, last: str) -> Column:
    """Seconds; moments are whole microseconds, so nothing is lost."""
    return (f.unix_micros(last) - f.unix_micros(first)) / f.lit(1_000_000.0)


def shape() -> Column:
    """The error without its numbers, names and moments; what has no text is known by its class, else by its outcome.
    Null: nothing went wrong."""
    text = f.substring("error", 1, READ)
    for pattern, blank in BLANKS:
        text = f.regexp_replace(text, f.lit(pattern), f.lit(blank))
    failed = f.when(f.col("outcome").isin(*FAILURES), f.col("outcome"))
    return f.coalesce(f.substring(f.trim(text), 1, SHAPE), "error_class", failed)


def fingerprint() -> Column:
    whole = f.concat_ws("\n", f.coalesce("error_class", f.lit("")), "error_shape")
    return f.when(f.col("error_shape").isNotNull(), f.substring(f.sha2(whole, 256), 1, 12))


def reached(work: Work, kept: dict[str, tuple[File, ...]], days: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The days of which a day's attempts say something: when they finished, were claimed, were pushed."""
    files = [file for some in kept.values() for file in some]
    first = (f.col("iteration") == 0) & (f.col("attempt") == 1)
    told = f.array(f.col(DAY), f.to_date("claimed_at"), f.when(first, f.to_date("created")))
    rows = (
        work.lake.frame(work.spark, ATTEMPTS, files)
        .select(DAY, f.explode(f.array_distinct(told)).alias("of"))
        .where("of is not null")
        .distinct()
        .collect()  # days, not rows
    )
    found: dict[str, set[str]] = {day: set() for day in days}
    for row in rows:
        found[row.day.isoformat()].add(row["of"].isoformat())
    return {day: tuple(sorted(of)) for day, of in found.items()}


# --- what is set aside ------------------------------------------------------------------------------------------------


def impossible() -> Column:
    return f.coalesce(*(f.when(f.expr(test), f.lit(reason)) for test, reason in IMPOSSIBLE))


def doubled(rows: DataFrame) -> DataFrame | None:
    """Ids that are there more than once, in any day; None, as it should be: none."""
    twice = rows.groupBy("id").count().where("count > 1").select("id").localCheckpoint()
    return None if twice.isEmpty() else twice


def nth(rows: DataFrame, twice: DataFrame) -> DataFrame:
    """The copies, numbered: the first is kept, whatever order they are read in."""
    order = Window.partitionBy("id").orderBy(*(f.col(name).asc_nulls_first() for name in HISTORY.names))
    return rows.join(f.broadcast(twice), "id", "left_semi").withColumn("nth", f.row_number().over(order))


def without(rows: DataFrame, twice: DataFrame | None) -> DataFrame:
    if twice is None:
        return rows
    firsts = nth(rows, twice).where("nth = 1").drop("nth")
    return rows.join(f.broadcast(twice), "id", "left_anti").unionByName(firsts)


def rejected(rows: DataFrame, twice: DataFrame | None) -> DataFrame:
    odd = without(rows, twice).withColumn("reason", impossible()).where("reason is not null")
    if twice is None:
        return odd
    return odd.unionByName(nth(rows, twice).where("nth > 1").drop("nth").withColumn("reason", f.lit("duplicate")))
