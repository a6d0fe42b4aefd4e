"""Why records of adopted tables failed: stored by passes, the newest 1,000 of each table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock.client.connections import Connection
from penstock.client.statements.texts import to_storable
from penstock.handlers.tracebacks import error_text
from penstock.model import split_error

MAX_CLASS = 200


class SharedKey(Exception):
    """Several records have the key of this one."""


class StatusNotWritten(Exception):
    """PostgreSQL refused the new status of a record: a trigger, a constraint, a type."""


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record of an adopted table whose last attempt failed. `error`: the message of the error, then a traceback.
    `times`: failed attempts since its last success. `dead`: it is not retried. `unwritten`: its new status could not be
    written, so it keeps the old one."""

    key: tuple[str, ...]
    error_class: str
    error: str
    times: int
    dead: bool
    unwritten: bool
    first_at: datetime
    last_at: datetime

    @property
    def message(self) -> str:
        """The error without its traceback."""
        return split_error(self.error)[0] or ""

    @property
    def traceback(self) -> str | None:
        """The traceback of the error, or None."""
        return split_error(self.error)[1]

    @property
    def why(self) -> str:
        """Class and message of the error."""
        return self.error_class if self.message in ("", self.error_class) else f"{self.error_class}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields, and the error as message and traceback."""
        fields = asdict(self) | {"key": list(self.key), "message": self.message, "traceback": self.traceback}
        del fields["error"]
        return fields | {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}


STORED = """
    select f.key, f.error_class, f.error, f.times, f.dead, f.unwritten, f.first_at, f.last_at
    from penstock.adopted_failure as f where f.adopted_id = %s
"""
NEWEST = "order by f.last_at desc, f.key limit %s"
OF_RECORD = "and f.key = %s"
NOTE = "select penstock.note_failures(%s, %s::jsonb, %s::jsonb)"
BY_CLASS = """
    select f.error_class, pg_catalog.count(*) from penstock.adopted_failure as f
    where f.adopted_id = %s group by 1 order by 2 desc, 1
"""


def read_newest(connection: Connection, adopted: int, limit: int) -> list[RecordFailure]:
    rows = connection.execute(STORED + NEWEST, (adopted, limit)).fetchall()
    return [RecordFailure(tuple(row[0]), *row[1:]) for row in rows]


def read_one(connection: Connection, adopted: int, key: Sequence[str]) -> RecordFailure | None:
    row = connection.execute(STORED + OF_RECORD, (adopted, [*key])).fetchone()
    return None if row is None else RecordFailure(tuple(row[0]), *row[1:])


def count_by_class(connection: Connection, adopted: int) -> dict[str, int]:
    return {str(name): int(count) for name, count in connection.execute(BY_CLASS, (adopted,))}


def read_keys(connection: Connection, adopted: int) -> set[tuple[str, ...]]:
    rows = connection.execute("select f.key from penstock.adopted_failure as f where f.adopted_id = %s", (adopted,))
    return {tuple(key) for (key,) in rows}


def read_class(error: BaseException) -> str:
    return (to_storable(type(error).__name__) or "")[:MAX_CLASS]


def read_error(error: BaseException, *, keep_traceback: bool) -> str:
    """Returns the message of an error, then its traceback, as tasks store them."""
    return to_storable(error_text(error, keep_traceback=keep_traceback)) or ""


def describe(error: BaseException) -> str:
    """Returns class and message of an error, as the sidecar stores them."""
    name, message = read_class(error), read_error(error, keep_traceback=False)
    return name if message == name else f"{name}: {message}"
