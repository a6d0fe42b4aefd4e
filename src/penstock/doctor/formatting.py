"""Formats counts, durations, sizes and names for findings."""

from __future__ import annotations

from penstock.errors import shown


def describe_session(pid: int, user: str, application: str) -> str:
    return f"session {pid} of {user}" + (f" in {shown(application)}" if application else "")


def format_count(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def quote_literal(text: str) -> str:
    """Quotes a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def format_megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MB"


def format_duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} s".replace(".0 ", " ")
