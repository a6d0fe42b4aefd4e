"""The values that cross rooms. Frozen, no I/O.

Those made once per task are named tuples: a frozen dataclass costs seven times as much to build (decision 0004).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

Json = dict[str, Any]
State = Literal["planned", "pending", "active", "done", "dead", "cancelled"]
OnConflict = Literal["skip", "update", "error"]
Backfill = Literal["none", "last", "all"]
Duration = str | int | float | timedelta  # "1m30s", seconds, or a timedelta
PUSH_RESULTS = ("created", "updated", "renewed", "reopened", "skipped", "superseded")
GAUGES = ("planned", "pending", "active", "done", "dead", "cancelled")


class NewTask(NamedTuple):
    """What a push says of one task. `due` is a moment with a time zone; without one it may run at once."""

    payload: Json | None = None
    subject: str | None = None
    due: datetime | None = None
    priority: int = 5
    kind: str = "default"


class Pushed(NamedTuple):
    """What became of one pushed task."""

    id: int
    result: str
    state: str


@dataclass(frozen=True, slots=True)
class PushReport:
    """What became of a bulk push. The six counts add up to the number of tasks given."""

    batch_id: UUID
    created: int = 0
    updated: int = 0
    renewed: int = 0
    reopened: int = 0
    skipped: int = 0
    superseded: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in PUSH_RESULTS}

    @property
    def total(self) -> int:
        return sum(self.counts.values())


EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def from_micros(micros: int) -> datetime:
    """PostgreSQL's own count of time, microseconds since 2000."""
    return EPOCH + timedelta(microseconds=micros)


class Task(NamedTuple):
    """One claimed task. `attempt` counts from 1; `iterations` are the successful runs before this one.

    The moments are kept as PostgreSQL sent them and become datetimes when somebody looks: most handlers never do, and
    making them was a fifth of a claim's cost.
    """

    id: int
    kind: str
    subject: str | None
    payload: Json
    priority: int
    attempt: int
    iterations: int
    due_micros: int
    created_micros: int
    since_micros: int | None = None

    @property
    def due(self) -> datetime:
        return from_micros(self.due_micros)

    @property
    def created(self) -> datetime:
        return from_micros(self.created_micros)

    @property
    def since(self) -> datetime:
        """When its age began: at its push, re-opening or redrive, or at its last success."""
        return from_micros(self.created_micros if self.since_micros is None else self.since_micros)


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease and the tasks it covers. Whoever holds the token may settle them; nobody else can."""

    queue: str
    token: UUID | None
    until: datetime | None
    tasks: tuple[Task, ...]
    pid: int | None = None  # the process it was made in; a fork of it may not settle
    alone: bool = False  # its task took a worker down with it before: take nothing else until it is settled

    @property
    def ids(self) -> list[int]:
        return [task.id for task in self.tasks]

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class Standing(NamedTuple):
    """What a worker is told of a queue when it beats: where pushes wake it, whether a task waits there that must be
    alone in its process, and whether the worker shall go."""

    channel: str
    alone: bool
    dismissed: bool = False


class Extended(NamedTuple):
    """The new end of a lease, and the tasks that were cancelled under it meanwhile."""

    until: datetime
    revoked: tuple[int, ...]


class Kept(NamedTuple):
    """One of many leases that were extended together. No end: somebody settles it this moment; ask again."""

    until: datetime | None
    revoked: tuple[int, ...]


class Outcome(NamedTuple):
    """What a settle says of one task. Made by the five class methods."""

    word: str
    due: datetime | None = None
    delay: Duration | None = None
    payload: Json | None = None
    error: str | None = None
    error_class: str | None = None

    @classmethod
    def done(cls) -> Outcome:
        return DONE

    @classmethod
    def again(
        cls, due: datetime | None = None, *, delay: Duration | None = None, payload: Json | None = None
    ) -> Outcome:
        """It succeeded and shall run again: at `due`, after `delay`, or at once."""
        return cls("again", due=due, delay=delay, payload=payload)

    @classmethod
    def failed(
        cls, error: str | BaseException, *, delay: Duration | None = None, error_class: str | None = None
    ) -> Outcome:
        """It failed. Without a delay the retry strategy of its kind or queue decides when it is tried again."""
        if isinstance(error, BaseException):
            return cls("failed", delay=delay, error=str(error), error_class=error_class or type(error).__name__)
        return cls("failed", delay=delay, error=error, error_class=error_class)

    @classmethod
    def dead(cls, reason: str, *, error_class: str | None = None) -> Outcome:
        return cls("dead", error=reason, error_class=error_class)

    @classmethod
    def release(cls, *, delay: Duration | None = None, error_class: str | None = None) -> Outcome:
        """Put back as it was, no attempt burned; not before `delay` has passed, if one is given."""
        return cls("release", delay=delay, error_class=error_class)


DONE = Outcome("done")


class Held(NamedTuple):
    """A consumer group in a driver's hands, and the batch that it was given last."""

    stream: int
    epoch: int
    identity: str
    batch: int


