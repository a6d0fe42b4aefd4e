"""Processes that crash, are killed, or are replaced because it is time for a new one. No task is lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from penstock import NewTask, Penstock, Queue
from penstock.embedded import Server
from shell import penstock
from workers import End, alive, children, effects, ends, eventually, noted, registered, work, working, write_app


@pytest.fixture
def lasting(app: Penstock) -> Queue:
    """A queue whose leases do not end during a test."""
    return app.create_queue("work", max_attempts=3, lease="10m")


WAITS = """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")
    note("done", n)

@app.task(queue="work", run="process")
def apart(n: int) -> None:
    note("begun", n)
    wait_for("go")
    note("done", n)
"""


def test_a_killed_process_is_replaced_and_its_tasks_run_again(
    dsn: str, lasting: Queue, sql: Connection, tmp_path: Path
) -> None:
    lasting.push_many([NewTask({"n": n}, kind="apart" if n % 4 == 0 else "waits") for n in range(20)])
    with working(tmp_path, dsn, WAITS, "-c", "4", processes=2) as worker:
        eventually(lambda: len(worker.noted) >= 8)
        first, second = worker.runners
        found = children(first, "penstock.worker.child")
        assert found
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not any(map(alive, found)))
        worker.allow()
        eventually(lambda: lasting.status().totals["done"] == 20)
        eventually(lambda: len(registered(sql)) == 2 and first not in registered(sql))
        assert second in registered(sql)
        assert worker.stop() == 0
        (killed,) = (one for one in worker.events if one["event"] == "process ended" and one["level"] == "error")
        assert killed["why"] == "signal 9"
        assert worker.report["done"] == 20
    done = Counter(words for words in noted(tmp_path) if words.startswith("done"))
    assert done == {f"done {n}": 1 for n in range(20)}
    outcomes = Counter(end.outcome for end in ends(sql))
    assert outcomes["done"] == 20
    assert 1 <= outcomes["expired"] <= 4, "what it had in hand"


POISON = """
@app.task(queue="work", max_attempts=2, retry=Fixed("1ms"))
def poison() -> None:
    note("poison")
    os._exit(1)

@app.task(queue="work")
def mate(n: int) -> None:
    time.sleep(0.01)
    note("mate", n)
"""


def test_a_task_that_kills_its_worker_is_found(dsn: str, lasting: Queue, sql: Connection, tmp_path: Path) -> None:
    """The tasks that shared its lease lose nothing, not even an attempt."""
    mates = [NewTask({"n": n}, kind="mate") for n in range(7)]
    lasting.push_many([*mates[:3], NewTask({}, kind="poison"), *mates[3:]])
    ran = work(tmp_path, dsn, POISON, "-c", "8")
    assert (ran.code, ran.json["done"], ran.json["dead"]) == (0, 7, 1), ran.err
    (dead,) = lasting.tasks()
    assert (dead.kind, dead.state, dead.reason) == ("poison", "dead", "crashed")
    assert {*noted(tmp_path)} == {"poison", *(f"mate {n}" for n in range(7))}
    found = ends(sql)
    assert found.count(End("mate", "done", 1, None)) == 7
    assert [end for end in found if end.kind == "poison"][-1] == End("poison", "dead", 2, "Crashed")


UNREPORTED = """
from penstock.worker.workload import Workload

def die(self, flight):
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(9)
    add(self, flight)

add, Workload.add = Workload.add, die

@app.task(queue="work")
def mate(n: int) -> None:
    note("mate", n)
"""


def test_a_claim_that_its_process_did_not_live_to_report_ends_too(
    dsn: str, lasting: Queue, sql: Connection, tmp_path: Path
) -> None:
    """The supervisor does not know its lease, which would last for ten minutes."""
    lasting.push_many([NewTask({"n": n}, kind="mate") for n in range(3)])
    ran = work(tmp_path, dsn, UNREPORTED, "-c", "8")
    assert (ran.code, ran.json["done"], ran.json["dead"]) == (0, 3, 0), ran.err
    assert (tmp_path / "died").exists()
    assert sorted(end.outcome for end in ends(sql)) == 3 * ["done"] + 3 * ["expired"]


GREEDY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 * 1024**3, 2 * 1024**3))
HUGE = 8 * 1024**3

@app.task(queue="work", max_attempts=2, retry=Fixed("1ms"))
def greedy() -> None:
    bytearray(HUGE)

@app.task(queue="work", max_attempts=2, retry=Fixed("1ms"))
def greedy_library() -> None:
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    ctypes.memset(malloc(HUGE) or 0, 1, HUGE)  # a library that does not look whether it got the memory

@app.task(queue="work")
def mate(n: int) -> None:
    time.sleep(0.01)
    note("mate", n)
"""


