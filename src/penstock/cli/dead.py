"""`penstock dead …`: tasks that were given up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from penstock import validate
from penstock.cli.canary import Canary, CanaryCount, CanaryWait, asked_canary, foretell, lead_matching, lead_named
from penstock.cli.consent import Yes, ask, check_consent
from penstock.cli.listing import dead_that_match, print_page
from penstock.cli.named import Names, apply, foretold, names, print_results, state_of, unknown_subjects
from penstock.cli.options import (
    After,
    AtMost,
    DryRun,
    ErrorText,
    Ids,
    Kind,
    PageSize,
    QueueName,
    Shell,
    Subject,
    Subjects,
    error_text,
    kind_text,
    moment,
    reading,
    with_shell,
)
from penstock.cli.output import many
from penstock.cli.removal import remove
from penstock.errors import ValidationError
from penstock.model import Listed
from penstock.queue import Queue

app = typer.Typer(
    help="Dead tasks: given up after their attempts, or told so. They wait here for another life.", no_args_is_help=True
)


@app.command("ls")
@with_shell
@reading
def ls(
    shell: Shell,
    queue: QueueName,
    *,
    kind: Kind = None,
    subject: Subject = None,
    error: ErrorText = None,
    limit: PageSize = 100,
    after: After = None,
) -> None:
    """List dead tasks in the order of their ids, and why they died.

    Example: penstock dead ls mail --error timeout
    """
    print_page(shell, queue, state="dead", kind=kind, subject=subject, error=error, limit=limit, after=after)


@app.command("redrive")
@with_shell
def redrive(
    shell: Shell,
    queue: QueueName,
    ids: Ids = None,
    *,
    subject: Subjects = None,
    kind: Kind = None,
    error: ErrorText = None,
    since: Annotated[
        str | None, typer.Option(help="Only those that died at this moment or later.", show_default=False)
    ] = None,
    limit: AtMost = None,
    every: Annotated[bool, typer.Option("--all", help="All dead tasks of the queue.")] = False,
    canary: CanaryCount = None,
    canary_wait: CanaryWait = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give dead tasks another life: those named (cancelled ones too), those that match, or --all, the oldest first.

    Their attempts and age begin anew. Answers for named ones: redriven, live (it waits or runs), busy (held this
    moment: try again), unknown; exit 1 when one of them could not be.

    With --canary the first few go ahead; running workers try them. The rest follows when all of them succeeded; exit 1
    when one failed, or was not tried in time.

    Example: penstock dead redrive mail --error timeout --since 2030-01-31T06:00:00Z --canary 3
    """
    chosen = Filter(kind, error, since=since, limit=limit)
    ahead = asked_canary(canary, canary_wait)
    check_choice(named=bool(ids or subject), chosen=chosen, every=every)
    if every:
        check_consent(yes=yes, dry_run=dry_run)
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        if ids or subject:
            redrive_named(shell, target, names(ids, subject), ahead, dry_run=dry_run)
            return
        dead = target.status().dead
        if every and not (yes or dry_run):
            if not dead:
                shell.answer({"tasks": {}, "unknown_subjects": []}, f"no dead tasks of queue {queue} to redrive")
                return
            ask(f"Redrive {many(dead, 'dead task')} of queue {queue}?")
        redrive_matching(shell, target, chosen, ahead, dry_run=dry_run)


def redrive_named(shell: Shell, target: Queue, named: Names, ahead: Canary | None, *, dry_run: bool) -> None:
    if ahead is None:
        call = partial(target.redrive, named[0], subjects=named[1])
        apply(shell, target, "redrive", named, call=call, dry_run=dry_run)
    elif dry_run:
        fates = foretold(target, "redrive", named)
        foretell(shell, ahead, fates, unknown_subjects(target, named, fates))
    else:
        lead_named(shell, target, ahead, named)


