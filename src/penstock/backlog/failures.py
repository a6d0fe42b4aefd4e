"""Why records of adopted tables failed: stored by passes, the newest 1,000 of each table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock.client.database import Connection
from penstock.client.statements.texts import to_storable

MAX_CLASS = 200
MAX_MESSAGE = 6000


class SharedKey(Exception):
    """Several records have the key of this one."""


class StatusNotWritten(Exception):
    """PostgreSQL refused the new status of a record: a trigger, a constraint, a type."""


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record of an adopted table whose last attempt failed. `times`: failed attempts since its last success. `dead`:
    it is not retried. `unwritten`: its new status could not be written, so it keeps the old one."""

    key: tuple[str, ...]
    error_class: str
    message: str
    times: int
    dead: bool
    unwritten: bool
    first_at: datetime
    last_at: datetime

    def to_json(self) -> dict[str, Any]:
        moments = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        return asdict(self) | {"key": list(self.key)} | moments


NEWEST = """
    select f.key, f.error_class, f.message, f.times, f.dead, f.unwritten, f.first_at, f.last_at
    from penstock.adopted_failure as f where f.adopted_id = %s order by f.last_at desc, f.key limit %s
"""
NOTE = "select penstock.note_failures(%s, %s::jsonb, %s::jsonb)"
BY_CLASS = """
    select f.error_class, pg_catalog.count(*) from penstock.adopted_failure as f
    where f.adopted_id = %s group by 1 order by 2 desc, 1
"""


def read_newest(connection: Connection, adopted: int, limit: int) -> list[RecordFailure]:
    rows = connection.execute(NEWEST, (adopted, limit)).fetchall()
    return [RecordFailure(tuple(row[0]), *row[1:]) for row in rows]


def count_by_class(connection: Connection, adopted: int) -> dict[str, int]:
    return {str(name): int(count) for name, count in connection.execute(BY_CLASS, (adopted,))}


def read_keys(connection: Connection, adopted: int) -> set[tuple[str, ...]]:
    rows = connection.execute("select f.key from penstock.adopted_failure as f where f.adopted_id = %s", (adopted,))
    return {tuple(key) for (key,) in rows}


def read_class(error: BaseException) -> str:
    return (to_storable(type(error).__name__) or "")[:MAX_CLASS]


def read_message(error: BaseException) -> str:
    """Returns the message of an error; empty, if its own `__str__` fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a class of the user's
        text = ""
    return (to_storable(text) or "")[:MAX_MESSAGE]


def describe(error: BaseException) -> str:
    """Returns class and message of an error, as the sidecar stores them."""
    message = read_message(error)
    return (f"{read_class(error)}: {message}" if message else read_class(error))[:MAX_MESSAGE]
