"""Prints tasks: a page of them, or one with all its details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from penstock import validate
from penstock.cli.terminal.formatting import escape, format_cell, format_json, to_iso
from penstock.cli.terminal.options import Shell, check_error_text, check_kind, check_text
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.client.queue import Queue
from penstock.formatting import format_count, format_time
from penstock.model import Attempt, State, TaskDetails, TaskInfo, TaskProgress

COLUMNS = ("id", "state", "kind", "subject", "priority", "attempts", "due", "ended", "why")
WORDS = ("state", "kind", "subject", "why")
MOMENTS = ("due", "created", "last_iteration", "ended_at", "expires")
PAGE_SIZE = 1000
FACTS = (
    "id",
    "queue",
    "kind",
    "subject",
    "state",
    "priority",
    "due",
    "attempts",
    "iterations",
    "created",
    "last_iteration",
    "worker",
    "claimed_at",
    "lease_until",
    "ended_at",
    "reason",
    "error_class",
    "message",
)
RARE_FACTS = ("key", "expires", "meta")  # shown if the task has them  # fmt: skip
MAX_PAYLOAD_CHARACTERS, MAX_PAYLOAD_LINES = 4000, 100  # characters, lines
ATTEMPT_COLUMNS = ("attempt", "iteration", "worker", "due", "claimed", "finished", "outcome", "error")
ATTEMPT_WORDS = ("worker", "due", "claimed", "finished", "outcome", "error")
ATTEMPT_MOMENTS = ("due", "claimed_at", "finished_at", "lease_until")
MAX_ATTEMPTS = 50  # rows of a table; --json has all


def print_page(
    shell: Shell,
    queue: str,
    *,
    state: State | None,
    kind: str | None,
    subject: str | None,
    error: str | None,
    limit: int,
    after: int | None,
) -> None:
    with shell.connect() as penstock:
        found = penstock.queue(queue).tasks(
            state=state,
            kind=check_kind(kind),
            subject=check_text(subject, "subject", validate.MAX_SUBJECT),
            error=check_error_text(error),
            limit=limit,
            after=None if after is None else validate.whole(after, "after", 0, 2**63 - 1),
        )
    next_page = found[-1].id if len(found) == limit else None
    if shell.json:
        print_json({"tasks": [task_json(task) for task in found], "next": next_page})
    elif not shell.quiet and found:
        print_table(COLUMNS, [format_row(task) for task in found], words=WORDS)
        if next_page:
            print_line(f"there may be more: --after {next_page}")
    else:
        print_line("no tasks", quiet=shell.quiet)


def print_task(shell: Shell, found: TaskDetails, attempts: Sequence[Attempt], progress: TaskProgress | None) -> None:
    """Prints one task with all its details, its attempts, and what its handler said. Without --json a long payload is
    cut."""
    task = found.task
    held = {"claimed_at": found.claimed_at, "lease_until": found.lease_until}
    if shell.json:
        parts = {"message": task.message, "traceback": task.traceback, "worker": found.worker, "removed": found.removed}
        parts |= {name: to_iso(moment) for name, moment in held.items()}
        history = [attempt_json(one) for one in attempts]
        print_json({**task_json(task), **parts, "progress": progress_json(progress), "history": history})
    elif not shell.quiet:
        shown = {**task._asdict(), "message": task.message, "worker": found.worker}
        shown |= {name: format_time(getattr(task, name)) for name in MOMENTS}
        shown |= {name: format_time(moment) for name, moment in held.items()}
        shown["meta"] = None if task.meta is None else format_json(task.meta)
        for name in (*FACTS, *(name for name in RARE_FACTS if getattr(task, name) is not None)):
            print_line(f"{name:<15} {'–' if shown[name] is None else escape(str(shown[name]))}")
        if found.removed:
            print_line("removed         its row and its payload are deleted; this is its last attempt, from history")
        else:
            print_line(f"payload\n{cut_payload(format_json(task.payload))}")
        print_progress(progress)
        print_attempts(attempts)
        why = f"{task.error_class}: {task.message}" if task.error_class else f"{task.message}"
        print_traceback(task.traceback, why)


def print_progress(progress: TaskProgress | None) -> None:
    """Prints how far a task is, and its log, if its handler said something."""
    if progress is None:
        return
    said = [] if progress.part is None else [f"{progress.part:.0%}"]
    said += [f"({progress.text})"] if progress.text else []
    said += [f"at {format_time(progress.at)}, attempt {progress.attempt}"]
    print_line(f"progress        {escape(' '.join(said))}")
    for line in progress.log:
        print_line(escape(f"  {format_time(line.at)}  attempt {line.attempt}  {line.text}"))


def progress_json(progress: TaskProgress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    log = [{**line._asdict(), "at": to_iso(line.at)} for line in progress.log]
    return {**progress._asdict(), "at": to_iso(progress.at), "log": log}


def print_forgotten(shell: Shell, id_: int, attempts: Sequence[Attempt]) -> None:
    """Prints the attempts of a task that was removed before one of them ended it. Nothing else of it is known."""
    queue = attempts[-1].queue
    if shell.json:
        print_json({"id": id_, "queue": queue, "removed": True, "history": [attempt_json(one) for one in attempts]})
    elif not shell.quiet:
        print_line(f"task {id_} of queue {queue} is removed; history has its attempts")
        print_attempts(attempts)


def print_attempts(attempts: Sequence[Attempt]) -> None:
    """Prints the last attempts of a task as a table, if there are any."""
    if not attempts:
        return
    earlier = len(attempts) - MAX_ATTEMPTS
    print_line("history" if earlier <= 0 else f"history, without {format_count(earlier, 'earlier attempt')} (--json)")
    print_table(ATTEMPT_COLUMNS, [format_attempt(one) for one in attempts[-MAX_ATTEMPTS:]], words=ATTEMPT_WORDS)


def format_attempt(one: Attempt) -> tuple[str, ...]:
    message = None if one.message is None else " ".join(one.message.split())
    return (
        str(one.attempt),
        str(one.iteration),
        format_cell(one.worker or None),
        format_time(one.due),
        format_time(one.claimed_at),
        format_time(one.finished_at),
        one.outcome or f"active until {format_time(one.lease_until)}",
        format_cell(": ".join(filter(None, (one.error_class, message))) or None),
    )


def attempt_json(one: Attempt) -> dict[str, Any]:
    moments = {name: to_iso(getattr(one, name)) for name in ATTEMPT_MOMENTS}
    return {**one._asdict(), **moments, "message": one.message, "traceback": one.traceback}


def print_traceback(traceback: str | None, why: str) -> None:
    """Prints a stored traceback, if there is one, as Python does: class and message are its last line."""
    if traceback is not None:
        print_line("traceback")
        for line in traceback.splitlines():
            print_line(escape(line))
        print_line(escape(why))


def cut_payload(text: str) -> str:
    """Cuts a payload to its first lines."""
    cut = text[:MAX_PAYLOAD_CHARACTERS]
    lines = cut.splitlines()[:MAX_PAYLOAD_LINES]
    short = "\n".join(lines)
    return short if short == text else f"{short}\n… ({len(text):,} characters; --json shows all)"


def task_json(task: TaskInfo) -> dict[str, Any]:
    return {**task._asdict(), **{name: to_iso(getattr(task, name)) for name in MOMENTS}}


def format_row(task: TaskInfo) -> tuple[str, ...]:
    return (
        str(task.id),
        task.state,
        format_cell(task.kind),
        format_cell(task.subject),
        str(task.priority),
        "–" if task.attempts is None else str(task.attempts),
        format_time(task.due),
        format_time(task.ended_at),
        format_cell(format_reason(task)),
    )


def format_reason(task: TaskInfo) -> str | None:
    """Writes class and message of the error on one line, and then the reason why the task ended, if it differs."""
    message = None if task.message is None else " ".join(task.message.split())
    error = ": ".join(filter(None, (task.error_class, message)))
    if not task.reason or (message or "").startswith(task.reason):
        return error or task.reason
    return f"{error} ({task.reason})" if error else task.reason


def find_dead(
    queue: Queue,
    *,
    kind: str | None,
    error: str | None,
    since: datetime | None = None,
    before: datetime | None = None,
) -> Iterator[TaskInfo]:
    """Yields the dead tasks that a redrive or purge with these filters applies to."""
    after = 0
    while page := queue.tasks(state="dead", kind=kind, error=error, after=after, limit=PAGE_SIZE):
        after = page[-1].id
        for task in page:
            ended = task.ended_at
            assert ended is not None  # a constraint of the table ensures it
            if (since is None or ended >= since) and (before is None or ended < before):
                yield task