def test_under_a_memory_limit_only_the_tasks_that_need_too_much_die(
    dsn: str, lasting: Queue, sql: Connection, tmp_path: Path
) -> None:
    """Python raises an error in the handler. A library may end the process: such a task is found as any that does."""
    mates = [NewTask({"n": n}, kind="mate") for n in range(7)]
    lasting.push_many([*mates[:2], NewTask({}, kind="greedy"), NewTask({}, kind="greedy_library"), *mates[2:]])
    ran = work(tmp_path, dsn, GREEDY, "-c", "8")
    assert (ran.code, ran.json["done"], ran.json["dead"]) == (0, 7, 2), ran.err
    assert {(task.kind, task.reason) for task in lasting.tasks(state="dead")} == {
        ("greedy", "attempts spent"),
        ("greedy_library", "crashed"),
    }
    assert {*noted(tmp_path)} == {f"mate {n}" for n in range(7)}
    found = ends(sql)
    assert found.count(End("mate", "done", 1, None)) == 7
    assert [end for end in found if end.kind == "greedy"][-1] == End("greedy", "dead", 2, "MemoryError")
    assert [end for end in found if end.kind == "greedy_library"][-1] == End("greedy_library", "dead", 2, "Crashed")


LEAVES = """
def once(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

@app.task(queue="work")
def in_thread() -> None:
    if once("in_thread"):
        sys.exit(3)

@app.task(queue="work")
async def on_loop() -> None:
    if once("on_loop"):
        raise SystemExit

@app.task(queue="work", run="process")
def in_process() -> None:
    if once("in_process"):
        raise KeyboardInterrupt

@app.task(queue="work")
def stays(n: int) -> None:
    time.sleep(0.005)
    note("stays", n)
"""


def test_a_handler_that_leaves_has_its_process_replaced(
    dsn: str, lasting: Queue, sql: Connection, tmp_path: Path
) -> None:
    lasting.push_many([NewTask({}, kind=kind) for kind in ("in_thread", "on_loop", "in_process")])
    lasting.push_many([NewTask({"n": n}, kind="stays") for n in range(3000)])
    ran = work(tmp_path, dsn, LEAVES, "-c", "2")
    assert (ran.code, ran.json["done"], ran.json["failed"]) == (0, 3003, 3), ran.err
    assert sorted(noted(tmp_path)) == sorted(f"stays {n}" for n in range(3000))
    assert len({one.pid for one in effects(tmp_path)}) >= 2
    found = [end for end in ends(sql) if end.kind != "stays"]
    assert sorted(end for end in found if end.error_class) == [
        End("in_process", "failed", 1, "KeyboardInterrupt"),
        End("in_thread", "failed", 1, "SystemExit"),
        End("on_loop", "failed", 1, "SystemExit"),
    ]
    assert {end.attempt for end in ends(sql) if end.kind == "stays"} == {1}
    assert Counter(end.outcome for end in ends(sql))["done"] == 3003


def test_a_handler_that_always_leaves_is_dead_in_the_end(
    dsn: str, queue: Queue, sql: Connection, tmp_path: Path
) -> None:
    """It is not put back for ever."""
    queue.set(retry="fixed:1ms")
    queue.push(kind="leaves")
    code = """
@app.task(queue="work")
def leaves() -> None:
    sys.exit("no licence")
"""
    ran = work(tmp_path, dsn, code)
    assert (ran.code, ran.json["dead"]) == (1, 1), ran.err
    assert [(end.outcome, end.attempt) for end in ends(sql)] == [("failed", 1), ("failed", 2), ("dead", 3)]
    assert queue.tasks(state="dead")[0].message == "no licence"


GROWS = """
kept = []

@app.task(queue="work")
def step(n: int) -> None:
    time.sleep(0.02)
    note("step", n)

@app.task(queue="work")
def leaks(n: int) -> None:
    kept.append(b"x" * (40 << 20))
    time.sleep(0.1)
    note("leaks", n)
"""


def test_processes_are_replaced_in_time(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(30)])
    ran = work(tmp_path, dsn, GROWS, "-c", "2", "--max-tasks", "5")
    assert (ran.code, ran.json["done"]) == (0, 30), ran.err
    assert sorted(noted(tmp_path)) == sorted(f"step {n}" for n in range(30))
    assert len({one.pid for one in effects(tmp_path)}) >= 3

    queue.push_many([NewTask({"n": n}, kind="leaks") for n in range(12)])
    ran = work(tmp_path, dsn, GROWS, "-c", "1", "--max-rss", "200M")
    assert (ran.code, ran.json["done"]) == (0, 12), ran.err
    leaks = [one for one in effects(tmp_path) if one.words.startswith("leaks")]
    assert sorted(one.words for one in leaks) == sorted(f"leaks {n}" for n in range(12))
    assert len({one.pid for one in leaks}) >= 2

    queue.push_many([NewTask({"n": n}, kind="step") for n in range(3)])
    ran = work(tmp_path, dsn, GROWS, "-c", "1", "--max-rss", "5M")
    assert (ran.code, ran.json["done"]) == (0, 3), "every process exceeds this limit: they work nevertheless"
    assert Counter((end.outcome, end.attempt) for end in ends(sql) if end.outcome != "released") == {("done", 1): 45}


