"""A push wakes a few idle workers; a supervisor asks once for all of its processes and queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import orjson
import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from conftest import Clock
from penstock import NewTask, NotFound, Penstock, Queue

MANY = 16
ALL_AT_ONCE = 4  # a push wakes no more


class Listeners:
    """Idle workers, each with a connection that listens on the worker's channel."""

    def __init__(self, connections: dict[str, Connection]) -> None:
        self._connections = connections

    def received(self) -> dict[str, list[str]]:
        """What each worker was told since the last call. PostgreSQL sends it before the answer to a statement."""
        for one in self._connections.values():
            one.execute("select")
        found = {name: list(one.notifies(timeout=0)) for name, one in self._connections.items()}
        return {name: [notice.payload for notice in some] for name, some in found.items() if some}


@contextmanager
def listening(app: Penstock, dsn: str, *names: str, queues: tuple[str, ...] = ("work",)) -> Iterator[Listeners]:
    with ExitStack() as stack:
        connections = {}
        for name in names:
            channel = app.beat(name, [*queues], slots=2)[queues[0]]
            connections[name] = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            connections[name].execute(f"listen {channel}")
        yield Listeners(connections)


@pytest.fixture
def idle(app: Penstock, queue: Queue, direct_dsn: str) -> Iterator[Listeners]:
    with listening(app, direct_dsn, *(f"w{n}" for n in range(MANY))) as found:
        yield found


# --- waking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "woken"), [(1, 1), (3, 3), (2_000, ALL_AT_ONCE)])
def test_a_push_wakes_no_more_workers_than_it_has_tasks(idle: Listeners, queue: Queue, tasks: int, woken: int) -> None:
    queue.push_many([{}] * tasks)
    assert [*idle.received().values()] == [["work"]] * woken


def test_a_push_does_not_always_wake_the_same_worker(idle: Listeners, queue: Queue) -> None:
    found: set[str] = set()
    for _ in range(40):
        queue.push()
        found |= idle.received().keys()
    assert len(found) > 3


def test_only_workers_of_the_queue_are_woken(app: Penstock, queue: Queue, direct_dsn: str) -> None:
    other = app.create_queue("other")
    with (
        listening(app, direct_dsn, "one") as ours,
        listening(app, direct_dsn, "both", queues=("work", "other")) as both,
        listening(app, direct_dsn, "theirs", queues=("other",)) as theirs,
    ):
        queue.push_many([{}] * 9)
        assert (ours.received(), both.received(), theirs.received()) == ({"one": ["work"]}, {"both": ["work"]}, {})
        other.push_many([{}] * 9)
        assert (ours.received(), both.received(), theirs.received()) == ({}, {"both": ["other"]}, {"theirs": ["other"]})


def test_a_full_worker_passes_the_wakeup_on(idle: Listeners, queue: Queue, app: Penstock, sql: Connection) -> None:
    queue.push()
    told: set[str] = set()
    for _ in range(MANY):
        ((name, _),) = idle.received().items()
        assert name not in told
        told.add(name)
        sql.execute("select penstock.pass_on(%s, 'work')", (name,))
    assert idle.received() == {}, "all of them have passed the wakeup on"
    app.beat("w3", ["work"], slots=2)
    queue.push()
    assert idle.received() == {"w3": ["work"]}, "the next beat says that it is idle"


def test_a_wakeup_for_a_claimed_task_is_not_passed_on(idle: Listeners, queue: Queue, sql: Connection) -> None:
    queue.push()
    ((name, _),) = idle.received().items()
    queue.claim()
    sql.execute("select penstock.pass_on(%s, 'work')", (name,))
    sql.execute("select penstock.pass_on('no such worker', 'nowhere')")
    assert idle.received() == {}


@pytest.mark.parametrize("instead", ["p_listens => false", "p_leaving => true", "p_busy => 2"])
def test_a_worker_that_cannot_claim_is_not_woken(idle: Listeners, queue: Queue, sql: Connection, instead: str) -> None:
    for n in [*range(1, MANY)] * 2:  # a full worker is left out from its second beat
        sql.execute(f"select penstock.beat('w{n}', '{{work}}', 2, {instead})")
    queue.push_many([{}] * 5)
    assert [*idle.received()] == ["w0"]
    sql.execute("select penstock.leave('w0')")
    queue.push()
    assert idle.received() == {}


