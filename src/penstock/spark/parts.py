"""A partition of rows on its way into the queue: read and checked before anything is written, then written in parts.

Part 0 stands for the whole partition, and holds what has no subject and what is rejected: one transaction, short
however long Spark takes to make the rows. Tasks with subjects follow, a chunk and a transaction each, in the order of
their subjects: a repeat whose rows come in another order has the same parts, and finds them in the ledger.
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

from penstock.errors import PayloadError
from penstock.model import OnConflict
from penstock.queue import Queue
from penstock.spark.rows import Plan, checksum_of, chosen, read, reject, whole
from penstock.spool import CHUNK, CHUNK_BYTES, Chunk, Columns, Spool
from penstock.statements import Entry, Reject

# What is sorted together, in memory. More goes into so many buckets first, by the hash of subjects.
TOGETHER = 200_000
TOGETHER_BYTES = 64 << 20

Chunks = Callable[[], Iterable[Chunk]]


class Target(NamedTuple):
    """Where to, and how."""

    queue: Queue
    queue_id: int
    largest: int
    on_conflict: OnConflict
    reject_table: str | None
    places: int | None = None


class Part(NamedTuple):
    """What one transaction writes; `superseded` rows had the subject of a later one."""

    entry: Entry
    chunks: Chunks
    rejects: list[Reject]
    superseded: int = 0


class Named(NamedTuple):
    """A chunk of tasks with subjects, each of them once, and the rows it was made of."""

    columns: Columns
    rows: int
    checksum: int


class Partition:
    """The rows of one Spark task: on disk when they are many."""

    def __init__(self, job: UUID, number: int) -> None:
        self._stack = ExitStack()
        self._job, self._number = job, number
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

    def fill(self, plan: Plan, batches: Iterable[pa.RecordBatch], target: Target) -> None:
        for arrow in batches:
            for batch in read(plan, arrow, target.largest, target.queue.judge):
                self.rows += batch.rows
                self.checksum += batch.checksum
                self._rejects += batch.rejects
                if batch.plain is not None:
                    self._plain.add_encoded(batch.plain)
                if batch.named is not None:
                    self._named.add_encoded(batch.named)
                    self._named_bytes += sum(map(len, batch.named.payloads))

    def write(self, target: Target) -> Counter[str]:
        """All parts; answers what became of the rows, now or when they were written."""
        totals: Counter[str] = Counter()
        copying = True
        for part in self._parts(together=target.on_conflict == "error"):
            counts = write_part(part, target, copying=copying)
            copying = not part.entry.part or counts.get("created", 0) + part.superseded == part.entry.rows
            totals.update(counts)
        return totals

    def _parts(self, *, together: bool) -> Iterator[Part]:
        """`together`: a subject that is taken undoes the whole partition, so all of it is one transaction."""
        if together:
            named = [*self._sorted()]
            superseded = sum(one.rows - len(one.columns.payloads) for one in named)
            yield Part(self._entry(), lambda: (*self._plain.chunks(), *map(chunk_of, named)), self._rejects, superseded)
            return
        yield Part(self._entry(), self._plain.chunks, self._rejects)
        for number, one in enumerate(self._sorted(), 1):
            entry = self._entry()._replace(part=number, rows=one.rows, checksum=in_hex(one.checksum))
            yield Part(entry, one_chunk(one), [], one.rows - len(one.columns.payloads))

    def _entry(self) -> Entry:
        return Entry(self._job, self._number, self._batch, 0, self.rows, in_hex(self.checksum))

    def _sorted(self) -> Iterator[Named]:
        if not self._named.rows:
            return
        count = 1 + max(self._named.rows // TOGETHER, self._named_bytes // TOGETHER_BYTES)
        with ExitStack() as stack:
            buckets = [self._named]
            if count > 1:
                buckets = [stack.enter_context(Spool()) for _ in range(count)]
                distribute(self._named, buckets)
            for bucket in buckets:
                yield from sorted_chunks(columns_of(bucket))


def distribute(spool: Spool, buckets: list[Spool]) -> None:
    """Into buckets by subject, so that equal ones are together. How many there are depends on the rows alone."""
    for chunk in spool.chunks():
        homes = [zlib.crc32(one or b"") % len(buckets) for one in chunk.subjects or ()]
        for number in {*homes}:
            buckets[number].add_encoded(chosen(Columns(*chunk[:5]), [home == number for home in homes]))


def columns_of(spool: Spool) -> Columns:
    """All of it in memory."""
    payloads: list[bytes] = []
    subjects: list[bytes | None] = []
    kinds: list[bytes] = []
    dues: list[bytes | None] = []
    priorities: list[int] = []
    for chunk in spool.chunks():
        count = len(chunk.payloads)
        payloads += chunk.payloads
        subjects += chunk.subjects or ()
        kinds += chunk.kinds or [b"default"] * count
        dues += chunk.dues or [None] * count
        priorities += chunk.priorities or [5] * count
    return Columns(payloads, subjects, kinds, dues, priorities)


def sorted_chunks(columns: Columns) -> Iterator[Named]:
    """In the order of subjects. Of equal ones the last that came is written, as everywhere; all of them are in one
    chunk, whatever their order."""
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
            yield named_of(columns, rows, kept)
            rows, kept, size = [], [], 0
    if kept:
        yield named_of(columns, rows, kept)


def named_of(columns: Columns, rows: list[int], kept: list[int]) -> Named:
    every: list[Any] = [column and [column[n] for n in rows] for column in columns]
    only = every if len(rows) == len(kept) else [column and [column[n] for n in kept] for column in columns]
    return Named(whole(only), len(rows), checksum_of(*every))


def chunk_of(named: Named) -> Chunk:
    return Chunk(*named.columns, checksum=0, part=0, first=0)


def one_chunk(named: Named) -> Chunks:
    return lambda: [chunk_of(named)]


def in_hex(checksum: int) -> str:
    return f"{checksum % 2**64:016x}"


# --- writing ----------------------------------------------------------------------------------------------------------


def write_part(part: Part, target: Target, *, copying: bool) -> dict[str, int]:
    """One part. What PostgreSQL refuses although it looked well from here is found, and rejected with its words."""

    def attempt(chunks: Chunks, rejects: list[Reject]) -> dict[str, int]:
        return target.queue.write_part(
            part.entry,
            chunks,
            rejects,
            queue_id=target.queue_id,
            on_conflict=target.on_conflict,
            copying=copying,
            counted={"superseded": part.superseded} if part.superseded else {},
            reject_table=target.reject_table,
            places=target.places,
        )

    try:
        return attempt(part.chunks, part.rejects)
    except PayloadError:
        bad = [target.queue.judge(chunk.payloads) for chunk in part.chunks()]
        if not any(bad):
            raise
        refused = [one for chunk, said in zip(part.chunks(), bad, strict=True) for one in rejected(chunk, said)]
        return attempt(lambda: without(part.chunks(), bad), [*part.rejects, *refused])


def rejected(chunk: Chunk, said: dict[int, str]) -> list[Reject]:
    others = chunk[1:5]
    return [reject(why, chunk.payloads[n], *(one and one[n] for one in others)) for n, why in sorted(said.items())]


def without(chunks: Iterable[Chunk], bad: list[dict[int, str]]) -> Iterator[Chunk]:
    for chunk, said in zip(chunks, bad, strict=True):
        left = chosen(Columns(*chunk[:5]), [n not in said for n in range(len(chunk.payloads))]) if said else chunk
        if left.payloads:
            yield Chunk(*left[:5], checksum=0, part=chunk.part, first=chunk.first)
