"""What handlers say of their tasks with `context.progress` and `context.log`, until the worker stores it.

A call writes to memory only. The worker stores it at most once in a third of the lease, and when a task ends
without being done.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from penstock.errors import ValidationError, shown
from penstock.model import Json

MAX_LINES = 100  # of the log of a task
MAX_TEXT = 200  # characters of a line, and of the text of the progress


class Line(NamedTuple):
    """A line of the log of a run. `at` is on the monotonic clock, which the processes of a machine share."""

    n: int
    at: float
    text: str


class Note:
    """What the handler of one task said in this run. Lines stay here until they are stored."""

    def __init__(self) -> None:
        self.part: float | None = None
        self.text: str | None = None
        self.at = 0.0
        self.said = 0  # how often something was said
        self.stored = 0  # the part of it that is stored
        self.last_line = 0
        self.lines: deque[Line] = deque(maxlen=MAX_LINES)


class Notes:
    """What the handlers of one claim said, from any thread. `told` is called after each note."""

    def __init__(self, told: Callable[[], None] | None = None) -> None:
        self._notes: dict[int, Note] = {}
        self._lock = threading.Lock()
        self._told = told

    @property
    def fresh(self) -> bool:
        """Whether something was said that is not stored."""
        return any(note.said > note.stored for note in [*self._notes.values()])

    def progress(self, id_: int, part: float, text: str | None) -> None:
        """Keeps how far a task is, in place of what was said before."""
        with self._lock:
            note = self._begin(id_)
            note.part, note.text = part, text
        if self._told is not None:
            self._told()

    def log(self, id_: int, text: str) -> None:
        """Keeps a line of the log of a task."""
        with self._lock:
            note = self._begin(id_)
            note.last_line += 1
            note.lines.append(Line(note.last_line, note.at, text))
        if self._told is not None:
            self._told()

    def _begin(self, id_: int) -> Note:
        note = self._notes.setdefault(id_, Note())
        note.said += 1
        note.at = time.monotonic()
        return note

    def collect(self, ids: Collection[int] | None = None) -> list[Json]:
        """Returns what is not stored of these tasks, or of all tasks, with moments on the monotonic clock."""
        with self._lock:
            return [
                {
                    "id": id_,
                    "said": note.said,
                    "part": note.part,
                    "text": note.text,
                    "at": note.at,
                    "lines": [list(line) for line in note.lines],
                }
                for id_, note in self._notes.items()
                if note.said > note.stored and (ids is None or id_ in ids)
            ]

    def note_stored(self, collected: Iterable[Json]) -> None:
        """Removes what is stored now."""
        with self._lock:
            for one in collected:
                note = self._notes[one["id"]]
                note.stored = max(note.stored, one["said"])
                last = one["lines"][-1][0] if one["lines"] else 0
                while note.lines and note.lines[0].n <= last:
                    note.lines.popleft()

    def merge(self, collected: Iterable[Json]) -> None:
        """Keeps what another process collected: the child of this one in which the handler runs."""
        with self._lock:
            for one in collected:
                note = self._notes.setdefault(one["id"], Note())
                note.said, note.at = one["said"], one["at"]
                note.part, note.text = one["part"], one["text"]
                for line in map(Line._make, one["lines"]):
                    if line.n > note.last_line:
                        note.lines.append(line)
                        note.last_line = line.n


def to_stored(collected: Iterable[Json]) -> list[Json]:
    """Returns what was collected as PostgreSQL takes it, which counts back from its own clock."""
    now = time.monotonic()
    return [
        {
            "id": one["id"],
            "part": one["part"],
            "text": one["text"],
            "ago": max(0.0, now - one["at"]),
            "lines": [[n, max(0.0, now - at), text] for n, at, text in one["lines"]],
        }
        for one in collected
    ]


def check_part(part: Any) -> float:
    """Returns how far a task is, as a number between 0 and 1."""
    if isinstance(part, bool) or not isinstance(part, (int, float)):
        raise ValidationError(f"part: {shown(part)} is not a number", field="part")
    if not (math.isfinite(part) and 0 <= part <= 1):
        raise ValidationError(f"part: {shown(part)} is not between 0 and 1", field="part")
    return float(part)


def check_text(text: Any) -> str:
    """Returns a text that can be stored, cut to 200 characters."""
    if not isinstance(text, str):
        raise ValidationError(f"text: {shown(text)} is not text", field="text")
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return cut.replace("\0", "?").encode("utf-8", "replace").decode()
