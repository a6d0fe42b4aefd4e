"""Live parts of screens, as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock import validate
from penstock.errors import NotFound, Unavailable, ValidationError, shown
from penstock.web.live import MAX_STREAMS, View
from penstock.web.pages import promises, queue, workers
from penstock.web.site import Page

Context = Callable[[View], dict[str, Any] | None]


async def show(page: Page) -> Response:
    """Opens a stream of one topic: promises, workers, or one queue."""
    topic = page.request.query_params.get("topic", "")
    if page.site.sampler.streams >= MAX_STREAMS:
        raise Unavailable(f"{MAX_STREAMS} streams are open", hint="Load the page again later.")
    await page.view()
    if topic == "queue":
        name = validate.queue_name(page.request.query_params.get("queue", ""))
        return Stream(page, f"queue {name}", "queue", lambda view: queue_context(view, name))
    if topic == "promises":
        return Stream(page, topic, topic, promises.make_context)
    if topic == "workers":
        return Stream(page, topic, topic, workers.make_context)
    raise ValidationError(f"topic: {shown(topic)} is not one of promises, queue, workers", field="topic")


def queue_context(view: View, name: str) -> dict[str, Any] | None:
    """Returns what the screen of a queue shows, or None if the queue is gone."""
    standing = view.standing(name)
    return None if standing is None else queue.make_context(view, standing)


class Stream(Response):
    """An answer that ends when the browser goes."""

    def __init__(self, page: Page, topic: str, part: str, context: Context) -> None:
        self._page, self._topic, self._part, self._context = page, topic, part, context
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        sampler = self._page.site.sampler
        await sampler.stream(f"{self._page.root} {self._topic}", self._render, receive, send)

    def _render(self, view: View) -> bytes:
        """Renders the part as an event, once for all browsers that show it."""
        context = self._context(view)
        if context is None:
            raise NotFound("the queue was dropped")
        html = self._page.site.templates.render(f"parts/{self._part}.html", {**context, "url": self._page.url})
        data = {"html": html, "at": view.read_at, "error": view.error}
        return b"event: part\ndata: " + orjson.dumps(data) + b"\n\n"
