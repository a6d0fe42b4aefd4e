"""Which scaler holds a queue, and what it decided, through bare SQL."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import NewTask, Penstock, Queue

HOLD = "select epoch, target, memory from penstock.hold_scaling(%s, %s, 'deadline', '10 s', %s)"


def hold(sql: Connection, holder: str, *queues: str, instead: list[str] | None = None) -> list[Any]:
    return sql.execute(HOLD, ([*queues] or ["work"], holder, instead or [])).fetchall()


def decide(sql: Connection, holder: str, epoch: int, **changes: object) -> list[str]:
    row = {
        "queue": "work",
        "epoch": epoch,
        "policy": "deadline",
        "workers": 3,
        "actual": 1,
        "wanted": 4,
        "urgency": "NORMAL",
        "bound_by": "max",
        "reason": "3: because",
        **changes,
    }
    rows = sql.execute("select penstock.decide(%s, '10 s', %s)", (holder, json.dumps([row]))).fetchall()
    return [name for (name,) in rows]


def test_one_holds_a_queue_at_a_time(app: Penstock, queue: Queue, sql: Connection, clock: Clock) -> None:
    app.create_queue("other")
    assert hold(sql, "a") == [(1, None, None)]
    assert hold(sql, "a") == [(1, None, None)]  # again, by the same scaler
    with pytest.raises(psycopg.Error, match="queue 'work' is scaled by a until"):
        hold(sql, "b", "other", "work")
    assert sql.execute("select count(*) from penstock.scaling where holder = 'b'").fetchone() == (0,)
    clock.advance(11)
    assert sorted(hold(sql, "b", "other", "work")) == [(1, None, None), (2, None, None)]
    assert hold(sql, "c", instead=["b"]) == [(3, None, None)]
    sql.execute("select penstock.leave_scaling('c')")
    assert hold(sql, "a") == [(4, None, None)]
    with pytest.raises(psycopg.Error, match="nothing"):
        hold(sql, "a", "nothing")


def test_a_scaler_that_was_replaced_is_refused(queue: Queue, sql: Connection, clock: Clock) -> None:
    hold(sql, "a")
    assert decide(sql, "a", 1, memory={"x": 1}) == ["work"]
    clock.advance(11)
    assert decide(sql, "a", 1) == []  # late, but no other scaler has come meanwhile
    clock.advance(11)
    assert hold(sql, "b") == [(2, 3, {"x": 1})]
    for epoch, holder in ((1, "a"), (2, "a"), (1, "b")):
        with pytest.raises(psycopg.Error, match="has taken over"):
            decide(sql, holder, epoch, workers=9)
    assert sql.execute("select target from penstock.scaling").fetchone() == (3,)


def test_a_decision_is_recorded_when_it_changes_and_once_a_minute(queue: Queue, sql: Connection, clock: Clock) -> None:
    hold(sql, "a")
    assert decide(sql, "a", 1) == ["work"]
    clock.advance(1)
    assert decide(sql, "a", 1) == []
    assert decide(sql, "a", 1, reason="3: for another reason") == []
    for changes in ({"workers": 4}, {"workers": 4, "urgency": "BREACH"}, {"workers": 4, "bound_by": "min"}):
        clock.advance(1)
        assert decide(sql, "a", 1, **changes) == ["work"]
    clock.advance(59)
    assert decide(sql, "a", 1, workers=4, bound_by="min") == []
    clock.advance(1)
    assert decide(sql, "a", 1, workers=4, bound_by="min") == ["work"]
    rows = sql.execute("select workers, urgency, bound_by from penstock.decisions('work', null, 2)").fetchall()
    assert rows == [(4, "NORMAL", "min"), (4, "NORMAL", "min")]
    then = sql.execute("select min(at) from penstock.decision").fetchone()
    assert then is not None
    assert sql.execute("select workers from penstock.decisions('work', %s)", then).fetchall() == [(3,)]


def test_a_decision_without_a_reason_counts_and_is_not_recorded(queue: Queue, sql: Connection, clock: Clock) -> None:
    hold(sql, "a")
    assert decide(sql, "a", 1, workers=4, reason=None) == []
    assert sql.execute("select target from penstock.scaling").fetchone() == (4,)
    assert decide(sql, "a", 1, workers=4) == ["work"]


def test_a_decision_that_changes_nothing_waits_for_no_lock(
    direct_dsn: str, queue: Queue, sql: Connection, clock: Clock
) -> None:
    hold(sql, "a")
    assert decide(sql, "a", 1) == ["work"]
    with psycopg.connect(direct_dsn) as other:
        other.execute("select from penstock.scaling for update")
        assert decide(sql, "a", 1) == []
        with pytest.raises(psycopg.Error, match="lock timeout"):
            decide(sql, "a", 1, workers=4)


def test_a_look_sees_the_oldest_and_the_newest_of_all_priorities(queue: Queue, sql: Connection, clock: Clock) -> None:
    for priority in (9, 0, 4):
        queue.push_many(NewTask({}, priority=priority) for _ in range(3))
        clock.advance(10)
    row = sql.execute("select penstock.scaler_snapshot('{work}', '{60}', '{4}', '{1}')").fetchone()
    assert row is not None
    (found,) = row[0]["queues"]
    assert [(round(age), tasks) for age, tasks in found["waiting"]] == [(30, 3), (20, 1)]
    assert round(found["newest"]) == 10


def test_the_target_is_never_none_without_a_scaler(queue: Queue, sql: Connection, clock: Clock) -> None:
    def target() -> tuple[Any, ...] | None:
        statement = "select penstock.target_workers('work'), extract(epoch from penstock.target_age('work'))::int"
        return sql.execute(statement).fetchone()

    assert target() == (1, None)
    hold(sql, "a")
    assert target() == (1, None)
    decide(sql, "a", 1, workers=0)
    assert target() == (0, 0)  # a scaler looks, and would notice
    clock.advance(11)
    assert target() == (1, 11)
    hold(sql, "b")
    decide(sql, "b", 2, workers=5)
    sql.execute("select penstock.leave_scaling('b')")
    assert target() == (5, 0)


def test_decisions_go_after_ninety_days_and_holds_with_their_queue(
    app: Penstock, queue: Queue, sql: Connection, clock: Clock
) -> None:
    hold(sql, "a")
    decide(sql, "a", 1)
    clock.advance(90 * 86_400 - 10)
    decide(sql, "a", 1, workers=4)
    sql.execute("call penstock.upkeep()")
    assert sql.execute("select count(*) from penstock.decision").fetchone() == (2,)
    clock.advance(20)
    assert app.upkeep()["decisions dropped"] == 1
    queue.drop()
    assert sql.execute("select count(*) from penstock.scaling").fetchone() == (0,)


def test_a_worker_of_a_scaler_is_told_to_go(queue: Queue, sql: Connection, clock: Clock) -> None:
    def beat(worker: str, started_by: str | None) -> bool:
        row = sql.execute(
            "select dismissed from penstock.beat(%s, '{work}', p_started_by => %s)", (worker, started_by)
        ).fetchone()
        assert row is not None
        return bool(row[0])

    hold(sql, "a")
    decide(sql, "a", 1)
    assert not beat("ours", "a#1")
    assert not beat("theirs", None)
    assert sql.execute("select penstock.dismiss('{ours,theirs}')").fetchone() == (1,)
    assert beat("ours", "a#1")
    assert not beat("theirs", None)
    assert not beat("second", "a#2")
    clock.advance(599)
    assert not beat("second", "a#2")
    clock.advance(2)  # no scaler has decided anything for ten minutes: it is an orphan
    assert beat("second", "a#2")
    assert not beat("theirs", None)
    assert not beat("third", "a#3")  # just started


@pytest.mark.parametrize(
    "arguments",
    [
        "null, '{}', '{}', '{}'",
        "'{work}', '{}', '{}', '{}'",
        "'{work}', '{1}', '{0}', '{1}'",
        "'{work}', '{-1}', '{1}', '{1}'",
    ],
)
def test_a_look_that_makes_no_sense_is_refused(queue: Queue, sql: Connection, arguments: str) -> None:
    with pytest.raises(psycopg.Error, match=r"queues, horizons|rows|horizons, bins"):
        sql.execute(f"select penstock.scaler_snapshot({arguments})".encode())


def test_a_look_counts_what_waits_by_age_and_promotes_what_is_due(queue: Queue, sql: Connection, clock: Clock) -> None:
    sql.execute(
        "select penstock.push('work', '{}', p_due => penstock.clock() + make_interval(secs => n))"
        " from generate_series(1, 5) as n"
    )
    queue.push({}, priority=1)
    clock.advance(2.5)
    queue.push_many({} for _ in range(10))
    row = sql.execute("select penstock.scaler_snapshot('{work}', '{60}', '{100}', '{1}')").fetchone()
    assert row is not None
    (found,) = row[0]["queues"]
    assert (found["planned"], found["pending"]) == (3, 13)
    assert [(round(age, 1), tasks) for age, tasks in found["waiting"]] == [(2.5, 1), (1.5, 1), (0.5, 11)]
    assert found["newest"] is None
    assert sum(tasks for _, tasks in found["ahead"]) == 3
    row = sql.execute("select penstock.scaler_snapshot('{work}', '{60}', '{2}', '{1}')").fetchone()
    assert row is not None
    (found,) = row[0]["queues"]
    assert [(round(age, 1), tasks) for age, tasks in found["waiting"]] == [(2.5, 1), (1.5, 1)]
    assert round(found["newest"], 1) == 0.0
