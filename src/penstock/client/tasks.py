# Made from src/penstock/client/tasks_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Existing tasks of one queue: a verb for each of them, and lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.database import Database
from penstock.client.statements import tasks as sql
from penstock.model import TaskInfo


def change_tasks(
    database: Database,
    queue: str,
    verb: str,
    ids: Iterable[int] | None,
    subjects: Iterable[str] | None,
    **parameters: Any,
) -> dict[int, str]:
    """Applies a verb to tasks, and returns its result for each of them by id."""
    rows = database.rows(sql.VERBS[verb], sql.choose_tasks(queue, ids, subjects) | parameters)
    return {int(id_): str(result) for id_, result in rows}


def list_tasks(database: Database, queue: str, **which: Any) -> list[TaskInfo]:
    """Lists the tasks that match the parameters of the statement. Raises NotFound for a queue that does not exist."""
    named = which["id"] is not None or which["subject"] is not None
    with database.transaction() as connection:
        size = connection.execute(sql.SIZE, (queue,)).fetchone()
        statement = sql.list_tasks(which["state"], size[0] if size else 0, named=named)
        rows = connection.execute(statement, {"queue": queue, **which}).fetchall()
    return sql.read_tasks(rows)
