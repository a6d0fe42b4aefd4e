"""Formats values for people, wherever Penstock prints them: counts, durations, shares and moments. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def format_count(count: int, thing: str = "task", things: str | None = None) -> str:
    """Formats a count with its noun: `1 task`, `2,000 tasks`."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def format_duration(seconds: float) -> str:
    """Formats a duration with its unit, to three digits: `250 ms`, `90 s`, `1.5 h`."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    unit, size = next(((name, size) for name, size in UNITS if seconds >= 1.5 * size or seconds == size), ("s", 1.0))
    return f"{seconds / size:.3g} {unit}" if seconds / size < 999.5 else f"{seconds / size:,.0f} {unit}"


def format_percent(share: float) -> str:
    """Formats a share in percent. A share above zero is never shown as zero."""
    return "< 0.01 %" if 0 < share < 0.00005 else f"{100 * share:.2f} %"


def format_time(moment: datetime | None) -> str:
    """Formats a moment in UTC: `2030-01-31 06:00:00Z`."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
