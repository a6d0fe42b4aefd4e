"""One task: why it does or does not run, its attempts, its payload and its error."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.client import queues_async, tasks_async
from penstock.errors import NotFound
from penstock.model import Attempt, TaskDetails
from penstock.web.payloads import MAX_LEAVES, flatten, read_payload
from penstock.web.site import Page

MAX_ATTEMPTS = 100
PAYLOAD = "select t.payload::text from penstock.task as t where t.id = %s"
REVEAL = "select penstock.note_reveal(%s)"


async def show(page: Page) -> Response:
    """Shows one task."""
    return await render(page, page.visitor.sees_payloads)


async def reveal(page: Page) -> Response:
    """Shows one task with its payload, which the audit notes."""
    await page.database.run(REVEAL, (page.request.path_params["id"],))
    return await render(page, True)


async def render(page: Page, open_payload: bool, said: str = "") -> Response:
    """Renders one task, with or without its payload. `said` is the answer to an act."""
    id_ = page.request.path_params["id"]
    found = await queues_async.find_task(page.database, id_)
    attempts = await read_attempts(page, id_)
    why = None
    if found.task.queue is not None and not found.removed:
        why = await tasks_async.explain(page.database, found.task.queue, id_)
    rows = await page.database.rows(PAYLOAD, (id_,)) if open_payload else []
    leaves = flatten(page.site.redactor.redact(found.task.kind, read_payload(rows[0][0]))) if rows else None
    return page.render(
        "task.html",
        found=found,
        one=found.task,
        why=why,
        events=list_events(found, attempts),
        leaves=None if leaves is None else leaves[:MAX_LEAVES],
        cut=leaves is not None and len(leaves) > MAX_LEAVES,
        said=said,
        cut_attempts=len(attempts) == MAX_ATTEMPTS,
    )


async def read_attempts(page: Page, id_: int) -> list[Attempt]:
    """Reads the last attempts; a task that never ran has none."""
    try:
        return await tasks_async.list_attempts(page.database, id_, limit=MAX_ATTEMPTS)
    except NotFound:
        return []


def list_events(found: TaskDetails, attempts: list[Attempt]) -> list[dict[str, Any]]:
    """Returns the life of a task, newest first: its attempts, and its creation."""
    events: list[dict[str, Any]] = [{"at": found.task.created, "what": "created", "attempt": None}]
    events += [
        {"at": one.finished_at or one.claimed_at, "what": one.outcome or "running", "attempt": one} for one in attempts
    ]
    return events[::-1]
