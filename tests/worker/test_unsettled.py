"""Outcomes that PostgreSQL does not accept: claims wait for them, the rest is settled, and the worker reports them."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import LeaseLost, NewTask, Outcome, Penstock, Queue, Unavailable
from penstock.embedded import Server
from penstock.handlers import Registry
from penstock.worker.config import RunnerConfig
from penstock.worker.in_flight import InFlight
from penstock.worker.pace import Pace, Turns
from penstock.worker.pipe import Pipe
from penstock.worker.workload import MAX_UNSETTLED, Workload
from workers import Worker, eventually, free_port, probe, working

QUICK = """
@app.task(queue="work")
def quick(n: int) -> None:
    note(n)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    home = tmp_path / "server"
    yield Server.start(home, environ=os.environ, settings={"shared_buffers": "128MB", "fsync": "off"})
    if running := Server.running(home):
        running.stop("immediate")


def send_standby_away(sql: Connection, name: str) -> None:
    """Names a standby that does not exist: from now on only a COMMIT that does not wait for it is acknowledged. The
    empty name undoes this."""
    sql.execute("set synchronous_commit = off")
    sql.execute(f"alter system set synchronous_standby_names = '{name}'")
    sql.execute("select pg_reload_conf()")


def settled_down(worker: Worker) -> int:
    """Waits until the worker runs no more tasks, and returns how many it ran."""
    eventually(lambda: worker.noted)
    before = -1
    while len(worker.noted) != before:
        before = len(worker.noted)
        time.sleep(2)
    return before


def test_claims_do_not_outrun_settles(server: Server, tmp_path: Path) -> None:
    """Without the synchronous standby claims commit but settles do not. Leases are kept, and nothing runs twice."""
    tasks = 5 * MAX_UNSETTLED
    with Penstock(server.dsn) as penstock, psycopg.connect(server.dsn, autocommit=True) as sql:
        penstock.init()
        queue = penstock.create_queue("work", lease="5s")
        queue.pause()
        queue.push_many([NewTask({"n": n}, kind="quick") for n in range(tasks)])
        with working(tmp_path, server.dsn, QUICK) as worker:
            send_standby_away(sql, "missing")
            sql.execute("select penstock.set_queue('work', '{\"paused\": false}')")
            settled_down(worker)
            time.sleep(7)  # longer than the lease
            assert len(worker.noted) < 2 * MAX_UNSETTLED, "the unsettled tasks and those in hand"
            send_standby_away(sql, "")
            eventually(lambda: queue.status().totals["done"] == tasks)
            assert queue.status().totals["expired"] == 0
            assert sorted(map(int, worker.noted)) == [*range(tasks)], "each once"
            assert worker.stop() == 0
            assert worker.report["unsettled"] == 0


SHORT_DEADLINE = """
import penstock.worker.runner
penstock.worker.runner.DEADLINE = 1.0
"""
WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"


def test_settles_that_get_no_answer_stop_claims_and_fail_the_probe(server: Server, tmp_path: Path) -> None:
    """Their COMMITs wait in PostgreSQL for the standby, longer than the client does. Their tasks are busy meanwhile,
    but no other transaction holds them."""
    tasks = 5 * MAX_UNSETTLED
    port = free_port()
    with Penstock(server.dsn) as penstock, psycopg.connect(server.dsn, autocommit=True) as sql:
        penstock.init()
        queue = penstock.create_queue("work", lease="5s")
        queue.pause()
        queue.push_many([NewTask({"n": n}, kind="quick") for n in range(tasks)])
        with working(tmp_path, server.dsn, SHORT_DEADLINE + QUICK, "--health", str(port), "--silence", "5") as worker:
            send_standby_away(sql, "missing")
            sql.execute("select penstock.set_queue('work', '{\"paused\": false}')")
            settled_down(worker)
            eventually(lambda: probe(port)[0] == 503, within=60)
            assert probe(port)[1]["database"], "PostgreSQL answers the supervisor"
            time.sleep(7)  # longer than the lease
            assert len(worker.noted) < 2 * MAX_UNSETTLED, "the unsettled tasks and those in hand"
            ((sessions,),) = sql.execute(WAITING).fetchall()
            # Each settle that is tried leaves a session there: four at once, and one after each of the growing pauses.
            # Without the pauses four more would come every second.
            assert sessions <= 15
            send_standby_away(sql, "")
            eventually(lambda: queue.status().totals["done"] == tasks)
            eventually(lambda: probe(port)[0] == 200)
            # Upkeep may end a lease that a settle kept locked past its end before the supervisor can extend it.
            expired = queue.status().totals["expired"]
            assert {*map(int, worker.noted)} == {*range(tasks)}, "none is lost"
            assert len(worker.noted) - tasks <= expired < MAX_UNSETTLED, "and only what expired ran again"
            assert expired or not any(one["event"] == "lease lost" for one in worker.events)
            assert worker.stop() == 0
            assert worker.report["unsettled"] == 0


