"""What a scaler sees, and what it stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from penstock.model.basics import Json


class ScalingHold(NamedTuple):
    """A queue that a scaler holds: its epoch, and the memory and target of the scaler before it."""

    queue: str
    epoch: int
    memory: Json | None
    target: int | None


class QueueScaler(NamedTuple):
    """The scaler of a queue, when its hold ends unless it is renewed, and how many workers it wants."""

    queue: str
    holder: str
    policy: str
    until: datetime
    target: int | None
    decided_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A scaler's decision for a queue, as it was stored. `workers` is the target, `actual` the number at that time."""

    id: int
    queue: str
    at: datetime
    epoch: int
    policy: str
    workers: int
    actual: int
    wanted: int
    urgency: str
    bound_by: str
    reason: str
    time_to_breach: float | None
    predicted_breach: float | None
    inputs: Mapping[str, Any]
    rules: Mapping[str, float]


class QueueQuestion(NamedTuple):
    """A scaler's question about a queue: how far ahead to look, how many of the oldest tasks to read, and how finely to
    group them by age."""

    queue: str
    horizon: float = 60.0  # seconds
    rows: int = 500
    bin: float = 1.0  # seconds


class RunningTasks(NamedTuple):
    """Running tasks, grouped by how long they have run: `bucket` is ten times the logarithm of its shortest time, in
    seconds."""

    queue: str
    kind: str
    bucket: int
    tasks: int
    seconds: float


class Latency(NamedTuple):
    """The seconds from the request for a worker to its first task."""

    queue: str
    workers: int
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """The state of a queue for a scaler. `ended` and `left` are totals of all time."""

    queue: str
    paused: bool
    sla: float | None
    planned: int
    pending: int
    active: int
    ended: int  # attempts that a handler finished
    left: int  # attempts that were released, cancelled, or expired
    # Pending tasks in groups, the oldest first, each with the age of its tasks in seconds and their number. If more
    # tasks wait than the groups contain, `newest` is the age of the newest of all.
    waiting: tuple[tuple[float, int], ...] = ()
    newest: float | None = None
    ahead: tuple[tuple[int, int], ...] = ()  # (second since 1970, number of tasks that become due in it)
    running: tuple[tuple[float, int], ...] = ()  # (seconds since the claim, number of tasks) of some leases
    rate: float | None = None  # tasks per second of one worker; given for adopted tables, which have no leases


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A process in the registry of workers."""

    name: str
    queues: tuple[str, ...]
    slots: int
    busy: int
    started_by: str | None
    leaving: bool
    silent: float  # seconds since its last beat
    began: float  # seconds since 1970
    latency: float  # seconds from the request for it until then


@dataclass(frozen=True, slots=True)
class ScalerSnapshot:
    """What a scaler sees at one moment of PostgreSQL's clock."""

    at: float  # seconds since 1970
    queues: tuple[SeenQueue, ...]
    workers: tuple[SeenWorker, ...]
    connections: int  # of all clients of the server
    most_connections: int  # that the server allows
    schedule: float | None = None  # seconds until a schedule is due
