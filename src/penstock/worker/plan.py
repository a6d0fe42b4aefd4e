"""The settings of one `penstock work`, and its result."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypedDict

from penstock import validate
from penstock.errors import ValidationError, shown
from penstock.model import Duration
from penstock.worker.config import RunnerConfig, Weights
from penstock.worker.health import parse_port
from penstock.worker.measures import Slas

# Seconds without a message from a runner, or without a successful claim or settle, after which the probe fails.
SILENCE = 60.0


class WorkerOptions(TypedDict, total=False):
    """The options of a worker; `penstock work --help` describes each of them."""

    concurrency: int
    processes: int
    until_empty: bool
    max_tasks: int | None
    max_rss: int | str | None
    grace: Duration
    health: str | None
    log_format: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one `penstock work`."""

    target: str
    dsn: str
    queues: Weights
    concurrency: int = 10
    processes: int = 1
    grace: float = 30.0
    until_empty: bool = False
    max_tasks: int | None = None
    max_rss: int | None = None
    health: str | None = None
    requested_at: datetime | None = None
    started_by: str | None = None  # the scaler that may dismiss it
    handler_of: str | None = None
    tracebacks: bool = True  # of `drain`: stored with errors
    log_format: str = "text"
    quiet: bool = False
    dev: bool = False
    silence: float = SILENCE

    @classmethod
    def of(cls, target: str, dsn: str, queues: Weights, options: WorkerOptions, **rest: Any) -> Self:
        """Checks the options of a user. The rest is given as it is."""
        return cls(target, dsn, queues, **rest, **check_options(**options))

    @property
    def measures(self) -> bool:
        """Whether the worker measures its tasks: it does so if it serves metrics beside its probe."""
        return self.health is not None and parse_port(self.health) is not None

    def runner_config(self, name: str, leases: dict[str, float], slas: Slas) -> RunnerConfig:
        """Returns the config of the runner with this name."""
        return RunnerConfig(
            name=name,
            target=self.target,
            dsn=self.dsn,
            queues=self.queues,
            leases=leases,
            concurrency=self.concurrency,
            grace=self.grace,
            overlap=self.processes < (os.cpu_count() or 1),
            max_tasks=self.max_tasks,
            max_rss=self.max_rss,
            handler_of=self.handler_of,
            tracebacks=self.tracebacks,
            log_format=self.log_format,
            quiet=self.quiet,
            slas=slas if self.measures else None,
            dev=self.dev,
        )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The result of a run: counts of tasks, duration and signal."""

    counts: Counter[str]
    seconds: float
    planned: int = 0
    signal: int | None = None

    @property
    def done(self) -> int:
        """Tasks that succeeded."""
        return self.counts["done"] + self.counts["again"]

    @property
    def dead(self) -> int:
        """Tasks that died."""
        return self.counts["died"]

    @property
    def unknown(self) -> int:
        """Tasks that were put back because no handler here is for their kind."""
        return self.counts["unknown"]

    @property
    def failed(self) -> int:
        """Failed attempts of tasks that are tried again; a task that ended its process failed too.

        The last attempt of a dead task is not counted here.
        """
        return self.counts["failed"] + self.counts["dead"] - self.counts["died"]

    @property
    def unsettled(self) -> int:
        """Tasks that ran to their end here, but whose outcome PostgreSQL did not accept before the worker ended.

        They run again when their lease ends.
        """
        return self.counts["unsettled"]


def check_options(
    *,
    concurrency: int = 10,
    processes: int = 1,
    until_empty: bool = False,
    max_tasks: int | None = None,
    max_rss: int | str | None = None,
    grace: Duration = "30s",
    health: str | None = None,
    log_format: str | None = None,
) -> dict[str, Any]:
    """Checks the options of a worker, and returns the fields of its plan."""
    return {
        "concurrency": validate.whole(concurrency, "concurrency", 1, validate.MAX_CONCURRENCY),
        "processes": validate.whole(processes, "processes", 1, 1000),
        "until_empty": until_empty,
        "max_tasks": None if max_tasks is None else validate.whole(max_tasks, "max_tasks", 1, 2**31),
        "max_rss": None if max_rss is None else validate.byte_size(max_rss, "max_rss"),
        "grace": validate.grace(grace),
        "health": health,
        "log_format": check_log_format(log_format),
    }


def check_log_format(value: str | None) -> str:
    """Returns the format of the log: by default text on a terminal, and JSON elsewhere."""
    if value is None or not value:
        return "text" if sys.stderr.isatty() else "json"
    if value not in ("text", "json"):
        raise ValidationError(f"log_format: {shown(value)} is not one of text, json", field="log_format")
    return value


def parse_weights(parts: Iterable[str]) -> dict[str, int]:
    """Reads queues with weights, such as `a` and `b:3`."""
    found: dict[str, int] = {}
    for part in parts:
        name, colon, weight = part.strip().partition(":")
        if colon and not (weight.isdecimal() and 1 <= int(weight) <= 1000):
            raise ValidationError(
                f"queues: {shown(part)}: a weight is a whole number from 1 to 1000",
                hint="Write mail,invoices:3.",
                field="queues",
            )
        if validate.queue_name(name) in found:
            raise ValidationError(f"queues: {name!r} is named twice", field="queues")
        found[name] = int(weight) if colon else 1
    return found
