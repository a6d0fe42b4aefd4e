"""Each verb of the Python client, with a real PostgreSQL."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from psycopg import Connection

from conftest import Clock
from penstock import (
    Conflict,
    LeaseLost,
    NewTask,
    NotFound,
    Outcome,
    PayloadTooLarge,
    Penstock,
    Queue,
    ValidationError,
)


def test_a_task_is_pushed_claimed_and_settled(queue: Queue) -> None:
    pushed = queue.push({"to": "ann"}, subject="mail:1", kind="send", priority=3)
    assert pushed.result == "created"
    assert pushed.state == "pending"

    claim = queue.claim(10, worker="w1")
    (task,) = claim.tasks
    assert (task.id, task.kind, task.subject, task.payload, task.priority) == (
        pushed.id,
        "send",
        "mail:1",
        {"to": "ann"},
        3,
    )
    assert (task.attempt, task.iterations) == (1, 0)
    assert claim.until is not None
    assert claim.until > datetime.now(UTC)

    assert queue.settle(claim) == {task.id: "done"}
    status = queue.status()
    assert (status.pending, status.active, status.totals["done"], status.totals["removed"]) == (0, 0, 1, 1)


def test_push_many_without_subjects_is_one_transaction(queue: Queue, sql: Connection) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    report = queue.push_many(
        [{"n": 1}, None, NewTask({"n": 2}, kind="k\t\\x", priority=0), NewTask({"a\\b": "c\n\t"}, due=due)]
    )
    assert report.counts == {"created": 4, "updated": 0, "renewed": 0, "reopened": 0, "skipped": 0, "superseded": 0}
    rows = sql.execute("select payload, kind, priority, due, xmin::text from penstock.task order by id").fetchall()
    assert [row[:4] for row in rows] == [
        ({"n": 1}, "default", 5, None),
        ({}, "default", 5, None),
        ({"n": 2}, "k\t\\x", 0, None),
        ({"a\\b": "c\n\t"}, "default", 5, due),
    ]
    assert len({row[4] for row in rows}) == 1
    status = queue.status()
    assert (status.planned, status.pending) == (1, 3)


def test_documents_are_copied_many_at_once(queue: Queue, sql: Connection) -> None:
    """With a volatile default COPY would write them one by one: a fifth slower, with 50 bytes of WAL more for each."""
    if sql.info.server_version < 180000:
        pytest.skip("a session's own WAL can be told since PostgreSQL 18")

    def records() -> int:
        sql.execute("select pg_stat_force_next_flush()")
        row = sql.execute("select wal_records from pg_stat_get_backend_wal(pg_backend_pid())").fetchone()
        assert row is not None
        return int(row[0])

    queue.push_many([{}] * 10)
    before = records()
    with sql.cursor().copy("copy penstock.task (queue_id, payload) from stdin") as copy:
        for _ in range(1000):
            copy.write_row((1, "{}"))
    each = (records() - before) / 1000
    assert each < 4.5, "three index entries, the agenda's row, and now and then a page of documents"
    found = sql.execute("select count(*), count(distinct created) > 1 from penstock.task").fetchone()
    assert found == (1010, True), "each has a time of its own"


def test_push_many_with_subjects_reports_every_row(queue: Queue) -> None:
    queue.push(subject="b")
    report = queue.push_many(
        [
            NewTask({"n": 1}, "a"),
            NewTask({"n": 2}, "b"),
            NewTask({"n": 3}, "a"),
            NewTask({"n": 4}),
            NewTask({"n": 5}, "c"),
        ]
    )
    assert report.counts == {"created": 3, "updated": 0, "renewed": 0, "reopened": 0, "skipped": 1, "superseded": 1}
    assert report.total == 5
    payloads = {task.subject: task.payload for task in queue.claim(10).tasks}
    assert payloads == {"b": {}, "a": {"n": 3}, None: {"n": 4}, "c": {"n": 5}}


def test_a_repeated_batch_doubles_nothing(queue: Queue) -> None:
    for items in ([{"n": n} for n in range(10)], [NewTask({"n": n}, f"s{n}") for n in range(10)]):
        batch = uuid4()
        first = queue.push_many(items, batch_id=batch)
        again = queue.push_many(items, batch_id=batch)
        assert first == again
        with pytest.raises(Conflict, match="other content"):
            queue.push_many(items[:-1], batch_id=batch)
    assert queue.status().pending == 20


def test_on_conflict_error_writes_nothing(queue: Queue) -> None:
    queue.push(subject="b")
    with pytest.raises(Conflict, match="item 1: subject 'b'"):
        queue.push_many([NewTask({}, "a"), NewTask({}, "b")], on_conflict="error")
    assert queue.status().pending == 1


def test_on_conflict_error_undoes_every_chunk_and_names_the_item(queue: Queue) -> None:
    queue.push(subject="s12345")
    items = [NewTask({}, f"s{n:05}") for n in range(20_001)]
    with pytest.raises(Conflict, match=r"^item 12345: subject 's12345' is taken"):
        queue.push_many(items, on_conflict="error")
    assert queue.status().pending == 1
    assert queue.push_many([one for one in items if one.subject != "s12345"], on_conflict="error").created == 20_000


def test_equal_subjects_in_one_strict_push_are_superseded(queue: Queue) -> None:
    report = queue.push_many([NewTask({"n": 1}, "a"), NewTask({"n": 2}, "a")], on_conflict="error")
    assert (report.created, report.superseded) == (1, 1)
    assert queue.claim().tasks[0].payload == {"n": 2}


def test_a_queue_has_its_own_limit_of_payloads(app: Penstock, sql: Connection) -> None:
    sql.execute("select penstock.create_queue('small', p_settings => '{\"max_payload\": 20}')")
    sql.execute("select penstock.create_queue('large', p_settings => '{\"max_payload\": 4000000}')")
    small, large = app.queue("small"), app.queue("large")
    fits, too_long = {"a": "x" * 12}, {"a": "x" * 13}
    small.push(fits)
    for push in (lambda: small.push(too_long), lambda: small.push_many([NewTask(too_long, "s")])):
        with pytest.raises(PayloadTooLarge, match=r"item 0: payload: 21 bytes are more than 20"):
            push()
    with pytest.raises(PayloadTooLarge, match="item 2: payload: 21 bytes"):
        small.push_many([fits, fits, too_long, too_long])
    large.push({"a": "x" * 3_900_000})
    assert large.push_many([{"a": "x" * 3_900_000}] * 3).created == 3
    assert small.status().pending == 1


def test_an_iterable_that_raises_leaves_nothing(queue: Queue) -> None:
    def broken() -> object:
        yield from ({"n": n} for n in range(25_000))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue.push_many(broken())  # type: ignore[arg-type]
    assert queue.status().totals["pushed"] == 0


def test_a_hundred_thousand_in_bounded_memory(queue: Queue) -> None:
    report = queue.push_many({"n": n} for n in range(100_000))
    assert report.created == 100_000
    assert queue.status().pending == 100_000


def test_an_empty_batch_is_no_error(queue: Queue) -> None:
    assert queue.push_many([]).total == 0
    assert queue.settle(uuid4(), []) == {}


def test_order_is_priority_then_due_then_id(queue: Queue, clock: Clock) -> None:
    ids = [queue.push({"n": n}, priority=priority).id for n, priority in enumerate((5, 9, 0, 5))]
    clock.advance(1)
    assert queue.claim(10).ids == [ids[2], ids[0], ids[3], ids[1]]


def test_the_first_given_runs_first(queue: Queue) -> None:
    """The real clock moves while a batch is written in the order of its subjects."""
    given = [f"s{n:03}" for n in range(200, 0, -1)]
    queue.push_many([NewTask({}, name) for name in given])
    queue.push(subject="s000")
    assert [task.subject for task in queue.claim(500).tasks] == [*given, "s000"]
    queue.upsert_many([NewTask({}, f"u{name}") for name in given])
    assert [task.subject for task in queue.claim(500).tasks] == [f"u{name}" for name in given]


def test_each_outcome(queue: Queue, clock: Clock, sql: Connection) -> None:
    ids = [queue.push({"n": n}).id for n in range(6)]
    claim = queue.claim(10)
    due = clock.now() + timedelta(hours=2)
    results = queue.settle(
        claim,
        {
            ids[0]: Outcome.done(),
            ids[1]: Outcome.again(due, payload={"n": "next"}),
            ids[2]: Outcome.failed(ValueError("boom")),
            ids[3]: Outcome.dead("no such customer"),
            ids[4]: Outcome.release(),
            ids[5]: Outcome.again(),
        },
    )
    assert results == dict(zip(ids, ("done", "planned", "planned", "dead", "pending", "pending"), strict=True))
    rows = {
        row[0]: row[1:]
        for row in sql.execute(
            "select id, state, attempts, iterations, reason, error, due, payload from penstock.tasks"
        )
    }
    assert rows[ids[1]] == ("planned", 0, 1, None, None, due, {"n": "next"})
    assert rows[ids[2]][:5] == ("planned", 1, 0, None, "boom")
    assert rows[ids[3]][:5] == ("dead", 1, 0, "no such customer", "no such customer")
    assert rows[ids[4]][:3] == ("pending", 0, 0)
    assert rows[ids[5]][:3] == ("pending", 0, 1)
    history: dict[int, str] = dict(sql.execute("select task_id, outcome from penstock.history").fetchall())
    assert history == dict(zip(ids, ("done", "again", "failed", "dead", "released", "again"), strict=True))
    assert sql.execute("select error_class from penstock.history where outcome = 'failed'").fetchone() == (
        "ValueError",
    )


def test_attempts_are_spent(queue: Queue, clock: Clock) -> None:
    queue.push()
    for attempt, state in ((1, "planned"), (2, "planned"), (3, "dead")):
        claim = queue.claim()
        assert claim.tasks[0].attempt == attempt
        assert queue.settle(claim, {claim.ids[0]: Outcome.failed("boom")}) == {claim.ids[0]: state}
        clock.advance(3600)
    assert not queue.claim()


def test_a_delay_of_the_worker_wins_over_the_strategy(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.failed("later", delay=timedelta(minutes=7))})
    assert sql.execute("select due from penstock.agenda").fetchone() == (clock.now() + timedelta(minutes=7),)


def test_done_tasks_can_be_kept(app: Penstock, sql: Connection) -> None:
    queue = app.create_queue("kept", keep_done="7d")
    queue.push(subject="s")
    queue.settle(queue.claim())
    assert queue.status().done == 1
    assert sql.execute("select state, iterations from penstock.tasks").fetchone() == ("done", 1)
    assert queue.push(subject="s").result == "skipped"


def test_planned_tasks_wait_for_their_time(queue: Queue, clock: Clock) -> None:
    queue.push(due=clock.now() + timedelta(seconds=30))
    queue.push(due=clock.now() - timedelta(seconds=30))
    assert queue.status().planned == 2
    assert queue.status().oldest_pending_age == 30
    claim = queue.claim(10)
    assert len(claim) == 1
    queue.settle(claim)
    clock.advance(31)
    assert len(queue.claim(10)) == 1


def test_extend_keeps_a_lease_alive(queue: Queue, clock: Clock) -> None:
    queue.push()
    claim = queue.claim()
    clock.advance(8)
    assert queue.extend(claim).until == clock.now() + timedelta(seconds=10)
    clock.advance(8)
    assert not queue.claim()
    queue.settle(claim)


def test_a_stale_token_is_refused_for_every_verb(queue: Queue, clock: Clock) -> None:
    queue.push()
    stale = queue.claim()
    clock.advance(11)
    fresh = queue.claim()
    assert fresh.ids == stale.ids
    with pytest.raises(LeaseLost) as lost:
        queue.settle(stale)
    assert lost.value.refused == tuple(stale.ids)
    for outcome in (Outcome.failed("x"), Outcome.dead("x"), Outcome.again(), Outcome.release()):
        with pytest.raises(LeaseLost):
            queue.settle(stale, {stale.ids[0]: outcome})
    with pytest.raises(LeaseLost):
        queue.extend(stale)
    with pytest.raises(LeaseLost):
        queue.release(stale)
    assert queue.status().active == 1
    queue.settle(fresh)


def test_settling_twice_or_another_claims_task(queue: Queue) -> None:
    queue.push_many([{}, {}, {}])
    mine, other = queue.claim(2), queue.claim(1)
    queue.settle(mine, [mine.ids[0]])
    with pytest.raises(LeaseLost) as lost:
        queue.settle(mine)
    assert lost.value.refused == (mine.ids[0],)
    with pytest.raises(NotFound, match="never in this lease"):
        queue.settle(other, [mine.ids[1], other.ids[0]])
    assert queue.status().active == 0


def test_release_burns_no_attempt(queue: Queue) -> None:
    queue.push_many([{}, {}])
    queue.release(queue.claim(2))
    claim = queue.claim(2)
    assert [task.attempt for task in claim.tasks] == [1, 1]
    queue.release(claim, delay="1h")
    assert queue.status().planned == 2


def test_release_puts_back_what_is_left(queue: Queue) -> None:
    queue.push_many([{}, {}, {}])
    claim = queue.claim(3)
    queue.settle(claim, claim.ids[:1])
    assert queue.release(claim) == dict.fromkeys(claim.ids[1:], "pending")
    with pytest.raises(LeaseLost) as lost:
        queue.release(claim)
    assert lost.value.refused == tuple(claim.ids)


def test_queues_are_named_exactly(app: Penstock, queue: Queue) -> None:
    with pytest.raises(NotFound) as missing:
        app.queue("wrok").push()
    assert missing.value.hint == "Did you mean 'work'?"
    with pytest.raises(Conflict):
        app.create_queue("work")
    app.create_queue("work", exist_ok=True)
    assert [one.queue for one in app.queues()] == ["work"]


def test_integers_outside_64_bits_are_read_exactly(queue: Queue, sql: Connection) -> None:
    sql.execute("select penstock.push('work', '{\"n\": 123456789012345678901234567890}')")
    queue.push({"n": 2**64 - 1})
    assert [task.payload["n"] for task in queue.claim(2).tasks] == [123456789012345678901234567890, 2**64 - 1]


def test_a_payload_too_deep_for_python_holds_nothing_up(queue: Queue, sql: Connection) -> None:
    """Only SQL can push one. It ends dead with the reason, and the other tasks of the batch are claimed."""
    deep = '{"a": ' * 5000 + "1" + "}" * 5000
    deeper_than_orjson = '{"a": ' * 1100 + "1" + "}" * 1100
    sql.execute("set max_stack_depth = '6MB'")
    for text in (deep, deeper_than_orjson, '{"fine": 1}'):
        sql.execute("select penstock.push('work', %s::jsonb)", (text,))
    assert queue.tasks()[0].payload is None
    assert queue.tasks()[2].payload == {"fine": 1}
    claim = queue.claim(10)
    assert claim.tasks[-1].payload == {"fine": 1}
    assert queue.status().dead == 3 - len(claim)
    assert sql.execute("select reason from penstock.task where ended = 'dead' limit 1").fetchone() == (
        "payload: it is nested too deep to be read",
    )
    queue.settle(claim)


def test_threads_share_a_client(app: Penstock, queue: Queue) -> None:
    queue.push_many({} for _ in range(2_000))
    seen: list[int] = []

    def drain() -> None:
        while claim := queue.claim(50):
            seen.extend(claim.ids)
            queue.settle(claim)

    threads = [threading.Thread(target=drain) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == 2_000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(queue: Queue) -> None:
    queue.push()
    child = os.fork()
    if child == 0:
        try:
            queue.push()
        finally:
            os._exit(0 if queue.status().pending == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.push()
    assert queue.status().pending == 3


def test_an_idle_connection_that_was_cut_is_replaced(queue: Queue, sql: Connection) -> None:
    queue.push()
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    queue.push()
    assert queue.status().pending == 2


def test_long_error_texts_are_cut_and_made_safe(queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}, {}])
    claim = queue.claim(3)
    texts = ("x" * 10_000_000, "nul \x00 and \ud800 and \x1b[31m", "ü" * 9_000)
    queue.settle(claim, {id_: Outcome.failed(text) for id_, text in zip(claim.ids, texts, strict=True)})
    stored = [row[0] for row in sql.execute("select error from penstock.task order by id")]
    assert all(len(text.encode()) <= 8192 for text in stored)
    assert "cut" in stored[0]
    assert stored[1] == "nul \\x00 and \\ud800 and ?[31m"
    assert "cut" in stored[2]


def test_settle_needs_outcomes_for_a_bare_token(queue: Queue) -> None:
    queue.push()
    claim = queue.claim()
    with pytest.raises(ValidationError):
        queue.settle(str(claim.token))
    queue.settle(str(claim.token), claim.ids)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_statements_are_prepared_only_in_a_session_of_our_own(queue: Queue, dsn: str, direct_dsn: str) -> None:
    """Between two transactions a pooler gives the session to other clients, with its prepared statements."""
    for _ in range(3):
        queue.push()
        queue.settle(queue.claim())
    with queue._database.transaction() as connection:
        rows = connection.execute("select statement from pg_prepared_statements").fetchall()
    found = {verb for verb in ("push_many", "claim", "settle") for (one,) in rows if f"penstock.{verb}(" in one}
    assert found == ({"push_many", "claim", "settle"} if dsn == direct_dsn else set())