class Batch(NamedTuple):
    """What a consumer group is given; `early` are the tasks that were due by the moment asked for."""

    number: int
    tasks: int
    early: int


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue as it was created."""

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


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How a queue stands, exactly, in one snapshot."""

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

    @property
    def waiting(self) -> int:
        return self.planned + self.pending


class Listed(NamedTuple):
    """A task as `tasks` shows it. `due` and `attempts` only while it waits."""

    id: int
    queue: str
    kind: str
    subject: str | None
    state: str
    priority: int
    due: datetime | None
    attempts: int | None
    iterations: int
    created: datetime
    last_iteration: datetime | None
    ended_at: datetime | None
    reason: str | None
    error: str | None
    payload: Json | None  # None: nested deeper than Python can read


class NewSchedule(NamedTuple):
    """What is asked of a schedule: a task like this one at every tick of a cron line."""

    name: str
    queue: str
    cron: str
    tz: str = "UTC"
    kind: str = "default"
    payload: Json | None = None
    priority: int = 5
    backfill: Backfill = "last"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A schedule as it stands `at` a moment. Up to `mark` every tick is decided; `last_tick` is the last one that was
    pushed; at `next_at` somebody has to look again."""

    name: str
    queue: str
    kind: str
    payload: Json | None  # None: nested deeper than Python can read
    priority: int
    cron: str
    tz: str
    backfill: str
    paused: bool
    mark: datetime
    next_at: datetime
    last_tick: datetime | None
    created: datetime
    updated: datetime
    who: str
    size: int  # of the payload, in bytes
    at: datetime


class Firing(NamedTuple):
    """What becomes of a schedule's ticks: these are pushed, all up to `decided` are decided, the next is `next_at`."""

    ticks: list[datetime]
    decided: datetime
    next_at: datetime


class Horizon(NamedTuple):
    """How far history can be read: below transaction `xid` of a database of a cluster, all is written. `dropped`: the
    last drop of a day that was known then."""

    system: str
    database: int
    xid: int
    dropped: int


class StoredProfile(NamedTuple):
    """What the pipeline learnt about a queue. `made` is None: it has no profile, and then nothing else is known."""

    queue: str
    version: int | None
    made: datetime | None
    age: timedelta | None
    covers_from: datetime | None
    covers_to: datetime | None
    data: Json | None


class Running(NamedTuple):
    """Tasks that run, by how long: `bucket` is ten times the logarithm of its shortest, in seconds."""

    queue: str
    kind: str
    bucket: int
    tasks: int
    seconds: float


class Latency(NamedTuple):
    """Seconds from asking for a worker to its first task."""

    queue: str
    workers: int
    p50: float
    p90: float


class Window(NamedTuple):
    """Rows of history: those that the transactions from `start` to below `end` wrote, of a queue, of some days."""

    start: Horizon
    end: Horizon
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Span(NamedTuple):
    """Pages of one day of history. `relation` tells the day from another one of its name."""

    day: date
    relation: int
    first_page: int
    pages: int


