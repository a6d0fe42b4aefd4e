"""Leases that are not kept alive expire without a daemon; only the task that killed its worker loses attempts."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Claim, Fixed, LeaseLost, NewTask, Outcome, Penstock, Queue
from workers import eventually


def test_expired_tasks_are_claimable_at_once(queue: Queue, clock: Clock) -> None:
    queue.push_many([{} for _ in range(16)])
    first = queue.claim(16)
    clock.advance(10.001)
    again = [queue.claim(16) for _ in range(8)]
    assert [id_ for claim in again for id_ in claim.ids] == first.ids
    assert {task.attempt for claim in again for task in claim.tasks} == {1}
    assert queue.status().totals["expired"] == 16


def queue_after_its_delay(queue: Queue, clock: Clock) -> Claim:
    """Claims after a retry delay of a few seconds has passed."""
    clock.advance(30)
    return queue.claim()


def test_a_lone_task_waits_before_it_may_kill_the_next_worker(app: Penstock, clock: Clock) -> None:
    """The first expiry of a quarantined task may be chance: it is claimable at once. From the second on it waits for
    its retry delay."""
    queue = app.create_queue("deadly", lease="10s", retry=Fixed("20s"))
    queue.push()
    assert queue.claim()
    clock.advance(11)
    assert queue.claim(), "a task is promised to be claimable at the end of its lease + 1 s"
    clock.advance(11)
    assert not queue.claim(), "it was quarantined because of a crash, and its worker died again"
    assert queue.status().planned == 1
    clock.advance(20)
    assert queue.claim().tasks[0].attempt == 3


def test_only_a_lone_task_burns_its_attempt(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    for attempt in (1, 2, 3):
        claim = queue.claim() or queue_after_its_delay(queue, clock)
        assert claim.tasks[0].attempt == attempt
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
        queue.claim(quarantined=False)
        clock.advance(11)
    assert not queue.claim(quarantined=False), "it is quarantined: only a worker that runs nothing else may claim it"
    assert queue.claim().tasks[0].attempt == 1


def test_one_death_of_a_process_with_small_leases_quarantines_no_task(
    queue: Queue, clock: Clock, sql: Connection
) -> None:
    """A process held several leases of one task: they come back in groups of an eighth, not one by one."""
    queue.push_many([{} for _ in range(40)])
    for _ in range(40):
        queue.claim(quarantined=False)
    clock.advance(11)
    assert len(queue.claim(40)) == 8
    assert sql.execute("select distinct quarantine from penstock.agenda").fetchall() == [(8,)]


def test_a_task_that_kills_its_worker_costs_the_others_no_attempt(app: Penstock, clock: Clock, sql: Connection) -> None:
    """One of 100 tasks kills its worker. The worker claims in batches and settles nothing before it dies."""
    queue = app.create_queue("deadly", max_attempts=3, lease="10s", retry=Fixed("1s"))
    queue.push_many([{"killer": n == 57} for n in range(100)])
    crashes = 0
    for _ in range(200):
        claim = queue.claim(100) or queue_after_its_delay(queue, clock)
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
    assert crashes <= 8, "leases of 100, 12 and 1 tasks, then three quarantined attempts"


def test_leases_shrink_by_eighths(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([{} for _ in range(64)])
    queue.claim(64)
    clock.advance(11)
    assert len(queue.claim(64)) == 8
    assert sql.execute("select distinct quarantine from penstock.agenda").fetchall() == [(8,)]
    clock.advance(11)
    assert len(queue.claim(64)) == 1, "an idle worker first takes a task that must run alone"
    assert len(queue.claim(64, quarantined=False)) == 8, "a busy worker takes the others"
    queue.push()
    assert sql.execute("select count(*) from penstock.agenda where quarantine = 0").fetchone() == (1,)


@pytest.mark.parametrize("crashes", [20, 2])
def test_so_many_crashes_are_enough_whatever_max_attempts_says(
    app: Penstock, clock: Clock, sql: Connection, crashes: int
) -> None:
    queue = app.create_queue("endless", max_attempts=None, lease="10s", retry=Fixed("1s"))
    if crashes != 20:
        queue.set(max_crashes=crashes)
    queue.push()
    for _ in range(crashes):
        assert queue.claim() or queue_after_its_delay(queue, clock)
        clock.advance(11)
    assert not queue.claim()
    assert not queue_after_its_delay(queue, clock)
    assert sql.execute("select state, reason from penstock.tasks").fetchone() == ("dead", "crashed")


def test_a_release_keeps_the_mark_and_an_outcome_lifts_it(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push_many([{}, {}])
    for _ in range(2):
        queue.claim(2)
        clock.advance(11)
    claim = queue.claim(2)
    assert len(claim) == 1
    queue.release(claim)
    assert sql.execute("select quarantine from penstock.agenda").fetchall() == [(-1,), (-1,)]
    claim = queue.claim(2)
    queue.settle(claim, {claim.ids[0]: Outcome.again()})
    assert sorted(sql.execute("select quarantine from penstock.agenda").fetchall()) == [(-1,), (0,)]


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


def test_a_late_settle_counts_until_another_worker_claims_the_task(queue: Queue, clock: Clock) -> None:
    queue.push()
    claim = queue.claim()
    clock.advance(100)
    queue.settle(claim)
    assert queue.status().totals["done"] == 1


def test_a_renewed_task_runs_again_whatever_became_of_it(queue: Queue, clock: Clock, sql: Connection) -> None:
    """An update sets `renew`; settle and expiry put the task back."""
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
        assert queue.status().queued == 0
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
    looked_at = clock.now()

    def passed() -> bool:
        """A bound takes effect at the first later look at which all transactions that ran meanwhile have ended."""
        sql.execute("select penstock._expire(id), penstock._squeeze(id) from penstock.queue")
        clock.advance(1.1)
        return sql.execute("select until >= %s from penstock.watermark", (looked_at,)).fetchone() == (True,)

    eventually(passed)
    with pytest.raises(LeaseLost):
        queue.extend(short)
    clock.advance(3600)
    sql.execute("select penstock._expire(id) from penstock.queue")
    with pytest.raises(LeaseLost):
        queue.extend(long)
    assert queue.status().pending == 3


def test_a_claim_that_commits_after_its_lease_has_ended_is_found_by_claims(
    queue: Queue, clock: Clock, dsn: str, sql: Connection
) -> None:
    """Its backend stalled before COMMIT. Claims that looked for expired leases meanwhile must not skip it."""
    queue.push()
    with psycopg.connect(dsn) as stalled:
        hint = "penstock.at_place(0::smallint, '-infinity', 0)"  # with a hint the claim itself expires nothing
        stalled.execute(f"select * from penstock.claim('work', p_hint => {hint})")
        for _ in range(5):
            clock.advance(10)
            sql.execute("select penstock._squeeze(id) from penstock.queue")
            assert not queue.claim()
    for _ in range(3):
        clock.advance(1)
        if queue.claim():
            return
    raise AssertionError("no claim has expired it")


def test_an_extension_that_commits_after_its_lease_has_ended_is_found_by_claims(
    queue: Queue, clock: Clock, dsn: str, sql: Connection
) -> None:
    """A supervisor shortens the lease of a dead process, and its backend stalls before COMMIT."""
    queue.push()
    claim = queue.claim(lease="1h")
    with psycopg.connect(dsn) as stalled:
        stalled.execute("select * from penstock.extend_many(array[%s]::uuid[], '100ms')", (claim.token,))
        for _ in range(5):
            clock.advance(10)
            sql.execute("select penstock._squeeze(id) from penstock.queue")
            assert not queue.claim()
    clock.advance(1)
    assert queue.claim().ids == claim.ids


def test_expire_leases_ignores_queues_that_do_not_exist(queue: Queue, clock: Clock, sql: Connection) -> None:
    """A supervisor calls it while all of its slots are busy, perhaps after a queue was dropped."""
    queue.push()
    queue.claim()
    clock.advance(11)
    assert sql.execute("select penstock.expire_leases('{work, unknown}')").fetchone() == (1,)
    assert queue.status().pending == 1


def test_all_leases_of_a_dead_worker_end_in_its_queues(app: Penstock, queue: Queue, sql: Connection) -> None:
    """Also those of which its supervisor does not know. Those of other workers stay."""
    app.create_queue("other").push()
    queue.push_many([NewTask({}) for _ in range(4)])
    of_another = queue.claim(1, worker="b")
    for size in (2, 1):
        queue.claim(size, worker="a")
    elsewhere = app.queue("other").claim(worker="a")

    def end(worker: str | None) -> object:
        return sql.execute(
            "select failed, dead from penstock.end_leases_of(%s, '{work,unknown}')", (worker,)
        ).fetchone()

    assert end("a") == (1, 0), "a lease of one task burns an attempt"
    assert end("a") == (0, 0)
    assert (queue.status().active, queue.status().queued) == (1, 3)
    assert [*queue.settle(of_another).values(), *app.queue("other").settle(elsewhere).values()] == ["done", "done"]
    for wrong in ("", None):
        with pytest.raises(psycopg.Error, match="worker"):
            end(wrong)


def test_leases_of_a_dead_worker_end_at_once(queue: Queue, sql: Connection, direct_dsn: str) -> None:
    """A task that was alone in its lease has failed or is dead; tasks that shared a lease keep their attempts."""
    queue.set(retry="fixed:1h")
    sql.execute("""select penstock.set_kinds('work', '[{"kind": "once", "max_attempts": 1}]')""")

    def end(*tokens: object) -> object:
        return sql.execute("select failed, dead from penstock.end_leases(%s::uuid[])", ([*tokens],)).fetchone()

    def take(*kinds: str) -> Claim:
        queue.push_many([NewTask({}, kind=kind) for kind in kinds])
        return queue.claim(len(kinds))

    assert end(take("once").token) == (0, 1)
    assert end(take("default").token) == (1, 0)
    assert [*queue.settle(queue.claim()).values()] == ["done"], "it may be tried again at once"
    held, other = take("default", "default"), take("default", "default")
    with psycopg.connect(direct_dsn) as foreign:
        foreign.execute("select from penstock.lease where token = %s for update", (held.token,))
        assert end(held.token, other.token) == (0, 0)
        assert queue.status().active == 2, "a lease that another transaction holds is left alone"
    assert end(held.token, other.token) == (0, 0)
    status = queue.status()
    assert (status.active, status.dead, status.queued) == (0, 1, 4)
    with pytest.raises(LeaseLost):
        queue.settle(held)
    with pytest.raises(psycopg.Error, match="tokens"):
        end(None)
