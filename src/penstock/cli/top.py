"""`penstock top`: queues, workers and decisions, live in a terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from penstock.cli.board import SAMPLES, Memory, Standing, fleet_words, foreseen_words, rate_words
from penstock.cli.options import OneOrAll, Shell, reading, with_shell
from penstock.cli.output import age, harmless, padded
from penstock.cli.scale import seconds
from penstock.errors import PenstockError, ValidationError
from penstock.model import Board, BoardWorker, NotedDecision
from penstock.wire import described

COLOURS = {"NORMAL": "green", "ELEVATED": "cyan", "WARNING": "yellow", "CRITICAL": "bright_red", "BREACH": "bold red"}
BAR = 12  # cells
SILENT = 10.0  # seconds after which a worker may be gone
DECISIONS = 30
PATIENCE = 3.0  # seconds after which it is told that nobody answers
REDRAWN = 1.0  # seconds: ages grow meanwhile
SHORTEST, LONGEST = 0.1, 60.0


@with_shell
@reading
def top(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    interval: Annotated[str, typer.Option(help="Between two looks.")] = "1s",
) -> None:
    """Queues, workers and decisions, live. q or Ctrl-C ends it.

    The bar is the age of the oldest waiting task against the SLA. Workers: those there are, of those the scaler wants;
    a question mark: no scaler runs now. When PostgreSQL goes away it says so, and keeps trying.

    Example: penstock top mail --interval 2s
    """
    every = seconds(interval, "interval")
    if not SHORTEST <= every <= LONGEST:
        raise ValidationError(f"interval: {every:g} s is not between {SHORTEST:g} and {LONGEST:g} s", field="interval")
    if shell.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "`penstock status --watch`, with --json too, goes anywhere."
        raise ValidationError("top: it needs a terminal to draw on", hint=hint)
    penstock = shell.connected()
    eyes = Eyes(lambda: penstock.board(queue, decisions=DECISIONS, samples=SAMPLES), every)
    eyes.look()  # what is wrong from the beginning is an error like any other
    place = described(penstock.dsn)
    with terminal() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:
        eyes.start()
        size = None
        while not keys.quit:
            view, size = eyes.view, live.console.size
            live.update(picture(view, place, width=size.width, height=size.height), refresh=True)
            keys.wait(REDRAWN, eyes.changed)
    if not eyes.stop():
        leave_at_once(keys)
    penstock.close()
    if keys.interrupted:
        raise KeyboardInterrupt


def leave_at_once(keys: Keys) -> None:
    """A look that nobody answers can not be waited for; the terminal is as it was."""
    sys.stdout.flush()
    os._exit(130 if keys.interrupted else 0)


# --- looking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What was seen last, and since when nothing more could be."""

    board: Board
    standings: Sequence[Standing]
    seen: float  # by our own clock
    error: str | None = None
    patience: float = PATIENCE


class Eyes:
    """Looks, in a thread: while PostgreSQL does not answer, keys and redrawing go on."""

    def __init__(self, ask: Callable[[], Board], every: float) -> None:
        self._ask, self._every = ask, every
        self._memory = Memory()
        self._view: View | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-top", daemon=True)
        self.changed, self._tell = os.pipe()  # read by whoever waits for keys

    @property
    def view(self) -> View:
        assert self._view is not None
        return self._view

    def look(self) -> None:
        board = self._ask()
        patience = max(PATIENCE, 3 * self._every)
        self._view = View(board, self._memory.see(board), time.monotonic(), patience=patience)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """False: it waits for an answer that does not come."""
        self._over.set()
        self._thread.join(0.5)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.look()
            except PenstockError as error:  # PostgreSQL is away, or the queue was dropped
                self._failed(error.message)
            os.write(self._tell, b".")

    def _failed(self, why: str) -> None:
        self._view = replace(self.view, error=why)


# --- the terminal -----------------------------------------------------------------------------------------------------


