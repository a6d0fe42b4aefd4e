"""Debounce and throttle: a task that waits until its subject is not pushed for a while, and pushes that are skipped for
a while after the first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import AsyncPenstock, Json, NewTask, Outcome, Penstock, PushReport, Queue, Unavailable, ValidationError
from shell import penstock

TWO, TEN = timedelta(seconds=2), timedelta(seconds=10)


def debounced(queue: Queue, payload: Json | None = None, **options: Any) -> Any:
    return queue.push(payload, subject="s", on_conflict="update", debounce=TWO, **options)


# --- debounce ---------------------------------------------------------------------------------------------------------


def test_a_task_is_due_when_its_subject_was_not_pushed_for_a_while(queue: Queue, clock: Clock) -> None:
    assert debounced(queue, {"n": 0}).state == "planned"
    for n in range(1, 9):
        clock.advance(1.9)
        pushed = debounced(queue, {"n": n})
        assert (pushed.result, pushed.state) == ("updated", "planned")
        assert queue.task(pushed.id).due == clock.now() + TWO
        assert not queue.claim()
    clock.advance(2)
    assert [task.payload for task in queue.claim().tasks] == [{"n": 8}]


def test_it_is_due_so_long_after_the_first_push_at_the_latest(queue: Queue, clock: Clock) -> None:
    first = clock.now()
    dues = []
    for _ in range(6):
        pushed = debounced(queue, at_most="10s")
        dues.append(queue.task(pushed.id).due)
        clock.advance(1.9)
    assert dues[:5] == [first + n * timedelta(seconds=1.9) + TWO for n in range(5)]
    assert dues[5] == first + TEN
    clock.advance(1)
    debounced(queue, at_most="10s")
    assert queue.task(pushed.id).due == clock.now(), "the ten seconds are over: it is due at once"


def test_a_push_while_it_runs_begins_anew(queue: Queue, clock: Clock) -> None:
    pushed = debounced(queue, at_most="10s")
    clock.advance(2)
    held = queue.claim()
    clock.advance(9)
    assert debounced(queue, at_most="10s").result == "renewed"
    queue.settle(held)
    assert queue.task(pushed.id).due == clock.now() + TWO
    clock.advance(1)
    debounced(queue, at_most="2.5s")  # counted from the end of that run
    assert queue.task(pushed.id).due == clock.now() + timedelta(seconds=1.5)


def test_a_push_of_an_ended_task_begins_anew(queue: Queue, clock: Clock) -> None:
    pushed = debounced(queue, at_most="10s")
    clock.advance(60)
    queue.settle(queue.claim(), {pushed.id: Outcome.dead("no")})
    clock.advance(60)
    assert debounced(queue, at_most="10s").result == "reopened"
    assert queue.task(pushed.id).due == clock.now() + TWO


def test_a_pending_task_waits_again(queue: Queue, clock: Clock) -> None:
    pushed = queue.push(subject="s")
    debounced(queue)
    assert queue.task(pushed.id).state == "planned"


def test_a_trigger_of_the_user_can_debounce(queue: Queue, clock: Clock, sql: Connection) -> None:
    sql.execute("""
        create table page (id int primary key, body text);
        create function note_page() returns trigger language plpgsql as $$
        begin
            perform penstock.push('work', jsonb_build_object('page', new.id), p_subject => 'page:' || new.id,
                                  p_on_conflict => 'update', p_debounce => '2 s', p_at_most => '10 s');
            return new;
        end $$;
        create trigger note_page after insert or update on page for each row execute function note_page();
        insert into page select n, '' from generate_series(1, 3) as n;
        update page set body = 'new' where id < 3;
    """)
    assert sorted(str(task.subject) for task in queue.tasks()) == ["page:1", "page:2", "page:3"]
    clock.advance(2)
    assert len(queue.claim(9)) == 3


# --- throttle ---------------------------------------------------------------------------------------------------------


def throttled(queue: Queue, **options: Any) -> Any:
    return queue.push(subject="s", throttle="1h", **options)


def test_the_first_runs_and_others_within_the_hour_are_skipped(queue: Queue, clock: Clock) -> None:
    first = throttled(queue)
    assert (first.result, first.state) == ("created", "pending")
    again = throttled(queue)
    assert (again.id, again.result, again.state) == (first.id, "skipped", "pending")
    queue.settle(queue.claim())
    clock.advance(3599)
    gone = throttled(queue)
    assert (gone.id, gone.result, gone.state) == (first.id, "skipped", "removed")
    clock.advance(1)
    second = throttled(queue)
    assert second.result == "created"
    assert second.id != first.id
    assert queue.push(subject="s").result == "skipped", "a push without a throttle goes by the task alone"
    assert queue.status().totals["pushed"] == 2


def test_a_throttle_with_update(queue: Queue, clock: Clock) -> None:
    first = throttled(queue, on_conflict="update")
    assert throttled(queue, on_conflict="update").result == "skipped"
    clock.advance(3600)
    assert throttled(queue, on_conflict="update").result == "updated"
    assert queue.claim(9).ids == [first.id]


def test_many_at_once(queue: Queue, clock: Clock) -> None:
    tasks = [NewTask({"n": n}, subject=f"s{n % 3}") for n in range(5)]
    assert queue.push_many(tasks, throttle="1h").counts == Counter(
        created=3, skipped=2, updated=0, renewed=0, reopened=0, superseded=0
    )
    assert [task.payload["n"] for task in queue.claim(9).tasks] == [0, 1, 2], "the first of a subject runs"
    assert queue.push_many(tasks, throttle="1h").skipped == 5
    assert queue.upsert_many(tasks).superseded == 2
    report = queue.push_many(tasks, on_conflict="update", debounce="2s")
    assert (report.renewed, report.superseded) == (3, 2)


def test_a_throttle_that_is_rolled_back_never_was(queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        throttled(queue, connection=connection)
        connection.rollback()
    with psycopg.connect(dsn) as connection:
        assert throttled(queue, connection=connection).result == "created"
    assert throttled(queue).result == "skipped"


def test_upkeep_and_a_drop_forget_throttles(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    other = app.create_queue("other")
    throttled(queue)
    throttled(other)
    app.upkeep()
    assert sql.execute("select count(*) from penstock.throttle").fetchone() == (2,)
    other.drop(force=True)
    assert sql.execute("select count(*) from penstock.throttle").fetchone() == (1,)
    clock.advance(3601)
    assert app.upkeep()["throttles dropped"] == 1


# --- every way to push ------------------------------------------------------------------------------------------------


def push_async(app: Penstock, queue: Queue, dsn: str, options: dict[str, Any]) -> object:
    async def main() -> object:
        async with AsyncPenstock(dsn) as client:
            return await client.queue("work").push(subject="s", **options)

    return asyncio.run(main())


def push_borrowed(app: Penstock, queue: Queue, dsn: str, options: dict[str, Any]) -> object:
    with psycopg.connect(dsn) as connection:
        return queue.push_many([NewTask({}, subject="s")], connection=connection, **options)


def push_handler(app: Penstock, queue: Queue, dsn: str, options: dict[str, Any]) -> object:
    @app.task(queue="work", kind="default")
    def step() -> None: ...

    return step.push(subject="s", **options)


def push_handler_many(app: Penstock, queue: Queue, dsn: str, options: dict[str, Any]) -> object:
    @app.task(queue="work", kind="default")
    def step() -> None: ...

    return step.push_many([NewTask({}, subject="s")], **options)


def push_by_shell(app: Penstock, queue: Queue, dsn: str, options: dict[str, Any]) -> object:
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    ran = penstock("push", "work", *words, "--json", dsn=dsn, stdin='{"payload": {}, "subject": "s"}')
    assert ran.code == 0
    return next(word for word, count in ran.json.items() if count)


@pytest.mark.parametrize(
    "push",
    [
        lambda _app, queue, _dsn, options: queue.push(subject="s", **options),
        lambda _app, queue, _dsn, options: queue.push_many([NewTask({}, subject="s")], **options),
        push_async,
        push_borrowed,
        push_handler,
        push_handler_many,
        push_by_shell,
    ],
)
def test_every_push_has_both(
    push: Callable[[Penstock, Queue, str, dict[str, Any]], object], app: Penstock, queue: Queue, clock: Clock, dsn: str
) -> None:
    def result(options: dict[str, Any]) -> str:
        found = push(app, queue, dsn, options)
        if isinstance(found, PushReport):
            return next(word for word, count in found.counts.items() if count)
        return found if isinstance(found, str) else str(found.result)  # type: ignore[attr-defined]

    assert [result({"throttle": "1h"}) for _ in range(2)] == ["created", "skipped"]
    assert result({"on_conflict": "update", "debounce": "2s", "at_most": "10s"}) == "updated"
    (task,) = queue.tasks()
    assert task.due == clock.now() + TWO


# --- bad input --------------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"debounce": "2s"}, "debounce: "),
    ({"debounce": "0s", "on_conflict": "update"}, "debounce: "),
    ({"debounce": "soon", "on_conflict": "update"}, "debounce: "),
    ({"debounce": "2s", "on_conflict": "update", "throttle": "1h"}, "throttle: there is a debounce too"),
    ({"at_most": "2s"}, "at_most: it limits a debounce, and there is none"),
    ({"debounce": "2s", "at_most": "1s", "on_conflict": "update"}, "at_most: .* is less than the debounce"),
    ({"throttle": "-1s"}, "throttle: "),
    ({"throttle": "11y"}, "throttle: "),
    ({"throttle": "1h", "on_conflict": "error"}, "throttle: it skips tasks"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_a_bad_pace_is_refused(options: dict[str, Any], said: str, queue: Queue) -> None:
    with pytest.raises(ValidationError, match=said):
        queue.push(subject="s", **options)
    with pytest.raises(ValidationError, match=said):
        queue.push_many([NewTask({}, subject="s")], **options)


@pytest.mark.parametrize("options", [{"debounce": "2s", "on_conflict": "update"}, {"throttle": "1h"}])
def test_a_pace_needs_a_subject(options: dict[str, Any], queue: Queue, dsn: str) -> None:
    with pytest.raises(ValidationError, match="has no subject"):
        queue.push(**options)
    for tasks in ([NewTask({})], [NewTask({}, subject="s"), NewTask({})]):
        with pytest.raises(ValidationError, match="subject: a task with a debounce or a throttle needs one"):
            queue.push_many(tasks, **options)
        with (
            psycopg.connect(dsn) as own,
            pytest.raises(ValidationError, match="subject: a task with a debounce or a throttle needs one"),
        ):
            queue.push_many(tasks, connection=own, **options)
    assert queue.status().totals["pushed"] == 0


def test_a_debounce_is_the_due(queue: Queue, clock: Clock) -> None:
    with pytest.raises(ValidationError, match="due: there is a debounce too"):
        debounced(queue, due=clock.now())
    with pytest.raises(ValidationError, match="due: there is a debounce too"):
        queue.push_many([NewTask({}, subject="s", delay="1s")], on_conflict="update", debounce="2s")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("p_debounce => '2 s'", "debounce: it needs on_conflict update, not skip"),
        ("p_debounce => '-120 mons 3651 days', p_on_conflict => 'update'", "debounce: "),
        ("p_throttle => '0'", "throttle: 00:00:00 is not more than 0"),
        ("p_throttle => '1 h', p_on_conflict => 'error'", "throttle: it skips tasks"),
        ("p_at_most => '1 h'", "at_most: it limits a debounce"),
        ("p_throttle => '1 h', p_subject => null", "subject: "),
    ],
)
def test_sql_refuses_it_too(arguments: str, said: str, queue: Queue, sql: Connection) -> None:
    subject = "" if "p_subject" in arguments else ", p_subject => 's'"
    with pytest.raises(psycopg.Error, match=said):
        sql.execute(f"select penstock.push('work', '{{}}'{subject}, {arguments})".encode())


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_no_push_is_lost_or_doubled(seconds: float, queue: Queue, dsn: str, sql: Connection) -> None:
    """Debounced and throttled pushes of the same few subjects against claims and settles of several workers."""
    queue.set(max_attempts=None)
    over, lock = threading.Event(), threading.Lock()
    told: dict[str, int] = {}  # the last version that a push of a subject reported, by subject
    ran: dict[str, int] = {}
    created, throttled_runs = list[int](), Counter[int]()
    errors = list[BaseException]()
    versions = iter(range(1, 10**9))

    def repeat(work: Callable[[Queue], None]) -> Callable[[], None]:
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

    def pusher(at: int) -> Callable[[], None]:
        """Debounced pushes of subjects that only this thread pushes: their versions are in order."""

        def push(own: Queue) -> None:
            names = [f"d{at}-{n}" for n in range(5)]
            version = next(versions)
            tasks = [NewTask({"v": version}, subject=name) for name in names]
            own.push_many(tasks, on_conflict="update", debounce="5ms", at_most="20ms")
            with lock:
                told.update(dict.fromkeys(names, version))

        return repeat(push)

    def throttle(own: Queue) -> None:
        for n in range(10):
            pushed = own.push({}, subject=f"t{n}", throttle="300ms")
            if pushed.result == "created":
                with lock:
                    created.append(pushed.id)

    def work(own: Queue) -> None:
        held = own.claim(20)
        with lock:
            for task in held.tasks:
                assert task.subject is not None
                if task.subject.startswith("d"):
                    ran[task.subject] = max(ran.get(task.subject, 0), task.payload["v"])
                else:
                    throttled_runs[task.id] += 1
        own.settle(held)

    jobs = [pusher(0), pusher(1), repeat(throttle), repeat(throttle), repeat(work), repeat(work)]
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    assert not errors
    deadline = time.monotonic() + 30
    with Penstock(dsn) as client:
        while queue.status().queued and time.monotonic() < deadline:
            work(client.queue("work"))
    assert told
    assert {name: ran.get(name, 0) >= version for name, version in told.items()} == dict.fromkeys(told, True)
    assert throttled_runs == Counter(created), "each push that was not skipped ran once"
    per_subject = Counter(
        subject for (subject,) in sql.execute("select subject from penstock.history where subject like 't%'")
    )
    assert max(per_subject.values()) <= seconds / 0.3 + 3
