"""`penstock top` shows queues, workers and decisions, live in a terminal."""

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

from penstock.cli.terminal.board import NO_QUEUES, format_fleet, format_foreseen, format_rate
from penstock.cli.terminal.formatting import escape, pad
from penstock.cli.terminal.options import OneOrAll, Shell, parse_seconds, read_only, with_shell
from penstock.client.conninfo import describe_dsn
from penstock.client.statements.reasons import SILENT_AFTER
from penstock.errors import PenstockError, ValidationError
from penstock.formatting import format_age
from penstock.model import Board, BoardWorker, StoredDecision
from penstock.scaler.standing import SAMPLES, RecentBoards, SlaStanding

COLOURS = {"NORMAL": "green", "ELEVATED": "cyan", "WARNING": "yellow", "CRITICAL": "bright_red", "BREACH": "bold red"}
BAR_WIDTH = 12  # cells of the terminal
MAX_DECISIONS = 30
MAX_SILENCE = 3.0  # seconds without an answer: the head says so
REDRAW_INTERVAL = 1.0  # seconds; ages grow between two answers
MIN_INTERVAL, MAX_INTERVAL = 0.1, 60.0


@with_shell
@read_only
def top(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    interval: Annotated[str, typer.Option(help="How often it looks.")] = "1s",
) -> None:
    """Show queues, workers and decisions, live. Press q or Ctrl-C to quit.

    The bar compares the age of the oldest waiting task with the SLA. The column workers shows how many there are, of
    how many the scaler wants; a question mark means that no scaler runs now. If PostgreSQL does not answer, the first
    line says so, and `top` keeps trying.

    Example: penstock top mail --interval 2s
    """
    every = parse_seconds(interval, "interval")
    if not MIN_INTERVAL <= every <= MAX_INTERVAL:
        raise ValidationError(
            f"interval: {every:g} s is not between {MIN_INTERVAL:g} and {MAX_INTERVAL:g} s", field="interval"
        )
    if shell.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "`penstock status --watch`, also with --json, needs none."
        raise ValidationError("top: it needs a terminal to draw on", hint=hint)
    if Console().is_dumb_terminal:
        hint = "Set TERM to the type of your terminal, such as xterm-256color, or use `penstock status --watch`."
        raise ValidationError(
            f"top: a terminal of the type {os.environ.get('TERM', '')!r} cannot be drawn on", hint=hint
        )
    penstock = shell.connect()
    poller = BoardPoller(lambda: penstock.board(queue, decisions=MAX_DECISIONS, samples=SAMPLES), every)
    poller.poll()  # an error of the first look is raised
    database = describe_dsn(penstock.dsn)
    with open_terminal() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:
        poller.start()
        size = None
        while not keys.quit:
            view, size = poller.view, live.console.size
            live.update(draw_screen(view, database, width=size.width, height=size.height), refresh=True)
            keys.wait(REDRAW_INTERVAL, poller.changed)
    if not poller.stop():
        exit_at_once(keys)
    penstock.close()
    if keys.interrupted:
        raise KeyboardInterrupt


def exit_at_once(keys: KeyReader) -> None:
    """Exits while a look still waits for PostgreSQL. The terminal is restored already."""
    sys.stdout.flush()
    os._exit(130 if keys.interrupted else 0)


# --- polling ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """The last board, when it was read, and the error since then."""

    board: Board
    standings: Sequence[SlaStanding]
    seen: float  # by the clock of this process
    error: str | None = None
    patience: float = MAX_SILENCE


