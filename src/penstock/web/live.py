"""Reads the board once a second for all visitors, and sends them what changed as server-sent events.

However many browsers watch, the database answers one query a second; when none watches, it answers none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.types import Receive, Send

from penstock.client import scaling_async
from penstock.client.database_async import AsyncDatabase
from penstock.errors import PenstockError
from penstock.model import Board, Sampled
from penstock.scaler.standing import RecentBoards, SlaStanding

INTERVAL = 1.0  # seconds between two looks
SAMPLES = 60  # of ten seconds each, for the small curves
SAMPLE_INTERVAL = 10.0  # seconds between two reads of samples
MAX_DECISIONS = 30
MAX_STREAMS = 500
STREAM_SECONDS = 900.0  # then a browser connects again, which asks for its access again
SEND_SECONDS = 20.0  # for one event: a browser that does not read is cut off


@dataclass(frozen=True, slots=True)
class View:
    """The last board, when it was read, and the error since then."""

    board: Board
    standings: Sequence[SlaStanding]
    read_at: float  # seconds since 1970, by the clock of this process
    error: str | None = None

    def standing(self, queue: str) -> SlaStanding | None:
        """Returns the standing of one queue."""
        return next((one for one in self.standings if one.status.queue == queue), None)


Render = Callable[[View], bytes]


class Sampler:
    """Reads the board when a page needs it, and once a second while a stream is open."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._memory = RecentBoards()
        self._view: View | None = None
        self._samples: dict[str, tuple[Sampled, ...]] = {}
        self._samples_at = 0.0
        self._reading = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._rendered: dict[str, tuple[View, bytes]] = {}
        self._closed = False
        self.streams = 0

    async def view(self) -> View:
        """Returns what was read within the last second, or reads it now. Requests at the same moment share a read."""
        async with self._reading:
            view = self._view
            if view is None or view.error or time.time() - view.read_at > INTERVAL:
                view = self._view = await self._read()
        return view

    def forget(self) -> None:
        """Makes the next page read anew, because something was changed here."""
        self._view = None

    def render(self, topic: str, view: View, render: Render) -> bytes:
        """Renders a topic once for all streams that show it."""
        known = self._rendered.get(topic)
        if known is None or known[0] is not view:
            known = self._rendered[topic] = (view, render(view))
        return known[1]

    async def stream(self, topic: str, render: Render, receive: Receive, send: Send) -> None:
        """Sends the topic as an event, again after every look, until the browser goes."""
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self.streams += 1
        self._start()
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await self._send_events(topic, render, send, gone)
        except (TimeoutError, OSError):
            pass
        finally:
            self.streams -= 1
            gone.cancel()

    async def close(self) -> None:
        """Stops reading, and ends the streams."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        async with self._changed:
            self._changed.notify_all()

    async def _send_events(self, topic: str, render: Render, send: Send, gone: asyncio.Future[None]) -> None:
        ends, seen = time.monotonic() + STREAM_SECONDS, None
        while not (gone.done() or self._closed) and time.monotonic() < ends:
            view = self._view
            if view is not None and view is not seen:
                body = self.render(topic, view, render)
                await asyncio.wait_for(
                    send({"type": "http.response.body", "body": body, "more_body": True}), SEND_SECONDS
                )
                seen = view
            await self._wait_for_look()
        await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SEND_SECONDS)

    async def _wait_for_look(self) -> None:
        """Waits for the next look, but not for long: the browser may be gone."""
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 2 * INTERVAL)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        """Reads while there are streams."""
        while self.streams:
            began = time.monotonic()
            await self._look()
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(max(0.05, INTERVAL - (time.monotonic() - began)))

    async def _look(self) -> None:
        async with self._reading:
            try:
                self._view = await self._read()
            except PenstockError as error:
                if self._view is not None:
                    self._view = replace(self._view, error=error.message)

    async def _read(self) -> View:
        fresh = time.monotonic() - self._samples_at > SAMPLE_INTERVAL
        board = await scaling_async.board(self._database, decisions=MAX_DECISIONS, samples=SAMPLES if fresh else 0)
        if fresh:
            self._samples, self._samples_at = dict(board.samples), time.monotonic()
        board = replace(board, samples=self._samples)
        self._rendered = {topic: one for topic, one in self._rendered.items() if one[0] is self._view}
        return View(board, self._memory.see(board), time.time())


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the browser is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
