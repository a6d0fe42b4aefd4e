"""The charts of a queue: what each shows, its caption, and the table behind it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.charts.plots import (
    ChartBar,
    Plot,
    Series,
    Sheet,
    draw_bars,
    draw_plot,
    make_count_axis,
    make_duration_axis,
    make_percent_axis,
)
from penstock.formatting import format_count, format_duration
from penstock.pipeline.lake.schemas import AGES, URGENCIES
from penstock.pipeline.learn.wilson import wilson_interval
from penstock.pipeline.report.figures import MAX_ATTEMPTS, Breach, Figures, PointFigures, QueueFigures, TryFigures
from penstock.pipeline.report.formatting import format_hours, format_minute, format_second

URGENCY_WORDS = ("below 60 %", "60 – 80 %", "80 – 90 %", "90 – 100 %", "late")  # of the SLA


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page. `drawn` is markup; if it is empty, there is nothing to show, and `about` says why."""

    key: str
    title: str
    about: str
    drawn: str
    sheets: tuple[tuple[str, Sheet], ...] = ()


def make_charts(one: QueueFigures, figures: Figures) -> Iterator[Chart]:
    yield chart_waits(one, figures)
    yield chart_flow(one, figures)
    yield chart_urgency(one, figures)
    yield chart_workers(one, figures)
    yield chart_attempts(one.attempts)
    yield chart_ages(one.ages)
    yield chart_errors(one)
    yield chart_kinds(one)


def draw_plots(figures: Figures, plots: Iterable[Plot], about: str) -> str:
    return "".join(draw_plot(plot, figures.begins, figures.ends, f"{plot.name}. {about}") for plot in plots)


