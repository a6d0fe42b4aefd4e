"""A bulk push in bounded memory: every item is checked and encoded into a temporary file before the first one is
written to PostgreSQL, so that a bad item refuses the whole call."""

from __future__ import annotations

import marshal
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import IO, NamedTuple, Self

from penstock import validate
from penstock.client.concurrency import batches
from penstock.errors import ValidationError
from penstock.model import Duration, Json, NewTask

# A chunk is what one statement writes. It ends after so many tasks or bytes, and the same tasks are always divided at
# the same places, because a repeated batch must find its parts in the ledger.
CHUNK = 10_000
CHUNK_BYTES = 8 << 20
BATCH = 50  # items checked together: enough to be fast, few enough for any payload; it divides CHUNK
IN_MEMORY = 32 << 20


class Columns(NamedTuple):
    """Some tasks as parallel lists; a list that would contain only defaults is None."""

    payloads: list[bytes]
    subjects: list[bytes | None] | None = None
    kinds: list[bytes] | None = None
    dues: list[bytes | None] | None = None
    priorities: list[int] | None = None
    keys: list[bytes | None] | None = None
    metas: list[bytes | None] | None = None
    expires: list[bytes | None] | None = None


class Chunk(NamedTuple):
    """The columns of some tasks, and their position among all tasks."""

    payloads: list[bytes]
    subjects: list[bytes | None] | None
    kinds: list[bytes] | None
    dues: list[bytes | None] | None
    priorities: list[int] | None
    keys: list[bytes | None] | None
    metas: list[bytes | None] | None
    expires: list[bytes | None] | None
    checksum: int
    part: int
    first: int  # how many tasks come before this chunk


class Spool:
    """A temporary file of tasks that is written once and read any number of times. `named` says whether any task has a
    subject."""

    def __init__(self, *, largest: int = validate.DEFAULT_MAX_PAYLOAD) -> None:
        self._largest = largest
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY, prefix="penstock-")  # noqa: SIM115 - closed in __exit__
        self._sizes: list[int] = []
        self._longest = 0
        self._tasks: list[NewTask] = []
        self._payloads: list[bytes] = []
        self._bytes = 0
        self._delayed = False
        self.rows = 0
        self.checksum = 0
        self.named = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, batch: list[Json | NewTask | None]) -> None:
        """Adds a batch of items, with BATCH of them except in the last batch. An item that is not accepted ends the
        call."""
        try:
            fresh = check_batch(batch)
            raws = validate.payloads(batch if fresh is None else [task.payload for task in fresh], self._largest)  # type: ignore[arg-type]
        except ValidationError as error:
            raise error.at(self.rows + len(self._payloads) + (error.index or 0)) from None
        self._tasks += fresh or [PLAIN] * len(batch)
        self._payloads += raws
        self._bytes += sum(map(len, raws))
        if len(self._payloads) >= CHUNK or self._bytes >= CHUNK_BYTES:
            self.finish()

    def finish(self) -> None:
        """Makes the remaining items the last chunk."""
        if not self._payloads:
            return
        self.add_encoded(Columns(self._payloads, *task_columns(self._tasks)))
        self._tasks, self._payloads, self._bytes = [], [], 0

    def add_encoded(self, columns: Columns) -> None:
        """Adds a chunk of at most CHUNK tasks that is already checked and encoded."""
        data = marshal.dumps(tuple(columns), 2)  # version 2 always writes the same bytes for the same values
        self._file.write(data)
        self._sizes.append(len(data))
        self._longest = max(self._longest, *map(len, columns.payloads))
        self.rows += len(columns.payloads)
        self.checksum = zlib.crc32(data, self.checksum)
        self.named = self.named or columns.subjects is not None
        self._delayed = self._delayed or has_delays(columns.dues) or has_delays(columns.expires)

    def fill(self, items: Iterable[Json | NewTask | None]) -> None:
        """Adds all items and finishes."""
        for batch in batches(items, BATCH):
            self.add(batch)
        self.finish()

    @property
    def parts(self) -> int:
        """The number of chunks."""
        return len(self._sizes)

    def chunks(self) -> Iterator[Chunk]:
        """Yields all chunks from the start."""
        self._file.seek(0)
        first = 0
        for part, size in enumerate(self._sizes):
            data = self._file.read(size)
            chunk = Chunk(*(*marshal.loads(data), zlib.crc32(data), part, first))  # noqa: S302 - the file is private
            if self._delayed:
                chunk = chunk._replace(dues=to_moments(chunk.dues), expires=to_moments(chunk.expires, LAST_END))
            yield chunk
            first += len(chunk.payloads)

    def check_sizes(self, largest: int) -> None:
        """Checks the payloads against the queue's own limit, which is known only after the queue is looked up. The
        error names the first task above it."""
        if self._longest > largest:
            for chunk in self.chunks():
                for n, raw in enumerate(chunk.payloads, chunk.first):
                    validate.at(n, validate.size, raw, largest)


