"""The report: its numbers are those of the rows, a real browser shows all of it, and it works for all readers."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from browser import Tab, browsing
from made_lake import BEGINS, World, breaches, minutes, percentile, since_begin
from penstock import NotFound, ValidationError
from penstock.charts.plots import choose_times, make_duration_axis
from penstock.formatting import format_duration
from penstock.pipeline.lake import Lake, LakeState
from penstock.pipeline.lake.fingerprint import fingerprint_lake
from penstock.pipeline.report import Report, make_report
from penstock.pipeline.report import report as reports
from penstock.pipeline.report.figures import Figures, PointFigures, QueueFigures, QueueSummary
from penstock.pipeline.report.formatting import format_floor
from penstock.pipeline.report.gather import MAX_POINTS, WIDTHS, choose_width
from penstock.pipeline.report.page import render_page
from shell import penstock

PICTURES = ("waits", "flow", "urgency", "workers", "attempts", "ages", "errors", "kinds")


@pytest.fixture(scope="module")
def report(spark: SparkSession, made: Lake, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(spark, made, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def tab(report: Report) -> Iterator[Tab]:
    with browsing() as tab:
        tab.resize(1280)
        tab.open(report.path)
        yield tab


def of(report: Report, queue: str) -> QueueFigures:
    return next(one for one in report.figures.queues if one.queue == queue)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_all_in_all(report: Report, world: World) -> None:
    assert report.figures.queues[0].queue == "orders"  # the worst comes first
    for queue in world.queues:
        rows, told = world.of(queue.name), of(report, queue.name).summary
        assert told.attempts == len(rows)
        assert told.late == sum(bool(row["late"]) for row in rows)
        assert told.kept == sum(row["late"] is False for row in rows)
        assert told.worst_wait == pytest.approx(max(row["wait_s"] for row in rows))
        assert told.run_seconds == pytest.approx(sum(row["run_s"] for row in rows))
        assert told.failed_seconds == pytest.approx(sum(row["run_s"] for row in rows if row["outcome"] != "done"))
        assert told.retries == sum(row["attempt"] > 1 for row in rows)
        assert told.worker_seconds == pytest.approx(sum(60 * row["workers"] for row in minutes(world, queue)))
        assert told.slas == (None if queue.sla is None else (queue.sla, queue.sla))


def test_over_time(report: Report, world: World) -> None:
    figures, queue = report.figures, world.queues[0]
    spells, width = of(report, "orders").spells, figures.width
    assert (figures.begins, figures.ends, width) == (BEGINS, BEGINS + 13 * 3600, 300)
    assert len(spells) == 13 * 12
    found = minutes(world, queue)
    for n, spell in enumerate(spells):
        own = found[5 * n : 5 * n + 5]
        waits = [r["wait_s"] for r in world.of("orders") if n * width <= since_begin(r["claimed_at"]) < (n + 1) * width]
        assert spell.arrivals == sum(row["arrivals_sampled"] for row in own)
        assert spell.late == sum(row["late"] for row in own)
        assert spell.pending == max(row["pending"] for row in own)
        assert spell.workers == pytest.approx(sum(row["workers"] for row in own) / 5)
        assert spell.wait_p50 == pytest.approx(percentile(waits, 0.5))
        assert spell.wait_p99 == pytest.approx(percentile(waits, 0.99))
        assert spell.urgency is not None
        assert sum(spell.urgency) == pytest.approx(1.0)
        assert spell.urgency[4] == pytest.approx(sum(row["breach"] for row in own) / 5)


def test_breaches_errors_and_kinds(report: Report, world: World) -> None:
    told, rows = of(report, "orders"), world.of("orders")
    expected = breaches(world, world.queues[0])
    assert told.all_breaches == len(expected)
    assert told.breach_seconds == pytest.approx(sum((b["ended"] - b["began"]).total_seconds() for b in expected))
    assert sum(one.late_tasks for one in told.breaches) == told.summary.late
    costs = {one.shape: one.seconds for one in told.errors}
    for shape, cost in costs.items():
        assert cost == pytest.approx(sum(row["run_s"] for row in rows if row["error_shape"] == shape))
    assert [*costs.values()] == sorted(costs.values(), reverse=True)
    for kind in told.kinds:
        runs = [row["run_s"] for row in rows if row["kind"] == kind.kind]
        assert (kind.runs, kind.longest) == (len(runs), max(runs))
        assert kind.p95 == pytest.approx(percentile(runs, 0.95))
    assert sum(one.runs for one in told.attempts) == len(rows)
    assert sum(one.runs for one in told.ages) == told.summary.retries


def test_since_and_some_queues(spark: SparkSession, made: Lake, world: World, tmp_path: Path) -> None:
    since = datetime.fromtimestamp(BEGINS + 6 * 3600, UTC)
    told = make_report(spark, made, tmp_path / "some.html", since=since, queues=["mail"])
    assert [one.queue for one in told.figures.queues] == ["mail"]
    assert told.figures.begins == since.timestamp()
    rows = [row for row in world.of("mail") if row["claimed_at"] >= since]
    assert told.figures.queues[0].summary.attempts == len(rows)
    with pytest.raises(NotFound, match="mial"):
        make_report(spark, made, tmp_path / "none.html", queues=["mial"])
    assert not (tmp_path / "none.html").exists()


@given(st.integers(60, 400 * 86_400))
@settings(deadline=None)
def test_never_more_points_than_can_be_seen(seconds: int) -> None:
    width = choose_width(seconds)
    assert -(-seconds // width) + 1 <= MAX_POINTS
    assert width in WIDTHS


# --- the file ---------------------------------------------------------------------------------------------------------


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    reports.write_page(path, "old")
    path.chmod(0o640)
    assert reports.write_page(path, "new") == 3
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        reports.write_page(path, "half")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "new"


def test_where_it_cannot_be_written(spark: SparkSession, made: Lake, tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "no" / "report.html"):
        with pytest.raises(ValidationError, match="out: "):
            make_report(spark, made, out)


def test_a_page_that_is_up_to_date_says_so(made: Lake, report: Report) -> None:
    place = made.directory / reports.PAGE_NAME
    assert not reports.up_to_date(made)
    reports.write_page(place, render_page(report.figures, fingerprint_lake(made)))
    assert reports.up_to_date(made)
    reports.write_page(place, render_page(report.figures))  # a page of some queues or of some days
    assert not reports.up_to_date(made)


# --- text from elsewhere ----------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def test_names_and_errors_are_only_text(report: Report, world: World) -> None:
    text = report.path.read_text("utf-8")
    found = Tags(text).found
    assert found.count("script") == 1  # the page's own
    assert not {"b", "i", "img", "iframe", "object"} & {*found}
    assert "&lt;script&gt;alert(" in text
    assert "&lt;b&gt;odd&lt;/b&gt; &amp; more" in text
    assert not re.search(r"https?://", text)


def test_the_browser_runs_none_of_it(tab: Tab) -> None:
    assert (
        tab.ask("[...document.querySelectorAll('section h2')].map(one => one.textContent)")[-1] == "<b>odd</b> & more"
    )
    assert tab.ask("document.querySelectorAll('script').length") == 1


# --- in a browser -----------------------------------------------------------------------------------------------------


def test_it_complains_of_nothing_and_fetches_nothing(tab: Tab, report: Report) -> None:
    assert tab.complaints == []
    assert [one for one in tab.requests if not one.startswith("data:")] == [report.path.as_uri()]


def test_every_picture_is_there_with_its_marks_inside(tab: Tab, report: Report) -> None:
    """A picture without data says so in words."""
    script = """[...document.querySelectorAll('figure')].map(figure => ({
        section: figure.closest('section').id, key: figure.dataset.picture,
        title: figure.querySelector('h3').textContent,
        none: !!figure.querySelector('.none'), rows: figure.querySelectorAll('tbody tr').length,
        marks: [...figure.querySelectorAll('svg.marks, .bars svg')].map(svg => {
            const room = svg.getBoundingClientRect()
            const marks = [...svg.querySelectorAll('path, rect')].map(one => one.getBoundingClientRect())
            const odd = marks.filter(one => one.left < room.left - 2 || one.right > room.right + 2
                || one.top < room.top - 2 || one.bottom > room.bottom + 2)
            return [marks.length, odd.length, room.width, room.height]
        })}))"""
    figures = tab.ask(script)
    assert [(one["section"], one["key"]) for one in figures] == [
        (f"q{n}", key) for n in range(len(report.figures.queues)) for key in PICTURES
    ]
    assert [one["key"] for one in figures if one["none"]] == ["urgency"]  # of a queue without a promise
    for one in figures:
        for marks, outside, width, height in one["marks"]:
            assert marks > 0, one["title"]
            assert outside == 0, one["title"]
            assert min(width, height) > 5
        assert one["none"] or one["rows"] > 0


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(tab: Tab, width: int) -> None:
    tab.resize(width)
    try:
        assert tab.ask("document.documentElement.scrollWidth") <= width
        assert tab.ask("document.querySelector('meta[name=viewport]').content").startswith("width=device-width")
        tab.ask("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert tab.ask("document.documentElement.scrollWidth") <= width
        assert tab.ask("Math.min(...[...document.querySelectorAll('.plot .marks')].map(one => one.clientWidth))") > 200
        small = "[...document.querySelectorAll('body *')].map(one => parseFloat(getComputedStyle(one).fontSize))"
        assert tab.ask(f"Math.min(...{small})") >= 12  # letters do not become smaller with the picture
    finally:
        tab.ask("document.querySelectorAll('details').forEach(one => { one.open = false })")
        tab.resize(1280)


CONTRAST = """(() => {
    const numbers = text => text.match(/[\\d.]+/g).map(Number)
    const light = text => numbers(text).slice(0, 3).map(one => one / 255)
        .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, n) => sum + one * [0.2126, 0.7152, 0.0722][n], 0)
    const ground = one => {
        for (; one; one = one.parentElement) {
            const found = getComputedStyle(one).backgroundColor
            if ((numbers(found)[3] ?? 1) > 0) return found
        }
        return 'rgb(255, 255, 255)'
    }
    const texts = [...document.querySelectorAll('body *')].filter(one => one.children.length === 0
        && one.textContent.trim() && one.tagName !== 'SCRIPT')
    return Math.min(...texts.map(one => {
        const pair = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a)
        return (pair[0] + 0.05) / (pair[1] + 0.05)
    }))
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(tab: Tab, scheme: str) -> None:
    tab.dress(scheme)
    try:
        ground = tab.ask("getComputedStyle(document.body).backgroundColor")
        dark = sum(map(int, re.findall(r"\d+", ground)[:3])) < 384
        assert dark is (scheme == "dark")
        assert tab.ask(CONTRAST) >= 4.5
    finally:
        tab.dress("light")


