"""`penstock scale MODULE:APP` starts and stops workers so that no task waits longer than promised."""

from __future__ import annotations

import json as plain_json
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.backlog import AdoptedTables
from penstock.cli.commands.work import Grace, LogFormat, MaxWait, Wait, choose_dsn, find_max_wait
from penstock.cli.terminal.options import Shell, with_shell
from penstock.cli.terminal.output import print_line
from penstock.handlers import Registry
from penstock.model import Json
from penstock.scaler.policy import policies
from penstock.scaler.run.fleet import Recipe
from penstock.scaler.run.plan import QueueDecision
from penstock.scaler.run.settings import START_LATENCY, ScalerSettings
from penstock.scaler.run.start import scale
from penstock.service_manager import ServiceManager
from penstock.worker import loading, logs
from penstock.worker.plan import check_log_format
from penstock.worker.start import wait_for_primary


class RunByDefault(TyperGroup):
    """Runs `penstock scale MODULE:APP` as `penstock scale run MODULE:APP`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and any(":" in one for one in args if not one.startswith("-")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@with_shell
def run(
    shell: Shell,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The Penstock application with the handlers.")],
    *,
    queues: Annotated[
        str | None,
        typer.Option(help="The queues, as mail,invoices; default: all with handlers and an SLA.", show_default=False),
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy; `penstock scale policies` lists them.")] = policies.DEFAULT,
    interval: Annotated[str, typer.Option(help="The time between two decisions.")] = "1s",
    min_workers: Annotated[int, typer.Option(help="The smallest number of workers for each queue.")] = 1,
    max_workers: Annotated[int, typer.Option(help="The largest number of workers for all queues together.")] = 10,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", "--slots", help="How many tasks one worker runs at once.")
    ] = 10,
    sla: Annotated[
        str | None, typer.Option(help="The promise for queues without an SLA of their own.", show_default=False)
    ] = None,
    start_latency: Annotated[
        str, typer.Option(help="The time from the start of a worker to its first task, used until it is measured.")
    ] = START_LATENCY,
    max_memory: Annotated[
        str | None,
        typer.Option(help="The memory that all workers together may use, as 4G; it needs psutil.", show_default=False),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(help="Connections of all workers together to PostgreSQL; the server's own limit always applies."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="Run this command when the number changes, instead of starting workers here. It runs without a shell. "
            "{queue}, {workers} and {reason} are replaced.",
            show_default=False,
        ),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Store decisions, but start nothing: other tools read the number.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="If another scaler has a queue, wait until it releases it.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Decide once, and exit.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be decided, and write nothing.")
    ] = False,
    alert_webhook: Annotated[
        list[str] | None,
        typer.Option(
            help="POST alerts to this URL, as JSON; you can repeat the option.", metavar="URL", show_default=False
        ),
    ] = None,
    alert_command: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this command for each alert, with JSON on its standard input and without a shell; you can repeat "
            "the option.",
            metavar="CMD",
            show_default=False,
        ),
    ] = None,
    alert_at: Annotated[float, typer.Option(help="The share of the SLA from which a breach is near.")] = 0.9,
    grace: Grace = "30s",
    wait: Wait = None,
    max_wait: MaxWait = None,
    log_format: LogFormat = "",
) -> None:
    """Keep the promise of every queue with as few workers as possible: every second look, decide, and start or stop
    workers.

    It prints a line when a decision changes, and stores all decisions with their reasons in PostgreSQL. It logs when a
    promise is in danger, broken or kept again, and tells webhooks and commands. After SIGTERM or Ctrl-C, workers
    finish their tasks within --grace, and the rest goes back to the queue; a second signal does not wait. If the
    scaler is killed, its workers go on, and the next scaler takes them over.

    Example: penstock scale myproject.tasks:app --queues mail,invoices --max-workers 20
    """
    settings = ScalerSettings.of(
        policy=policy,
        interval=interval,
        min_workers=min_workers,
        max_workers=max_workers,
        concurrency=concurrency,
        sla=sla,
        start_latency=start_latency,
        max_memory=max_memory,
        max_connections=max_connections,
        command=command,
        advise=advise,
        standby=standby,
        once=once,
        dry_run=dry_run,
        alert_webhook=alert_webhook or (),
        alert_command=alert_command or (),
        alert_at=alert_at,
        grace=grace,
    )
    patience = find_max_wait(False if once and wait is None and max_wait is None else wait, max_wait, os.environ)
    log = check_log_format(log_format)
    registry, own = loading.load(app)
    recipe = Recipe(app, choose_dsn(shell, own), concurrency, log, shell.quiet)
    logs.set_up(log, quiet=shell.quiet)
    manager = ServiceManager.take(os.environ)
    wait_or_exit(recipe.dsn, patience, manager)
    chosen = None if queues is None else [name.strip() for name in queues.split(",")]
    run_scaler(shell, settings, recipe, registry, chosen, manager=manager)


def wait_or_exit(dsn: str, patience: float | None, manager: ServiceManager) -> None:
    """Waits for a primary, as long as `patience` says. Exits if a signal ends the wait."""
    ended = None if patience is None else wait_for_primary(dsn, patience, manager=manager)
    if ended is not None:
        raise typer.Exit(130 if ended == signal.SIGINT else 0)


def run_scaler(
    shell: Shell,
    settings: ScalerSettings,
    recipe: Recipe,
    registry: Registry,
    queues: list[str] | None,
    *,
    manager: ServiceManager,
) -> None:
    """Runs the scaler until a signal stops it."""
    ended = scale(
        settings,
        recipe,
        registry,
        AdoptedTables(recipe.dsn),
        queues=queues,
        say=lambda one: print_decided(shell, one),
        tell=lambda event: print_event(shell, event),
        manager=manager,
    )
    if ended == signal.SIGINT:
        raise typer.Exit(130)


# --- output -----------------------------------------------------------------------------------------------------------


def print_decided(shell: Shell, one: QueueDecision) -> None:
    if shell.json:
        print_json_line(decided_json(one))
        return
    found = one.decision
    change = f"{found.workers}" if one.before in (None, found.workers) else f"{one.before} → {found.workers}"
    why = found.reason.removeprefix(f"{found.workers}: ")
    print_line(f"{utc_now():%H:%M:%S} {one.queue}: {change}, {found.urgency}: {why}", quiet=shell.quiet)


def decided_json(one: QueueDecision) -> Json:
    return {
        "at": utc_now().isoformat(timespec="milliseconds"),
        "queue": one.queue,
        "before": one.before,
        "actual": one.fleet.workers,
        "inputs": one.inputs,
        **one.decision.to_json(),
    }


def print_event(shell: Shell, event: str) -> None:
    if shell.json:
        print_json_line({"at": utc_now().isoformat(timespec="milliseconds"), "event": event})
    else:
        print_line(f"{utc_now():%H:%M:%S} {event}", quiet=shell.quiet)


def print_json_line(value: Json) -> None:
    sys.stdout.write(plain_json.dumps(value) + "\n")
    sys.stdout.flush()


def utc_now() -> datetime:
    return datetime.now(UTC)
