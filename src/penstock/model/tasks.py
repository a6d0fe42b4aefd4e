"""Tasks: to push, as a worker gets them, and as they are listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from penstock.model.basics import Duration, Json

PUSH_RESULTS = ("created", "updated", "renewed", "reopened", "skipped", "superseded")


class NewTask(NamedTuple):
    """One task to push. `due` is a moment with a time zone, and `delay` a length of time from the push; without either,
    the task may run at once. `key` says whose task it is, and `meta` has headers for it. A task that has not started
    when it `expires` is cancelled: at a moment, or so long after its due, or after the push without one."""

    payload: Json | None = None
    subject: str | None = None
    due: datetime | None = None
    priority: int = 5
    kind: str = "default"
    delay: Duration | None = None
    key: str | None = None
    meta: Json | None = None
    expires: datetime | Duration | None = None


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
    key: str | None = None
    meta: Json | None = None

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
    key: str | None = None
    meta: Json | None = None
    expires: datetime | None = None

    @property
    def message(self) -> str | None:
        """The error without its traceback."""
        return split_error(self.error)[0]

    @property
    def traceback(self) -> str | None:
        """The traceback of the error, or None."""
        return split_error(self.error)[1]


@dataclass(frozen=True, slots=True)
class EndedTask:
    """The payload of a follow-up: how a task of a kind with `on_dead` or `on_done` ended. A handler takes it with
    `def handle(payload: EndedTask)`."""

    id: int
    end: int  # no other end has this number: it is the id of the last attempt in history
    queue: str
    kind: str
    subject: str | None
    payload: Json | None  # None: it is too large for the queue of the follow-up
    outcome: Literal["done", "dead"]
    attempts: int  # since the last success
    reason: str | None  # why it is dead
    error_class: str | None
    error: str | None  # the message, then a traceback
    ended_at: datetime

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


class Attempt(NamedTuple):
    """One attempt of a task: a run that ended, or the one that goes on. `attempt` counts from 1 and begins anew after a
    success; `iteration` is the number of successful runs before it."""

    queue: str
    attempt: int
    iteration: int
    worker: str
    due: datetime  # when the task was due for this attempt
    claimed_at: datetime
    finished_at: datetime | None  # None: it goes on
    lease_until: datetime | None  # of the attempt that goes on
    outcome: str | None  # done, again, failed, dead, released, expired, revoked or unstarted; None: it goes on
    error_class: str | None
    error: str | None  # the message, then a traceback

    @property
    def message(self) -> str | None:
        """The error without its traceback."""
        return split_error(self.error)[0]

    @property
    def traceback(self) -> str | None:
        """The traceback of the error, or None."""
        return split_error(self.error)[1]


class LogLine(NamedTuple):
    """A line of the log of a task: what `context.log` said, when, and in which attempt."""

    at: datetime
    attempt: int
    text: str


class TaskProgress(NamedTuple):
    """What the handler of a task said: how far it is (`context.progress`), and the last lines of its log. It stays over
    retries, and is removed with the task."""

    part: float | None  # between 0 and 1
    text: str | None
    at: datetime  # when it said something last
    attempt: int  # in which attempt it did
    log: tuple[LogLine, ...]  # oldest first


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task does not run, that it runs, or how it ended. `reason` is a word for programs, `text` one sentence for
    people, and `facts` has the values that the sentence is made of."""

    id: int
    queue: str
    at: datetime  # the moment that it describes, by PostgreSQL's clock
    reason: str
    text: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text
