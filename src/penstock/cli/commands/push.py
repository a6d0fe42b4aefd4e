"""`penstock push` reads tasks from JSONL."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, NoReturn, cast
from uuid import UUID, uuid4

import typer

from penstock import validate
from penstock.cli.terminal.options import DryRun, QueueName, Shell, parse_json, with_shell
from penstock.cli.terminal.output import print_interrupted, progress_bar
from penstock.client.spool import Spool
from penstock.client.statements.pushes import ITEM, Rules, check_rules
from penstock.errors import Conflict, PayloadError, ValidationError, shown
from penstock.model import PUSH_RESULTS, Duration, NewTask, OnConflict, PushReport
from penstock.validate import moment, queue_name, token

MAX_LINE_BYTES = (16 << 20) + (64 << 10)
FIELDS = ("payload", "subject", "kind", "due", "delay", "priority", "key", "meta", "expires")
INVITATION = "reading tasks, one JSON object a line; Ctrl-D ends\n"
BOM = b"\xef\xbb\xbf"


@with_shell
def push(
    shell: Shell,
    queue: QueueName,
    *,
    file: Annotated[
        str, typer.Option("--file", "-f", help="A JSONL file with one task a line; `-` is standard input.")
    ] = "-",
    on_conflict: Annotated[
        str,
        typer.Option(
            help="What happens to a subject that exists: skip leaves it, update changes it, error refuses all tasks."
        ),
    ] = "skip",
    delay: Annotated[
        str | None,
        typer.Option(
            help="How long tasks wait, as 30s, 5m or 1h30m, if their line has no due and no delay.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Whose the tasks are: a tenant, a customer; of lines without a key.", show_default=False),
    ] = None,
    meta: Annotated[
        str | None, typer.Option(help="Headers, a JSON object, of lines without meta.", show_default=False)
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help="When tasks are cancelled that have not started: a moment, or so long after their due, as 10m.",
            show_default=False,
        ),
    ] = None,
    debounce: Annotated[
        str | None,
        typer.Option(help="Run a task when its subject was not pushed for so long, as 2s.", show_default=False),
    ] = None,
    at_most: Annotated[
        str | None,
        typer.Option(
            help="With --debounce: so long after the first of these pushes at the latest.", show_default=False
        ),
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(help="Skip tasks whose subject was pushed, and not skipped, in this time.", show_default=False),
    ] = None,
    batch_id: Annotated[
        str | None,
        typer.Option(
            help="The id of a push that failed half-way: repeated under it, no task is pushed twice.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Push tasks. A line is {"payload": {…}, "subject"?: …, "kind"?: …, "due"?: …, "delay"?: "5m", "priority"?: 5,
    "key"?: …, "meta"?: {…}, "expires"?: "10m"}.

    If a line is wrong, the error names it and nothing is written. A task is skipped if its subject exists, unless you
    set --on-conflict. The answer says how many of the existing tasks are dead.

    Example: penstock push mail --file tasks.jsonl --on-conflict update
    """
    queue_name(queue)
    defaults = parse_defaults(delay, key, meta, expires)
    batch = uuid4() if batch_id is None else token(batch_id, "batch_id")
    rules = check_rules(on_conflict, debounce, at_most, throttle)
    with open_source(file) as source:
        typed = file == "-" and sys.stdin.isatty()
        lines = Lines(source, "" if shell.quiet or not typed else INVITATION, defaults)
        with name_lines_in_errors(lines):
            if dry_run:
                counts = check_lines(lines)
                said = f"{counts['checked']:,} checked" if counts["checked"] else "nothing to push"
                shell.answer(counts | {"dry_run": True}, said)
                return
            report = push_lines(shell, queue, lines, rules, batch)
    dead = (
        {"skipped_dead": report.skipped_dead} if report.skipped_dead else {}
    )  # a part of skipped: without it the counts add up
    shell.answer(report.counts | dead, format_report(queue, report))


def format_report(queue: str, report: PushReport) -> str:
    """Writes the counts of a push, and how to run the tasks that are dead."""
    said = ", ".join(f"{count:,} {word}" for word, count in report.counts.items() if count) or "nothing to push"
    if report.skipped_dead:
        said += f" ({report.skipped_dead:,} of them dead, which do not run)"
        said += f"\n  penstock dead ls {queue} shows why; penstock dead redrive {queue} --subject … runs one again,"
        said += "\n  and so does a push with --on-conflict update."
    return said


def parse_delay(text: str | None) -> timedelta | None:
    try:
        return validate.delay(text)
    except ValidationError as error:
        raise ValidationError(error.bare, hint="Write --delay 5m.", field="delay") from None


