"""Which pictures a queue has, what they say in words, and the table behind each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.pipeline.figures import MOST_ATTEMPTS, Breach, Figures, QueueFigures, Spell, Tries
from penstock.pipeline.pictures import (
    Bar,
    Plot,
    Series,
    Sheet,
    bars_markup,
    counts,
    lengths,
    percents,
    plot_markup,
)
from penstock.pipeline.schemas import AGES, URGENCIES
from penstock.pipeline.spoken import exact, hours, length, many, moment
from penstock.pipeline.wilson import wilson

URGENCY_WORDS = ("below 60 %", "60 – 80 %", "80 – 90 %", "90 – 100 %", "late")  # of the SLA


@dataclass(frozen=True, slots=True)
class Picture:
    """`drawn` is markup; without it there is nothing to see, and `about` says why."""

    key: str
    title: str
    about: str
    drawn: str
    sheets: tuple[tuple[str, Sheet], ...] = ()


def pictures(one: QueueFigures, figures: Figures) -> Iterator[Picture]:
    yield waits(one, figures)
    yield flow(one, figures)
    yield urgency(one, figures)
    yield workers(one, figures)
    yield attempts(one.attempts)
    yield ages(one.ages)
    yield errors(one)
    yield kinds(one)


def over_time(figures: Figures, plots: Iterable[Plot], about: str) -> str:
    return "".join(plot_markup(plot, figures.begins, figures.ends, f"{plot.name}. {about}") for plot in plots)


def highest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def column(values: Iterable[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in values]


def lasting(values: Iterable[float | None]) -> list[str]:
    return ["–" if value is None else length(value) for value in values]


def sheet(spells: Sequence[Spell], **columns: Sequence[str]) -> Sheet:
    """A row for every moment of which anything is known."""
    names = ("time", *(name.replace("_", " ") for name in columns))
    lines = enumerate(zip(spells, *columns.values(), strict=True))
    told = ((n, (moment(spell.at), *cells)) for n, (spell, *cells) in lines)
    return Sheet(names, tuple((n, cells) for n, cells in told if any(cell not in ("–", "0") for cell in cells[1:])))


def waits(one: QueueFigures, figures: Figures) -> Picture:
    spells = one.spells
    series = (
        Series("p99", "three", tuple(spell.wait_p99 for spell in spells)),
        Series("p95", "two", tuple(spell.wait_p95 for spell in spells)),
        Series("p50", "one", tuple(spell.wait_p50 for spell in spells)),
        Series("SLA", "promise", tuple(spell.sla for spell in spells), steps=True),
    )
    promise = highest(spell.sla for spell in spells) or None
    most = highest(value for each in series for value in each.values)
    if not any(value is not None for each in series[:3] for value in each.values):
        return Picture("waits", "Wait against the promise", "Nothing was started.", "")
    marks, bent = lengths(most, promise)
    about = f"The longest p99 was {length(highest(series[0].values))}"
    about += f"; promised: {length(promise)}." if promise else "; nothing was promised."
    if bent is not float:
        about += " The axis is compressed upwards."
    shown = series if promise else series[:3]
    table = sheet(
        spells,
        p50=lasting(series[2].values),
        p95=lasting(series[1].values),
        p99=lasting(series[0].values),
        SLA=lasting(series[3].values),
        late=[f"{spell.late:,}" for spell in spells],
    )
    plot = Plot("from due to start", shown, marks, bent)
    return Picture("waits", "Wait against the promise", about, over_time(figures, [plot], about), (("Table", table),))


def flow(one: QueueFigures, figures: Figures) -> Picture:
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
            counts(highest((*came, *left))),
        ),
        Plot(
            "waiting, at most",
            (Series("waiting", "wash", backlog, filled=True),),
            counts(highest(backlog)),
        ),
    ]
    total = sum(spell.arrivals or 0 for spell in spells)
    about = f"{many(total, 'task')} came; at most {highest(backlog):,.0f} waited at once."
    table = sheet(
        spells,
        arrived=column(spell.arrivals for spell in spells),
        finished=column(spell.finishes for spell in spells),
        failed=column(spell.failures for spell in spells),
        waiting=column(backlog),
        oldest_waiting=lasting(spell.oldest_age for spell in spells),
    )
    return Picture("flow", "Arrivals, drain and backlog", about, over_time(figures, plots, about), (("Table", table),))


def urgency(one: QueueFigures, figures: Figures) -> Picture:
    spells, span = one.spells, figures.ends - figures.begins
    shares = [None if spell.urgency is None else spell.urgency for spell in spells]
    title = "Urgency and breaches"
    if not any(shares) and not one.breaches:
        return Picture("urgency", title, "Nothing was promised, so nothing is urgent.", "")
    series = tuple(
        Series(word, kind, tuple(None if each is None else each[n] for each in shares))
        for n, (word, kind) in enumerate(zip(URGENCY_WORDS, URGENCIES, strict=True))
    )
    spans = tuple(
        (max(0.0, (each.began - figures.begins) / span), min(1.0, (each.ended - figures.begins) / span))
        for each in one.breaches
    )
    plot = Plot("age of the oldest, of the SLA:", series, percents(), stacked=True, spans=spans)
    about = "No breach."
    if one.all_breaches:
        lasted = length(one.breach_seconds) + (" together" if one.all_breaches > 1 else "")
        about = f"{many(one.all_breaches, 'breach', 'breaches')}, {lasted} (red on top)."
    table = sheet(
        spells,
        **{
            word: ["–" if each is None else f"{100 * each[n]:.3g} %" for each in shares]
            for n, word in enumerate(URGENCY_WORDS)
        },
    )
    tables = (("Table", table), *([("Breaches", breaches(one.breaches))] if one.breaches else []))
    return Picture("urgency", title, about, over_time(figures, [plot], about), tables)


def breaches(found: Sequence[Breach]) -> Sheet:
    """Numbered apart from the moments: the pointer is not on them."""
    return Sheet(
        ("began", "lasted", "longest wait", "late starts"),
        tuple(
            (
                -1 - n,
                (
                    exact(one.began),
                    length(one.ended - one.began),
                    "–" if one.worst_age is None else length(one.worst_age),
                    f"{one.late_tasks:,}",
                ),
            )
            for n, one in enumerate(found)
        ),
    )


def workers(one: QueueFigures, figures: Figures) -> Picture:
    values = tuple(spell.workers for spell in one.spells)
    if not any(value is not None for value in values):
        return Picture("workers", "Workers", "No sample says how many there were.", "")
    plot = Plot("workers, on average", (Series("workers", "wash", values, filled=True),), counts(highest(values)))
    paid = one.summary.worker_seconds or 0.0
    about = f"{hours(paid)} in all; at most {highest(values):,.3g}, on average of a point."
    table = sheet(one.spells, workers=column(values))
    return Picture("workers", "Workers", about, over_time(figures, [plot], about), (("Table", table),))


# --- what was tried ---------------------------------------------------------------------------------------------------


def attempts(tries: Sequence[Tries]) -> Picture:
    title = "Success by attempt"
    if not tries:
        return Picture("attempts", title, "Nothing was tried.", "")
    last = {MOST_ATTEMPTS: f"{MOST_ATTEMPTS} and later"}
    named = [(f"attempt {last.get(one.at, one.at)}", one) for one in tries]
    again = sum(one.runs for one in tries if one.at > 1)
    spent = sum(one.seconds for one in tries if one.at > 1)
    about = "Nothing was tried twice." if not again else f"{many(again, 'retry', 'retries')} took {hours(spent)}."
    return tried("attempts", title, about, named)


def ages(tries: Sequence[Tries]) -> Picture:
    title = "Success of retries by age of the task"
    if not tries:
        return Picture("ages", title, "Nothing was tried twice.", "")
    ends = dict(zip(AGES, (*AGES[1:], None), strict=True))
    named = [(between(one.at, ends.get(one.at)), one) for one in tries]
    about = "Since it was pushed. The thin line: where the share surely is, 19 times of 20."
    return tried("ages", title, about, named)


def between(begin: int, end: int | None) -> str:
    return (
        f"over {length(begin)}" if end is None else f"{length(begin)} – {length(end)}" if begin else f"< {length(end)}"
    )


def tried(key: str, title: str, about: str, named: Sequence[tuple[str, Tries]]) -> Picture:
    bars, lines = [], []
    for n, (name, one) in enumerate(named):
        least, most = wilson(one.successes, one.runs)
        share = one.successes / one.runs
        bars.append(Bar(name, share, f"{100 * share:.1f} % of {one.runs:,}", least=least, most=most))
        doubt = f"{100 * least:.1f} – {100 * most:.1f} %"
        cells = (name, f"{one.runs:,}", f"{one.successes:,}", f"{100 * share:.1f} %", doubt, hours(one.seconds))
        lines.append((n, cells))
    columns = ("tried", "tries", "successes", "share", "surely between", "took")
    return Picture(key, title, about, bars_markup(bars, f"{title}. {about}"), (("Table", Sheet(columns, (*lines,))),))


def errors(one: QueueFigures) -> Picture:
    title = "Errors by what they cost"
    if not one.errors:
        return Picture("errors", title, "Nothing failed.", "")
    most = highest(each.seconds for each in one.errors)
    bars = [
        Bar(
            each.error_class or "error",
            each.seconds / most if most else 0.0,
            f"{hours(each.seconds)}, {many(each.runs, 'run')}",
            note=each.shape,
        )
        for each in one.errors
    ]
    told = sum(each.seconds for each in one.errors)
    about = f"Runs that ended with one of these took {hours(told)}."
    lines = tuple(
        (
            n,
            (
                each.shape or each.error_class,
                each.fingerprint,
                f"{each.runs:,}",
                f"{each.tasks:,}",
                hours(each.seconds),
            ),
        )
        for n, each in enumerate(one.errors)
    )
    table = Sheet(("error", "fingerprint", "runs", "tasks", "cost"), lines)
    return Picture("errors", title, about, bars_markup(bars, f"{title}. {about}"), (("Table", table),))


def kinds(one: QueueFigures) -> Picture:
    title = "Slowest kinds"
    if not one.kinds:
        return Picture("kinds", title, "Nothing ran.", "")
    most = highest(each.p95 for each in one.kinds)
    bars = [
        Bar(each.kind, each.p95 / most if most else 0.0, f"p95 {length(each.p95)}, p50 {length(each.p50)}")
        for each in one.kinds
    ]
    about = "By the run time that 95 % of their attempts stay below."
    lines = tuple(
        (
            n,
            (
                each.kind,
                f"{each.runs:,}",
                length(each.p50),
                length(each.p95),
                length(each.longest),
                hours(each.seconds),
            ),
        )
        for n, each in enumerate(one.kinds)
    )
    table = Sheet(("kind", "runs", "p50", "p95", "longest", "in all"), lines)
    return Picture("kinds", title, about, bars_markup(bars, f"{title}. {about}"), (("Table", table),))
