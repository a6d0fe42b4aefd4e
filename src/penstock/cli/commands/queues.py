"""`penstock queues` creates, lists, changes and removes queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.commands.status import print_status
from penstock.cli.terminal.board import NO_QUEUES, status_json
from penstock.cli.terminal.consent import Yes, ask, check_consent
from penstock.cli.terminal.options import DryRun, QueueName, Shell, check_one_of, read_only, with_shell
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.cli.terminal.queue_settings import (
    KeepCancelled,
    KeepDead,
    KeepDone,
    Lease,
    MaxAttempts,
    MaxCrashes,
    MaxPayload,
    PriorityStep,
    Retry,
    Sla,
    apply_changes,
    check_settings,
    format_settings,
    format_strategy,
    settings_json,
)
from penstock.cli.terminal.removal import remove
from penstock.client.queue import Queue
from penstock.errors import Conflict, ValidationError
from penstock.formatting import format_count, format_length
from penstock.model import GAUGES, QueueSettings
from penstock.validate import queue_name

app = typer.Typer(help="Create, list, change and remove queues.", no_args_is_help=True)

BRIEF = ("queue", "lease", "max_attempts", "retry", "sla", "keep_done", "paused", "created")
PURGEABLE = tuple(state for state in GAUGES if state != "active")


@app.command("create")
@with_shell
def create(
    shell: Shell,
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9, _ . -")],
    *,
    lease: Lease = "30s",
    max_attempts: MaxAttempts = "20",
    retry: Retry = "exponential:5s,factor=2,cap=1h,jitter=0.1",
    sla: Sla = None,
    keep_done: KeepDone = None,
    keep_dead: KeepDead = None,
    keep_cancelled: KeepCancelled = None,
    priority_step: PriorityStep = None,
    max_payload: MaxPayload = 1 << 20,
    max_crashes: MaxCrashes = 20,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="If the queue exists, leave it as it is.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Create a queue.

    Example: penstock queues create mail --sla 30s --lease 30s --max-attempts 5 --retry fibonacci:1m
    """
    settings = check_settings(
        lease=lease,
        max_attempts=max_attempts,
        retry=retry,
        sla=sla,
        keep_done=keep_done,
        keep_dead=keep_dead,
        keep_cancelled=keep_cancelled,
        priority_step=priority_step,
        max_payload=max_payload,
        max_crashes=max_crashes,
    )
    queue_name(name)
    if dry_run:
        shell.answer({"queue": name, "created": False, "dry_run": True}, f"queue {name} would be created")
        return
    with shell.connect() as penstock:
        before = {one.queue for one in penstock.queues()} if exist_ok else set()
        penstock.create_queue(name, **settings, exist_ok=exist_ok)
    created = name not in before
    said = f"queue {name} created" if created else f"queue {name} was there already"
    shell.answer({"queue": name, "created": created}, said)


@app.command("ls")
@with_shell
def ls(shell: Shell) -> None:
    """List the queues and their main settings.

    Example: penstock queues ls
    """
    with shell.connect() as penstock:
        found = penstock.queues()
    if shell.json:
        every = [settings_json(one) for one in found]
        print_json({"queues": [{name: one[name] for name in BRIEF} for one in every]})
    elif not found:
        print_line(NO_QUEUES, quiet=shell.quiet)
    elif not shell.quiet:
        print_table(
            ("queue", "lease", "max attempts", "retry", "sla", "keeps done", "paused"),
            [
                (
                    one.queue,
                    format_length(one.lease),
                    "strategy" if one.max_attempts is None else str(one.max_attempts),
                    format_strategy(one.retry),
                    format_length(one.sla),
                    format_length(one.keep_done),
                    "paused" if one.paused else "",
                )
                for one in found
            ],
            words=("retry",),
        )


@app.command("show")
@with_shell
@read_only
def show(shell: Shell, queue: QueueName) -> None:
    """Show all settings of one queue, and its state.

    Example: penstock queues show mail
    """
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        settings, status = target.settings(), target.status()
    if shell.json:
        print_json(settings_json(settings) | {"status": status_json(status)})
    elif not shell.quiet:
        print_table(("setting", "value"), list(format_settings(settings).items()), words=("value",))
        print_status([status])


