"""The first screen: which promise is in danger, why, and what to do."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.scaler.standing import SlaStanding
from penstock.web.advice import advise, headline
from penstock.web.live import View
from penstock.web.site import Page

RANK = {"late": 0, "danger": 1, "paused": 2, "kept": 3, "none": 4}
MAX_ALERTS = 4


async def show(page: Page) -> Response:
    """Shows the queues by the time until their promise breaks."""
    view = await page.view()
    return page.render("promises.html", live=page.url("live") + "?topic=promises", **make_context(view))


def make_context(view: View) -> dict[str, Any]:
    """Returns what the screen shows of a board."""
    advised = [(one, advise(one, view.board)) for one in view.standings]
    advised.sort(key=lambda pair: (RANK[pair[1].level], *sort_key(pair[0])))
    said, bad = headline([advice for _, advice in advised])
    alerts = [pair for pair in advised if pair[1].is_bad]
    return {
        "view": view,
        "said": said,
        "bad": bad,
        "alerts": alerts[:MAX_ALERTS],
        "more_alerts": len(alerts) - MAX_ALERTS,
        "queues": advised,
    }


def sort_key(one: SlaStanding) -> tuple[float, str]:
    """Sorts by the time to the breach; a queue in which nothing waits comes after the others."""
    left = one.time_to_breach
    return (float("inf") if left is None else left, one.status.queue)
