"""`penstock queues …`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.board import status_json
from penstock.cli.consent import Yes, ask, check_consent
from penstock.cli.options import DryRun, QueueName, Shell, one_of, reading, with_shell
from penstock.cli.output import emit, many, say, span, table
from penstock.cli.removal import remove
from penstock.cli.settings import (
    KeepCancelled,
    KeepDead,
    KeepDone,
    Lease,
    MaxAttempts,
    MaxPayload,
    Retry,
    Sla,
    changed,
    settings_json,
    shown_settings,
    strategy,
    told_settings,
)
from penstock.cli.status import NO_QUEUES, print_status
from penstock.errors import Conflict, ValidationError
from penstock.model import GAUGES
from penstock.queue import Queue
from penstock.validate import queue_name

app = typer.Typer(help="Create queues, look at them, change and remove them.", no_args_is_help=True)

BRIEF = ("queue", "lease", "max_attempts", "retry", "sla", "keep_done", "paused", "created")
PURGED = tuple(state for state in GAUGES if state != "active")


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
    max_payload: MaxPayload = 1 << 20,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="No error if it exists; it is left as it is.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Create a queue.

    Example: penstock queues create mail --sla 30s --lease 30s --max-attempts 5 --retry fibonacci:1m
    """
    settings = told_settings(
        lease=lease,
        max_attempts=max_attempts,
        retry=retry,
        sla=sla,
        keep_done=keep_done,
        keep_dead=keep_dead,
        keep_cancelled=keep_cancelled,
        max_payload=max_payload,
    )
    queue_name(name)
    if dry_run:
        shell.answer({"queue": name, "created": False, "dry_run": True}, f"queue {name} would be created")
        return
    with shell.connected() as penstock:
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
    with shell.connected() as penstock:
        found = penstock.queues()
    if shell.json:
        every = [settings_json(one) for one in found]
        emit({"queues": [{name: one[name] for name in BRIEF} for one in every]})
    elif not found:
        say(NO_QUEUES, quiet=shell.quiet)
    elif not shell.quiet:
        table(
            ("queue", "lease", "max attempts", "retry", "sla", "keeps done", "paused"),
            [
                (
                    one.queue,
                    span(one.lease),
                    "strategy" if one.max_attempts is None else str(one.max_attempts),
                    strategy(one.retry),
                    span(one.sla),
                    span(one.keep_done),
                    "paused" if one.paused else "",
                )
                for one in found
            ],
            words=("retry",),
        )


@app.command("show")
@with_shell
@reading
def show(shell: Shell, queue: QueueName) -> None:
    """Show one queue: all its settings, and how it stands.

    Example: penstock queues show mail
    """
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        settings, status = target.settings(), target.status()
    if shell.json:
        emit(settings_json(settings) | {"status": status_json(status)})
    elif not shell.quiet:
        table(("setting", "value"), list(shown_settings(settings).items()), words=("value",))
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
    max_payload: MaxPayload = None,
    dry_run: DryRun = False,
) -> None:
    """Change settings of a queue; what is not given stays as it is.

    Example: penstock queues set mail --sla 1m --keep-dead 30d --max-attempts none
    """
    changes = told_settings(
        lease=lease,
        max_attempts=max_attempts,
        retry=retry,
        sla=sla,
        keep_done=keep_done,
        keep_dead=keep_dead,
        keep_cancelled=keep_cancelled,
        max_payload=max_payload,
    )
    if not changes:
        raise ValidationError("settings: none is given", hint="See `penstock queues set --help`.")
    change(shell, queue, changes, dry_run=dry_run)


@app.command("pause")
@with_shell
def pause(shell: Shell, queue: QueueName, *, dry_run: DryRun = False) -> None:
    """Give out no more tasks until `resume`. Pushes go on; what runs now may be settled.

    Example: penstock queues pause mail
    """
    change(shell, queue, {"paused": True}, dry_run=dry_run)


@app.command("resume")
@with_shell
def resume(shell: Shell, queue: QueueName, *, dry_run: DryRun = False) -> None:
    """Give out tasks again after `pause`.

    Example: penstock queues resume mail
    """
    change(shell, queue, {"paused": False}, dry_run=dry_run)


@app.command("purge")
@with_shell
def purge(
    shell: Shell,
    queue: QueueName,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only tasks in this state; may be repeated; default: all but active.", show_default=False),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove tasks for good. Never active ones: somebody works on them; cancel those.

    Example: penstock queues purge mail --state planned --state pending --yes
    """
    states = [one_of(one, PURGED, "state") for one in state or PURGED]
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        remove(
            shell,
            target,
            "task",
            count=lambda: count_in(target, states),
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
    force: Annotated[bool, typer.Option("--force", help="Even with tasks in it: they go too.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove a queue. One with tasks in it is refused, unless forced.

    Example: penstock queues drop mail --force --yes
    """
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        tasks = count_in(target, GAUGES)
        if tasks and not force:
            raise Conflict(f"queue {queue!r} has {many(tasks)} in it", hint="Purge it first, or say --force.")
        if not (yes or dry_run):
            ask(f"Drop queue {queue} with {many(tasks)} in it?")
        if not dry_run:
            tasks = target.drop(force=force)
    told = {"queue": queue, "dropped": not dry_run, "tasks": tasks} | ({"dry_run": True} if dry_run else {})
    shell.answer(told, f"queue {queue} with {many(tasks)} {'would be dropped' if dry_run else 'dropped'}")


def change(shell: Shell, queue: str, changes: dict[str, Any], *, dry_run: bool) -> None:
    with shell.connected() as penstock:
        target = penstock.queue(queue)
        before = target.settings()
        after = changed(before, changes) if dry_run else target.set(**changes)
    old, new = shown_settings(before), shown_settings(after)
    told = ", ".join(f"{name} {old[name]} -> {new[name]}" for name in new if new[name] != old[name])
    said = f"queue {queue}{' would be' if dry_run else ''}: {told or 'as it was'}"
    shell.answer(settings_json(after) | ({"dry_run": True} if dry_run else {}), said)


def count_in(queue: Queue, states: list[str] | tuple[str, ...]) -> int:
    status = queue.status()
    return sum(int(getattr(status, state)) for state in {*states})
