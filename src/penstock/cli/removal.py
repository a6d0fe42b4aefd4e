"""Removing tasks for good: say how many, ask, do it, say how many."""

from __future__ import annotations

from collections.abc import Callable

import typer

from penstock.cli.consent import ask
from penstock.cli.options import Shell
from penstock.cli.output import many
from penstock.queue import Queue


def remove(
    shell: Shell,
    queue: Queue,
    thing: str,
    *,
    count: Callable[[], int],
    call: Callable[[], int],
    yes: bool,
    dry_run: bool,
) -> int:
    """Answers how many went, or would."""
    queue.status()  # nobody is asked about a queue that is not there
    if dry_run:
        would = count()
        told = {"queue": queue.name, "purged": 0, "would": would, "dry_run": True}
        shell.answer(told, f"{many(would, thing)} of queue {queue.name} would be removed")
        return would
    if not yes:
        would = count()
        if not would:
            shell.answer({"queue": queue.name, "purged": 0}, f"no {thing}s of queue {queue.name} to remove")
            raise typer.Exit  # nothing to ask about
        ask(f"Remove {many(would, thing)} of queue {queue.name} for good?")
    gone = call()
    shell.answer({"queue": queue.name, "purged": gone}, f"{many(gone, thing)} of queue {queue.name} removed")
    return gone