def redrive_matching(shell: Shell, target: Queue, chosen: Filter, ahead: Canary | None, *, dry_run: bool) -> None:
    if ahead is None:
        found = chosen.oldest(target) if dry_run else chosen.redrive(target, chosen.limit)
        print_results(shell, found, dry_run=dry_run)
    elif dry_run:
        foretell(shell, ahead, chosen.oldest(target))
    else:
        lead_matching(shell, target, ahead, chosen.count(target, None), partial(chosen.redrive, target))


@app.command("purge")
@with_shell
def purge(
    shell: Shell,
    queue: QueueName,
    ids: Ids = None,
    *,
    kind: Kind = None,
    error: ErrorText = None,
    before: Annotated[
        str | None, typer.Option(help="Only those that died before this moment.", show_default=False)
    ] = None,
    limit: AtMost = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove dead tasks for good: those named, those that match, or all. Exit 1 when a named one is not a dead task.

    Example: penstock dead purge mail --before 2030-01-01T00:00:00Z --yes
    """
    chosen = Filter(kind, error, before=before, limit=limit)
    named = validate.ids(ids) if ids else None
    check_apart(named=bool(ids), chosen=chosen)
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        gone = remove(
            shell,
            target,
            "dead task",
            count=lambda: chosen.count(target, named),
            call=lambda: chosen.purge(target, named),
            yes=yes,
            dry_run=dry_run,
        )
    if named is not None and gone < len(named):
        raise typer.Exit(1)


# --- which of them ----------------------------------------------------------------------------------------------------


class Filter:
    """Which dead tasks, when they are not named; checked."""

    def __init__(
        self,
        kind: str | None,
        error: str | None,
        *,
        since: str | None = None,
        before: str | None = None,
        limit: int | None,
    ) -> None:
        self.kind = kind_text(kind)
        self.error = error_text(error)
        self.since = moment(since, "since")
        self.before = moment(before, "before")
        self.limit = None if limit is None else validate.whole(limit, "limit", 1, 2**31)

    def given(self) -> list[str]:
        """The options that narrow the choice."""
        return [f"--{name}" for name in ("kind", "error", "since", "before") if getattr(self, name) is not None]

    def matching(self, queue: Queue) -> Iterator[Listed]:
        return dead_that_match(queue, kind=self.kind, error=self.error, since=self.since, before=self.before)

    def oldest(self, queue: Queue) -> dict[int, str]:
        """What `redrive` would answer."""
        found = sorted((task.ended_at, task.id) for task in self.matching(queue))
        return {id_: "redriven" for _, id_ in found[: self.limit]}

    def redrive(self, queue: Queue, limit: int | None) -> dict[int, str]:
        return queue.redrive(kind=self.kind, error=self.error, since=self.since, limit=limit)

    def count(self, queue: Queue, named: list[int] | None) -> int:
        """How many `purge` would remove; how many are chosen, when none are named."""
        if named is not None:
            return sum(state_of(queue, id_) == "dead" for id_ in named)
        return sum(1 for _ in islice(self.matching(queue), self.limit)) if self.given() else self.most(queue)

    def most(self, queue: Queue) -> int:
        dead = queue.status().dead
        return dead if self.limit is None else min(dead, self.limit)

    def purge(self, queue: Queue, named: list[int] | None) -> int:
        return queue.purge("dead", ids=named, kind=self.kind, error=self.error, before=self.before, limit=self.limit)


def check_choice(*, named: bool, chosen: Filter, every: bool) -> None:
    """Exactly one of: named tasks, a filter, --all."""
    check_apart(named=named, chosen=chosen)
    if every and (named or chosen.given()):
        raise ValidationError("all: ids, subjects and filters choose less than all", hint="Leave out one of them.")
    if not (every or named or chosen.given()):
        raise ValidationError(
            "ids: neither ids nor a filter are given",
            hint="Name tasks, give --kind, --error or --since, or say --all.",
        )


def check_apart(*, named: bool, chosen: Filter) -> None:
    beside = chosen.given() + ([] if chosen.limit is None else ["--limit"])
    if named and beside:
        raise ValidationError(
            f"ids: tasks are named, so {beside[0]} has nothing to choose", hint="Leave out one of them."
        )
