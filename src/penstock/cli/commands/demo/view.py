"""Shows the demo: live on a terminal, as lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from penstock.cli.commands.demo.stage import DemoProgress
from penstock.cli.commands.top import View, draw_screen
from penstock.cli.terminal.board import format_fleet
from penstock.cli.terminal.formatting import escape
from penstock.cli.terminal.output import print_line
from penstock.formatting import format_age
from penstock.model import Board
from penstock.scaler.standing import SlaStanding

LINE_INTERVAL = 2.0  # seconds between two lines
MAX_HEIGHT = 14


class Viewer:
    """Prints events, and shows the state of the queue."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Live | None = None
        self._said = -LINE_INTERVAL

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
            print_line(text, quiet=self._quiet)

    def show(self, board: Board, standings: list[SlaStanding], scene: DemoProgress) -> None:
        if self._live is not None:
            size = self._live.console.size
            view = View(board, standings, time.monotonic())
            drawn = draw_screen(view, "demo", width=size.width, height=min(MAX_HEIGHT, size.height - 1))
            self._live.update(drawn, refresh=True)
        elif scene.seconds - self._said >= LINE_INTERVAL:
            self._said = scene.seconds
            self.tell(format_line(standings[0], scene))


def format_line(one: SlaStanding, scene: DemoProgress) -> str:
    """Writes the state of the queue on one line."""
    status = one.status
    oldest = 0.0 if status.oldest_pending_age is None else status.oldest_pending_age
    parts = [
        f"{scene.seconds:5.1f} s",
        f"{status.pending:,} pending, {status.planned:,} planned, {status.active:,} active",
        f"{status.totals['done']:,} done",
        f"oldest {format_age(oldest)} of {format_age(status.sla or 0.0)}, {one.urgency}",
        f"{format_fleet(one)} workers",
        f"{one.leaving or 0:,.0f}/s" + (f", {format_age(one.eta)} to go" if one.eta else ""),
        escape(one.why or "nothing decided yet", most=90),
    ]
    return " · ".join(parts)
