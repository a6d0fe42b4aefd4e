"""Leases that nobody keeps alive: no daemon, no attempt lost for the innocent, and the guilty are found."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Fixed, LeaseLost, Outcome, Penstock, Queue


def test_expired_tasks_are_claimable_at_once(queue: Queue, clock: Clock) -> None:
    queue.push_many([{} for _ in range(16)])
    first = queue.claim(16)
    clock.advance(10.001)
    again = [queue.claim(16) for _ in range(8)]
    assert [id_ for claim in again for id_ in claim.ids] == first.ids
    assert {task.attempt for claim in again for task in claim.tasks} == {1}
    assert queue.status().totals["expired"] == 16


def test_only_a_lone_task_burns_its_attempt(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    for attempt in (1, 2, 3):
        assert queue.claim().tasks[0].attempt == attempt
        clock.advance(11)
    assert not queue.claim()
    assert sql.execute("select state, reason from penstock.tasks").fetchone() == ("dead", "crashed")
    assert dict(sql.execute("select outcome, count(*) from penstock.history group by 1").fetchall()) == {
        "expired": 2,
        "dead": 1,
    }


def test_a_claim_beside_other_work_is_not_alone(queue: Queue, clock: Clock) -> None:
    queue.push()
    for _ in range(2):
        queue.claim(may_alone=False)
        clock.advance(11)
    assert not queue.claim(may_alone=False), "it is marked: only a worker with nothing to lose may have it"
    assert queue.claim().tasks[0].attempt == 1


def test_one_death_of_a_process_with_small_leases_makes_nobody_lonely(
    queue: Queue, clock: Clock, sql: Connection
) -> None:
    """What a process held in leases of one, it held together: an eighth of that, not each alone."""
    queue.push_many([{} for _ in range(40)])
    for _ in range(40):
        queue.claim(may_alone=False)
    clock.advance(11)
    assert len(queue.claim(40)) == 8
    assert sql.execute("select distinct company from penstock.agenda").fetchall() == [(8,)]


def test_one_killer_does_not_take_its_mates_along(app: Penstock, clock: Clock, sql: Connection) -> None:
    """100 tasks, one kills whoever runs it. The worker claims in batches, settles nothing before its crash."""
    queue = app.create_queue("deadly", max_attempts=3, lease="10s", retry=Fixed("1s"))
    queue.push_many([{"killer": n == 57} for n in range(100)])
    crashes = 0
    for _ in range(200):
        claim = queue.claim(100)
        if not claim:
            break
        if any(task.payload["killer"] for task in claim.tasks):
            crashes += 1
            clock.advance(11)
        else:
            queue.settle(claim)
    status = queue.status()
    assert (status.totals["done"], status.dead) == (99, 1)
    assert sql.execute("select payload, reason from penstock.tasks").fetchone() == ({"killer": True}, "crashed")
    assert crashes <= 8, "100 → 12 → 1, then three lone tries"


def test_company_shrinks_by_eighths(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([{} for _ in range(64)])
    queue.claim(64)
    clock.advance(11)
    assert len(queue.claim(64)) == 8
    assert sql.execute("select distinct company from penstock.agenda").fetchall() == [(8,)]
    clock.advance(11)
    assert len(queue.claim(64)) == 1, "who has nothing else to lose takes first what must be alone"
    assert len(queue.claim(64, may_alone=False)) == 8, "who has takes the others"
    queue.push()
    assert sql.execute("select count(*) from penstock.agenda where company = 0").fetchone() == (1,)


def test_twenty_crashes_are_enough_whatever_max_attempts_says(app: Penstock, clock: Clock, sql: Connection) -> None:
    queue = app.create_queue("endless", max_attempts=None, lease="10s", retry=Fixed("1s"))
    queue.push()
    for _ in range(20):
        assert queue.claim()
        clock.advance(11)
    assert not queue.claim()
    assert sql.execute("select state, reason from penstock.tasks").fetchone() == ("dead", "crashed")


def test_a_release_keeps_the_mark_and_an_outcome_lifts_it(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([{}, {}])
    for _ in range(2):
        queue.claim(2)
        clock.advance(11)
    claim = queue.claim(2)
    assert len(claim) == 1
    queue.release(claim)
    assert sql.execute("select company from penstock.agenda").fetchall() == [(1,), (1,)]
    claim = queue.claim(2)
    queue.settle(claim, {claim.ids[0]: Outcome.again()})
    assert sorted(sql.execute("select company from penstock.agenda").fetchall()) == [(0,), (1,)]


def test_a_lease_being_settled_is_left_alone(queue: Queue, clock: Clock, dsn: str, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    with psycopg.connect(dsn) as slow:
        slow.execute("select * from penstock.settle(%s, %s)", (claim.token, claim.ids))
        clock.advance(11)
        assert not queue.claim()
        slow.commit()
    assert queue.status().totals["done"] == 1


def test_a_document_being_pushed_to_is_left_for_the_next_round(
    queue: Queue, clock: Clock, dsn: str, sql: Connection
) -> None:
    queue.push(subject="a")
    queue.push(subject="b")
    queue.claim(2)
    clock.advance(11)
    with psycopg.connect(dsn) as other:
        other.execute("select from penstock.task where subject = 'a' for update")
        assert [task.subject for task in queue.claim(2).tasks] == ["b"]
        assert sql.execute("select open from penstock.lease order by claimed_at limit 1").fetchone() == ("10",)
    assert [task.subject for task in queue.claim(2).tasks] == ["a"]


def test_late_is_not_lost_until_somebody_took_it(queue: Queue, clock: Clock) -> None:
    queue.push()
    claim = queue.claim()
    clock.advance(100)
    queue.settle(claim)
    assert queue.status().totals["done"] == 1


def test_a_renewed_task_runs_again_whatever_became_of_it(queue: Queue, clock: Clock, sql: Connection) -> None:
    """Upsert will set `renew`; settle and expiry honour it already."""
    outcomes = (
        Outcome.done(),
        Outcome.failed("x"),
        Outcome.dead("x"),
        Outcome.again(payload={"old": 1}),
        Outcome.release(),
    )
    for outcome in outcomes:
        queue.push({"old": 0}, subject="s")
        claim = queue.claim()
        sql.execute("update penstock.task set payload = '{\"new\": 1}', renew = penstock.clock()")
        assert queue.settle(claim, {claim.ids[0]: outcome}) == {claim.ids[0]: "pending"}
        again = queue.claim()
        assert (again.tasks[0].payload, again.tasks[0].attempt) == ({"new": 1}, 1)
        queue.settle(again)
        assert queue.status().waiting == 0
    queue.push(subject="s")
    queue.claim()
    sql.execute("update penstock.task set renew = penstock.clock() + '1 hour'")
    clock.advance(11)
    assert not queue.claim()
    assert queue.status().planned == 1


def test_expiry_starts_behind_what_is_done_and_finds_what_is_late(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([{}, {}, {}])
    long, short = queue.claim(lease="1h"), queue.claim(lease="1s")
    clock.advance(5)
    sql.execute("select penstock.expire(id) from penstock.queue")
    low = sql.execute("select until from penstock.low").fetchone()
    assert low == (clock.now(),)
    with pytest.raises(LeaseLost):
        queue.extend(short)
    clock.advance(3600)
    sql.execute("select penstock.expire(id) from penstock.queue")
    with pytest.raises(LeaseLost):
        queue.extend(long)
    assert queue.status().pending == 3
