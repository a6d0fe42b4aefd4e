"""Keys and meta of tasks: every way to push them, where they are stored, and what they cost a task that has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from conftest import Clock
from penstock import AsyncPenstock, ConfigError, NewTask, Outcome, Penstock, Queue, ValidationError
from shell import penstock

META = {"traceparent": "00-ü", "tags": ["a", {"b": None}]}
TWICE = NewTask({}, key="tenant:7", meta=META)


def push_async(app: Penstock, queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            await client.queue("work").push(key="tenant:7", meta=META)

    asyncio.run(main())


def push_borrowed(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        queue.push(key="tenant:7", meta=META, connection=connection)


def push_many_borrowed(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        queue.push_many([TWICE], connection=connection)


def push_handler(app: Penstock, queue: Queue, dsn: str) -> None:
    @app.task(queue="work", key="tenant")
    def step(tenant: str) -> None: ...

    step.push("tenant:7", meta=META)


def push_handler_many(app: Penstock, queue: Queue, dsn: str) -> None:
    @app.task(queue="work", key="tenant")
    def step(tenant: str) -> None: ...

    step.push_many([NewTask({"tenant": "tenant:7"}, meta=META)])


def push_line(app: Penstock, queue: Queue, dsn: str) -> None:
    line = '{"payload": {}, "key": "tenant:7", "meta": {"traceparent": "00-ü", "tags": ["a", {"b": null}]}}'
    assert penstock("push", "work", "--key", "other", "--meta", '{"x": 1}', dsn=dsn, stdin=line).code == 0


def push_options(app: Penstock, queue: Queue, dsn: str) -> None:
    meta = '{"traceparent": "00-ü", "tags": ["a", {"b": null}]}'
    assert penstock("push", "work", "--key", "tenant:7", "--meta", meta, dsn=dsn, stdin='{"payload": {}}').code == 0


def push_in_sql(app: Penstock, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        meta = Jsonb(META)
        connection.execute("select penstock.push('work', '{}', p_key => 'tenant:7', p_meta => %s)", (meta,))


WAYS: dict[str, Callable[[Penstock, Queue, str], object]] = {
    "push": lambda _app, queue, _dsn: queue.push(key="tenant:7", meta=META),
    "async": push_async,
    "in a transaction of the caller": push_borrowed,
    "push_many in a transaction of the caller": push_many_borrowed,
    "push_many": lambda _app, queue, _dsn: queue.push_many([TWICE]),
    "push_many with subjects": lambda _app, queue, _dsn: queue.push_many([TWICE._replace(subject="s")]),
    "upsert_many": lambda _app, queue, _dsn: queue.upsert_many([TWICE._replace(subject="s")]),
    "a handler": push_handler,
    "tasks of a handler": push_handler_many,
    "a line": push_line,
    "options of the shell": push_options,
    "SQL": push_in_sql,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_push_can_give_a_task_a_key_and_meta(way: str, app: Penstock, queue: Queue, dsn: str) -> None:
    WAYS[way](app, queue, dsn)
    (task,) = queue.tasks()
    assert (task.key, task.meta) == ("tenant:7", META)
    queue.push()
    first, second = queue.claim(2).tasks
    assert (first.key, first.meta, second.key, second.meta) == ("tenant:7", META, None, None)
    shown = penstock("tasks", "show", str(task.id), "--json", dsn=dsn).json
    assert (shown["key"], shown["meta"], shown["expires"]) == ("tenant:7", META, None)
    assert "tenant:7" in penstock("tasks", "show", str(task.id), dsn=dsn).out


def test_a_claim_of_many_gives_each_task_its_own(queue: Queue) -> None:
    for n in range(9):
        queue.push({"n": n}, key=f"k{n}" if n % 2 else None, meta={"n": n} if n % 3 else None)
    for task in queue.claim(9).tasks:
        n = task.payload["n"]
        assert (task.key, task.meta) == (f"k{n}" if n % 2 else None, {"n": n} if n % 3 else None)


# --- numbers ----------------------------------------------------------------------------------------------------------

KEYS = "select k.key from penstock.agenda as a left join penstock.key as k on k.id = a.key_id order by a.task_id"


def keys(sql: Connection) -> list[str | None]:
    return [key for (key,) in sql.execute(KEYS)]


def test_a_key_has_one_number_in_its_queue(app: Penstock, queue: Queue, sql: Connection) -> None:
    other = app.create_queue("other")
    queue.push_many([NewTask({}, key=key) for key in ("b", "a", "b")])
    queue.push(key="a")
    queue.push_many([NewTask({}, key="a", subject=f"s{n}") for n in range(2)])
    other.push(key="a")
    queue.push()
    assert keys(sql) == ["b", "a", "b", "a", "a", "a", "a", None]
    assert sql.execute("select count(*) from penstock.key").fetchone() == (3,)
    sql.execute("insert into penstock.task (queue_id, key) select id, 'c' from penstock.queue")
    assert keys(sql)[-2:] == ["c", "c"]
    last = "select last_value from penstock.key_id_seq"
    before = sql.execute(last).fetchone()
    queue.push(key="a")
    assert sql.execute(last).fetchone() == before, "a key that exists uses up no number"
    app.queue("other").drop(force=True)
    assert sql.execute("select array_agg(key order by key) from penstock.key").fetchone() == (["a", "b", "c"],)


def test_the_lease_has_the_numbers(queue: Queue, sql: Connection) -> None:
    queue.push()
    queue.claim()
    queue.push_many([NewTask({}, key="a"), NewTask({})])
    queue.claim(2)
    found = sql.execute("select key_ids from penstock.lease order by claimed_at").fetchall()
    (key,) = sql.execute("select id from penstock.key").fetchone() or ()
    assert found == [(None,), ([key, 0],)]


def test_a_task_keeps_its_key_wherever_it_goes(queue: Queue, clock: Clock, sql: Connection) -> None:
    pushed = queue.push(key="a", subject="s")
    queue.settle(queue.claim(), {pushed.id: Outcome.failed("no", delay="1s")})
    assert keys(sql) == ["a"]
    clock.advance(1)
    queue.release(queue.claim())
    queue.reprioritise(1, [pushed.id])
    assert keys(sql) == ["a"]
    queue.claim()
    clock.advance(11)
    assert not queue.claim(quarantined=False)
    assert keys(sql) == ["a"]
    queue.cancel([pushed.id])
    queue.redrive([pushed.id])
    assert keys(sql) == ["a"]


def test_an_update_brings_its_own_key_and_meta(queue: Queue, sql: Connection) -> None:
    """Of a waiting, a running and an ended task."""
    queue.push(key="a", meta={"n": 1}, subject="s")
    for key in ("b", None, "c"):
        queue.push(key=key, meta=None if key is None else {"n": 2}, subject="s", on_conflict="update")
        assert keys(sql) == [key]
        assert queue.tasks()[0].meta == (key and {"n": 2})
    held = queue.claim()
    assert held.tasks[0].key == "c"
    queue.push(key="d", subject="s", on_conflict="update")
    queue.settle(held)
    assert keys(sql) == ["d"]
    queue.cancel(subjects=["s"])
    assert queue.push(key="e", subject="s", on_conflict="update").result == "reopened"
    assert keys(sql) == ["e"]


def test_pushes_of_the_same_new_keys_do_not_deadlock(queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with AsyncPenstock(dsn) as client:
            own = client.queue("work")
            for n in range(10):
                names = [f"{n}-{m}" for m in range(20)]
                await asyncio.gather(
                    *(
                        own.push_many([NewTask({}, key=name, subject=f"{at}{name}") for name in names[::step]])
                        for at in range(4)
                        for step in (1, -1)
                    )
                )

    asyncio.run(main())
    assert queue.status().pending == 10 * 20 * 4


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "k" * 129, "ü" * 65, "a\0", "\ud800", 7, b"k"])
def test_a_bad_key_is_refused(key: Any, queue: Queue) -> None:
    with pytest.raises(ValidationError, match=r"^key: "):
        queue.push(key=key)
    with pytest.raises(ValidationError, match=r"^item 1: key: "):
        queue.push_many([NewTask({}), NewTask({}, key=key)])
    assert queue.status().totals["pushed"] == 0


@pytest.mark.parametrize(
    "meta", [[], "x", {"x": object()}, {"x": "y" * 8190}, {"x": float("nan")}, {"x": "\0"}, {1: 2}]
)
def test_bad_meta_is_refused(meta: Any, queue: Queue) -> None:
    with pytest.raises(ValidationError, match=r"^meta[.: ]"):
        queue.push(meta=meta)
    with pytest.raises(ValidationError, match=r"^item 1: meta[.: ]"):
        queue.push_many([NewTask({}), NewTask({}, meta=meta)])
    assert queue.status().totals["pushed"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("array['']", "item 0: key: 0 bytes are not between 1 and 128"),
        ("array[repeat('k', 129)]", "item 0: key: 129 bytes are not between 1 and 128"),
        ("array['a', 'b']", "keys, metas, expires: flat, and as many as payloads (1), or null"),
        ("null, array['[]']", "item 0: meta: it is not a JSON object"),
        ("null, array['{\"a\": \"' || repeat('x', 8192) || '\"}']", "item 0: meta: 8201 bytes are more than 8192"),
        ("null, null, array['0001-01-01'::timestamptz]", "item 0: expires: "),
    ],
)
def test_bad_values_are_refused_in_sql(arguments: str, said: str, queue: Queue, sql: Connection) -> None:
    call = f"select penstock.push_many('work', array['{{}}'], null, null, null, null, 'skip', {arguments})"
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(call.encode())
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("key) values (1, ''", "key: 0 bytes"),
        ("meta) values (1, '[]'", "meta: it is not a JSON object"),
        ("meta) values (1, jsonb_build_object('a', repeat('x', 20000))", "meta: it is larger"),
        ("expires) values (1, 'infinity'", "expires: infinity"),
        ("waits_for) values (1, -1", "waits_for: -1 is less than 0"),
    ],
)
def test_documents_by_hand_are_checked_too(values: str, said: str, queue: Queue, sql: Connection) -> None:
    (id_,) = sql.execute("select id from penstock.queue").fetchone() or ()
    with pytest.raises(psycopg.Error, match=said):
        sql.execute(f"insert into penstock.task (queue_id, {values})".replace("(1,", f"({id_},").encode())
    queue.push()
    column, _, value = values.removesuffix("'").partition(") values (1, ")
    quote = "'" if values.endswith("'") else ""
    with pytest.raises(psycopg.Error, match=said):
        sql.execute(f"update penstock.task set {column} = {value}{quote}".encode())


def test_the_shell_refuses_bad_values(queue: Queue, dsn: str) -> None:
    for options, line, said in (
        (("--key", ""), '{"payload": {}}', "key: "),
        (("--meta", "[1]"), '{"payload": {}}', "meta: "),
        (("--meta", "{"), '{"payload": {}}', "meta: it is not JSON"),
        ((), '{"payload": {}, "key": 7}', "line 1: key: 7 is not text"),
        ((), '{"payload": {}, "meta": []}', "line 1: meta: "),
        ((), '{"payload": {}, "expires": "soon"}', "line 1: expires: "),
    ):
        ran = penstock("push", "work", *options, dsn=dsn, stdin=line)
        assert ran.code == 2
        assert said in ran.err
    assert queue.status().totals["pushed"] == 0


def test_a_handler_whose_key_is_no_argument_is_refused(app: Penstock, queue: Queue) -> None:
    for key in ("tenant", "", 7):
        with pytest.raises(ConfigError, match="key="):

            @app.task(queue="work", key=key)  # type: ignore[arg-type]
            def step(customer: str) -> None: ...

    @app.task(queue="work", key="tenant", kind="open")
    def takes_all(**rest: object) -> None: ...

    with pytest.raises(ValidationError, match=r"tenant: 1.5 is no key of a task"):
        takes_all.push(tenant=1.5)
    takes_all.push(tenant=None)
    takes_all.push(tenant=12)
    assert [task.key for task in queue.tasks()] == [None, "12"]
