"""Expiry before start: a task that has not started by a moment is cancelled with the reason `expired`, by whichever
claim, promotion or upkeep sees it first, and never started."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import AsyncPenstock, Context, NewTask, Outcome, Penstock, Queue, Unavailable, ValidationError
from shell import penstock

END = timedelta(minutes=10)


def end_of(sql: Connection, id_: int) -> tuple[Any, ...]:
    row = sql.execute("select state, reason from penstock.tasks where id = %s", (id_,)).fetchone()
    assert row is not None
    return row


def history(sql: Connection) -> list[tuple[Any, ...]]:
    return sql.execute("select outcome, attempt, error_class, worker from penstock.history order by id").fetchall()


# --- where the moment comes from --------------------------------------------------------------------------------------


def push_async(app: Penstock, queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            await client.queue("work").push(expires=END)

    asyncio.run(main())


def push_borrowed(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        queue.push(expires="10m", connection=connection)


def push_handler(app: Penstock, queue: Queue, dsn: str) -> None:
    @app.task(queue="work", expires="10m")
    def step() -> None: ...

    step.push()


def push_handler_many(app: Penstock, queue: Queue, dsn: str) -> None:
    @app.task(queue="work", expires="5h")
    def step() -> None: ...

    step.push_many([NewTask({}, expires="10m")])


def push_lines(app: Penstock, queue: Queue, dsn: str) -> None:
    line = '{"payload": {}, "expires": "10m"}'
    assert penstock("push", "work", "--expires", "5m", dsn=dsn, stdin=line).code == 0


def push_in_sql(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("select penstock.push('work', '{}', p_expires => now() + interval '10 minutes')")


def push_by_shell(app: Penstock, queue: Queue, dsn: str) -> None:
    assert penstock("push", "work", "--expires", "10m", dsn=dsn, stdin='{"payload": {}}').code == 0


WAYS: dict[str, Callable[[Penstock, Queue, str], object]] = {
    "push": lambda _app, queue, _dsn: queue.push(expires="10m"),
    "a moment": lambda _app, queue, _dsn: queue.push(expires=datetime.now(UTC) + END),
    "async": push_async,
    "in a transaction of the caller": push_borrowed,
    "push_many": lambda _app, queue, _dsn: queue.push_many([NewTask({}, expires=600)]),
    "push_many with subjects": lambda _app, queue, _dsn: queue.push_many([NewTask({}, subject="s", expires="10m")]),
    "upsert_many": lambda _app, queue, _dsn: queue.upsert_many([NewTask({}, subject="s", expires="10m")]),
    "a handler": push_handler,
    "tasks of a handler": push_handler_many,
    "the shell": push_by_shell,
    "a line": push_lines,
    "SQL": push_in_sql,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_push_can_say_when_its_task_expires(way: str, app: Penstock, queue: Queue, dsn: str) -> None:
    before = datetime.now(UTC)
    WAYS[way](app, queue, dsn)
    (task,) = queue.tasks()
    assert task.expires is not None
    assert before + END <= task.expires <= datetime.now(UTC) + END


def test_a_length_counts_from_the_due(queue: Queue) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    queue.push(due=due, expires="10m")
    queue.push_many([NewTask({}, due=due, expires="10m")])
    assert [task.expires for task in queue.tasks()] == [due + END] * 2
    before = datetime.now(UTC)
    queue.push(delay="1h", expires="10m")
    queue.push_many([NewTask({}, delay="1h", expires="10m")])
    for task in queue.tasks()[2:]:
        assert task.expires is not None
        assert before + timedelta(hours=1) + END <= task.expires < before + timedelta(hours=1, minutes=2) + END


@pytest.mark.parametrize("expires", ["", "soon", "0s", "-1m", 0, True, [], datetime(2030, 1, 1), "11y", "2030-01-01"])  # noqa: DTZ001
def test_what_is_no_end_is_refused(expires: Any, queue: Queue) -> None:
    for push in (
        lambda: queue.push(expires=expires),
        lambda: queue.push_many([NewTask({}), NewTask({}, expires=expires)]),
    ):
        with pytest.raises(ValidationError, match="expires: "):
            push()
    assert queue.status().totals["pushed"] == 0


def test_an_end_before_the_due_is_refused(queue: Queue, sql: Connection) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    for expires in (due, due - timedelta(seconds=1)):
        with pytest.raises(ValidationError, match=r"expires: .* is not after the due"):
            queue.push(due=due, expires=expires)
        with pytest.raises(psycopg.Error, match=r"item 0: expires: .* is not after the due"):
            sql.execute("select penstock.push('work', '{}', p_due => %s, p_expires => %s)", (due, expires))
    with pytest.raises(ValidationError, match=r"expires: .* is not after the due"):
        queue.push(delay="1h", expires=datetime.now(UTC) + END)


# --- it ends ----------------------------------------------------------------------------------------------------------


def claim(queue: Queue, sql: Connection) -> None:
    assert not queue.claim()


def claim_from_a_hint(queue: Queue, sql: Connection) -> None:
    """The hint leaves out the look at what has expired: the claim itself meets the task."""
    statement = "select id from penstock.claim('work', 1, p_hint => penstock.at_place(0::smallint, '-infinity', 0))"
    assert sql.execute(statement).fetchall() == []


def upkeep(queue: Queue, sql: Connection) -> None:
    sql.execute("select penstock.upkeep_part('unstarted tasks ended')")


@pytest.mark.parametrize("see", [claim, claim_from_a_hint, upkeep])
def test_a_task_that_has_not_started_is_cancelled(
    see: Callable[[Queue, Connection], None], queue: Queue, clock: Clock, sql: Connection
) -> None:
    pushed = queue.push(expires=clock.now() + END)
    clock.advance(600)
    see(queue, sql)
    assert end_of(sql, pushed.id) == ("cancelled", "expired")
    assert history(sql) == [("unstarted", 1, "Expired", "")]
    totals = queue.status().totals
    assert (totals["unstarted"], totals["cancelled"], totals["expired"]) == (1, 1, 0)
    assert [(one.outcome, one.error_class) for one in queue.attempts(pushed.id)] == [("unstarted", "Expired")]


def test_it_may_start_until_that_moment(queue: Queue, clock: Clock) -> None:
    pushed = queue.push(expires=clock.now() + END)
    clock.advance(599.9)
    held = queue.claim()
    assert held.ids == [pushed.id]
    clock.advance(5)  # what runs has started in time
    assert not queue.claim()
    queue.settle(held)
    assert queue.status().totals["unstarted"] == 0


def test_a_planned_task_ends_instead_of_being_promoted(queue: Queue, clock: Clock, sql: Connection) -> None:
    pushed = queue.push(due=clock.now() + timedelta(hours=1), expires="1m")
    clock.advance(3600 + 60)
    sql.execute("select penstock._promote(q.id) from penstock.queue as q")
    assert end_of(sql, pushed.id) == ("cancelled", "expired")
    assert queue.status().queued == 0


def test_a_claim_gets_the_tasks_behind_those_that_have_expired(queue: Queue, clock: Clock, sql: Connection) -> None:
    late = 1200
    queue.push_many([NewTask({}, expires=clock.now() + END)] * late)
    sql.execute("select penstock._squeeze(id) from penstock.queue")
    good = [queue.push().id for _ in range(3)]
    clock.advance(600)
    hint = "penstock.at_place(0::smallint, '-infinity', 0)"
    found = sql.execute(f"select id from penstock.claim('work', 2, p_hint => {hint})".encode()).fetchall()
    assert [id_ for (id_,) in found] == good[:2]
    sql.execute("select penstock.upkeep_part('unstarted tasks ended')")
    assert queue.status().totals["unstarted"] == late
    assert queue.claim().ids == good[2:]


def test_it_expires_while_it_waits_to_be_tried_again(queue: Queue, clock: Clock, sql: Connection) -> None:
    pushed = queue.push(expires=clock.now() + END)
    queue.settle(queue.claim(), {pushed.id: Outcome.failed("no", delay="20m", error_class="Odd")})
    assert queue.why(pushed.id).text.endswith("Z; attempt 1 of 3 failed with Odd")
    assert "; it expires at " in queue.why(pushed.id).text
    clock.advance(1200)
    assert not queue.claim()
    assert end_of(sql, pushed.id) == ("cancelled", "expired")
    assert history(sql) == [("failed", 1, "Odd", ""), ("unstarted", 2, "Expired", "")]


def test_a_run_that_asks_for_another_one_has_started_in_time(queue: Queue, clock: Clock) -> None:
    pushed = queue.push(expires=clock.now() + END)
    queue.settle(queue.claim(), {pushed.id: Outcome.again(delay="20m")})
    clock.advance(1200)
    assert queue.claim().ids == [pushed.id]


def test_the_last_push_says_when_it_expires(queue: Queue, clock: Clock, sql: Connection) -> None:
    """Of a waiting, a running and an ended task."""
    for first in (clock.now() + END, None):
        pushed = queue.push(subject="s", on_conflict="update", expires=first)
    clock.advance(600)
    held = queue.claim()
    assert held.ids == [pushed.id]
    queue.push(subject="s", on_conflict="update", expires=clock.now() + END)
    queue.settle(held)
    clock.advance(600)
    assert not queue.claim()
    assert end_of(sql, pushed.id) == ("cancelled", "expired")
    again = queue.push(subject="s", on_conflict="update", expires=clock.now() + END)
    assert (again.id, again.result) == (pushed.id, "reopened")
    clock.advance(599)
    assert queue.claim().ids == [pushed.id]


def test_a_redriven_task_no_longer_expires(queue: Queue, clock: Clock) -> None:
    pushed = queue.push(expires=clock.now() + END)
    clock.advance(600)
    assert not queue.claim()
    assert queue.redrive([pushed.id]) == {pushed.id: "redriven"}
    assert queue.claim().ids == [pushed.id]


def test_why_says_so(queue: Queue, clock: Clock, sql: Connection) -> None:
    pushed = queue.push(expires=clock.now() + END)
    clock.advance(600)
    found = queue.why(pushed.id)
    assert (found.reason, found.facts["expires"]) == ("expired", clock.now())
    assert found.text.endswith("and is not started any more: the next claim or upkeep cancels it")
    queue.pause()
    assert queue.why(pushed.id).text.endswith("the next upkeep cancels it")
    upkeep(queue, sql)
    assert queue.why(pushed.id).text.endswith(": expired")
    queue.purge("cancelled")
    assert queue.why(pushed.id).text.endswith(": expired, and is removed")


def test_a_document_that_another_session_holds_is_left_for_later(
    queue: Queue, clock: Clock, sql: Connection, direct_dsn: str
) -> None:
    held, free = (queue.push(subject=name, expires=clock.now() + END).id for name in ("held", "free"))
    clock.advance(600)
    with psycopg.connect(direct_dsn) as other:
        other.execute("select from penstock.task where id = %s for update", (held,))
        assert not queue.claim(2)
        assert (end_of(sql, held)[0], end_of(sql, free)[0]) == ("pending", "cancelled")
    assert not queue.claim(2)
    assert end_of(sql, held) == ("cancelled", "expired")


# --- schedules --------------------------------------------------------------------------------------------------------


def test_the_task_of_a_schedule_expires_at_the_next_tick(app: Penstock, queue: Queue, clock: Clock) -> None:
    @app.schedule("0 * * * *", name="hourly", expires="next tick")
    @app.task(queue="work", key="tenant", expires="1m")
    def step(tenant: str = "a") -> None: ...

    app.set_schedule("half", "30 * * * *", queue="work", expires="10m", key="b")
    (new,) = app.registry.schedules_of("work")
    app.set_schedule(new.name, new.cron, queue="work", expires=new.expires, backfill="all")
    assert [(one.name, one.expires, one.until_next) for one in app.schedules()] == [
        ("half", END, False),
        ("hourly", None, True),
    ]
    clock.advance(2 * 3600)
    app.run_schedules()
    hour = timedelta(hours=1)
    for task in queue.tasks():
        assert task.subject is not None
        tick = datetime.fromisoformat(task.subject.partition("@")[2])
        assert task.expires == tick + (hour if task.subject.startswith("hourly") else END)
        assert task.key == (None if task.subject.startswith("hourly") else "b")
    assert sum(task.subject is not None and task.subject.startswith("hourly") for task in queue.tasks()) == 2


def test_a_schedule_with_an_odd_end_is_refused(app: Penstock, queue: Queue, sql: Connection, dsn: str) -> None:
    with pytest.raises(ValidationError, match="expires: 'next' is not a duration"):
        app.set_schedule("s", "0 * * * *", queue="work", expires="next")
    for arguments in ("p_expires => '0'", "p_expires => '1 h', p_until_next => true", "p_until_next => null"):
        with pytest.raises(psycopg.Error, match=r"expires: |until_next: "):
            sql.execute(f"select penstock.set_schedule('s', 'work', '0 * * * *', {arguments})".encode())
    command = ("schedules", "add", "s", "0 * * * *", "--queue", "work", "--key", "a", "--expires")
    assert penstock(*command, "never", dsn=dsn).code == 2
    assert penstock(*command, "next tick", "--json", dsn=dsn).json["until_next"] is True


# --- with many at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_no_task_starts_late_and_none_is_lost(seconds: float, app: Penstock, queue: Queue, dsn: str) -> None:
    """Claims of several workers against tasks that expire while they wait, and upserts that give them another end."""
    queue.set(max_attempts=None, keep_cancelled="1h")
    over, late, started = threading.Event(), list[str](), Counter[int]()
    numbers, errors = count(), list[BaseException]()

    def guarded(work: Callable[[Queue], None]) -> Callable[[], None]:
        def run() -> None:
            with Penstock(dsn) as client:
                while not over.is_set():
                    try:
                        work(client.queue("work"))
                    except Unavailable:
                        continue
                    except BaseException as error:
                        errors.append(error)
                        raise

        return run

    def push(own: Queue) -> None:
        own.push_many([NewTask({"n": next(numbers)}, expires=f"{n % 40 + 1}ms") for n in range(50)])
        own.upsert_many([NewTask({}, subject=f"s{n % 20}", expires=f"{n + 1}ms") for n in range(20)])

    def work(own: Queue) -> None:
        held = own.claim(30)
        with psycopg.connect(dsn) as sql:
            rows = sql.execute(
                "select t.id, l.claimed_at - t.expires from penstock.task as t, penstock.lease as l"
                " where l.token = %s and t.id = any(l.ids) and t.subject is null and t.expires <= l.claimed_at",
                (held.token,),
            ).fetchall()
        late.extend(str(row) for row in rows)
        started.update(task.id for task in held.tasks if task.subject is None)
        own.settle(held)

    threads = [threading.Thread(target=guarded(one)) for one in (push, push, work, work, work)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert not late
    time.sleep(0.05)
    while queue.claim(100):
        pytest.fail("a task that has expired was claimed")
    app.upkeep()
    status = queue.status()
    assert (status.queued, status.active) == (0, 0)
    assert max(started.values()) == 1
    assert status.totals["unstarted"] > 100
    assert len(started) > 100


def test_the_context_has_key_and_meta(app: Penstock, queue: Queue) -> None:
    seen = []

    @app.task(queue="work", key="customer")
    def step(customer: int, context: Context) -> None:
        seen.append((context.key, context.meta, context.task.key, context.task.meta))

    step.push(7, meta={"traceparent": "00-1"})
    step.push(8, key="other")
    queue.push({"customer": 9}, kind="step")
    app.drain_inline()
    assert seen == [
        ("7", {"traceparent": "00-1"}, "7", {"traceparent": "00-1"}),
        ("other", {}, "other", None),
        (None, {}, None, None),
    ]
