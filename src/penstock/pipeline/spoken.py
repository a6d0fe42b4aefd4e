"""Numbers as the report says them: with their unit, as exact as people want them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

LARGE = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def length(seconds: float) -> str:
    """A length of time with its unit, as exact as people want it."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    unit, size = next(((name, size) for name, size in LARGE if seconds >= 1.5 * size or seconds == size), ("s", 1.0))
    return f"{seconds / size:.3g} {unit}" if seconds / size < 999.5 else f"{seconds / size:,.0f} {unit}"


def hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else length(seconds)


def many(count: int, thing: str, things: str | None = None) -> str:
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def percent(part: float, whole: float) -> str:
    """One among millions is not none."""
    share = 100 * part / whole
    return "< 0.01 %" if 0 < share < 0.005 else f"{share:.2f} %"


def at_least(part: int, whole: int) -> str:
    """Never more than it was: 100 % is all of them."""
    return "100 %" if part == whole else f"{math.floor(10_000 * part / whole) / 100:.2f} %"


def moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def exact(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
