"""Lists of tasks, page by page: each page goes on where the last one ended, and nothing is counted."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from penstock import validate
from penstock.client.statements.tasks import check_filters
from penstock.errors import NotFound, ValidationError, shown
from penstock.model import GAUGES
from penstock.web.site import Page, redirect

PAGE_SIZE = 50
MAX_PLACE = 400  # bytes
LIST = "select penstock.task_page(%s, %s, %s, %s, %s, %s::jsonb, %s)::text"
PLACES: dict[str | None, tuple[type, ...]] = {
    "pending": (int, str, int),
    **dict.fromkeys(("planned", "done", "dead", "cancelled"), (str, int)),
}
ORDERS = {
    "pending": "in the order in which workers take them",
    "planned": "the next to fall due first",
    **dict.fromkeys(("done", "dead", "cancelled"), "the last to end first"),
}
FILTERS = ("queue", "state", "kind", "subject", "error")


async def show(page: Page) -> Response:
    """Shows a page of tasks. The filters are in the address."""
    given = {name: value for name in FILTERS if (value := page.request.query_params.get(name, "").strip())}
    wanted = page.request.query_params.get("id", "").strip()
    if wanted:
        return redirect(page.url("task", id=read_id(wanted)))
    queues = [one.status.queue for one in (await page.view()).standings]
    found = await list_page(page, given, page.request.query_params.get("after"))
    following = None if found["next"] is None else make_address(page, given | {"after": write_place(found["next"])})
    return page.render(
        "tasks.html",
        given=given,
        queues=queues,
        states=GAUGES,
        found=found,
        following=following,
        order=ORDERS.get(given.get("state", ""), "the newest first"),
        first="after" not in page.request.query_params,
        clear=page.url("tasks"),
    )


def read_id(text: str) -> int:
    """Reads the id of a task."""
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:20]) < 2**63 or len(text) > 19:
        raise ValidationError(f"id: {shown(text)} is not the id of a task", field="id")
    return int(text)


async def list_page(page: Page, given: dict[str, str], after: str | None) -> dict[str, Any]:
    """Reads a page of tasks."""
    queue, state = given.get("queue"), given.get("state")
    if queue is not None:
        validate.queue_name(queue)
    if state is not None and queue is None:
        raise ValidationError("state: choose a queue too", field="state", hint="Tasks of a state are listed by queue.")
    texts = check_filters(**{name: given.get(name) for name in ("kind", "error", "subject")})
    place = None if after is None else orjson.dumps(read_place(after, state)).decode()
    raw = await page.database.value(
        LIST, (queue, state, texts["kind"], texts["error"], texts["subject"], place, PAGE_SIZE)
    )
    found: dict[str, Any] = orjson.loads(raw)
    return found


def write_place(place: list[Any]) -> str:
    """Writes the place of a task in its list, for an address."""
    return urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def read_place(text: str, state: str | None) -> list[Any]:
    """Reads a place. It may be forged: only values that the list can use are accepted."""
    types = PLACES.get(state, (int,))
    try:
        found = orjson.loads(urlsafe_b64decode(text[:MAX_PLACE] + "=" * (-len(text) % 4)))
        fits = isinstance(found, list) and len(found) == len(types) and all(map(isinstance, found, types))
        if fits:
            for value in found:
                fits &= (-(2**63) <= value < 2**63) if isinstance(value, int) else bool(validate.moment(value, "after"))
    except (ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValidationError("after: it is not a place in this list", field="after", hint="Begin at the first page.")
    if state == "pending" and not 0 <= found[0] < 2**15:
        raise NotFound("after: there is no such place in this list")
    return list(found)


def make_address(page: Page, given: dict[str, str]) -> str:
    """Returns the address of a list."""
    return page.url("tasks") + "?" + urlencode(given)