class BoardPoller:
    """Reads the board in a thread, so that keys and drawing work while PostgreSQL does not answer."""

    def __init__(self, ask: Callable[[], Board], every: float) -> None:
        self._ask, self._every = ask, every
        self._memory = RecentBoards()
        self._view: View | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-top", daemon=True)
        self.changed, self._tell = os.pipe()  # wakes up `KeyReader.wait`

    @property
    def view(self) -> View:
        assert self._view is not None
        return self._view

    def poll(self) -> None:
        board = self._ask()
        patience = max(MAX_SILENCE, 3 * self._every)
        self._view = View(board, self._memory.see(board), time.monotonic(), patience=patience)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Stops the thread. Returns False if it still waits for an answer."""
        self._stopped.set()
        self._thread.join(0.5)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                self.poll()
            except PenstockError as error:  # PostgreSQL does not answer, or the queue was dropped
                self._note_error(error.message)
            os.write(self._tell, b".")

    def _note_error(self, why: str) -> None:
        self._view = replace(self.view, error=why)


# --- the terminal -----------------------------------------------------------------------------------------------------


class KeyReader:
    """Reads keys. Ctrl-C arrives as a signal, and so does a resize, which wakes up the loop."""

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
        """Waits for a key, a signal or a new board, for at most so many seconds."""
        ready, _, _ = select.select([sys.stdin, self._woken, changed], [], [], most)
        for one in (self._woken, changed):
            if one in ready:
                os.read(one, 4096)
        if sys.stdin in ready:
            pressed = os.read(sys.stdin.fileno(), 64)
            self.quit = self.quit or not pressed or pressed[:1] in (b"q", b"Q", b"\x04")


@contextmanager
def open_terminal() -> Iterator[KeyReader]:
    """Reads single keys without echo, and restores the terminal at the end."""
    keys, descriptor = KeyReader(), sys.stdin.fileno()
    with ExitStack() as stack:
        stack.callback(termios.tcsetattr, descriptor, termios.TCSADRAIN, termios.tcgetattr(descriptor))
        tty.setcbreak(descriptor)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(keys.wake, warn_on_full_buffer=False))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
            stack.callback(signal.signal, number, signal.signal(number, keys.on_signal))
        yield keys


# --- the screen -------------------------------------------------------------------------------------------------------


def draw_screen(view: View, database: str, *, width: int, height: int) -> Group:
    """Draws queues, workers and decisions into so many lines of so many cells, however small."""
    lines = [draw_head(view, database, width)]
    left = height - len(lines)
    queues = fit_lines([*draw_queues(view, width)], left if left < 8 else max(4, left // 2), "queues")
    left -= len(queues)
    decisions = [*draw_decisions(view.board.decisions, view.board.at)]
    workers = fit_lines(
        [*draw_workers(view.board.workers, width)], max(0, left - min(len(decisions), left // 2)), "workers"
    )
    left -= len(workers)
    lines += [*queues, *workers, *decisions[: max(0, left)]]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:height])


def fit_lines(lines: list[Text], most: int, what: str) -> list[Text]:
    """Cuts a list of lines. The last line says how many are left out."""
    if len(lines) <= most:
        return lines
    kept = lines[: max(0, most - 1)]
    return [*kept, Text(f"  and {len(lines) - len(kept)} more {what}", style="dim")][:most]


def draw_head(view: View, database: str, width: int) -> Text:
    at = datetime.fromtimestamp(view.board.at, UTC)
    silent = time.monotonic() - view.seen
    if view.error is not None or silent > view.patience:
        why = "" if view.error is None else f": {view.error}"
        return Text(escape(f"no answer for {format_age(silent)}, trying again{why}"), style="bold white on red")
    keys = "q quits"
    said = f"penstock · {escape(database)}"
    clock = f"{at:%H:%M:%S}Z  {keys}"
    room = width - len(clock) - 2
    return Text(f"{set_cell_size(said, room)}  {clock}" if room > 8 else clock, style="bold reverse")


Cells = list[tuple[str, str]]  # text and style


def align_columns(columns: Sequence[str], rows: Sequence[Cells], *, words: Sequence[str]) -> Iterator[Text]:
    """Aligns a header and rows: columns in `words` to the left, the others to the right."""
    heads: Cells = [(name, "bold") for name in columns]
    lines = [heads, *rows]
    widths = [max(cell_len(line[n][0]) for line in lines) for n in range(len(columns))]
    for line in lines:
        text = Text()
        for n, (said, style) in enumerate(line):
            text.append(pad(said, widths[n], columns[n] in words) + "  ", style=style or None)
        yield text


# Each column, and the least width of a terminal that shows it.
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


def draw_queues(view: View, width: int) -> Iterator[Text]:
    if not view.standings:
        yield Text(NO_QUEUES, style="dim")
        return
    shown = [name for name, least in QUEUE_COLUMNS if width >= least]
    rows = [
        [cell for name, cell in format_queue(one).items() if name in shown] for one in sort_worst_first(view.standings)
    ]
    yield from align_columns(shown, rows, words=("queue", "of sla", ""))


def sort_worst_first(standings: Sequence[SlaStanding]) -> list[SlaStanding]:
    return sorted(standings, key=lambda one: (-(one.usage or 0.0), one.status.queue))


def format_queue(one: SlaStanding) -> dict[str, tuple[str, str]]:
    status, colour = one.status, COLOURS.get(one.urgency or "", "")
    oldest = format_age(status.oldest_pending_age)
    promised = "" if status.sla is None else f" / {format_age(status.sla)}"
    return {
        "queue": (escape(status.queue, most=24), colour),
        "planned": (f"{status.planned:,}", ""),
        "pending": (f"{status.pending:,}", colour),
        "active": (f"{status.active:,}", ""),
        "dead": (f"{status.dead:,}", "red" if status.dead else ""),
        "oldest": (oldest + promised, colour),
        "of sla": (draw_bar(one.usage), colour),
        "late": (format_foreseen(one), colour),
        "in/s": (format_rate(one.arriving), ""),
        "out/s": (format_rate(one.leaving), ""),
        "eta": (format_age(one.eta), ""),
        "workers": (format_fleet(one), ""),
        "": ("paused" if status.paused else one.urgency or "", colour),
    }


def draw_bar(usage: float | None) -> str:
    """Draws how much of the SLA is used up. A late task fills the bar."""
    filled = 0 if usage is None else min(BAR_WIDTH, round(usage * BAR_WIDTH)) or int(usage > 0)
    return "█" * filled + "·" * (BAR_WIDTH - filled)


WORKER_COLUMNS = (("worker", 0), ("busy", 0), ("age", 36), ("state", 30), ("queues", 56))


def draw_workers(workers: Sequence[BoardWorker], width: int) -> Iterator[Text]:
    yield Text()
    if not workers:
        yield Text("no workers", style="dim")
        return
    shown = [name for name, least in WORKER_COLUMNS if width >= least]
    rows = [[cell for name, cell in format_worker(one).items() if name in shown] for one in workers]
    yield from align_columns(shown, rows, words=("worker", "state", "queues"))


def format_worker(one: BoardWorker) -> dict[str, tuple[str, str]]:
    state, style = describe_state(one)
    return {
        "worker": (escape(one.name, most=32), style),
        "busy": (f"{one.busy} of {one.slots}", "" if one.busy else "dim"),
        "age": (format_age(one.age), ""),
        "state": (state, style),
        "queues": (escape(",".join(one.queues), most=40), ""),
    }


def describe_state(one: BoardWorker) -> tuple[str, str]:
    if one.silent > SILENT_AFTER:
        return f"silent {format_age(one.silent)}", "red"
    if one.leaving:
        return "leaving", "yellow"
    if one.busy:
        return "busy", "green"
    return ("idle", "dim") if one.claimed else ("new", "cyan")


def draw_decisions(decisions: Sequence[StoredDecision], now: float) -> Iterator[Text]:
    yield Text()
    if not decisions:
        yield Text("no decisions: no scaler has run yet", style="dim")
        return
    yield Text("decisions", style="bold")
    for one in decisions:
        ago = format_age(max(0.0, now - one.at.timestamp()))
        line = Text(f"{ago:>6}  ")
        line.append(f"{escape(one.queue, most=24)}  ", style=COLOURS.get(one.urgency, ""))
        yield line.append(escape(one.reason))
