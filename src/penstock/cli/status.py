"""`penstock status`, `verify`, `upkeep`: how queues stand, and whether the books are true."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from penstock.cli import watching
from penstock.cli.adopt import backlogs_of, print_backlogs
from penstock.cli.board import status_json
from penstock.cli.options import DryRun, OneOrAll, Shell, reading, with_shell
from penstock.cli.output import age, emit, say, span, table
from penstock.errors import ValidationError
from penstock.model import GAUGES, QueueStatus, Repair, Verification

NO_QUEUES = "no queues; create one: penstock queues create NAME"


@with_shell
@reading
def status(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, with urgency, rates, target and why.")
    ] = False,
    interval: Annotated[
        str | None, typer.Option(help="Between two looks of --watch; default: 2s.", show_default=False)
    ] = None,
) -> None:
    """How queues stand: exact counts by state, the oldest age, totals.

    Planned tasks are not yet due, pending ones may run, active ones are being worked on. The oldest age is that of the
    task that waits longest; the sla is the promise it is held against. Done are the finished tasks that are kept
    (keep_done); finished are all that ever were. With --watch and --json: one JSON value a line.

    Example: penstock status mail --json
    """
    if watch:
        watching.watch(shell, queue, interval)
        return
    if interval is not None:
        hint = "penstock status --watch --interval 5s"
        raise ValidationError("interval: only --watch looks more than once", hint=hint, field="interval")
    with shell.connected() as penstock:
        found = [penstock.queue(queue).status()] if queue is not None else penstock.status()
        adopted = backlogs_of(penstock) if queue is None else []
    if shell.json:
        told = {"queues": [status_json(one) for one in found]}
        emit(told | ({"backlogs": [one.to_json() for one in adopted]} if adopted else {}))
    elif not shell.quiet:
        if found or not adopted:
            print_status(found)
        if adopted:
            print_backlogs(adopted)


@with_shell
@reading
def verify(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what is off, then look again.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Recount everything and compare it with the books. Exit 1 when anything is off (with --repair: still off).

    Drift: a counter differs from a recount. Orphans: tasks in no place, or in two. History: a total differs from
    history. Balance: what was pushed is not where the tasks are now.

    Example: penstock verify mail --repair
    """
    with shell.connected(rehearse=dry_run) as penstock:
        target = penstock if queue is None else penstock.queue(queue)
        done = penstock.repair(queue) if repair else []
        found = target.verify()
    if shell.json:
        repaired = [one._asdict() for one in done]
        emit(verification_json(found) | ({"would" if dry_run else "repaired": repaired} if repair else {}))
    elif not shell.quiet:
        print_verification(done, found, dry_run=dry_run)
    if not found.ok:
        raise typer.Exit(1)


@with_shell
def upkeep(shell: Shell, *, dry_run: DryRun = False) -> None:
    """Do what is due: take back expired leases, promote, fold counters, sample, retire what is no longer kept.

    Call it every ten seconds or so, from cron or a loop. Anybody may at any time: each part is short and safe to
    repeat.

    Example: penstock upkeep --json
    """
    with shell.connected(rehearse=dry_run) as penstock:
        parts = penstock.upkeep()
    if shell.json:
        emit({"parts": parts} | ({"dry_run": True} if dry_run else {}))
    elif not shell.quiet:
        table(("part", "rows"), [(part, f"{rows:,}") for part, rows in parts.items()])


def print_status(found: list[QueueStatus]) -> None:
    if not found:
        say(NO_QUEUES)
        return
    table(
        ("queue", *GAUGES, "finished", "oldest", "sla", "pushed", ""),
        [
            (
                one.queue,
                *(f"{getattr(one, gauge):,}" for gauge in GAUGES),
                f"{one.totals['done']:,}",
                age(one.oldest_pending_age),
                span(None if one.sla is None else timedelta(seconds=one.sla)),
                f"{one.totals['pushed']:,}",
                "paused" if one.paused else "",
            )
            for one in found
        ],
    )


def print_verification(done: list[Repair], found: Verification, *, dry_run: bool) -> None:
    for repaired in done:
        say(f"{repaired.queue}: {'would be ' if dry_run else ''}{repaired.what}: {repaired.rows:,}")
    for one in found.findings:
        say(f"{one.queue}: {one.what}: expected {one.expected:,}, found {one.found:,}")
    if found.ok:
        say("all is well: counters, places, history and balance agree")


def verification_json(found: Verification) -> dict[str, Any]:
    return {
        "drift": found.drift,
        "orphans": found.orphans,
        "history": found.history,
        "balance": found.balance,
        "dropped": found.dropped,
        "findings": [one._asdict() for one in found.findings],
    }
