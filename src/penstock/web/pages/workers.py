"""The workers: what they serve, how busy they are, and whether they live."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.formatting import format_age
from penstock.model import BoardWorker
from penstock.web.advice import SILENT_AFTER
from penstock.web.live import View
from penstock.web.site import Page


async def show(page: Page) -> Response:
    """Shows the workers."""
    return page.render("workers.html", live=page.url("live") + "?topic=workers", **make_context(await page.view()))


def make_context(view: View) -> dict[str, Any]:
    """Returns what the screen shows of a board."""
    workers = sorted(view.board.workers, key=lambda one: (one.silent <= SILENT_AFTER, one.name))
    return {
        "view": view,
        "workers": [(one, *describe_state(one)) for one in workers],
        "slots": sum(one.slots for one in workers),
        "busy": sum(one.busy for one in workers),
        "silent": sum(one.silent > SILENT_AFTER for one in workers),
        "scaling": sorted(view.board.scaling.values(), key=lambda one: one.queue),
    }


def describe_state(one: BoardWorker) -> tuple[str, str]:
    """Returns a word for the state of a worker, and its class."""
    if one.silent > SILENT_AFTER:
        return f"silent for {format_age(one.silent)}", "bad"
    if one.leaving:
        return "finishing", ""
    if one.busy:
        return "busy", ""
    return ("idle", "soft") if one.claimed else ("new", "soft")
