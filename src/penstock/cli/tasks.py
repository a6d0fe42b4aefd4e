"""`penstock tasks …`: look at tasks, and change those that are named."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import validate
from penstock.cli.consent import Yes, ask, check_consent
from penstock.cli.listing import print_page, print_task
from penstock.cli.named import DONE, apply, foretold, names, print_results, unknown_subjects
from penstock.cli.options import (
    After,
    DryRun,
    ErrorText,
    Ids,
    Kind,
    PageSize,
    QueueName,
    Shell,
    Subject,
    Subjects,
    moment,
    reading,
    state_of,
    with_shell,
)
from penstock.cli.output import many, say
from penstock.errors import ValidationError
from penstock.statements import storable

app = typer.Typer(help="Look at tasks, and change those you name by id or subject.", no_args_is_help=True)


@app.command("ls")
@with_shell
@reading
def ls(
    shell: Shell,
    queue: QueueName,
    *,
    state: Annotated[str | None, typer.Option(help="Only tasks in this state.", show_default=False)] = None,
    kind: Kind = None,
    subject: Subject = None,
    error: ErrorText = None,
    limit: PageSize = 100,
    after: After = None,
) -> None:
    """List tasks in the order of their ids.

    States: planned (not yet due), pending (may run), active (somebody works on it), done, dead (given up), cancelled.

    Example: penstock tasks ls mail --state dead --error timeout --limit 20
    """
    print_page(shell, queue, state=state_of(state), kind=kind, subject=subject, error=error, limit=limit, after=after)


@app.command("show")
@with_shell
@reading
def show(shell: Shell, queue: QueueName, id: Annotated[int, typer.Argument(help="The task.")]) -> None:  # noqa: A002
    """Show one task, its payload included.

    Attempts are the tries since the last success, iterations the successful runs.

    Example: penstock tasks show mail 42
    """
    with shell.connected() as penstock:
        print_task(shell, penstock.queue(queue).task(id))


@app.command("cancel")
@with_shell
def cancel(
    shell: Shell,
    queue: QueueName,
    ids: Ids = None,
    *,
    subject: Subjects = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the task.")] = "cancelled",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End tasks unfinished. Exit 1 when one of them could not be.

    Answers: cancelled, revoked (a worker had it, and is told), ended (before), busy (held this moment: try again),
    unknown.

    Example: penstock tasks cancel mail 42 43 --subject welcome:ann --reason "customer left" --yes
    """
    named = names(ids, subject)
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        target.status()  # nobody is asked about a queue that is not there
        if not (yes or dry_run):
            fates = foretold(target, "cancel", named)
            would = sum(fate in DONE for fate in fates.values())
            if not would:
                print_results(shell, fates, unknown_subjects(target, named, fates), dry_run=False)
                say(f"no tasks of queue {queue} to cancel", quiet=shell.quiet or shell.json)
                return
            ask(f"Cancel {many(would)} of queue {queue}?")
        apply(
            shell,
            target,
            "cancel",
            named,
            call=lambda: target.cancel(named[0], subjects=named[1], reason=storable(reason) or "cancelled"),
            dry_run=dry_run,
        )


@app.command("reschedule")
@with_shell
def reschedule(
    shell: Shell,
    queue: QueueName,
    ids: Ids = None,
    *,
    subject: Subjects = None,
    due: Annotated[str | None, typer.Option(help="The moment, as 2030-01-31T06:00:00Z.", show_default=False)] = None,
    after: Annotated[
        str | None, typer.Option("--in", help="So long from now, as 30s, 5m or 1h30m.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Give waiting tasks another due, the moment from which they may run. Exit 1 when one of them could not be.

    Answers: rescheduled, active (somebody works on it), ended, busy (held this moment: try again), unknown.

    Example: penstock tasks reschedule mail 42 43 --in 1h30m
    """
    named = names(ids, subject)
    at = moment(due, "due")
    wait = None if after is None else validate.duration(after, "in")
    if (at is None) == (wait is None):
        raise ValidationError("due: give either --due or --in", field="due")
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        now = target.status().at  # the database's: only its clock decides
        when = now + wait if now is not None and wait is not None else at
        assert when is not None
        apply(
            shell,
            target,
            "reschedule",
            named,
            call=lambda: target.reschedule(when, named[0], subjects=named[1]),
            dry_run=dry_run,
        )


@app.command("reprioritise")
@with_shell
def reprioritise(
    shell: Shell,
    queue: QueueName,
    ids: Ids = None,
    *,
    priority: Annotated[int, typer.Option(help="0 to 9; smaller runs first.", show_default=False)],
    subject: Subjects = None,
    dry_run: DryRun = False,
) -> None:
    """Give tasks another priority; one that runs now has it from its next attempt on. Exit 1 when one could not be.

    Answers: reprioritised, ended, busy (held this moment: try again), unknown.

    Example: penstock tasks reprioritise mail 42 --priority 0
    """
    named = names(ids, subject)
    validate.whole(priority, "priority", 0, 9)
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        apply(
            shell,
            target,
            "reprioritise",
            named,
            call=lambda: target.reprioritise(priority, named[0], subjects=named[1]),
            dry_run=dry_run,
        )
