"""How soon work goes on after a worker is killed, and after PostgreSQL is back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg

from bench.support.harness import Bench
from penstock import NewTask, Penstock
from penstock.embedded import Server

ROOT = Path(__file__).parent.parent.parent
WORK = [sys.executable, "-m", "penstock.cli", "work", "bench.support.handlers:app", "-q", "--queues", "bench"]
WORK_INSIDE = [word.replace("handlers:app", "handlers_inside:app") for word in WORK]  # with handlers in middleware


@contextmanager
def worker(dsn: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs one `penstock work`, and yields it when it is ready."""
    process = subprocess.Popen(
        [*WORK, *options], env={**os.environ, "PENSTOCK_DSN": dsn, "BENCH_LOG": str(log)}, cwd=ROOT
    )
    try:
        wait_until(lambda: bool(registered(dsn, process.pid)))
        yield process
    finally:
        process.terminate()
        process.wait(60)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    return []


def registered(dsn: str, pid: int) -> bool:
    with psycopg.connect(dsn, autocommit=True) as sql:
        rows = sql.execute("select pid from penstock.worker").fetchall()
    return bool({one for (one,) in rows} & {*children(pid)})


def wait_until(true: Callable[[], bool], timeout: float = 60.0) -> float:
    until = time.monotonic() + timeout
    while not true():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.002)
    return time.time()


LIVES = 10  # kills of one task: after twenty crashes in quarantine it would be dead


def after_a_kill(server: Bench, home: Path, rounds: int, lease: float) -> tuple[list[float], list[float]]:
    """Measures the time from kill -9 of a whole worker until another one has begun its task, and of its runner alone
    until the supervisor's next runner has."""
    whole: list[float] = []
    runner: list[float] = []
    for first in range(0, rounds, LIVES):
        with server.database() as dsn:
            kill_again_and_again(dsn, home / f"starts-{first}", min(LIVES, rounds - first), lease, whole, runner)
    return whole, runner


def kill_again_and_again(
    dsn: str, log: Path, rounds: int, lease: float, whole: list[float], runner: list[float]
) -> None:
    log.touch()
    with Penstock(dsn) as app:
        app.queue("bench").set(lease=lease, max_attempts=None)
        app.queue("bench").push({}, kind="hold")
    busy = start(dsn, log)
    wait_until(lambda: lines(log) == 1)
    for n in range(rounds):
        if n % 5 == 4:
            runner.append(begun_again(log, children(busy.pid)))
        standby = start(dsn, log)
        wait_until(partial(registered, dsn, standby.pid))
        whole.append(begun_again(log, [busy.pid, *children(busy.pid)]))
        busy.wait()
        busy = standby
        print(f"  kill {len(whole)}  claimed again after {whole[-1]:.2f} s", flush=True)
    for pid in (busy.pid, *children(busy.pid)):
        os.kill(pid, signal.SIGKILL)
    busy.wait()


def begun_again(log: Path, victims: list[int]) -> float:
    """Kills processes, and returns the seconds until the task has begun elsewhere."""
    before, began = lines(log), time.time()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    return wait_until(lambda: lines(log) > before) - began


def start(dsn: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*WORK, "--concurrency", "1"], env={**os.environ, "PENSTOCK_DSN": dsn, "BENCH_LOG": str(log)}, cwd=ROOT
    )


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def after_a_restart(home: Path, rounds: int) -> list[float]:
    """Measures the time from the first connection that PostgreSQL accepts to the first claim after it."""
    found = []
    server_home = home / "restarted"
    server = Server.start(server_home, environ=os.environ)
    try:
        with Penstock(server.dsn) as app:
            app.init()
            queue = app.create_queue("bench", lease="5s", max_attempts=None)
            queue.push_many(NewTask({"seconds": 0.02}, kind="sleep") for _ in range(40_000))
        with worker(server.dsn, home / "unused", "--concurrency", "4"):
            for n in range(rounds):
                time.sleep(0.5)
                (server.kill if n % 2 else partial(server.stop, "immediate"))()
                time.sleep(0.3 * (n % 6))  # short and long outages
                accepted: list[float] = []
                prober = threading.Thread(target=probe, args=(server.dsn, accepted))
                prober.start()
                server = Server.start(server_home, environ=os.environ)
                prober.join()
                found.append(first_claim(server.dsn, accepted[0]))
                print(f"  round {n + 1}  first claim after {found[-1]:.2f} s", flush=True)
    finally:
        server.stop("immediate")
    return found


def probe(dsn: str, accepted: list[float]) -> None:
    while not accepted:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn):
            accepted.append(time.time())
        time.sleep(0.002)


def first_claim(dsn: str, since: float) -> float:
    statement = (
        "select min(claimed_at) from (select claimed_at from penstock.lease union all"
        " select claimed_at from penstock.history) as c where claimed_at > to_timestamp(%s)"
    )
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with psycopg.connect(dsn, autocommit=True) as sql:
            row = sql.execute(statement, (since,)).fetchone()
        if row and row[0]:
            return float(row[0].timestamp()) - since
        time.sleep(0.05)
    raise TimeoutError