PLAIN = NewTask({})
OtherColumns = tuple[
    list[bytes | None] | None,
    list[bytes] | None,
    list[bytes | None] | None,
    list[int] | None,
    list[bytes | None] | None,
    list[bytes | None] | None,
    list[bytes | None] | None,
]
NO_COLUMNS: OtherColumns = (None, None, None, None, None, None, None)


def check_batch(batch: list[Json | NewTask | None]) -> list[NewTask] | None:
    """Checks the items of a batch. Returns None if all of them are payloads, because making tasks of payloads would
    cost more than encoding them."""
    if {*map(type, batch)} == {dict}:
        return None
    return [validate.at(n, validate.new_task, item) for n, item in enumerate(batch)]


def task_columns(tasks: list[NewTask]) -> OtherColumns:
    """Returns the columns of tasks after the payloads, in the order of Columns."""
    if tasks.count(PLAIN) == len(tasks):
        return NO_COLUMNS
    _, subjects, dues, priorities, kinds, delays, keys, metas, expires = zip(*tasks, strict=True)
    if expires.count(None) < len(expires):
        expires = tuple(map(encode_expires, expires, dues, delays))
    if {*delays} != {None}:
        dues = tuple(map(due_or_delay, dues, delays))
    return (
        None if {*subjects} == {None} else [one and one.encode() for one in subjects],
        None if {*kinds} == {"default"} else [one.encode() for one in kinds],
        None if {*dues} == {None} else [one and encode_due(one) for one in dues],
        None if {*priorities} == {5} else list(priorities),
        None if keys.count(None) == len(keys) else [one and one.encode() for one in keys],
        None if metas.count(None) == len(metas) else [None if one is None else validate.meta(one) for one in metas],
        None if expires.count(None) == len(expires) else list(expires),
    )


# A delay stays a delay until its chunk is written, because a repeated batch must equal the first one. This prefix marks
# a delay.
DELAY = b"+"


def due_or_delay(due: datetime | None, delay: Duration | None) -> datetime | bytes | None:
    """Returns the due of a task, or its delay in encoded form."""
    length = validate.delay(delay)
    return due if length is None else encode_delay(length)


def encode_expires(value: object, due: datetime | None, delay: Duration | None) -> bytes | None:
    """Returns when a task expires, in encoded form: a moment, or a delay."""
    if value is None:
        return None
    found = validate.expires(value)
    if isinstance(found, datetime):
        return encode_due(found)
    if due is not None:
        return encode_due(due + found)
    return encode_delay((validate.delay(delay) or timedelta()) + found)


def has_delays(column: list[bytes | None] | None) -> bool:
    """Returns whether there are encoded delays in a column."""
    return any(one and one.startswith(DELAY) for one in column or ())


def encode_delay(length: timedelta) -> bytes:
    """Encodes a length of time from the push."""
    return b"%b%d" % (DELAY, length // MICROSECOND)


def encode_due(due: datetime | bytes) -> bytes:
    """Encodes a moment for PostgreSQL; an encoded delay stays as it is."""
    return due if isinstance(due, bytes) else due.astimezone(UTC).isoformat().encode()


MICROSECOND = timedelta(microseconds=1)
LAST_DUE = validate.LONGEST_DELAY - timedelta(seconds=1)  # PostgreSQL's clock may be behind this machine's
LAST_END = 2 * LAST_DUE


def to_moments(column: list[bytes | None] | None, most: timedelta = LAST_DUE) -> list[bytes | None] | None:
    """Turns delays into moments, counted from now."""
    if column is None:
        return None
    return [encode_due(count_from_now(one, most)) if one and one.startswith(DELAY) else one for one in column]


def count_from_now(delay: bytes, most: timedelta) -> datetime:
    """Returns the moment after an encoded delay, counted from now."""
    return datetime.now(UTC) + min(int(delay.removeprefix(DELAY)) * MICROSECOND, most)