def find_highest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def format_values(values: Iterable[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in values]


def format_durations(values: Iterable[float | None]) -> list[str]:
    return ["–" if value is None else format_duration(value) for value in values]


def make_sheet(spells: Sequence[PointFigures], **columns: Sequence[str]) -> Sheet:
    """Returns a table with a row for every point that has figures."""
    names = ("time", *(name.replace("_", " ") for name in columns))
    lines = enumerate(zip(spells, *columns.values(), strict=True))
    rows = ((n, (format_minute(spell.at), *cells)) for n, (spell, *cells) in lines)
    return Sheet(names, tuple((n, cells) for n, cells in rows if any(cell not in ("–", "0") for cell in cells[1:])))


def chart_waits(one: QueueFigures, figures: Figures) -> Chart:
    spells = one.spells
    series = (
        Series("p99", "three", tuple(spell.wait_p99 for spell in spells)),
        Series("p95", "two", tuple(spell.wait_p95 for spell in spells)),
        Series("p50", "one", tuple(spell.wait_p50 for spell in spells)),
        Series("SLA", "promise", tuple(spell.sla for spell in spells), steps=True),
    )
    promise = find_highest(spell.sla for spell in spells) or None
    most = find_highest(value for each in series for value in each.values)
    if not any(value is not None for each in series[:3] for value in each.values):
        return Chart("waits", "Wait against the promise", "Nothing was started.", "")
    marks, bent = make_duration_axis(most, promise)
    about = f"The longest p99 was {format_duration(find_highest(series[0].values))}"
    about += f"; promised: {format_duration(promise)}." if promise else "; nothing was promised."
    if bent is not float:
        about += " The axis is compressed upwards."
    shown = series if promise else series[:3]
    table = make_sheet(
        spells,
        p50=format_durations(series[2].values),
        p95=format_durations(series[1].values),
        p99=format_durations(series[0].values),
        SLA=format_durations(series[3].values),
        late=[f"{spell.late:,}" for spell in spells],
    )
    plot = Plot("from due to start", shown, marks, bent)
    return Chart("waits", "Wait against the promise", about, draw_plots(figures, [plot], about), (("Table", table),))


def chart_flow(one: QueueFigures, figures: Figures) -> Chart:
    spells, minutes = one.spells, figures.width / 60
    came = tuple(None if spell.arrivals is None else spell.arrivals / minutes for spell in spells)
    left = tuple(
        None if spell.arrivals is None and not spell.finishes else spell.finishes / minutes for spell in spells
    )
    backlog = tuple(None if spell.pending is None else float(spell.pending) for spell in spells)
    plots = [
        Plot(
            "a minute",
            (Series("arrived", "one", came), Series("attempts finished", "three", left)),
            make_count_axis(find_highest((*came, *left))),
        ),
        Plot(
            "waiting, at most",
            (Series("waiting", "wash", backlog, filled=True),),
            make_count_axis(find_highest(backlog)),
        ),
    ]
    total = sum(spell.arrivals or 0 for spell in spells)
    about = f"{format_count(total, 'task')} came; at most {find_highest(backlog):,.0f} waited at once."
    table = make_sheet(
        spells,
        arrived=format_values(spell.arrivals for spell in spells),
        finished=format_values(spell.finishes for spell in spells),
        failed=format_values(spell.failures for spell in spells),
        waiting=format_values(backlog),
        oldest_waiting=format_durations(spell.oldest_age for spell in spells),
    )
    return Chart("flow", "Arrivals, drain and backlog", about, draw_plots(figures, plots, about), (("Table", table),))


def chart_urgency(one: QueueFigures, figures: Figures) -> Chart:
    spells, span = one.spells, figures.ends - figures.begins
    shares = [None if spell.urgency is None else spell.urgency for spell in spells]
    title = "Urgency and breaches"
    if not any(shares) and not one.breaches:
        return Chart("urgency", title, "Nothing was promised, so nothing is urgent.", "")
    series = tuple(
        Series(word, kind, tuple(None if each is None else each[n] for each in shares))
        for n, (word, kind) in enumerate(zip(URGENCY_WORDS, URGENCIES, strict=True))
    )
    spans = tuple(
        (max(0.0, (each.began - figures.begins) / span), min(1.0, (each.ended - figures.begins) / span))
        for each in one.breaches
    )
    plot = Plot("age of the oldest, of the SLA:", series, make_percent_axis(), stacked=True, spans=spans)
    about = "No breach."
    if one.all_breaches:
        lasted = format_duration(one.breach_seconds) + (" together" if one.all_breaches > 1 else "")
        about = f"{format_count(one.all_breaches, 'breach', 'breaches')}, {lasted} (red on top)."
    table = make_sheet(
        spells,
        **{
            word: ["–" if each is None else f"{100 * each[n]:.3g} %" for each in shares]
            for n, word in enumerate(URGENCY_WORDS)
        },
    )
    tables = (("Table", table), *([("Breaches", list_breaches(one.breaches))] if one.breaches else []))
    return Chart("urgency", title, about, draw_plots(figures, [plot], about), tables)


def list_breaches(found: Sequence[Breach]) -> Sheet:
    """Returns the table of breaches. Its rows have negative numbers, because no point of the chart belongs to them."""
    return Sheet(
        ("began", "lasted", "longest wait", "late starts"),
        tuple(
            (
                -1 - n,
                (
                    format_second(one.began),
                    format_duration(one.ended - one.began),
                    "–" if one.worst_age is None else format_duration(one.worst_age),
                    f"{one.late_tasks:,}",
                ),
            )
            for n, one in enumerate(found)
        ),
    )


def chart_workers(one: QueueFigures, figures: Figures) -> Chart:
    values = tuple(spell.workers for spell in one.spells)
    if not any(value is not None for value in values):
        return Chart("workers", "Workers", "No sample says how many there were.", "")
    plot = Plot(
        "workers, on average", (Series("workers", "wash", values, filled=True),), make_count_axis(find_highest(values))
    )
    paid = one.summary.worker_seconds or 0.0
    about = f"{format_hours(paid)} in all; at most {find_highest(values):,.3g}, on average of a point."
    table = make_sheet(one.spells, workers=format_values(values))
    return Chart("workers", "Workers", about, draw_plots(figures, [plot], about), (("Table", table),))


# --- what was tried ---------------------------------------------------------------------------------------------------


def chart_attempts(tries: Sequence[TryFigures]) -> Chart:
    title = "Success by attempt"
    if not tries:
        return Chart("attempts", title, "Nothing was tried.", "")
    last = {MAX_ATTEMPTS: f"{MAX_ATTEMPTS} and later"}
    named = [(f"attempt {last.get(one.at, one.at)}", one) for one in tries]
    again = sum(one.runs for one in tries if one.at > 1)
    spent = sum(one.seconds for one in tries if one.at > 1)
    about = (
        "Nothing was tried twice."
        if not again
        else f"{format_count(again, 'retry', 'retries')} took {format_hours(spent)}."
    )
    return chart_tries("attempts", title, about, named)


def chart_ages(tries: Sequence[TryFigures]) -> Chart:
    title = "Success of retries by age of the task"
    if not tries:
        return Chart("ages", title, "Nothing was tried twice.", "")
    ends = dict(zip(AGES, (*AGES[1:], None), strict=True))
    named = [(format_range(one.at, ends.get(one.at)), one) for one in tries]
    about = "Since it was pushed. The thin line: where the share surely is, 19 times of 20."
    return chart_tries("ages", title, about, named)


def format_range(begin: int, end: int | None) -> str:
    return (
        f"over {format_duration(begin)}"
        if end is None
        else f"{format_duration(begin)} – {format_duration(end)}"
        if begin
        else f"< {format_duration(end)}"
    )


def chart_tries(key: str, title: str, about: str, named: Sequence[tuple[str, TryFigures]]) -> Chart:
    bars, lines = [], []
    for n, (name, one) in enumerate(named):
        least, most = wilson_interval(one.successes, one.runs)
        share = one.successes / one.runs
        bars.append(ChartBar(name, share, f"{100 * share:.1f} % of {one.runs:,}", least=least, most=most))
        doubt = f"{100 * least:.1f} – {100 * most:.1f} %"
        cells = (name, f"{one.runs:,}", f"{one.successes:,}", f"{100 * share:.1f} %", doubt, format_hours(one.seconds))
        lines.append((n, cells))
    columns = ("tried", "tries", "successes", "share", "surely between", "took")
    return Chart(key, title, about, draw_bars(bars, f"{title}. {about}"), (("Table", Sheet(columns, (*lines,))),))


def chart_errors(one: QueueFigures) -> Chart:
    title = "Errors by what they cost"
    if not one.errors:
        return Chart("errors", title, "Nothing failed.", "")
    most = find_highest(each.seconds for each in one.errors)
    bars = [
        ChartBar(
            each.error_class or "error",
            each.seconds / most if most else 0.0,
            f"{format_hours(each.seconds)}, {format_count(each.runs, 'run')}",
            note=each.shape,
        )
        for each in one.errors
    ]
    seconds = sum(each.seconds for each in one.errors)
    about = f"Runs that ended with one of these took {format_hours(seconds)}."
    lines = tuple(
        (
            n,
            (
                each.shape or each.error_class,
                each.fingerprint,
                f"{each.runs:,}",
                f"{each.tasks:,}",
                format_hours(each.seconds),
            ),
        )
        for n, each in enumerate(one.errors)
    )
    table = Sheet(("error", "fingerprint", "runs", "tasks", "cost"), lines)
    return Chart("errors", title, about, draw_bars(bars, f"{title}. {about}"), (("Table", table),))


def chart_kinds(one: QueueFigures) -> Chart:
    title = "Slowest kinds"
    if not one.kinds:
        return Chart("kinds", title, "Nothing ran.", "")
    most = find_highest(each.p95 for each in one.kinds)
    bars = [
        ChartBar(
            each.kind,
            each.p95 / most if most else 0.0,
            f"p95 {format_duration(each.p95)}, p50 {format_duration(each.p50)}",
        )
        for each in one.kinds
    ]
    about = "By the run time that 95 % of their attempts stay below."
    lines = tuple(
        (
            n,
            (
                each.kind,
                f"{each.runs:,}",
                format_duration(each.p50),
                format_duration(each.p95),
                format_duration(each.longest),
                format_hours(each.seconds),
            ),
        )
        for n, each in enumerate(one.kinds)
    )
    table = Sheet(("kind", "runs", "p50", "p95", "longest", "in all"), lines)
    return Chart("kinds", title, about, draw_bars(bars, f"{title}. {about}"), (("Table", table),))
