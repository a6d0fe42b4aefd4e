"""Reads a queue as a replayable stream. An offset is the number of a batch of the consumer group; PostgreSQL knows its
tasks. When Spark asks for the batch after an offset, the batches up to that offset are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.client.database import Database, retry_unavailable
from penstock.client.queues import status
from penstock.client.streams import batch_leases, next_batch, read_lease, waiting_now
from penstock.errors import ConfigError, Unavailable, shown
from penstock.model import EPOCH
from penstock.spark.connection import resolve_dsn
from penstock.spark.group import Group
from penstock.spark.options import MAX_ROWS, StreamOptions

# `payload` is the stored JSON; `since` is the start of the task's age. `id`, `iterations` and `attempt` identify one
# run of a task, independently of batches and checkpoints. `token` lets a sink settle the task (see `outcomes`).
SCHEMA = (
    "id bigint, queue string, kind string, subject string, payload string, priority int, due timestamp, attempt int,"
    " iterations int, created timestamp, since timestamp, token string"
)
MOMENT = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "queue": pa.string(),
        "kind": pa.string(),
        "subject": pa.string(),
        "payload": pa.string(),
        "priority": pa.int32(),
        "due": MOMENT,
        "attempt": pa.int32(),
        "iterations": pa.int32(),
        "created": MOMENT,
        "since": MOMENT,
        "token": pa.string(),
    }
)
SLICE = 5000  # tasks per transaction

Offset = dict[str, Any]


class LeasePart(InputPartition):
    """What one Spark task reads: tokens and sizes of leases."""

    def __init__(self, leases: Sequence[tuple[str, int]]) -> None:
        super().__init__(leases)
        self.leases = leases


class TaskStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader. It lives in a process of the driver while the query runs. Copies of it read on executors, and
    never hold a group."""

    def __init__(self, asked: StreamOptions) -> None:
        self._asked = asked
        self._dsn, self._source = resolve_dsn(asked.address)
        self._database: Database | None = None
        self._group: Group | None = None
        self._newest = 0  # the last known batch of the group
        self._moment: datetime | None = None  # AvailableNow: tasks due by then are read, `_left` of them
        self._left = 0

    # --- what Spark asks ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's
        """Returns the offset before the first batch. Spark calls it more than once."""
        return {"batch": 0, "queue": self._asked.queue, "group": self._asked.consumer_group}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        return ReadMaxRows(self._asked.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._moment, self._left = retry_unavailable(lambda: waiting_now(self._open_database(), self._asked.queue))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's
        """Returns the batch after `start`, and settles the batches up to `start`. If it is called again, also after a
        crash, it returns the same batch."""
        held = self._hold().held
        after = self._number(start)
        most = self._most(limit)
        batch = retry_unavailable(
            lambda: next_batch(
                self._open_database(),
                held,
                after=after,
                limit=most,
                slots=self._asked.partitions,
                lease=self._asked.lease,
                before=self._moment,
            )
        )
        self._left -= batch.early
        if batch.number == after:
            return start
        self._newest = batch.number
        return {**self.initialOffset(), "batch": batch.number, "id": held.identity}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Distributes the leases of a batch. There are none if all of its tasks went back to the queue while no driver
        held the group."""
        held = self._hold().held
        after, upto = self._number(start), self._number(end)
        leases = retry_unavailable(lambda: batch_leases(self._open_database(), held, after, upto))
        dealt = (leases[n :: self._asked.partitions] for n in range(self._asked.partitions))
        return [LeasePart(some) for some in dealt if some]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LeasePart)
        with Database(self._dsn, source=self._source).session() as connection:
            for token, size in partition.leases:
                for first in range(0, size, SLICE):
                    rows = read_lease(connection, token, first, SLICE)
                    if rows:
                        yield make_batch(rows, self._asked.queue, token)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's
        """Returns the size of the backlog for the query's progress."""
        try:
            (now,) = status(self._open_database(), self._asked.queue)
        except Unavailable:
            return None
        return {**self.initialOffset(), "batch": self._newest, "backlog": now.pending, "planned": now.planned}

    def commit(self, end: Offset) -> None:
        """Does nothing: Spark calls it one batch late, and never for the last batch."""

    def stop(self) -> None:
        if self._group is not None:
            self._group.leave()
        if self._database is not None:
            self._database.close()

    # --- behind it ----------------------------------------------------------------------------------------------------

    def _open_database(self) -> Database:
        if self._database is None:
            self._database = Database(self._dsn, source=self._source, max_connections=2)
        return self._database

    def _hold(self) -> Group:
        if self._group is None:
            asked = self._asked
            self._group = Group(self._open_database(), asked.queue, asked.consumer_group, asked.lease)
            self._newest = self._group.held.batch
        return self._group

    def _most(self, limit: ReadLimit) -> int:
        most = self._asked.max_rows
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            most = MAX_ROWS
        return most if self._moment is None else max(0, min(most, self._left))

    def _number(self, offset: Offset) -> int:
        """Returns the batch of an offset. Raises ConfigError if the checkpoint is of another queue or group."""
        ours = self.initialOffset()
        if not isinstance(offset, dict) or not isinstance(offset.get("batch"), int):
            raise ConfigError(f"checkpointLocation: {shown(offset)} is not an offset of a queue", hint=OWN_CHECKPOINT)
        if any(offset.get(name) != ours[name] for name in ("queue", "group")):
            theirs = f"consumerGroup {shown(offset.get('group'))} of queue {shown(offset.get('queue'))}"
            raise ConfigError(
                f"checkpointLocation: it is of {theirs}, not {shown(ours['group'])} of {shown(ours['queue'])}",
                hint=OWN_CHECKPOINT,
            )
        held = self._hold().held
        if offset.get("id", held.identity) != held.identity:
            raise ConfigError(
                f"checkpointLocation: it is of another queue that was called {shown(ours['queue'])}",
                hint="The queue was dropped and made again, or this is another database. Begin with a new checkpoint.",
            )
        if offset["batch"] > self._newest:
            raise ConfigError(
                f"checkpointLocation: it is at batch {offset['batch']}, the consumerGroup only at {self._newest}",
                hint="The database was restored from an older copy, or failed over to a standby that lagged. "
                "Begin with a new checkpoint: what is not settled here is handed out again.",
            )
        return int(offset["batch"])


OWN_CHECKPOINT = "Every query needs a checkpointLocation of its own."


def make_batch(rows: list[tuple[Any, ...]], queue: str, token: str) -> pa.RecordBatch:
    """Converts rows of READ_LEASE to columns. Timestamps are microseconds since 2000."""
    id_, kind, subject, payload, priority, due, attempt, iterations, created, since = zip(*rows, strict=True)
    queues, tokens = [queue] * len(rows), [token] * len(rows)
    every: tuple[Sequence[Any], ...] = (
        id_, queues, kind, subject, payload, priority, due, attempt, iterations, created, since, tokens,
    )  # fmt: skip
    return pa.RecordBatch.from_arrays(list(map(make_column, every, COLUMNS.types)), schema=COLUMNS)


def make_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind != MOMENT:
        return pa.array(values, kind)
    return pc.add(pa.array(values, pa.int64()), int(EPOCH.timestamp()) * 1_000_000).cast(MOMENT)
