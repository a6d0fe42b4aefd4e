"""Formats values for people, wherever Penstock prints them: counts, durations, shares and moments. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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


def format_age(seconds: float | None) -> str:
    """Writes a measured length of time, rounded for reading: 2.1s, 45s, 5m20s, 1h30m, 3d4h."""
    if seconds is None:
        return "–"
    steps = ((86400, 3600), (3600, 60), (10, 1))
    step = next((step for least, step in steps if seconds >= least), 0.1)
    return format_length(timedelta(seconds=round(round(seconds / step) * step, 1)))


def format_length(length: timedelta | None) -> str:
    """Writes an exact length of time, in the form that options accept: 1h30m."""
    if length is None:
        return "–"
    if timedelta() < length < timedelta(seconds=1):
        return f"{length / timedelta(milliseconds=1):g}ms"
    left, parts = length / timedelta(seconds=1), ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        count, left = divmod(left, size)
        parts += f"{count:.0f}{unit}" if count else ""
    left = round(left, 6)
    return parts + (f"{left:.6f}".rstrip("0").rstrip(".") + "s" if left or not parts else "")


def format_percent(share: float) -> str:
    """Formats a share in percent. A share above zero is never shown as zero."""
    return "< 0.01 %" if 0 < share < 0.00005 else f"{100 * share:.2f} %"


def format_time(moment: datetime | None) -> str:
    """Formats a moment in UTC: `2030-01-31 06:00:00Z`."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