def test_the_pointer_finds_the_row(tab: Tab) -> None:
    plot = "document.querySelector('#q0-waits .plot .marks')"
    tab.ask(f"{plot}.scrollIntoView({{block: 'center'}})")
    room = tab.ask(f"(() => {{ const one = {plot}.getBoundingClientRect(); return [one.left, one.top, one.width] }})()")
    tab.point(room[0] + room[2] * (20.5 / 156), room[1] + 40)
    told = tab.ask("document.querySelector('#q0-waits .tip').innerText")
    row = tab.ask("[...document.querySelector('#q0-waits tr[data-n=\"20\"]').cells].map(one => one.textContent)")
    assert told.split("\n") == [
        row[0],
        *(f"{name}: {cell}" for name, cell in zip(("p50", "p95", "p99", "SLA", "late"), row[1:], strict=True)),
    ]
    assert tab.ask("document.querySelector('#q0-waits .cursor').hidden") is False
    tab.point(1, 1)
    assert tab.ask("document.querySelector('#q0-waits .tip').hidden") is True


def test_so_do_the_arrow_keys(tab: Tab) -> None:
    tab.ask("document.querySelector('#q0-workers .plot').focus()")
    for _ in range(3):
        tab.press("ArrowRight")
    told = tab.ask("document.querySelector('#q0-workers .tip b').textContent")
    assert told == tab.ask("document.querySelector('#q0-workers tr[data-n=\"3\"]').cells[0].textContent")
    tab.press("Escape")
    assert tab.ask("document.querySelector('#q0-workers .tip').hidden") is True


