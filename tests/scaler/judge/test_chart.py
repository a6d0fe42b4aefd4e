"""Charts are XML with finite numbers within the page, and show every peak and every name."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.charts import axes
from penstock.scaler.judge import chart
from penstock.scaler.judge.judge import Score
from penstock.scaler.judge.simulate import Moment, Result, simulate
from penstock.scaler.judge.traces import named
from penstock.scaler.policy.other_tools import Static
from penstock.scaler.policy.policies import POLICIES
from penstock.scaler.policy.signals import Limits

SVG = "{http://www.w3.org/2000/svg}"
LIMITS = Limits(sla=30.0, max_workers=10)
SCORE = Score("steps", "one", 1, 1000, 0.0, 0.0, 1.2, 7200.0, 0.8, 5, 1.0, 0.1, 2.0, 9.0, 7, 10)
QUICK = settings(max_examples=60, deadline=None)


def parsed(svg: str) -> ET.Element:
    """Parses a chart: one document with a description, no references and no scripts, and all of it within the page."""
    root = ET.fromstring(svg)
    assert [child.tag for child in list(root)[:3]] == [f"{SVG}title", f"{SVG}desc", f"{SVG}style"]
    assert root.get("role") == "img"
    assert "prefers-color-scheme: dark" in svg
    assert not re.search(r"<script|href|url\(|@import|\bnan\b|\binf\b", svg)
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for element in root.iter():
        for x, y in points(element):
            assert -1 <= x <= width + 1, ET.tostring(element)
            assert -1 <= y <= height + 1, ET.tostring(element)
    return root


def points(element: ET.Element) -> list[tuple[float, float]]:
    if element.tag == f"{SVG}path":
        numbers = [float(one) for one in re.findall(r"-?[0-9.]+", element.get("d") or "")]
        return [*zip(numbers[::2], numbers[1::2], strict=True)]
    pairs = (("x", "y"), ("x1", "y1"), ("x2", "y2"), ("cx", "cy"), ("width", "height"))
    return [(float(element.get(x) or 0), float(element.get(y) or 0)) for x, y in pairs]


def texts(root: ET.Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def lines(root: ET.Element, kind: str) -> list[ET.Element]:
    return [one for one in root.iter(f"{SVG}path") if one.get("class") == kind]


def result(moments: tuple[Moment, ...]) -> Result:
    return Result(100, 3, 7200.0, 3600.0, 5, 2, 1.0, 7, (), moments)


def moments(count: int, **peaks: tuple[int, float]) -> tuple[Moment, ...]:
    """Makes equal moments, except for the given peaks (when, how much)."""
    found = [Moment(5.0 * n, 2, 3.0, 4, 5, 10 * n) for n in range(count)]
    for name, (n, value) in peaks.items():
        found[n] = replace(found[n], **{name: value})  # type: ignore[arg-type]
    return tuple(found)


# -- Over time --------------------------------------------------------------------------------------------------------


def test_a_simulation() -> None:
    trace = named("spikes", duration=1200, tasks=1000)
    root = parsed(chart.draw_timeline(simulate(trace, Static(3), LIMITS), LIMITS, "static on spikes"))
    said = texts(root)
    assert said[0] == "static on spikes"
    assert {"oldest waiting task, s", "waiting tasks", "workers, ready (filled), asked for (line)"} <= {*said}
    assert {"arrivals per second", "promised: 30 s", "0 min", "5 min"} <= {*said}
    assert len(lines(root, "line blue")) == 3
    assert len(lines(root, "area")) == len(lines(root, "line orange")) == 1
    assert any(one.get("class") == "line red dashed" for one in root.iter(f"{SVG}line"))


def test_no_peak_vanishes_and_no_picture_is_large() -> None:
    """In a day with a look every five seconds, one look at which the oldest task was late keeps its height."""
    svg = chart.draw_timeline(result(moments(17_280, oldest_age=(9_001, 100.0))), LIMITS, "a day")
    root = parsed(svg)
    oldest, *_ = lines(root, "line blue")
    drawn = points(oldest)
    assert len(drawn) <= chart.MAX_POINTS + 1
    top = chart.TOP + 22
    assert min(y for _, y in drawn) == pytest.approx(top, abs=0.1)  # 100 is the highest mark
    assert len(svg) < 200_000
    assert {"0 h", "12 h"} <= {*texts(root)}


def test_arrivals_are_counted_over_what_was_left_out() -> None:
    found = chart.measure_arrivals(moments(5000))
    assert {round(rate, 9) for _, rate in found} == {2.0}
    assert len(found) <= chart.MAX_POINTS


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_anything_happened(count: int) -> None:
    root = parsed(chart.draw_timeline(result(moments(count)), LIMITS, "short"))
    assert "0 s" in texts(root)


def test_the_limit_is_drawn_where_it_is_near() -> None:
    near, far = (
        texts(parsed(chart.draw_timeline(result(moments(10)), replace(LIMITS, max_workers=most), "t")))
        for most in (6, 60)
    )
    assert "allowed: 6" in near
    assert not any(text.startswith("allowed") for text in far)


@QUICK
@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e8), st.integers(0, 10**5)), max_size=30),
    st.floats(0.001, 1e8),
)
def test_any_numbers(seen: list[tuple[int, float, int]], sla: float) -> None:
    found = tuple(Moment(5.0 * n, p, age, w, w, p * n) for n, (p, age, w) in enumerate(seen))
    parsed(chart.draw_timeline(result(found), Limits(sla=sla), "any"))


# -- Titles from outside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["<script>&\"'", "a\x00b\x1b[1m\nc", "\udc80", "", "word " * 40, "x" * 300])
def test_titles_are_text(title: str) -> None:
    svg = chart.draw_frontier([replace(SCORE, policy=title)], title)
    root = parsed(svg)
    svg.encode("utf-8")
    shown = root.find(f"{SVG}title")
    assert shown is not None
    assert (shown.text or "") == "".join(one if one.isprintable() else "\ufffd" for one in title)
    headings = [one for one in root.iter(f"{SVG}text") if one.get("class") == "ink title"]
    assert len(headings) <= 2
    assert all(len(one.text or "") <= chart.MAX_TITLE for one in headings)


# -- Breaches against cost --------------------------------------------------------------------------------------------


def test_ours_stands_out_and_the_best_are_joined() -> None:
    scores = [
        replace(SCORE, policy="cheap", breach_rate=0.2, cost_ratio=1.05),
        replace(SCORE, policy="deadline", breach_rate=0.0, cost_ratio=1.3),
        replace(SCORE, policy="dear", breach_rate=0.0001, cost_ratio=2.4),
    ]
    root = parsed(chart.draw_frontier(scores, "steps"))
    circles = {one.get("class"): one for one in root.iter(f"{SVG}circle")}
    assert {*circles} == {"unbeaten", "ours", "beaten"}
    ((best, *_, last),) = [points(one) for one in lines(root, "line blue dashed")]
    assert points(circles["unbeaten"])[3] == best
    assert points(circles["ours"])[3] == last
    zero, some = points(circles["ours"])[3][1], points(circles["beaten"])[3][1]
    assert zero - some > 10  # one in ten thousand is not zero
    assert {"cheap", "deadline", "dear", "0", "0.01", "0.1", "1", "10"} <= {*texts(root)}
    about = root.find(f"{SVG}desc")
    assert about is not None
    assert "deadline: 0.00 % late, cost 1.30 *" in (about.text or "")


def test_equal_scores_share_a_point_and_are_named_below() -> None:
    root = parsed(chart.draw_frontier([replace(SCORE, policy=name) for name in POLICIES], "all the same"))
    assert len([*root.iter(f"{SVG}circle")]) == 1
    said = texts(root)
    assert f"deadline + {len(POLICIES) - 1}" in said
    below = " ".join(said)
    assert all(name in below for name in POLICIES)


def test_without_a_bound_it_is_what_was_paid() -> None:
    scores = [replace(SCORE, policy=f"p{n}", cost_ratio=None, worker_seconds=3600.0 * n) for n in (1, 2, 3)]
    assert "cost, worker-hours" in texts(parsed(chart.draw_frontier(scores, "t")))


def test_costs_far_apart_are_told_by_factors() -> None:
    scores = [replace(SCORE, policy=f"p{n}", cost_ratio=cost) for n, cost in enumerate((1.0, 1.5, 2.0, 90.0))]
    root = parsed(chart.draw_frontier(scores, "t"))
    assert {"1", "2", "5", "10", "20", "50"} <= {*texts(root)}
    x = sorted(points(one)[3][0] for one in root.iter(f"{SVG}circle"))
    assert x[1] - x[0] > 20


SCORES = st.lists(
    st.tuples(st.sampled_from([*POLICIES]), st.floats(0, 1), st.floats(0.01, 50) | st.floats(1, 2)),
    max_size=22,
    unique_by=lambda one: one[0],
)


@QUICK
@given(SCORES)
def test_any_scores(seen: list[tuple[str, float, float]]) -> None:
    scores = [replace(SCORE, policy=name, breach_rate=late, cost_ratio=cost) for name, late, cost in seen]
    below = " ".join(texts(parsed(chart.draw_frontier(scores, "any"))))
    assert all(name in below for name, _, _ in seen)


def test_names_do_not_cover_each_other() -> None:
    """As many names as there are policies lie as close together as they really do."""
    scores = [
        replace(SCORE, policy=name, breach_rate=(n % 3) * 0.0004, cost_ratio=1.1 + 0.04 * n)
        for n, name in enumerate(POLICIES)
    ]
    labels = [
        one
        for one in parsed(chart.draw_frontier(scores, "heap")).iter(f"{SVG}text")
        if one.get("class", "")[:5] == "label"
    ]
    boxes = []
    for one in labels:
        x, y, wide = float(one.get("x") or 0), float(one.get("y") or 0), chart.LETTER * len(one.text or "")
        left = x if one.get("text-anchor") == "start" else x - wide
        boxes.append((left, y - 9, left + wide, y))
    assert len(boxes) > 15
    assert not any(chart.do_overlap(a, b) for n, a in enumerate(boxes) for b in boxes[:n])


# -- Round numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (0, [0, 1]),
        (1, [0, 0.5, 1]),
        (30, [0, 10, 20, 30]),
        (31, [0, 20, 40]),
        (0.07, [0, 0.05, 0.1]),
        (1e6, [0, 5e5, 1e6]),
    ],
)
def test_marks_are_round(most: float, marks: list[float]) -> None:
    assert axes.list_round_values(most) == pytest.approx(marks)


@given(st.floats(1e-6, 1e12))
def test_marks_reach_the_most(most: float) -> None:
    marks = axes.list_round_values(most)
    assert 2 <= len(marks) <= 4
    assert marks[-1] >= most * (1 - 1e-6)
    assert all(math.isfinite(one) for one in marks)


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (4, ["0 s", "1 s", "2 s", "3 s", "4 s"]),
        (1200, ["0 min", "5 min", "10 min", "15 min", "20 min"]),
        (10_800, ["0 h", "0.5 h", "1 h", "1.5 h", "2 h", "2.5 h", "3 h"]),
        (21_610, ["0 h", "1 h", "2 h", "3 h", "4 h", "5 h", "6 h"]),
        (30 * 86_400, ["0 d", "5 d", "10 d", "15 d", "20 d", "25 d", "30 d"]),
    ],
)
def test_times_are_those_of_a_clock(until: float, said: list[str]) -> None:
    assert [word for _, word in chart.list_round_times(until)] == said


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.01, "0.01"), (9999, "9999"), (20_000, "20 k"), (1.5e6, "1.5 M")]
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert axes.format_axis_value(value) == said
