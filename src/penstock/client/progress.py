# Made from src/penstock/client/progress_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""What handlers said of their tasks."""

from __future__ import annotations

from uuid import UUID

import orjson

from penstock import validate
from penstock.client.database import RELAXED, Database
from penstock.client.statements import progress as sql
from penstock.model import Json, TaskProgress


def note_progress(database: Database, token: UUID | str, notes: list[Json]) -> int:
    """Stores what handlers said of tasks of a lease, without waiting for the disk, and returns of how many tasks. Tasks
    that the lease no longer holds are left out."""
    parameters = (str(validate.token(token)), orjson.dumps(notes).decode())
    return int(database.value(sql.NOTE, parameters, begin=RELAXED))


def find_progress(database: Database, id_: int, queue: str | None = None) -> TaskProgress | None:
    """Returns what the handler of a task said, or None if it said nothing. Raises NotFound for a task that does not
    exist, or that is not in the given queue."""
    return sql.read_progress(database.rows(sql.FIND, sql.find_parameters(id_, queue)))
