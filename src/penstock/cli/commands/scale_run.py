"""`penstock scale MODULE:APP` starts and stops workers so that no task waits longer than promised."""

from __future__ import annotations

import json as plain_json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock import validate
from penstock.app import Penstock
from penstock.backlog import BacklogStatus
from penstock.cli.commands.work import (
    Grace,
    LogFormat,
    MaxWait,
    Wait,
    check_worker_options,
    find_dsn,
    find_max_wait,
    wait_for_primary,
)
from penstock.cli.terminal.formatting import format_count, to_seconds
from penstock.cli.terminal.options import Shell, parse_seconds, parse_size, with_shell
from penstock.cli.terminal.output import print_line
from penstock.client import scaling
from penstock.client.database import Database
from penstock.errors import ConfigError, NotFound, PenstockError, ValidationError, shown
from penstock.handlers import Registry
from penstock.model import Json, SeenQueue
from penstock.scaler.policy import policies
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.signals import MOST_WORKERS, Limits
from penstock.scaler.run.alerts import Alerts, AlertTerms
from penstock.scaler.run.background import BackgroundCall
from penstock.scaler.run.budget import CONNECTIONS, Budget
from penstock.scaler.run.channels import Channel, Command, Log, Outbox, Webhook
from penstock.scaler.run.fleet import AdvisedWorkers, CommandedWorkers, LocalWorkers, Recipe, Workers, command_words
from penstock.scaler.run.hold import new_holder
from penstock.scaler.run.loop import Scaler
from penstock.scaler.run.plan import Note, QueueDecision, ScalingPlan
from penstock.worker import loading, logs

START_LATENCY = "3s"


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
    check_mode(command=command, advise=advise, dry_run=dry_run, once=once)
    patience = find_max_wait(False if once and wait is None and max_wait is None else wait, max_wait, os.environ)
    words = None if command is None else command_words(command)
    alerts = make_alerts(alert_at, alert_webhook, alert_command)
    chosen = policies.find(policy)
    told = check_worker_options(shell, concurrency, 1, None, None, grace, log_format)
    make = prepare_limits(
        sla=sla,
        interval=interval,
        min_workers=min_workers,
        max_workers=max_workers,
        slots=concurrency,
        start_latency=start_latency,
    )
    registry, own = loading.load(app)
    budget = make_budget(registry, concurrency, max_workers, max_memory, max_connections)
    dsn = find_dsn(shell, own)
    logs.set_up(told["log_format"], quiet=shell.quiet)
    wait_or_exit(dsn, patience)
    with Penstock(dsn) as penstock:
        limits, adopted = find_limits(penstock, registry, queues, make)
        plan = make_plan(limits, adopted, chosen, budget, grace=grace, standby=standby, dry_run=dry_run, once=once)
        recipe = None if advise or dry_run else Recipe(app, dsn, concurrency, told["log_format"], shell.quiet)
        with open_alerts(*alerts) as note:
            ended = run_scaler(shell, plan, penstock, note, recipe=recipe, words=words)
    if ended == signal.SIGINT:
        raise typer.Exit(130)


def check_mode(*, command: str | None, advise: bool, dry_run: bool, once: bool) -> None:
    """Refuses options that exclude each other."""
    if sum((command is not None, advise, dry_run)) > 1:
        raise ConfigError("command, advise, dry_run: give only one of them", hint="See `penstock scale run --help`.")
    if once and command is None and not advise and not dry_run:
        raise ConfigError("once: it cannot start workers and end", hint="Add --dry-run, --advise or --command.")


def make_alerts(at: float, webhooks: list[str] | None, commands: list[str] | None) -> tuple[AlertTerms, list[Channel]]:
    terms = AlertTerms(at=at)
    return terms, [*map(Webhook, webhooks or ()), *map(Command.of, commands or ())]


def make_budget(
    registry: Registry, concurrency: int, max_workers: int, max_memory: str | None, max_connections: int | None
) -> Budget:
    memory = None if max_memory is None else parse_size_setting(max_memory, "max_memory")
    if max_connections is not None:
        check_whole_setting("max_connections", max_connections, 1, 10**6)
    return Budget(
        max_workers=max_workers,
        max_memory=memory,
        max_connections=max_connections,
        connections_each=count_connections(registry, concurrency),
    )