def test_screen_readers_get_the_numbers(tab: Tab) -> None:
    assert tab.ask("document.documentElement.lang") == "en"
    assert tab.ask("document.title").startswith("Penstock")
    labels = tab.ask(
        "[...document.querySelectorAll('.plot, .bars, section')].map(one => one.getAttribute('aria-label'))"
    )
    assert labels
    assert all(labels)
    assert tab.ask("[...document.querySelectorAll('h1, h2, h3')].map(one => +one.tagName[1])")[0] == 1
    assert tab.ask("document.body.innerText.match(/UTC/g).length") == 1  # stated once


def test_a_foreign_script_would_not_run(tab: Tab) -> None:
    """This holds even if an attacker found a way to write one into the page."""
    seen = len(tab.complaints)
    tab.ask("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned = 1'}))")
    assert tab.ask("window.pwned ?? null") is None
    assert any("Content Security Policy" in one for one in tab.complaints[seen:])
    del tab.complaints[seen:]


def test_the_answer_stands_on_top(tab: Tab, report: Report) -> None:
    top = tab.ask("document.querySelector('header').innerText")
    assert "Did we keep our promise" in top
    assert "Not always." in top
    told = of(report, "orders").summary
    card = tab.ask("document.querySelector('.card').innerText")
    assert format_floor(told.kept, told.kept + told.late).replace(" ", "\xa0") in card
    assert f"{told.late:,} of {told.kept + told.late:,} starts were late" in card


