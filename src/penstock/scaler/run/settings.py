"""The settings of a scaler: the options that a user gives, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, Unpack

from penstock import validate
from penstock.errors import ConfigError, ValidationError, shown
from penstock.handlers import Registry
from penstock.model import Duration
from penstock.scaler.policy import policies
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.signals import MAX_WORKERS, Limits
from penstock.scaler.run.alerts import AlertTerms
from penstock.scaler.run.budget import CONNECTIONS, Budget
from penstock.scaler.run.channels import Channel, Command, Webhook
from penstock.scaler.run.fleet import command_words
from penstock.scaler.run.options import ScalerOptions

START_LATENCY = "3s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSettings:
    """The checked options of a scaler."""

    policy: Policy
    interval: float
    min_workers: int
    max_workers: int
    concurrency: int
    sla: float | None  # of queues without an SLA of their own
    start_latency: float
    max_memory: int | None  # bytes
    max_connections: int | None
    command: Sequence[str] | None
    advise: bool
    standby: bool
    once: bool
    dry_run: bool
    alerts: AlertTerms
    channels: Sequence[Channel]
    grace: float

    @classmethod
    def of(cls, **options: Unpack[ScalerOptions]) -> Self:
        """Checks the options. A wrong value is a wrong setting, so it raises ConfigError."""
        with refuse_as_setting():
            checked = cls._check(**options)
        checked.limits_of("", 60.0 if checked.sla is None else checked.sla)
        return checked

    @classmethod
    def _check(
        cls,
        *,
        policy: Policy | str = policies.DEFAULT,
        interval: Duration = "1s",
        min_workers: int = 1,
        max_workers: int = 10,
        concurrency: int = 10,
        sla: Duration | None = None,
        start_latency: Duration = START_LATENCY,
        max_memory: int | str | None = None,
        max_connections: int | None = None,
        command: str | None = None,
        advise: bool = False,
        standby: bool = False,
        once: bool = False,
        dry_run: bool = False,
        alert_webhook: Sequence[str] = (),
        alert_command: Sequence[str] = (),
        alert_at: float = 0.9,
        grace: Duration = "30s",
    ) -> Self:
        check_mode(command=command, advise=advise, dry_run=dry_run, once=once)
        return cls(
            policy=policies.find(policy) if isinstance(policy, str) else policy,
            interval=check_interval(interval),
            min_workers=min_workers,
            max_workers=validate.whole(max_workers, "max_workers", 1, MAX_WORKERS),
            concurrency=validate.whole(concurrency, "concurrency", 1, validate.MAX_CONCURRENCY),
            sla=None if sla is None else to_seconds(sla, "sla"),
            start_latency=to_seconds(start_latency, "start_latency"),
            max_memory=None if max_memory is None else validate.byte_size(max_memory, "max_memory"),
            max_connections=check_connections(max_connections),
            command=None if command is None else command_words(command),
            advise=advise,
            standby=standby,
            once=once,
            dry_run=dry_run,
            alerts=AlertTerms(at=alert_at),
            channels=[*map(Webhook, alert_webhook), *map(Command.of, alert_command)],
            grace=validate.grace(grace),
        )

    def limits_of(self, queue: str, own: float | None) -> Limits:
        """Returns the limits of a queue. `own` is its own SLA, which takes precedence."""
        promise = self.sla if own is None else own
        if promise is None:
            hint = f"penstock queues set {queue} --sla 30s, or --sla 30s here."
            raise ConfigError(f"sla: queue {queue!r} has none", hint=hint)
        return Limits(
            sla=promise,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            slots=self.concurrency,
            interval=self.interval,
            start_latency=self.start_latency,
        )

    def budget_for(self, registry: Registry) -> Budget:
        """Returns the budget of workers that run these handlers."""
        return Budget(
            max_workers=self.max_workers,
            max_memory=self.max_memory,
            max_connections=self.max_connections,
            connections_each=count_connections(registry, self.concurrency),
        )


@contextmanager
def refuse_as_setting() -> Iterator[None]:
    """Reports a wrong value as a wrong setting: the exit code is that of ConfigError."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(error.message, hint=error.hint) from None


def check_mode(*, command: str | None, advise: bool, dry_run: bool, once: bool) -> None:
    """Refuses options that exclude each other."""
    if sum((command is not None, advise, dry_run)) > 1:
        raise ConfigError("command, advise, dry_run: give only one of them", hint="See `penstock scale run --help`.")
    if once and command is None and not advise and not dry_run:
        raise ConfigError("once: it cannot start workers and end", hint="Add --dry-run, --advise or --command.")


def check_interval(value: Duration) -> float:
    interval = to_seconds(value, "interval")
    if not 0.1 <= interval <= 3600:
        raise ConfigError(f"interval: {shown(value)} is not between 100ms and 1h")
    return interval


def check_connections(value: int | None) -> int | None:
    return None if value is None else validate.whole(value, "max_connections", 1, 10**6)


def to_seconds(value: Duration, field: str) -> float:
    """Returns a duration as seconds. Text without a unit is a number of seconds, as on a command line."""
    given: Any = value
    if isinstance(value, str):
        try:
            given = float(value)
        except ValueError:
            given = value
    return validate.duration(given, field).total_seconds()


def count_connections(registry: Registry, concurrency: int) -> int:
    """Counts the connections that a worker may open.

    A handler or a middleware with a context may open one for transaction(). One that does not run in a thread may open
    another for extend().
    """
    specs = [spec for key in registry.specs if (spec := registry.find(*key)) is not None]
    deep = [spec for spec in specs if spec.arguments is None or spec.arguments.context]
    each_slot = max((1 if spec.mode == "thread" else 2 for spec in deep), default=0)
    return CONNECTIONS + concurrency * each_slot
