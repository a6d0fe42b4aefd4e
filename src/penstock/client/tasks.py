# Made from src/penstock/client/tasks_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Existing tasks: a verb for each of them, lists, the attempts of one task, and why it does not run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import validate
from penstock.client.database import Database
from penstock.client.statements import reasons
from penstock.client.statements import tasks as sql
from penstock.model import Attempt, Explanation, TaskInfo


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


def list_attempts(database: Database, id_: int, queue: str | None = None, *, limit: int) -> list[Attempt]:
    """Returns the last attempts of a task, oldest first. Raises NotFound for a task that is not known, or that is not
    in the given queue."""
    return sql.read_attempts(database.rows(sql.ATTEMPTS, sql.attempts_parameters(id_, queue, limit)))


def explain(database: Database, queue: str, id_: int) -> Explanation:
    """Returns why a task of a queue does not run, that it runs, or how it ended."""
    return reasons.read_explanation(database.value(reasons.WHY, (queue, *validate.ids([id_]))))
