"""`penstock push`, `status`, `verify`."""

from __future__ import annotations

import json as plain_json
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn
from uuid import UUID

import orjson
import typer

from penstock.cli.output import (
    AsJson,
    Debug,
    DryRun,
    Dsn,
    Quiet,
    Verbose,
    age,
    connected,
    emit,
    progress_bar,
    say,
    table,
)
from penstock.errors import PayloadError, ValidationError, shown
from penstock.model import GAUGES, PUSH_RESULTS, NewTask, QueueStatus
from penstock.spool import Spool
from penstock.validate import DIGITS_ONLY, LONG_NUMBER, moment, queue_name, token

LONGEST_LINE = (16 << 20) + (64 << 10)
FIELDS = ("payload", "subject", "kind", "due", "priority")
BOM = b"\xef\xbb\xbf"


def push(
    queue: Annotated[str, typer.Argument(help="The queue.")],
    *,
    file: Annotated[str, typer.Option("--file", "-f", help="JSONL, one task a line; `-` is standard input.")] = "-",
    on_conflict: Annotated[str, typer.Option(help="What a subject that exists already gets: skip or error.")] = "skip",
    batch_id: Annotated[
        str | None,
        typer.Option(help="Repeat a push that failed half-way under its id; nothing is doubled.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Push tasks: a line is {"payload": {…}, "subject"?: …, "kind"?: …, "due"?: …, "priority"?: 0-9}.

    A bad line is named, and nothing is written.
    """
    queue_name(queue)
    batch: UUID | None = None if batch_id is None else token(batch_id)
    if on_conflict not in ("skip", "error"):
        raise ValidationError(f"on_conflict: {shown(on_conflict)} is not skip or error", field="on_conflict")
    with opened(file) as source:
        lines = Lines(source)
        try:
            if dry_run:
                with Spool() as spool:
                    spool.fill(lines)
                    counts = dict.fromkeys(PUSH_RESULTS, 0) | {"checked": spool.rows}
            else:
                with (
                    connected(dsn, verbose=verbose) as penstock,
                    progress_bar(f"push {queue}", None, quiet=quiet or json) as bar,
                ):
                    target = penstock.queue(queue)
                    target.status()  # a queue that does not exist is told before a long file is read
                    report = target.push_many(lines, on_conflict=on_conflict, batch_id=batch, progress=bar)  # type: ignore[arg-type]
                    counts = report.counts
        except ValidationError as error:
            if error.index is None:
                raise
            line = lines.line_of(error.index)
            raise type(error)(f"line {line}: {error.bare}", hint=error.hint, field=error.field) from None
    if json:
        emit(counts)
    else:
        say(", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "nothing to push", quiet=quiet)


def status(
    queue: Annotated[str | None, typer.Argument(help="One queue; default: all.", show_default=False)] = None,
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """How queues stand: exact counts by state, the oldest age, totals."""
    with connected(dsn, verbose=verbose) as penstock:
        found = [penstock.queue(queue).status()] if queue is not None else penstock.status()
    if json:
        emit({"queues": [as_json(one) for one in found]})
    elif not quiet:
        print_status(found)


def verify(
    queue: Annotated[str | None, typer.Argument(help="One queue; default: all.", show_default=False)] = None,
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Recount everything and compare it with the books. Exit 1 when anything is off."""
    with connected(dsn, verbose=verbose) as penstock:
        found = penstock.queue(queue).verify() if queue is not None else penstock.verify()
    if json:
        emit(
            {
                "drift": found.drift,
                "orphans": found.orphans,
                "history": found.history,
                "balance": found.balance,
                "dropped": found.dropped,
                "findings": [one._asdict() for one in found.findings],
            }
        )
    else:
        for one in found.findings:
            say(f"{one.queue}: {one.what}: expected {one.expected:,}, found {one.found:,}", quiet=quiet)
        if found.ok:
            say("all is well: counters, places, history and balance agree", quiet=quiet)
    if not found.ok:
        raise typer.Exit(1)


def print_status(found: list[QueueStatus]) -> None:
    table(
        ("queue", *GAUGES, "oldest", "sla", "pushed", ""),
        [
            (
                one.queue,
                *(f"{getattr(one, gauge):,}" for gauge in GAUGES),
                age(one.oldest_pending_age),
                age(one.sla),
                f"{one.totals['pushed']:,}",
                "paused" if one.paused else "",
            )
            for one in found
        ],
    )


def as_json(one: QueueStatus) -> dict[str, Any]:
    return {
        "queue": one.queue,
        **{gauge: getattr(one, gauge) for gauge in GAUGES},
        "oldest_pending_age": one.oldest_pending_age,
        "sla": one.sla,
        "paused": one.paused,
        "totals": dict(one.totals),
        "at": one.at.isoformat() if one.at else None,
    }


# --- reading JSONL ----------------------------------------------------------------------------------------------------


@contextmanager
def opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ValidationError(f"file: {shown(file)}: {error.strerror}", field="file") from None
    with source:
        yield source


class Lines:
    """The tasks of a JSONL file, and on which line each of them is."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._blank: list[int] = []  # how many tasks came before each blank line
        self._number = 0

    def line_of(self, task: int) -> int:
        return task + bisect_right(self._blank, task) + 1

    def __iter__(self) -> Iterator[NewTask]:
        while line := self._source.readline(LONGEST_LINE):
            self._number += 1
            if len(line) >= LONGEST_LINE:
                self._refuse(f"it is longer than {LONGEST_LINE} bytes")
            if self._number == 1:
                line = line.removeprefix(BOM)
            if text := line.strip():
                yield self._task(text)
            else:
                self._blank.append(self._number - len(self._blank) - 1)

    def _task(self, line: bytes) -> NewTask:
        value = self._parsed(line)
        if type(value) is not dict:
            self._refuse(
                "it is not a JSON object", hint='A line is {"payload": {…}, "subject"?, "kind"?, "due"?, "priority"?}.'
            )
        unknown = [key for key in value if key not in FIELDS]
        if unknown:
            near = get_close_matches(unknown[0], FIELDS, 1)
            self._refuse(
                f"field {shown(unknown[0])} is not known",
                hint=f"Did you mean {near[0]}?" if near else f"Fields are {', '.join(FIELDS)}.",
            )
        if type(value.get("payload")) is not dict:
            self._refuse("payload: it is missing, or not a JSON object")
        try:
            due = value.get("due")
            return NewTask(
                value["payload"],
                value.get("subject"),
                None if due is None else moment(due),
                value.get("priority", 5),
                value.get("kind", "default"),
            )
        except ValidationError as error:
            self._refuse(error.bare, hint=error.hint)

    def _parsed(self, line: bytes) -> Any:
        try:
            if LONG_NUMBER in line.translate(DIGITS_ONLY):
                return plain_json.loads(line)  # exactly, so that an integer outside 64 bits is refused, not rounded
            return orjson.loads(line)
        except (ValueError, RecursionError) as error:
            self._refuse(f"it is not JSON: {str(error)[:120]}")

    def _refuse(self, message: str, hint: str | None = None) -> NoReturn:
        raise PayloadError(f"line {self._number}: {message}", hint=hint)
