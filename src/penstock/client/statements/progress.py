"""What handlers said of their tasks: notes to store, and the progress of one task."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from penstock import validate
from penstock.model import LogLine, TaskProgress

NOTE = "select penstock.note_progress(%s::uuid, %s::jsonb)"
FIND = "select part, text, at, attempt, log::text from penstock.find_progress(%s, %s)"


def find_parameters(id_: int, queue: str | None) -> tuple[Any, ...]:
    """Returns the parameters of FIND."""
    return (validate.ids([id_])[0], queue)


def read_progress(rows: list[tuple[Any, ...]]) -> TaskProgress | None:
    """Reads the answer of FIND. No row means that nothing was said."""
    for part, text, at, attempt, log in rows:
        return TaskProgress(part, text, at, attempt, tuple(map(read_line, orjson.loads(log))))
    return None


def read_line(line: dict[str, Any]) -> LogLine:
    """Returns a line of a log."""
    return LogLine(datetime.fromisoformat(line["at"]), line["attempt"], line["text"])
