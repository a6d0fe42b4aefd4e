"""The lake's tables: their columns, the meaning of each, and their versions. Pure: no session is needed.

All timestamps are UTC, all durations are seconds. The version of a table grows when a column changes its name, type or
meaning. Silver and gold are then made again from bronze, and a lake that is newer than this code is refused.
"""

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
class LakeTable:
    """A table of the lake. `by_day`: it has a partition, and a column, for each UTC day."""

    name: str
    version: int
    meaning: str
    columns: tuple[tuple[str, str, str], ...]  # name, type, meaning
    by_day: bool = True

    @property
    def layer(self) -> str:
        """The layer of the table: bronze, silver or gold."""
        return self.name.partition("/")[0]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _, _ in self.columns]

    @property
    def schema(self) -> StructType:
        """The schema for reading. The day is not in the files but in their paths; it comes last."""
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
    "unstarted",
    "cancelled",
    "redriven",
    "orphaned",
)
URGENCIES = ("normal", "elevated", "warning", "critical", "breach")  # by the oldest task's age as a share of the SLA
THRESHOLDS = (0.6, 0.8, 0.9, 1.0)  # the same as the scaler's
FAILURES = ("failed", "dead", "expired")
SUCCESSES = ("done", "again")
ENDS = ("done", "dead", "revoked", "unstarted")
# Lower bounds of the age buckets, in seconds.
AGES = (0, 1, 10, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800, 2_592_000)

ATTEMPT: Columns = (
    ("id", "bigint", "id of the row of history"),
    ("xid", "bigint", "the transaction that wrote it"),
    ("queue", "string", "its name; null: an unknown queue"),
    ("queue_id", "int", "its id; a queue that was dropped and created again has a new one"),
    ("task_id", "bigint", "the task"),
    ("created", "timestamp", "when the task was pushed"),
    ("due", "timestamp", "when this attempt was due"),
    ("claimed_at", "timestamp", "when a worker claimed it"),
    ("finished_at", "timestamp", "when the attempt ended"),
    ("iteration", "int", "successful runs of the task before"),
    ("attempt", "int", "number of the attempt since the last success: 1, 2, …; a released attempt keeps its number"),
    ("outcome", "string", "done, again, failed, dead, released, expired, revoked or unstarted"),
    ("kind", "string", "kind of the task"),
    ("worker", "string", "the worker that claimed it"),
    ("subject", "string", "subject of the task, if it has one"),
    ("error_class", "string", "class of the error, if there was one"),
    ("error", "string", "text of the error"),
)

HISTORY = LakeTable("bronze/history", 1, "history as in PostgreSQL, by the day of finished_at", ATTEMPT)

SAMPLE = LakeTable(
    "bronze/sample",
    1,
    "samples as in PostgreSQL, by the day of `at`; an idle queue has one every ten minutes",
    (
        ("queue", "string", "its name"),
        ("queue_id", "int", "its id"),
        ("xid", "bigint", "the transaction that wrote it"),
        ("at", "timestamp", "start of the ten seconds in which it was taken"),
        ("waiting", "bigint", "tasks that wait for other tasks"),
        ("planned", "bigint", "tasks that are not due yet"),
        ("pending", "bigint", "tasks that may run"),
        ("active", "bigint", "tasks that a worker runs"),
        ("done", "bigint", "tasks that are done and kept"),
        ("dead", "bigint", "tasks that were given up"),
        ("cancelled", "bigint", "tasks that were cancelled and kept"),
        ("oldest_age", "double", "how long the oldest that may run has waited; null: none waits"),
        ("sla", "double", "the SLA at that time; null: none"),
        ("workers", "int", "workers that drained the queue"),
        *((f"{name}_total", "bigint", f"{name}, ever") for name in TOTALS),
    ),
)

ATTEMPTS = LakeTable(
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
        ("ended", "boolean", "the task ended with it (done, dead, revoked or unstarted), unless an update renewed it"),
        ("fingerprint", "string", "of class and shape of the error: 12 hex digits; null: nothing went wrong"),
        ("error_shape", "string", "the error without what differs from one to the next, at most 200 characters"),
    ),
)

