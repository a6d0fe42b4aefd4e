"""`penstock push`: tasks from JSONL."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn, cast
from uuid import UUID, uuid4

import typer

from penstock.cli.options import DryRun, QueueName, Shell, json_value, with_shell
from penstock.cli.output import interrupted, progress_bar
from penstock.errors import Conflict, PayloadError, ValidationError, shown
from penstock.model import PUSH_RESULTS, NewTask, OnConflict
from penstock.spool import Spool
from penstock.statements import ITEM, conflict
from penstock.validate import moment, queue_name, token

LONGEST_LINE = (16 << 20) + (64 << 10)
FIELDS = ("payload", "subject", "kind", "due", "priority")
INVITATION = "reading tasks, one JSON object a line; Ctrl-D ends\n"
BOM = b"\xef\xbb\xbf"


@with_shell
def push(
    shell: Shell,
    queue: QueueName,
    *,
    file: Annotated[str, typer.Option("--file", "-f", help="JSONL, one task a line; `-` is standard input.")] = "-",
    on_conflict: Annotated[
        str,
        typer.Option(
            help="A subject that exists already: skip leaves it, update brings it up to date, error refuses all."
        ),
    ] = "skip",
    batch_id: Annotated[
        str | None,
        typer.Option(help="Repeat a push that failed half-way under its id; nothing is doubled.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Push tasks: a line is {"payload": {…}, "subject"?: …, "kind"?: …, "due"?: …, "priority"?: 0-9}.

    A bad line is named, and nothing is written.

    Example: penstock push mail --file tasks.jsonl --on-conflict update
    """
    queue_name(queue)
    batch = uuid4() if batch_id is None else token(batch_id, "batch_id")
    conflict(on_conflict)
    with opened(file) as source:
        typed = file == "-" and sys.stdin.isatty()
        lines = Lines(source, "" if shell.quiet or not typed else INVITATION)
        with by_line(lines):
            counts = checked(lines) if dry_run else pushed(shell, queue, lines, cast("OnConflict", on_conflict), batch)
    said = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    shell.answer(counts | ({"dry_run": True} if dry_run else {}), said or "nothing to push")


@contextmanager
def by_line(lines: Lines) -> Iterator[None]:
    """Errors name the line, where the library counts items."""
    try:
        yield
    except ValidationError as error:
        if error.index is None:
            raise
        line = lines.line_of(error.index)
        raise type(error)(f"line {line}: {error.bare}", hint=error.hint, field=error.field) from None
    except Conflict as error:
        if (item := ITEM.match(error.message)) is None:
            raise
        message = f"line {lines.line_of(int(item[1]))}:{error.message[item.end() :]}"
        hint = "Nothing was written; --on-conflict skip or update would accept it."
        raise type(error)(message, hint=hint) from None


def checked(lines: Lines) -> dict[str, int]:
    with Spool() as spool:
        spool.fill(lines)
        return dict.fromkeys(PUSH_RESULTS, 0) | {"checked": spool.rows}


def pushed(shell: Shell, queue: str, lines: Lines, on_conflict: OnConflict, batch: UUID) -> dict[str, int]:
    told = 0

    def progress(tasks: int) -> None:
        nonlocal told
        told = tasks
        bar(tasks)

    try:
        with (
            shell.connected() as penstock,
            progress_bar(f"push {queue}", None, quiet=shell.quiet or shell.json or bool(lines.invitation)) as bar,
        ):
            target = penstock.queue(queue)
            target.status()  # a queue that does not exist is told before a long file is read
            return target.push_many(lines, on_conflict=on_conflict, batch_id=batch, progress=progress).counts
    except KeyboardInterrupt:
        by_parts = lines.named and on_conflict != "error"
        if lines.ended and (by_parts or told == lines.tasks):  # else the only transaction had not come to its end
            interrupted(f"some tasks may be written: repeat it with --batch-id {batch}, and nothing is doubled")
        else:
            interrupted("nothing was pushed")
        raise


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

    def __init__(self, source: IO[bytes], invitation: str = "") -> None:
        self.invitation = invitation  # to the person who types them
        self.tasks = 0
        self.named = False  # one of them has a subject
        self.ended = False
        self._source = source
        self._blank: list[int] = []  # how many tasks came before each blank line
        self._number = 0

    def line_of(self, task: int) -> int:
        return task + bisect_right(self._blank, task) + 1

    def __iter__(self) -> Iterator[NewTask]:
        sys.stderr.write(self.invitation)
        sys.stderr.flush()
        while line := self._source.readline(LONGEST_LINE):
            self._number += 1
            if len(line) >= LONGEST_LINE:
                self._refuse(f"it is longer than {LONGEST_LINE} bytes")
            if self._number == 1:
                line = line.removeprefix(BOM)
            if text := line.strip():
                task = self._task(text)
                self.tasks += 1
                self.named = self.named or task.subject is not None
                yield task
            else:
                self._blank.append(self._number - len(self._blank) - 1)
        self.ended = True

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
            return json_value(line)
        except PayloadError as error:
            self._refuse(error.bare)

    def _refuse(self, message: str, hint: str | None = None) -> NoReturn:
        raise PayloadError(f"line {self._number}: {message}", hint=hint)
