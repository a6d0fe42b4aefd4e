"""The scaler at work, with real processes and a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from penstock import NewTask, Penstock, Queue
from penstock.client.database import Database
from penstock.embedded import Server
from penstock.scaler.policy.policies import find
from penstock.scaler.policy.signals import Limits
from penstock.scaler.run.background import ANSWER_TIMEOUT
from penstock.scaler.run.budget import Budget
from penstock.scaler.run.fleet import AdvisedWorkers
from penstock.scaler.run.hold import new_holder
from penstock.scaler.run.loop import Scaler
from penstock.scaler.run.plan import ScalingPlan
from scalers import JOBS, end_workers, registered, scaling, targets
from shell import each, is_one_block, penstock
from workers import alive, eventually, noted, write_app


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.create_queue("work", sla="30s", lease="5s")


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends the workers of a scaler after each test, whatever the test did to it."""
    sql = request.getfixturevalue("sql")
    yield
    end_workers(sql)


def rests(count: int, seconds: float, **more: datetime) -> list[NewTask]:
    return [NewTask({"seconds": seconds}, kind="rest", **more) for _ in range(count)]  # type: ignore[arg-type]


def done(queue: Queue, count: int) -> bool:
    return queue.status().totals["done"] == count


def workers(sql: Connection) -> int:
    return len(registered(sql))


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_a_quiet_queue_gets_five_thousand_tasks_at_once(
    tmp_path: Path, dsn: str, queue: Queue, sql: Connection
) -> None:
    """One worker would take forty seconds. The scaler begins with the fewest and asks for more in time: every task
    starts within its promise, or on a busy machine five seconds later."""
    queue.set(sla="25s")
    with scaling(tmp_path, dsn, "--max-workers", "6") as scaler:
        eventually(lambda: workers(sql) == 1)
        queue.push_many(rests(5000, 0.08))
        eventually(lambda: done(queue, 5000), within=60)
        found = targets(sql)
        assert found[0] == 1
        assert 1 < max(found) <= 6
        assert max(one["actual"] for one in scaler.decisions) <= 6
        late = sql.execute("select count(*) from penstock.history where claimed_at - due > '30 s'").fetchone()
        assert late == (0,)
        scaler.signal(signal.SIGTERM)
        assert scaler.wait() == 0
        assert workers(sql) == 0
    noted_why = sql.execute("select reason, inputs->>'pending' from penstock.decision order by workers desc").fetchone()
    assert noted_why is not None
    assert "waiting" in noted_why[0]


def test_it_scales_before_any_task_has_finished_and_not_beyond_its_connections(
    tmp_path: Path, dsn: str, app: Penstock, queue: Queue, sql: Connection
) -> None:
    """The service time is unknown: more workers come step by step, never more than connections allow."""
    app.queue("work").set(sla="2s")
    queue.push_many([NewTask({"name": "go"}, kind="wait") for _ in range(12)])
    options = ("--max-workers", "12", "--concurrency", "1", "--max-connections", "35")
    with scaling(tmp_path, dsn, *options) as scaler:
        eventually(lambda: workers(sql) == 3)
        assert queue.status().totals["done"] == 0
        eventually(lambda: any(one["bound_by"] == "connections" for one in scaler.decisions))
        time.sleep(2)
        assert workers(sql) == 3
        assert max(targets(sql)) == 3
        (tmp_path / "go").touch()
        eventually(lambda: done(queue, 12))
        scaler.signal(signal.SIGINT)
        assert scaler.wait() == 130


def test_a_quiet_queue_is_left_alone(tmp_path: Path, dsn: str, queue: Queue, sql: Connection) -> None:
    with scaling(tmp_path, dsn) as scaler:
        eventually(lambda: workers(sql) == 1)
        first = registered(sql)
        for _ in range(6):
            queue.push_many(rests(1, 0.01))
            time.sleep(0.8)
        eventually(lambda: done(queue, 6))
        assert {*targets(sql)} == {1}
        assert registered(sql) == first
        assert scaler.process.poll() is None


