"""Who changed what, when, and how."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from penstock import validate
from penstock.web.pages.tasks import read_id
from penstock.web.site import Page

PAGE_SIZE = 100
LOOKED = 20_000  # rows that one page looks through for its filters
AUDIT = """
    select a.id, a.at, a.actor, a.verb, a.queue, a.detail::text
    from (
        select * from penstock.audit
        where %(before)s::bigint is null or id < %(before)s order by id desc limit %(looked)s
    ) as a
    where (%(queue)s::text is null or a.queue = %(queue)s)
      and (%(verb)s::text is null or a.verb = %(verb)s)
    order by a.id desc limit %(limit)s
"""


async def show(page: Page) -> Response:
    """Shows a page of the audit, newest first."""
    given = {name: page.request.query_params.get(name, "").strip() or None for name in ("queue", "verb", "before")}
    if given["queue"] is not None:
        validate.queue_name(given["queue"])
    before = None if given["before"] is None else read_id(given["before"])
    rows = await page.database.rows(
        AUDIT,
        {
            "before": before,
            "looked": LOOKED,
            "queue": given["queue"],
            "verb": given["verb"] and given["verb"][:100],
            "limit": PAGE_SIZE,
        },
    )
    entries = [
        {"id": id_, "at": at, "actor": actor, "verb": verb, "queue": queue, "detail": orjson.loads(detail)}
        for id_, at, actor, verb, queue, detail in rows
    ]
    return page.render("audit.html", entries=entries, given=given, full=len(entries) == PAGE_SIZE)
