"""What people see of the demo: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from penstock.cli.board import Standing, fleet_words
from penstock.cli.demo.stage import Scene
from penstock.cli.output import age, harmless, say
from penstock.cli.top import View, picture
from penstock.model import Board

PLAIN = 2.0  # seconds between two lines
HEIGHT = 14


class Viewer:
    """Tells what happens; shows how things stand."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Live | None = None
        self._said = -PLAIN

    @contextmanager
    def watching(self) -> Iterator[None]:
        if self._quiet or not sys.stdout.isatty():
            yield
            return
        with Live(console=Console(), auto_refresh=False, vertical_overflow="crop", transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def tell(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            say(text, quiet=self._quiet)

    def show(self, board: Board, standings: list[Standing], scene: Scene) -> None:
        if self._live is not None:
            size = self._live.console.size
            view = View(board, standings, time.monotonic())
            drawn = picture(view, "demo", width=size.width, height=min(HEIGHT, size.height - 1))
            self._live.update(drawn, refresh=True)
        elif scene.seconds - self._said >= PLAIN:
            self._said = scene.seconds
            self.tell(line(standings[0], scene))


def line(one: Standing, scene: Scene) -> str:
    """The same as the live view, in one line."""
    status = one.status
    oldest = 0.0 if status.oldest_pending_age is None else status.oldest_pending_age
    parts = [
        f"{scene.seconds:5.1f} s",
        f"{status.pending:,} pending, {status.planned:,} planned, {status.active:,} active",
        f"{status.totals['done']:,} done",
        f"oldest {age(oldest)} of {age(status.sla or 0.0)}, {one.urgency}",
        f"{fleet_words(one)} workers",
        f"{one.leaving or 0:,.0f}/s" + (f", {age(one.eta)} to go" if one.eta else ""),
        harmless(one.why or "nothing decided yet", most=90),
    ]
    return " · ".join(parts)
