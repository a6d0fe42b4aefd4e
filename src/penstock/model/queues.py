"""Queues: their settings, their counts, and what `verify` and `repair` find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue."""

    queue: str
    lease: timedelta
    max_attempts: int | None
    retry: Mapping[str, Any]
    sla: timedelta | None
    keep_done: timedelta | None
    keep_dead: timedelta | None
    keep_cancelled: timedelta | None
    paused: bool
    created: datetime
    max_payload: int
    notify: bool = True
    max_crashes: int = 20
    priority_step: timedelta | None = None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The exact counts of a queue in one snapshot. `waiting` tasks wait for other tasks."""

    queue: str
    planned: int
    pending: int
    active: int
    done: int
    dead: int
    cancelled: int
    oldest_pending_age: float | None
    sla: float | None
    paused: bool
    totals: Mapping[str, int] = field(default_factory=dict)
    at: datetime | None = None
    waiting: int = 0

    @property
    def queued(self) -> int:
        """The number of tasks that wait for their due or for a worker: planned or pending."""
        return self.planned + self.pending


class Repair(NamedTuple):
    """One repair: the queue, what was repaired, and how many rows."""

    queue: str
    what: str
    rows: int


class Mismatch(NamedTuple):
    """One difference that `verify` found: the recounted number and the stored one."""

    queue: str
    what: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`. `drift` counts counters that differ from a recount; `orphans`, tasks that are in no place
    or in two; `history`, totals that differ from history; `balance`, queues whose pushed total does not match where
    their tasks are now."""

    drift: int
    orphans: int
    history: int
    balance: int
    dropped: int
    findings: tuple[Mismatch, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no difference was found."""
        return not (self.drift or self.orphans or self.history or self.balance)
