"""What the shell prints: one JSON value, or a table for people; errors as one block on standard error."""

from __future__ import annotations

import json as plain_json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.app import Penstock
from penstock.errors import ConfigError, PenstockError
from penstock.wire import described

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Where PostgreSQL is; default: PENSTOCK_DSN, DATABASE_URL, PG*, the embedded server.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Say which database is used, and where its DSN came from.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")]


def connected(dsn: str | None, *, verbose: bool = False) -> Penstock:
    """The database a command is about."""
    if dsn is not None and not dsn.strip():
        raise ConfigError("dsn: --dsn is empty", hint="Leave it out to use PENSTOCK_DSN, DATABASE_URL or PG*.")
    penstock = Penstock(dsn)
    if verbose:
        unused = [
            name for name in ("PENSTOCK_DSN", "DATABASE_URL") if os.environ.get(name) and name != penstock.dsn_source
        ]
        beside = f"; {' and '.join(unused)} not used" if unused else ""
        sys.stderr.write(f"database: {described(penstock.dsn)}, from {penstock.dsn_source}{beside}\n")
    return penstock


def emit(value: Any) -> None:
    """ASCII only: JSON in any terminal."""
    sys.stdout.write(plain_json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def say(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is text, the others are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for n, name in enumerate(columns):
        made.add_column(name, justify="left" if n == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, soft_wrap=True).print(made)


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

    def __call__(self, completed: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed)
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
    """Seconds as people say them."""
    if seconds is None:
        return "–"
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
