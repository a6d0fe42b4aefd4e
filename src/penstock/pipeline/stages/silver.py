"""Silver: one row per attempt, with what is known from the attempt alone. Days that are new or have changed are made
again as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.model import TRACEBACK
from penstock.pipeline.lake.fingerprint import list_paths, make_signature
from penstock.pipeline.lake.schemas import (
    ATTEMPTS,
    DAY,
    ENDS,
    FAILURES,
    HISTORY,
    PROMISES,
    REJECTED,
    SAMPLE,
)
from penstock.pipeline.lake.state import File
from penstock.pipeline.stages.bronze import count_rows
from penstock.pipeline.work import Work

MAX_SHAPE = 200  # characters of an error that are kept
MAX_ERROR_READ = 4000  # characters of an error that are read
# Patterns of what differs between errors of one shape, in the order in which they are replaced. Java and PostgreSQL
# must read them alike, so they use no \b, no \d and no look-ahead.
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
REJECT_REASONS: tuple[tuple[str, str], ...] = (
    ("queue is null", "a queue of which nothing is known"),
    ("finished_at < claimed_at", "finished before claimed"),
    ("claimed_at < created", "claimed before created"),
    ("attempt < 1", "attempt below 1"),
    ("iteration < 0", "iteration below 0"),
)


def silver(work: Work) -> dict[str, int]:
    """Makes the days of silver that are new or have changed."""
    found = make_promises(work)
    forget_days(work)
    state = work.lake.state
    wanted = {day: sign_attempts(work, day) for day in state.days(HISTORY.name)}
    made = state.made.get(ATTEMPTS.name, {})
    days = [day for day, of in wanted.items() if made.get(day) != of]
    if not days:
        return {**found, ATTEMPTS.name: 0, REJECTED.name: 0}
    work.tell(f"attempts of {describe_days(days)}")
    rows = work.lake.read(work.spark, HISTORY.name, days)
    twice = find_duplicates(rows)
    good = make_attempts(drop_duplicates(rows, twice), read_promises(work, max(days)))
    kept = work.lake.stage(good, ATTEMPTS)
    bad = work.lake.stage(select_rejected(rows, twice), REJECTED)
    work.lake.commit(
        replaces={
            ATTEMPTS.name: {day: kept.get(day, ()) for day in days},
            REJECTED.name: {day: bad.get(day, ()) for day in days},
        },
        made={**state.made, ATTEMPTS.name: {**made, **{day: wanted[day] for day in days}}},
        reach={**state.reach, **find_reach(work, kept, days)},
        versions={**state.versions, ATTEMPTS.name: ATTEMPTS.version, REJECTED.name: REJECTED.version},
    )
    return {**found, ATTEMPTS.name: count_rows(kept), REJECTED.name: count_rows(bad)}


def forget_days(work: Work) -> None:
    """Removes the days that bronze no longer has: a failover or a restore took them."""
    state = work.lake.state
    gone = {*state.days(ATTEMPTS.name), *state.days(REJECTED.name)} - {*state.days(HISTORY.name)}
    if gone:
        made = {day: of for day, of in state.made.get(ATTEMPTS.name, {}).items() if day not in gone}
        work.lake.commit(
            replaces={table.name: dict.fromkeys(gone, ()) for table in (ATTEMPTS, REJECTED)},
            made={**state.made, ATTEMPTS.name: made},
            reach={day: days for day, days in state.reach.items() if day not in gone},
        )


def describe_days(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{len(days)} days, {days[0]} to {days[-1]}"


def sign_attempts(work: Work, day: str) -> str:
    """Returns the signature of a day: of its own rows, and of every promise that can apply to them."""
    state = work.lake.state
    earlier = {one for one in state.days(PROMISES.name) if one <= day}
    return make_signature(
        ATTEMPTS.version,
        REJECTED.version,
        list_paths(state, HISTORY.name, {day}),
        list_paths(state, PROMISES.name, earlier),
    )


# --- promises ---------------------------------------------------------------------------------------------------------


def make_promises(work: Work) -> dict[str, int]:
    """Makes the days of silver/promises that are new or have changed."""
    state = work.lake.state
    wanted = {
        day: make_signature(PROMISES.version, list_paths(state, SAMPLE.name, {day})) for day in state.days(SAMPLE.name)
    }
    made = state.made.get(PROMISES.name, {})
    days = [day for day, of in wanted.items() if made.get(day) != of]
    gone = {*state.days(PROMISES.name)} - {*wanted}
    if not days and not gone:
        return {PROMISES.name: 0}
    work.tell(f"promises of {describe_days(days or sorted(gone))}")
    staged = work.lake.stage(select_promises(work.lake.read(work.spark, SAMPLE.name, days)).repartition(DAY), PROMISES)
    work.lake.commit(
        replaces={PROMISES.name: {day: staged.get(day, ()) for day in {*days, *gone}}},
        made={**state.made, PROMISES.name: wanted},
        versions={**state.versions, PROMISES.name: PROMISES.version},
    )
    return {PROMISES.name: count_rows(staged)}


def select_promises(samples: DataFrame) -> DataFrame:
    """Returns the first sample of each queue and day, and each sample whose SLA differs from the one before."""
    before = Window.partitionBy("queue_id", DAY).orderBy("at")
    changed = f.lag("at").over(before).isNull() | ~f.col("sla").eqNullSafe(f.lag("sla").over(before))
    return samples.withColumn("changed", changed).where("changed").withColumn("sla_s", f.col("sla"))


def read_promises(work: Work, upto: str) -> DataFrame:
    """Returns the SLA of each queue and the interval [promised_from, promised_until) in which it applied. There are few
    rows, however large the lake is."""
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


def make_attempts(rows: DataFrame, promised: DataFrame) -> DataFrame:
    """Adds to rows of history what is known from each attempt alone, and the SLA that applied."""
    holds = (
        (f.col("queue_id") == f.col("promised_id"))
        & (f.col("claimed_at") >= f.col("promised_from"))
        & (f.col("promised_until").isNull() | (f.col("claimed_at") < f.col("promised_until")))
    )
    possible = rows.where(find_reason().isNull())
    known = possible.join(f.broadcast(promised), holds, "left")
    wait = f.greatest(seconds_between("due", "claimed_at"), f.lit(0.0))
    late = f.col("wait_s") > f.col("sla_s")
    wrong = make_shape()
    return (
        known.withColumn("wait_s", wait)
        .withColumn("run_s", seconds_between("claimed_at", "finished_at"))
        .withColumn("age_s", seconds_between("created", "claimed_at"))
        .withColumn("late", late)
        .withColumn("late_by_s", f.when(late, f.col("wait_s") - f.col("sla_s")).when(~late, f.lit(0.0)))
        .withColumn("ended", f.col("outcome").isin(*ENDS))
        .withColumn("error_shape", wrong)
        .withColumn("fingerprint", make_fingerprint())
    )


def seconds_between(first: str, last: str) -> Column:
    """Returns the seconds between two timestamps. They are whole microseconds, so the result is exact."""
    return (f.unix_micros(last) - f.unix_micros(first)) / f.lit(1_000_000.0)


def make_shape() -> Column:
    """Returns the message of an error without numbers, names and times, and without its traceback. An error without a
    text is known by its class, else by the outcome. Null: the attempt did not fail."""
    text = f.substring(f.substring_index("error", f"\n{TRACEBACK}\n", 1), 1, MAX_ERROR_READ)
    for pattern, blank in BLANKS:
        text = f.regexp_replace(text, f.lit(pattern), f.lit(blank))
    failed = f.when(f.col("outcome").isin(*FAILURES), f.col("outcome"))
    return f.coalesce(f.substring(f.trim(text), 1, MAX_SHAPE), "error_class", failed)


def make_fingerprint() -> Column:
    whole = f.concat_ws("\n", f.coalesce("error_class", f.lit("")), "error_shape")
    return f.when(f.col("error_shape").isNotNull(), f.substring(f.sha2(whole, 256), 1, 12))


def find_reach(work: Work, kept: dict[str, tuple[File, ...]], days: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns for each day the days that its attempts concern: when they were finished, claimed and pushed."""
    files = [file for some in kept.values() for file in some]
    first = (f.col("iteration") == 0) & (f.col("attempt") == 1)
    concerned = f.array(f.col(DAY), f.to_date("claimed_at"), f.when(first, f.to_date("created")))
    rows = (
        work.lake.frame(work.spark, ATTEMPTS, files)
        .select(DAY, f.explode(f.array_distinct(concerned)).alias("of"))
        .where("of is not null")
        .distinct()
        .collect()  # days, not rows
    )
    found: dict[str, set[str]] = {day: set() for day in days}
    for row in rows:
        found[row.day.isoformat()].add(row["of"].isoformat())
    return {day: tuple(sorted(of)) for day, of in found.items()}


