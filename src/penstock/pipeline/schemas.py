"""The lake's tables: their columns, what each means, and their versions. Pure: no session is needed.

All moments are UTC, all lengths of time are seconds. A table's version grows when a column changes its name, type or
meaning: silver and gold are then made anew from bronze, and a lake that is newer than this code is refused."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import NotFound, shown

TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "date": DateType(),
}
DAY = "day"

Columns = tuple[tuple[str, str, str], ...]  # name, type, meaning


@dataclass(frozen=True, slots=True)
class Table:
    """`by_day`: it has a partition, and a column, for each UTC day."""

    name: str
    version: int
    meaning: str
    columns: Columns
    by_day: bool = True

    @property
    def layer(self) -> str:
        return self.name.partition("/")[0]

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.columns]

    @property
    def schema(self) -> StructType:
        """As it is read: the day, which is in no file but in its path, comes last."""
        own = [StructField(name, TYPES[kind]) for name, kind, _ in self.columns]
        return StructType([*own, StructField(DAY, TYPES["date"])] if self.by_day else own)


TOTALS = (
    "pushed",
    "removed",
    "done",
    "again",
    "failed",
    "dead",
    "released",
    "expired",
    "revoked",
    "cancelled",
    "redriven",
    "orphaned",
)
URGENCIES = ("normal", "elevated", "warning", "critical", "breach")  # of the oldest task's age against the SLA
THRESHOLDS = (0.6, 0.8, 0.9, 1.0)  # as the scaler's
FAILURES = ("failed", "dead", "expired")
SUCCESSES = ("done", "again")
ENDS = ("done", "dead", "revoked")
# Lower ends of the buckets of age, in seconds.
AGES = (0, 1, 10, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800, 2_592_000)

ATTEMPT: Columns = (
    ("id", "bigint", "of the row of history"),
    ("xid", "bigint", "the transaction that wrote it"),
    ("queue", "string", "its name; null: a queue of which nothing is known"),
    ("queue_id", "int", "a queue that was dropped and made anew has another one"),
    ("task_id", "bigint", "the task"),
    ("created", "timestamp", "when the task was pushed"),
    ("due", "timestamp", "when this attempt was due"),
    ("claimed_at", "timestamp", "when somebody took it"),
    ("finished_at", "timestamp", "when the attempt was over"),
    ("iteration", "int", "successful runs of the task before"),
    ("attempt", "int", "which try since the last success: 1, 2, …; one that was given back counts again"),
    ("outcome", "string", "done, again, failed, dead, released, expired or revoked"),
    ("kind", "string", "of task"),
    ("worker", "string", "who had it"),
    ("subject", "string", "of the task, if it has one"),
    ("error_class", "string", "of the error, if there was one"),
    ("error", "string", "its text"),
)

HISTORY = Table("bronze/history", 1, "history as it came, by the day of finished_at", ATTEMPT)

SAMPLE = Table(
    "bronze/sample",
    1,
    "samples as they are, by the day of `at`",
    (
        ("queue", "string", "its name"),
        ("queue_id", "int", "its id"),
        ("xid", "bigint", "the transaction that wrote it"),
        ("at", "timestamp", "start of the ten seconds in which it was taken"),
        ("planned", "bigint", "tasks that wait for a moment to come"),
        ("pending", "bigint", "tasks that may run"),
        ("active", "bigint", "tasks somebody works on"),
        ("done", "bigint", "tasks that are done and kept"),
        ("dead", "bigint", "tasks that were given up"),
        ("cancelled", "bigint", "tasks that were cancelled and kept"),
        ("oldest_age", "double", "how long the oldest that may run has waited; null: none waits"),
        ("sla", "double", "the promise of the time; null: none"),
        ("workers", "int", "workers that drained the queue"),
        *((f"{name}_total", "bigint", f"{name}, ever") for name in TOTALS),
    ),
)

ATTEMPTS = Table(
    "silver/attempts",
    1,
    "one row per attempt, by the day of finished_at",
    (
        *(column for column in ATTEMPT if column[0] != "error"),
        ("wait_s", "double", "from due to claimed_at; never negative"),
        ("run_s", "double", "from claimed_at to finished_at"),
        ("age_s", "double", "from created to claimed_at"),
        ("sla_s", "double", "the SLA of the latest sample of the queue at or before claimed_at; null: none"),
        ("late", "boolean", "it waited longer than sla_s; null: nothing was promised"),
        ("late_by_s", "double", "by how much; 0: in time; null: nothing was promised"),
        ("ended", "boolean", "the task ended with it (done, dead or revoked), unless an update renewed it"),
        ("fingerprint", "string", "of class and shape of the error: 12 hex digits; null: nothing went wrong"),
        ("error_shape", "string", "the error without what differs from one to the next, at most 200 characters"),
    ),
)

REJECTED = Table(
    "silver/rejected",
    1,
    "rows of bronze/history that can not be, or are there twice; by the day of finished_at",
    (*ATTEMPT, ("reason", "string", "duplicate, finished before claimed, claimed before created, …")),
)

PROMISES = Table(
    "silver/promises",
    1,
    "what was promised from when on: the first sample of a queue and day, and each that differs from the one before",
    (
        ("queue", "string", "its name"),
        ("queue_id", "int", "its id"),
        ("at", "timestamp", "of the sample"),
        ("sla_s", "double", "the SLA; null: none"),
    ),
)

MINUTES = Table(
    "gold/minutes",
    1,
    "per queue and minute in which anything happened or was sampled, by the day of the minute",
    (
        ("queue", "string", "its name"),
        ("minute", "timestamp", "its start"),
        ("arrivals_sampled", "bigint", "tasks pushed, by the totals of samples; null: no two samples to compare"),
        ("arrivals_seen", "bigint", "tasks pushed, of those whose first attempt is in the lake"),
        ("starts", "bigint", "attempts claimed"),
        ("finishes", "bigint", "attempts that were over, whatever became of them"),
        ("failures", "bigint", "of those: failed, dead and expired"),
        (
            "drain_rate",
            "double",
            "tasks a second that left, for good or until their next turn (not failed)",
        ),
        ("pending", "bigint", "tasks that may run, by the minute's last sample; null: no sample"),
        (
            "oldest_age_s",
            "double",
            "the longest that the oldest had waited in a sample; null: none had, or no sample",
        ),
        ("workers", "double", "on average of its samples; null: no sample"),
        ("samples", "bigint", "samples in the minute"),
        ("wait_p50", "double", "of attempts claimed in the minute: exact"),
        ("wait_p95", "double", ""),
        ("wait_p99", "double", ""),
        ("run_p50", "double", "of attempts that were over in the minute: exact"),
        ("run_p95", "double", ""),
        ("run_p99", "double", ""),
        ("kept", "bigint", "attempts claimed within the SLA"),
        ("late", "bigint", "attempts claimed later than that"),
        ("sla_s", "double", "the SLA by the minute's last sample, else the largest of the attempts claimed in it"),
        ("compliance", "double", "kept / (kept + late); null: nothing was promised or claimed"),
        *((name, "double", "share of its samples; null: no sample has an SLA") for name in URGENCIES),
    ),
)

SPANS = Table(
    "gold/spans",
    1,
    "pieces of breaches by the day in which they were seen: what gold/breaches is made of",
    (
        ("queue", "string", "its name"),
        ("began", "timestamp", "may be before the day"),
        ("ended", "timestamp", ""),
        ("worst_age_s", "double", ""),
        ("late_tasks", "bigint", ""),
    ),
)

BREACHES = Table(
    "gold/breaches",
    1,
    "spans in which the promise was broken: the oldest task's age at or over the SLA in samples, or tasks not yet "
    "claimed that were late (from due + SLA to the claim). What is 10 s or less apart is one span",
    (
        ("queue", "string", "its name"),
        ("began", "timestamp", "its first moment"),
        ("ended", "timestamp", "its last moment"),
        ("worst_age_s", "double", "the longest wait seen in it"),
        ("late_tasks", "bigint", "attempts claimed late in it"),
    ),
    by_day=False,
)

KINDS = Table(
    "gold/kinds",
    1,
    "per queue, kind and attempt, by the day of finished_at: add days up",
    (
        ("queue", "string", "its name"),
        ("kind", "string", ""),
        ("attempt", "int", "which try"),
        ("runs", "bigint", "attempts, whatever became of them"),
        ("done", "bigint", "done and again"),
        ("failed", "bigint", "failed and expired: tried again"),
        ("dead", "bigint", "given up"),
        ("failure_rate", "double", "(failed + dead) / (done + failed + dead); null: none of them"),
        ("run_s_total", "double", "seconds they ran"),
    ),
)

ERRORS = Table(
    "gold/errors",
    1,
    "per queue, kind and fingerprint, by the day of finished_at: add days up",
    (
        ("queue", "string", "its name"),
        ("kind", "string", ""),
        ("fingerprint", "string", ""),
        ("error_shape", "string", "readable"),
        ("error_class", "string", ""),
        ("runs", "bigint", "attempts that ended with it"),
        ("tasks", "bigint", "tasks they were of, in this day"),
        ("run_s_total", "double", "seconds they ran: its cost"),
        ("first_seen", "timestamp", "finished_at of the first"),
        ("last_seen", "timestamp", "of the last"),
    ),
)

CHANCES = Table(
    "gold/chances",
    1,
    "tries and successes by what is known before a try, by the day of finished_at: add days up",
    (
        ("queue", "string", "its name"),
        ("kind", "string", ""),
        ("attempt", "int", "which try"),
        ("age_bucket_s", "bigint", "age_s of the try: the largest of AGES that is not above it"),
        ("fingerprint", "string", "of the failure before; null: a first try, or it was over a month ago"),
        ("tries", "bigint", "that came to an end: done, again, failed, dead, expired"),
        ("successes", "bigint", "done and again"),
        ("run_s_total", "double", "seconds they ran"),
    ),
)

TABLES = {
    table.name: table
    for table in (
        HISTORY,
        SAMPLE,
        ATTEMPTS,
        REJECTED,
        PROMISES,
        MINUTES,
        SPANS,
        BREACHES,
        KINDS,
        ERRORS,
        CHANCES,
    )
}


def table(name: str) -> Table:
    if name not in TABLES:
        near = get_close_matches(name, TABLES, 1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(TABLES)}."
        raise NotFound(f"table: {shown(name)} is none of the lake's", hint=hint)
    return TABLES[name]
