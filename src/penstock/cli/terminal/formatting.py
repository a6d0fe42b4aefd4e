"""How the shell writes values: lengths of time, sizes, counts, moments, and text that must not control the terminal."""

from __future__ import annotations

import json as plain_json
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.cells import cell_len

from penstock.errors import printable
from penstock.formatting import format_length

MAX_CELL_WIDTH = 60


def format_seconds(seconds: float | None) -> str:
    """Writes an exact length of time, given in seconds, as `format_length` does."""
    return format_length(None if seconds is None else timedelta(seconds=seconds))


def to_seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def format_size(count: int) -> str:
    """Writes a number of bytes in the largest unit that needs no rounding."""
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % bytes_ == 0:
            return f"{count // bytes_:,} {unit}"
    return f"{count:,} bytes"


def to_iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def escape(text: str, *, most: int | None = None) -> str:
    """Cuts a text to `most` characters, and escapes line breaks and control sequences."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return printable(cut)


def format_cell(text: str | None) -> str:
    return "–" if text is None else escape(text, most=MAX_CELL_WIDTH)


def pad(text: str, width: int, left: bool) -> str:
    blank = " " * (width - cell_len(text))
    return text + blank if left else blank + text


def format_json(value: Any) -> str:
    """Writes a value as indented JSON, with its own characters and without control sequences."""
    lines = plain_json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    return "\n".join(escape(line) for line in lines)


def format_json_line(value: Any) -> str:
    """Writes a value as JSON on one line."""
    try:
        return plain_json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):  # an integer of thousands of digits, which only hand-written SQL can store
        return "…"