# --- what is set aside ------------------------------------------------------------------------------------------------


def find_reason() -> Column:
    return f.coalesce(*(f.when(f.expr(test), f.lit(reason)) for test, reason in REJECT_REASONS))


def find_duplicates(rows: DataFrame) -> DataFrame | None:
    """Returns the ids that occur more than once, in any day. None: there are none, as it should be."""
    twice = rows.groupBy("id").count().where("count > 1").select("id").localCheckpoint()
    return None if twice.isEmpty() else twice


def number_copies(rows: DataFrame, twice: DataFrame) -> DataFrame:
    """Numbers the copies of duplicated rows, in an order that does not depend on how they are read. The first is
    kept."""
    order = Window.partitionBy("id").orderBy(*(f.col(name).asc_nulls_first() for name in HISTORY.names))
    return rows.join(f.broadcast(twice), "id", "left_semi").withColumn("nth", f.row_number().over(order))


def drop_duplicates(rows: DataFrame, twice: DataFrame | None) -> DataFrame:
    if twice is None:
        return rows
    firsts = number_copies(rows, twice).where("nth = 1").drop("nth")
    return rows.join(f.broadcast(twice), "id", "left_anti").unionByName(firsts)


def select_rejected(rows: DataFrame, twice: DataFrame | None) -> DataFrame:
    odd = drop_duplicates(rows, twice).withColumn("reason", find_reason()).where("reason is not null")
    if twice is None:
        return odd
    return odd.unionByName(
        number_copies(rows, twice).where("nth > 1").drop("nth").withColumn("reason", f.lit("duplicate"))
    )