@pytest.mark.slow
def test_queues_share_the_workers(tmp_path: Path, dsn: str, app: Penstock, queue: Queue, sql: Connection) -> None:
    """Two queues want more workers than there may be: there are never more, each queue has its part, and both are
    served."""
    code = JOBS + JOBS.replace('queue="work"', 'queue="other"').replace("def rest", "def rest_too").replace(
        "def wait", "def wait_too"
    )
    other = app.create_queue("other", sla="3s")
    queue.set(sla="3s")
    queue.push_many(rests(60, 0.5))
    other.push_many([NewTask({"seconds": 0.5}, kind="rest_too") for _ in range(60)])
    options = ("--max-workers", "4", "--concurrency", "1")
    with scaling(tmp_path, dsn, *options, code=code) as scaler:
        eventually(lambda: workers(sql) == 4)
        eventually(lambda: done(queue, 60) and done(other, 60), within=60)
        latest: dict[str, int] = {}
        rows = sql.execute("select at, queue, workers from penstock.decision order by at, id").fetchall()
        for _, together in groupby(rows, key=lambda row: row[0]):
            latest |= {name: wanted for _, name, wanted in together}
            assert sum(latest.values()) <= 4
        assert {min(targets(sql)), min(targets(sql, "other"))} == {1}
        assert any("all queues share 4" in one["reason"] for one in scaler.decisions)


@pytest.mark.slow
def test_workers_are_ready_for_a_planned_batch(
    tmp_path: Path, dsn: str, app: Penstock, queue: Queue, sql: Connection
) -> None:
    """Its tasks are in the tables before they are due, so the workers are started before that too."""
    app.queue("work").set(sla="3s")
    with scaling(tmp_path, dsn, "--max-workers", "4", "--concurrency", "1", "--start-latency", "8s"):
        queue.push_many(rests(4, 1.0))
        eventually(lambda: done(queue, 4))
        due = datetime.now(UTC) + timedelta(seconds=12)
        queue.push_many(rests(8, 1.0, due=due))
        eventually(lambda: done(queue, 12), within=60)
        row = sql.execute("select count(*) from penstock.worker where requested_at < %s", (due,)).fetchone()
        assert row is not None
        assert row[0] >= 2


# --- killed, doubled, frozen ------------------------------------------------------------------------------------------


def test_a_killed_scaler_is_replaced_and_its_workers_go_on(
    tmp_path: Path, dsn: str, queue: Queue, sql: Connection
) -> None:
    options = ("--min-workers", "2", "--max-workers", "4", "--concurrency", "2")
    with scaling(tmp_path, dsn, *options) as first:
        eventually(lambda: workers(sql) == 2)
        names = registered(sql)
        queue.push_many([NewTask({"name": "go"}, kind="wait") for _ in range(2)])
        eventually(lambda: len(noted(tmp_path)) == 2)
        first.process.kill()
        first.process.wait()
        with scaling(tmp_path, dsn, *options, name="second") as second:
            time.sleep(3)
            assert registered(sql) == names  # none was doubled or replaced
            (tmp_path / "go").touch()
            eventually(lambda: done(queue, 2))
            epochs = "select distinct epoch from penstock.decision order by 1"
            eventually(lambda: sql.execute(epochs).fetchall() == [(1,), (2,)])
            second.signal(signal.SIGTERM)
            assert second.wait() == 0
            eventually(lambda: workers(sql) == 0)  # the workers that it took over are dismissed too
    outcomes = sql.execute("select outcome, attempt from penstock.history").fetchall()
    assert outcomes == [("done", 1)] * 2


def test_two_scalers_never_fight(tmp_path: Path, dsn: str, queue: Queue, sql: Connection) -> None:
    with scaling(tmp_path, dsn) as first:
        eventually(lambda: workers(sql) == 1)
        refused = penstock("scale", "jobs:app", dsn=dsn, cwd=tmp_path)
        assert refused.code == 1
        assert is_one_block(refused.err)
        assert f":{first.process.pid}:" in refused.err
        assert "--standby" in refused.err
        with scaling(tmp_path, dsn, "--standby", name="second") as second:
            assert second.events[-1].startswith("standing by: queue 'work' is scaled by ")
            assert first.process.poll() is None
            first.signal(signal.SIGTERM)
            assert first.wait() == 0
            eventually(lambda: "took over" in second.events)
            eventually(lambda: workers(sql) == 1)
            queue.push_many(rests(3, 0.01))
            eventually(lambda: done(queue, 3))