@app.command("set")
@with_shell
def set_(
    shell: Shell,
    queue: QueueName,
    *,
    lease: Lease = None,
    max_attempts: MaxAttempts = None,
    retry: Retry = None,
    sla: Sla = None,
    keep_done: KeepDone = None,
    keep_dead: KeepDead = None,
    keep_cancelled: KeepCancelled = None,
    priority_step: PriorityStep = None,
    max_payload: MaxPayload = None,
    max_crashes: MaxCrashes = None,
    dry_run: DryRun = False,
) -> None:
    """Change settings of a queue. Settings that you leave out stay as they are.

    Example: penstock queues set mail --sla 1m --keep-dead 30d --max-attempts none
    """
    changes = check_settings(
        lease=lease,
        max_attempts=max_attempts,
        retry=retry,
        sla=sla,
        keep_done=keep_done,
        keep_dead=keep_dead,
        keep_cancelled=keep_cancelled,
        priority_step=priority_step,
        max_payload=max_payload,
        max_crashes=max_crashes,
    )
    if not changes:
        raise ValidationError("settings: none is given", hint="See `penstock queues set --help`.")
    change_settings(shell, queue, changes, dry_run=dry_run)


@app.command("pause")
@with_shell
def pause(shell: Shell, queue: QueueName, *, dry_run: DryRun = False) -> None:
    """Stop claims until `resume`. Pushes go on, and tasks that run now can be settled.

    Example: penstock queues pause mail
    """
    change_settings(shell, queue, {"paused": True}, dry_run=dry_run)


@app.command("resume")
@with_shell
def resume(shell: Shell, queue: QueueName, *, dry_run: DryRun = False) -> None:
    """Allow claims again after `pause`.

    Example: penstock queues resume mail
    """
    change_settings(shell, queue, {"paused": False}, dry_run=dry_run)


@app.command("purge")
@with_shell
def purge(
    shell: Shell,
    queue: QueueName,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only tasks in this state; you can repeat the option; default: all states but active.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove tasks for good. Active tasks stay: cancel those first.

    Example: penstock queues purge mail --state planned --state pending --yes
    """
    states = [check_one_of(one, PURGEABLE, "state") for one in state or PURGEABLE]
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        remove(
            shell,
            target,
            "task",
            count=lambda: count_tasks(target, states),
            call=lambda: target.purge(*states),  # type: ignore[arg-type]
            yes=yes,
            dry_run=dry_run,
        )


@app.command("drop")
@with_shell
def drop(
    shell: Shell,
    queue: QueueName,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Remove the queue even if it has tasks, with all of them, or gets follow-ups."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove a queue. If it has tasks, --force is required.

    Example: penstock queues drop mail --force --yes
    """
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        tasks = count_tasks(target, GAUGES)
        if tasks and not force:
            raise Conflict(f"queue {queue!r} has {format_count(tasks)} in it", hint="Purge it first, or add --force.")
        if not (yes or dry_run):
            ask(f"Drop queue {queue} with {format_count(tasks)} in it?")
        if not dry_run:
            tasks = target.drop(force=force)
    answer = {"queue": queue, "dropped": not dry_run, "tasks": tasks} | ({"dry_run": True} if dry_run else {})
    shell.answer(answer, f"queue {queue} with {format_count(tasks)} {'would be dropped' if dry_run else 'dropped'}")


def set_settings(queue: Queue, changes: dict[str, Any]) -> QueueSettings:
    """Changes settings of a queue. To pause and to resume have verbs of their own, which operators may call."""
    if changes.keys() == {"paused"}:
        (queue.pause if changes["paused"] else queue.resume)()
        return queue.settings()
    return queue.set(**changes)


def change_settings(shell: Shell, queue: str, changes: dict[str, Any], *, dry_run: bool) -> None:
    with shell.connect() as penstock:
        target = penstock.queue(queue)
        before = target.settings()
        after = apply_changes(before, changes) if dry_run else set_settings(target, changes)
    old, new = format_settings(before), format_settings(after)
    changed = ", ".join(f"{name} {old[name]} -> {new[name]}" for name in new if new[name] != old[name])
    said = f"queue {queue}{' would be' if dry_run else ''}: {changed or 'as it was'}"
    shell.answer(settings_json(after) | ({"dry_run": True} if dry_run else {}), said)


def count_tasks(queue: Queue, states: list[str] | tuple[str, ...]) -> int:
    status = queue.status()
    return sum(int(getattr(status, state)) for state in {*states})
