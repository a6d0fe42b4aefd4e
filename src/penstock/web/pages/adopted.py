"""The adopted tables: their terms, their last pass and their failures, as Penstock's own tables know them.

The adopted table itself is not read: a visitor has the rights of a role of Penstock, and none on that table.
"""

from __future__ import annotations

import orjson
from starlette.responses import Response

from penstock.web.site import Page

ADOPTED = """
    select a.id, a.name, a.schema_name || '.' || a.table_name, a.mode, extract(epoch from a.sla)::float8,
           a.max_attempts, a.terms::text, a.retry::text, a.tick, a.last_pass::text, a.created
    from penstock.adopted as a
    order by a.name limit 200
"""
FAILURES = """
    select f.adopted_id, f.error_class, pg_catalog.count(*), pg_catalog.count(*) filter (where f.dead),
           pg_catalog.max(f.last_at)
    from penstock.adopted_failure as f group by 1, 2 order by 3 desc limit 500
"""


async def show(page: Page) -> Response:
    """Shows the adopted tables."""
    rows, failures = await page.database.rows(ADOPTED), await page.database.rows(FAILURES)
    scaling = (await page.view()).board.scaling
    tables = [
        {
            "name": name,
            "table": table,
            "mode": mode,
            "sla": sla,
            "max_attempts": most,
            "terms": orjson.loads(terms),
            "retry": orjson.loads(retry),
            "tick": tick,
            "last_pass": orjson.loads(last),
            "created": created,
            "scaled": scaling.get(name),
            "failures": [one[1:] for one in failures if one[0] == id_],
        }
        for id_, name, table, mode, sla, most, terms, retry, tick, last, created in rows
    ]
    return page.render("adopted.html", tables=tables)
