"""The figures of the report, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_ATTEMPTS = 8  # shown separately; later ones are shown together


@dataclass(frozen=True, slots=True)
class PointFigures:
    """The figures of a queue for one point of a chart. None: unknown."""

    at: int  # seconds of the epoch
    arrivals: int | None = None
    finishes: int = 0
    failures: int = 0
    pending: int | None = None  # at most
    oldest_age: float | None = None
    workers: float | None = None  # on average
    sla: float | None = None
    kept: int = 0
    late: int = 0
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_p99: float | None = None
    urgency: tuple[float, ...] | None = None  # shares, in the order of URGENCIES


@dataclass(frozen=True, slots=True)
class Breach:
    """A time in which the promise was broken."""

    began: float
    ended: float
    worst_age: float | None
    late_tasks: int


@dataclass(frozen=True, slots=True)
class TryFigures:
    """The results of attempts that have the same number, or the same age of the task."""

    at: int
    runs: int
    successes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """What failures with one fingerprint cost."""

    fingerprint: str
    shape: str
    error_class: str
    runs: int
    tasks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Run times of the attempts of one kind."""

    kind: str
    runs: int
    p50: float
    p95: float
    longest: float
    seconds: float


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue over the whole period."""

    attempts: int = 0
    kept: int = 0
    late: int = 0
    worst_wait: float = 0.0
    worst_late_by: float = 0.0
    wait_p95: float | None = None
    done: int = 0
    dead: int = 0
    retries: int = 0
    run_seconds: float = 0.0
    failed_seconds: float = 0.0
    worker_seconds: float | None = None  # None: no sample has the number of workers
    slas: tuple[float, float] | None = None  # the lowest and the highest SLA


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """All figures of a queue."""

    queue: str
    summary: QueueSummary
    spells: tuple[PointFigures, ...] = ()
    breaches: tuple[Breach, ...] = ()
    all_breaches: int = 0
    breach_seconds: float = 0.0
    attempts: tuple[TryFigures, ...] = ()
    ages: tuple[TryFigures, ...] = ()
    errors: tuple[ErrorFigures, ...] = ()
    kinds: tuple[KindFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a page. No queues: the lake is empty, or nothing happened in the period."""

    begins: int = 0
    ends: int = 0
    width: int = 60
    queues: tuple[QueueFigures, ...] = ()
    made: float = 0.0
    scope: tuple[str, ...] = field(default=())
