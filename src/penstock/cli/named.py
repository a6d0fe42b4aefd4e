"""Verbs on tasks that are named, by id or by subject: what would become of each, and what did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import typer

from penstock import validate
from penstock.cli.options import Shell
from penstock.cli.output import emit, harmless, say
from penstock.errors import NotFound, ValidationError
from penstock.queue import Queue

# What a verb answers for a task in a state; for the others it answers `ended`.
FATES: Mapping[str, Mapping[str, str]] = {
    "cancel": {"planned": "cancelled", "pending": "cancelled", "active": "revoked"},
    "reschedule": {"planned": "rescheduled", "pending": "rescheduled", "active": "active"},
    "reprioritise": dict.fromkeys(("planned", "pending", "active"), "reprioritised"),
    "redrive": {"dead": "redriven", "cancelled": "redriven"} | dict.fromkeys(("planned", "pending", "active"), "live"),
}
DONE = frozenset({"cancelled", "revoked", "rescheduled", "reprioritised", "redriven"})
SHOWN = 20

Names = tuple[list[int], list[str]]


def names(ids: list[int] | None, subjects: list[str] | None) -> Names:
    """The ids and subjects given, checked; at least one."""
    found = validate.ids(ids or ()), [validate.text(one, "subject", validate.LARGEST_SUBJECT) for one in subjects or ()]
    if found == ([], []):
        raise ValidationError("ids: neither ids nor subjects are given", hint="Name tasks: ID… or --subject S.")
    return found


def apply(
    shell: Shell, queue: Queue, verb: str, named: Names, *, call: Callable[[], dict[int, str]], dry_run: bool
) -> None:
    """One verb, or what it would answer. Exit 1 when a task that was named did not get what was asked for."""
    results = foretold(queue, verb, named) if dry_run else call()
    unknown = unknown_subjects(queue, named, results)
    print_results(shell, results, unknown, dry_run=dry_run)
    if unknown or not DONE.issuperset(results.values()):
        raise typer.Exit(1)


def foretold(queue: Queue, verb: str, named: Names) -> dict[int, str]:
    ids, subjects = named
    states = {id_: state_of(queue, id_) for id_ in ids}
    states |= {task.id: task.state for subject in subjects for task in queue.tasks(subject=subject, limit=1)}
    return {id_: "unknown" if state is None else FATES[verb].get(state, "ended") for id_, state in states.items()}


def state_of(queue: Queue, id_: int) -> str | None:
    try:
        return queue.task(id_).state
    except NotFound:
        queue.status()  # raises if it is the queue that is not there
        return None


def unknown_subjects(queue: Queue, named: Names, results: Mapping[int, str]) -> list[str]:
    """The verbs say nothing of a subject that nobody has."""
    ids, subjects = named
    if len(results) == len(ids) + len(subjects):
        return []
    return [subject for subject in subjects if not queue.tasks(subject=subject, limit=1)]


def print_results(shell: Shell, results: Mapping[int, str], unknown: Sequence[str] = (), *, dry_run: bool) -> None:
    by_id = {str(id_): result for id_, result in results.items()}
    if shell.json:
        planned = {"tasks": {}, "would": by_id, "dry_run": True}
        emit((planned if dry_run else {"tasks": by_id}) | {"unknown_subjects": [*unknown]})
        return
    counts = Counter(results.values())
    if unknown:
        counts["unknown"] += len(unknown)
    said = ", ".join(f"{count:,} {result}" for result, count in sorted(counts.items())) or "no tasks"
    say(f"would be: {said}" if dry_run else said, quiet=shell.quiet)
    left = [f"{id_}: {result}" for id_, result in by_id.items() if result not in DONE]
    left += [f"{harmless(subject)}: unknown" for subject in unknown]
    for line in left[:SHOWN]:
        say(f"  {line}", quiet=shell.quiet)
    if len(left) > SHOWN:
        say(f"  and {len(left) - SHOWN:,} more; --json names them all", quiet=shell.quiet)
