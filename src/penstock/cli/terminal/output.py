"""Prints answers, as one JSON value or as text, and errors, as one block on standard error."""

from __future__ import annotations

import json as plain_json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich.cells import cell_len

from penstock.cli.terminal.formatting import pad
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def print_json(value: Any) -> None:
    """Prints one JSON value, in ASCII for any terminal."""
    sys.stdout.write(plain_json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def print_line(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def print_interrupted(text: str = "") -> None:
    """Prints what Ctrl-C left behind. `main` sets the exit code."""
    sys.stderr.write(f"interrupted{text and '; '}{text}\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] = ()) -> None:
    """Prints a table. The first column and those named in `words` are aligned left, as text; the others right.

    Lines are never cut at the width of the terminal: a missing column is worse than a long line.
    """
    lines = [columns, *rows]
    widths = [max(cell_len(line[n]) for line in lines) for n in range(len(columns))]
    left = [n == 0 or name in words for n, name in enumerate(columns)]
    for number, line in enumerate(lines):
        text = "  ".join(map(pad, line, widths, left)).rstrip()
        print_line(f"\x1b[1m{text}\x1b[0m" if number == 0 and sys.stdout.isatty() else text)


def exit_with_error(error: PenstockError, *, json: bool, debug: bool) -> NoReturn:
    if debug:
        import traceback  # noqa: PLC0415 - only --debug needs it

        # The driver's message about a DSN that it cannot read may contain the password.
        traceback.print_exception(error, chain=not isinstance(error, ConfigError))
    if json:
        block = plain_json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
    else:
        block = f"error {error.code}: {error.message}" + (f"\n  {error.hint}" if error.hint else "")
    sys.stderr.write(block + "\n")
    sys.exit(error.exit_code)


class Bar:
    """A progress bar with rate and time left. Without a terminal it prints nothing."""

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
    # These modules take longer to import than most commands run.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        yield Bar(progress, progress.add_task(label, total=total, rate=""))
