"""`penstock status --watch`: how queues stand, again and again: drawn over itself on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.app import Penstock
from penstock.cli.board import (
    SAMPLES,
    Memory,
    Standing,
    breach_words,
    fleet_words,
    foreseen_words,
    rate_words,
    status_json,
)
from penstock.cli.options import Shell
from penstock.cli.output import age, cell, harmless, iso, padded, say
from penstock.cli.scale import seconds
from penstock.errors import PenstockError, Unavailable, ValidationError
from penstock.model import Board, QueueStatus

USUAL = "2s"
SHORTEST, LONGEST = 0.1, 3600.0
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
TEXTS = ("queue", "urgency", "why")


def watch(shell: Shell, queue: str | None, interval: str | None) -> None:
    """Until Ctrl-C. A lost connection is said, and tried again; what is wrong from the beginning is an error."""
    every = seconds(interval or USUAL, "interval")
    if not SHORTEST <= every <= LONGEST:
        raise ValidationError(f"interval: {every:g} s is not between {SHORTEST:g} s and 1 h", field="interval")
    with shell.connected() as penstock:
        looks = looking(penstock, queue, every)
        if shell.json or not sys.stdout.isatty():
            for found in looks:
                tell(shell, found)
        else:
            with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:
                for found in looks:
                    live.update(drawn(found, live.console.width), refresh=True)


Found = tuple[Board, list[Standing]] | PenstockError


def looking(penstock: Penstock, queue: str | None, every: float) -> Iterator[Found]:
    memory, first = Memory(), True
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


def tell(shell: Shell, found: Found) -> None:
    """One JSON value a line, or a line for each queue."""
    if isinstance(found, PenstockError):
        sys.stderr.write(f"no answer, trying again: {found.message}\n")
        sys.stderr.flush()
        return
    board, standings = found
    if shell.json:
        rows = [{**status_json(one.status), **one.to_json()} for one in standings]
        say(json.dumps({"at": board.at, "queues": rows}))
    elif not shell.quiet:
        for one in standings:
            say(f"{iso_short(one.status)} " + " ".join(f"{name}={text}" for name, text in facts(one).items()))


def iso_short(one: QueueStatus) -> str:
    return (iso(one.at) or "")[:19] + "Z"


def facts(one: Standing) -> dict[str, str]:
    """What a column, or a word of a line, says; those with nothing to say are left out."""
    found = {name: text.replace(" ", "_") for name, text in cells(one).items() if name != "why"}
    said = {name: text for name, text in found.items() if text and text != "–"}
    return said | ({"why": json.dumps(one.why)} if one.why else {})


def cells(one: Standing) -> dict[str, str]:
    status = one.status
    return {
        "queue": harmless(status.queue),
        "pending": f"{status.pending:,}",
        "active": f"{status.active:,}",
        "oldest": age(status.oldest_pending_age),
        "sla": age(status.sla),
        "urgency": "paused" if status.paused else one.urgency or "–",
        "breach": breach_words(one),
        "foreseen": foreseen_words(one),
        "in/s": rate_words(one.arriving),
        "out/s": rate_words(one.leaving),
        "eta": age(one.eta),
        "workers": fleet_words(one),
        "why": cell(one.why) if one.why else "–",
    }


def drawn(found: Found, width: int) -> Text:
    if isinstance(found, PenstockError):
        return Text(f"no answer, trying again: {harmless(found.message)}", style="bold red")
    _, standings = found
    rows = [[*cells(one).values()] for one in standings]
    lines = [*aligned([list(COLUMNS), *rows])] if rows else ["no queues; create one: penstock queues create NAME"]
    return Text("\n").join(fitted(line, width, bold=not n and bool(rows)) for n, line in enumerate(lines))


def fitted(line: str, width: int, *, bold: bool) -> Text:
    """Cut, not wrapped: a line that is two would move all below it."""
    text = Text(line, style="bold" if bold else "", no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(line[n]) for line in lines) for n in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(padded(text, widths[n], COLUMNS[n] in TEXTS) for n, text in enumerate(line)).rstrip()
