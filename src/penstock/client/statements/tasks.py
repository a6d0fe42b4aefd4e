"""Existing tasks: cancel, redrive and the other verbs, and how tasks are found and listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock import validate
from penstock.client.binary import IdArray
from penstock.errors import NotFound, ValidationError, shown
from penstock.model import GAUGES, Attempt, TaskDetails, TaskInfo

VERBS = {
    "cancel": "select id, result from penstock.cancel(%(queue)s, %(ids)s, %(subjects)s, %(reason)s)",
    "redrive": """
        select id, result
        from penstock.redrive(%(queue)s, %(ids)s, %(subjects)s, %(kind)s, %(error)s, %(since)s, %(limit)s)
    """,
    "reschedule": "select id, result from penstock.reschedule(%(queue)s, %(due)s, %(ids)s, %(subjects)s)",
    "reprioritise": """
        select id, result from penstock.reprioritise(%(queue)s, %(priority)s::smallint, %(ids)s, %(subjects)s)
    """,
    "purge": """
        select penstock.purge(%(queue)s, %(states)s, %(ids)s, %(kind)s, %(error)s, %(before)s, %(limit)s)
    """,
}
MAX_TASKS = 10_000  # tasks in one call of a SQL function


def choose_tasks(queue: str, ids: Iterable[int] | None, subjects: Iterable[str] | None) -> dict[str, Any]:
    """Returns the parameters that say which tasks a verb is about."""
    found = None if ids is None else IdArray(validate.ids(ids))
    named = None
    if subjects is not None:
        if isinstance(subjects, str):
            subjects = [subjects]
        named = [validate.text(one, "subject", validate.MAX_SUBJECT) for one in subjects]
    return {"queue": queue, "ids": found, "subjects": named}


def check_filters(**given: str | None) -> dict[str, str | None]:
    """Checks the texts that select tasks; each may be None. An empty text is refused, because it would select all
    tasks."""
    most = {"kind": validate.MAX_KIND, "subject": validate.MAX_SUBJECT}
    return {
        name: None if value is None else validate.text(value, name, most.get(name, 8192))
        for name, value in given.items()
    }


def check_state(value: object) -> str | None:
    """Checks the name of a state."""
    if value is not None and value not in GAUGES:
        raise ValidationError(f"state: {shown(value)} is not one of {', '.join(GAUGES)}", field="state")
    return None if value is None else str(value)


# These subqueries find the tasks in a state by an index: a hundred dead tasks among ten million waiting ones are a few
# pages. A small queue is read by its own indexes. The first tasks of a large queue are soon found in the order of ids.
FEW_TASKS = 20_000
SIZE = "select waiting + planned + pending + active + done + dead + cancelled from penstock.status(%s)"
PLACES = (
    "select p.id from penstock.queue as q cross join lateral penstock.places_of(q.id) as p where q.name = %(queue)s"
)
FOUND_BY = {
    "planned": "select a.task_id from penstock.agenda as a join penstock.queue as q on q.id = a.queue_id"
    " where q.name = %(queue)s and not a.pending",
    "waiting": "select t.id from penstock.task as t join penstock.queue as q on q.id = t.queue_id"
    " where q.name = %(queue)s and t.waits_for > 0 and t.ended is null",
    "active": "select h.id from penstock.lease as l join penstock.queue as q on q.id = l.queue_id"
    " cross join lateral pg_catalog.unnest(l.ids) as h(id) where q.name = %(queue)s",
    **dict.fromkeys(
        ("done", "dead", "cancelled"),
        "select t.id from penstock.task as t join penstock.queue as q on q.id = t.queue_id"
        " where q.name = %(queue)s and t.ended = %(state)s",
    ),
}
LIST = """
    select id, queue, kind, subject, state, priority, due, attempts, iterations, created, last_iteration, ended_at,
           reason, error_class, error, payload::text, key, meta::text, expires
    from penstock.tasks
    where queue = %(queue)s
      and (%(id)s::bigint is null or id = %(id)s)
      and (%(state)s::text is null or state = %(state)s)
      and (%(kind)s::text is null or kind = %(kind)s)
      and (%(subject)s::text is null or subject = %(subject)s)
      and (%(error)s::text is null or penstock.mentions(error_class, error, reason, %(error)s))
      and (%(after)s::bigint is null or id > %(after)s)
      and {found}
    order by id
    limit %(limit)s
"""


def list_tasks(state: str | None, tasks: int, *, named: bool) -> bytes:
    """Returns the statement that lists tasks of a queue with so many tasks. `named` means that an id or a subject is
    given, which have indexes."""
    if state in FOUND_BY:
        found = f"id in ({FOUND_BY[state]})"
    elif named or tasks > FEW_TASKS:
        found = "true"
    else:
        found = f"id = any(array({PLACES}))"
    return LIST.format(found=found).encode()


FIND = """
    select t.id, t.queue, t.kind, t.subject, t.state, t.priority, t.due, coalesce(t.attempts, l.attempts), t.iterations,
           t.created, t.last_iteration, t.ended_at, t.reason, t.error_class, t.error,
           t.payload::text, t.key, t.meta::text, t.expires, l.worker, l.claimed_at, l.until
    from penstock.tasks as t
    left join lateral (
        select h.worker, h.claimed_at, h.until, coalesce(h.attempts[o.n], 0) as attempts
        from penstock.lease as h cross join lateral pg_catalog.unnest(h.ids) with ordinality as o(id, n)
        where t.state = 'active' and o.id = t.id and pg_catalog.get_bit(h.open, o.n::int - 1) = 1
    ) as l on true
    where t.id = %s
"""
FIND_REMOVED = """
    select task_id, queue, kind, subject, state, null, null, attempts, iterations, created, last_iteration, ended_at,
           null, error_class, error, null, null, null, null, worker, claimed_at, null
    from penstock.find_removed(%s)
"""


def read_task(row: tuple[Any, ...] | None, id_: int, *, removed: bool) -> TaskDetails:
    """Reads the answer of FIND or FIND_REMOVED, and raises NotFound if there is none."""
    if row is None:
        raise NotFound(
            f"id: there is no task {id_}",
            hint="Nor does history know it; `penstock retention` tells how long history is kept.",
        )
    *task, worker, claimed_at, until = row
    return TaskDetails(read_info(task), worker, claimed_at, until, removed)


def read_tasks(rows: list[tuple[Any, ...]]) -> list[TaskInfo]:
    """Reads the answer of LIST."""
    return [read_info(row) for row in rows]


def read_info(row: Sequence[Any]) -> TaskInfo:
    """Reads one task as LIST and FIND return it."""
    *task, payload, key, meta, expires = row
    payload, meta = (None if one is None else validate.decode_text(one) for one in (payload, meta))
    return TaskInfo._make([*task, payload, key, meta, expires])


ATTEMPTS = """
    select queue, attempt, iteration, worker, due, claimed_at, finished_at, lease_until, outcome, error_class, error
    from penstock.attempts(%s, %s, %s)
"""


def attempts_parameters(id_: int, queue: str | None, limit: int) -> tuple[Any, ...]:
    """Returns the parameters of ATTEMPTS."""
    return (validate.ids([id_])[0], queue, validate.whole(limit, "limit", 1, MAX_TASKS))


def read_attempts(rows: list[tuple[Any, ...]]) -> list[Attempt]:
    """Reads the answer of ATTEMPTS."""
    return [Attempt(*row) for row in rows]
