"""Options of a push: a delay, a subject whose task is dead, and JSON of any type in SQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Json, Jsonb

from penstock import AsyncPenstock, NewTask, Outcome, Penstock, PushReport, Queue, Task, ValidationError
from shell import penstock


@pytest.fixture
def due(queue: Queue) -> Iterator[Callable[[], float]]:
    """Returns the seconds from before the push until the only task is due."""
    before = datetime.now(UTC)

    def seconds() -> float:
        (task,) = queue.tasks(state="planned")
        assert task.due is not None
        return (task.due - before).total_seconds()

    yield seconds
    queue.purge("planned")


def in_an_hour(seconds: float) -> bool:
    return 3600 <= seconds < 3660


# --- delay ------------------------------------------------------------------------------------------------------------


def push_async(app: Penstock, queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            await client.queue("work").push(delay=timedelta(hours=1))

    asyncio.run(main())


def push_borrowed(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        queue.push(delay="1h", connection=connection)


def push_many_borrowed(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        queue.push_many([NewTask(delay="1h", subject="s")], connection=connection)


def push_handler(app: Penstock, queue: Queue, dsn: str) -> None:
    @app.task(queue="work")
    def step(n: int) -> None: ...

    step.push(7, delay="1h")


def push_handler_many(app: Penstock, queue: Queue, dsn: str) -> None:
    @app.task(queue="work")
    def step(n: int) -> None: ...

    step.push_many([NewTask({"n": 1}, delay="1h")])


def push_by_shell(app: Penstock, queue: Queue, dsn: str) -> None:
    assert penstock("push", "work", "--delay", "1h", dsn=dsn, stdin='{"payload": {}}').code == 0


def push_a_line(app: Penstock, queue: Queue, dsn: str) -> None:
    line = '{"payload": {}, "delay": "1h"}'
    assert penstock("push", "work", "--delay", "5m", dsn=dsn, stdin=line).code == 0


WAYS: dict[str, Callable[[Penstock, Queue, str], object]] = {
    "push": lambda _, queue, __: queue.push(delay="1h"),
    "push, seconds": lambda _, queue, __: queue.push(delay=3600),
    "async": push_async,
    "borrowed": push_borrowed,
    "push_many": lambda _, queue, __: queue.push_many([NewTask(delay="1h")]),
    "push_many, subject": lambda _, queue, __: queue.push_many([NewTask(delay="1h", subject="s")]),
    "upsert_many": lambda _, queue, __: queue.upsert_many([NewTask(delay="1h", subject="s")]),
    "push_many, borrowed": push_many_borrowed,
    "handler": push_handler,
    "handler, many": push_handler_many,
    "shell": push_by_shell,
    "shell, a line": push_a_line,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_delay_counts_from_the_push(
    app: Penstock, queue: Queue, dsn: str, due: Callable[[], float], way: str
) -> None:
    WAYS[way](app, queue, dsn)
    assert in_an_hour(due())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"delay": "1h", "due": datetime(2030, 1, 1, tzinfo=UTC)}, "delay: there is a due too"),
    ({"delay": "soon"}, "delay: 'soon' is not a duration"),
    ({"delay": -1}, "delay: -1 is not between"),
    ({"delay": "4000d"}, "delay: '4000d' is not between"),
    ({"delay": True}, "delay: True is not a duration"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("options", "message"), BAD)
def test_an_invalid_delay_is_refused(queue: Queue, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as single:
        queue.push(**options)
    assert single.value.message.startswith(message)
    with pytest.raises(ValidationError) as many:
        queue.push_many([{}, NewTask(**options)])
    assert many.value.message.startswith(f"item 1: {message}")
    assert queue.status().queued == 0


def test_some_with_a_due_some_with_a_delay_some_with_neither(queue: Queue) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    queue.push_many(
        [{"n": 0}, NewTask({"n": 1}, delay="1h"), NewTask({"n": 2}, due=moment), NewTask({"n": 3}, delay=0)]
    )
    dues = [task.due for task in queue.tasks()]
    now = datetime.now(UTC)
    assert dues[2] == moment
    assert dues[1] is not None and timedelta(minutes=59) < dues[1] - now <= timedelta(hours=1)  # noqa: PT018
    assert len(queue.claim(10)) == 2, "the others may run"


def test_a_batch_with_delays_can_be_repeated(queue: Queue) -> None:
    batch = uuid4()
    tasks = [NewTask({"n": n}, f"s{n}", delay="1h") for n in range(3)]
    assert queue.push_many(tasks, batch_id=batch).created == 3
    assert queue.push_many(tasks, batch_id=batch).created == 3
    assert queue.status().planned == 3


def test_the_shell_refuses_an_invalid_delay(queue: Queue, dsn: str) -> None:
    line = '{"payload": {}}'
    wrong = penstock("push", "work", "--delay", "soon", dsn=dsn, stdin=line)
    assert (wrong.code, "delay: 'soon'" in wrong.err) == (2, True)
    both = penstock("push", "work", dsn=dsn, stdin='{"payload": {}, "delay": "1h", "due": "2030-01-01T00:00:00Z"}')
    assert (both.code, "line 1: delay" in both.err) == (2, True)
    own = penstock("push", "work", "--delay", "1h", dsn=dsn, stdin='{"payload": {}, "due": "2030-01-01T00:00:00Z"}')
    assert own.code == 0
    (task,) = queue.tasks()
    assert task.due == datetime(2030, 1, 1, tzinfo=UTC), "a due of its own goes before the delay"


# --- a subject whose task is dead ------------------------------------------------------------------------------------


@pytest.fixture
def dead(queue: Queue) -> Task:
    queue.push(subject="a")
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.dead("no such customer")})
    return claim.tasks[0]


def test_a_report_says_how_many_are_dead(queue: Queue, dead: Task, dsn: str) -> None:
    queue.push(subject="b")
    tasks = [NewTask(subject=name) for name in "abc"]
    batch = uuid4()
    report = queue.push_many(tasks, batch_id=batch)
    assert (report.created, report.skipped, report.skipped_dead, report.total) == (1, 2, 1, 3)
    said = "1 created, 2 skipped (1 of them dead: redrive them, or push with on_conflict='update')"
    assert str(report) == said
    assert queue.push_many(tasks, batch_id=batch) == report, "a repeated batch has the same report"
    with psycopg.connect(dsn) as connection:
        borrowed = queue.push_many(tasks, connection=connection)
        assert (borrowed.skipped, borrowed.skipped_dead) == (3, 1)
        noted = queue.push_many(tasks, connection=connection, batch_id=uuid4())
        assert (noted.skipped, noted.skipped_dead) == (3, 1)
    updated = queue.upsert_many(tasks)
    assert (updated.reopened, updated.skipped_dead) == (1, 0)


def test_one_push_says_it_too(queue: Queue, dead: Task) -> None:
    assert queue.push(subject="a") == (dead.id, "skipped", "dead")


def test_a_report_in_words() -> None:
    assert str(PushReport(uuid4())) == "nothing to push"
    assert str(PushReport(uuid4(), created=1000, skipped=2)) == "1,000 created, 2 skipped"


def test_the_shell_says_what_to_do(queue: Queue, dead: Task, dsn: str) -> None:
    lines = '{"payload": {}, "subject": "a"}\n{"payload": {}}'
    said = penstock("push", "work", dsn=dsn, stdin=lines)
    assert said.out.startswith("1 created, 1 skipped (1 of them dead")
    assert "penstock dead redrive work" in said.out
    assert "--on-conflict update" in said.out
    value = penstock("push", "work", "--json", dsn=dsn, stdin=lines).json
    assert (value["created"], value["skipped"], value["skipped_dead"]) == (1, 1, 1)


# --- JSON in SQL -----------------------------------------------------------------------------------------------------

SPELLINGS = [
    """'work', '{"a": 1}'""",
    """'work', '{"a": 1}'::json""",
    """'work', '{"a": 1}'::jsonb""",
    """'work', '{"a": 1}'::text""",
    """'work', '{"a": 1}'::varchar""",
    """'work', json_build_object('a', 1)""",
    """'work', jsonb_build_object('a', 1)""",
    """'work', row_to_json(r), p_kind => 'k') from (values (1)) as r(a""",
    """'work', '{"a": 1}', 's', 'k', now(), 5::smallint, 'skip'""",
    """'work', json_build_object('a', 1), p_subject => 's', p_due => now()""",
    """p_queue => 'work', p_payload => '{"a": 1}'""",
    """p_payload => json_build_object('a', 1), p_queue => 'work'""",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("arguments", SPELLINGS)
def test_any_json_is_a_payload(queue: Queue, sql: Connection, arguments: str) -> None:
    sql.execute(f"select penstock.push({arguments})".encode())
    (task,) = queue.tasks()
    assert task.payload == {"a": 1}


@pytest.mark.parametrize("arguments", ["'work'", "'work', p_subject => 's'", "p_queue => 'work'"])
def test_without_a_payload_it_is_empty(queue: Queue, sql: Connection, arguments: str) -> None:
    sql.execute(f"select penstock.push({arguments})".encode())
    (task,) = queue.tasks()
    assert task.payload == {}


@pytest.mark.parametrize("value", ['{"a": 1}', Json({"a": 1}), Jsonb({"a": 1})])
def test_any_json_is_a_parameter(queue: Queue, sql: Connection, value: Any) -> None:
    sql.execute("select penstock.push('work', %s)", (value,))
    (task,) = queue.tasks()
    assert task.payload == {"a": 1}


@pytest.mark.sample(3)
@pytest.mark.parametrize("bad", ["null", "null::json", "'[1]'::json", "'[1]'", "'nonsense'", "'{'"])
def test_json_that_is_no_object_is_refused(queue: Queue, sql: Connection, bad: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(f"select penstock.push('work', {bad})".encode())
    assert refused.value.sqlstate in ("PS422", "22P02")
    assert queue.status().queued == 0


def test_json_lines_are_read_as_ever(queue: Queue, dsn: str) -> None:
    ran = penstock("push", "work", "--json", dsn=dsn, stdin=json.dumps({"payload": {"delay": "5m"}}))
    assert ran.json["created"] == 1, "a payload may have a delay of its own"
    (task,) = queue.tasks()
    assert task.state == "pending"
