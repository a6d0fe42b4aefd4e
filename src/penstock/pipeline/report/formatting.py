"""Formats hours, shares and moments for the report. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from penstock.formatting import format_duration


def format_hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else format_duration(seconds)


def format_floor(part: int, whole: int) -> str:
    """Formats a share, rounded down: only all of them are 100 %."""
    return "100 %" if part == whole else f"{math.floor(10_000 * part / whole) / 100:.2f} %"


def format_minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def format_second(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
