"""Writes a partition of rows into the queue: all rows are read and checked first, then written in parts.

Part 0 represents the whole partition, and contains the tasks without a subject and the rejected rows. It is one
transaction, which is short however long Spark takes to make the rows. Tasks with subjects follow in the order of their
subjects, one transaction per chunk: if the partition is repeated with its rows in another order, it has the same parts,
and finds them in the ledger.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID, uuid5

import pyarrow as pa

from penstock.client.bulk import BulkWriter
from penstock.client.spool import CHUNK, CHUNK_BYTES, Chunk, Columns, Spool
from penstock.client.statements.jobs import Entry, Reject
from penstock.errors import PayloadError
from penstock.model import OnConflict
from penstock.spark.rows import ColumnPlan, compute_checksum, drop_defaults, make_reject, read_batch, select_rows

# How much is sorted in memory. More rows are first distributed to buckets by the hash of their subjects.
SORTED_ROWS = 200_000
SORTED_BYTES = 64 << 20

Chunks = Callable[[], Iterable[Chunk]]


class Target(NamedTuple):
    """The queue that is written to, and how."""

    writer: BulkWriter
    queue_id: int
    largest: int
    on_conflict: OnConflict
    reject_table: str | None
    slots: int | None = None


class LedgerPart(NamedTuple):
    """What one transaction writes. `superseded` rows had the subject of a later one."""

    entry: Entry
    chunks: Chunks
    rejects: list[Reject]
    superseded: int = 0


class SubjectChunk(NamedTuple):
    """A chunk of tasks with distinct subjects, and how many rows it was made of."""

    columns: Columns
    rows: int
    checksum: int


class Partition:
    """The rows of one Spark task. Many rows are kept on disk."""

    def __init__(self, job: UUID, number: int, series: UUID | None = None) -> None:
        self._stack = ExitStack()
        self._job, self._number, self._series = job, number, series
        self._batch = uuid5(job, str(number))
        self._plain = self._stack.enter_context(Spool())
        self._named = self._stack.enter_context(Spool())
        self._named_bytes = 0
        self._rejects: list[Reject] = []
        self.rows = 0
        self.checksum = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def fill(self, plan: ColumnPlan, batches: Iterable[pa.RecordBatch], target: Target) -> None:
        """Reads and checks all rows."""
        for arrow in batches:
            for batch in read_batch(plan, arrow, target.largest, target.writer.find_refused):
                self.rows += batch.rows
                self.checksum += batch.checksum
                self._rejects += batch.rejects
                if batch.plain is not None:
                    self._plain.add_encoded(batch.plain)
                if batch.named is not None:
                    self._named.add_encoded(batch.named)
                    self._named_bytes += sum(map(len, batch.named.payloads))

    def write(self, target: Target) -> Counter[str]:
        """Writes all parts. Returns the counts, from now or from when the parts were first written."""
        totals: Counter[str] = Counter()
        copying = True
        for part in self._parts(together=target.on_conflict == "error"):
            counts = write_part(part, target, copying=copying)
            copying = not part.entry.part or counts.get("created", 0) + part.superseded == part.entry.rows
            totals.update(counts)
        return totals

    def _parts(self, *, together: bool) -> Iterator[LedgerPart]:
        """Yields the parts. `together`: a taken subject must undo the whole partition, so it is one transaction."""
        if together:
            named = [*self._sort_by_subject()]
            superseded = sum(one.rows - len(one.columns.payloads) for one in named)
            yield LedgerPart(
                self._entry(), lambda: (*self._plain.chunks(), *map(to_chunk, named)), self._rejects, superseded
            )
            return
        yield LedgerPart(self._entry(), self._plain.chunks, self._rejects)
        for number, one in enumerate(self._sort_by_subject(), 1):
            entry = self._entry()._replace(part=number, rows=one.rows, checksum=to_hex(one.checksum))
            yield LedgerPart(entry, wrap_chunk(one), [], one.rows - len(one.columns.payloads))

    def _entry(self) -> Entry:
        return Entry(self._job, self._number, self._batch, 0, self.rows, to_hex(self.checksum), self._series)

    def _sort_by_subject(self) -> Iterator[SubjectChunk]:
        if not self._named.rows:
            return
        count = 1 + max(self._named.rows // SORTED_ROWS, self._named_bytes // SORTED_BYTES)
        with ExitStack() as stack:
            buckets = [self._named]
            if count > 1:
                buckets = [stack.enter_context(Spool()) for _ in range(count)]
                distribute(self._named, buckets)
            for bucket in buckets:
                yield from sort_chunks(load_columns(bucket))


def distribute(spool: Spool, buckets: list[Spool]) -> None:
    """Distributes rows to buckets by subject, so that equal subjects are together. The number of buckets depends on the
    rows only."""
    for chunk in spool.chunks():
        homes = [zlib.crc32(one or b"") % len(buckets) for one in chunk.subjects or ()]
        for number in {*homes}:
            buckets[number].add_encoded(select_rows(Columns(*chunk[:8]), [home == number for home in homes]))


def load_columns(spool: Spool) -> Columns:
    """Loads all rows of a spool into memory."""
    payloads: list[bytes] = []
    subjects: list[bytes | None] = []
    kinds: list[bytes] = []
    dues: list[bytes | None] = []
    priorities: list[int] = []
    keys: list[bytes | None] = []
    metas: list[bytes | None] = []
    expires: list[bytes | None] = []
    for chunk in spool.chunks():
        count = len(chunk.payloads)
        payloads += chunk.payloads
        subjects += chunk.subjects or ()
        kinds += chunk.kinds or [b"default"] * count
        dues += chunk.dues or [None] * count
        priorities += chunk.priorities or [5] * count
        keys += chunk.keys or [None] * count
        metas += chunk.metas or [None] * count
        expires += chunk.expires or [None] * count
    return Columns(payloads, subjects, kinds, dues, priorities, keys, metas, expires)


def sort_chunks(columns: Columns) -> Iterator[SubjectChunk]:
    """Yields chunks in the order of subjects. Of rows with the same subject, the last one is written, as everywhere;
    all of them belong to one chunk, in whatever order they come."""
    subjects = columns.subjects or []
    order = sorted(range(len(subjects)), key=[one or b"" for one in subjects].__getitem__)
    rows: list[int] = []
    kept: list[int] = []
    size = 0
    for at, n in enumerate(order):
        rows.append(n)
        if at + 1 < len(order) and subjects[order[at + 1]] == subjects[n]:
            continue
        kept.append(n)
        size += len(columns.payloads[n])
        if len(kept) == CHUNK or size >= CHUNK_BYTES:
            yield make_chunk(columns, rows, kept)
            rows, kept, size = [], [], 0
    if kept:
        yield make_chunk(columns, rows, kept)


def make_chunk(columns: Columns, rows: list[int], kept: list[int]) -> SubjectChunk:
    every: list[Any] = [column and [column[n] for n in rows] for column in columns]
    only = every if len(rows) == len(kept) else [column and [column[n] for n in kept] for column in columns]
    return SubjectChunk(drop_defaults(only), len(rows), compute_checksum(*every))


def to_chunk(named: SubjectChunk) -> Chunk:
    return Chunk(*named.columns, checksum=0, part=0, first=0)


def wrap_chunk(named: SubjectChunk) -> Chunks:
    return lambda: [to_chunk(named)]


def to_hex(checksum: int) -> str:
    return f"{checksum % 2**64:016x}"


# --- writing ----------------------------------------------------------------------------------------------------------


def write_part(part: LedgerPart, target: Target, *, copying: bool) -> dict[str, int]:
    """Writes a part. Rows that PostgreSQL refuses although they passed our checks are found and rejected with
    PostgreSQL's message."""

    def attempt(chunks: Chunks, rejects: list[Reject]) -> dict[str, int]:
        return target.writer.write_part(
            part.entry,
            chunks,
            rejects,
            queue_id=target.queue_id,
            on_conflict=target.on_conflict,
            copying=copying,
            counted={"superseded": part.superseded} if part.superseded else {},
            reject_table=target.reject_table,
            slots=target.slots,
        )

    try:
        return attempt(part.chunks, part.rejects)
    except PayloadError:
        bad = [target.writer.find_refused(chunk.payloads) for chunk in part.chunks()]
        if not any(bad):
            raise
        refused = [one for chunk, said in zip(part.chunks(), bad, strict=True) for one in list_rejects(chunk, said)]
        return attempt(lambda: drop_rejects(part.chunks(), bad), [*part.rejects, *refused])


def list_rejects(chunk: Chunk, said: dict[int, str]) -> list[Reject]:
    others = chunk[1:8]
    return [make_reject(why, chunk.payloads[n], *(one and one[n] for one in others)) for n, why in sorted(said.items())]


def drop_rejects(chunks: Iterable[Chunk], bad: list[dict[int, str]]) -> Iterator[Chunk]:
    for chunk, said in zip(chunks, bad, strict=True):
        left = select_rows(Columns(*chunk[:8]), [n not in said for n in range(len(chunk.payloads))]) if said else chunk
        if left.payloads:
            yield Chunk(*left[:8], checksum=0, part=chunk.part, first=chunk.first)
