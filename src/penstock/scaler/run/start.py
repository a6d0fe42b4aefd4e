"""Starts a scaler: finds the queues with their limits, puts the parts together, and runs the loop.

`penstock scale` and `Penstock.scale` both call `scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from typing import Protocol

from penstock import validate
from penstock.client import queues as queue_settings
from penstock.client import scaling
from penstock.client.database import Database
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formatting import format_count
from penstock.handlers import Registry
from penstock.model import SeenQueue
from penstock.scaler.policy.signals import Limits
from penstock.scaler.run.alerts import Alerts
from penstock.scaler.run.background import DEADLINE, BackgroundCall
from penstock.scaler.run.channels import Log, Outbox
from penstock.scaler.run.fleet import AdvisedWorkers, CommandedWorkers, LocalWorkers, Recipe, Workers
from penstock.scaler.run.hold import new_holder
from penstock.scaler.run.loop import Scaler
from penstock.scaler.run.plan import Note, QueueDecision, Say, ScalingPlan, Tell
from penstock.scaler.run.settings import ScalerSettings
from penstock.service_manager import ServiceManager


class Tables(Protocol):
    """The adopted tables of a database, as a scaler sees them."""

    def slas(self) -> Mapping[str, float | None]:
        """Returns the SLA of each table, in seconds."""

    def count(self, names: Collection[str]) -> Sequence[SeenQueue]:
        """Returns the state of these tables."""


def scale(
    settings: ScalerSettings,
    recipe: Recipe,
    registry: Registry,
    tables: Tables,
    *,
    queues: Sequence[str] | None = None,
    say: Say,
    tell: Tell,
    manager: ServiceManager | None = None,
) -> int | None:
    """Runs a scaler until it is told to stop, or once if the settings say so. Returns the signal that stopped it.

    `queues` are the queues to scale; None means all that have handlers and an SLA. `say` reports a decision that
    changed, and `tell` an event. `manager` is told how it goes on.
    """
    budget = settings.budget_for(registry)
    with closing(Database(recipe.dsn, max_connections=4, timeout=5.0, deadline=DEADLINE)) as database:
        limits, adopted = find_limits(database, settings, registry, tables.slas(), queues)
        plan = ScalingPlan(
            limits=limits,
            policy=settings.policy,
            budget=budget,
            interval=settings.interval,
            grace=settings.grace,
            standby=settings.standby,
            dry_run=settings.dry_run,
            once=settings.once,
            adopted=frozenset(adopted),
        )
        holder = new_holder()
        fleet = make_fleet(settings, plan, recipe, holder, database)
        with open_alerts(settings) as note:
            scaler = Scaler(
                plan,
                database,
                fleet,
                holder=holder,
                say=say,
                tell=tell,
                backlogs=lambda: tables.count(plan.adopted),
                note=note,
                manager=manager,
            )
            most = format_count(budget.max_workers, "worker")
            tell(f"scaling {', '.join(plan.limits)} by {plan.policy.name}, at most {most}")
            ended = scaler.run()
    refuse_failed_commands(plan, fleet)
    return ended


def make_fleet(
    settings: ScalerSettings, plan: ScalingPlan, recipe: Recipe, holder: str, database: Database
) -> dict[str, Workers]:
    """Returns the fleet of each queue.

    The scaler starts no workers for an adopted table, because another command drains it.
    """
    dismiss = dismissal(database)
    fleet: dict[str, Workers] = {}
    for queue, limits in plan.limits.items():
        if settings.command is not None:
            fleet[queue] = CommandedWorkers(queue, limits.slots, settings.command)
        elif settings.advise or settings.dry_run or queue in plan.adopted:
            fleet[queue] = AdvisedWorkers(queue, limits.slots)
        else:
            fleet[queue] = LocalWorkers(queue, holder, recipe, dismiss)
    return fleet


def dismissal(database: Database) -> Callable[[Sequence[str]], None]:
    """Returns a function that asks workers to stop, without waiting.

    Those that are still there at the next look are asked again.
    """
    background = BackgroundCall()
    return lambda names: background.begin(lambda: scaling.dismiss(database, names))


@contextmanager
def open_alerts(settings: ScalerSettings) -> Iterator[Note]:
    """Opens the channels of alerts. The log is always one of them."""
    outbox = Outbox([Log(), *settings.channels])
    alerts = Alerts(outbox.send, settings.alerts)

    def note(one: QueueDecision, now: float, sla: float) -> None:
        alerts.note(one.queue, one.decision, now, sla=sla)

    try:
        yield note
    finally:
        outbox.close()


def refuse_failed_commands(plan: ScalingPlan, fleet: Mapping[str, Workers]) -> None:
    """Raises an error if a command failed that was run only once: no later run repeats it."""
    failed = [queue for queue, one in fleet.items() if isinstance(one, CommandedWorkers) and one.failed]
    if plan.once and failed:
        raise PenstockError(f"command: it failed for queue {failed[0]!r}", hint="Its output is above.")


# --- limits -----------------------------------------------------------------------------------------------------------


def find_limits(
    database: Database,
    settings: ScalerSettings,
    registry: Registry,
    tables: Mapping[str, float | None],
    queues: Sequence[str] | None,
) -> tuple[dict[str, Limits], set[str]]:
    """Returns the limits of each chosen queue, and which of them are adopted tables."""
    known = {one.queue: one.sla for one in queue_settings.status(database)}
    if queues is None:
        chosen = choose_queues(known, tables, registry)
    else:
        chosen = [check_chosen(name, known, tables, registry) for name in queues]
    slas = {name: known[name] if name in known else tables[name] for name in dict.fromkeys(chosen)}
    limits = {name: settings.limits_of(name, sla) for name, sla in slas.items()}
    least = settings.min_workers * len(limits)
    if least > settings.max_workers:
        raise ConfigError(
            f"min_workers: {least} for {len(limits)} queues together is more than max_workers, {settings.max_workers}",
            hint="Raise --max-workers, or let queues go down to none: --min-workers 0.",
        )
    return limits, limits.keys() - known.keys()


def choose_queues(
    known: Mapping[str, float | None], tables: Mapping[str, float | None], registry: Registry
) -> list[str]:
    """Returns the queues with handlers and an SLA, and the adopted tables with an SLA."""
    served = registry.queues()
    chosen = [name for name in served if known.get(name) is not None]
    chosen += [name for name, sla in tables.items() if sla is not None and name not in chosen]
    if not chosen:
        raise ConfigError(
            f"queues: of those with handlers ({', '.join(served)}) none has an SLA",
            hint="penstock queues set QUEUE --sla 30s",
        )
    return chosen


def check_chosen(
    name: str, known: Mapping[str, float | None], tables: Mapping[str, float | None], registry: Registry
) -> str:
    """Returns the name of a queue, or refuses one that does not exist or has no handler."""
    if validate.queue_name(name) in tables:
        return name
    registry.check(name)
    if name not in known:
        near = get_close_matches(name, [*known, *tables], 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Create it: penstock queues create {name} --sla 30s"
        raise NotFound(f"queue {name!r} does not exist", hint=hint)
    return name
