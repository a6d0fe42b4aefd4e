"""The values that the parts of Penstock exchange. They are frozen, and this module does no I/O.

Values that are made once per task are named tuples: a frozen dataclass costs seven times as much to build (decision
0004).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
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
    """One task to push. `due` is a moment with a time zone, and `delay` a length of time from the push; without either,
    the task may run at once."""

    payload: Json | None = None
    subject: str | None = None
    due: datetime | None = None
    priority: int = 5
    kind: str = "default"
    delay: Duration | None = None


class Pushed(NamedTuple):
    """The result of pushing one task."""

    id: int
    result: str
    state: str


@dataclass(frozen=True, slots=True)
class PushReport:
    """The result of a bulk push. The six counts add up to the number of tasks given. `skipped_dead` counts the skipped
    ones whose task is dead: such a task does not run until it is redriven or updated."""

    batch_id: UUID
    created: int = 0
    updated: int = 0
    renewed: int = 0
    reopened: int = 0
    skipped: int = 0
    superseded: int = 0
    skipped_dead: int = 0

    def __str__(self) -> str:
        said = ", ".join(f"{count:,} {word}" for word, count in self.counts.items() if count) or "nothing to push"
        if not self.skipped_dead:
            return said
        return f"{said} ({self.skipped_dead:,} of them dead: redrive them, or push with on_conflict='update')"

    @property
    def counts(self) -> dict[str, int]:
        """The six counts by name."""
        return {name: getattr(self, name) for name in PUSH_RESULTS}

    @property
    def total(self) -> int:
        """The number of tasks given."""
        return sum(self.counts.values())


EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def from_micros(micros: int) -> datetime:
    """Converts PostgreSQL's own count of time, microseconds since 2000, to a datetime."""
    return EPOCH + timedelta(microseconds=micros)


class Task(NamedTuple):
    """One claimed task. `attempt` counts from 1; `iterations` is the number of successful runs before this one.

    Moments are kept as PostgreSQL sent them and become datetimes when they are read: most handlers never read them, and
    converting them was a fifth of a claim's cost.
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
        """When the task was due."""
        return from_micros(self.due_micros)

    @property
    def created(self) -> datetime:
        """When the task was created."""
        return from_micros(self.created_micros)

    @property
    def since(self) -> datetime:
        """When the age of the task began: at its push, re-opening or redrive, or at its last success."""
        return from_micros(self.created_micros if self.since_micros is None else self.since_micros)


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease and the tasks that it covers. Only a holder of the token can settle them."""

    queue: str
    token: UUID | None
    until: datetime | None
    tasks: tuple[Task, ...]
    pid: int | None = None  # the process that made the claim; a fork of it may not settle
    alone: bool = False  # its task crashed a worker before: claim nothing else until it is settled

    @property
    def ids(self) -> list[int]:
        """The ids of the tasks."""
        return [task.id for task in self.tasks]

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class Standing(NamedTuple):
    """What a beat tells a worker about a queue: the channel on which pushes wake it, whether a task waits there that
    must be alone in its process, and whether the worker should stop."""

    channel: str
    alone: bool
    dismissed: bool = False


class Extended(NamedTuple):
    """The new end of a lease, and the tasks in it that were cancelled meanwhile."""

    until: datetime
    revoked: tuple[int, ...]


class Kept(NamedTuple):
    """One of many leases that were extended together. `until` is None while another call settles the lease; ask again
    then."""

    until: datetime | None
    revoked: tuple[int, ...]


# The outcomes that a handler makes inside its transaction() block, where it may not return one. None means that there
# is no such block.
made_inside: ContextVar[list[Outcome] | None] = ContextVar("made_inside", default=None)


class Outcome(NamedTuple):
    """The outcome of one task, for a settle. Use its five class methods to make one."""

    word: str
    due: datetime | None = None
    delay: Duration | None = None
    payload: Json | None = None
    error: str | None = None
    error_class: str | None = None

    @classmethod
    def done(cls) -> Outcome:
        """The task succeeded."""
        return DONE

    @classmethod
    def again(
        cls, due: datetime | None = None, *, delay: Duration | None = None, payload: Json | None = None
    ) -> Outcome:
        """The task succeeded and should run again: at `due`, after `delay`, or at once."""
        return note_made(cls("again", due=due, delay=delay, payload=payload))

    @classmethod
    def failed(
        cls, error: str | BaseException, *, delay: Duration | None = None, error_class: str | None = None
    ) -> Outcome:
        """The task failed. Without a delay, the retry strategy of its kind or queue decides when it is tried again."""
        if isinstance(error, BaseException):
            error, error_class = str(error), error_class or type(error).__name__
        return note_made(cls("failed", delay=delay, error=error, error_class=error_class))

    @classmethod
    def dead(cls, reason: str, *, error_class: str | None = None) -> Outcome:
        """The task failed for good, and is not tried again."""
        return note_made(cls("dead", error=reason, error_class=error_class))

    @classmethod
    def release(cls, *, delay: Duration | None = None, error_class: str | None = None) -> Outcome:
        """The task goes back as it was, without counting an attempt, and waits for `delay` if one is given."""
        return note_made(cls("release", delay=delay, error_class=error_class))


DONE = Outcome("done")


