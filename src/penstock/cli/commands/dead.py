"""`penstock dead` lists, redrives and purges dead tasks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from penstock import validate
from penstock.cli.commands.dead_canary import (
    Canary,
    CanaryCount,
    CanaryWait,
    parse_canary,
    print_dry_run,
    redrive_matching_canaries,
    redrive_named_canaries,
)
from penstock.cli.terminal.consent import Yes, ask, check_consent
from penstock.cli.terminal.listing import find_dead, print_page
from penstock.cli.terminal.named_tasks import (
    Names,
    apply_verb,
    check_names,
    find_state,
    find_unknown_subjects,
    predict_results,
    print_results,
)
from penstock.cli.terminal.options import (
    After,
    DryRun,
    ErrorText,
    Ids,
    Kind,
    Limit,
    PageSize,
    QueueName,
    Shell,
    Subject,
    Subjects,
    check_error_text,
    check_kind,
    parse_moment,
    read_only,
    with_shell,
)
from penstock.cli.terminal.removal import remove
from penstock.client.queue import Queue
from penstock.errors import ValidationError
from penstock.formatting import format_count
from penstock.model import TaskInfo

app = typer.Typer(
    help="Dead tasks: they failed for good. List them, run them again or remove them.", no_args_is_help=True
)


@app.command("ls")
@with_shell
@read_only
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
        str | None, typer.Option(help="Only tasks that died at this moment or later.", show_default=False)
    ] = None,
    limit: Limit = None,
    every: Annotated[bool, typer.Option("--all", help="All dead tasks of the queue.")] = False,
    canary: CanaryCount = None,
    canary_wait: CanaryWait = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Run dead tasks again: those you name (cancelled ones too), those that match, or --all, the oldest first.

    Their attempts and their age start again. Results for named tasks: redriven, live (it waits or runs), busy (it is
    locked: try again), unknown. Exits with 1 if a named task cannot be redriven.

    With --canary, running workers try the first few tasks. The rest is redriven if all of them succeed. Exits with 1
    if one of them fails, or is not tried in time.

    Example: penstock dead redrive mail --error timeout --since 2030-01-31T06:00:00Z --canary 3
    """
    chosen = DeadFilter(kind, error, since=since, limit=limit)
    ahead = parse_canary(canary, canary_wait)
    check_choice(named=bool(ids or subject), chosen=chosen, every=every)
    if every:
        check_consent(yes=yes, dry_run=dry_run)
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        if ids or subject:
            redrive_named(shell, target, check_names(ids, subject), ahead, dry_run=dry_run)
            return
        dead = target.status().dead
        if every and not (yes or dry_run):
            if not dead:
                shell.answer({"tasks": {}, "unknown_subjects": []}, f"no dead tasks of queue {queue} to redrive")
                return
            ask(f"Redrive {format_count(dead, 'dead task')} of queue {queue}?")
        redrive_matching(shell, target, chosen, ahead, dry_run=dry_run)


def redrive_named(shell: Shell, target: Queue, named: Names, ahead: Canary | None, *, dry_run: bool) -> None:
    if ahead is None:
        call = partial(target.redrive, named[0], subjects=named[1])
        apply_verb(shell, target, "redrive", named, call=call, dry_run=dry_run)
    elif dry_run:
        fates = predict_results(target, "redrive", named)
        print_dry_run(shell, ahead, fates, find_unknown_subjects(target, named, fates))
    else:
        redrive_named_canaries(shell, target, ahead, named)


def redrive_matching(shell: Shell, target: Queue, chosen: DeadFilter, ahead: Canary | None, *, dry_run: bool) -> None:
    if ahead is None:
        found = chosen.oldest(target) if dry_run else chosen.redrive(target, chosen.limit)
        print_results(shell, found, dry_run=dry_run)
    elif dry_run:
        print_dry_run(shell, ahead, chosen.oldest(target))
    else:
        redrive_matching_canaries(shell, target, ahead, chosen.count(target, None), partial(chosen.redrive, target))


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
        str | None, typer.Option(help="Only tasks that died before this moment.", show_default=False)
    ] = None,
    limit: Limit = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove dead tasks for good: those you name, those that match, or all. Exits with 1 if a named task is not dead.

    Example: penstock dead purge mail --before 2030-01-01T00:00:00Z --yes
    """
    chosen = DeadFilter(kind, error, before=before, limit=limit)
    named = validate.ids(ids) if ids else None
    check_apart(named=bool(ids), chosen=chosen)
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connect() as penstock:
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


class DeadFilter:
    """The options that choose dead tasks which are not named, checked."""

    def __init__(
        self,
        kind: str | None,
        error: str | None,
        *,
        since: str | None = None,
        before: str | None = None,
        limit: int | None,
    ) -> None:
        self.kind = check_kind(kind)
        self.error = check_error_text(error)
        self.since = parse_moment(since, "since")
        self.before = parse_moment(before, "before")
        self.limit = None if limit is None else validate.whole(limit, "limit", 1, 2**31)

    def given(self) -> list[str]:
        """Returns the options that are given and narrow the choice."""
        return [f"--{name}" for name in ("kind", "error", "since", "before") if getattr(self, name) is not None]

    def matching(self, queue: Queue) -> Iterator[TaskInfo]:
        return find_dead(queue, kind=self.kind, error=self.error, since=self.since, before=self.before)

    def oldest(self, queue: Queue) -> dict[int, str]:
        """Returns the tasks that `redrive` would choose, with its result for each."""
        found = sorted((task.ended_at, task.id) for task in self.matching(queue))
        return {id_: "redriven" for _, id_ in found[: self.limit]}

    def redrive(self, queue: Queue, limit: int | None) -> dict[int, str]:
        return queue.redrive(kind=self.kind, error=self.error, since=self.since, limit=limit)

    def count(self, queue: Queue, named: list[int] | None) -> int:
        """Counts the tasks that `purge` would remove, or the chosen tasks if none are named."""
        if named is not None:
            return sum(find_state(queue, id_) == "dead" for id_ in named)
        return sum(1 for _ in islice(self.matching(queue), self.limit)) if self.given() else self.most(queue)

    def most(self, queue: Queue) -> int:
        dead = queue.status().dead
        return dead if self.limit is None else min(dead, self.limit)

    def purge(self, queue: Queue, named: list[int] | None) -> int:
        return queue.purge("dead", ids=named, kind=self.kind, error=self.error, before=self.before, limit=self.limit)


def check_choice(*, named: bool, chosen: DeadFilter, every: bool) -> None:
    """Requires exactly one of named tasks, a filter and --all."""
    check_apart(named=named, chosen=chosen)
    if every and (named or chosen.given()):
        raise ValidationError(
            "all: --all cannot be combined with ids, subjects or filters", hint="Leave out --all, or the others."
        )
    if not (every or named or chosen.given()):
        raise ValidationError(
            "ids: no tasks are chosen",
            hint="Name tasks, give --kind, --error or --since, or add --all.",
        )


def check_apart(*, named: bool, chosen: DeadFilter) -> None:
    beside = chosen.given() + ([] if chosen.limit is None else ["--limit"])
    if named and beside:
        raise ValidationError(
            f"ids: {beside[0]} cannot be combined with named tasks", hint=f"Leave out {beside[0]}, or the names."
        )
