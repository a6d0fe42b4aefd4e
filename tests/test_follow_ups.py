"""Follow-ups: the settling transaction pushes a task for each task that dies or is done, exactly one for each end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import (
    AsyncPenstock,
    ConfigError,
    Conflict,
    Context,
    EndedTask,
    Fixed,
    NotFound,
    Outcome,
    Penstock,
    PenstockError,
    Queue,
    ValidationError,
)
from penstock.client.database import Database
from penstock.client.workers import end_leases, set_kinds
from penstock.doctor import examine

ENDS = (
    "select outcome || ':' || task_id || ':' || id from penstock.history where outcome in ('done', 'dead') order by 1"
)
SUBJECTS = "select subject from penstock.tasks where queue = 'after' order by 1"


@pytest.fixture
def after(app: Penstock) -> Queue:
    """The queue of the follow-ups."""
    return app.create_queue("after")


@pytest.fixture
def declare(database: Database, queue: Queue, after: Queue) -> Callable[..., None]:
    """Declares a kind of the queue `work`, as workers do."""

    def declare(kind: str = "default", **more: Any) -> None:
        set_kinds(database, "work", [{"kind": kind, **more}])

    return declare


def column(sql: Connection, statement: str) -> list[Any]:
    return [row[0] for row in sql.execute(statement.encode())]


def one_for_each_end(sql: Connection) -> int:
    """Checks that each end has exactly one follow-up, and returns their number."""
    subjects = column(sql, SUBJECTS)
    assert subjects == column(sql, ENDS)
    return len(subjects)


def test_a_task_that_is_done_is_followed(
    queue: Queue, after: Queue, declare: Callable[..., None], sql: Connection
) -> None:
    declare("bill", on_done="after:thank you: all")
    pushed = queue.push({"to": "ann", "n": [1, None]}, subject="order:7", kind="bill")
    queue.settle(queue.claim())
    (task,) = after.claim(10).tasks
    assert (task.kind, task.priority) == ("thank you: all", 5)
    assert re.fullmatch(rf"done:{pushed.id}:\d+", task.subject or "")
    ended_at = datetime.fromisoformat(task.payload.pop("ended_at"))
    assert abs((datetime.now(UTC) - ended_at).total_seconds()) < 60
    assert task.payload == {
        "id": pushed.id,
        "end": int((task.subject or "").rpartition(":")[2]),
        "queue": "work",
        "kind": "bill",
        "subject": "order:7",
        "payload": {"to": "ann", "n": [1, None]},
        "outcome": "done",
        "attempts": 1,
        "reason": None,
        "error_class": None,
        "error": None,
    }
    assert one_for_each_end(sql) == 1


def fail(queue: Queue, claim: Any) -> None:
    queue.settle(claim, {claim.ids[0]: Outcome.failed("no\nTraceback", error_class="KeyError")})


def crash(queue: Queue, claim: Any) -> None:
    """Its lease ends, and the next claim notices."""
    assert not queue.claim()


@pytest.mark.parametrize(
    ("end", "reason", "error"),
    [
        (lambda q, c: q.settle(c, {c.ids[0]: Outcome.dead("no such\nline 2")}), "no such", "no such\nline 2"),
        (fail, "attempts spent", "no\nTraceback"),
        (crash, "crashed", None),
        (lambda q, c: end_leases(q._database, [str(c.token)]), "crashed", None),
    ],
    ids=["dead", "failed", "expired", "worker dead"],
)
def test_a_task_that_dies_is_followed(
    queue: Queue,
    after: Queue,
    declare: Callable[..., None],
    sql: Connection,
    clock: Clock,
    end: Callable[[Queue, Any], None],
    reason: str,
    error: str | None,
) -> None:
    declare(on_dead="after:alarm", max_attempts=2, retry=Fixed("1s").to_json())
    pushed = queue.push({"n": 1})
    queue.settle(queue.claim(), {pushed.id: Outcome.failed("first", error_class="OSError")})
    clock.advance(2)
    claim = queue.claim()
    clock.advance(11)
    end(queue, claim)
    (task,) = after.claim(10).tasks
    told = task.payload
    assert (told["outcome"], told["attempts"], told["reason"], told["payload"]) == ("dead", 2, reason, {"n": 1})
    assert told["error"] == (error or "first"), "a crash has no error of its own: the last one is told"
    known = queue.task(pushed.id)
    assert (told["error"], told["error_class"], told["reason"]) == (known.error, known.error_class, known.reason)
    assert one_for_each_end(sql) == 1


def test_each_end_of_a_batch_is_followed_once(
    queue: Queue, after: Queue, declare: Callable[..., None], sql: Connection
) -> None:
    declare("a", on_done="after:x", on_dead="after:y")
    declare("b", on_dead="after:y")
    for kind in "abc":
        sql.execute(
            """
            select penstock.push_many('work', array_fill('{}'::text, array[20]),
                                      p_kinds => array_fill(%s::text, array[20]))
            """,
            (kind,),
        )
    claim = queue.claim(60)
    outcomes = {id_: Outcome.dead("no") if n % 2 else Outcome.done() for n, id_ in enumerate(claim.ids)}
    queue.settle(claim, outcomes)
    found: dict[str, int] = dict(
        sql.execute("select kind, count(*) from penstock.tasks where queue = 'after' group by 1").fetchall()
    )
    assert found == {"x": 10, "y": 20}, "kind b says nothing of done tasks, and kind c nothing at all"
    assert not set(column(sql, SUBJECTS)) - set(column(sql, ENDS))


def test_nothing_else_is_an_end(
    queue: Queue, after: Queue, declare: Callable[..., None], sql: Connection, clock: Clock
) -> None:
    declare(on_done="after:x", on_dead="after:x", retry=Fixed("1h").to_json())
    ids = [queue.push({}, subject=f"s{n}").id for n in range(8)]
    claim = queue.claim(8)
    queue.push({}, subject="s6", on_conflict="update")
    queue.push({}, subject="s7", on_conflict="update")
    queue.cancel([ids[5]])
    ends = [Outcome.again(delay="1h"), Outcome.failed("no"), Outcome.release(delay="1h"), Outcome.release()]
    queue.settle(claim, dict(zip(ids[:4], ends, strict=True)) | {ids[6]: Outcome.done(), ids[7]: Outcome.dead("no")})
    clock.advance(11)
    queue.claim(1)
    queue.cancel([ids[1]])
    sql.execute("select penstock.purge('work', array['planned', 'cancelled'])")
    assert after.status().totals["pushed"] == 0, "again, failed, released, expired, cancelled, renewed and purged"


def test_a_second_end_has_a_follow_up_of_its_own(
    queue: Queue, after: Queue, declare: Callable[..., None], sql: Connection
) -> None:
    declare(on_dead="after:x")
    id_ = queue.push().id
    for _ in range(2):
        claim = queue.claim()
        queue.settle(claim, {id_: Outcome.dead("no")})
        with pytest.raises(PenstockError):
            queue.settle(claim, {id_: Outcome.dead("no")})
        queue.redrive([id_])
    assert one_for_each_end(sql) == 2


def test_it_is_committed_with_the_end(
    queue: Queue, after: Queue, declare: Callable[..., None], sql: Connection
) -> None:
    declare(on_done="after:x")
    queue.push()
    claim = queue.claim()
    with pytest.raises(ZeroDivisionError), queue.settling(claim, claim.ids[0]):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), queue.settling(claim, claim.ids[0]) as connection, connection.transaction():
        raise ZeroDivisionError
    assert after.status().totals["pushed"] == 0
    with queue.settling(claim, claim.ids[0]):
        pass
    assert one_for_each_end(sql) == 1


def test_kept_done_tasks_are_followed(
    queue: Queue, after: Queue, declare: Callable[..., None], sql: Connection
) -> None:
    declare(on_done="after:x")
    queue.set(keep_done="1h")
    queue.push({"n": 1})
    queue.settle(queue.claim())
    assert after.claim().tasks[0].payload["payload"] == {"n": 1}
    assert queue.status().done == one_for_each_end(sql) == 1


def test_what_is_too_large_is_left_out(queue: Queue, after: Queue, declare: Callable[..., None]) -> None:
    declare(on_dead="after:x")
    after.set(max_payload=8192)
    for size, error in ((100, "no"), (9000, "no"), (100, '"' * 7000)):
        id_ = queue.push({"text": "x" * size}).id
        queue.settle(queue.claim(), {id_: Outcome.dead(error)})
    whole, no_payload, no_error = (task.payload for task in after.claim(3).tasks)
    assert (len(whole["payload"]["text"]), whole["error"]) == (100, "no")
    assert (no_payload["payload"], no_payload["error"]) == (None, "no")
    assert (no_error["payload"], no_error["error"], no_error["id"]) == (None, None, id_)


def test_a_settle_does_not_fail_when_the_queue_of_its_follow_ups_is_gone(
    app: Penstock, queue: Queue, after: Queue, declare: Callable[..., None], database: Database
) -> None:
    declare(on_dead="after:x", on_done="after:y")
    with pytest.raises(Conflict, match="'after' gets the follow-ups of work:default"):
        after.drop()
    after.set(max_payload=100)
    lost = [one for one in examine(database) if one.check == "follow_ups"]
    assert [(one.level, one.what.partition(" pushes")[0]) for one in lost] == [
        ("warning", "on_dead of 'work/default'"),
        ("warning", "on_done of 'work/default'"),
    ]
    queue.push_many([{}, {}])
    claim = queue.claim(2)
    queue.settle(claim, {claim.ids[0]: Outcome.dead("no")})
    after.drop(force=True)
    queue.settle(claim, {claim.ids[1]: Outcome.dead("no")})
    assert queue.status().dead == 2
    (missing, *_) = [one for one in examine(database) if one.check == "follow_ups"]
    assert "there is no queue 'after'" in missing.what
    assert "queues create after" in (missing.fix or "")


def test_a_queue_without_follow_ups_does_not_look_for_them(
    queue: Queue, declare: Callable[..., None], sql: Connection, dsn: str
) -> None:
    """Nothing can read the table of kinds meanwhile, so a settle of done tasks that does is given up."""
    declare("rare", on_dead="after:x")
    with psycopg.connect(dsn) as other, psycopg.connect(dsn, autocommit=True) as settling:
        other.execute("lock table penstock.kind in access exclusive mode")

        def settle(outcomes: str) -> None:
            queue.push()
            claim = queue.claim()
            settling.execute("set lock_timeout = '200ms'")
            settling.execute(f"select * from penstock.settle(%s, %s, {outcomes})", (claim.token, claim.ids))

        settle("null")
        settle("array['done']")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            settle("array['failed']")
        other.rollback()
        declare("rare", on_done="after:x")
        other.execute("lock table penstock.kind in access exclusive mode")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            settle("null")
        other.rollback()
        declare("rare")
        other.execute("lock table penstock.kind in access exclusive mode")
        settle("null")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("after", "PS400", "on_dead: 'after' is not queue:kind"),
        ("after:", "PS400", "on_dead: 'after:' is not queue:kind"),
        (":x", "PS400", "on_dead: ':x' is not queue:kind"),
        ("after:" + "k" * 129, "PS400", "is not queue:kind"),
        ("work:default", "PS400", "on_dead: 'work:default' would follow itself for ever"),
        ("aftr:x", "PS404", "on_dead: queue 'aftr' does not exist"),
        ("small:x", "PS400", "on_dead: the largest payload of queue 'small' is 8191 bytes"),
    ],
)
def test_a_follow_up_that_cannot_be_pushed_is_refused_in_sql(
    app: Penstock, queue: Queue, after: Queue, sql: Connection, target: str, code: str, message: str
) -> None:
    app.create_queue("small", max_payload=8191)
    kinds = json.dumps([{"kind": "default", "on_dead": target}])
    with pytest.raises(psycopg.Error) as refused:
        sql.execute("select penstock.set_kinds('work', %s::jsonb)", (kinds,))
    assert (refused.value.sqlstate, message in str(refused.value)) == (code, True), str(refused.value)
    assert column(sql, "select count(*) from penstock.kind") == [0]


def test_a_follow_up_that_cannot_be_pushed_is_refused_at_decoration(app: Penstock, dsn: str) -> None:
    @app.task(queue="after")
    def takes_less(id: int) -> None:  # noqa: A002 - a key of the payload
        pass

    @app.task(queue="after", kind="*")
    def takes_any_kind(payload: dict[str, Any]) -> None:
        pass

    with Penstock(dsn) as other:

        @other.task(queue="after")
        def of_another_app(payload: EndedTask) -> None:
            pass

        for given, message in (
            ("after", "on_dead: 'after' is not queue:kind"),
            ("Bad Name:x", "queue: 'Bad Name'"),
            ("after:" + "k" * 129, "kind: "),
            ("work:f", "on_dead: work/f would follow itself"),
            (
                takes_less,
                "on_dead: after/takes_less cannot take a follow-up: 'end': the handler takes no such argument",
            ),
            (takes_any_kind, "on_dead: after/* handles any kind"),
            (of_another_app, "is no handler of this application"),
            (7, "on_dead: 7 is no handler of this application"),
        ):
            with pytest.raises((ConfigError, ValidationError), match=re.escape(message)):
                app.task(queue="work", kind="f", on_dead=given)(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a handler for any kind has no follow-ups"):
        app.task(queue="work", kind="*", on_done="after:x")(print)


# --- handlers ---------------------------------------------------------------------------------------------------------


def test_handlers_follow_handlers(app: Penstock, queue: Queue, after: Queue) -> None:
    seen: list[EndedTask] = []

    @app.task(queue="after")
    def tell(payload: EndedTask) -> None:
        seen.append(payload)

    @app.task(queue="work", max_attempts=1, on_dead=tell, on_done="after:tell")
    def ship(order: int) -> None:
        if order == 2:
            raise LookupError("no such order")

    for order in (1, 2):
        ship.push(order, subject=f"order:{order}")
    assert app.drain_inline(raise_errors=False) == {"done": 3, "dead": 1}
    done, dead = sorted(seen, key=lambda one: one.id)
    assert (done.outcome, done.subject, done.payload, done.message) == ("done", "order:1", {"order": 1}, None)
    assert (dead.outcome, dead.subject, dead.error_class) == ("dead", "order:2", "LookupError")
    assert (dead.message, dead.reason) == ("no such order", "attempts spent")
    assert "test_follow_ups.py" in (dead.traceback or "")
    assert dead.ended_at.utcoffset() is not None


def test_a_transaction_of_the_handler_is_followed(app: Penstock, queue: Queue, after: Queue, sql: Connection) -> None:
    sql.execute("create table shipped (n int)")

    @app.task(queue="work", on_done="after:tell", on_dead="after:tell")
    def ship(n: int, context: Context) -> None:
        with context.transaction() as connection:
            connection.execute("insert into shipped values (%s)", (n,))
            if n == 2:
                context.dead("no")

    ship.push_many([{"n": n} for n in (1, 2)])
    assert app.drain_inline("work") == {"done": 1, "dead": 1}
    assert column(sql, "select n from shipped") == [1]
    assert one_for_each_end(sql) == 2


def test_async_handlers_follow_handlers(app: Penstock, queue: Queue, after: Queue, dsn: str) -> None:
    seen: list[tuple[str, str | None]] = []

    async def main() -> None:
        async with AsyncPenstock(dsn) as client:

            @client.task(queue="after")
            async def tell(payload: EndedTask) -> None:
                seen.append((payload.outcome, payload.reason))

            @client.task(queue="work", on_dead=tell, on_done=tell)
            async def ship(n: int) -> Outcome | None:
                return Outcome.dead("no") if n else None

            await ship.push(0)
            await ship.push(1)
            await client.drain_inline()

    asyncio.run(main())
    assert sorted(seen) == [("dead", "no"), ("done", None)]


def test_a_worker_does_not_start_without_the_queue_of_its_follow_ups(app: Penstock, queue: Queue) -> None:
    @app.task(queue="work", on_dead="aftr:x")
    def ship() -> None:
        pass

    app.create_queue("after")
    with pytest.raises(NotFound, match="on_dead: queue 'aftr' does not exist") as error:
        app.drain_inline("work")
    assert "'after'" in (error.value.hint or "")
