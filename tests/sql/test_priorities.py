"""Priorities from -100 to 100: the order of claims, the bounds where they start to look, and ageing by a step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import Connection

from conftest import Clock
from penstock import NewTask, Penstock, Queue, ValidationError
from shell import penstock

WATERMARK = "select priorities, cardinality(first_due) from penstock.watermark"


def squeeze(clock: Clock, sql: Connection, times: int = 1) -> None:
    for _ in range(times):
        clock.advance(1.1)
        sql.execute("select penstock._squeeze(id) from penstock.queue")


def ranges(sql: Connection) -> list[int]:
    (priorities, bounds) = sql.execute(WATERMARK).fetchone() or ([], 0)
    assert len(priorities) == bounds
    assert priorities == sorted(set(priorities))
    return list(priorities)


# --- the order --------------------------------------------------------------------------------------------------------


def test_smaller_priorities_run_first(queue: Queue) -> None:
    order = [100, -100, 5, 0, 99, -1, 6, 4, -99]
    queue.push_many([NewTask({"n": n}, priority=n) for n in order])
    queue.push({"n": 7}, priority=7)
    assert [task.payload["n"] for task in queue.claim(5).tasks] == sorted(order)[:5]
    assert [task.priority for task in queue.claim(9).tasks] == [5, 6, 7, 99, 100]


@pytest.mark.parametrize("looks", [0, 1, 5])
def test_every_priority_is_found_however_often_bounds_moved(
    looks: int, app: Penstock, queue: Queue, clock: Clock, sql: Connection
) -> None:
    given = [-100, -50, -1, 0, 4, 5, 6, 50, 100]
    queue.push_many([NewTask({}, priority=n) for n in given])
    squeeze(clock, sql, looks)
    queue.push_many([NewTask({}, priority=n) for n in (-101 + 2, 3, 99)])
    assert queue.status().oldest_pending_age == pytest.approx(1.1 * looks)
    (found,) = sql.execute("select waiting from penstock.find_work('{work}')").fetchone() or ()
    assert found == ["work"]
    last = queue.tasks(state="pending")[8]
    assert queue.why(last.id).facts["before"] == 11
    assert [task.priority for task in queue.claim(20).tasks] == sorted([*given, -99, 3, 99])
    assert app.verify().ok


def test_only_the_priorities_that_are_used_have_a_bound(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([NewTask({})] * 3)
    squeeze(clock, sql, 3)
    assert ranges(sql) == [-32768, 5, 6], "a queue of one priority has one bound, and looks before and after it"
    queue.push_many([NewTask({}, priority=n) for n in (-100, 6, 7)])
    squeeze(clock, sql, 3)
    assert ranges(sql) == [-32768, -100, -99, 5, 6, 7, 8]
    queue.claim(9)
    squeeze(clock, sql, 3)
    assert ranges(sql) == [-32768, -100, -99, 5, 6, 7, 8], "they stay, because dead rows do"
    queue.push(priority=-100)
    assert len(queue.claim()) == 1


def test_an_early_task_of_each_priority_is_found(queue: Queue, clock: Clock, sql: Connection) -> None:
    """One that starts to wait with a due in the past, before the bound of its priority."""
    for priority in (5, -7):
        queue.push(priority=priority)
    squeeze(clock, sql, 5)
    queue.claim(9)
    for priority in (5, -7, 33):
        queue.push(priority=priority, due=clock.now() - timedelta(hours=1))
    squeeze(clock, sql, 1)
    assert [task.priority for task in queue.claim(9).tasks] == [-7, 5, 33]


# --- ageing -----------------------------------------------------------------------------------------------------------


def test_a_step_bounds_how_long_a_task_is_overtaken(queue: Queue, clock: Clock) -> None:
    queue.set(priority_step="30s")
    queue.push({"n": "late"}, priority=7)
    for n in range(4):
        clock.advance(20)
        queue.push({"n": n}, priority=5)
    # Two steps are a minute: the tasks of the first minute come first.
    assert [task.payload["n"] for task in queue.claim(9).tasks] == [0, 1, "late", 2, 3]
    queue.set(priority_step=None)
    assert queue.settings().priority_step is None


def test_a_change_of_the_step_takes_effect_at_once(queue: Queue, clock: Clock) -> None:
    slow, fast = queue.push(priority=6), None
    clock.advance(10)
    fast = queue.push(priority=5)
    queue.set(priority_step="11s")
    assert queue.why(slow.id).facts["before"] == 1
    queue.set(priority_step="9s")
    assert queue.why(slow.id).facts["before"] == 0
    assert queue.claim().ids == [slow.id]
    assert queue.claim().ids == [fast.id]


PUSHES = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 9)), min_size=1, max_size=25)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pushes=PUSHES, step=st.integers(1, 5), limit=st.integers(1, 7), looks=st.integers(0, 2))
def test_claims_are_in_the_order_of_due_and_steps(
    queue: Queue, clock: Clock, sql: Connection, pushes: list[tuple[int, int]], step: int, limit: int, looks: int
) -> None:
    queue.purge("pending")
    queue.set(priority_step=step, keep_done=None)
    clock.freeze()
    start = clock.now() - timedelta(seconds=30)
    dues = [start + timedelta(seconds=second) for _, second in pushes]
    ids = [queue.push(priority=priority, due=due).id for (priority, _), due in zip(pushes, dues, strict=True)]
    sql.execute("select penstock._promote(id) from penstock.queue")
    # A priority that has no bound of its own yet is read in its own order, so a full order needs them.
    squeeze(clock, sql, 8)
    found: list[int] = []
    while claim := queue.claim(limit):
        found += claim.ids
        queue.settle(claim)
        squeeze(clock, sql, looks)
    rank = {
        id_: (due + priority * timedelta(seconds=step), id_)
        for id_, due, (priority, _) in zip(ids, dues, pushes, strict=True)
    }
    assert found == sorted(ids, key=rank.__getitem__)


def test_a_claim_looks_further_than_what_others_hold(queue: Queue, sql: Connection, direct_dsn: str) -> None:
    queue.set(priority_step="1s")
    queue.push_many([NewTask({}, priority=n % 3) for n in range(60)])
    with psycopg.connect(direct_dsn) as other:
        held = other.execute("select task_id from penstock.agenda order by task_id limit 50 for update").fetchall()
        found = queue.claim(5)
        assert len(found) == 5
        assert not {id_ for (id_,) in held}.intersection(found.ids)
    assert len(queue.claim(60)) == 55


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [-101, 101, 5.0, True, "5", None])
def test_a_priority_out_of_range_is_refused(priority: Any, app: Penstock, queue: Queue, dsn: str) -> None:
    said = "priority: .* is not a whole number from -100 to 100"
    for call in (
        lambda: queue.push(priority=priority),
        lambda: queue.push_many([NewTask({}, priority=priority)]),
        lambda: queue.reprioritise(priority, [1]),
        lambda: app.task(queue="work", priority=priority)(lambda: None),
        lambda: app.set_schedule("s", "0 * * * *", queue="work", priority=priority),
    ):
        with pytest.raises(ValidationError, match=said):
            call()


def test_sql_refuses_it_too(queue: Queue, sql: Connection) -> None:
    said = "priority: (-101|101) is not between -100 and 100"
    for call in (
        "select penstock.push('work', '{}', p_priority => 101::smallint)",
        "select penstock.reprioritise('work', (-101)::smallint, '{1}')",
        "select penstock.set_schedule('s', 'work', '0 * * * *', p_priority => 101::smallint)",
        "insert into penstock.task (queue_id, priority) select id, -101 from penstock.queue",
    ):
        with pytest.raises(psycopg.Error, match=said):
            sql.execute(call.encode())


@pytest.mark.parametrize("step", ["0s", "-1s", "soon", "366d"])
def test_a_bad_step_is_refused(step: str, app: Penstock, queue: Queue, sql: Connection, dsn: str) -> None:
    with pytest.raises(ValidationError, match="priority_step: "):
        queue.set(priority_step=step)
    with pytest.raises(ValidationError, match="priority_step: "):
        app.create_queue("other", priority_step=step)
    assert penstock("queues", "set", "work", "--priority-step", step, dsn=dsn).code == 2


def test_the_shell_sets_it(queue: Queue, dsn: str) -> None:
    assert penstock("queues", "set", "work", "--priority-step", "30s", dsn=dsn).code == 0
    assert penstock("queues", "show", "work", "--json", dsn=dsn).json["priority_step"] == 30.0
    assert penstock("queues", "set", "work", "--priority-step", "none", dsn=dsn).code == 0
    assert queue.settings().priority_step is None
    assert penstock("queues", "create", "aged", "--priority-step", "1m", dsn=dsn).code == 0
