"""A queue as a stream that can be replayed. An offset is the number of a batch of the consumer group; PostgreSQL knows
which tasks are in it. What Spark asks for decides: whoever asks for what comes after a batch has done with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.database import Database
from penstock.errors import ConfigError, Unavailable, shown
from penstock.model import EPOCH
from penstock.queue import batch_leases, next_batch, persistently, read_lease, status, waiting_now
from penstock.spark.group import Group
from penstock.spark.hints import hinted
from penstock.spark.options import MOST_ROWS, StreamOptions
from penstock.spark.place import found

# `payload` is JSON as it is stored; `since` is when the task's age began. `id`, `iterations` and `attempt` are one run
# of one task, whatever became of batches and checkpoints. With `token` a sink says what became of it (see `outcomes`).
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
SLICE = 5000  # tasks read in one short transaction

Offset = dict[str, Any]


class Leases(InputPartition):
    """What one Spark task reads: tokens and sizes."""

    def __init__(self, leases: Sequence[tuple[str, int]]) -> None:
        super().__init__(leases)
        self.leases = leases


class TaskStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver's for as long as the query runs; copies of it, which never hold a group, read on
    executors."""

    def __init__(self, asked: StreamOptions) -> None:
        self._asked = asked
        self._dsn, self._source = found(asked.place)
        self._database: Database | None = None
        self._group: Group | None = None
        self._newest = 0  # the last batch that the group was given, as far as we know
        self._moment: datetime | None = None  # AvailableNow: what was due by then is read, `_left` tasks
        self._left = 0

    # --- what Spark asks ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's
        """Before the first batch. Pure: Spark asks more than once."""
        return {"batch": 0, "queue": self._asked.queue, "group": self._asked.consumer_group}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        return ReadMaxRows(self._asked.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        with hinted():
            self._moment, self._left = persistently(lambda: waiting_now(self._connected(), self._asked.queue))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's
        """The batch after `start`; all up to there is done. Asked again, after a crash too, it is the same batch."""
        with hinted():
            held = self._hold().held
            after = self._number(start)
            most = self._most(limit)
            batch = persistently(
                lambda: next_batch(
                    self._connected(),
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
        """Leases, dealt out. None, if all of the batch went back to the queue while nobody kept it."""
        with hinted():
            held = self._hold().held
            after, upto = self._number(start), self._number(end)
            leases = persistently(lambda: batch_leases(self._connected(), held, after, upto))
        dealt = (leases[n :: self._asked.partitions] for n in range(self._asked.partitions))
        return [Leases(some) for some in dealt if some]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Leases)
        with hinted(), Database(self._dsn, source=self._source).session() as connection:
            for token, size in partition.leases:
                for first in range(0, size, SLICE):
                    rows = read_lease(connection, token, first, SLICE)
                    if rows:
                        yield table(rows, self._asked.queue, token)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's
        """For people who look at the query's progress: how much waits."""
        try:
            (now,) = status(self._connected(), self._asked.queue)
        except Unavailable:
            return None
        return {**self.initialOffset(), "batch": self._newest, "backlog": now.pending, "planned": now.planned}

    def commit(self, end: Offset) -> None:
        """Nothing: Spark says it a batch late, and never of the last one."""

    def stop(self) -> None:
        if self._group is not None:
            self._group.leave()
        if self._database is not None:
            self._database.close()

    # --- behind it ----------------------------------------------------------------------------------------------------

    def _connected(self) -> Database:
        if self._database is None:
            self._database = Database(self._dsn, source=self._source, max_connections=2)
        return self._database

    def _hold(self) -> Group:
        if self._group is None:
            asked = self._asked
            self._group = Group(self._connected(), asked.queue, asked.consumer_group, asked.lease)
            self._newest = self._group.held.batch
        return self._group

    def _most(self, limit: ReadLimit) -> int:
        most = self._asked.max_rows
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            most = MOST_ROWS
        return most if self._moment is None else max(0, min(most, self._left))

    def _number(self, offset: Offset) -> int:
        """The batch that an offset in the checkpoint means, if it is one of this group's."""
        ours = self.initialOffset()
        if not isinstance(offset, dict) or not isinstance(offset.get("batch"), int):
            raise ConfigError(f"checkpointLocation: {shown(offset)} is not an offset of a queue", hint=OWN)
        if any(offset.get(name) != ours[name] for name in ("queue", "group")):
            theirs = f"consumerGroup {shown(offset.get('group'))} of queue {shown(offset.get('queue'))}"
            raise ConfigError(
                f"checkpointLocation: it is of {theirs}, not {shown(ours['group'])} of {shown(ours['queue'])}", hint=OWN
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
                hint="The database was restored from an older copy. Begin with a new checkpoint.",
            )
        return int(offset["batch"])


OWN = "Every query needs a checkpointLocation of its own."


def table(rows: list[tuple[Any, ...]], queue: str, token: str) -> pa.RecordBatch:
    """Rows of READ_LEASE, column by column; moments are microseconds since 2000."""
    id_, kind, subject, payload, priority, due, attempt, iterations, created, since = zip(*rows, strict=True)
    queues, tokens = [queue] * len(rows), [token] * len(rows)
    every: tuple[Sequence[Any], ...] = (
        id_, queues, kind, subject, payload, priority, due, attempt, iterations, created, since, tokens,
    )  # fmt: skip
    return pa.RecordBatch.from_arrays(list(map(column, every, COLUMNS.types)), schema=COLUMNS)


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind != MOMENT:
        return pa.array(values, kind)
    return pc.add(pa.array(values, pa.int64()), int(EPOCH.timestamp()) * 1_000_000).cast(MOMENT)
