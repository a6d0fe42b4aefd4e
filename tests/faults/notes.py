"""The history file of a campaign: producers, workers and the campaign append what they do, a JSON object per line.

A note begins and ends with a line feed. A process that is killed in the middle of a write leaves a torn line, but the
next note is complete; `read_notes` leaves out torn lines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from penstock.model import Claim, Task

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Notes:
    """A history file, open for appending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **facts: Any) -> None:
        """Append one note in one write."""
        note = orjson.dumps({"at": time.time(), "pid": os.getpid(), **facts}, option=orjson.OPT_NON_STR_KEYS)
        os.write(self._file, b"\n" + note + b"\n")

    def close(self) -> None:
        os.close(self._file)


def describe_claim(claim: Claim, lease: float) -> dict[str, Any]:
    """Return the note of a claim: its tasks, and its time in PostgreSQL, by which history is joined to it."""
    assert claim.until is not None
    return {
        "op": "claim",
        "phase": "ok",
        "token": str(claim.token),
        "ids": claim.ids,
        "claimed": (claim.until - timedelta(seconds=lease) - EPOCH) // MICROSECOND,
        "alone": claim.alone,
        "tasks": [describe_task(task) for task in claim.tasks],
    }


def describe_task(task: Task) -> list[Any]:
    payload = task.payload or {}
    return [task.id, payload.get("serial"), task.subject, payload.get("version"), task.attempt, task.iterations]


def read_notes(path: Path) -> Iterator[bytes]:
    """Yield each complete note as JSON text, in the order of the file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b"{") and is_json(line):
                yield line.rstrip(b"\n")


def is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True
