"""A small queue beside a large one: commands for the small queue do not read the documents of the large one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Connection

from penstock import NewTask, Outcome, Penstock, Queue
from penstock.client.statements import tasks

OTHERS = 50_000
READ = """
    select seq_tup_read + coalesce(idx_tup_fetch, 0), relname
    from pg_stat_xact_user_tables where schemaname = 'penstock' and relname in ('task', 'agenda')
"""


@pytest.fixture
def small(app: Penstock, sql: Connection) -> Queue:
    """Ten tasks: pending, planned, active, dead and done ones."""
    app.create_queue("large")
    sql.execute(
        "insert into penstock.task (queue_id) select q.id from penstock.queue as q, generate_series(1, %s)"
        " where q.name = 'large'",
        (OTHERS,),
    )
    queue = app.create_queue("small", keep_done="1d")
    queue.push_many([NewTask({"n": n}) for n in range(8)])
    claim = queue.claim(5)
    first, second, third, *_ = claim.ids
    queue.settle(claim, {first: Outcome.done(), second: Outcome.dead("x"), third: Outcome.failed("x")})
    queue.push_many([{"n": 8}, {"n": 9}])
    sql.execute("vacuum analyze penstock.task, penstock.agenda, penstock.lease, penstock.queue")
    return queue


@pytest.fixture
def rows_read(sql: Connection) -> Callable[[str, Any], int]:
    """Returns how many rows of documents and of the agenda a statement reads."""

    def read(statement: str, parameters: Any) -> int:
        with sql.transaction():
            sql.execute(statement.encode(), parameters).fetchall()
            return max(int(rows) for rows, _ in sql.execute(READ))

    return read


@pytest.mark.sample(3)
@pytest.mark.parametrize("state", [None, "pending", "planned", "active", "dead"])
def test_its_tasks_are_listed_by_its_own_indexes(
    small: Queue, rows_read: Callable[[str, Any], int], state: str | None
) -> None:
    which = dict.fromkeys(("id", "kind", "subject", "error", "after"))
    statement = tasks.list_tasks(state, sum(gauges(small)), named=False).decode()
    assert rows_read(statement, {**which, "queue": "small", "state": state, "limit": 100}) < 200


def gauges(queue: Queue) -> list[int]:
    now = queue.status()
    return [now.planned, now.pending, now.active, now.done, now.dead, now.cancelled]


def test_all_of_its_tasks_are_listed(small: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    found = small.tasks()
    assert [one.payload["n"] for one in found if one.payload is not None] == [*range(10)]
    assert sorted(one.state for one in found) == sorted(["done", "dead", "planned", *["active"] * 2, *["pending"] * 5])
    assert small.tasks(after=found[6].id) == found[7:]
    assert [small.task(one.id) for one in found] == found
    monkeypatch.setattr(tasks, "FEW_TASKS", 0)
    assert small.tasks() == found


def test_its_counters_are_verified_by_its_own_indexes(
    app: Penstock, small: Queue, rows_read: Callable[[str, Any], int]
) -> None:
    assert rows_read("select * from penstock._recount(%s)", ("small",)) < 200
    assert small.verify().ok
    assert app.verify().ok


@pytest.mark.parametrize("queue", ["small", None])
def test_a_document_in_no_place_is_found(app: Penstock, small: Queue, sql: Connection, queue: str | None) -> None:
    """The totals of a queue show that a document is neither in the agenda nor leased; only then all documents are
    read."""
    sql.execute(
        "delete from penstock.agenda where task_id in ("
        " select a.task_id from penstock.agenda as a join penstock.queue as q on q.id = a.queue_id"
        " where q.name = 'small' and a.pending limit 2)"
    )
    verify = app.verify if queue is None else small.verify
    found = {(one.queue, one.what, one.found) for one in verify().findings}
    assert ("small", "orphans: live, but neither waiting nor leased", 2) in found
    app.repair(queue)
    assert verify().ok