# --- odd pages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "empty")
    with lake.writing():
        lake.begin(LakeState(id="empty", system="1", database=1))
    return lake


def test_an_empty_lake_has_a_page_that_says_so(spark: SparkSession, empty: Lake, tab: Tab) -> None:
    told = make_report(spark, empty)
    assert told.verdict == "There is nothing to report yet."
    assert "There is nothing to report yet" in told.path.read_text("utf-8")


def lone(**changes: Any) -> Figures:
    return Figures(0, 60, 60, (QueueFigures("q", QueueSummary(**changes), (PointFigures(0),)),))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "nothing was started"),
        ({"attempts": 1, "wait_p95": 3.0}, "nothing was promised"),
        ({"attempts": 1, "kept": 1, "slas": (30.0, 60.0)}, "30&nbsp;s to 60&nbsp;s, as promised at the time"),
        ({"attempts": 3, "kept": 2, "late": 1, "slas": (30.0, 30.0), "worst_late_by": 0.02}, "66.66&nbsp;%"),
        ({"kept": 10**6, "late": 1, "slas": (30.0, 30.0)}, "99.99&nbsp;%"),  # never rounded up
    ],
)
def test_reports_of_few_tasks(changes: dict[str, Any], says: str) -> None:
    text = render_page(lone(**changes))
    assert says.replace("60&nbsp;s", format_duration(60).replace(" ", "&nbsp;")) in text
    Tags(text)


def test_axes() -> None:
    assert [said for _, said in make_duration_axis(40.0, 30.0)[0]] == ["0 s", "20 s", "40 s"]
    marks, bent = make_duration_axis(5000.0, 30.0)
    assert bent is not float
    assert marks[0][0] == 0
    assert marks[-1][0] >= 5000
    assert [said for _, said in choose_times(BEGINS, BEGINS + 86_400)] == ["12:00", "18:00", "17 Nov", "06:00", "12:00"]


# --- in a shell -------------------------------------------------------------------------------------------------------


def test_the_shell_refuses_before_spark_starts(tmp_path: Path) -> None:
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    nothing = penstock("pipeline", "report", "--lake", str(tmp_path / "none"), env=path)
    assert nothing.code != 0
    assert "there is none" in nothing.err
    odd = penstock("pipeline", "report", "--lake", str(tmp_path), "--since", "yesterday", "--json", env=path)
    assert odd.code == 2
    assert "since" in odd.err
    bad = penstock("pipeline", "evidence", "--lake", str(tmp_path / "none"), env=path)
    assert "there is none" in bad.err
    unsaid = penstock("pipeline", "profile", dsn="host=/nonexistent", env=path)
    assert "no lake is given" in unsaid.err