# --- PostgreSQL goes away and comes back ------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    home = tmp_path / "pg"
    yield Server.start(home, environ=os.environ, settings={"shared_buffers": "128MB"})
    if running := Server.running(home):
        running.stop("immediate")


STEPS = """
@app.task(queue="work")
def plain(n: int) -> None:
    time.sleep(0.01)
    note("plain", n)

@app.task(queue="work")
async def settles(n: int, context: AsyncContext) -> None:
    await asyncio.sleep(0.01)
    async with context.transaction() as connection:
        await connection.execute("insert into effect values (%s)", (n,))
"""


def test_a_worker_outlives_a_restart_of_postgresql(server: Server, tmp_path: Path) -> None:
    with Penstock(server.dsn) as penstock:
        penstock.init()
        queue = penstock.create_queue("work", lease="2s", retry="fixed:50ms")
        queue.push_many([NewTask({"n": n}, kind=("plain", "settles")[n % 2]) for n in range(1000)])
        with psycopg.connect(server.dsn, autocommit=True) as sql:
            sql.execute("create table effect (n int)")
        with working(tmp_path, server.dsn, STEPS, "-c", "4", processes=2) as worker:
            eventually(lambda: len(worker.noted) > 50)
            runners = worker.runners
            server.stop("immediate")
            server = Server.start(server.home, environ=os.environ)
            eventually(lambda: queue.status().totals["done"] == 1000)
            assert worker.runners == runners, "no process had to be replaced"
            with psycopg.connect(server.dsn, autocommit=True) as sql:
                assert [n for (n,) in sql.execute("select n from effect order by n")] == [*range(1, 1000, 2)]
                eventually(lambda: len(registered(sql)) == 2)
            server.stop("fast")
            worker.terminate()
            assert worker.wait() == 0, "it can stop without PostgreSQL"
        assert {*noted(tmp_path)} == {f"plain {n}" for n in range(0, 1000, 2)}
        server = Server.start(server.home, environ=os.environ)
        assert penstock.verify().ok


@pytest.mark.parametrize("options", ["", ", run='process'"], ids=["thread", "process"])
def test_a_child_that_a_handler_forked_does_not_hide_its_death(
    queue: Queue, sql: Connection, dsn: str, tmp_path: Path, options: str
) -> None:
    """The child inherits the pipe to the supervisor and lives on, but the process that writes to it is dead."""
    code = f"""
@app.task(queue="work"{options})
def fork() -> None:
    note("begun")
    if len(Path("effects").read_text().splitlines()) > 1:
        return
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    queue.set(lease="1s", retry="fixed:100ms")
    queue.push(kind="fork")
    with working(tmp_path, dsn, code) as worker:
        eventually(lambda: len(worker.noted) == 2, within=25)
        eventually(lambda: queue.status().totals["done"] == 1)


KILLS = """
@app.task(queue="work", max_attempts=1)
def kills() -> None:
    os._exit(9)

@app.task(queue="work", max_attempts=3, retry=Fixed("1h"))
def kills_once() -> None:
    os._exit(9)
"""


def last_line(home: Path, dsn: str) -> tuple[int, str]:
    ran = penstock("work", "jobs:app", "--until-empty", dsn=dsn, cwd=home)
    return ran.code, ran.out.splitlines()[-1].partition(" in ")[0]


def test_a_task_that_ends_its_process_is_counted(dsn: str, lasting: Queue, tmp_path: Path) -> None:
    write_app(tmp_path, KILLS)
    lasting.push({}, kind="kills")
    lasting.push({}, kind="kills", due=datetime.now(UTC) + timedelta(hours=1))
    assert last_line(tmp_path, dsn) == (1, "0 done, 0 failed, 1 dead, 1 task planned for later")
    lasting.push({}, kind="kills_once")
    code, said = last_line(tmp_path, dsn)
    assert (code, said) == (1, "0 done, 1 failed, 2 tasks planned for later")


def test_tasks_of_an_unknown_kind_are_counted(dsn: str, lasting: Queue, tmp_path: Path) -> None:
    write_app(tmp_path, KILLS + '\n@app.task(queue="work")\ndef fine() -> None: ...\n')
    lasting.push_many([NewTask({}, kind="misspelt")] * 2)
    assert last_line(tmp_path, dsn) == (1, "0 done, 0 failed, 2 put back (unknown kind), 2 tasks planned for later")
    lasting.push_many([NewTask({}, kind="misspelt"), NewTask({}, kind="fine")])
    assert last_line(tmp_path, dsn) == (
        0,
        "1 done, 0 failed, 1 put back (unknown kind), 3 tasks planned for later",
    )
