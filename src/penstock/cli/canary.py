"""`--canary`: a few dead tasks get another life first; the rest follows only when all of them succeeded.

A fix that does not help then costs a handful of tasks, not all of them. Running workers do the work: here it is only
watched.
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
from penstock.cli.named import DONE, SHOWN, Names, foretold, print_results, unknown_subjects
from penstock.cli.options import Shell
from penstock.cli.output import emit, harmless, interrupted, progress_bar, say, span
from penstock.errors import NotFound, PenstockError, ValidationError
from penstock.model import Listed
from penstock.queue import Queue
from penstock.statements import MOST

POLL = 0.25  # seconds between two looks
WAIT = "5m"
SUCCEEDED = ""  # an outcome with nothing to complain about

CanaryCount = Annotated[
    int | None,
    typer.Option(
        "--canary", metavar="N", help="So many first, and the rest only if all of them succeed.", show_default=False
    ),
]
CanaryWait = Annotated[
    str | None,
    typer.Option("--canary-wait", help=f"How long --canary waits for them; default: {WAIT}.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Canary:
    """How many go first, and how long they may take; checked."""

    count: int
    wait: timedelta

    def among(self, fates: Mapping[int, str]) -> list[int]:
        """The first of those that may be redriven: one that lives, or is not there, would tell nothing."""
        return [id_ for id_, fate in fates.items() if fate == "redriven"][: self.count]


def asked_canary(count: int | None, wait: str | None) -> Canary | None:
    if count is not None:
        length = validate.positive(WAIT if wait is None else wait, "canary_wait")
        return Canary(validate.whole(count, "canary", 1, 2**31), length)
    if wait is not None:
        raise ValidationError(
            "canary_wait: without --canary there is nothing to wait for", hint="Say --canary N.", field="canary_wait"
        )
    return None


# --- those named, those that match ------------------------------------------------------------------------------------


def lead_named(shell: Shell, queue: Queue, canary: Canary, named: Names) -> None:
    """By id from here on: the subject of one that succeeded may be nobody's when the rest follows."""
    check_size(named)
    fates = foretold(queue, "redrive", named)
    unknown = unknown_subjects(queue, named, fates)
    canaries = canary.among(fates)
    rest = [id_ for id_, fate in fates.items() if fate == "redriven"][len(canaries) :]
    trial = Trial(queue, now(queue))
    # With those that are not dead: they get their answers, and one that is done refuses all before anything is changed.
    first = queue.redrive(fates.keys() - rest)
    trial.begin(first, canaries)
    lead(shell, canary, trial, first, rest=(lambda: queue.redrive(rest)) if rest else None, unknown=unknown)


def check_size(named: Names) -> None:
    """What one call would refuse, two calls do not do by halves."""
    size = len(named[0]) + len(named[1])
    if size > MOST:
        raise ValidationError(f"ids, subjects: {size} are more than {MOST} in one call", field="ids")


def lead_matching(
    shell: Shell, queue: Queue, canary: Canary, most: int, redrive: Callable[[int], dict[int, str]]
) -> None:
    """As many as match now, the oldest first: what dies while the canaries run is younger, and not among them."""
    trial = Trial(queue, now(queue))
    first = redrive(min(canary.count, most)) if most else {}
    left = most - len(first) if len(first) == canary.count else 0
    trial.begin(first, list(first))
    lead(shell, canary, trial, first, rest=(lambda: redrive(left)) if left else None)


def now(queue: Queue) -> datetime:
    """By the database's clock: only it decides."""
    at = queue.status().at
    assert at is not None
    return at


def lead(
    shell: Shell,
    canary: Canary,
    trial: Trial,
    first: dict[int, str],
    *,
    rest: Callable[[], dict[int, str]] | None,
    unknown: Sequence[str] = (),
) -> None:
    """The canaries are out: the rest follows them, or stays. Exit 1 when it stays, or when a redrive would say so."""
    watch(shell, canary, trial, more=rest is not None)
    results = first
    if rest and trial.passed:
        with telling("the canaries succeeded, some of the rest may be redriven"):
            results = first | rest()
    if shell.json:
        emit({"canary": trial.json, "tasks": by_name(results), "unknown_subjects": [*unknown]})
    else:
        print_results(shell, results, unknown, dry_run=False)
        print_trial(shell, canary, trial, more=rest is not None)
    if not trial.passed or unknown or not DONE.issuperset(results.values()):
        raise typer.Exit(1)


