"""What the report shows, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_ATTEMPTS = 8  # told apart; those after are one


@dataclass(frozen=True, slots=True)
class Spell:
    """A queue over as long a while as a point of a picture stands for. None: not known."""

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
    began: float
    ended: float
    worst_age: float | None
    late_tasks: int


@dataclass(frozen=True, slots=True)
class Tries:
    """What became of tries that have something in common: which one it was, or how old the task was."""

    at: int
    runs: int
    successes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Error:
    fingerprint: str
    shape: str
    error_class: str
    runs: int
    tasks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Kind:
    kind: str
    runs: int
    p50: float
    p95: float
    longest: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A queue, all in all."""

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
    worker_seconds: float | None = None  # None: no sample says how many there were
    slas: tuple[float, float] | None = None  # the least and the most that were promised


@dataclass(frozen=True, slots=True)
class QueueFigures:
    queue: str
    summary: Summary
    spells: tuple[Spell, ...] = ()
    breaches: tuple[Breach, ...] = ()
    all_breaches: int = 0
    breach_seconds: float = 0.0
    attempts: tuple[Tries, ...] = ()
    ages: tuple[Tries, ...] = ()
    errors: tuple[Error, ...] = ()
    kinds: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """What a page is made of. No queues: the lake is empty, or the period is."""

    begins: int = 0
    ends: int = 0
    width: int = 60
    queues: tuple[QueueFigures, ...] = ()
    made: float = 0.0
    scope: tuple[str, ...] = field(default=())
