"""Renders the report as one page: first the answers in words, then charts with the tables behind them.

The page loads nothing: style and script are inside, and its content security policy forbids everything else.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.resources import files

from penstock.charts.axes import escape_text
from penstock.charts.plots import render_sheet
from penstock.formatting import format_count, format_duration, format_percent
from penstock.pipeline.report.charts import Chart, make_charts
from penstock.pipeline.report.figures import Figures, QueueFigures, QueueSummary
from penstock.pipeline.report.formatting import format_floor, format_hours, format_minute

MAX_QUEUES = 20  # with charts; the others have a card only
UNIT = re.compile(r"(\d) (ms|s|min|h|d|%)(?!\w)")


def render_page(figures: Figures, made_of: str = "") -> str:
    """Returns the HTML of the report. `made_of` is the fingerprint of the lake."""
    style = files("penstock.pipeline.report").joinpath("page.css").read_text("utf-8")
    script = files("penstock.charts").joinpath("hover.js").read_text("utf-8")
    allowed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<meta name="made-of" content="{made_of}">
<link rel="icon" href="data:,">
<title>Penstock: did we keep our promise?</title>
<style>
{style}</style>
</head>
<body>
{render_header(figures)}
<main>
{"".join(render_main(figures))}
</main>
{render_footer(figures)}
<script>{script}</script>
</body>
</html>
"""


# --- words ------------------------------------------------------------------------------------------------------------


def render_header(figures: Figures) -> str:
    if not figures.queues:
        asked = f" of {', '.join(figures.scope)}" if figures.scope else ""
        return (
            "<header><h1>There is nothing to report yet</h1>"
            f"<p>The lake holds no minute{escape_text(asked)} in which anything happened or was looked at. "
            "When tasks have run, <code>penstock pipeline run</code> makes this page anew.</p></header>"
        )
    period = f"{format_minute(figures.begins)} to {format_minute(figures.ends)}"
    return (
        "<header><h1>Did we keep our promise, and what did it cost?</h1>"
        f"<p>{keep_units(state_verdict(figures.queues))}</p>"
        f'<p class="soft">From {period}. All times are UTC.</p></header>'
    )


def state_verdict(queues: Sequence[QueueFigures]) -> str:
    """Returns in one sentence whether the promises were kept."""
    promised = [one for one in queues if one.summary.kept + one.summary.late]
    broken = [one for one in promised if one.summary.late]
    if not promised:
        return "Nothing was promised: no queue with tasks has an SLA."
    started = sum(one.summary.kept + one.summary.late for one in promised)
    if not broken:
        where = "In every queue" if len(promised) > 1 else f"In {promised[0].queue}"
        return f"Yes. {where} every task was started in time: {started:,} of them."
    late = sum(one.summary.late for one in broken)
    names = ", ".join(one.queue for one in broken[:3]) + (" and others" if len(broken) > 3 else "")
    kept = f"; {len(promised) - len(broken)} of {len(promised)} queues kept it" if len(promised) > 1 else ""
    return f"Not always. {late:,} of {started:,} starts were late ({format_percent(late / started)}), in {names}{kept}."


def render_main(figures: Figures) -> Iterator[str]:
    if not figures.queues:
        return
    yield f'<div class="cards">{"".join(render_card(n, one, figures) for n, one in enumerate(figures.queues))}</div>'
    for n, one in enumerate(figures.queues[:MAX_QUEUES]):
        yield render_section(n, one, figures)
    left = len(figures.queues) - MAX_QUEUES
    if left > 0:
        yield f'<p class="none">{left} more queues have no charts here; ask for them with --queues.</p>'


def render_card(n: int, one: QueueFigures, figures: Figures) -> str:
    summary = one.summary
    tone = "broken" if summary.late else "kept" if summary.kept else "unpromised"
    name = f'<a href="#q{n}">{escape_text(one.queue)}</a>' if n < MAX_QUEUES else escape_text(one.queue)
    said = "".join(f"<p>{keep_units(text)}</p>" for text in (describe_lateness(one), describe_cost(summary)) if text)
    answers = render_answer("promise-kept", *describe_promise(summary)) + render_answer(
        "paid", *describe_price(summary, figures)
    )
    return f'<article class="card {tone}"><h2>{name}</h2><div class="answers">{answers}</div>{said}</article>'