def foretell(shell: Shell, canary: Canary, would: Mapping[int, str], unknown: Sequence[str] = ()) -> None:
    """What would be, and who would go first."""
    canaries = canary.among(would)
    if shell.json:
        told = {"succeeded": [], "failed": {}, "waiting": [], "would": canaries}
        emit({"canary": told, "tasks": {}, "would": by_name(would), "dry_run": True, "unknown_subjects": [*unknown]})
    else:
        print_results(shell, would, unknown, dry_run=True)
        more = f" and {len(canaries) - SHOWN:,} more" if len(canaries) > SHOWN else ""
        say(f"canaries: {', '.join(map(str, canaries[:SHOWN])) or 'none'}{more}", quiet=shell.quiet)
    if unknown or not DONE.issuperset(would.values()):
        raise typer.Exit(1)


def by_name(results: Mapping[int, str]) -> dict[str, str]:
    """The keys of a JSON object are texts."""
    return {str(id_): result for id_, result in results.items()}


# --- watching ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """What became of the canaries so far."""

    queue: Queue
    began: datetime
    waiting: list[int] = field(default_factory=list)
    succeeded: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def begin(self, answers: Mapping[int, str], canaries: Sequence[int]) -> None:
        """What is redriven is watched. A canary that is not failed: somebody held it, and it told nothing."""
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
        return {"succeeded": self.succeeded, "failed": by_name(self.failed), "waiting": self.waiting}

    def look(self) -> None:
        """At those whose try is not over."""
        outcomes = {id_: outcome(self.queue, id_, self.began) for id_ in self.waiting}
        self.waiting = [id_ for id_, found in outcomes.items() if found is None]
        self.succeeded += [id_ for id_, found in outcomes.items() if found == SUCCEEDED]
        self.failed |= {id_: found for id_, found in outcomes.items() if found}


def outcome(queue: Queue, id_: int, began: datetime) -> str | None:
    """SUCCEEDED, or why it failed; None while it waits or runs."""
    try:
        task = queue.task(id_)
    except NotFound:
        queue.status()  # raises if it is the queue that is not there
        return SUCCEEDED
    if task.state == "done" or ran(task, began):
        return SUCCEEDED
    return why(task) if task.state in ("dead", "cancelled") or task.attempts else None


def ran(task: Listed, began: datetime) -> bool:
    """One that runs again and again. Its iterations would not tell: it may have run before anybody counted them."""
    return task.last_iteration is not None and task.last_iteration > began


def why(task: Listed) -> str:
    """A worker that died with it left no error."""
    return ": ".join(dict.fromkeys(filter(None, (task.reason, task.error)))) or "crashed"


def watch(shell: Shell, canary: Canary, trial: Trial, *, more: bool) -> None:
    """Until all succeeded, one failed, or the time is up."""
    quiet = shell.quiet or shell.json or not trial.size
    until = time.monotonic() + canary.wait.total_seconds()
    done = "the canaries are redriven" + (", the rest is not" if more else "")
    with telling(done), progress_bar("canaries", trial.size, quiet=quiet) as bar:
        while True:
            trial.look()
            bar(trial.size - len(trial.waiting))
            left = until - time.monotonic()
            if trial.over or left <= 0:
                break
            time.sleep(min(POLL, left))
        trial.look()  # at those that came to an end while another was seen to fail


@contextmanager
def telling(done: str) -> Iterator[None]:
    """Whoever stops it, or can not go on, learns what was done by then."""
    try:
        yield
    except KeyboardInterrupt:
        interrupted(done)
        raise
    except PenstockError as error:
        error.hint = " ".join(filter(None, (error.hint, f"{done.capitalize()}.")))
        raise


# --- for people -------------------------------------------------------------------------------------------------------


def print_trial(shell: Shell, canary: Canary, trial: Trial, *, more: bool) -> None:
    if not trial.size:
        return
    for line in [headline(canary, trial), *complaints(trial)]:
        say(line, quiet=shell.quiet)
    if trial.waiting and not trial.failed:
        say(f"  {advice(trial.queue)}", quiet=shell.quiet)
    if more and not trial.passed:
        say("nothing more is redriven: the rest is still dead", quiet=shell.quiet)


def headline(canary: Canary, trial: Trial) -> str:
    said = f"canaries: {len(trial.succeeded):,} of {trial.size:,} succeeded"
    if trial.failed:
        said += f", {len(trial.failed):,} failed"
    if trial.waiting:
        said += f", {len(trial.waiting):,} not tried" + ("" if trial.failed else f" within {span(canary.wait)}")
    return said


def complaints(trial: Trial) -> list[str]:
    lines = [f"  {id_}: {harmless(said)}" for id_, said in trial.failed.items()]
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"  and {more:,} more; --json names them all"]


def advice(queue: Queue) -> str:
    """Why nobody may have come."""
    status = queue.status()
    if status.paused:
        return f"queue {queue.name} is paused: `penstock queues resume {queue.name}`"
    if status.active:
        return "its workers are busy: give them longer with --canary-wait"
    return f"no worker seems to serve queue {queue.name}"