class ScalingHold(NamedTuple):
    """A queue in a scaler's hands: its epoch there, and what the one before wanted and remembered."""

    queue: str
    epoch: int
    memory: Json | None
    target: int | None


class QueueScaler(NamedTuple):
    """Who scales a queue, until when without another word, and how many workers it wants."""

    queue: str
    holder: str
    policy: str
    until: datetime
    target: int | None
    decided_at: datetime | None


@dataclass(frozen=True, slots=True)
class NotedDecision:
    """What a scaler decided for a queue, as it was noted. `workers` is the target, `actual` those there were."""

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


class Asked(NamedTuple):
    """What a scaler wants to know of a queue: how far ahead, how many of the oldest at most, how finely by age."""

    queue: str
    horizon: float = 60.0  # seconds
    rows: int = 500
    bin: float = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """How a queue stands, for a scaler. What is counted is counted since the beginning of time."""

    queue: str
    paused: bool
    sla: float | None
    planned: int
    pending: int
    active: int
    ended: int  # attempts that came to an end of their own
    left: int  # attempts that were released, cancelled, or expired
    waiting: tuple[tuple[float, int], ...] = ()  # (age, tasks) of the oldest, oldest first
    newest: float | None = None  # age of the newest, if there are more than those
    ahead: tuple[tuple[int, int], ...] = ()  # (second since 1970, tasks) that are planned
    running: tuple[tuple[float, int], ...] = ()  # (seconds, tasks) of some leases
    rate: float | None = None  # tasks a second of one worker, where nobody counts what runs


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A process in the registry."""

    name: str
    queues: tuple[str, ...]
    slots: int
    busy: int
    started_by: str | None
    leaving: bool
    silent: float  # seconds since it said that it lives
    began: float  # seconds since 1970
    latency: float  # seconds from when it was asked for until then


@dataclass(frozen=True, slots=True)
class Look:
    """What a scaler sees at one moment of PostgreSQL's clock."""

    at: float  # seconds since 1970
    queues: tuple[SeenQueue, ...]
    workers: tuple[SeenWorker, ...]
    connections: int  # of all clients of the server
    most_connections: int  # that it allows
    schedule: float | None = None  # seconds until one is due


class Sampled(NamedTuple):
    """One sample of a queue. `totals` are of all time."""

    at: float  # seconds since 1970
    pending: int
    active: int
    oldest_age: float
    workers: int
    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Scaled:
    """Who scales a queue, and what was wanted last."""

    queue: str
    holder: str
    policy: str
    target: int | None
    alive: bool  # it holds the queue at this moment
    decided: float | None  # seconds ago


@dataclass(frozen=True, slots=True)
class BoardWorker:
    """A worker process, as it says of itself."""

    name: str
    host: str
    pid: int | None
    queues: tuple[str, ...]
    slots: int
    busy: int
    age: float  # seconds since it started
    silent: float  # seconds since it last said that it lives
    claimed: bool  # False: it has not begun a task yet
    leaving: bool


@dataclass(frozen=True, slots=True)
class Board:
    """Queues, workers and decisions at one moment, for people."""

    at: float  # seconds since 1970
    queues: tuple[QueueStatus, ...]
    scaling: Mapping[str, Scaled]
    workers: tuple[BoardWorker, ...]
    decisions: tuple[NotedDecision, ...]  # newest first
    latest: Mapping[str, NotedDecision]  # of each queue
    samples: Mapping[str, tuple[Sampled, ...]]  # oldest first


class Repair(NamedTuple):
    """Something repair put right."""

    queue: str
    what: str
    rows: int


class Finding(NamedTuple):
    """Something verify found to be off: what it counted, and what the books say."""

    queue: str
    what: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Verification:
    """`drift`: counters that differ from a recount; `orphans`: tasks in no place or in two; `history`: totals that
    differ from history; `balance`: queues whose pushed total is not where the tasks are now."""

    drift: int
    orphans: int
    history: int
    balance: int
    dropped: int
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.drift or self.orphans or self.history or self.balance)
