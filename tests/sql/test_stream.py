"""A queue as a stream: batches of a consumer group, its drivers, and what becomes of a batch without a driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Conflict, LeaseLost, NewTask, NotFound, Outcome, Penstock, Queue, ValidationError
from penstock.client import streams
from penstock.client.database import Database
from penstock.client.statements import streams as statements
from penstock.model import Batch, GroupHold
from workers import eventually

LEASE = timedelta(minutes=5)
Drive = Callable[..., "Driver"]


class Driver:
    """Drives a group as `penstock.spark.group` does: an epoch, its lock in an open transaction, and the group."""

    def __init__(self, dsn: str, group: str = "g", name: str = "one", queue: str = "work") -> None:
        self.database = Database(dsn)
        epoch = streams.next_epoch(self.database)
        self.keeper = psycopg.connect(dsn)
        self.keeper.execute(statements.LOCK_EPOCH, (statements.STREAM, epoch))
        try:
            self.held: GroupHold = streams.hold_stream(
                self.database, queue, group, epoch=epoch, driver=name, lease=LEASE
            )
        except Conflict:
            self.die()
            self.database.close()
            raise

    def next(self, after: int, limit: int = 100, slots: int = 2, before: datetime | None = None) -> Batch:
        return streams.next_batch(
            self.database, self.held, after=after, limit=limit, slots=slots, lease=LEASE, before=before
        )

    def leases(self, after: int, upto: int) -> list[tuple[str, int]]:
        return streams.batch_leases(self.database, self.held, after, upto)

    def rows(self, after: int, upto: int) -> list[tuple[Any, ...]]:
        return [row for token, _ in self.leases(after, upto) for row in self.read(token)]

    def read(self, token: str, first: int = 0) -> list[tuple[Any, ...]]:
        with self.database.session() as connection:
            return streams.read_lease(connection, token, first, 10_000)

    def keep(self) -> None:
        streams.keep_stream(self.database, self.held, lease=LEASE)

    def die(self) -> None:
        self.keeper.close()


@pytest.fixture
def drive(dsn: str) -> Iterator[Drive]:
    with ExitStack() as stack:

        def make(**options: str) -> Driver:
            driver = Driver(dsn, **options)
            stack.callback(driver.database.close)
            stack.callback(driver.die)
            return driver

        yield make


def ids(rows: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_done_when_the_next_one_is_asked_for(drive: Drive, queue: Queue) -> None:
    queue.push_many([{"n": n} for n in range(250)])
    driver = drive()
    assert driver.next(0) == Batch(1, 100, 0)
    assert [row[3] for row in driver.rows(0, 1)] == [f'{{"n": {n}}}' for n in range(100)]
    assert queue.status().active == 100
    assert driver.next(1) == Batch(2, 100, 0)
    assert (queue.status().active, queue.status().totals["done"]) == (100, 100)
    assert driver.next(2) == Batch(3, 50, 0)
    assert driver.next(3) == Batch(3, 0, 0), "there are no more tasks: the same batch, empty"
    assert driver.next(3) == Batch(3, 0, 0)
    assert (queue.status().active, queue.status().totals["done"]) == (0, 250)


def test_a_batch_that_is_not_done_is_given_again(drive: Drive, queue: Queue) -> None:
    queue.push_many([{}] * 30)
    driver = drive()
    assert driver.next(0, 10) == Batch(1, 10, 0)
    first = driver.rows(0, 1)
    queue.push(priority=0)
    assert driver.next(0, 20) == Batch(1, 10, 0)
    assert driver.rows(0, 1) == first
    assert driver.rows(1, 1) == driver.rows(1, 2) == []
    assert driver.next(1, 20).tasks == 20
    assert driver.rows(0, 1) == [], "what is done is never read again"


def test_a_batch_is_spread_over_leases(drive: Drive, queue: Queue) -> None:
    queue.push_many([{}] * 21_000)
    driver = drive()
    assert driver.next(0, 21_000, slots=1).tasks == 21_000
    assert [size for _, size in driver.leases(0, 1)] == [7000, 7000, 7000], "a lease has at most 10,000"
    driver.next(1)
    queue.push_many([{}] * 90)
    driver.next(1, 10_000, slots=4)
    assert [size for _, size in driver.leases(1, 2)] == [23, 23, 23, 21], "the tasks that are left are spread evenly"


def test_a_lease_is_read_by_position(drive: Drive, queue: Queue) -> None:
    queue.push_many([{"n": n} for n in range(10)])
    driver = drive()
    driver.next(0, slots=1)
    ((token, _),) = driver.leases(0, 1)
    assert [row[3] for row in driver.read(token, 7)] == [f'{{"n": {n}}}' for n in (7, 8, 9)]
    assert driver.read(token, 10) == []


def test_planned_and_expired_tasks_come_too(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([NewTask({}, due=clock.now() + timedelta(hours=1))] * 5 + [NewTask({})] * 5)
    queue.claim(5, lease="1s")
    driver = drive()
    assert driver.next(0).tasks == 0
    clock.advance(2)
    assert driver.next(0).tasks == 5
    clock.advance(3600)
    assert driver.next(1).tasks == 5


def test_a_paused_queue_gives_nothing(drive: Drive, queue: Queue) -> None:
    queue.push_many([{}] * 5)
    driver = drive()
    queue.pause()
    assert driver.next(0).tasks == 0
    queue.resume()
    assert driver.next(0).tasks == 5


def test_a_task_is_in_one_group(drive: Drive, queue: Queue) -> None:
    queue.push_many([{}] * 10)
    one, other = drive(group="a"), drive(group="b")
    one.next(0, 6)
    other.next(0, 6)
    assert len({*ids(one.rows(0, 1)), *ids(other.rows(0, 1))}) == 10


# --- outcomes of single tasks -----------------------------------------------------------------------------------------


def test_the_outcome_of_a_single_task_wins(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 6)
    driver = drive()
    driver.next(0, slots=1)
    ((token, _),) = driver.leases(0, 1)
    failed, dead, again, released, *rest = ids(driver.rows(0, 1))
    queue.settle(token, {failed: Outcome.failed("no"), dead: Outcome.dead("never"), again: Outcome.again(delay="1h")})
    queue.settle(token, {released: Outcome.release(delay="1h")})
    assert ids(driver.rows(0, 1)) == rest, "a replay has only the tasks that are still open"
    driver.next(1)
    assert {one.id: one.state for one in queue.tasks()} == {
        failed: "planned", dead: "dead", again: "planned", released: "planned",
    }  # fmt: skip
    totals = queue.status().totals
    assert [totals[word] for word in ("done", "failed", "dead", "again", "released")] == [2, 1, 1, 1, 1]


def test_a_batch_whose_tasks_all_have_an_outcome(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 3)
    driver = drive()
    driver.next(0, slots=1)
    ((token, _),) = driver.leases(0, 1)
    queue.settle(token, {id_: Outcome.failed("no") for id_ in ids(driver.rows(0, 1))})
    assert driver.rows(0, 1) == []
    assert driver.next(1).tasks == 0
    clock.advance(60)
    assert driver.next(1) == Batch(2, 3, 0)


def test_a_cancelled_task_is_neither_read_nor_done(drive: Drive, queue: Queue) -> None:
    pushed = [queue.push() for _ in range(4)]
    driver = drive()
    driver.next(0, slots=1)
    queue.cancel([pushed[0].id])
    assert ids(driver.rows(0, 1)) == [one.id for one in pushed[1:]]
    queue.cancel([one.id for one in pushed[1:]])
    assert driver.next(1).tasks == 0
    assert (queue.status().cancelled, queue.status().totals["done"], queue.status().active) == (4, 0, 0)


def test_an_update_meanwhile_runs_once_more(drive: Drive, queue: Queue) -> None:
    queue.push({"v": 1}, subject="s")
    driver = drive()
    driver.next(0)
    queue.upsert_many([NewTask({"v": 2}, "s")])
    assert driver.next(1) == Batch(2, 1, 0)
    assert [(row[3], row[7]) for row in driver.rows(1, 2)] == [('{"v": 2}', 1)]
    driver.next(2)
    assert queue.status().totals["done"] == 2


# --- drivers ----------------------------------------------------------------------------------------------------------


def test_a_second_driver_is_refused(drive: Drive, queue: Queue) -> None:
    first = drive(name="host:1")
    with pytest.raises(
        Conflict, match=r"consumerGroup: 'g' of queue 'work' is held by driver host:1 until 2"
    ) as refusal:
        drive(name="host:2")
    assert "consumerGroup of its own" in (refusal.value.hint or "")
    first.next(0)
    drive(group="another", name="host:2")


def test_a_dead_driver_is_replaced_at_once(drive: Drive, queue: Queue) -> None:
    """The batch goes on under other tokens; those of the dead driver are no longer valid."""
    queue.push_many([{"n": n} for n in range(10)])
    first = drive(name="host:1")
    first.next(0, 4)
    tokens, rows = first.leases(0, 1), first.rows(0, 1)
    first.die()
    second = drive(name="host:2")
    assert second.rows(0, 1) == rows
    assert not {token for token, _ in tokens} & {token for token, _ in second.leases(0, 1)}
    assert second.next(0) == Batch(1, 4, 0)
    for token, _ in tokens:
        assert first.read(token) == []
        with pytest.raises(LeaseLost):
            queue.settle(token, ids(rows)[:2])
        with pytest.raises(LeaseLost):
            queue.extend(token)
    for call in (lambda: first.next(1), lambda: first.leases(0, 1), first.keep):
        with pytest.raises(Conflict, match="consumerGroup: driver host:2 has taken over 'g'"):
            call()
    assert second.next(1) == Batch(2, 6, 0)
    assert queue.status().totals["done"] == 4


def test_another_login_cannot_keep_the_group_of_a_dead_driver(
    drive: Drive, queue: Queue, clock: Clock, sql: Connection, direct_dsn: str
) -> None:
    """Any login may take the lock of its epoch. The next driver then waits until the hold ends, and no longer."""
    queue.push_many([{"n": n} for n in range(3)])
    first = drive(name="host:1")
    assert first.next(0).number == 1
    (epoch,) = sql.execute("select epoch from penstock.stream").fetchall()[0]
    first.die()
    with psycopg.connect(direct_dsn, autocommit=True) as other_session:
        taken = "select pg_try_advisory_lock(1346719303, %s)"
        eventually(lambda: other_session.execute(taken, (epoch,)).fetchone() == (True,))
        with pytest.raises(Conflict, match="is held by driver host:1"):
            drive(name="host:2")
        clock.advance(LEASE.total_seconds() + 1)
        assert drive(name="host:3").next(0).number == 1


def test_a_driver_that_hangs_is_replaced_when_its_hold_has_ended(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 10)
    first = drive()
    first.next(0)
    clock.advance(200)
    first.keep()
    clock.advance(200)
    with pytest.raises(Conflict, match="held by driver one"):
        drive(name="two")
    clock.advance(101)
    second = drive(name="two")
    with pytest.raises(Conflict, match="held by driver two"):
        drive(name="three")
    with pytest.raises(Conflict, match="driver two has taken over"):
        first.next(1)
    assert second.next(0) == Batch(1, 10, 0), "no worker had looked for expired leases: they were still there"
    second.next(1)
    assert queue.status().totals["done"] == 10


def test_a_driver_frozen_before_its_commit_does_not_keep_the_group_locked(
    drive: Drive, queue: Queue, dsn: str, clock: Clock
) -> None:
    first = drive()
    with psycopg.connect(dsn) as frozen:
        frozen.execute(statements.KEEP_STREAM, (first.held.stream, first.held.epoch, LEASE))
        assert frozen.execute("show idle_in_transaction_session_timeout").fetchone() == ("10s",)
        frozen.execute("set local idle_in_transaction_session_timeout = '300ms'")  # instead of ten seconds
        clock.advance(400)
        drive(name="two")
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            frozen.execute("select")


def test_a_driver_that_was_silent_goes_on_if_no_other_came(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 10)
    driver = drive()
    driver.next(0)
    clock.advance(1000)
    assert driver.next(1).tasks == 0
    assert queue.status().totals["done"] == 10


def test_a_driver_that_left_is_replaced_at_once(drive: Drive, queue: Queue, sql: Connection) -> None:
    first = drive()
    second_epoch = first.held._replace(epoch=first.held.epoch + 1000)
    streams.leave_stream(first.database, second_epoch)  # not the driver that holds the group
    with pytest.raises(Conflict):
        drive()
    streams.leave_stream(first.database, first.held)
    drive()


def test_signs_of_life_keep_the_batch(drive: Drive, app: Penstock, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 10)
    driver = drive()
    driver.next(0)
    for _ in range(4):
        clock.advance(200)
        driver.keep()
        app.upkeep()
    assert len(driver.rows(0, 1)) == 10
    driver.next(1)
    assert queue.status().totals["expired"] == 0


# --- without a driver -------------------------------------------------------------------------------------------------


def test_a_driver_that_was_away_too_long(drive: Drive, app: Penstock, queue: Queue, clock: Clock) -> None:
    """Its batch is empty: the tasks went back and come in another batch. Nothing is settled twice."""
    queue.push_many([{}] * 10)
    first = drive()
    first.next(0)
    first.die()
    clock.advance(400)
    app.upkeep()
    assert queue.status().pending == 10
    second = drive(name="two")
    assert second.rows(0, 1) == []
    assert second.next(1, slots=1) == Batch(2, 10, 0)
    assert [size for _, size in second.leases(1, 2)] == [8, 2], (
        "64 / 8: tasks that were lost together come in smaller leases"
    )
    second.next(2)
    assert queue.status().totals["done"] == 10


def test_a_worker_took_them_meanwhile(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 10)
    driver = drive()
    driver.next(0)
    clock.advance(400)
    claim = queue.claim(4)
    assert driver.next(1).tasks == 6, "the driver calls tasks done that it has lost: they are not"
    queue.settle(claim)
    driver.next(2)
    assert queue.status().totals["done"] == 10


def test_a_lost_checkpoint(drive: Drive, queue: Queue) -> None:
    """It begins at 0: settled tasks stay settled, and the batch that was forgotten is given again under its number."""
    queue.push_many([{"n": n} for n in range(30)])
    first = drive()
    first.next(0, 10)
    first.next(1, 10)
    rows = first.rows(1, 2)
    first.die()
    second = drive(name="two")
    assert second.next(0, 10) == Batch(2, 10, 0)
    assert second.rows(0, 2) == rows
    assert second.next(2, 100) == Batch(3, 10, 0)
    second.next(3)
    assert queue.status().totals["done"] == 30


def test_a_lost_checkpoint_and_nothing_open(drive: Drive, queue: Queue) -> None:
    queue.push_many([{}] * 10)
    driver = drive()
    driver.next(0)
    driver.next(1)
    assert driver.next(0) == Batch(0, 0, 0)
    queue.push()
    assert driver.next(0) == Batch(2, 1, 0)


def test_a_task_that_kills_each_driver_is_a_batch_of_its_own(
    drive: Drive, app: Penstock, queue: Queue, clock: Clock
) -> None:
    queue.push_many([{}] * 40)
    driver = drive()
    sizes = []
    after = 0
    for _ in range(4):
        batch = driver.next(after, slots=1)
        sizes.append([size for _, size in driver.leases(after, batch.number)])
        after = batch.number
        clock.advance(400)
        app.upkeep()
    assert sizes[0] == [40]
    assert sizes[1] == [8, 8, 8, 8, 8]
    assert sizes[2] == sizes[3] == [1], "the task is alone in its batch"
    assert queue.status().totals["done"] == 0


# --- only tasks that were there at a given time -----------------------------------------------------------------------


def test_what_was_there_at_a_moment(drive: Drive, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 10)
    queue.push(due=clock.now() + timedelta(seconds=30))
    clock.advance(40)
    driver = drive()
    at, waiting = streams.waiting_now(driver.database, "work")
    assert waiting == 11
    clock.advance(1)
    queue.push_many([{}] * 5)
    assert driver.next(0, 8, before=at) == Batch(1, 8, 8)
    queue.push(priority=0)
    assert driver.next(1, 3, before=at) == Batch(2, 3, 2), "urgent tasks go first, as everywhere"
    assert driver.next(2, 1, before=at) == Batch(3, 1, 1)
    assert driver.next(3, 100, before=at) == Batch(3, 0, 0)
    assert queue.status().pending == 5
    assert driver.next(3, 100) == Batch(4, 5, 0)


def test_a_limit_of_nothing_still_settles_and_gives_again(drive: Drive, queue: Queue) -> None:
    queue.push_many([{}] * 10)
    driver = drive()
    driver.next(0, 5)
    assert driver.next(0, 0) == Batch(1, 5, 0)
    assert driver.next(1, 0) == Batch(1, 0, 0)
    assert queue.status().totals["done"] == 5


# --- refusals, and other cases ----------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"after": 1}, "after: batch 1 is not between 0 and 0, the last of consumerGroup 'g'"),
        ({"after": -1}, "after: batch -1 is not between 0 and 0"),
        ({"after": None}, "after: batch null"),
        ({"limit": -1}, "limit: -1 is not between 0 and 10000000"),
        ({"limit": None}, "limit: null is not"),
        ({"slots": 0}, "slots: 0 is not between 1 and 1000"),
    ],
)
def test_what_is_asked_wrongly(drive: Drive, queue: Queue, bad: dict[str, Any], words: str) -> None:
    driver = drive()
    with pytest.raises(ValidationError, match=words):
        driver.next(**{"after": 0, **bad})


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("hold_stream('work', '', 1, 'd', '1 s')", "group: it is null, or not 1 to 200 bytes long"),
        ("hold_stream('work', null, 1, 'd', '1 s')", "group: it is null"),
        ("hold_stream('work', repeat('g', 201), 1, 'd', '1 s')", "group: it is null, or not 1 to 200"),
        ("hold_stream('work', 'g', null, 'd', '1 s')", "epoch: it is null"),
        ("hold_stream('work', 'g', 1, null, '1 s')", "driver: it is null"),
        ("hold_stream('work', 'g', 1, 'd', null)", "lease: null is not between"),
        ("hold_stream('work', 'g', 1, 'd', '25 hours')", "lease: 25:00:00 is not between"),
        ("hold_stream('wrok', 'g', 1, 'd', '1 s')", "queue 'wrok' does not exist"),
        ("read_lease(null, 0, 1)", "token, first, count"),
        ("read_lease(gen_random_uuid(), 0, null)", "token, first, count"),
        ("read_lease(gen_random_uuid(), 5, 1)", "token: the lease was lost while it was read"),
        ("keep_stream(99, 1, '1 s')", "consumerGroup: there is no group 99 any more"),
        ("waiting_now('wrok')", "queue 'wrok' does not exist"),
    ],
)
def test_calls_that_are_refused(queue: Queue, sql: Connection, call: str, words: str) -> None:
    with pytest.raises(psycopg.Error, match=words):
        sql.execute(f"select penstock.{call}".encode())


def test_a_dropped_queue_takes_its_groups_along(drive: Drive, queue: Queue, app: Penstock) -> None:
    driver = drive()
    before = driver.held.identity
    queue.drop()
    with pytest.raises(NotFound, match="consumerGroup: there is no group"):
        driver.next(0)
    app.create_queue("work")
    assert drive().held.identity != before


def test_history_names_the_driver(drive: Drive, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}] * 4)
    first = drive(name="host:1")
    first.next(0, 2)
    first.die()
    second = drive(name="host:2")
    second.next(1, 2)
    second.next(2)
    assert sql.execute("select worker, count(*) from penstock.history group by worker").fetchall() == [("host:2", 4)]


def test_pushes_of_the_same_subjects_meet_no_deadlock(drive: Drive, queue: Queue, dsn: str, sql: Connection) -> None:
    """A batch is several leases; a push may hold a subject of one lease and wait for a subject of another."""
    tasks = [NewTask({}, f"s{n}") for n in range(300)]
    queue.push_many(tasks)
    driver = drive()
    stop = threading.Event()
    errors: list[BaseException] = []

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            errors.append(error)

    def push(n: int) -> None:
        with noted(), Penstock(dsn) as app:
            mixed = tasks[n::7] + tasks[::3][::-1]
            while not stop.is_set():
                app.queue("work").upsert_many(mixed)

    threads = [threading.Thread(target=push, args=(n,)) for n in range(3)]
    for one in threads:
        one.start()
    after = 0
    with noted():
        for _ in range(40):
            after = driver.next(after, 300, slots=8).number
    stop.set()
    for one in threads:
        one.join()
    assert not errors
    assert sql.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone() == (0,)
    while (batch := driver.next(after, 1000)).tasks:
        after = batch.number
