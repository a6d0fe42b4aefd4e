"""Draws simulations as SVG charts, without scripts, fonts or libraries. They fit a phone and have a dark mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from penstock.charts.axes import Axis, escape_text, format_axis_value, list_multiples, list_round_values, round_step
from penstock.scaler.judge import judge
from penstock.scaler.judge.judge import Score
from penstock.scaler.judge.simulate import Moment, Result
from penstock.scaler.policy.signals import Limits

WIDTH = 480.0  # narrow, so that text stays legible on a phone
LEFT, RIGHT, TOP = 50.0, 466.0, 44.0  # the edges of a plot
PANEL, GAP = 96.0, 36.0
MAX_POINTS = 800  # of a curve
LETTER, LINE = 6.8, 14.0  # approximate width and height of a letter
MAX_TITLE = 48  # letters of a line
OUR_POLICY = "deadline"

STYLE = """
.paper { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e } .grid { stroke: #d8dee4 }
.line { fill: none; stroke-width: 1.5; stroke-linejoin: round } .thin { stroke: #8c959f; stroke-width: .7 }
.blue { stroke: #0969da } .orange { stroke: #bc4c00 } .red { stroke: #cf222e } .dashed { stroke-dasharray: 5 4 }
.blue-text { fill: #0969da } .orange-text { fill: #bc4c00 } .red-text { fill: #cf222e }
.area { fill: #b6d7fb } .area-text { fill: #3b7dc4 } .beaten { fill: #8c959f } .unbeaten { fill: #0969da }
.ours { fill: #bc4c00 } .ours-text { fill: #bc4c00; font-weight: bold } .title { font-size: 14px; font-weight: bold }
.label { paint-order: stroke; stroke: #ffffff; stroke-width: 3px }
.penstock { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } .ink { fill: #e6edf3 } .soft { fill: #9da7b1 } .grid { stroke: #2b323b }
.thin { stroke: #6e7681 } .blue { stroke: #58a6ff } .orange { stroke: #f0883e } .red { stroke: #ff7b72 }
.blue-text { fill: #58a6ff } .orange-text { fill: #f0883e } .red-text { fill: #ff7b72 }
.area { fill: #1d3b60 } .area-text { fill: #79b8ff } .beaten { fill: #6e7681 } .unbeaten { fill: #58a6ff }
.ours { fill: #f0883e } .ours-text { fill: #f0883e } .label { stroke: #0d1117 }
}
"""

Points = list[tuple[float, float]]


# --- the parts of a chart ---------------------------------------------------------------------------------------------


def make_document(title: str, about: str, height: float, parts: Iterable[str]) -> str:
    """Returns an SVG document. Screen readers read its `title` and `desc`."""
    first, *rest = wrap_text(title, MAX_TITLE)
    lines = [cut_text(first, MAX_TITLE), *([cut_text(" ".join(map(str.strip, rest)), MAX_TITLE)] if rest else [])]
    head = "\n".join(draw_text(14, 24 + 18 * n, one, "ink title") for n, one in enumerate(lines))
    down, inside = 18 * (len(lines) - 1), "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" class="penstock" role="img"\
 viewBox="0 0 {WIDTH:g} {height + down:g}" style="width: 100%; max-width: 960px; height: auto">
<title>{escape_text(title)}</title>
<desc>{escape_text(about)}</desc>
<style>{STYLE}</style>
<rect class="paper" width="{WIDTH:g}" height="{height + down:g}"/>
{head}
<g transform="translate(0 {down})">
{inside}
</g>
</svg>
"""


def cut_text(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def draw_text(x: float, y: float, text: str, kind: str = "soft", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'


def draw_line(begin: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    (x1, y1), (x2, y2) = begin, end
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def draw_path(points: Points, kind: str) -> str:
    return f'<path class="{kind}" d="M {" L ".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def add_corners(points: Points) -> Points:
    """Adds corners, so that each value holds until the next."""
    corners = [(after[0], before[1]) for before, after in pairwise(points)]
    return [one for pair in zip(points, corners, strict=False) for one in pair] + points[-1:]


TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
UNITS = ((86_400, "d"), (1800, "h"), (60, "min"), (0, "s"))  # the step from which a unit is used


def list_round_times(until: float, most: int = 8) -> list[tuple[float, str]]:
    """Returns round moments of a time axis, and their labels."""
    days = 86_400 * round_step(until / 86_400, most) if until else 1.0
    step = next((float(one) for one in TIMES if one * most >= until), days)
    unit = next(name for least, name in UNITS if step >= least)
    size = {"d": 86_400, "h": 3600, "min": 60, "s": 1}[unit]
    return [(at, f"{at / size:g} {unit}") for at in list_multiples(0.0, until, step)]


# --- over time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve over time."""

    label: str
    points: Points  # (seconds, value)
    kind: str  # blue, orange: a line; area: filled
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot of curves over time."""

    about: str
    curves: tuple[Curve, ...]
    limit: tuple[float, str] | None = None  # a dashed line

    @property
    def most(self) -> float:
        values = [value for curve in self.curves for _, value in curve.points]
        return max([*values, self.limit[0] if self.limit else 0.0], default=0.0)


def draw_timeline(result: Result, limits: Limits, title: str) -> str:
    """Draws the queue and the fleet over time, in panels one below the other."""
    panels = [*make_panels(result, limits)]
    until = max((one.at for one in result.moments), default=0.0)
    across = Axis(0.0, until, LEFT, RIGHT)
    parts = [part for n, one in enumerate(panels) for part in draw_panel(one, across, TOP + 22 + n * (PANEL + GAP))]
    bottom = TOP + 22 + len(panels) * (PANEL + GAP) - GAP
    parts += [draw_time_label(across(at), bottom + 16, label) for at, label in list_round_times(until)]
    return make_document(title, describe(result, limits), bottom + 28, parts)


def draw_time_label(x: float, y: float, label: str) -> str:
    """Draws a label below its moment, but within the edge of the chart."""
    return draw_text(min(x, WIDTH - 6 - LETTER * len(label) / 2), y, label, anchor="middle")


def describe(result: Result, limits: Limits) -> str:
    return (
        f"{result.tasks:,} tasks over {result.hours:.1f} hours; {100 * result.breach_rate:.2f} % waited longer than "
        f"{limits.sla:g} s. At most {result.peak_workers} workers, {result.starts} starts. Panels: age of "
        "the oldest waiting task against the promise, waiting tasks, workers, arrivals per second."
    )


def make_panels(result: Result, limits: Limits) -> Iterator[Panel]:
    moments = result.moments
    yield Panel(
        "oldest waiting task, s",
        (Curve("", thin_out(moments, lambda one: one.oldest_age), "blue"),),
        (limits.sla, f"promised: {limits.sla:g} s"),
    )
    yield Panel("waiting tasks", (Curve("", thin_out(moments, lambda one: float(one.pending)), "blue"),))
    near = limits.max_workers <= 1.25 * max((one.workers for one in moments), default=0)
    yield Panel(
        "workers",
        (
            Curve("ready (filled)", thin_out(moments, lambda one: float(one.ready)), "area", steps=True),
            Curve("asked for (line)", thin_out(moments, lambda one: float(one.workers)), "orange", steps=True),
        ),
        (float(limits.max_workers), f"allowed: {limits.max_workers}") if near else None,
    )
    yield Panel("arrivals per second", (Curve("", measure_arrivals(moments), "blue"),))


def thin_out(moments: Sequence[Moment], value: Callable[[Moment], float]) -> Points:
    """Returns at most MAX_POINTS points: the largest value of each bucket, so that no peak is lost."""
    return [(bucket[0].at, max(map(value, bucket))) for bucket in split_into_buckets(moments)]


def measure_arrivals(moments: Sequence[Moment]) -> Points:
    """Returns the arrivals per second, on average over each bucket."""
    edges = [*(bucket[0] for bucket in split_into_buckets(moments)), *moments[-1:]]
    return [(a.at, (b.arrived - a.arrived) / (b.at - a.at)) for a, b in pairwise(edges) if b.at > a.at]


def split_into_buckets(moments: Sequence[Moment]) -> Iterator[Sequence[Moment]]:
    size = max(1, math.ceil(len(moments) / MAX_POINTS))
    return (moments[n : n + size] for n in range(0, len(moments), size))


def draw_panel(one: Panel, across: Axis, top: float) -> Iterator[str]:
    marks = list_round_values(one.most)
    up = Axis(0.0, marks[-1], top + PANEL, top)
    yield draw_heading(one, top - 10)
    for mark in marks:
        yield draw_line((LEFT, up(mark)), (RIGHT, up(mark)), "grid")
        yield draw_text(LEFT - 6, up(mark) + 4, format_axis_value(mark), anchor="end")
    for curve in one.curves:
        yield from draw_curve(curve, across, up)
    if one.limit is not None:
        value, label = one.limit
        yield draw_line((LEFT, up(value)), (RIGHT, up(value)), "line red dashed")
        yield draw_text(RIGHT, top - 10, label, "red-text", anchor="end")


def draw_heading(one: Panel, y: float) -> str:
    """Draws the names of curves in their colours. For colour-blind readers, the names also describe the form."""
    named = "".join(f', <tspan class="{curve.kind}-text">{escape_text(curve.label)}</tspan>' for curve in one.curves)
    return f'<text class="ink" x="14" y="{y:.1f}">{escape_text(one.about)}{named if one.curves[0].label else ""}</text>'


def draw_curve(curve: Curve, across: Axis, up: Axis) -> Iterator[str]:
    if not curve.points:
        return
    points = [(across(at), up(value)) for at, value in curve.points]
    points.append((across(across.high), points[-1][1]))
    points = add_corners(points) if curve.steps else points
    if curve.kind == "area":
        ground = up(0.0)
        yield draw_path([(points[0][0], ground), *points, (points[-1][0], ground)], "area")
    else:
        yield draw_path(points, f"line {curve.kind}")


# --- breaches against cost --------------------------------------------------------------------------------------------

PLOT = 360.0
MARKS = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)  # percent
LINEAR_BELOW = 0.02  # percent: below it the scale is linear, so that none and a few differ
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point, and the policies that it stands for."""

    x: float
    y: float
    names: tuple[str, ...]
    unbeaten: bool

    @property
    def ours(self) -> bool:
        return OUR_POLICY in self.names

    @property
    def label(self) -> str:
        first = OUR_POLICY if self.ours else self.names[0]
        return first if len(self.names) == 1 else f"{first} + {len(self.names) - 1}"


def draw_frontier(scores: Sequence[Score], title: str) -> str:
    """Draws late tasks against cost: the further down and to the left, the better. The line joins unbeaten policies."""
    solved = all(one.cost_ratio is not None for one in scores)
    costs = [cost_of(one, solved=solved) for one in scores]
    across, marks = choose_cost_axis(costs or [1.0])
    most = next(one for one in MARKS if one >= max((late_percent(one) for one in scores), default=0.0) and one >= 1)
    up = Axis(0.0, most, TOP + PLOT, TOP + 10, lambda value: math.asinh(value / LINEAR_BELOW))
    best = [*judge.find_frontier(scores)]
    line = [(across(cost_of(one, solved=solved)), up(late_percent(one))) for one in best]
    points = [*group_points(scores, best, lambda one: (across(cost_of(one, solved=solved)), up(late_percent(one))))]
    notes = [*list_footnotes(points)]
    unit = "times the least possible" if solved else "worker-hours"
    parts = [
        *draw_grid(across, up, marks, [one for one in MARKS if one <= most]),
        draw_text(14, TOP - 2, "late tasks, %", "ink"),
        draw_text(RIGHT, TOP + PLOT + 34, f"cost, {unit}", "ink", anchor="end"),
        *([draw_path(add_corners(line), "line blue dashed")] if len(line) > 1 else []),
        *draw_points(points),
        *(draw_text(14, TOP + PLOT + 56 + n * LINE, one) for n, one in enumerate(notes)),
    ]
    listed = "; ".join(
        f"{one.policy}: {late_percent(one):.2f} % late, cost {cost_of(one, solved=solved):.2f}"
        f"{' *' if one in best else ''}"
        for one in scores
    )
    about = f"Late tasks in percent against cost, {unit}; * means that no policy is cheaper with as few. {listed}."
    return make_document(title, about, TOP + PLOT + 46 + len(notes) * LINE, parts)


def late_percent(score: Score) -> float:
    return 100 * score.breach_rate


def cost_of(score: Score, *, solved: bool) -> float:
    """Returns the cost as a multiple of the bound; without a bound, in worker-hours."""
    return score.cost_ratio or 0.0 if solved else score.worker_seconds / 3600


def choose_cost_axis(costs: Sequence[float]) -> tuple[Axis, list[float]]:
    low, high = min(costs), max(costs)
    if low > 0 and high > 6 * low:  # logarithmic: otherwise the cheap ones would overlap
        marks = [one for one in list_doublings(low / 2, high * 2) if low / 1.1 <= one <= high * 1.1]
        return Axis(low / 1.1, high * 1.1, LEFT, RIGHT, math.log), marks
    margin = max(0.05 * (high - low), 0.02 * high, 1e-6)
    low, high = low - margin, high + margin
    return Axis(low, high, LEFT, RIGHT), list_multiples(low, high, round_step(high - low, 6))


def list_doublings(low: float, high: float) -> Iterator[float]:
    """Yields 1, 2, 5, 10, …"""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return (one * 10.0**power for power in range(first, last + 1) for one in (1, 2, 5))


def draw_grid(across: Axis, up: Axis, columns: Sequence[float], rows: Sequence[float]) -> Iterator[str]:
    for mark in columns:
        yield draw_line((across(mark), up.begin), (across(mark), up.end), "grid")
        yield draw_text(across(mark), up.begin + 18, format_axis_value(mark), anchor="middle")
    for mark in rows:
        yield draw_line((LEFT, up(mark)), (RIGHT, up(mark)), "grid")
        yield draw_text(LEFT - 6, up(mark) + 4, format_axis_value(mark), anchor="end")


def group_points(
    scores: Sequence[Score], best: Sequence[Score], where: Callable[[Score], tuple[float, float]]
) -> Iterator[ChartPoint]:
    """Yields the points. Scores that the eye cannot tell apart are one point."""

    def spot(one: Score) -> tuple[float, float]:
        x, y = where(one)
        return round(x / 4), round(y / 4)

    for _, group in groupby(sorted(scores, key=spot), key=spot):
        found = list(group)
        x, y = where(found[0])
        yield ChartPoint(x, y, tuple(one.policy for one in found), any(one in best for one in found))


def draw_points(points: Sequence[ChartPoint]) -> Iterator[str]:
    """Draws points and labels. The default policy and the unbeaten ones come first and get the best positions."""
    taken: list[Box] = [(one.x - 4, one.y - 4, one.x + 4, one.y + 4) for one in points]
    drawn: list[str] = []
    for one in sorted(points, key=lambda one: (not one.ours, not one.unbeaten, one.x)):
        box = find_free_position(one, taken)
        taken.append(box)
        right = box[0] >= one.x
        x, y = (box[0] if right else box[2]), box[3] - 3
        if abs(y - 4 - one.y) > 1:
            yield draw_line((one.x, one.y), (x - 1 if right else x + 1, y - 4), "thin")
        kind = "ours" if one.ours else "unbeaten" if one.unbeaten else "beaten"
        text = "ours-text" if one.ours else "ink" if one.unbeaten else "soft"
        dot = f'<circle class="{kind}" cx="{one.x:.1f}" cy="{one.y:.1f}" r="{6 if one.ours else 4}"/>'
        drawn += [f"<g><title>{escape_text(', '.join(one.names))}</title>{dot}</g>"]
        drawn += [draw_text(x, y, one.label, f"label {text}", "start" if right else "end")]
    yield from drawn


def find_free_position(point: ChartPoint, taken: Sequence[Box]) -> Box:
    """Returns the nearest free position for a label; if there is none, beside its point."""
    width = LETTER * len(point.label) * (1.1 if point.ours else 1.0)
    tried = [
        (left, point.y + up - LINE / 2, left + width, point.y + up + LINE / 2)
        for out in (9.0, 24.0, 60.0)
        for up in sorted((n * LINE / 2 for n in range(-24, 25)), key=lambda up: (abs(up), up))
        for left in (point.x + out, point.x - out - width)
    ]
    inside = [one for one in tried if one[0] >= LEFT and one[2] <= WIDTH - 4 and one[1] >= TOP and one[3] <= TOP + PLOT]
    return next((one for one in inside if not any(do_overlap(one, other) for other in taken)), (inside or tried)[0])


def do_overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def list_footnotes(points: Sequence[ChartPoint]) -> Iterator[str]:
    """Yields the policies of points that stand for several, in lines as wide as the chart."""
    for one in points:
        if len(one.names) > 1:
            yield from wrap_text(f"{one.label}: {', '.join(one.names)}", int((WIDTH - 28) / LETTER))


def wrap_text(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    yield line
