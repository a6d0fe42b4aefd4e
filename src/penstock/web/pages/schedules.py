"""The schedules in words, with their next runs."""

from __future__ import annotations

from itertools import islice
from typing import Any

from starlette.responses import Response

from penstock.client import schedules_async
from penstock.errors import ValidationError
from penstock.model import Schedule
from penstock.schedule import Cron, cron_of, in_words, meaning
from penstock.web.site import Page

RUNS = 5
MAX_SCHEDULES = 500


async def show(page: Page) -> Response:
    """Shows the schedules."""
    found = await schedules_async.list_schedules(page.database)
    return page.render(
        "schedules.html",
        schedules=[describe(one) for one in found[:MAX_SCHEDULES]],
        cut=len(found) > MAX_SCHEDULES,
    )


def describe(one: Schedule) -> dict[str, Any]:
    """Describes a schedule in words, in its own time zone."""
    try:
        cron = cron_of(one.cron, one.tz)
    except ValidationError as error:  # of a machine with other time zones
        return {"one": one, "words": error.message, "runs": [], "overdue": False}
    runs = [] if one.paused else next_runs(cron, one)
    late = (one.at - one.next_at).total_seconds()
    return {"one": one, "words": meaning(cron), "runs": runs, "overdue": not one.paused and late > 60}


def next_runs(cron: Cron, one: Schedule) -> list[str]:
    """Returns the next runs in words."""
    return [in_words(moment, cron.zone, one.at) for moment in islice(cron.ticks(one.at), RUNS)]