def test_claims_wait_after_an_answer_that_took_longer_than_half_the_lease(queue: Queue, dsn: str) -> None:
    """So the supervisor extends the lease before the next claim can end it."""
    queue.push()
    config = RunnerConfig("w", "jobs:app", dsn, {"work": 1}, {"work": 1.0}, concurrency=1, grace=1.0, overlap=False)

    async def answer(waited: float) -> tuple[bool, bool]:
        ours, theirs = socket.socketpair()
        with theirs:
            pipe = await Pipe.over(ours)
            workload = Workload(config, Registry(), pipe, Pace(1), Turns({"work": 1}))
            flight = InFlight(claim, queue, time.monotonic(), lease=1.0)
            flight.unanswered_since = time.monotonic() - waited
            workload.note_answer(flight)
            lags = workload.settles_lag
            if lags:
                await workload.changed.wait()  # claiming is told when it may go on
            pipe.close()
            return lags, workload.settles_lag

    claim = queue.claim()
    assert asyncio.run(answer(0.4)) == (False, False)
    assert asyncio.run(answer(0.6)) == (True, False)


def test_an_exit_tells_what_could_not_be_settled(server: Server, tmp_path: Path) -> None:
    with Penstock(server.dsn) as penstock, psycopg.connect(server.dsn, autocommit=True) as sql:
        penstock.init()
        queue = penstock.create_queue("work")
        queue.pause()
        queue.push_many([NewTask({"n": n}, kind="quick") for n in range(20)])
        with working(tmp_path, server.dsn, QUICK, "--grace", "1s") as worker:
            send_standby_away(sql, "missing")
            sql.execute("select penstock.set_queue('work', '{\"paused\": false}')")
            run = settled_down(worker)
            worker.terminate()
            assert worker.wait() == 4
            assert worker.report["unsettled"] == run
            told = [one for one in worker.events if one["event"].startswith("outcomes not settled")]
            assert [one["tasks"] for one in told] == [run]
        send_standby_away(sql, "")


def test_an_exit_tells_what_one_thread_could_not_settle(server: Server, tmp_path: Path) -> None:
    """A thread that claims, runs and settles a batch of tiny tasks by itself waits for the answer of its settle."""
    processes = os.cpu_count() or 1
    with Penstock(server.dsn) as penstock, psycopg.connect(server.dsn, autocommit=True) as sql:
        penstock.init()
        queue = penstock.create_queue("work")
        queue.push_many([NewTask({"n": n}, kind="quick") for n in range(20_000)])
        with working(tmp_path, server.dsn, QUICK, "--grace", "1s", "--processes", str(processes)) as worker:
            eventually(lambda: queue.status().totals["done"] == 20_000, within=60)
            queue.pause()
            queue.push_many([NewTask({"n": n}, kind="quick") for n in range(20_000, 20_500)])
            send_standby_away(sql, "missing")
            sql.execute("select penstock.set_queue('work', '{\"paused\": false}')")
            run = settled_down(worker) - 20_000
            worker.terminate()
            assert worker.wait() == 4
            assert worker.report["unsettled"] == run > 0
            assert worker.report["released"] == 0, "none of them was put back"
        send_standby_away(sql, "")


SLOW = "create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.005); return new; end'"