@pytest.mark.slow
def test_a_scaler_that_was_frozen_decides_nothing_more(tmp_path: Path, dsn: str, queue: Queue, sql: Connection) -> None:
    with scaling(tmp_path, dsn, "--min-workers", "2") as first:
        eventually(lambda: workers(sql) == 2)
        names = registered(sql)
        first.signal(signal.SIGSTOP)
        with scaling(tmp_path, dsn, "--min-workers", "2", "--standby", name="second") as second:
            eventually(lambda: "took over" in second.events)
            first.signal(signal.SIGCONT)
            assert first.wait() == 1
            assert "has taken over" in first.stderr
            time.sleep(3)
            assert registered(sql) == names
            queue.push_many(rests(4, 0.01))
            eventually(lambda: done(queue, 4))


@pytest.mark.slow
@pytest.mark.unbalanced
def test_while_postgresql_is_frozen_everything_stays(tmp_path: Path, sql: Connection) -> None:
    """Afterwards the scaler goes on by itself."""
    server = Server.start(tmp_path / "pg", environ=os.environ)
    try:
        with Penstock(server.dsn) as app:
            app.init()
            queue = app.create_queue("work", sla="30s")
        with scaling(tmp_path, server.dsn, "--min-workers", "2") as scaler:
            eventually(lambda: len(scaler.workers) == 2)
            eventually(lambda: looked(server.dsn) == 2)
            before = scaler.workers
            paused = backends(server.pid)
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            try:
                eventually(lambda: any("held" in event for event in scaler.events))
                time.sleep(4)
                assert scaler.workers == before
            finally:
                for pid in paused:
                    with suppress(ProcessLookupError):  # a session that was ending, and has ended since
                        os.kill(pid, signal.SIGCONT)
            eventually(lambda: "PostgreSQL is back" in scaler.events)
            with Penstock(server.dsn) as app:
                queue = app.queue("work")
                queue.push_many(rests(5, 0.01))
                eventually(lambda: done(queue, 5))
            time.sleep(8)  # longer than it waits for the beat of a worker
            assert scaler.workers == before
            server.kill()
            time.sleep(2)
            Server.start(tmp_path / "pg", environ=os.environ)
            with Penstock(server.dsn) as app:
                queue = app.queue("work")
                queue.push_many(rests(5, 0.01))
                eventually(lambda: done(queue, 10))
            assert scaler.process.poll() is None
            scaler.signal(signal.SIGTERM)
            assert scaler.wait() == 0
    finally:
        server.stop("immediate")


@pytest.mark.parametrize(
    "loss",
    [
        "delete from penstock.scaling",
        "update penstock.scaling set holder = 'elsewhere:1:2:abc', epoch = 0, until = '-infinity'",
    ],
    ids=["gone", "older"],
)
def test_a_hold_that_was_lost_with_an_old_primary_is_taken_again(
    loss: str, tmp_path: Path, dsn: str, queue: Queue, sql: Connection
) -> None:
    """An asynchronous standby may not have received the hold. No other scaler has the queue, so this one goes on."""
    with scaling(tmp_path, dsn, "--min-workers", "1") as scaler:
        eventually(lambda: workers(sql) == 1)
        before = scaler.workers
        (holder,) = sql.execute("select holder from penstock.scaling").fetchone() or ("",)
        sql.execute(loss.encode())
        held = "select from penstock.scaling where holder = %s and until > now() and decided_at is not null"
        eventually(lambda: sql.execute(held, (holder,)).fetchone() is not None)
        assert scaler.process.poll() is None, scaler.stderr
        assert scaler.workers == before
        scaler.signal(signal.SIGTERM)
        assert scaler.wait() == 0


