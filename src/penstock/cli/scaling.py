"""`penstock scale MODULE:APP`: workers come and go so that no task waits longer than promised."""

from __future__ import annotations

import json as plain_json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock import queue as seam
from penstock import validate
from penstock.app import Penstock
from penstock.backlog import BacklogStatus
from penstock.cli.options import Shell, with_shell
from penstock.cli.output import many, say
from penstock.cli.work import Grace, LogFormat, checked, found_dsn, grace_of
from penstock.database import Database
from penstock.errors import ConfigError, NotFound, PenstockError, ValidationError, shown
from penstock.handlers import Registry
from penstock.model import Json, SeenQueue
from penstock.scaler import policies
from penstock.scaler.alerts import Alerts, Terms
from penstock.scaler.budget import CONNECTIONS, Budget
from penstock.scaler.channels import Channel, Command, Log, Outbox, Webhook
from penstock.scaler.fleet import AdvisedWorkers, CommandedWorkers, LocalWorkers, Recipe, Workers, command_words
from penstock.scaler.loop import Aside, Decided, Note, Plan, Scaler, new_holder
from penstock.scaler.signals import MOST_WORKERS, Limits
from penstock.worker import logs, orders

START_LATENCY = "3s"


class RunByDefault(TyperGroup):
    """`penstock scale MODULE:APP` is `penstock scale run MODULE:APP`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and any(":" in one for one in args if not one.startswith("-")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@with_shell
def run(
    shell: Shell,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the Penstock with the handlers is.")],
    *,
    queues: Annotated[
        str | None,
        typer.Option(help="Which, as mail,invoices; default: all with handlers and an SLA.", show_default=False),
    ] = None,
    policy: Annotated[str, typer.Option(help="Who decides; `penstock scale policies` lists them.")] = policies.DEFAULT,
    interval: Annotated[str, typer.Option(help="Between two decisions.")] = "1s",
    min_workers: Annotated[int, typer.Option(help="Never fewer, for each queue.")] = 1,
    max_workers: Annotated[int, typer.Option(help="Never more, for all queues together.")] = 10,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", "--slots", help="Tasks that one worker runs at a time.")
    ] = 10,
    sla: Annotated[
        str | None, typer.Option(help="The promise of queues that have none of their own.", show_default=False)
    ] = None,
    start_latency: Annotated[
        str, typer.Option(help="From asking for a worker to its first task, until that was measured.")
    ] = START_LATENCY,
    max_memory: Annotated[
        str | None, typer.Option(help="That all workers together may hold: 4G; needs psutil.", show_default=False)
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(help="To PostgreSQL, of all workers together; the server's own limit always counts."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="Run this when the number changes, instead of starting workers here; no shell reads it. "
            "{queue}, {workers} and {reason} are put in.",
            show_default=False,
        ),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Decide and note it, start nothing: others ask for the number.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="If another scaler has a queue: wait until it has not.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Decide once, and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be decided; write nothing.")] = False,
    alert_webhook: Annotated[
        list[str] | None,
        typer.Option(help="POST alerts here, as JSON; may be repeated.", metavar="URL", show_default=False),
    ] = None,
    alert_command: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this for each alert, JSON on its standard input; no shell reads it. May be repeated.",
            metavar="CMD",
            show_default=False,
        ),
    ] = None,
    alert_at: Annotated[float, typer.Option(help="Share of the SLA from which a breach is near.")] = 0.9,
    grace: Grace = "30s",
    log_format: LogFormat = "",
) -> None:
    """Keep the promise of every queue with as few workers as will do: look, decide, start or stop workers, every
    second.

    A line is printed whenever a decision changes; all are kept in PostgreSQL with their reasons. When a promise is in
    danger, broken or kept again, that is logged, and told to webhooks and commands. SIGTERM and Ctrl-C:
    workers finish what they have within --grace, the rest goes back unharmed; a second one does not wait. If this is
    killed its workers go on, and the next scaler takes them over.

    Example: penstock scale myproject.tasks:app --queues mail,invoices --max-workers 20
    """
    if sum((command is not None, advise, dry_run)) > 1:
        raise ConfigError("command, advise, dry_run: only one of them can be", hint="See `penstock scale run --help`.")
    if once and command is None and not advise and not dry_run:
        raise ConfigError("once: it can not start workers and end", hint="Add --dry-run, --advise or --command.")
    words = None if command is None else command_words(command)
    terms = Terms(at=alert_at)
    channels: list[Channel] = [*map(Webhook, alert_webhook or ()), *map(Command.of, alert_command or ())]
    chosen = policies.find(policy)
    told = checked(shell, concurrency, 1, None, None, grace, log_format)
    make = limits_maker(
        sla=sla,
        interval=interval,
        min_workers=min_workers,
        max_workers=max_workers,
        slots=concurrency,
        start_latency=start_latency,
    )
    registry, own = orders.load(app)
    budget = Budget(
        max_workers=max_workers,
        max_memory=None if max_memory is None else size_of(max_memory),
        max_connections=None if max_connections is None else whole("max_connections", max_connections, 1, 10**6),
        connections_each=connections_each(registry, concurrency),
    )
    dsn = found_dsn(shell, own)
    with Penstock(dsn) as penstock:
        limits, adopted = promises(penstock, registry, queues, make)
        plan = Plan(
            limits=limits,
            policy=chosen,
            budget=budget,
            interval=next(iter(limits.values())).interval,
            grace=grace_of(grace),
            standby=standby,
            dry_run=dry_run,
            once=once,
            adopted=frozenset(adopted),
        )
        logs.set_up(told["log_format"], quiet=shell.quiet)
        recipe = Recipe(app, dsn, concurrency, told["log_format"], shell.quiet)
        with alerting(terms, channels) as note:
            ended = scale(shell, plan, penstock, note, recipe=None if advise or dry_run else recipe, words=words)
    if ended == signal.SIGINT:
        raise typer.Exit(130)


@contextmanager
def alerting(terms: Terms, channels: Sequence[Channel]) -> Iterator[Note]:
    """Who is told of promises in danger: always the log."""
    outbox = Outbox([Log(), *channels])
    alerts = Alerts(outbox.send, terms)

    def note(one: Decided, now: float, sla: float) -> None:
        alerts.note(one.queue, one.decision, now, sla=sla)

    try:
        yield note
    finally:
        outbox.close()


def scale(
    shell: Shell, plan: Plan, penstock: Penstock, note: Note, *, recipe: Recipe | None, words: list[str] | None
) -> int | None:
    database, holder = Database(penstock.dsn, max_connections=4, timeout=5.0), new_holder()

    aside = Aside()

    def dismiss(names: Sequence[str]) -> None:
        """Nobody waits for the answer: who is still there at the next look is asked again."""
        aside.begin(lambda: seam.dismiss(database, names))

    def workers(queue: str, slots: int) -> Workers:
        if words is not None:
            return CommandedWorkers(queue, slots, words)
        if recipe is None or queue in plan.adopted:  # nobody told us how to start what drains somebody's table
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
        backlogs=lambda: [seen_backlog(one.status()) for one in penstock.backlogs() if one.name in plan.adopted],
        note=note,
    )
    names = ", ".join(plan.limits)
    print_event(shell, f"scaling {names} by {plan.policy.name}, at most {many(plan.budget.max_workers, 'worker')}")
    try:
        ended = scaler.run()
    finally:
        database.close()
    failed = [one.queue for one in fleet.values() if isinstance(one, CommandedWorkers) and one.failed]
    if plan.once and failed:
        raise PenstockError(f"command: it failed for queue {failed[0]!r}", hint="What it said is above.")
    return ended


# --- what was asked for ---------------------------------------------------------------------------------------------

Make = Callable[[str, float | None], Limits]


def limits_maker(*, sla: str | None, interval: str, start_latency: str, **given: int) -> Make:
    """Limits of a queue, given its own promise. What is wrong is said at once, not when a queue is looked at."""
    default = None if sla is None else length(sla, "sla")
    told: dict[str, Any] = {**given, "interval": length(interval, "interval")}
    told["start_latency"] = length(start_latency, "start_latency")
    if not 0.1 <= told["interval"] <= 3600:
        raise ConfigError(f"interval: {shown(interval)} is not between 100ms and 1h")
    whole("max_workers", given["max_workers"], 1, MOST_WORKERS)
    Limits(sla=60.0 if default is None else default, **told)

    def make(queue: str, own: float | None) -> Limits:
        promise = default if own is None else own
        if promise is None:
            hint = f"penstock queues set {queue} --sla 30s, or --sla 30s here."
            raise ConfigError(f"sla: queue {queue!r} has none", hint=hint)
        return Limits(sla=promise, **told)

    return make


def length(text: str, field: str) -> float:
    """A length of time; what is none is a wrong setting, here."""
    try:
        given: str | float = float(text)
    except ValueError:
        given = text
    try:
        return validate.duration(given, field).total_seconds()
    except ValidationError as error:
        raise ConfigError(error.message, hint=error.hint) from None


def whole(field: str, value: int, least: int, most: int) -> int:
    try:
        return validate.whole(value, field, least, most)
    except ValidationError as error:
        raise ConfigError(error.message, hint=error.hint) from None


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_of(text: str) -> int:
    number, unit = text.strip().upper().removesuffix("B").removesuffix("I"), ""
    if number[-1:] in UNITS:
        number, unit = number[:-1], number[-1:]
    if not number.strip().isdecimal() or not 1 << 20 <= int(number) * UNITS[unit] <= 1 << 50:
        raise ConfigError(f"max_memory: {shown(text)} is not a size of at least 1M", hint="Write 500M or 4G.")
    return int(number) * UNITS[unit]


def connections_each(registry: Registry, concurrency: int) -> int:
    """That a worker may have at once: handlers that are given a context may open transaction() in it, and those that
    do not run in threads a second one beside it, for extend()."""
    deep = [spec for spec in registry.specs.values() if spec.arguments is None or spec.arguments.context]
    each_slot = max((1 if spec.mode == "thread" else 2 for spec in deep), default=0)
    return CONNECTIONS + concurrency * each_slot


def promises(
    penstock: Penstock, registry: Registry, queues: str | None, make: Make
) -> tuple[dict[str, Limits], dict[str, Limits]]:
    """Limits of all queues that were asked for; of them, the adopted tables."""
    known = {one.queue: one.sla for one in penstock.status()}
    tables = {one.name: seconds_of(one.terms.sla) for one in penstock.backlogs()}
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


def seconds_of(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def check_named(name: str, known: Mapping[str, Any], tables: Mapping[str, Any], registry: Registry) -> str:
    if validate.queue_name(name) in tables:
        return name
    registry.check_served(name)
    if name not in known:
        near = get_close_matches(name, [*known, *tables], 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Create it: penstock queues create {name} --sla 30s"
        raise NotFound(f"queue {name!r} does not exist", hint=hint)
    return name


def seen_backlog(found: BacklogStatus) -> SeenQueue:
    """Somebody's table as one of our queues. Of its records only the oldest one's age is known."""
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


# --- what is said ---------------------------------------------------------------------------------------------------


def print_decided(shell: Shell, one: Decided) -> None:
    if shell.json:
        line(as_json(one))
        return
    found = one.decision
    change = f"{found.workers}" if one.before in (None, found.workers) else f"{one.before} → {found.workers}"
    why = found.reason.removeprefix(f"{found.workers}: ")
    say(f"{now():%H:%M:%S} {one.queue}: {change}, {found.urgency}: {why}", quiet=shell.quiet)


def as_json(one: Decided) -> Json:
    return {
        "at": now().isoformat(timespec="milliseconds"),
        "queue": one.queue,
        "before": one.before,
        "actual": one.fleet.workers,
        "inputs": one.inputs,
        **one.decision.to_json(),
    }


def print_event(shell: Shell, event: str) -> None:
    if shell.json:
        line({"at": now().isoformat(timespec="milliseconds"), "event": event})
    else:
        say(f"{now():%H:%M:%S} {event}", quiet=shell.quiet)


def line(value: Json) -> None:
    sys.stdout.write(plain_json.dumps(value) + "\n")
    sys.stdout.flush()


def now() -> datetime:
    return datetime.now(UTC)