def parse_defaults(delay: str | None, key: str | None, meta: str | None, expires: str | None) -> Defaults:
    if key is not None:
        validate.text(key, "key", validate.MAX_KEY)
    headers = None if meta is None else parse_meta(meta)
    if expires is not None:
        validate.expires(expires)
    return Defaults(parse_delay(delay), key, headers, expires)


def parse_meta(text: str) -> Any:
    try:
        found = parse_json(text.encode())
    except PayloadError as error:
        raise PayloadError(f"meta: {error.bare}", field="meta") from None
    validate.meta(found)
    return found


@contextmanager
def name_lines_in_errors(lines: Lines) -> Iterator[None]:
    """Replaces the index of an item in an error by the number of its line."""
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


def check_lines(lines: Lines) -> dict[str, int]:
    with Spool() as spool:
        spool.fill(lines)
        return dict.fromkeys(PUSH_RESULTS, 0) | {"checked": spool.rows}


def push_lines(shell: Shell, queue: str, lines: Lines, rules: Rules, batch: UUID) -> PushReport:
    """Pushes the lines. After Ctrl-C it says how to repeat the push without writing a task twice."""
    written = 0

    def progress(tasks: int) -> None:
        nonlocal written
        written = tasks
        bar(tasks)

    try:
        with (
            shell.connect() as penstock,
            progress_bar(f"push {queue}", None, quiet=shell.quiet or shell.json or bool(lines.invitation)) as bar,
        ):
            target = penstock.queue(queue)
            target.status()  # raises for a missing queue before a long file is read
            return target.push_many(
                lines,
                on_conflict=cast("OnConflict", rules.on_conflict),
                debounce=rules.debounce,
                at_most=rules.at_most,
                throttle=rules.throttle,
                batch_id=batch,
                progress=progress,
            )
    except KeyboardInterrupt:
        by_parts = lines.named and rules.on_conflict != "error"
        # Otherwise the only transaction has not been committed.
        if lines.ended and (by_parts or written == lines.tasks):
            print_interrupted(
                f"some tasks may be written: repeat it with --batch-id {batch}, and no task is pushed twice"
            )
        else:
            print_interrupted("nothing was pushed")
        raise


@contextmanager
def open_source(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 - it is closed below
    except OSError as error:
        raise ValidationError(f"file: {shown(file)}: {error.strerror}", field="file") from None
    with source:
        yield source


class Defaults(NamedTuple):
    """What a task has whose line does not say otherwise."""

    delay: Duration | None = None  # for tasks without a due and a delay
    key: str | None = None
    meta: Any = None
    expires: str | None = None


NO_DEFAULTS = Defaults()


class Lines:
    """Reads tasks from JSONL, and knows the line of each."""

    def __init__(self, source: IO[bytes], invitation: str = "", defaults: Defaults = NO_DEFAULTS) -> None:
        self._defaults = defaults
        self.invitation = invitation  # shown before tasks are typed on a terminal
        self.tasks = 0
        self.named = False  # whether any task has a subject
        self.ended = False
        self._source = source
        self._blank: list[int] = []  # the number of tasks before each blank line
        self._number = 0

    def line_of(self, task: int) -> int:
        return task + bisect_right(self._blank, task) + 1

    def __iter__(self) -> Iterator[NewTask]:
        sys.stderr.write(self.invitation)
        sys.stderr.flush()
        while line := self._source.readline(MAX_LINE_BYTES):
            self._number += 1
            if len(line) >= MAX_LINE_BYTES:
                self._refuse(f"it is longer than {MAX_LINE_BYTES} bytes")
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
        value = self._parse(line)
        if type(value) is not dict:
            self._refuse(
                "it is not a JSON object",
                hint=f"A line is {{{FIELDS[0]!r}: {{…}}, {', '.join(f'{name}?' for name in FIELDS[1:])}}}.",
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
            due, delay = value.get("due"), value.get("delay")
            return NewTask(
                value["payload"],
                value.get("subject"),
                None if due is None else moment(due),
                value.get("priority", 5),
                value.get("kind", "default"),
                self._defaults.delay if due is None and delay is None else delay,
                value.get("key", self._defaults.key),
                value.get("meta", self._defaults.meta),
                value.get("expires", self._defaults.expires),
            )
        except ValidationError as error:
            self._refuse(error.bare, hint=error.hint)

    def _parse(self, line: bytes) -> Any:
        try:
            return parse_json(line)
        except PayloadError as error:
            self._refuse(error.bare)

    def _refuse(self, message: str, hint: str | None = None) -> NoReturn:
        raise PayloadError(f"line {self._number}: {message}", hint=hint)
