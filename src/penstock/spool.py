"""A bulk push in bounded memory: every item is checked and encoded into a temporary file before the first one is
written, so that a bad item refuses the whole call."""

from __future__ import annotations

import marshal
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC
from types import TracebackType
from typing import IO, NamedTuple, Self

from penstock import validate
from penstock.colour import batches
from penstock.errors import ValidationError
from penstock.model import Json, NewTask

# A chunk is what one statement writes. It ends at so many tasks or bytes, and always at the same ones for the same
# tasks: a repeated batch must find its parts in the ledger.
CHUNK = 10_000
CHUNK_BYTES = 8 << 20
BATCH = 50  # items looked at together: enough to be fast, few enough for any payload; a divisor of CHUNK
IN_MEMORY = 32 << 20


class Columns(NamedTuple):
    """Some tasks as parallel lists; a list that would be all default is None."""

    payloads: list[bytes]
    subjects: list[bytes | None] | None = None
    kinds: list[bytes] | None = None
    dues: list[bytes | None] | None = None
    priorities: list[int] | None = None


class Chunk(NamedTuple):
    """The columns of some tasks, and which of all they are."""

    payloads: list[bytes]
    subjects: list[bytes | None] | None
    kinds: list[bytes] | None
    dues: list[bytes | None] | None
    priorities: list[int] | None
    checksum: int
    part: int
    first: int  # how many tasks come before it


class Spool:
    """Write once, read any number of times. `named` says whether any task has a subject."""

    def __init__(self, *, largest: int = validate.LARGEST_PAYLOAD) -> None:
        self._largest = largest
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY, prefix="penstock-")  # noqa: SIM115 - __exit__
        self._sizes: list[int] = []
        self._longest = 0
        self._tasks: list[NewTask] = []
        self._payloads: list[bytes] = []
        self._bytes = 0
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
        """Takes some items, BATCH of them but for the last. One that we do not accept ends the call."""
        try:
            fresh = checked(batch)
            raws = validate.payloads(batch if fresh is None else [task.payload for task in fresh], self._largest)  # type: ignore[arg-type]
        except ValidationError as error:
            raise error.at(self.rows + len(self._payloads) + (error.index or 0)) from None
        self._tasks += fresh or [PLAIN] * len(batch)
        self._payloads += raws
        self._bytes += sum(map(len, raws))
        if len(self._payloads) >= CHUNK or self._bytes >= CHUNK_BYTES:
            self.finish()

    def finish(self) -> None:
        """What is left becomes the last chunk."""
        if not self._payloads:
            return
        self.add_encoded(Columns(self._payloads, *task_columns(self._tasks)))
        self._tasks, self._payloads, self._bytes = [], [], 0

    def add_encoded(self, columns: Columns) -> None:
        """Takes a chunk that is checked and encoded already: at most CHUNK tasks."""
        data = marshal.dumps(tuple(columns), 2)  # version 2: the same bytes for the same values, always
        self._file.write(data)
        self._sizes.append(len(data))
        self._longest = max(self._longest, *map(len, columns.payloads))
        self.rows += len(columns.payloads)
        self.checksum = zlib.crc32(data, self.checksum)
        self.named = self.named or columns.subjects is not None

    def fill(self, items: Iterable[Json | NewTask | None]) -> None:
        """Takes all items."""
        for batch in batches(items, BATCH):
            self.add(batch)
        self.finish()

    @property
    def parts(self) -> int:
        return len(self._sizes)

    def chunks(self) -> Iterator[Chunk]:
        self._file.seek(0)
        first = 0
        for part, size in enumerate(self._sizes):
            data = self._file.read(size)
            chunk = Chunk(*(*marshal.loads(data), zlib.crc32(data), part, first))  # noqa: S302 - our own private file
            yield chunk
            first += len(chunk.payloads)

    def check_sizes(self, largest: int) -> None:
        """The queue's own limit, known only after it was asked. Names the first task over it."""
        if self._longest > largest:
            for chunk in self.chunks():
                for n, raw in enumerate(chunk.payloads, chunk.first):
                    validate.at(n, validate.size, raw, largest)


PLAIN = NewTask({})
NO_COLUMNS = (None, None, None, None)


def checked(batch: list[Json | NewTask | None]) -> list[NewTask] | None:
    """None: nothing but payloads. Making tasks of them would cost more than encoding them."""
    if {*map(type, batch)} == {dict}:
        return None
    return [validate.at(n, validate.new_task, item) for n, item in enumerate(batch)]


def task_columns(
    tasks: list[NewTask],
) -> tuple[list[bytes | None] | None, list[bytes] | None, list[bytes | None] | None, list[int] | None]:
    if tasks.count(PLAIN) == len(tasks):
        return NO_COLUMNS
    _, subjects, dues, priorities, kinds = zip(*tasks, strict=True)
    return (
        None if {*subjects} == {None} else [one and one.encode() for one in subjects],
        None if {*kinds} == {"default"} else [one.encode() for one in kinds],
        None if {*dues} == {None} else [one and one.astimezone(UTC).isoformat().encode() for one in dues],
        None if {*priorities} == {5} else list(priorities),
    )
