"""History: how far it can be read, parts of it, and the profiles that are learnt from it."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from penstock.model.basics import Json


class Horizon(NamedTuple):
    """How far history can be read: all transactions below `xid`, of one database of one cluster, are complete. `branch`
    is the timeline and the server start since which transaction ids are given without a break. `dropped` is the last
    drop of a day that was known then."""

    system: str
    database: int
    branch: str
    xid: int
    dropped: int


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
