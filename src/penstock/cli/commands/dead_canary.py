"""`penstock dead redrive --canary` redrives a few tasks first, and the rest only if all of them succeed.

A fix that does not help then costs a few tasks, not all of them. Running workers execute the tasks: this module only
watches them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

import typer

from penstock import validate
from penstock.cli.terminal.formatting import escape
from penstock.cli.terminal.named_tasks import (
    MAX_SHOWN,
    SUCCESSES,
    Names,
    find_unknown_subjects,
    predict_results,
    print_results,
)
from penstock.cli.terminal.options import Shell
from penstock.cli.terminal.output import print_interrupted, print_json, print_line, progress_bar
from penstock.client.queue import Queue
from penstock.client.statements.tasks import MAX_TASKS
from penstock.errors import NotFound, PenstockError, ValidationError
from penstock.formatting import format_length
from penstock.model import TaskInfo

POLL_SECONDS = 0.25  # seconds between two polls
DEFAULT_WAIT = "5m"
SUCCEEDED = ""  # an outcome without an error

CanaryCount = Annotated[
    int | None,
    typer.Option(
        "--canary",
        metavar="N",
        help="Redrive this many first, and the rest only if all of them succeed.",
        show_default=False,
    ),
]
CanaryWait = Annotated[
    str | None,
    typer.Option(
        "--canary-wait", help=f"How long --canary waits for its tasks; default: {DEFAULT_WAIT}.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class Canary:
    """How many tasks go first, and how long they may take; checked."""

    count: int
    wait: timedelta

    def among(self, fates: Mapping[int, str]) -> list[int]:
        """Returns the first tasks that can be redriven: only they can show whether a fix helps."""
        return [id_ for id_, fate in fates.items() if fate == "redriven"][: self.count]


def parse_canary(count: int | None, wait: str | None) -> Canary | None:
    if count is not None:
        length = validate.positive(DEFAULT_WAIT if wait is None else wait, "canary_wait")
        return Canary(validate.whole(count, "canary", 1, 2**31), length)
    if wait is not None:
        raise ValidationError(
            "canary_wait: without --canary there is nothing to wait for", hint="Add --canary N.", field="canary_wait"
        )
    return None


# --- named tasks, matching tasks --------------------------------------------------------------------------------------


def redrive_named_canaries(shell: Shell, queue: Queue, canary: Canary, named: Names) -> None:
    """Redrives named tasks by id: a task that succeeds may be gone, and its subject with it, when the rest follows."""
    check_size(named)
    fates = predict_results(queue, "redrive", named)
    unknown = find_unknown_subjects(queue, named, fates)
    canaries = canary.among(fates)
    rest = [id_ for id_, fate in fates.items() if fate == "redriven"][len(canaries) :]
    trial = CanaryTrial(queue, read_database_clock(queue))
    # This includes tasks that are not dead: each gets its result, and a done one is refused before anything changes.
    first = queue.redrive(fates.keys() - rest)
    trial.begin(first, canaries)
    finish_redrive(shell, canary, trial, first, rest=(lambda: queue.redrive(rest)) if rest else None, unknown=unknown)


def check_size(named: Names) -> None:
    """Refuses more tasks than one call takes, although they are redriven in two calls."""
    size = len(named[0]) + len(named[1])
    if size > MAX_TASKS:
        raise ValidationError(f"ids, subjects: {size} are more than {MAX_TASKS} in one call", field="ids")


def redrive_matching_canaries(
    shell: Shell, queue: Queue, canary: Canary, most: int, redrive: Callable[[int], dict[int, str]]
) -> None:
    """Redrives the tasks that match now, the oldest first. Tasks that die meanwhile are younger, and not included."""
    trial = CanaryTrial(queue, read_database_clock(queue))
    first = redrive(min(canary.count, most)) if most else {}
    left = most - len(first) if len(first) == canary.count else 0
    trial.begin(first, list(first))
    finish_redrive(shell, canary, trial, first, rest=(lambda: redrive(left)) if left else None)


def read_database_clock(queue: Queue) -> datetime:
    """Reads the clock of the database, by which tasks begin and end."""
    at = queue.status().at
    assert at is not None
    return at


def finish_redrive(
    shell: Shell,
    canary: Canary,
    trial: CanaryTrial,
    first: dict[int, str],
    *,
    rest: Callable[[], dict[int, str]] | None,
    unknown: Sequence[str] = (),
) -> None:
    """Waits for the canaries, redrives the rest if they succeed, and prints the results.

    Exits with 1 if the rest stays dead, or if a task could not be redriven.
    """
    watch_canaries(shell, canary, trial, more=rest is not None)
    results = first
    if rest and trial.passed:
        with describe_partial_work("the canaries succeeded, some of the rest may be redriven"):
            results = first | rest()
    if shell.json:
        print_json({"canary": trial.json, "tasks": stringify_keys(results), "unknown_subjects": [*unknown]})
    else:
        print_results(shell, results, unknown, dry_run=False)
        print_trial(shell, canary, trial, more=rest is not None)
    if not trial.passed or unknown or not SUCCESSES.issuperset(results.values()):
        raise typer.Exit(1)


def print_dry_run(shell: Shell, canary: Canary, would: Mapping[int, str], unknown: Sequence[str] = ()) -> None:
    """Prints what would be redriven, and which tasks would go first."""
    canaries = canary.among(would)
    if shell.json:
        answer = {"succeeded": [], "failed": {}, "waiting": [], "would": canaries}
        print_json(
            {
                "canary": answer,
                "tasks": {},
                "would": stringify_keys(would),
                "dry_run": True,
                "unknown_subjects": [*unknown],
            }
        )
    else:
        print_results(shell, would, unknown, dry_run=True)
        more = f" and {len(canaries) - MAX_SHOWN:,} more" if len(canaries) > MAX_SHOWN else ""
        print_line(f"canaries: {', '.join(map(str, canaries[:MAX_SHOWN])) or 'none'}{more}", quiet=shell.quiet)
    if unknown or not SUCCESSES.issuperset(would.values()):
        raise typer.Exit(1)


def stringify_keys(results: Mapping[int, str]) -> dict[str, str]:
    """Makes texts of the ids: the keys of a JSON object are texts."""
    return {str(id_): result for id_, result in results.items()}


# --- watching ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CanaryTrial:
    """The canaries, by what has happened to them so far."""

    queue: Queue
    began: datetime
    waiting: list[int] = field(default_factory=list)
    succeeded: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def begin(self, answers: Mapping[int, str], canaries: Sequence[int]) -> None:
        """Watches the redriven tasks. A canary that was locked, and so not redriven, counts as failed."""
        self.waiting = [id_ for id_, answer in answers.items() if answer == "redriven"]
        self.failed = {id_: answers[id_] for id_ in canaries if answers[id_] != "redriven"}

    @property
    def size(self) -> int:
        return len(self.waiting) + len(self.succeeded) + len(self.failed)

    @property
    def over(self) -> bool:
        return bool(self.failed) or not self.waiting

    @property
    def passed(self) -> bool:
        return not (self.failed or self.waiting)

    @property
    def json(self) -> dict[str, object]:
        return {"succeeded": self.succeeded, "failed": stringify_keys(self.failed), "waiting": self.waiting}

    def update(self) -> None:
        """Looks at the tasks whose attempt is not over."""
        outcomes = {id_: find_outcome(self.queue, id_, self.began) for id_ in self.waiting}
        self.waiting = [id_ for id_, found in outcomes.items() if found is None]
        self.succeeded += [id_ for id_, found in outcomes.items() if found == SUCCEEDED]
        self.failed |= {id_: found for id_, found in outcomes.items() if found}


def find_outcome(queue: Queue, id_: int, began: datetime) -> str | None:
    """Returns SUCCEEDED, or why the task failed, or None while it waits or runs."""
    try:
        task = queue.task(id_)
    except NotFound:
        queue.status()  # raises if the queue itself is missing
        return SUCCEEDED
    if task.state == "done" or has_run_since(task, began):
        return SUCCEEDED
    return format_failure(task) if task.state in ("dead", "cancelled") or task.attempts else None


def has_run_since(task: TaskInfo, began: datetime) -> bool:
    """Whether a repeating task has run since then. Its iterations do not show that: it may run before they are read."""
    return task.last_iteration is not None and task.last_iteration > began


def format_failure(task: TaskInfo) -> str:
    """Returns why a task failed. If its worker died, there is no error, and it is `crashed`."""
    return ": ".join(dict.fromkeys(filter(None, (task.reason, task.error)))) or "crashed"


def watch_canaries(shell: Shell, canary: Canary, trial: CanaryTrial, *, more: bool) -> None:
    """Polls until all canaries succeed, one fails, or the time is up."""
    quiet = shell.quiet or shell.json or not trial.size
    until = time.monotonic() + canary.wait.total_seconds()
    done = "the canaries are redriven" + (", the rest is not" if more else "")
    with describe_partial_work(done), progress_bar("canaries", trial.size, quiet=quiet) as bar:
        while True:
            trial.update()
            bar(trial.size - len(trial.waiting))
            left = until - time.monotonic()
            if trial.over or left <= 0:
                break
            time.sleep(min(POLL_SECONDS, left))
        trial.update()  # others may have ended since the failure was seen


@contextmanager
def describe_partial_work(done: str) -> Iterator[None]:
    """Adds to an error, or prints after Ctrl-C, what has been done so far."""
    try:
        yield
    except KeyboardInterrupt:
        print_interrupted(done)
        raise
    except PenstockError as error:
        error.hint = " ".join(filter(None, (error.hint, f"{done.capitalize()}.")))
        raise


# --- text -------------------------------------------------------------------------------------------------------------


def print_trial(shell: Shell, canary: Canary, trial: CanaryTrial, *, more: bool) -> None:
    if not trial.size:
        return
    for line in [format_headline(canary, trial), *format_failures(trial)]:
        print_line(line, quiet=shell.quiet)
    if trial.waiting and not trial.failed:
        print_line(f"  {suggest_cause(trial.queue)}", quiet=shell.quiet)
    if more and not trial.passed:
        print_line("nothing more is redriven: the rest is still dead", quiet=shell.quiet)


def format_headline(canary: Canary, trial: CanaryTrial) -> str:
    said = f"canaries: {len(trial.succeeded):,} of {trial.size:,} succeeded"
    if trial.failed:
        said += f", {len(trial.failed):,} failed"
    if trial.waiting:
        said += f", {len(trial.waiting):,} not tried" + (
            "" if trial.failed else f" within {format_length(canary.wait)}"
        )
    return said


def format_failures(trial: CanaryTrial) -> list[str]:
    lines = [f"  {id_}: {escape(said)}" for id_, said in trial.failed.items()]
    more = len(lines) - MAX_SHOWN
    return lines if more <= 0 else [*lines[:MAX_SHOWN], f"  and {more:,} more; --json names them all"]


def suggest_cause(queue: Queue) -> str:
    """Suggests why no worker has run the canaries."""
    status = queue.status()
    if status.paused:
        return f"queue {queue.name} is paused: `penstock queues resume {queue.name}`"
    if status.active:
        return "its workers are busy: give them longer with --canary-wait"
    return f"no worker seems to serve queue {queue.name}"
