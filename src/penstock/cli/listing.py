"""Tasks as the shell shows them: a page of them, one of them, all that match."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from penstock import validate
from penstock.cli.options import Shell, error_text, kind_text, text
from penstock.cli.output import cell, clock, emit, harmless, iso, pretty, say, table
from penstock.model import Listed, State
from penstock.queue import Queue

COLUMNS = ("id", "state", "kind", "subject", "priority", "attempts", "due", "ended", "why")
WORDS = ("state", "kind", "subject", "why")
MOMENTS = ("due", "created", "last_iteration", "ended_at")
PAGE = 1000


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
    with shell.connected() as penstock:
        found = penstock.queue(queue).tasks(
            state=state,
            kind=kind_text(kind),
            subject=text(subject, "subject", validate.LARGEST_SUBJECT),
            error=error_text(error),
            limit=limit,
            after=None if after is None else validate.whole(after, "after", 0, 2**63 - 1),
        )
    next_page = found[-1].id if len(found) == limit else None
    if shell.json:
        emit({"tasks": [task_json(task) for task in found], "next": next_page})
    elif not shell.quiet and found:
        table(COLUMNS, [row(task) for task in found], words=WORDS)
        if next_page:
            say(f"there may be more: --after {next_page}")
    else:
        say("no tasks", quiet=shell.quiet)


def print_task(shell: Shell, task: Listed) -> None:
    if shell.json:
        emit(task_json(task))
    elif not shell.quiet:
        values = {**task._asdict(), **{name: clock(getattr(task, name)) for name in MOMENTS}}
        for name, value in values.items():
            if name != "payload":
                say(f"{name:<15} {'–' if value is None else harmless(str(value))}")
        say(f"payload\n{pretty(task.payload)}")


def task_json(task: Listed) -> dict[str, Any]:
    return {**task._asdict(), **{name: iso(getattr(task, name)) for name in MOMENTS}}


def row(task: Listed) -> tuple[str, ...]:
    why = ": ".join(dict.fromkeys(filter(None, (task.reason, task.error))))  # often they are the same
    return (
        str(task.id),
        task.state,
        cell(task.kind),
        cell(task.subject),
        str(task.priority),
        "–" if task.attempts is None else str(task.attempts),
        clock(task.due),
        clock(task.ended_at),
        cell(why),
    )


def dead_that_match(
    queue: Queue,
    *,
    kind: str | None,
    error: str | None,
    since: datetime | None = None,
    before: datetime | None = None,
) -> Iterator[Listed]:
    """The dead tasks that a redrive or purge with these filters is about."""
    after = 0
    while page := queue.tasks(state="dead", kind=kind, error=error, after=after, limit=PAGE):
        after = page[-1].id
        for task in page:
            ended = task.ended_at
            assert ended is not None  # a constraint says so
            if (since is None or ended >= since) and (before is None or ended < before):
                yield task