class Keys:
    """What was pressed. Ctrl-C is a signal, as everywhere; a resize wakes the loop by one too."""

    def __init__(self) -> None:
        self.quit = False
        self.interrupted = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def on_signal(self, number: int, _: object) -> None:
        if number != signal.SIGWINCH:
            self.quit = self.interrupted = True

    @property
    def wake(self) -> int:
        return self._wake

    def wait(self, most: float, changed: int) -> None:
        """Until a key, a signal, something new to see, or so many seconds."""
        ready, _, _ = select.select([sys.stdin, self._woken, changed], [], [], most)
        for one in (self._woken, changed):
            if one in ready:
                os.read(one, 4096)
        if sys.stdin in ready:
            pressed = os.read(sys.stdin.fileno(), 64)
            self.quit = self.quit or not pressed or pressed[:1] in (b"q", b"Q", b"\x04")


@contextmanager
def terminal() -> Iterator[Keys]:
    """Keys one by one and unseen; everything as it was, however we leave."""
    keys, descriptor = Keys(), sys.stdin.fileno()
    with ExitStack() as stack:
        stack.callback(termios.tcsetattr, descriptor, termios.TCSADRAIN, termios.tcgetattr(descriptor))
        tty.setcbreak(descriptor)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(keys.wake, warn_on_full_buffer=False))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
            stack.callback(signal.signal, number, signal.signal(number, keys.on_signal))
        yield keys


# --- the picture ------------------------------------------------------------------------------------------------------


