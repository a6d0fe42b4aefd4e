"""Draws the charts of the report and of the dashboard. The marks are an SVG that stretches to the available width. The
texts beside it are SVGs whose positions are in percent, so that they keep their size and no style attribute is needed,
which the content security policy of the dashboard forbids.

Pure: values in, markup out. Texts from outside (names, errors) go through `plain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from penstock.charts.axes import Axis, escape_text, format_axis_value, list_multiples, list_round_values
from penstock.formatting import UNITS, format_duration

WIDE, HIGH = 1000.0, 200.0  # of a plot, in units of its SVG
MAX_MARKS = 5  # on the time axis: as many as fit on a phone
MAX_LINEAR = 5.0  # times the promise; above it the axis is compressed, so that the promise can still be seen
MIN_MARK_GAP = 0.14  # between two marks, as a share of the axis
SPANS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000)  # seconds
STEPS = (*(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3600 * n for n in (1, 2, 3, 6, 12)), 86_400)

Marks = Sequence[tuple[float, str]]  # values and their labels


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time. None: unknown, so nothing is drawn. `kind` is a CSS class."""

    name: str
    kind: str
    values: tuple[float | None, ...]
    filled: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """One pair of axes."""

    name: str
    series: tuple[Series, ...]
    marks: tuple[tuple[float, str], ...]  # of the vertical axis; the last one is its end
    bent: Callable[[float], float] = float
    stacked: bool = False
    spans: tuple[tuple[float, float], ...] = ()  # of time, as shares of the period: drawn as a strip on top


@dataclass(frozen=True, slots=True)
class Sheet:
    """The table behind a chart. Each row has the number of its point or bar; the page's script uses it to show the row
    under the pointer."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A bar of a chart. `share`: relative to the longest bar. `least` and `most`: the bounds of its confidence
    interval. `note`: a text below its name."""

    name: str
    share: float
    said: str
    note: str = ""
    least: float | None = None
    most: float | None = None


# --- over time --------------------------------------------------------------------------------------------------------


def draw_plot(plot: Plot, begins: float, ends: float, about: str) -> str:
    up = Axis(plot.marks[0][0], plot.marks[-1][0], HIGH, 0.0, plot.bent)
    count = max((len(one.values) for one in plot.series), default=0)
    inside = "".join([*draw_grid(up, plot.marks), *draw_series(plot, up), *draw_strip(plot.spans)])
    return (
        f'<div class="plot" data-count="{count}" tabindex="0" role="img" aria-label="{escape_text(about)}">'
        f'<p class="axis-name">{escape_text(plot.name)}{draw_legend(plot)}</p>'
        f'<svg class="ys" aria-hidden="true">{"".join(label_values(up, plot.marks))}</svg>'
        f'<svg class="marks" viewBox="0 0 {WIDE:g} {HIGH:g}" preserveAspectRatio="none" aria-hidden="true">'
        f"{inside}</svg>"
        f'<div class="cursor" hidden></div>'
        f'<svg class="xs" aria-hidden="true">{"".join(label_times(begins, ends))}</svg></div>'
    )


def draw_legend(plot: Plot) -> str:
    if len(plot.series) < 2:
        return ""
    return "".join(f' <span class="key {one.kind}">{escape_text(one.name)}</span>' for one in plot.series)


def draw_grid(up: Axis, marks: Marks) -> Iterator[str]:
    for value, _ in marks:
        yield f'<line class="grid" x1="0" x2="{WIDE:g}" y1="{up(value):.1f}" y2="{up(value):.1f}"/>'


def label_values(up: Axis, marks: Marks) -> Iterator[str]:
    for value, said in marks:
        y = 100 * up(value) / HIGH
        yield f'<text x="100%" y="{y:.1f}%" dy=".35em" text-anchor="end">{escape_text(said)}</text>'


def draw_series(plot: Plot, up: Axis) -> Iterator[str]:
    if plot.stacked:
        yield from draw_stack(plot.series, up)
        return
    for one in plot.series:
        for run in split_runs(one.values):
            yield draw_outline(one, run, up)


PointRun = list[tuple[int, float]]


def split_runs(values: Sequence[float | None]) -> Iterator[PointRun]:
    """Yields each sequence of known values without a gap."""
    for known, group in groupby(enumerate(values), key=lambda one: one[1] is not None):
        if known:
            yield [(n, value) for n, value in group if value is not None]


def draw_outline(series: Series, run: PointRun, up: Axis) -> str:
    each = WIDE / len(series.values)
    if series.steps or series.filled or len(run) == 1:
        points = [corner for n, value in run for corner in ((n * each, up(value)), ((n + 1) * each, up(value)))]
    else:
        points = [((n + 0.5) * each, up(value)) for n, value in run]
    if series.filled:
        points = [(points[0][0], up.begin), *points, (points[-1][0], up.begin)]
    kind = f"{series.kind} {'area' if series.filled else 'line'}"
    return f'<path class="{kind}" d="{draw_path(points)}{"Z" if series.filled else ""}"/>'