def wait_or_exit(dsn: str, patience: float | None) -> None:
    """Waits for a primary, as long as `patience` says. Exits if a signal ends the wait."""
    ended = None if patience is None else wait_for_primary(dsn, time.monotonic() + patience)
    if ended is not None:
        raise typer.Exit(130 if ended == signal.SIGINT else 0)


def make_plan(
    limits: Mapping[str, Limits],
    adopted: Mapping[str, Limits],
    policy: Policy,
    budget: Budget,
    *,
    grace: str,
    **modes: bool,
) -> ScalingPlan:
    return ScalingPlan(
        limits=limits,
        policy=policy,
        budget=budget,
        interval=next(iter(limits.values())).interval,
        grace=validate.grace(grace),
        adopted=frozenset(adopted),
        **modes,
    )


@contextmanager
def open_alerts(terms: AlertTerms, channels: Sequence[Channel]) -> Iterator[Note]:
    """Opens the channels of alerts. The log is always one of them."""
    outbox = Outbox([Log(), *channels])
    alerts = Alerts(outbox.send, terms)

    def note(one: QueueDecision, now: float, sla: float) -> None:
        alerts.note(one.queue, one.decision, now, sla=sla)

    try:
        yield note
    finally:
        outbox.close()


def run_scaler(
    shell: Shell, plan: ScalingPlan, penstock: Penstock, note: Note, *, recipe: Recipe | None, words: list[str] | None
) -> int | None:
    database, holder = Database(penstock.dsn, max_connections=4, timeout=5.0), new_holder()

    aside = BackgroundCall()

    def dismiss(names: Sequence[str]) -> None:
        """Asks workers to stop, without waiting. Those that are still there at the next look are asked again."""
        aside.begin(lambda: scaling.dismiss(database, names))

    def workers(queue: str, slots: int) -> Workers:
        if words is not None:
            return CommandedWorkers(queue, slots, words)
        if (
            recipe is None or queue in plan.adopted
        ):  # an adopted table is drained by a command that the scaler does not know
            return AdvisedWorkers(queue, slots)
        return LocalWorkers(queue, holder, recipe, dismiss)

    fleet = {queue: workers(queue, limits.slots) for queue, limits in plan.limits.items()}
    scaler = Scaler(
        plan,
        database,
        fleet,
        holder=holder,
        say=lambda one: print_decided(shell, one),
        tell=lambda event: print_event(shell, event),
        backlogs=lambda: [describe_backlog(one.status()) for one in penstock.backlogs() if one.name in plan.adopted],
        note=note,
    )
    names = ", ".join(plan.limits)
    print_event(
        shell, f"scaling {names} by {plan.policy.name}, at most {format_count(plan.budget.max_workers, 'worker')}"
    )
    try:
        ended = scaler.run()
    finally:
        database.close()
    failed = [one.queue for one in fleet.values() if isinstance(one, CommandedWorkers) and one.failed]
    if plan.once and failed:
        raise PenstockError(f"command: it failed for queue {failed[0]!r}", hint="Its output is above.")
    return ended


# --- options ----------------------------------------------------------------------------------------------------------

MakeLimits = Callable[[str, float | None], Limits]


def prepare_limits(*, sla: str | None, interval: str, start_latency: str, **given: int) -> MakeLimits:
    """Checks the limits at once, and returns a function that makes the limits of a queue from its SLA."""
    default = None if sla is None else parse_length_setting(sla, "sla")
    told: dict[str, Any] = {**given, "interval": parse_length_setting(interval, "interval")}
    told["start_latency"] = parse_length_setting(start_latency, "start_latency")
    if not 0.1 <= told["interval"] <= 3600:
        raise ConfigError(f"interval: {shown(interval)} is not between 100ms and 1h")
    check_whole_setting("max_workers", given["max_workers"], 1, MOST_WORKERS)
    Limits(sla=60.0 if default is None else default, **told)

    def make(queue: str, own: float | None) -> Limits:
        promise = default if own is None else own
        if promise is None:
            hint = f"penstock queues set {queue} --sla 30s, or --sla 30s here."
            raise ConfigError(f"sla: queue {queue!r} has none", hint=hint)
        return Limits(sla=promise, **told)

    return make


