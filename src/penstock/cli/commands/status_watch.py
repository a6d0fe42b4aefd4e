"""`penstock status --watch` prints the state of queues repeatedly: in place on a terminal, as lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.app import Penstock
from penstock.cli.terminal.board import (
    NO_QUEUES,
    format_breach,
    format_fleet,
    format_foreseen,
    format_rate,
    status_json,
)
from penstock.cli.terminal.formatting import escape, format_cell, pad, to_iso
from penstock.cli.terminal.options import Shell, parse_seconds
from penstock.cli.terminal.output import print_line
from penstock.errors import PenstockError, Unavailable, ValidationError
from penstock.formatting import format_age
from penstock.model import Board, QueueStatus
from penstock.scaler.standing import SAMPLES, RecentBoards, SlaStanding

DEFAULT_INTERVAL = "2s"
MIN_INTERVAL, MAX_INTERVAL = 0.1, 3600.0
COLUMNS = (
    "queue",
    "pending",
    "active",
    "oldest",
    "sla",
    "urgency",
    "breach",
    "foreseen",
    "in/s",
    "out/s",
    "eta",
    "workers",
    "why",
)
LEFT_ALIGNED = ("queue", "urgency", "why")


def watch(shell: Shell, queue: str | None, interval: str | None) -> None:
    """Prints until Ctrl-C. A lost connection is reported and tried again; an error of the first look is raised."""
    every = parse_seconds(interval or DEFAULT_INTERVAL, "interval")
    if not MIN_INTERVAL <= every <= MAX_INTERVAL:
        raise ValidationError(f"interval: {every:g} s is not between {MIN_INTERVAL:g} s and 1 h", field="interval")
    with shell.connect() as penstock:
        looks = poll_boards(penstock, queue, every)
        if shell.json or not sys.stdout.isatty():
            for found in looks:
                print_look(shell, found)
        else:
            with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:
                for found in looks:
                    live.update(draw_look(found, live.console.width), refresh=True)


Found = tuple[Board, list[SlaStanding]] | PenstockError


def poll_boards(penstock: Penstock, queue: str | None, every: float) -> Iterator[Found]:
    memory, first = RecentBoards(), True
    while True:
        began = time.monotonic()
        try:
            board = penstock.board(queue, decisions=0, samples=SAMPLES)
            found: Found = (board, memory.see(board))
        except Unavailable as error:
            if first:
                raise
            found = error
        first = False
        yield found
        time.sleep(max(0.0, every - (time.monotonic() - began)))


def print_look(shell: Shell, found: Found) -> None:
    """Prints one JSON value on a line, or a line for each queue."""
    if isinstance(found, PenstockError):
        sys.stderr.write(f"no answer, trying again: {found.message}\n")
        sys.stderr.flush()
        return
    board, standings = found
    if shell.json:
        rows = [{**status_json(one.status), **one.to_json()} for one in standings]
        print_line(json.dumps({"at": board.at, "queues": rows}))
    elif not shell.quiet:
        for one in standings:
            print_line(
                f"{format_second(one.status)} " + " ".join(f"{name}={text}" for name, text in format_words(one).items())
            )


def format_second(one: QueueStatus) -> str:
    return (to_iso(one.at) or "")[:19] + "Z"


def format_words(one: SlaStanding) -> dict[str, str]:
    """Returns the words of a line. Columns without a value are left out."""
    found = {name: text.replace(" ", "_") for name, text in format_cells(one).items() if name != "why"}
    said = {name: text for name, text in found.items() if text and text != "–"}
    return said | ({"why": json.dumps(one.why)} if one.why else {})


def format_cells(one: SlaStanding) -> dict[str, str]:
    status = one.status
    return {
        "queue": escape(status.queue),
        "pending": f"{status.pending:,}",
        "active": f"{status.active:,}",
        "oldest": format_age(status.oldest_pending_age),
        "sla": format_age(status.sla),
        "urgency": "paused" if status.paused else one.urgency or "–",
        "breach": format_breach(one),
        "foreseen": format_foreseen(one),
        "in/s": format_rate(one.arriving),
        "out/s": format_rate(one.leaving),
        "eta": format_age(one.eta),
        "workers": format_fleet(one),
        "why": format_cell(one.why) if one.why else "–",
    }


def draw_look(found: Found, width: int) -> Text:
    if isinstance(found, PenstockError):
        return Text(f"no answer, trying again: {escape(found.message)}", style="bold red")
    _, standings = found
    rows = [[*format_cells(one).values()] for one in standings]
    lines = [*align_rows([list(COLUMNS), *rows])] if rows else [NO_QUEUES]
    return Text("\n").join(fit_line(line, width, bold=not n and bool(rows)) for n, line in enumerate(lines))


def fit_line(line: str, width: int, *, bold: bool) -> Text:
    """Cuts a line at the width of the terminal: a wrapped line would move all lines below it."""
    text = Text(line, style="bold" if bold else "", no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def align_rows(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(line[n]) for line in lines) for n in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(pad(text, widths[n], COLUMNS[n] in LEFT_ALIGNED) for n, text in enumerate(line)).rstrip()