def test_a_settle_that_takes_too_long_is_split(
    app: Penstock, queue: Queue, sql: Connection, dsn: str, tmp_path: Path
) -> None:
    """A statement timeout ends a settle of many tasks; one of fewer gets through. The log reports it."""
    queue.push_many([NewTask({"n": n}, kind="quick") for n in range(600)])
    sql.execute(SLOW)
    sql.execute("create trigger slow before insert on penstock.history for each row execute function slow()")
    sql.execute(f"alter database {sql.info.dbname} set statement_timeout = '1s'")
    with working(tmp_path, dsn, QUICK) as worker:
        eventually(lambda: queue.status().totals["done"] == 600, within=60)
        assert any(one["event"].startswith("PostgreSQL gave up a settle") for one in worker.events), worker.stderr
        assert worker.stop() == 0


ENDLESS = """
create function endless() returns trigger language plpgsql as 'begin perform pg_sleep(60); return new; end';
create trigger endless before insert on penstock.history
    for each row when (new.kind = 'stuck') execute function endless();
"""
STUCK = """
@app.task(queue="work")
def stuck(n: int) -> None:
    note(n)
"""


def test_a_task_whose_settle_is_always_given_up_fails_the_probe(
    app: Penstock, queue: Queue, sql: Connection, dsn: str, tmp_path: Path
) -> None:
    """A statement timeout ends even the settle of this single task. The others are settled meanwhile."""
    queue.push_many([NewTask({"n": n}, kind="stuck" if n == 3 else "quick") for n in range(20)])
    sql.execute(ENDLESS)
    sql.execute(f"alter database {sql.info.dbname} set statement_timeout = '1s'")
    port = free_port()
    with working(tmp_path, dsn, QUICK + STUCK, "--health", str(port), "--silence", "4") as worker:
        eventually(lambda: queue.status().totals["done"] == 19, within=60)
        _, told = eventually(lambda: found if (found := probe(port))[0] == 503 else None, within=60)  # type: ignore[misc]
        assert [name.split(":")[-1] for name in told["stalled"]] == [str(worker.runners[0])]
        assert told["database"]
        (given_up, *_) = eventually(
            lambda: [one for one in worker.events if one["event"].startswith("PostgreSQL gives up each settle")]
        )
        assert (given_up["queue"], given_up["tasks"], given_up["level"]) == ("work", 1, "error")
        assert "statement timeout" in given_up["error"]
        assert not any(one["event"].startswith("settle blocked") for one in worker.events), "no transaction holds it"
        queue.push({"n": 20}, kind="quick")
        eventually(lambda: queue.status().totals["done"] == 20)
        sql.execute("drop trigger endless on penstock.history")
        eventually(lambda: queue.status().totals["done"] == 21, within=60)
        eventually(lambda: probe(port)[0] == 200)
        assert worker.stop() == 0
        assert len(worker.noted) == 21, "each once"


HOLDS = (
    """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")
"""
    + QUICK
)


def test_one_open_transaction_holds_up_only_its_own_tasks(
    queue: Queue, app: Penstock, sql: Connection, dsn: str, tmp_path: Path
) -> None:
    """It updated running tasks and stays open. The other tasks are settled at once, these when it has ended."""
    other = app.create_queue("other")
    subjects = [f"s{n}" for n in range(8)]
    queue.push_many([NewTask({"n": n}, kind="waits", subject=subject) for n, subject in enumerate(subjects)])
    code = HOLDS + '\n@app.task(queue="other")\ndef elsewhere(n: int) -> None:\n    pass\n'
    port = free_port()
    options = ("--concurrency", "8", "--health", str(port), "--silence", "2")
    with working(tmp_path, dsn, code, *options) as worker, psycopg.connect(dsn) as foreign:
        eventually(lambda: len(worker.noted) == 8)
        for subject in subjects:
            queue.push({"n": 100}, kind="waits", subject=subject, on_conflict="update", connection=foreign)
        worker.allow()
        other.push_many([NewTask({"n": n}, kind="elsewhere") for n in range(100)])
        queue.push_many([NewTask({"n": n}, kind="quick") for n in range(100)])
        eventually(lambda: (other.status().totals["done"], queue.status().totals["done"]) == (100, 100))
        eventually(lambda: any(one["event"].startswith("settle blocked") for one in worker.events))
        time.sleep(2)
        # The probe does not fail for tasks that another transaction holds. On a busy machine it may for a moment.
        eventually(lambda: probe(port)[0] == 200)
        foreign.commit()
        eventually(lambda: queue.status().totals["done"] == 116, within=40)
        assert worker.stop() == 0


