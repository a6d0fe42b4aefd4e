"""Claims: leases, the tasks in them, and what a worker is told about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from penstock.model.tasks import Task


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease and the tasks that it covers. Only a holder of the token can settle them."""

    queue: str
    token: UUID | None
    until: datetime | None
    tasks: tuple[Task, ...]
    pid: int | None = None  # the process that made the claim; a fork of it may not settle
    alone: bool = False  # claim nothing else until it is settled: its task crashed a worker, or only one was asked for

    @property
    def ids(self) -> list[int]:
        """The ids of the tasks."""
        return [task.id for task in self.tasks]

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class Standing(NamedTuple):
    """What a beat tells a worker about a queue: the channel on which pushes wake it, whether a quarantined task
    waits there, and whether the worker should stop."""

    channel: str
    quarantined: bool
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