def test_beats_write_nothing_that_a_push_reads(idle: Listeners, app: Penstock, queue: Queue, sql: Connection) -> None:
    """Otherwise dead versions of these rows pile up under a snapshot that is held for long."""
    rows = """
        select worker, xmin, ctid from penstock.idle_worker
        union all select id::text, xmin, ctid from penstock.queue_set
    """
    before = sql.execute(rows).fetchall()
    assert len(before) == MANY + 1, "workers of the same queues share a set"
    for n in range(MANY):
        app.beat(f"w{n}", ["work"], slots=2, busy=n % 2)
    for busy in (2, 0, 2, 1):  # full at one beat only
        for n in range(MANY):
            app.beat(f"w{n}", ["work"], slots=2, busy=busy)
    assert sql.execute(rows).fetchall() == before
    scans = "select coalesce(sum(seq_scan + coalesce(idx_scan, 0)), 0) from pg_stat_xact_user_tables where relname = %s"
    with sql.transaction():
        sql.execute("select penstock.push('work')")
        assert sql.execute(scans, ("worker",)).fetchone() == (0,)
        assert sql.execute(scans, ("idle_worker",)).fetchone() != (0,)


def test_sets_of_queues_go_with_their_workers_and_queues(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection
) -> None:
    sets = "select count(distinct id), count(*) from penstock.queue_set"
    app.create_queue("other")
    app.beat("w1", ["work", "other"])
    app.beat("w2", ["other", "work"])
    app.beat("w3", ["work"])
    assert sql.execute(sets).fetchone() == (2, 3)
    app.queue("other").drop()
    assert sql.execute(sets).fetchone() == (2, 2)
    clock.advance(600)
    app.upkeep()
    app.upkeep()
    assert sql.execute(sets).fetchone() == (0, 0)
    assert sql.execute("select from penstock.idle_worker").rowcount == 0


# --- one beat for all workers ---------------------------------------------------------------------------------------


def beat_all(sql: Connection, *workers: dict[str, Any], queues: str = "{work}", known: int | None = None) -> Any:
    told = [{"busy": 0, "listens": True, **one} for one in workers]
    row = sql.cursor(row_factory=dict_row).execute(
        "select * from penstock.beat_all(%s::jsonb, %s, 4, 'here', p_known => %s)",
        (orjson.dumps(told).decode(), queues, known),
    )
    return row.fetchone()


def test_a_beat_for_all_says_what_changed(app: Penstock, queue: Queue, sql: Connection) -> None:
    queue.set(lease="10s")
    first = beat_all(sql, {"name": "a", "pid": 1}, {"name": "b", "pid": 2, "busy": 4}, queues="{work,gone}")
    assert first["leases"] == {"work": 10}
    assert (first["quarantined"], first["dismissed"], [*first["channels"]]) == ([], [], ["a", "b"])
    assert first["channels"]["a"] == app.beat("a", ["work"])["work"]
    rows = sql.execute("select name, pid, queues, slots, busy, host from penstock.worker order by name").fetchall()
    assert rows[1] == ("b", 2, ["work"], 4, 4, "here")
    again = beat_all(sql, {"name": "a"}, queues="{work,gone}", known=first["known"])
    assert (again["leases"], again["known"]) == (None, first["known"])
    queue.set(lease="20s")
    app.create_queue("gone")
    assert beat_all(sql, {"name": "a"}, queues="{work,gone}", known=first["known"])["leases"] == {
        "work": 20,
        "gone": 30,
    }


