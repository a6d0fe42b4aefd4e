"""What the shell prints: one JSON value, or a table for people; errors as one block on standard error."""

from __future__ import annotations

import json as plain_json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from penstock.errors import ConfigError, PenstockError

WIDEST_CELL = 60


def emit(value: Any) -> None:
    """ASCII only: JSON in any terminal."""
    sys.stdout.write(plain_json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def say(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def interrupted(text: str = "") -> None:
    """What Ctrl-C left behind. `main` makes the exit code."""
    sys.stderr.write(f"interrupted{text and '; '}{text}\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] = ()) -> None:
    """The first column and those called words are text, the others are numbers. Never cut to the terminal's width: a
    column that is not there is worse than a line that goes on."""
    lines = [columns, *rows]
    widths = [max(cell_len(line[n]) for line in lines) for n in range(len(columns))]
    left = [n == 0 or name in words for n, name in enumerate(columns)]
    for number, line in enumerate(lines):
        text = "  ".join(map(padded, line, widths, left)).rstrip()
        say(f"\x1b[1m{text}\x1b[0m" if number == 0 and sys.stdout.isatty() else text)


def padded(text: str, width: int, left: bool) -> str:
    blank = " " * (width - cell_len(text))
    return text + blank if left else blank + text


def harmless(text: str, *, most: int | None = None) -> str:
    """Somebody's text on one line of a terminal: nothing in it is obeyed."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


def cell(text: str | None) -> str:
    return "–" if text is None else harmless(text, most=WIDEST_CELL)


def pretty(value: Any) -> str:
    """JSON for people."""
    lines = plain_json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    return "\n".join(harmless(line) for line in lines)


def compact(value: Any) -> str:
    """JSON for people, on one line."""
    try:
        return plain_json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):  # an integer of thousands of digits, which only hand-written SQL makes
        return "…"


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def clock(moment: datetime | None) -> str:
    """A moment as people read it."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def many(count: int, thing: str = "task") -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def fail(error: PenstockError, *, json: bool, debug: bool) -> NoReturn:
    if debug:
        import traceback  # noqa: PLC0415 - only then

        # The driver's own words about a DSN it can not read may have the password in them.
        traceback.print_exception(error, chain=not isinstance(error, ConfigError))
    if json:
        block = plain_json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
    else:
        block = f"error {error.code}: {error.message}" + (f"\n  {error.hint}" if error.hint else "")
    sys.stderr.write(block + "\n")
    sys.exit(error.exit_code)


class Bar:
    """A progress bar with rate and time left, on a terminal; nothing elsewhere."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, completed: int, total: int | None = None) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed, total=total)
            speed = self._progress.tasks[self._task].speed
            self._progress.update(self._task, rate=f"{speed:,.0f}/s" if speed else "")


@contextmanager
def progress_bar(label: str, total: int | None, *, quiet: bool = False) -> Iterator[Bar]:
    if quiet or not sys.stderr.isatty():
        yield Bar(None, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        yield Bar(progress, progress.add_task(label, total=total, rate=""))


def age(seconds: float | None) -> str:
    """A measured length of time, as exact as people want it: 2.1s, 45s, 5m20s, 1h30m, 3d4h."""
    if seconds is None:
        return "–"
    steps = ((86400, 3600), (3600, 60), (10, 1))
    step = next((step for least, step in steps if seconds >= least), 0.1)
    return span(timedelta(seconds=round(round(seconds / step) * step, 1)))


def span(length: timedelta | None) -> str:
    """A length of time as one gives it: 1h30m."""
    if length is None:
        return "–"
    if timedelta() < length < timedelta(seconds=1):
        return f"{length / timedelta(milliseconds=1):g}ms"
    left, parts = length / timedelta(seconds=1), ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        count, left = divmod(left, size)
        parts += f"{count:.0f}{unit}" if count else ""
    left = round(left, 6)
    return parts + (f"{left:.6f}".rstrip("0").rstrip(".") + "s" if left or not parts else "")