REJECTED = LakeTable(
    "silver/rejected",
    1,
    "rows of bronze/history that are impossible or duplicates, by the day of finished_at",
    (*ATTEMPT, ("reason", "string", "duplicate, finished before claimed, claimed before created, …")),
)

PROMISES = LakeTable(
    "silver/promises",
    1,
    "the SLA of each queue over time: the first sample of a queue and day, and each that differs from the one before",
    (
        ("queue", "string", "its name"),
        ("queue_id", "int", "its id"),
        ("at", "timestamp", "of the sample"),
        ("sla_s", "double", "the SLA; null: none"),
    ),
)

MINUTES = LakeTable(
    "gold/minutes",
    1,
    "per queue and minute with an event or a sample, by the day of the minute",
    (
        ("queue", "string", "its name"),
        ("minute", "timestamp", "its start"),
        ("arrivals_sampled", "bigint", "tasks pushed, by the totals of samples; null: no two samples to compare"),
        ("arrivals_seen", "bigint", "tasks pushed, of those whose first attempt is in the lake"),
        ("starts", "bigint", "attempts claimed"),
        ("finishes", "bigint", "attempts that ended, with any outcome"),
        ("failures", "bigint", "of those: failed, dead and expired"),
        (
            "drain_rate",
            "double",
            "tasks per second that ended or wait for their next iteration (failed ones do not count)",
        ),
        ("pending", "bigint", "tasks that may run, by the minute's last sample; null: no sample"),
        (
            "oldest_age_s",
            "double",
            "the longest that the oldest had waited in a sample; null: none had, or no sample",
        ),
        ("workers", "double", "on average of its samples; null: no sample"),
        ("samples", "bigint", "samples in the minute, those of an idle queue filled in"),
        ("wait_p50", "double", "of attempts claimed in the minute: exact"),
        ("wait_p95", "double", ""),
        ("wait_p99", "double", ""),
        ("run_p50", "double", "of attempts that ended in the minute: exact"),
        ("run_p95", "double", ""),
        ("run_p99", "double", ""),
        ("kept", "bigint", "attempts claimed within the SLA"),
        ("late", "bigint", "attempts claimed later than that"),
        ("sla_s", "double", "the SLA by the minute's last sample, else the largest of the attempts claimed in it"),
        ("compliance", "double", "kept / (kept + late); null: nothing was promised or claimed"),
        *((name, "double", "share of its samples; null: no sample has an SLA") for name in URGENCIES),
    ),
)

SPANS = LakeTable(
    "gold/spans",
    1,
    "parts of breaches by day: gold/breaches is made of them",
    (
        ("queue", "string", "its name"),
        ("began", "timestamp", "may be before the day"),
        ("ended", "timestamp", ""),
        ("worst_age_s", "double", ""),
        ("late_tasks", "bigint", ""),
    ),
)

BREACHES = LakeTable(
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

KINDS = LakeTable(
    "gold/kinds",
    1,
    "per queue, kind and attempt, by the day of finished_at: add days up",
    (
        ("queue", "string", "its name"),
        ("kind", "string", ""),
        ("attempt", "int", "which try"),
        ("runs", "bigint", "attempts, with any outcome"),
        ("done", "bigint", "done and again"),
        ("failed", "bigint", "failed and expired: tried again"),
        ("dead", "bigint", "given up"),
        ("failure_rate", "double", "(failed + dead) / (done + failed + dead); null: none of them"),
        ("run_s_total", "double", "seconds they ran"),
    ),
)

ERRORS = LakeTable(
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

CHANCES = LakeTable(
    "gold/chances",
    1,
    "tries and successes by what is known before a try, by the day of finished_at: add days up",
    (
        ("queue", "string", "its name"),
        ("kind", "string", ""),
        ("attempt", "int", "which try"),
        ("age_bucket_s", "bigint", "age_s of the try: the largest of AGES that is not above it"),
        ("fingerprint", "string", "of the failure before; null: a first try, or it was over a month ago"),
        ("tries", "bigint", "attempts that ended as done, again, failed, dead or expired"),
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


def find_table(name: str) -> LakeTable:
    """Returns a table by its name."""
    if name not in TABLES:
        near = get_close_matches(name, TABLES, 1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(TABLES)}."
        raise NotFound(f"table: {shown(name)} is none of the lake's", hint=hint)
    return TABLES[name]