@contextmanager
def refuse_as_setting() -> Iterator[None]:
    """Reports a wrong value as a wrong setting: the exit code is that of ConfigError."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(error.message, hint=error.hint) from None


def parse_length_setting(text: str, field: str) -> float:
    with refuse_as_setting():
        return parse_seconds(text, field)


def check_whole_setting(field: str, value: int, least: int, most: int) -> int:
    with refuse_as_setting():
        return validate.whole(value, field, least, most)


def parse_size_setting(text: str, field: str) -> int:
    with refuse_as_setting():
        return parse_size(text, field)


def count_connections(registry: Registry, concurrency: int) -> int:
    """Counts the connections that a worker may open.

    A handler with a context may open one for transaction(). One that does not run in a thread may open another for
    extend().
    """
    deep = [spec for spec in registry.specs.values() if spec.arguments is None or spec.arguments.context]
    each_slot = max((1 if spec.mode == "thread" else 2 for spec in deep), default=0)
    return CONNECTIONS + concurrency * each_slot


def find_limits(
    penstock: Penstock, registry: Registry, queues: str | None, make: MakeLimits
) -> tuple[dict[str, Limits], dict[str, Limits]]:
    """Returns the limits of all chosen queues, and again those of adopted tables among them."""
    known = {one.queue: one.sla for one in penstock.status()}
    tables = {one.name: to_seconds(one.terms.sla) for one in penstock.backlogs()}
    if queues is None:
        named = [name for name in registry.queues() if name in known and known[name] is not None]
        named += [name for name, sla in tables.items() if sla is not None and name not in named]
        if not named:
            served = ", ".join(registry.queues())
            raise ConfigError(
                f"queues: of those with handlers ({served}) none has an SLA", hint="penstock queues set QUEUE --sla 30s"
            )
    else:
        named = [check_named(name.strip(), known, tables, registry) for name in queues.split(",")]
    slas = {name: known[name] if name in known else tables[name] for name in dict.fromkeys(named)}
    limits = {name: make(name, sla) for name, sla in slas.items()}
    least, most = sum(one.min_workers for one in limits.values()), next(iter(limits.values())).max_workers
    if least > most:
        raise ConfigError(
            f"min_workers: {least} for {len(limits)} queues together is more than max_workers, {most}",
            hint="Raise --max-workers, or let queues go down to none: --min-workers 0.",
        )
    return limits, {name: one for name, one in limits.items() if name not in known}


def check_named(name: str, known: Mapping[str, Any], tables: Mapping[str, Any], registry: Registry) -> str:
    if validate.queue_name(name) in tables:
        return name
    registry.check_served(name)
    if name not in known:
        near = get_close_matches(name, [*known, *tables], 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Create it: penstock queues create {name} --sla 30s"
        raise NotFound(f"queue {name!r} does not exist", hint=hint)
    return name


def describe_backlog(found: BacklogStatus) -> SeenQueue:
    """Describes an adopted table as a queue. Of its records only the oldest age is known."""
    pending, oldest = found.ready + found.due, found.oldest_age or 0.0
    rate = found.last_pass.get("rate")
    return SeenQueue(
        queue=found.name,
        paused=False,
        sla=found.sla,
        planned=found.later,
        pending=pending,
        active=0,
        ended=found.done + found.dead,
        left=0,
        waiting=((oldest, 1),) if pending else (),
        newest=0.0,
        rate=float(rate) if rate else None,
    )


# --- output -----------------------------------------------------------------------------------------------------------


def print_decided(shell: Shell, one: QueueDecision) -> None:
    if shell.json:
        print_json_line(decided_json(one))
        return
    found = one.decision
    change = f"{found.workers}" if one.before in (None, found.workers) else f"{one.before} → {found.workers}"
    why = found.reason.removeprefix(f"{found.workers}: ")
    print_line(f"{read_clock():%H:%M:%S} {one.queue}: {change}, {found.urgency}: {why}", quiet=shell.quiet)


def decided_json(one: QueueDecision) -> Json:
    return {
        "at": read_clock().isoformat(timespec="milliseconds"),
        "queue": one.queue,
        "before": one.before,
        "actual": one.fleet.workers,
        "inputs": one.inputs,
        **one.decision.to_json(),
    }


def print_event(shell: Shell, event: str) -> None:
    if shell.json:
        print_json_line({"at": read_clock().isoformat(timespec="milliseconds"), "event": event})
    else:
        print_line(f"{read_clock():%H:%M:%S} {event}", quiet=shell.quiet)


def print_json_line(value: Json) -> None:
    sys.stdout.write(plain_json.dumps(value) + "\n")
    sys.stdout.flush()


def read_clock() -> datetime:
    return datetime.now(UTC)
