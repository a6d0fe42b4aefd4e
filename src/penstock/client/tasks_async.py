"""Existing tasks: a verb for each of them, lists, the attempts of one task, and why it does not run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import validate
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import reasons
from penstock.client.statements import tasks as sql
from penstock.model import Attempt, Explanation, TaskInfo


async def change_tasks(
    database: AsyncDatabase,
    queue: str,
    verb: str,
    ids: Iterable[int] | None,
    subjects: Iterable[str] | None,
    **parameters: Any,
) -> dict[int, str]:
    """Applies a verb to tasks, and returns its result for each of them by id."""
    rows = await database.rows(sql.VERBS[verb], sql.choose_tasks(queue, ids, subjects) | parameters)
    return {int(id_): str(result) for id_, result in rows}


async def list_tasks(database: AsyncDatabase, queue: str, **which: Any) -> list[TaskInfo]:
    """Lists the tasks that match the parameters of the statement. Raises NotFound for a queue that does not exist."""
    named = which["id"] is not None or which["subject"] is not None
    async with database.transaction() as connection:
        size = await (await connection.execute(sql.SIZE, (queue,))).fetchone()
        statement = sql.list_tasks(which["state"], size[0] if size else 0, named=named)
        rows = await (await connection.execute(statement, {"queue": queue, **which})).fetchall()
    return sql.read_tasks(rows)


async def list_attempts(database: AsyncDatabase, id_: int, queue: str | None = None, *, limit: int) -> list[Attempt]:
    """Returns the last attempts of a task, oldest first. Raises NotFound for a task that is not known, or that is not
    in the given queue."""
    return sql.read_attempts(await database.rows(sql.ATTEMPTS, sql.attempts_parameters(id_, queue, limit)))


async def explain(database: AsyncDatabase, queue: str, id_: int) -> Explanation:
    """Returns why a task of a queue does not run, that it runs, or how it ended."""
    return reasons.read_explanation(await database.value(reasons.WHY, (queue, *validate.ids([id_]))))
