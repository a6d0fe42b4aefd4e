"""Dead tasks by fingerprint: the class of the error, and the pattern of its message."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from penstock import validate
from penstock.web.site import Page

FAILURES = "select penstock.failures(%s)::text"


async def show(page: Page) -> Response:
    """Shows what tasks died of."""
    queue = page.request.query_params.get("queue", "").strip() or None
    if queue is not None:
        validate.queue_name(queue)
    view = await page.view()
    found = orjson.loads(await page.database.value(FAILURES, (queue,)))
    dead = sum(one.status.dead for one in view.standings if queue in (None, one.status.queue))
    return page.render(
        "failures.html",
        found=found,
        dead=dead,
        queue=queue,
        queues=[one.status.queue for one in view.standings],
        complete=all(one["complete"] for one in found),
    )