def test_it_decides_at_once_when_postgresql_is_back(dsn: str, queue: Queue, sql: Connection) -> None:
    """A late look comes after an outage, and the scaler waits for no worker."""
    plan = ScalingPlan(
        {"work": Limits(sla=30.0, min_workers=0, max_workers=10)}, find("deadline"), Budget(10), interval=0.1
    )
    database, advised = Database(dsn), {"work": AdvisedWorkers("work", 1)}
    scaler = Scaler(plan, database, advised, holder=new_holder(), say=lambda _: None, tell=print)
    assert scaler.take()
    scaler.tick()
    queue.push_many({} for _ in range(100))
    time.sleep(ANSWER_TIMEOUT + 1)
    scaler.tick()
    scaler.stop()
    database.close()
    assert targets(sql) == [0, 1]


def looked(dsn: str) -> int:
    with psycopg.connect(dsn) as sql:
        return workers(sql)


def backends(postmaster: int) -> list[int]:
    """Returns all processes of a server, the postmaster first, so that it starts no other meanwhile."""
    below = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text("ascii").split()
    return [postmaster, *map(int, below)]


def test_a_second_signal_does_not_wait(tmp_path: Path, dsn: str, queue: Queue, sql: Connection) -> None:
    """Running tasks go back without losing an attempt."""
    queue.push_many([NewTask({"name": "never"}, kind="wait")])
    with scaling(tmp_path, dsn) as scaler:
        eventually(lambda: noted(tmp_path))
        pids = scaler.workers
        scaler.signal(signal.SIGTERM)
        time.sleep(1)
        assert scaler.process.poll() is None  # it waits for the task
        scaler.signal(signal.SIGTERM)
        assert scaler.wait() == 0
        assert not any(map(alive, pids))
    status = queue.status()
    assert (status.pending + status.planned, status.active, status.totals["failed"]) == (1, 0, 0)


# --- refusals, and other cases ----------------------------------------------------------------------------------------


