"""Applies a verb to tasks named by id or subject, or predicts its results for --dry-run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import typer

from penstock import validate
from penstock.cli.terminal.formatting import escape
from penstock.cli.terminal.options import Shell
from penstock.cli.terminal.output import print_json, print_line
from penstock.client.queue import Queue
from penstock.errors import NotFound, ValidationError

QUEUED = ("waiting", "planned", "pending")
# The result of each verb for a task in each state. In the other states it is `ended`.
RESULTS_BY_STATE: Mapping[str, Mapping[str, str]] = {
    "cancel": dict.fromkeys(QUEUED, "cancelled") | {"active": "revoked"},
    "reschedule": dict.fromkeys(QUEUED, "rescheduled") | {"active": "active"},
    "reprioritise": dict.fromkeys((*QUEUED, "active"), "reprioritised"),
    "redrive": {"dead": "redriven", "cancelled": "redriven"} | dict.fromkeys((*QUEUED, "active"), "live"),
}
SUCCESSES = frozenset({"cancelled", "revoked", "rescheduled", "reprioritised", "redriven"})
MAX_SHOWN = 20

Names = tuple[list[int], list[str]]


def check_names(ids: list[int] | None, subjects: list[str] | None) -> Names:
    """Checks the given ids and subjects. At least one is required."""
    found = validate.ids(ids or ()), [validate.text(one, "subject", validate.MAX_SUBJECT) for one in subjects or ()]
    if found == ([], []):
        raise ValidationError("ids: no ids and no subjects are given", hint="Name tasks: ID… or --subject S.")
    return found


def apply_verb(
    shell: Shell, queue: Queue, verb: str, named: Names, *, call: Callable[[], dict[int, str]], dry_run: bool
) -> None:
    """Applies a verb, or predicts its results, and prints them. Exits with 1 unless it succeeds for every task."""
    results = predict_results(queue, verb, named) if dry_run else call()
    unknown = find_unknown_subjects(queue, named, results)
    print_results(shell, results, unknown, dry_run=dry_run)
    if unknown or not SUCCESSES.issuperset(results.values()):
        raise typer.Exit(1)


def predict_results(queue: Queue, verb: str, named: Names) -> dict[int, str]:
    ids, subjects = named
    states = {id_: find_state(queue, id_) for id_ in ids}
    states |= {task.id: task.state for subject in subjects for task in queue.tasks(subject=subject, limit=1)}
    return {
        id_: "unknown" if state is None else RESULTS_BY_STATE[verb].get(state, "ended") for id_, state in states.items()
    }


def find_state(queue: Queue, id_: int) -> str | None:
    try:
        return queue.task(id_).state
    except NotFound:
        queue.status()  # raises if the queue itself is missing
        return None


def find_unknown_subjects(queue: Queue, named: Names, results: Mapping[int, str]) -> list[str]:
    """Returns the subjects that no task has: the verbs do not mention them."""
    ids, subjects = named
    if len(results) == len(ids) + len(subjects):
        return []
    return [subject for subject in subjects if not queue.tasks(subject=subject, limit=1)]


def print_results(shell: Shell, results: Mapping[int, str], unknown: Sequence[str] = (), *, dry_run: bool) -> None:
    by_id = {str(id_): result for id_, result in results.items()}
    if shell.json:
        planned = {"tasks": {}, "would": by_id, "dry_run": True}
        print_json((planned if dry_run else {"tasks": by_id}) | {"unknown_subjects": [*unknown]})
        return
    counts = Counter(results.values())
    if unknown:
        counts["unknown"] += len(unknown)
    said = ", ".join(f"{count:,} {result}" for result, count in sorted(counts.items())) or "no tasks"
    print_line(f"would be: {said}" if dry_run else said, quiet=shell.quiet)
    left = [f"{id_}: {result}" for id_, result in by_id.items() if result not in SUCCESSES]
    left += [f"{escape(subject)}: unknown" for subject in unknown]
    for line in left[:MAX_SHOWN]:
        print_line(f"  {line}", quiet=shell.quiet)
    if len(left) > MAX_SHOWN:
        print_line(f"  and {len(left) - MAX_SHOWN:,} more; --json names them all", quiet=shell.quiet)
