"""The report as one page: what was promised and what it cost in words, then pictures with the tables behind them.

Nothing is fetched: style and script are inside, and the page forbids itself everything else."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.resources import files

from penstock.pipeline.figures import Figures, QueueFigures, Summary
from penstock.pipeline.gallery import Picture, pictures
from penstock.pipeline.pictures import sheet_markup
from penstock.pipeline.spoken import at_least, hours, length, many, moment, percent
from penstock.scaler.chart import plain

MOST_QUEUES = 20  # with pictures; the others have their words
UNIT = re.compile(r"(\d) (ms|s|min|h|d|%)(?!\w)")


def page(figures: Figures, made_of: str = "") -> str:
    style, script = (files("penstock.pipeline").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
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
{header(figures)}
<main>
{"".join(main(figures))}
</main>
{footer(figures)}
<script>{script}</script>
</body>
</html>
"""


# --- in words ---------------------------------------------------------------------------------------------------------


def header(figures: Figures) -> str:
    if not figures.queues:
        asked = f" of {', '.join(figures.scope)}" if figures.scope else ""
        return (
            "<header><h1>There is nothing to report yet</h1>"
            f"<p>The lake holds no minute{plain(asked)} in which anything happened or was looked at. "
            "When tasks have run, <code>penstock pipeline run</code> makes this page anew.</p></header>"
        )
    period = f"{moment(figures.begins)} to {moment(figures.ends)}"
    return (
        "<header><h1>Did we keep our promise, and what did it cost?</h1>"
        f"<p>{together(verdict(figures.queues))}</p>"
        f'<p class="soft">From {period}. All times are UTC.</p></header>'
    )


def verdict(queues: Sequence[QueueFigures]) -> str:
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
    return f"Not always. {late:,} of {started:,} starts were late ({percent(late, started)}), in {names}{kept}."


def main(figures: Figures) -> Iterator[str]:
    if not figures.queues:
        return
    yield f'<div class="cards">{"".join(card(n, one, figures) for n, one in enumerate(figures.queues))}</div>'
    for n, one in enumerate(figures.queues[:MOST_QUEUES]):
        yield section(n, one, figures)
    left = len(figures.queues) - MOST_QUEUES
    if left > 0:
        yield f'<p class="none">{left} more queues have no pictures here; ask for them with --queues.</p>'


def card(n: int, one: QueueFigures, figures: Figures) -> str:
    told = one.summary
    tone = "broken" if told.late else "kept" if told.kept else "unpromised"
    name = f'<a href="#q{n}">{plain(one.queue)}</a>' if n < MOST_QUEUES else plain(one.queue)
    said = "".join(f"<p>{together(text)}</p>" for text in (lateness(one), cost(told)) if text)
    answers = answer("promise-kept", *promise_kept(told)) + answer("paid", *paid(told, figures))
    return f'<article class="card {tone}"><h2>{name}</h2><div class="answers">{answers}</div>{said}</article>'


def answer(kind: str, big: str, beside: str) -> str:
    return f'<div><span class="big {kind}">{together(big)}</span>{together(beside)}</div>'


def promise_kept(told: Summary) -> tuple[str, str]:
    if told.kept + told.late and told.slas is not None:
        least, most = told.slas
        promise = length(most) if least == most else f"{length(least)} to {length(most)}, as promised at the time"
        return at_least(told.kept, told.kept + told.late), f"started within {promise}"
    if told.wait_p95 is not None:
        return length(told.wait_p95), "within which 95 % were started; nothing was promised"
    return "–", "nothing was started"


def paid(told: Summary, figures: Figures) -> tuple[str, str]:
    if told.worker_seconds is None:
        return hours(told.run_seconds), "of work; no sample says how many workers there were"
    average = told.worker_seconds / (figures.ends - figures.begins)
    return hours(told.worker_seconds), f"of workers, {average:.1f} on average"


def lateness(one: QueueFigures) -> str:
    told = one.summary
    if not told.kept + told.late:
        return ""
    if not told.late:
        return f"None of {told.kept:,} starts was late; the longest wait was {length(told.worst_wait)}."
    alone = one.all_breaches == 1
    spans = f", in {'one breach' if alone else f'{one.all_breaches:,} breaches'} of {length(one.breach_seconds)}"
    spans += "" if alone else " together"
    late = f"{told.late:,} of {told.kept + told.late:,} starts were late, the worst by {length(told.worst_late_by)}"
    return late + (spans if one.all_breaches else "") + "."


def cost(told: Summary) -> str:
    if not told.attempts:
        return ""
    ran = f"{many(told.attempts, 'attempt')} ran for {hours(told.run_seconds)}"
    ran += f", {hours(told.failed_seconds)} of that in vain" if told.failed_seconds else ""
    return f"{ran}. {told.done:,} done, {told.dead:,} dead."


def together(text: str) -> str:
    """A number stays on one line with its unit."""
    return UNIT.sub(r"\1&nbsp;\2", plain(text))


def footer(figures: Figures) -> str:
    made = f"Made {moment(figures.made)} by Penstock." if figures.made else "Made by Penstock."
    if not figures.queues:
        return f"<footer><p>{made}</p></footer>"
    point = length(figures.width)
    return (
        f"<footer><p>{made} A point of a picture stands for {point}. Waits are those of attempts, from due to start, "
        "exact quantiles. Arrivals, backlog, ages, workers and urgency are from samples, taken every ten seconds; a "
        "worker that serves several queues counts for each. Errors are added up by what is left of their text without "
        "numbers, names and moments; a task that fails with one on two days counts twice.</p></footer>"
    )


# --- in pictures ------------------------------------------------------------------------------------------------------


def section(n: int, one: QueueFigures, figures: Figures) -> str:
    drawn = "".join(figure(n, picture) for picture in pictures(one, figures))
    return (
        f'<section id="q{n}" aria-label="{plain(one.queue)}"><h2>{plain(one.queue)}</h2>'
        f'<div class="pictures">{drawn}</div></section>'
    )


def figure(n: int, picture: Picture) -> str:
    label = f"q{n}-{picture.key}"
    inside = picture.drawn or '<p class="none">Nothing to see.</p>'
    tables = "".join(sheet_markup(sheet, said) for said, sheet in picture.sheets) if picture.drawn else ""
    return (
        f'<figure id="{label}" data-picture="{picture.key}"><figcaption><h3>{plain(picture.title)}</h3>'
        f"<p>{together(picture.about)}</p></figcaption>{inside}{tables}</figure>"
    )
