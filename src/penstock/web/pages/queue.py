"""One queue: its promise, charts, times, decisions and settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import orjson
from starlette.responses import Response

from penstock import validate
from penstock.client import queues_async, scaling_async
from penstock.errors import NotFound, ValidationError, shown
from penstock.model import Sampled, StoredDecision
from penstock.scaler.standing import SlaStanding
from penstock.web.advice import advise
from penstock.web.curves import DEFAULT_SPAN, POINTS, SPANS, Window, draw_charts
from penstock.web.live import View
from penstock.web.site import Page

MAX_DECISIONS = 500
SHOWN_DECISIONS = 25
MIN_SPAN, MAX_SPAN = 60.0, 400 * 86_400.0  # seconds
SERIES = "select penstock.sample_series(%s, %s, %s, %s)::text"
TIMES = "select penstock.recent_times(%s)::text"
TIMES_SECONDS = 10.0  # for which an answer is shown again
KINDS = """
    select k.kind, k.max_attempts, k.retry::text, k.timeout
    from penstock.kind as k join penstock.queue as q on q.id = k.queue_id
    where q.name = %s order by k.kind limit 200
"""


async def show(page: Page) -> Response:
    """Shows one queue."""
    name = validate.queue_name(page.request.path_params["queue"])
    view = await page.view()
    standing = view.standing(name)
    if standing is None:
        raise NotFound(f"queue: there is no queue {shown(name)}", hint="It may have been dropped.")
    window, span = choose_window(page)
    begins, ends = (datetime.fromtimestamp(at, UTC) for at in (window.begins, window.ends))
    raw, decisions, settings, kinds, times = await asyncio.gather(
        page.database.value(SERIES, (name, begins, ends, POINTS)),
        scaling_async.list_decisions(page.database, name, at=ends, limit=MAX_DECISIONS),
        queues_async.settings(page.database, name),
        page.database.rows(KINDS, (name,)),
        read_times(page, name),
    )
    samples = [
        Sampled(at, pending, active, age or 0.0, workers, totals)
        for at, pending, active, age, workers, totals, _ in orjson.loads(raw)
    ]
    return page.render(
        "queue.html",
        live=page.url("live") + f"?topic=queue&queue={name}",
        window=window,
        span=span,
        spans=list(SPANS),
        charts=draw_charts(window, samples, decisions, standing.status.sla),
        decisions=group_decisions(decisions)[:SHOWN_DECISIONS],
        settings=settings[0],
        kinds=kinds,
        times=times,
        **make_context(view, standing),
    )


def make_context(view: View, standing: SlaStanding) -> dict[str, Any]:
    """Returns what the live part of the screen shows."""
    return {"view": view, "one": standing, "advice": advise(standing, view.board), "queue": standing.status.queue}


def choose_window(page: Page) -> tuple[Window, str]:
    """Returns the period that the charts show: a span up to now, or the part that a person has zoomed into."""
    given = page.request.query_params
    if "from" in given and "to" in given:
        try:
            begins, ends = float(given["from"]), float(given["to"])
        except ValueError:
            raise ValidationError("from, to: they are not seconds since 1970", field="from") from None
        if not MIN_SPAN <= ends - begins <= MAX_SPAN or not 0 <= begins < 1e11:
            raise ValidationError("from, to: the period is not between 1 minute and 400 days", field="from")
        return Window(begins, ends), ""
    span = given.get("span", DEFAULT_SPAN)
    if span not in SPANS:
        raise ValidationError(f"span: {shown(span)} is not one of {', '.join(SPANS)}", field="span")
    step = SPANS[span] / POINTS
    ends = (time.time() // step + 1) * step
    return Window(ends - SPANS[span], ends), span


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that was made again and again: `first` and `last` have the same target, urgency and bound."""

    first: StoredDecision
    last: StoredDecision
    before: int | None  # the target of the decision before

    @property
    def seconds(self) -> float:
        """How long it was repeated."""
        return (self.last.at - self.first.at).total_seconds()

    @property
    def reason(self) -> str:
        """The last reason, without the number at its beginning."""
        return self.last.reason.removeprefix(f"{self.last.workers}: ")


def group_decisions(decisions: Sequence[StoredDecision]) -> list[Decided]:
    """Groups decisions, which come newest first, that repeat each other."""
    groups = [list(some) for _, some in groupby(decisions, key=lambda one: (one.workers, one.urgency, one.bound_by))]
    found = []
    for n, some in enumerate(groups):
        before = groups[n + 1][0].workers if n + 1 < len(groups) else None
        found.append(Decided(some[-1], some[0], before))
    return found


async def read_times(page: Page, name: str) -> dict[str, Any]:
    """Reads how long tasks waited and ran lately. The answer is kept for a moment, for all visitors."""
    known = page.site.times.get(name)
    if known is None or time.monotonic() - known[0] > TIMES_SECONDS:
        known = (time.monotonic(), orjson.loads(await page.database.value(TIMES, (name,))))
        page.site.times[name] = known
    found: dict[str, Any] = known[1]
    return found
