"""What commands are told: the options that many share, and the words from a terminal turned into values."""

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
from penstock.cli.output import emit, say
from penstock.errors import ConfigError, NotFound, PayloadError, ValidationError, shown
from penstock.model import GAUGES, State
from penstock.wire import described

P = ParamSpec("P")
T = TypeVar("T")

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

QueueName = Annotated[str, typer.Argument(help="The queue.")]
OneOrAll = Annotated[str | None, typer.Argument(help="One queue; default: all.", show_default=False)]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Tasks, by id.", show_default=False)]
Subjects = Annotated[
    list[str] | None, typer.Option("--subject", help="A task, by subject; may be repeated.", show_default=False)
]
Subject = Annotated[str | None, typer.Option(help="Only the task with this subject.", show_default=False)]
Kind = Annotated[str | None, typer.Option(help="Only tasks of this kind.", show_default=False)]
ErrorText = Annotated[
    str | None,
    typer.Option(
        "--error", help="Only tasks with this text in their error or reason, upper or lower case.", show_default=False
    ),
]
PageSize = Annotated[int, typer.Option(help="At most so many.")]
After = Annotated[int | None, typer.Option(help="Only ids above this one: the next page.", show_default=False)]
AtMost = Annotated[int | None, typer.Option("--limit", help="At most so many; default: all.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Shell:
    """What every command that talks to a database is told: where it is, and how to answer."""

    json: bool
    quiet: bool
    dsn: str | None
    verbose: bool

    def connected(self, *, rehearse: bool = False) -> Penstock:
        """The database a command is about. A rehearsal does everything and rolls it back."""
        return connected(self.dsn, verbose=self.verbose, rehearse=rehearse)

    def answer(self, value: object, text: str) -> None:
        """The value for programs, or the text for people."""
        if self.json:
            emit(value)
        else:
            say(text, quiet=self.quiet)


Options = tuple[tuple[str, Any, object], ...]  # name, what typer shows, default

COMMON: Options = (
    ("json", AsJson, False),
    ("quiet", Quiet, False),
    ("dsn", Dsn, None),
    ("verbose", Verbose, False),
)


def with_shell(command: Callable[Concatenate[Shell, P], None]) -> Callable[..., None]:
    """Gives a command the options that all have. It gets them as its first argument."""
    return sharing(COMMON, lambda told: Shell(**told), command)


def sharing(
    options: Options, make: Callable[[dict[str, Any]], T], command: Callable[Concatenate[T, P], None]
) -> Callable[..., None]:
    """A command with options that others have too, behind its own. What is made of them is its first argument."""
    own = list(signature(command, eval_str=True).parameters.values())[1:]
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in (*options, ("debug", Debug, False))
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        given.pop("debug")  # read by main
        told = {name: given.pop(name) for name, _, _ in options}
        command(make(told), **given)  # type: ignore[call-arg]  # the signature below says which

    run.__doc__ = flowing(command.__doc__ or "")
    run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in (*own, *shared)}
    return run


def flowing(text: str) -> str:
    """A paragraph is one line: whoever prints it breaks it where the terminal ends."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def reading(command: Callable[P, None]) -> Callable[P, None]:
    """A command that only reads: a queue that is not there is not one to create."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except NotFound as error:
            if error.hint and error.hint.startswith("Create it "):
                error.hint = "`penstock queues ls` lists them."
            raise

    return run


def connected(dsn: str | None, *, verbose: bool = False, rehearse: bool = False) -> Penstock:
    if dsn is not None and not dsn.strip():
        raise ConfigError("dsn: --dsn is empty", hint="Leave it out to use PENSTOCK_DSN, DATABASE_URL or PG*.")
    penstock = Penstock(dsn, rehearse=rehearse)
    if verbose:
        unused = [
            name for name in ("PENSTOCK_DSN", "DATABASE_URL") if os.environ.get(name) and name != penstock.dsn_source
        ]
        beside = f"; {' and '.join(unused)} not used" if unused else ""
        sys.stderr.write(f"database: {described(penstock.dsn)}, from {penstock.dsn_source}{beside}\n")
    return penstock


# --- words into values ------------------------------------------------------------------------------------------------


def moment(value: str | None, field: str) -> datetime | None:
    return None if value is None else validate.moment(value, field)


def text(value: str | None, field: str, most: int) -> str | None:
    """An empty text is refused: as a filter it would choose everything."""
    return None if value is None else validate.text(value, field, most)


def kind_text(value: str | None) -> str | None:
    return text(value, "kind", validate.LARGEST_KIND)


def error_text(value: str | None) -> str | None:
    return text(value, "error", LONGEST_ERROR)


LONGEST_ERROR = 8192


def one_of(value: str, words: tuple[str, ...], field: str) -> str:
    if value in words:
        return value
    near = get_close_matches(value, words, 1)
    raise ValidationError(
        f"{field}: {shown(value)} is not one of {', '.join(words)}",
        hint=f"Did you mean {near[0]}?" if near else None,
        field=field,
    )


def state_of(value: str | None) -> State | None:
    return None if value is None else cast("State", one_of(value, GAUGES, "state"))


def json_value(raw: bytes) -> Any:
    try:
        if validate.LONG_NUMBER in raw.translate(validate.DIGITS_ONLY):
            return plain_json.loads(raw)  # exactly, so that an integer outside 64 bits is refused, not rounded
        return orjson.loads(raw)
    except (ValueError, RecursionError) as error:
        said = ONE_LINE.sub(r" at column \1", str(error))  # whoever has many lines says which one it is
        raise PayloadError(f"it is not JSON: {said[:120]}") from None


ONE_LINE = re.compile(r": line 1 column (\d+) \(char \d+\)$")