def test_a_few_of_all_idle_workers_listen(queue: Queue, sql: Connection) -> None:
    workers = [{"name": f"w{n}", "listens": False} for n in range(9)]
    assert len(beat_all(sql, *workers)["channels"]) == 9, "none listens yet"
    listeners: list[dict[str, Any]] = [{"name": f"w{n}"} for n in range(9)]
    assert [*beat_all(sql, *listeners)["channels"]] == ["w0", "w1", "w2", "w3"]
    assert [*beat_all(sql, *listeners)["channels"]] == ["w0", "w1", "w2", "w3"]
    assert sql.execute("select from penstock.idle_worker").rowcount == 4
    listeners[1]["busy"] = 4
    beat_all(sql, *listeners)
    beat_all(sql, *listeners)
    assert sorted(w for (w,) in sql.execute("select worker from penstock.idle_worker")) == ["w0", "w2", "w3", "w4"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "workers",
    [
        "{}", "[1]", '[{"name": null}]', '[{"name": "w", "busy": "x"}]', '[{"name": "w", "busy": 0}]',
        '[{"name": "w", "busy": 5, "listens": true}]',
    ],
)  # fmt: skip
def test_a_beat_for_all_is_checked(queue: Queue, sql: Connection, workers: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        sql.execute("select * from penstock.beat_all(%s::jsonb, '{work}', 4)", (workers,))
    assert refused.value.sqlstate == "PS400"


# --- one look for all queues ----------------------------------------------------------------------------------------


def find_work(sql: Connection, queues: str = "{a,b,c,nowhere}") -> Any:
    return sql.cursor(row_factory=dict_row).execute("select * from penstock.find_work(%s)", (queues,)).fetchone()


def test_a_look_finds_what_a_claim_would_bring(app: Penstock, clock: Clock, sql: Connection) -> None:
    a, b, c = (app.create_queue(name, lease="20s") for name in "abc")
    now = sql.execute("select penstock.clock()").fetchone()
    assert now is not None
    assert (find_work(sql)["waiting"], find_work(sql)["next_due"]) == ([], None)
    a.push()
    b.push({}, due=now[0] + timedelta(seconds=10))
    assert find_work(sql)["waiting"] == ["a"]
    assert 9 < find_work(sql)["next_due"] <= 10
    a.claim()
    assert find_work(sql)["waiting"] == []
    clock.advance(11)
    assert find_work(sql)["waiting"] == ["b"], "it is due"
    assert 8 < find_work(sql)["next_due"] < 10, "the end of a lease"
    b.claim()
    clock.advance(10)
    assert find_work(sql)["waiting"] == ["a"], "its lease has ended"
    a.pause()
    assert find_work(sql)["waiting"] == []
    c.push()
    assert find_work(sql, "{a,b}")["waiting"] == []


def test_a_look_tells_of_schedules_and_upkeep(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    app.upkeep()
    found = find_work(sql)
    assert (found["next_schedule"], found["upkeep"]) == (None, False)
    app.set_schedule("hourly", "0 * * * *", queue="work")
    assert 0 < find_work(sql)["next_schedule"] <= 3600
    clock.advance(9)
    assert find_work(sql)["upkeep"]


def test_before_work_begins_all_queues_are_looked_at(app: Penstock, queue: Queue, sql: Connection) -> None:
    app.create_queue("other", lease="5s")
    app.queue("other").pause()
    prepare = "select * from penstock.prepare_work(%s, %s) order by 1"
    kinds = '{"work": [{"kind": "k", "max_attempts": 3}]}'
    assert sql.execute(prepare, ("{work,other}", kinds)).fetchall() == [("other", 5, True), ("work", 10, False)]
    assert sql.execute("select kind, max_attempts from penstock.kind").fetchall() == [("k", 3)]
    with pytest.raises(psycopg.Error, match="'wrok' does not exist") as refused:
        sql.execute(prepare, ("{work,wrok}", "{}"))
    assert refused.value.diag.message_hint == "Did you mean 'work'?"


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("mial", "mail"), ("nail", "mail"), ("mai", "mail"), ("mails", "mail"), ("invoice", "invoices"),
        ("queue-0042x", "queue-0042"), ("queue-042", "queue-0042"), ("quue-0123", "queue-0123"),
        ("x" * 300, None), ("something-else", None), ("", None),
    ],
)  # fmt: skip
def test_the_nearest_of_many_names_is_found(sql: Connection, wrong: str, meant: str | None) -> None:
    names = ["mail", "invoices", *(f"queue-{n:04}" for n in range(1000))]
    assert sql.execute("select penstock._nearest(%s, %s)", (wrong, names)).fetchone() == (meant,)


def test_a_missing_name_is_refused_with_the_nearest(app: Penstock, sql: Connection) -> None:
    for n in range(50):
        app.create_queue(f"queue-{n:04}")
    with pytest.raises(NotFound) as refused:
        app.queue("queue-0017x").push_many([NewTask({})])
    assert refused.value.hint == "Did you mean 'queue-0017'?"
