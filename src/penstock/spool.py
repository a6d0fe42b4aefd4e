"""A bulk push in bounded memory: every item is checked and encoded into a temporary file before the first one is
written, so that a bad item refuses the whole call."""

from __future__ import annotations

import marshal
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from types import TracebackType
from typing import IO, NamedTuple

from penstock.errors import ValidationError
from penstock.model import Json, NewTask
from penstock.validate import LARGEST_PAYLOAD, new_task, payload

CHUNK = 10_000
CHUNK_BYTES = 8 << 20
IN_MEMORY = 32 << 20


class Chunk(NamedTuple):
    """Some tasks as parallel lists; a list that would be all default is None."""

    payloads: list[bytes]
    subjects: list[bytes | None] | None
    kinds: list[bytes] | None
    dues: list[bytes | None] | None
    priorities: list[int] | None


class Spool:
    """Write once, read any number of times. `named` says whether any task has a subject."""

    def __init__(self, *, chunk: int = CHUNK, largest: int = LARGEST_PAYLOAD) -> None:
        self._chunk = chunk
        self._largest = largest
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="penstock-")  # noqa: SIM115
        self._sizes: list[int] = []
        self.rows = 0
        self.checksum = 0
        self.named = False

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def fill(self, items: Iterable[Json | NewTask | None], progress: Callable[[int], None] | None = None) -> None:
        """Takes all items. An item we do not accept, or an error of the iterable itself, ends the call."""
        waiting: list[NewTask] = []
        payloads: list[bytes] = []
        size = 0
        for item in items:
            try:
                if type(item) is dict:
                    raw = payload(item, self._largest)
                    task = PLAIN
                else:
                    task = new_task(item)
                    raw = payload(task.payload, self._largest)
            except ValidationError as error:
                raise error.at(self.rows + len(payloads)) from None
            payloads.append(raw)
            waiting.append(task)
            size += len(raw)
            if len(payloads) >= self._chunk or size >= CHUNK_BYTES:
                self._add(payloads, waiting)
                payloads, waiting, size = [], [], 0
                if progress:
                    progress(self.rows)
        if payloads:
            self._add(payloads, waiting)
            if progress:
                progress(self.rows)

    def chunks(self) -> Iterator[Chunk]:
        self._file.seek(0)
        for size in self._sizes:
            yield Chunk(*marshal.loads(self._file.read(size)))  # noqa: S302 - our own private file

    def _add(self, payloads: list[bytes], tasks: list[NewTask]) -> None:
        plain = tasks.count(PLAIN) == len(tasks)
        chunk = Chunk(payloads, None, None, None, None) if plain else with_columns(payloads, tasks)
        data = marshal.dumps(tuple(chunk), 2)  # version 2: the same bytes for the same values, always
        self._file.write(data)
        self._sizes.append(len(data))
        self.rows += len(payloads)
        self.checksum = zlib.crc32(data, self.checksum)
        self.named = self.named or chunk.subjects is not None


PLAIN = NewTask({})


def with_columns(payloads: list[bytes], tasks: list[NewTask]) -> Chunk:
    _, subjects, dues, priorities, kinds = zip(*tasks, strict=True)
    return Chunk(
        payloads,
        [None if one is None else one.encode() for one in subjects] if any(s is not None for s in subjects) else None,
        [one.encode() for one in kinds] if set(kinds) != {"default"} else None,
        [None if one is None else one.astimezone(UTC).isoformat().encode() for one in dues]
        if any(d is not None for d in dues)
        else None,
        list(priorities) if set(priorities) != {5} else None,
    )
