"""Draws the charts of a queue from its samples and decisions, with the means that the report uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from penstock.charts.axes import escape_text
from penstock.charts.plots import (
    Plot,
    Series,
    Sheet,
    draw_plot,
    make_count_axis,
    make_duration_axis,
    render_sheet,
)
from penstock.formatting import format_age
from penstock.model import Sampled, StoredDecision
from penstock.scaler.standing import count_arrived, count_ended

POINTS = 180
IDLE_GAP = 660.0  # seconds: an idle queue has a sample every ten minutes
SPANS = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}
DEFAULT_SPAN = "1h"

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A period of time in equal parts, one for each point of a chart. Moments are seconds since 1970."""

    begins: float
    ends: float
    points: int = POINTS

    @property
    def step(self) -> float:
        """The seconds of one part."""
        return (self.ends - self.begins) / self.points

    def part(self, at: float) -> int:
        """Returns the part that a moment is in."""
        return min(self.points - 1, max(0, int((at - self.begins) / self.step)))

    def moment(self, part: int) -> float:
        """Returns the begin of a part."""
        return self.begins + part * self.step


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a page: its title and markup, or no markup if there is nothing to draw."""

    title: str
    drawn: str


def fill(window: Window, samples: Sequence[Sampled]) -> list[Sampled | None]:
    """Returns a sample for each part. An idle queue has few samples: the last one holds until the next, for as long as
    an idle queue may be without one."""
    found: list[Sampled | None] = [None] * window.points
    for sampled in samples:
        found[window.part(sampled.at)] = sampled
    last: Sampled | None = None
    for n, one in enumerate([*found]):
        if one is not None:
            last = one
        elif last is not None and window.moment(n) - last.at < max(IDLE_GAP, 1.5 * window.step):
            found[n] = last
    return found


def rates(window: Window, samples: Sequence[Sampled]) -> tuple[Values, Values]:
    """Returns how many tasks a second arrived and ended in each part, from the totals of neighbouring samples."""
    arrived: list[float | None] = [None] * window.points
    ended: list[float | None] = [None] * window.points
    for before, after in pairwise(samples):
        seconds = after.at - before.at
        if not 0 < seconds <= max(IDLE_GAP, 2 * window.step):
            continue
        for n in range(window.part(before.at), window.part(after.at)):
            arrived[n] = max(0.0, (count_arrived(after) - count_arrived(before)) / seconds)
            ended[n] = max(0.0, (count_ended(after) - count_ended(before)) / seconds)
    return tuple(arrived), tuple(ended)


def targets(window: Window, decisions: Sequence[StoredDecision]) -> Values:
    """Returns how many workers the scaler wanted in each part. Decisions come newest first; one is stored once a minute
    while a scaler runs, so an old one means that none ran."""
    found: list[float | None] = [None] * window.points
    ordered = list(reversed(decisions))
    for n, one in enumerate(ordered):
        begin = one.at.timestamp()
        end = ordered[n + 1].at.timestamp() if n + 1 < len(ordered) else begin + 90.0
        if end < window.begins or begin >= window.ends:
            continue
        for part in range(window.part(begin), window.part(min(end, begin + 90.0 + window.step)) + 1):
            found[part] = float(one.workers)
    return tuple(found)


def highest(*series: Values) -> float:
    """Returns the largest value of all series."""
    return max((value for one in series for value in one if value is not None), default=0.0)


def draw_charts(
    window: Window, samples: Sequence[Sampled], decisions: Sequence[StoredDecision], sla: float | None
) -> list[Chart]:
    """Draws the charts of a queue."""
    parts = fill(window, samples)
    age: Values = tuple(None if one is None else one.oldest_age or 0.0 for one in parts)
    waiting: Values = tuple(None if one is None else float(one.pending) for one in parts)
    present: Values = tuple(None if one is None else float(one.workers) for one in parts)
    arrived, ended = rates(window, samples)
    wanted = targets(window, decisions)
    return [
        draw_ages(window, age, sla),
        draw_counts(
            window, "Waiting tasks", "tasks that are due and wait", [Series("waiting", "one", waiting, filled=True)]
        ),
        draw_counts(
            window,
            "Workers",
            "processes",
            [Series("present", "one", present, steps=True)]
            + ([Series("wanted", "wanted", wanted, steps=True)] if any(one is not None for one in wanted) else []),
        ),
        draw_counts(
            window,
            "Tasks per second",
            "per second",
            [Series("arriving", "two", arrived), Series("ending", "one", ended)],
        ),
    ]


def draw_ages(window: Window, age: Values, sla: float | None) -> Chart:
    """Draws the age of the oldest waiting task against the promise."""
    marks, bent = make_duration_axis(max(highest(age), 1.2 * (sla or 0.0)), sla)
    series = [Series("oldest waiting task", "one", age, filled=True)]
    if sla is not None:
        series.append(Series("promise", "promise", (sla,) * window.points, steps=True))
    plot = Plot("how long the oldest task has waited", tuple(series), marks, bent)
    rows = [(n, (clock(window, n), format_age(one))) for n, one in enumerate(age) if one is not None]
    return make_chart(window, "Age of the oldest task", plot, ("time (UTC)", "oldest waiting"), rows)


def draw_counts(window: Window, title: str, unit: str, series: list[Series]) -> Chart:
    """Draws counts over time."""
    most = highest(*(one.values for one in series))
    plot = Plot(unit, tuple(series), make_count_axis(most))
    rows = [
        (n, (clock(window, n), *(number(one.values[n]) for one in series)))
        for n in range(window.points)
        if any(one.values[n] is not None for one in series)
    ]
    return make_chart(window, title, plot, ("time (UTC)", *(one.name for one in series)), rows)


def make_chart(
    window: Window, title: str, plot: Plot, columns: tuple[str, ...], rows: Sequence[tuple[int, tuple[str, ...]]]
) -> Chart:
    """Puts a plot and the table behind it together."""
    if not rows:
        return Chart(title, "")
    sheet = Sheet(columns, tuple(rows))
    drawn = draw_plot(plot, window.begins, window.ends, f"{title}, {plot.name}. The table below has the values.")
    return Chart(title, drawn + render_sheet(sheet, "as a table"))


def number(value: float | None) -> str:
    """Writes a count or a rate."""
    return "–" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def clock(window: Window, part: int) -> str:
    """Writes the moment of a part."""
    moment = datetime.fromtimestamp(window.moment(part), UTC)
    return f"{moment:%d %b %H:%M}" if window.ends - window.begins > 86_400 else f"{moment:%H:%M:%S}"


# --- small ones -------------------------------------------------------------------------------------------------------


def draw_bar(usage: float | None, level: str) -> str:
    """Draws how much of the promise the oldest task has used up."""
    width = 0.0 if usage is None else min(100.0, max(2.0 if usage > 0 else 0.0, 100 * usage))
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="6"/><rect class="fill {level}" width="{width:.1f}" height="6"/></svg>'
    )


def draw_sparkline(samples: Sequence[Sampled], sla: float | None) -> str:
    """Draws the age of the oldest task over the last samples, with the promise as a line."""
    if len(samples) < 2:
        return ""
    ages = [one.oldest_age or 0.0 for one in samples]
    top = max([*ages, (sla or 0.0) * 1.1, 1e-9])
    begins, ends = samples[0].at, samples[-1].at
    points = " ".join(
        f"{100 * (one.at - begins) / (ends - begins):.1f},{24 - 22 * age / top:.1f}"
        for one, age in zip(samples, ages, strict=True)
    )
    line = (
        ""
        if sla is None
        else f'<line class="promise" x1="0" x2="100" y1="{24 - 22 * sla / top:.1f}" y2="{24 - 22 * sla / top:.1f}"/>'
    )
    said = f"oldest task over the last {format_age(ends - begins)}: at most {format_age(max(ages))}"
    return (
        '<svg class="spark" viewBox="0 0 100 25" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape_text(said)}">'
        f"<title>{escape_text(said)}</title>{line}"
        f'<polyline points="{points}"/></svg>'
    )