def picture(view: View, place: str, *, width: int, height: int) -> Group:
    """So many lines of so many cells, however small: queues first, then workers, then what was decided."""
    lines = [head(view, place, width)]
    left = height - len(lines)
    queues = fitted([*queue_lines(view, width)], left if left < 8 else max(4, left // 2), "queues")
    left -= len(queues)
    decisions = [*decision_lines(view.board.decisions, view.board.at)]
    workers = fitted(
        [*worker_lines(view.board.workers, width)], max(0, left - min(len(decisions), left // 2)), "workers"
    )
    left -= len(workers)
    lines += [*queues, *workers, *decisions[: max(0, left)]]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:height])


def fitted(lines: list[Text], most: int, what: str) -> list[Text]:
    """A line says how many did not fit."""
    if len(lines) <= most:
        return lines
    kept = lines[: max(0, most - 1)]
    return [*kept, Text(f"  and {len(lines) - len(kept)} more {what}", style="dim")][:most]


def head(view: View, place: str, width: int) -> Text:
    at = datetime.fromtimestamp(view.board.at, UTC)
    silent = time.monotonic() - view.seen
    if view.error is not None or silent > view.patience:
        why = "" if view.error is None else f": {view.error}"
        return Text(harmless(f"no answer for {age(silent)}, trying again{why}"), style="bold white on red")
    keys = "q quits"
    said = f"penstock · {harmless(place)}"
    clock = f"{at:%H:%M:%S}Z  {keys}"
    room = width - len(clock) - 2
    return Text(f"{set_cell_size(said, room)}  {clock}" if room > 8 else clock, style="bold reverse")


Cells = list[tuple[str, str]]  # text and style


def laid_out(columns: Sequence[str], rows: Sequence[Cells], *, words: Sequence[str]) -> Iterator[Text]:
    """A header and rows, numbers to the right."""
    heads: Cells = [(name, "bold") for name in columns]
    lines = [heads, *rows]
    widths = [max(cell_len(line[n][0]) for line in lines) for n in range(len(columns))]
    for line in lines:
        text = Text()
        for n, (said, style) in enumerate(line):
            text.append(padded(said, widths[n], columns[n] in words) + "  ", style=style or None)
        yield text


# The least width of a terminal for which a column is worth its room.
QUEUE_COLUMNS = (
    ("queue", 0),
    ("planned", 110),
    ("pending", 0),
    ("active", 50),
    ("dead", 90),
    ("oldest", 0),
    ("of sla", 62),
    ("late", 74),
    ("in/s", 84),
    ("out/s", 48),
    ("eta", 66),
    ("workers", 30),
    ("", 100),
)


def queue_lines(view: View, width: int) -> Iterator[Text]:
    if not view.standings:
        yield Text("no queues; create one: penstock queues create NAME", style="dim")
        return
    shown = [name for name, least in QUEUE_COLUMNS if width >= least]
    rows = [[cell for name, cell in queue_cells(one).items() if name in shown] for one in worst_first(view.standings)]
    yield from laid_out(shown, rows, words=("queue", "of sla", ""))


def worst_first(standings: Sequence[Standing]) -> list[Standing]:
    return sorted(standings, key=lambda one: (-(one.usage or 0.0), one.status.queue))


def queue_cells(one: Standing) -> dict[str, tuple[str, str]]:
    status, colour = one.status, COLOURS.get(one.urgency or "", "")
    oldest = age(status.oldest_pending_age)
    promised = "" if status.sla is None else f" / {age(status.sla)}"
    return {
        "queue": (harmless(status.queue, most=24), colour),
        "planned": (f"{status.planned:,}", ""),
        "pending": (f"{status.pending:,}", colour),
        "active": (f"{status.active:,}", ""),
        "dead": (f"{status.dead:,}", "red" if status.dead else ""),
        "oldest": (oldest + promised, colour),
        "of sla": (bar(one.usage), colour),
        "late": (foreseen_words(one), colour),
        "in/s": (rate_words(one.arriving), ""),
        "out/s": (rate_words(one.leaving), ""),
        "eta": (age(one.eta), ""),
        "workers": (fleet_words(one), ""),
        "": ("paused" if status.paused else one.urgency or "", colour),
    }


def bar(usage: float | None) -> str:
    """How much of the promise is used up; what is late fills it."""
    filled = 0 if usage is None else min(BAR, round(usage * BAR)) or int(usage > 0)
    return "█" * filled + "·" * (BAR - filled)


WORKER_COLUMNS = (("worker", 0), ("busy", 0), ("age", 36), ("state", 30), ("queues", 56))


def worker_lines(workers: Sequence[BoardWorker], width: int) -> Iterator[Text]:
    yield Text()
    if not workers:
        yield Text("no workers", style="dim")
        return
    shown = [name for name, least in WORKER_COLUMNS if width >= least]
    rows = [[cell for name, cell in worker_cells(one).items() if name in shown] for one in workers]
    yield from laid_out(shown, rows, words=("worker", "state", "queues"))


def worker_cells(one: BoardWorker) -> dict[str, tuple[str, str]]:
    state, style = worker_state(one)
    return {
        "worker": (harmless(one.name, most=32), style),
        "busy": (f"{one.busy} of {one.slots}", "" if one.busy else "dim"),
        "age": (age(one.age), ""),
        "state": (state, style),
        "queues": (harmless(",".join(one.queues), most=40), ""),
    }


def worker_state(one: BoardWorker) -> tuple[str, str]:
    if one.silent > SILENT:
        return f"silent {age(one.silent)}", "red"
    if one.leaving:
        return "leaving", "yellow"
    if one.busy:
        return "busy", "green"
    return ("idle", "dim") if one.claimed else ("new", "cyan")


def decision_lines(decisions: Sequence[NotedDecision], now: float) -> Iterator[Text]:
    yield Text()
    if not decisions:
        yield Text("no decisions: no scaler has run yet", style="dim")
        return
    yield Text("decisions", style="bold")
    for one in decisions:
        ago = age(max(0.0, now - one.at.timestamp()))
        line = Text(f"{ago:>6}  ")
        line.append(f"{harmless(one.queue, most=24)}  ", style=COLOURS.get(one.urgency, ""))
        yield line.append(harmless(one.reason))
