"""The state of everything at one moment, for display."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.queues import QueueStatus
from penstock.model.scaling import StoredDecision


class Sampled(NamedTuple):
    """One sample of a queue. `totals` are counts of all time."""

    at: float  # seconds since 1970
    pending: int
    active: int
    oldest_age: float
    workers: int
    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Scaled:
    """The scaler of a queue, and its last target."""

    queue: str
    holder: str
    policy: str
    target: int | None
    alive: bool  # whether it holds the queue at this moment
    decided: float | None  # how many seconds ago


@dataclass(frozen=True, slots=True)
class BoardWorker:
    """A worker process, as it reports itself."""

    name: str
    host: str
    pid: int | None
    queues: tuple[str, ...]
    slots: int
    busy: int
    age: float  # seconds since it started
    silent: float  # seconds since its last beat
    claimed: bool  # whether it has begun a task
    leaving: bool


@dataclass(frozen=True, slots=True)
class Board:
    """Queues, workers and decisions at one moment, for display."""

    at: float  # seconds since 1970
    queues: tuple[QueueStatus, ...]
    scaling: Mapping[str, Scaled]
    workers: tuple[BoardWorker, ...]
    decisions: tuple[StoredDecision, ...]  # newest first
    latest: Mapping[str, StoredDecision]  # of each queue
    samples: Mapping[str, tuple[Sampled, ...]]  # oldest first
