"""`penstock status`, `verify` and `upkeep`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from penstock.cli.commands.backlog import find_backlogs, print_backlogs
from penstock.cli.terminal.board import NO_QUEUES, status_json
from penstock.cli.terminal.formatting import escape, format_seconds
from penstock.cli.terminal.options import DryRun, OneOrAll, Shell, read_only, with_shell
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.errors import ValidationError
from penstock.formatting import format_age
from penstock.model import GAUGES, QueueStatus, Repair, Verification


@with_shell
@read_only
def status(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Print it again and again, with urgency, rates, target and the scaler's reason."
        ),
    ] = False,
    interval: Annotated[
        str | None, typer.Option(help="How often --watch looks; default: 2s.", show_default=False)
    ] = None,
) -> None:
    """Print the state of queues: exact counts of tasks, the age of the oldest waiting task, and totals.

    Planned tasks are not yet due, pending tasks can run, and active tasks are running. The SLA is the promise for the
    oldest age. The column done counts the done tasks that the queue keeps (keep_done), and finished counts all tasks
    that were ever done. With --watch and --json, each line is one JSON value.

    Example: penstock status mail --json
    """
    if watch:
        from penstock.cli.commands import status_watch as watching  # noqa: PLC0415 - modules that draw on a terminal are slow to import

        watching.watch(shell, queue, interval)
        return
    if interval is not None:
        hint = "penstock status --watch --interval 5s"
        raise ValidationError("interval: only --watch looks more than once", hint=hint, field="interval")
    with shell.connect() as penstock:
        found = [penstock.queue(queue).status()] if queue is not None else penstock.status()
        adopted = find_backlogs(penstock) if queue is None else []
    if shell.json:
        answer = {"queues": [status_json(one) for one in found]}
        print_json(answer | ({"backlogs": [one.to_json() for one in adopted]} if adopted else {}))
    elif not shell.quiet:
        if found or not adopted:
            print_status(found)
        if adopted:
            print_backlogs(adopted)


@with_shell
@read_only
def verify(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what is wrong, then check again.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Recount all tasks and compare them with the counters. Exits with 1 if it finds an error that remains.

    It looks for drift (a counter differs from a recount), orphans (a live task is in neither agenda nor lease, or in
    both), history (a total differs from history) and balance (the pushed tasks are not all accounted for).

    Example: penstock verify mail --repair
    """
    with shell.connect(rehearse=dry_run) as penstock:
        target = penstock if queue is None else penstock.queue(queue)
        done = penstock.repair(queue) if repair else []
        found = target.verify()
    if shell.json:
        repaired = [one._asdict() for one in done]
        print_json(verification_json(found) | ({"would" if dry_run else "repaired": repaired} if repair else {}))
    elif not shell.quiet:
        print_verification(done, found, dry_run=dry_run)
    if not found.ok:
        raise typer.Exit(1)


@with_shell
def upkeep(shell: Shell, *, dry_run: DryRun = False) -> None:
    """Run the upkeep that is due: expired leases, due tasks, counters, samples, and rows that are no longer kept.

    Workers and scalers do this themselves. Without them, call it about every ten seconds, from cron or a loop. Each
    part is a short transaction of its own and safe to repeat, from any number of processes. A part that fails does not
    stop the others; the exit code is then 1.

    Example: penstock upkeep --json
    """
    with shell.connect(rehearse=dry_run) as penstock:
        parts = penstock.upkeep()
    failed = {part: {"code": error.code, "message": error.message} for part, error in parts.failed.items()}
    if shell.json:
        print_json({"parts": parts} | ({"failed": failed} if failed else {}) | ({"dry_run": True} if dry_run else {}))
    elif not shell.quiet:
        print_table(("part", "rows"), [(part, f"{rows:,}") for part, rows in parts.items()])
        for part, error in parts.failed.items():
            sys.stderr.write(f"failed: {part}: {escape(error.message)}\n")
    if failed:
        raise typer.Exit(1)


def print_status(found: list[QueueStatus]) -> None:
    if not found:
        print_line(NO_QUEUES)
        return
    # Few queues have tasks that wait for others.
    gauges = GAUGES if any(one.waiting for one in found) else GAUGES[1:]
    print_table(
        ("queue", *gauges, "finished", "oldest", "sla", "pushed", ""),
        [
            (
                one.queue,
                *(f"{getattr(one, gauge):,}" for gauge in gauges),
                f"{one.totals['done']:,}",
                format_age(one.oldest_pending_age),
                format_seconds(one.sla),
                f"{one.totals['pushed']:,}",
                "paused" if one.paused else "",
            )
            for one in found
        ],
    )


def print_verification(done: list[Repair], found: Verification, *, dry_run: bool) -> None:
    for repaired in done:
        print_line(f"{repaired.queue}: {'would be ' if dry_run else ''}{repaired.what}: {repaired.rows:,}")
    for one in found.findings:
        print_line(f"{one.queue}: {one.what}: expected {one.expected:,}, found {one.found:,}")
    if found.ok:
        print_line("all is well: counters, places, history and balance agree")


def verification_json(found: Verification) -> dict[str, Any]:
    return {
        "drift": found.drift,
        "orphans": found.orphans,
        "history": found.history,
        "balance": found.balance,
        "dropped": found.dropped,
        "findings": [one._asdict() for one in found.findings],
    }
