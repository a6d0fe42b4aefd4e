"""`penstock tasks` lists and shows tasks, and changes tasks by id or subject."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import validate
from penstock.app import Penstock
from penstock.cli.terminal.consent import Yes, ask, check_consent
from penstock.cli.terminal.listing import print_forgotten, print_page, print_task
from penstock.cli.terminal.named_tasks import (
    SUCCESSES,
    apply_verb,
    check_names,
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
    PageSize,
    QueueName,
    Shell,
    Subject,
    Subjects,
    parse_moment,
    parse_state,
    read_only,
    with_shell,
)
from penstock.cli.terminal.output import print_line
from penstock.client.statements.texts import to_storable
from penstock.errors import NotFound, ValidationError
from penstock.formatting import format_count
from penstock.model import TaskProgress

app = typer.Typer(help="List and show tasks, and change them by id or subject.", no_args_is_help=True)


@app.command("ls")
@with_shell
@read_only
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

    States: waiting (for other tasks), planned (not yet due), pending (can run), active (runs now), done, dead (failed
    for good), cancelled.

    Example: penstock tasks ls mail --state dead --error timeout --limit 20
    """
    print_page(
        shell, queue, state=parse_state(state), kind=kind, subject=subject, error=error, limit=limit, after=after
    )


@app.command("show")
@with_shell
@read_only
def show(shell: Shell, id: Annotated[int, typer.Argument(help="The task.")]) -> None:  # noqa: A002 - the name of the argument
    """Show everything about one task: its state, its payload, what its handler said of its progress, its attempts, and
    the class, message and traceback of its last error.

    Attempts counts the failures since the last success, and iterations counts the successful runs. A long payload is
    cut, and only the last 50 attempts are shown, except with --json. If a task has been removed from its queue, history
    still shows its attempts and when it ended. `penstock why QUEUE --task ID` says why a task does not run.

    Example: penstock tasks show 42
    """
    with shell.connect() as penstock:
        try:
            found = penstock.find_task(id)
        except NotFound:
            print_forgotten(shell, id, penstock.attempts(id))
        else:
            progress = None if found.removed else find_progress(penstock, id)
            print_task(shell, found, penstock.attempts(id), progress)


def find_progress(penstock: Penstock, id_: int) -> TaskProgress | None:
    try:
        return penstock.progress(id_)
    except NotFound:  # the task was removed at this moment
        return None


@app.command("cancel")
@with_shell
def cancel(
    shell: Shell,
    queue: QueueName,
    ids: Ids = None,
    *,
    subject: Subjects = None,
    reason: Annotated[str, typer.Option(help="The reason, kept with the task.")] = "cancelled",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Cancel tasks. Exits with 1 if one of them cannot be cancelled.

    Results: cancelled, revoked (it was running, and its worker is told), ended (it had ended before), busy (it is
    locked: try again), unknown.

    Example: penstock tasks cancel mail 42 43 --subject welcome:ann --reason "customer left" --yes
    """
    named = check_names(ids, subject)
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        target.status()  # raises for a missing queue before the question
        if not (yes or dry_run):
            fates = predict_results(target, "cancel", named)
            would = sum(fate in SUCCESSES for fate in fates.values())
            if not would:
                print_results(shell, fates, find_unknown_subjects(target, named, fates), dry_run=False)
                print_line(f"no tasks of queue {queue} to cancel", quiet=shell.quiet or shell.json)
                return
            ask(f"Cancel {format_count(would)} of queue {queue}?")
        apply_verb(
            shell,
            target,
            "cancel",
            named,
            call=lambda: target.cancel(named[0], subjects=named[1], reason=to_storable(reason) or "cancelled"),
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
    due: Annotated[
        str | None, typer.Option(help="The new due moment, as 2030-01-31T06:00:00Z.", show_default=False)
    ] = None,
    after: Annotated[
        str | None, typer.Option("--in", help="How long from now, as 30s, 5m or 1h30m.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Change the due moment of waiting tasks. Exits with 1 if one of them cannot be rescheduled.

    Results: rescheduled, active (it runs now), ended, busy (it is locked: try again), unknown.

    Example: penstock tasks reschedule mail 42 43 --in 1h30m
    """
    named = check_names(ids, subject)
    at = parse_moment(due, "due")
    wait = None if after is None else validate.duration(after, "in")
    if (at is None) == (wait is None):
        raise ValidationError("due: give one of --due and --in", field="due")
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        now = target.status().at  # due moments are compared with the database's clock
        when = now + wait if now is not None and wait is not None else at
        assert when is not None
        apply_verb(
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
    priority: Annotated[int, typer.Option(help="-100 to 100; smaller runs first.", show_default=False)],
    subject: Subjects = None,
    dry_run: DryRun = False,
) -> None:
    """Change the priority of tasks. A task that runs now has it from its next attempt on. Exits with 1 if one fails.

    Results: reprioritised, ended, busy (it is locked: try again), unknown.

    Example: penstock tasks reprioritise mail 42 --priority 0
    """
    named = check_names(ids, subject)
    validate.check_priority(priority)
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        apply_verb(
            shell,
            target,
            "reprioritise",
            named,
            call=lambda: target.reprioritise(priority, named[0], subjects=named[1]),
            dry_run=dry_run,
        )