def draw_path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def draw_stack(series: Sequence[Series], up: Axis) -> Iterator[str]:
    """Draws shares on top of each other. Where one is unknown, nothing is drawn."""
    if not series:
        return
    each = WIDE / max(1, len(series[0].values))
    below = [0.0] * len(series[0].values)
    for one in series:
        above = [low + (value or 0.0) for low, value in zip(below, one.values, strict=True)]
        for run in split_runs(one.values):
            if not any(value for _, value in run):
                continue
            tops = [(x, up(above[n])) for n, _ in run for x in (n * each, (n + 1) * each)]
            floor = [(x, up(below[n])) for n, _ in reversed(run) for x in ((n + 1) * each, n * each)]
            yield f'<path class="{one.kind} area" d="{draw_path([*tops, *floor])}Z"/>'
        below = above


def draw_strip(spans: Iterable[tuple[float, float]]) -> Iterator[str]:
    """Draws breaches as a strip on top. A breach that is too short to be seen gets a minimum width."""
    for begin, end in spans:
        x = min(begin * WIDE, WIDE - 2)
        yield f'<rect class="breach" x="{x:.1f}" width="{max(2.0, (end - begin) * WIDE):.1f}" y="0" height="7"/>'


def label_times(begins: float, ends: float) -> Iterator[str]:
    for moment, said in choose_times(begins, ends):
        left = 100 * (moment - begins) / (ends - begins)
        anchor = "start" if left < 6 else "end" if left > 94 else "middle"
        yield f'<text x="{left:.2f}%" y="1em" text-anchor="{anchor}">{said}</text>'


def choose_times(begins: float, ends: float) -> list[tuple[float, str]]:
    """Returns round times (UTC) for the axis. Midnight is labelled with its date."""
    span = ends - begins
    days = 86_400 * math.ceil(span / 86_400 / MAX_MARKS)
    step = next((one for one in STEPS if one * MAX_MARKS >= span), days)
    return [(at, format_time(at)) for at in list_multiples(begins, ends, step)]


def format_time(at: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment.day} {moment:%b}" if at % 86_400 == 0 else f"{moment:%H:%M}"


# --- upright axes -----------------------------------------------------------------------------------------------------


def make_count_axis(most: float) -> tuple[tuple[float, str], ...]:
    return tuple((one, format_axis_value(one)) for one in list_round_values(most))


def make_percent_axis() -> tuple[tuple[float, str], ...]:
    return ((0.0, "0"), (0.5, "50 %"), (1.0, "100 %"))


def make_duration_axis(
    most: float, promise: float | None
) -> tuple[tuple[tuple[float, str], ...], Callable[[float], float]]:
    """Returns the marks of an axis of durations, and its scale. If the highest value is far above the promise, the
    scale is compressed upwards, so that both can be seen."""
    if promise is None or most <= MAX_LINEAR * promise:
        unit, size = next(((name, size) for name, size in UNITS if most >= 2 * size), ("s", 1.0))
        return tuple((one * size, f"{format_axis_value(one)} {unit}") for one in list_round_values(most / size)), float
    near = promise / 2

    def bent(value: float) -> float:
        return math.asinh(value / near)

    end = next((float(one) for one in SPANS if one >= most), most)
    marks = [0.0]
    for one in SPANS:
        if promise / 2 <= one < end and bent(one) - bent(marks[-1]) >= MIN_MARK_GAP * bent(end):
            marks.append(float(one))
    if len(marks) > 1 and bent(end) - bent(marks[-1]) < MIN_MARK_GAP * bent(end):
        marks.pop()
    return tuple((one, format_duration(one)) for one in (*marks, end)), bent


# --- bars and tables --------------------------------------------------------------------------------------------------


def draw_bars(bars: Sequence[ChartBar], about: str) -> str:
    rows = "".join(draw_bar(n, one) for n, one in enumerate(bars))
    return f'<ul class="bars" aria-label="{escape_text(about)}">{rows}</ul>'


def draw_bar(n: int, bar: ChartBar) -> str:
    drawn = f'<rect class="track" width="{WIDE:g}" height="10"/>'
    drawn += f'<rect class="one-fill" width="{WIDE * min(1.0, bar.share):.1f}" height="10"/>'
    if bar.least is not None and bar.most is not None:
        drawn += (
            f'<rect class="doubt" x="{WIDE * bar.least:.1f}" width="{max(1.0, WIDE * (bar.most - bar.least)):.1f}"'
            f' y="4" height="2"/>'
        )
    note = f"<small>{escape_text(bar.note)}</small>" if bar.note else ""
    return (
        f'<li data-n="{n}"><span class="name">{escape_text(bar.name)}{note}</span>'
        f'<svg viewBox="0 0 {WIDE:g} 10" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
        f'<span class="said">{escape_text(bar.said)}</span></li>'
    )


def render_sheet(sheet: Sheet, said: str) -> str:
    head = "".join(f'<th scope="col">{escape_text(one)}</th>' for one in sheet.columns)
    body = "".join(
        f'<tr data-n="{n}">{"".join(f"<td>{escape_text(one)}</td>" for one in cells)}</tr>' for n, cells in sheet.rows
    )
    return (
        f"<details><summary>{escape_text(said)}</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape_text(said)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )
