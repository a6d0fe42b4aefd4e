"""Renders templates. Every value is escaped; durations, counts and moments are formatted as in the shell."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from penstock.errors import printable, printable_lines
from penstock.formatting import format_age, format_count, format_length, format_time
from penstock.web.advice import advise
from penstock.web.curves import draw_bar, draw_sparkline

SPECIAL_STATES = {"dead": "bad"}


class Templates:
    """The templates of the dashboard."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("penstock.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            age=format_age,
            span=format_length,
            count=lambda value: "–" if value is None else f"{value:,}",
            plural=format_count,
            rate=format_rate,
            seconds=format_seconds,
            time=show_time,
            ago=show_ago,
            count_of=len,
            line=show_line,
            lines=printable_lines,
            drawn=Markup,
        )
        self._environment.globals.update(advise=advise, bar=draw_bar, sparkline=draw_sparkline, now=time.time)

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        """Renders a template."""
        return self._environment.get_template(template).render(context)


def format_rate(value: float | None) -> str:
    """Writes tasks per second."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def format_seconds(value: float) -> str:
    """Writes a measured length of time from microseconds to days, to three digits."""
    if value < 0.0005:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 60 else format_age(value)


def to_moment(value: datetime | str | float | None) -> datetime | None:
    """Reads a moment as PostgreSQL, JSON or a clock writes it."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    if isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, UTC)
    return value


def show_time(value: datetime | str | float | None) -> Markup:
    """Writes a moment in UTC, for people and for programs."""
    moment = to_moment(value)
    if moment is None:
        return Markup("–")
    return Markup('<time datetime="{}">{}</time>').format(moment.astimezone(UTC).isoformat(), format_time(moment))


def show_ago(value: datetime | str | float | None) -> Markup:
    """Writes how long ago a moment was, or in how long it will be."""
    moment = to_moment(value)
    if moment is None:
        return Markup("–")
    distance = (datetime.now(UTC) - moment) / timedelta(seconds=1)
    said = f"{format_age(distance)} ago" if distance >= 0 else f"in {format_age(-distance)}"
    exact = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact.isoformat(), format_time(moment), said)


def show_line(value: str | None, most: int = 160) -> str:
    """Cuts a text to one line; control characters are written as escapes."""
    if value is None:
        return "–"
    cut = value if len(value) <= most else value[: most - 1] + "…"
    return printable(cut)
