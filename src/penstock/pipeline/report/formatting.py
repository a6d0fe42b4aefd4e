"""Formats numbers for people: with a unit and a sensible precision. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def format_duration(seconds: float) -> str:
    """Formats a duration with its unit, to three digits."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    unit, size = next(((name, size) for name, size in UNITS if seconds >= 1.5 * size or seconds == size), ("s", 1.0))
    return f"{seconds / size:.3g} {unit}" if seconds / size < 999.5 else f"{seconds / size:,.0f} {unit}"


def format_hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else format_duration(seconds)


def format_count(count: int, thing: str, things: str | None = None) -> str:
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def format_percent(part: float, whole: float) -> str:
    """Formats a share. One of millions is not shown as 0."""
    share = 100 * part / whole
    return "< 0.01 %" if 0 < share < 0.005 else f"{share:.2f} %"


def format_floor(part: int, whole: int) -> str:
    """Formats a share, rounded down: only all of them are 100 %."""
    return "100 %" if part == whole else f"{math.floor(10_000 * part / whole) / 100:.2f} %"


def format_minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def format_second(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
