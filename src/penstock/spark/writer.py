"""Writes DataFrames and streams into a queue exactly once.

A write is a job. Each partition is a batch of its own in the ledger, named after the job and its number, so that a
Spark task that is repeated, or runs twice at the same time, finds what is already written. At the end the job is
sealed. A job that is named by txnAppId and txnVersion can be repeated as a whole; a micro-batch of a stream is named by
its query, or txnAppId, and its number.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID, uuid4, uuid5

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.client.bulk import BulkWriter
from penstock.client.statements.jobs import NoSlot
from penstock.errors import ConfigError, Conflict, ValidationError
from penstock.spark.connection import open_database, resolve_dsn
from penstock.spark.options import Address, WriteOptions
from penstock.spark.parts import Partition, Target, to_hex
from penstock.spark.rows import plan_columns

JOBS = UUID("8d6f7c0e-3a55-4f0e-9a0d-0c6b9f3b7c11")  # the namespace of jobs that have a name
ONCE = "once "  # the prefix of the names of jobs that are never repeated
RETRY_SECONDS = (0.2, 0.8)  # until a task asks for a connection again
QUERY, MICRO_BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a Spark task reports to the driver."""

    job: UUID
    partition: int
    rows: int
    checksum: int
    counts: dict[str, int]


def name_job(name: str, version: int) -> UUID:
    return uuid5(JOBS, f"{name}\n{version}")


def name_series(name: str | None) -> UUID | None:
    """Returns the id of the jobs of a streaming query or txnAppId. None: the job belongs to no series."""
    return None if name is None or name.startswith(ONCE) else uuid5(JOBS, name)


class Writer:
    """What both writers share. It is pickled to executors: it holds no connection, and its DSN appears in no plan."""

    def __init__(self, asked: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ValidationError("mode: a queue cannot be overwritten", hint='Use .mode("append").', field="mode")
        self._plan = plan_columns(schema, pack=asked.pack_columns, kind=asked.kind)
        self._asked = replace(asked, address=Address(resolve_dsn(asked.address)[0]))
        with open_database(self._asked.address) as database:
            writer = BulkWriter(database, asked.queue)
            self._limits = writer.limits()
            if asked.reject_table is not None:
                writer.prepare_rejects(asked.reject_table)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._asked.queue}>"

    def write_rows(self, job: UUID, series: UUID | None, batches: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        with Partition(job, number, series) as partition:
            with self.target() as target:
                partition.fill(self._plan, batches, target)
            counts = self.written(partition) if partition.rows else Counter[str]()
            return Written(job, number, partition.rows, partition.checksum, dict(counts))

    def written(self, partition: Partition) -> Counter[str]:
        """Writes a partition. If the budget of connections is used up, it waits without a connection. Parts that are
        already written are found in the ledger."""
        while True:
            try:
                with self.target() as target:
                    return partition.write(target)
            except NoSlot:
                time.sleep(random.uniform(*RETRY_SECONDS))  # noqa: S311 - no secret

    @contextmanager
    def target(self) -> Iterator[Target]:
        asked = self._asked
        with open_database(asked.address) as database:
            writer = BulkWriter(database, asked.queue)
            yield Target(writer, *self._limits, asked.on_conflict, asked.reject_table, asked.max_connections)

    def seal(self, job: UUID, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Seals the job. Empty partitions do not count: their number depends on Spark."""
        written = [one for one in messages if isinstance(one, Written) and one.rows]
        counts: Counter[str] = Counter()
        for one in written:
            counts.update(one.counts)
        rows = sum(one.rows for one in written)
        if sum(counts.values()) != rows:
            raise Conflict(f"job {job}: of {rows} rows {sum(counts.values())} are accounted for")
        checksum = sum(one.checksum * (2 * one.partition + 1) for one in written)
        with open_database(self._asked.address) as database:
            BulkWriter(database, self._asked.queue).seal_job(job, len(written), rows, to_hex(checksum), counts)


class BatchWriter(Writer, DataSourceArrowWriter):
    """The writer of `df.write`. It names the job before its tasks exist."""

    def __init__(self, asked: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(asked, schema, overwrite=overwrite)
        named = asked.txn_app_id is not None and asked.txn_version is not None
        self._job = name_job(str(asked.txn_app_id), asked.txn_version or 0) if named else uuid4()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.write_rows(self._job, name_series(self._asked.txn_app_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.seal(self._job, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keeps what is written: the same job completes it when it is repeated."""


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. A micro-batch is a job. The instance that commits is not the one that writes, so
    the tasks report their job."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        number = context.getLocalProperty(MICRO_BATCH)
        name = self._asked.txn_app_id or context.getLocalProperty(QUERY)
        if number is None or name is None:
            raise ConfigError("Spark does not say which query and micro-batch this is", hint="Write with writeStream.")
        return self.write_rows(name_job(name, int(number)), name_series(name), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        jobs = {one.job for one in messages if isinstance(one, Written)}
        for job in jobs:
            self.seal(job, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Keeps what is written: Spark repeats the same micro-batch."""