def render_answer(kind: str, big: str, beside: str) -> str:
    return f'<div><span class="big {kind}">{keep_units(big)}</span>{keep_units(beside)}</div>'


def describe_promise(summary: QueueSummary) -> tuple[str, str]:
    if summary.kept + summary.late and summary.slas is not None:
        least, most = summary.slas
        promise = (
            format_duration(most)
            if least == most
            else f"{format_duration(least)} to {format_duration(most)}, as promised at the time"
        )
        return format_floor(summary.kept, summary.kept + summary.late), f"started within {promise}"
    if summary.wait_p95 is not None:
        return format_duration(summary.wait_p95), "within which 95 % were started; nothing was promised"
    return "–", "nothing was started"


def describe_price(summary: QueueSummary, figures: Figures) -> tuple[str, str]:
    if summary.worker_seconds is None:
        return format_hours(summary.run_seconds), "of work; no sample says how many workers there were"
    average = summary.worker_seconds / (figures.ends - figures.begins)
    return format_hours(summary.worker_seconds), f"of workers, {average:.1f} on average"


def describe_lateness(one: QueueFigures) -> str:
    summary = one.summary
    if not summary.kept + summary.late:
        return ""
    if not summary.late:
        return f"None of {summary.kept:,} starts was late; the longest wait was {format_duration(summary.worst_wait)}."
    alone = one.all_breaches == 1
    spans = (
        f", in {'one breach' if alone else f'{one.all_breaches:,} breaches'} of {format_duration(one.breach_seconds)}"
    )
    spans += "" if alone else " together"
    late = f"{summary.late:,} of {summary.kept + summary.late:,} starts were late"
    late += f", the worst by {format_duration(summary.worst_late_by)}"
    return late + (spans if one.all_breaches else "") + "."


def describe_cost(summary: QueueSummary) -> str:
    if not summary.attempts:
        return ""
    ran = f"{format_count(summary.attempts, 'attempt')} ran for {format_hours(summary.run_seconds)}"
    ran += f", {format_hours(summary.failed_seconds)} of that in vain" if summary.failed_seconds else ""
    return f"{ran}. {summary.done:,} done, {summary.dead:,} dead."


def keep_units(text: str) -> str:
    """Escapes a text, and keeps each number on one line with its unit."""
    return UNIT.sub(r"\1&nbsp;\2", escape_text(text))


def render_footer(figures: Figures) -> str:
    made = f"Made {format_minute(figures.made)} by Penstock." if figures.made else "Made by Penstock."
    if not figures.queues:
        return f"<footer><p>{made}</p></footer>"
    point = format_duration(figures.width)
    return (
        f"<footer><p>{made} A point of a chart stands for {point}. Waits are those of attempts, from due to start, "
        "exact quantiles. Arrivals, backlog, ages, workers and urgency are from samples, one every ten seconds; a "
        "worker that serves several queues counts for each. Errors are added up by what is left of their text without "
        "numbers, names and moments; a task that fails with one on two days counts twice.</p></footer>"
    )


# --- charts -----------------------------------------------------------------------------------------------------------


def render_section(n: int, one: QueueFigures, figures: Figures) -> str:
    drawn = "".join(render_figure(n, chart) for chart in make_charts(one, figures))
    return (
        f'<section id="q{n}" aria-label="{escape_text(one.queue)}"><h2>{escape_text(one.queue)}</h2>'
        f'<div class="pictures">{drawn}</div></section>'
    )


def render_figure(n: int, chart: Chart) -> str:
    label = f"q{n}-{chart.key}"
    inside = chart.drawn or '<p class="none">Nothing to see.</p>'
    tables = "".join(render_sheet(sheet, said) for said, sheet in chart.sheets) if chart.drawn else ""
    return (
        f'<figure id="{label}" data-picture="{chart.key}"><figcaption><h3>{escape_text(chart.title)}</h3>'
        f"<p>{keep_units(chart.about)}</p></figcaption>{inside}{tables}</figure>"
    )
