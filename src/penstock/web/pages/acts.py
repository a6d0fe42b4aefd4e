"""What changes something: acts on one task, plans for many, and the pause of queues and schedules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
from starlette.responses import Response

from penstock import validate
from penstock.client import schedules_async
from penstock.client.queue_async import AsyncQueue
from penstock.client.statements.tasks import check_filters
from penstock.errors import NotFound, ValidationError, shown
from penstock.web import plans
from penstock.web.access import ACT_TIMEOUT, connect_as
from penstock.web.pages import task
from penstock.web.pages.tasks import FILTERS, read_id
from penstock.web.plans import MAX_TASKS, Plan, check_act
from penstock.web.site import Page, redirect

SAMPLES = 10
LOOKED = 200_000
SELECT = "select penstock.task_page(%s, %s, %s, %s, %s, null, %s, %s)::text"
BY_FINGERPRINT = "select penstock.failed_ids(%s, %s, %s)"
ROWS = """
    select t.id, t.kind, t.subject, t.state, t.error_class, pg_catalog.left(t.error, 300)
    from penstock.tasks as t where t.id = any(%s) order by t.id desc
"""


async def change_task(page: Page) -> Response:
    """Acts on one task, and shows it again."""
    id_, verb = page.request.path_params["id"], page.request.path_params["act"]
    argument, queue = page.form.get("argument", ""), validate.queue_name(page.form.get("queue", ""))
    check_act(verb, argument)
    answers = await plans.act(page.database, queue, verb, argument, [id_])
    return await task.render(page, page.visitor.sees_payloads, said=answers.get(id_, "unknown"))


async def pause_queue(page: Page) -> Response:
    """Pauses or resumes a queue."""
    name = validate.queue_name(page.request.path_params["queue"])
    queue = AsyncQueue(page.database, name)
    await (queue.resume() if is_resume(page) else queue.pause())
    page.site.sampler.forget()
    return redirect(page.url("queue", queue=name))


def is_resume(page: Page) -> bool:
    """Returns whether a request resumes something; otherwise it pauses it."""
    change = page.request.path_params["change"]
    if change not in ("pause", "resume"):
        raise NotFound(f"change: {shown(change)} is not pause or resume")
    return bool(change == "resume")


async def pause_schedule(page: Page) -> Response:
    """Pauses or resumes a schedule."""
    name = page.form.get("name", "")
    if is_resume(page):
        await schedules_async.resume_schedule(page.database, name)
    else:
        await schedules_async.pause_schedule(page.database, name)
    return redirect(page.url("schedules"))


async def make_plan(page: Page) -> Response:
    """Finds the tasks of an act, and keeps them as a plan."""
    queue = validate.queue_name(page.form.get("queue", ""))
    verb, argument = page.form.get("act", ""), page.form.get("argument", "").strip()
    check_act(verb, argument)
    ids, what, more = await select_tasks(page, queue)
    if not ids:
        raise NotFound("plan: no task matches any more", hint="Load the list again.")
    plan = page.site.plans.add(
        page.session.id,
        ids,
        queue=queue,
        act=verb,
        argument=argument,
        what=what,
        is_all=page.form.get("scope") == "all"
        and not any(page.form.get(name) for name in ("kind", "subject", "error")),
        more=more,
    )
    return redirect(page.url("plan", plan=plan.id))


async def select_tasks(page: Page, queue: str) -> tuple[list[int], str, bool]:
    """Returns the tasks that a form is about, the selection in words, and whether others match too."""
    form = page.form
    if fingerprint := form.get("fingerprint"):
        rows = await page.database.rows(BY_FINGERPRINT, (queue, fingerprint[:40], MAX_TASKS))
        return (
            [id_ for (id_,) in rows],
            f"dead tasks with the cause {form.get('cause', fingerprint)}",
            len(rows) == MAX_TASKS,
        )
    if form.get("scope") != "all":
        chosen = [read_id(name.removeprefix("id:")) for name in form if name.startswith("id:")]
        if not chosen:
            raise ValidationError("tasks: none is chosen", field="tasks", hint="Tick some, or act on all that match.")
        return chosen, "the chosen tasks", False
    given = {name: form[name] for name in FILTERS if form.get(name)}
    texts = check_filters(**{name: given.get(name) for name in ("kind", "error", "subject")})
    parameters = (queue, given.get("state"), texts["kind"], texts["error"], texts["subject"], MAX_TASKS, LOOKED)
    found: dict[str, Any] = orjson.loads(await page.database.value(SELECT, parameters))
    words = ", ".join(f"{name} {value}" for name, value in given.items() if name != "queue")
    return [one["id"] for one in found["tasks"]], f"all tasks ({words})" if words else "all tasks", bool(found["next"])


async def show_plan(page: Page) -> Response:
    """Shows a plan before and after it is applied."""
    return await render_plan(page, find_plan(page))


async def apply_plan(page: Page) -> Response:
    """Applies a plan with the rights of the visitor."""
    plan = find_plan(page)
    await plans.apply(connect_as(page.site.database, page.visitor, timeout=ACT_TIMEOUT), plan, page.form)
    page.site.sampler.forget()
    return redirect(page.url("plan", plan=plan.id))


def find_plan(page: Page) -> Plan:
    """Returns the plan that a request is about."""
    return page.site.plans.find(page.request.path_params["plan"], page.session.id)


async def render_plan(page: Page, plan: Plan) -> Response:
    """Renders a plan with ten of its tasks, and with the present states of those that run first."""
    samples = await page.database.rows(ROWS, (list(plan.ids[:SAMPLES]),)) if plan.ids else []
    first = await page.database.rows(ROWS, (list(plan.canary),)) if plan.canary else []
    states = Counter(row[3] for row in first)
    if gone := len(plan.canary) - len(first):
        states["done"] += gone  # a done task is removed, unless its queue keeps it
    return page.render("plan.html", plan=plan, samples=samples, states=states, max_tasks=MAX_TASKS)