def note_made(outcome: Outcome) -> Outcome:
    """Tells the transaction() block in which an outcome is made about it."""
    made = made_inside.get()
    if made is not None:
        made.append(outcome)
    return outcome


class Held(NamedTuple):
    """A consumer group that a driver holds, and the batch that the driver was given last."""

    stream: int
    epoch: int
    identity: str
    batch: int


class Batch(NamedTuple):
    """One batch of a consumer group; `early` counts the tasks that were due by the requested moment."""

    number: int
    tasks: int
    early: int


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


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The exact counts of a queue in one snapshot."""

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
        """The number of tasks that wait, planned or pending."""
        return self.planned + self.pending


TRACEBACK = "Traceback (most recent call last):"


def split_error(text: str | None) -> tuple[str | None, str | None]:
    """Splits a stored error into its message and its traceback."""
    if text is None:
        return None, None
    message, found, rest = text.partition(f"\n{TRACEBACK}\n")
    return message, f"{TRACEBACK}\n{rest}" if found else None


class TaskInfo(NamedTuple):
    """A task as `tasks` lists it. It has a `due` only while it waits, and `attempts`, the failed ones, while it waits
    and when it is dead. `error` is the error of the last failed attempt: its message, then a traceback."""

    id: int
    queue: str
    kind: str
    subject: str | None
    state: str
    priority: int | None  # None if the task is removed
    due: datetime | None
    attempts: int | None
    iterations: int
    created: datetime
    last_iteration: datetime | None
    ended_at: datetime | None
    reason: str | None
    error_class: str | None
    error: str | None
    payload: Json | None  # None if the task is removed, or the payload is nested deeper than Python can read

    @property
    def message(self) -> str | None:
        """The error without its traceback."""
        return split_error(self.error)[0]

    @property
    def traceback(self) -> str | None:
        """The traceback of the error, or None."""
        return split_error(self.error)[1]


class TaskDetails(NamedTuple):
    """Everything about one task, including which worker runs it, since when, and when its lease ends. A `removed` task
    is known from history only: `worker` and `claimed_at` are those of its last attempt, and its payload and priority
    are gone."""

    task: TaskInfo
    worker: str | None
    claimed_at: datetime | None
    lease_until: datetime | None
    removed: bool = False


class NewSchedule(NamedTuple):
    """A schedule to create: a task like this one is pushed at every tick of a cron line."""

    name: str
    queue: str
    cron: str
    tz: str = "UTC"
    kind: str = "default"
    payload: Json | None = None
    priority: int = 5
    backfill: Backfill = "last"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is at the moment `at`. Every tick up to `mark` is decided; `last_tick` is the last tick that was
    pushed; the schedule is due at `next_at`."""

    name: str
    queue: str
    kind: str
    payload: Json | None  # None if it is nested deeper than Python can read
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
    """A decision about a schedule's ticks: `ticks` are pushed, every tick up to `decided` is decided, and the next one
    is `next_at`."""

    ticks: list[datetime]
    decided: datetime
    next_at: datetime


class Horizon(NamedTuple):
    """How far history can be read: all transactions below `xid`, of one database of one cluster, are complete. `branch`
    is the timeline and the server start since which transaction ids are given without a break. `dropped` is the last
    drop of a day that was known then."""

    system: str
    database: int
    branch: str
    xid: int
    dropped: int


class StoredProfile(NamedTuple):
    """What the pipeline learnt about a queue. If `made` is None, the queue has no profile and the other fields are None
    too."""

    queue: str
    version: int | None
    made: datetime | None
    age: timedelta | None
    covers_from: datetime | None
    covers_to: datetime | None
    data: Json | None


class Running(NamedTuple):
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


class Window(NamedTuple):
    """A selection of history: the rows that the transactions from `start` to below `end` wrote, of a queue and of some
    days."""

    start: Horizon
    end: Horizon
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Span(NamedTuple):
    """Some pages of one day of history. `relation` tells the day's table from another one of the same name."""

    day: date
    relation: int
    first_page: int
    pages: int


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


class Asked(NamedTuple):
    """A scaler's question about a queue: how far ahead to look, how many of the oldest tasks to read, and how finely to
    group them by age."""

    queue: str
    horizon: float = 60.0  # seconds
    rows: int = 500
    bin: float = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """The state of a queue for a scaler. `ended` and `left` are totals of all time."""

    queue: str
    paused: bool
    sla: float | None
    planned: int
    pending: int
    active: int
    ended: int  # attempts that finished by themselves
    left: int  # attempts that were released, cancelled, or expired
    waiting: tuple[tuple[float, int], ...] = ()  # (age, tasks) of the oldest, oldest first
    newest: float | None = None  # age of the newest, if more tasks wait than `waiting` contains
    ahead: tuple[tuple[int, int], ...] = ()  # (second since 1970, planned tasks)
    running: tuple[tuple[float, int], ...] = ()  # (seconds, tasks) of some leases
    rate: float | None = None  # tasks a second of one worker, if running tasks are not counted


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


class Repair(NamedTuple):
    """One repair: the queue, what was repaired, and how many rows."""

    queue: str
    what: str
    rows: int


class Finding(NamedTuple):
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
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no difference was found."""
        return not (self.drift or self.orphans or self.history or self.balance)