def test_a_settle_need_not_wait(queue: Queue, dsn: str, sql: Connection) -> None:
    """A task that another transaction holds is answered busy and stays leased, and the rest is settled."""
    held, free = (queue.push(subject=subject).id for subject in ("held", "free"))
    claim = queue.claim(2)
    with psycopg.connect(dsn) as foreign:
        queue.push({"new": 1}, subject="held", on_conflict="update", connection=foreign)
        assert queue.settle(claim, wait=False) == {held: "busy", free: "done"}
        with pytest.raises(LeaseLost) as lost:
            queue.settle(claim, wait=False)
        assert (lost.value.refused, lost.value.busy) == ((free,), (held,))
    with psycopg.connect(dsn) as foreign:
        foreign.execute("select from penstock.lease for update")
        assert queue.settle(claim, [held], wait=False) == {held: "busy"}, "the lease itself is held"
        assert queue.release(claim, wait=False) == {held: "busy"}
    assert queue.settle(claim, {held: Outcome.failed("x", delay=0)}, wait=False) == {held: "pending"}


def test_a_document_without_a_subject_is_not_waited_for_long(queue: Queue, dsn: str) -> None:
    """Another transaction holds it and stays open: the settle ends after half a second and can be repeated."""
    queue.push()
    claim = queue.claim()
    with psycopg.connect(dsn) as foreign:
        foreign.execute("select from penstock.task for update")
        with pytest.raises(Unavailable, match="lock timeout") as given_up:
            queue.settle(claim, wait=False)
        assert given_up.value.reason == "retry"
    assert queue.settle(claim, wait=False) == {claim.ids[0]: "done"}


def test_one_worker_is_chosen_for_a_task_that_must_run_alone(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection
) -> None:
    """Only one worker of a fleet stops claiming, for half a minute; then another may."""

    def chosen(worker: str) -> bool:
        return bool(sql.execute("select penstock.take_quarantine('work', %s)", (worker,)).fetchone() == (True,))

    assert [chosen(worker) for worker in ("a", "b", "a", "c")] == [True, False, True, False]
    clock.advance(31)
    assert [chosen(worker) for worker in ("b", "a", "b")] == [True, False, True]


def test_a_fleet_goes_on_while_one_task_must_run_alone(
    queue: Queue, app: Penstock, clock: Clock, sql: Connection, dsn: str, tmp_path: Path
) -> None:
    """A task waits for a worker without other work: only one of the two workers stops claiming."""
    queue.push(kind="quick")
    for _ in range(2):
        queue.claim(2)
        clock.advance(11)
        app.upkeep()
    sql.execute("update penstock_test.clock set fixed = null")
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    queue.push_many([NewTask({"n": n}, kind="waits", priority=0) for n in range(40)])
    options = ("--concurrency", "4")
    with working(homes[0], dsn, HOLDS, *options) as one, working(homes[1], dsn, HOLDS, *options) as two:
        eventually(lambda: len(one.noted) + len(two.noted) == 8)
        chosen = "select count(distinct quarantine) from penstock.watermark where quarantine_until > penstock.clock()"
        eventually(lambda: sql.execute(chosen).fetchone() == (1,))
        holder = sql.execute("select quarantine from penstock.watermark where quarantine is not null").fetchone()
        assert holder is not None
        emptied, other = (one, two) if str(holder[0]).endswith(f":{one.runners[0]}") else (two, one)
        other.allow()
        eventually(lambda: len(other.noted) > 20)
        assert len(emptied.noted) == 4, "it has begun no other task"
        emptied.allow()
        eventually(lambda: queue.status().queued + queue.status().active == 0)
