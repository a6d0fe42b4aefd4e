"""Options that several commands share, and functions that check or parse their values."""

from __future__ import annotations

import json as plain_json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast

import orjson
import typer

from penstock import validate
from penstock.app import Penstock
from penstock.cli.terminal.output import print_json, print_line
from penstock.client.conninfo import describe_dsn
from penstock.errors import ConfigError, NotFound, PayloadError, ValidationError, shown
from penstock.model import GAUGES, State

P = ParamSpec("P")
T = TypeVar("T")

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="The PostgreSQL database; default: PENSTOCK_DSN, DATABASE_URL, PG*, or the embedded server.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only errors.")]
VERBOSE = "Print which database is used, and where its DSN comes from."
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help=VERBOSE)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, but change nothing.")]

QueueName = Annotated[str, typer.Argument(help="The queue.")]
OneOrAll = Annotated[str | None, typer.Argument(help="One queue; default: all.", show_default=False)]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Tasks, by their ids.", show_default=False)]
Subjects = Annotated[
    list[str] | None,
    typer.Option("--subject", help="A task, by its subject; you can repeat the option.", show_default=False),
]
Subject = Annotated[str | None, typer.Option(help="Only the task with this subject.", show_default=False)]
Kind = Annotated[str | None, typer.Option(help="Only tasks of this kind.", show_default=False)]
ErrorText = Annotated[
    str | None,
    typer.Option(
        "--error",
        help="Only tasks with this text in the class, message or traceback of their error, or in their reason; "
        "case does not matter.",
        show_default=False,
    ),
]
NoTracebacks = Annotated[
    bool, typer.Option("--no-tracebacks", help="Store only class and message of errors, without tracebacks.")
]
PageSize = Annotated[int, typer.Option(help="The largest number of rows.")]
After = Annotated[int | None, typer.Option(help="Only ids above this one, for the next page.", show_default=False)]
Limit = Annotated[
    int | None, typer.Option("--limit", help="The largest number of tasks; default: all.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class Shell:
    """The options of every command that uses a database: which database, and how to print the answer."""

    json: bool
    quiet: bool
    dsn: str | None
    verbose: bool

    def connect(self, *, rehearse: bool = False) -> Penstock:
        """Connects to the database. With `rehearse`, every change is rolled back."""
        return connect(self.dsn, verbose=self.verbose, rehearse=rehearse)

    def answer(self, value: object, text: str) -> None:
        """Prints the value with --json, and the text without it."""
        if self.json:
            print_json(value)
        else:
            print_line(text, quiet=self.quiet)


Options = tuple[tuple[str, Any, object], ...]  # name, annotation for typer, default

COMMON: Options = (
    ("json", AsJson, False),
    ("quiet", Quiet, False),
    ("dsn", Dsn, None),
    ("verbose", Verbose, False),
)


def with_shell(command: Callable[Concatenate[Shell, P], None]) -> Callable[..., None]:
    """Adds the common options to a command, which receives them as a `Shell`, its first argument."""
    return share_options(COMMON, lambda values: Shell(**values), command)


def share_options(
    options: Options, make: Callable[[dict[str, Any]], T], command: Callable[Concatenate[T, P], None]
) -> Callable[..., None]:
    """Adds shared options after the options of a command, which receives `make(options)` as its first argument."""
    own = list(signature(command, eval_str=True).parameters.values())[1:]
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in (*options, ("debug", Debug, False))
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        given.pop("debug")  # `main` reads it from sys.argv
        values = {name: given.pop(name) for name, _, _ in options}
        command(make(values), **given)  # type: ignore[call-arg]  # the signature is set below

    run.__doc__ = join_lines(command.__doc__ or "")
    run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in (*own, *shared)}
    return run


def join_lines(text: str) -> str:
    """Joins the lines of each paragraph, so that the help breaks them at the width of the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def read_only(command: Callable[P, None]) -> Callable[P, None]:
    """Marks a command that only reads: for a missing queue it hints at `queues ls`, not at `queues create`."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except NotFound as error:
            if error.hint and error.hint.startswith("Create it "):
                error.hint = "`penstock queues ls` lists them."
            raise

    return run


def connect(dsn: str | None, *, verbose: bool = False, rehearse: bool = False) -> Penstock:
    if dsn is not None and not dsn.strip():
        raise ConfigError("dsn: --dsn is empty", hint="Leave it out to use PENSTOCK_DSN, DATABASE_URL or PG*.")
    penstock = Penstock(dsn, rehearse=rehearse)
    if verbose:
        unused = [
            name for name in ("PENSTOCK_DSN", "DATABASE_URL") if os.environ.get(name) and name != penstock.dsn_source
        ]
        beside = f"; {' and '.join(unused)} not used" if unused else ""
        sys.stderr.write(f"database: {describe_dsn(penstock.dsn)}, from {penstock.dsn_source}{beside}\n")
    return penstock


# --- values from the command line -------------------------------------------------------------------------------------


def parse_moment(value: str | None, field: str) -> datetime | None:
    return None if value is None else validate.moment(value, field)


def parse_seconds(value: str, field: str) -> float:
    """Reads a length of time, such as `90`, `90s` or `1m30s`, as seconds."""
    try:
        given: str | float = float(value)
    except ValueError:
        given = value
    return validate.duration(given, field).total_seconds()


def check_text(value: str | None, field: str, most: int) -> str | None:
    """Checks a text. An empty one is refused, since as a filter it matches everything."""
    return None if value is None else validate.text(value, field, most)


def check_kind(value: str | None) -> str | None:
    return check_text(value, "kind", validate.MAX_KIND)


def check_error_text(value: str | None) -> str | None:
    return check_text(value, "error", MAX_ERROR_BYTES)


MAX_ERROR_BYTES = 8192


def check_one_of(value: str, words: tuple[str, ...], field: str) -> str:
    if value in words:
        return value
    near = get_close_matches(value, words, 1)
    raise ValidationError(
        f"{field}: {shown(value)} is not one of {', '.join(words)}",
        hint=f"Did you mean {near[0]}?" if near else None,
        field=field,
    )


def parse_state(value: str | None) -> State | None:
    return None if value is None else cast("State", check_one_of(value, GAUGES, "state"))


def parse_json(raw: bytes) -> Any:
    try:
        if validate.LONG_NUMBER in raw.translate(validate.DIGITS_ONLY):
            return plain_json.loads(raw)  # an integer outside 64 bits stays exact, and is refused
        return orjson.loads(raw)
    except (ValueError, RecursionError) as error:
        said = ONE_LINE_POSITION.sub(r" at column \1", str(error))  # the caller names the line, if there are several
        raise PayloadError(f"it is not JSON: {said[:120]}") from None


ONE_LINE_POSITION = re.compile(r": line 1 column (\d+) \(char \d+\)$")
