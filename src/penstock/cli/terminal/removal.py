"""Removes tasks for good: counts them, asks, removes them, and prints how many."""

from __future__ import annotations

from collections.abc import Callable

import typer

from penstock.cli.terminal.consent import ask
from penstock.cli.terminal.options import Shell
from penstock.client.queue import Queue
from penstock.formatting import format_count


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
    """Returns how many tasks were removed, or would be."""
    queue.status()  # raises for a missing queue before the question
    if dry_run:
        would = count()
        answer = {"queue": queue.name, "purged": 0, "would": would, "dry_run": True}
        shell.answer(answer, f"{format_count(would, thing)} of queue {queue.name} would be removed")
        return would
    if not yes:
        would = count()
        if not would:
            shell.answer({"queue": queue.name, "purged": 0}, f"no {thing}s of queue {queue.name} to remove")
            raise typer.Exit  # there is nothing to ask about
        ask(f"Remove {format_count(would, thing)} of queue {queue.name} for good?")
    gone = call()
    shell.answer({"queue": queue.name, "purged": gone}, f"{format_count(gone, thing)} of queue {queue.name} removed")
    return gone