def test_wrong_settings_are_refused_before_anything_starts(
    tmp_path: Path, dsn: str, app: Penstock, queue: Queue, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B45 among others: each wrong setting is named, and nothing is written."""
    write_app(tmp_path, JOBS)
    monkeypatch.chdir(tmp_path)
    app.create_queue("other")
    wrong = {
        ("--sla", "0"): "sla: 0.0",
        ("--sla", "-1"): "sla: -1",
        ("--sla", "nan"): "sla: nan",
        ("--min-workers", "5", "--max-workers", "2"): "min_workers: 5 is more than max_workers, 2",
        ("--max-workers", "0"): "max_workers: 0",
        ("--interval", "0"): "interval: '0'",
        ("--policy", "dedline"): "Did you mean deadline?",
        ("--queues", "wrok"): "Did you mean 'work'?",
        ("--queues", "other"): "no handler of the application is for 'other'",
        ("--max-connections", "3"): "max_connections: 3 is not enough for one worker",
        ("--max-memory", "some"): "max_memory: 'some'",
        ("--command", "scale {deployment}"): "{deployment} is not one of",
        ("--command", "'"): "command:",
        ("--command", "x", "--advise"): "only one of them",
        ("--once",): "once:",
    }
    found = each(*(("scale", "jobs:app", *options) for options in wrong), dsn=dsn)
    for (options, said), ran in zip(wrong.items(), found, strict=True):
        assert ran.code == 3, (options, ran)
        assert said in ran.err, options
        assert is_one_block(ran.err), options
    (nowhere, command) = each(("scale", "jobs:nothing"), ("scale", "decid"), dsn=dsn)
    assert (nowhere.code, command.code) == (3, 2)
    assert "Did you mean 'decide'?" in command.err
    assert targets(sql) == []
    assert sql.execute("select count(*) from penstock.scaling").fetchone() == (0,)


def test_a_rehearsal_writes_nothing_and_advice_starts_nothing(
    tmp_path: Path, dsn: str, queue: Queue, sql: Connection
) -> None:
    write_app(tmp_path, JOBS)
    queue.push_many(rests(3, 0.01))
    ran = penstock("scale", "jobs:app", "--dry-run", "--once", dsn=dsn, cwd=tmp_path)
    assert ran.code == 0
    assert " work: 1, NORMAL: 3 waiting" in ran.out
    assert targets(sql) == []
    ran = penstock("scale", "jobs:app", "--advise", "--once", "--min-workers", "0", dsn=dsn, cwd=tmp_path)
    assert ran.code == 0
    assert targets(sql) == [1]
    assert workers(sql) == 0
    for word, code in (("true", 0), ("false", 1)):
        ran = penstock("scale", "jobs:app", "--command", f"{word} {{workers}}", "--once", dsn=dsn, cwd=tmp_path)
        assert ran.code == code, ran.err
    assert sql.execute("select penstock.target_workers('work')").fetchone() == (1,)


def test_a_changed_decision_is_recorded_in_full_and_the_rest_only_counts(
    dsn: str, queue: Queue, sql: Connection
) -> None:
    limits = Limits(sla=30.0, min_workers=0, max_workers=10, interval=1.0)
    plan = ScalingPlan({"work": limits}, find("deadline"), Budget(10))
    database, advised = Database(dsn), {"work": AdvisedWorkers("work", 1)}
    scaler = Scaler(plan, database, advised, holder=new_holder(), say=lambda _: None, tell=print)
    assert scaler.take()
    for tasks in (0, 100):
        queue.push_many({} for _ in range(tasks))
        for _ in range(3):
            scaler.tick()
    scaler.stop()
    database.close()
    rows = sql.execute("select workers, reason, inputs->'pending', rules from penstock.decision order by id").fetchall()
    assert [(target, pending) for target, _, pending, _ in rows] == [(0, 0), (1, 100)]
    assert all(reason.startswith(f"{target}: {pending} waiting") and rules for target, reason, pending, rules in rows)


def test_the_profile_of_the_pipeline_is_read(tmp_path: Path, dsn: str, queue: Queue, sql: Connection) -> None:
    """A profile of another version is reported, and the scaler works without it."""
    write_app(tmp_path, JOBS)
    hours = {"p50": [6.0] * 168, "minutes": [60] * 168}
    for version, said in ((1, False), (9, True)):
        told = {"queue": "work", "version": version, "covers_from": "2026-01-01", "covers_to": "2026-02-01"}
        sql.execute(
            "select penstock.set_profiles(%s)", (Jsonb([told | {"data": {"hours": hours, "dispersion": 1.0}}]),)
        )
        ran = penstock("scale", "jobs:app", "--advise", "--once", dsn=dsn, cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert ("profile: version 9 is not 1" in ran.err + ran.out) is said
    assert targets(sql) == [1]


def test_an_adopted_table_is_a_queue_too(tmp_path: Path, dsn: str, app: Penstock, sql: Connection) -> None:
    """Another program drains the table, so only its target is recorded."""
    write_app(tmp_path, JOBS)
    sql.execute("create table orders (id int primary key, status text not null, created timestamptz not null)")
    sql.execute(
        "insert into orders select n, case when n % 4 = 0 then 'done' when n % 9 = 0 then 'failed' else 'new' end,"
        " now() - interval '5 s' from generate_series(1, 400) as n"
    )
    words = "--key id --status status --inserted created --ready new --retry failed --done done --sla 30s --apply"
    adopted = penstock("adopt", "orders", *words.split(), "--strategy", "fibonacci:1m", dsn=dsn)
    assert adopted.code == 0, adopted.err
    ran = penstock("scale", "jobs:app", "--queues", "orders", "--advise", "--once", "--json", dsn=dsn, cwd=tmp_path)
    assert ran.code == 0, ran.err
    row = sql.execute("select workers, inputs->'pending' from penstock.decisions('orders')").fetchone()
    assert row is not None
    assert row[0] >= 1
    assert 250 < row[1] <= 400
