"""The cost of many idle workers and queues: python bench/scale.py idle|fleet|queues|held|all [--workers 100]

`idle`: a few supervisors with several processes each and one queue, and the cost of a push. `fleet`: a hundred
supervisors of one process each and one queue, with the statements that PostgreSQL logs. If memory is short there are
fewer of them, and the verdict says so.
`queues`: a thousand queues with a worker, and then with a fleet, with the CPU time of upkeep. `held`: the price of a
push while 500 workers beat, busy and free in turn, and a snapshot is held."""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import psycopg

from bench.support.harness import Bench, bench, judged, report
from penstock import NotFound, Penstock

SUPERVISORS, PROCESSES = 5, 4
FLEET, STEP = 100, 10  # workers, and how many of them start at once
WORKER_BYTES = 170 * 2**20  # a supervisor and its process
SPARE_BYTES = 3 * 2**30
UPKEEPERS, UPKEEP_SECONDS = 4, 40.0
SETTINGS = {"max_connections": "900"}
LOGGED = re.compile(rb"LOG:  (?:statement|execute [^:]*):\s+(\w+)")  # a statement can begin with a new line
QUEUES = 1000
CODE = """
from penstock import Penstock
app = Penstock()
for name in {names}:
    @app.task(queue=name, kind="default")
    def nothing() -> None: ...
"""


@contextmanager
def working(home: Path, dsn: str, *, supervisors: int = 1, processes: int = 1) -> Iterator[None]:
    """Runs `penstock work` several times, and ends all of it with the block."""
    command = [sys.executable, "-m", "penstock.cli", "work", "jobs:app", "--json", "--processes", str(processes)]
    env = {**os.environ, "PENSTOCK_DSN": dsn}
    with ExitStack() as stack, (home / "log").open("wb") as log:
        started = [
            subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            for _ in range(supervisors)
        ]
        for one in started:
            stack.callback(one.wait)
            stack.callback(one.terminate)
        yield


def wait_for_workers(sql: psycopg.Connection, count: int) -> None:
    wait_until(lambda: sql.execute("select from penstock.worker").rowcount >= count)


def wait_until(found: Callable[[], Any], seconds: float = 120.0) -> float:
    """Waits for a condition, and returns the seconds that it took."""
    began = time.monotonic()
    while not found():
        if time.monotonic() - began > seconds:
            raise TimeoutError
        time.sleep(0.01)
    return time.monotonic() - began


def commits(sql: psycopg.Connection) -> int:
    """Returns the number of transactions of the database. Other sessions report theirs once a second or at rest."""
    sql.execute("select pg_stat_force_next_flush()")
    time.sleep(1.2)
    row = sql.execute("select xact_commit + xact_rollback from pg_stat_database where datname = current_database()")
    return int((row.fetchone() or (0,))[0])


def rate(sql: psycopg.Connection, seconds: float) -> float:
    """Returns transactions a second, without our own."""
    before, began = commits(sql), time.monotonic()
    time.sleep(seconds)
    return (commits(sql) - before - 2) / (time.monotonic() - began)


def lateness(sql: psycopg.Connection, tasks: int) -> list[float]:
    """Pushes tasks, and returns the seconds from push to claim in the order of the pushes."""
    rows: list[tuple[float]] = []

    def all_there() -> bool:
        rows[:] = sql.execute(
            "select extract(epoch from claimed_at - created)::float8 from penstock.history order by task_id"
        ).fetchall()
        return len(rows) >= tasks

    wait_until(all_there)
    return [seconds for (seconds,) in rows]


def summarize_waits(values: list[float]) -> dict[str, float]:
    return {"p50_ms": round(1000 * statistics.median(values), 2), "max_ms": round(1000 * max(values), 1)}


def idle(server: Bench, home: Path) -> dict[str, Any]:
    (home / "jobs.py").write_text(CODE.format(names=["bench"]), "utf-8")
    pushes = 40
    with (
        server.database() as dsn,
        server.sql(dsn) as sql,
        working(home, dsn, supervisors=SUPERVISORS, processes=PROCESSES),
        Penstock(dsn) as app,
    ):
        wait_until(lambda: sql.execute("select from penstock.worker").rowcount == SUPERVISORS * PROCESSES)
        time.sleep(8)
        resting = rate(sql, 20)
        queue = app.queue("bench")
        before, began = commits(sql), time.monotonic()
        for _ in range(pushes):
            queue.push({})
            time.sleep(0.5)
        busy, seconds = commits(sql) - before - 2, time.monotonic() - began
        late = lateness(sql, pushes)
        # A task without a notification.
        sql.execute("update penstock.queue set settings = '{\"notify\": false}'")
        for _ in range(10):
            queue.push({})
            time.sleep(random.uniform(0.5, 1.5))
        silent = lateness(sql, pushes + 10)
    return {
        "supervisors": SUPERVISORS,
        "processes": SUPERVISORS * PROCESSES,
        "transactions_a_second_of_a_supervisor": round(resting / SUPERVISORS, 2),
        "transactions_a_second_of_a_process": round(resting / SUPERVISORS / PROCESSES, 2),
        "transactions_of_a_push": round((busy - resting * seconds) / pushes, 2),
        "push_to_claim": summarize_waits(late),
        "push_to_claim_without_notification": summarize_waits(silent[-10:]),
    }


def fleet(server: Bench, home: Path, asked: int = FLEET, seconds: float = 30.0) -> dict[str, Any]:
    """Measures the statements a second of supervisors with one process each, from PostgreSQL's log."""
    (home / "jobs.py").write_text(CODE.format(names=["bench"]), "utf-8")
    count = fit_in_memory(asked, memory_available())
    with server.database() as dsn, server.sql(dsn) as sql, ExitStack() as stack:
        for begun in range(0, count, STEP):
            step = min(STEP, count - begun)
            stack.enter_context(working(home, dsn, supervisors=step))
            wait_for_workers(sql, begun + step)
        time.sleep(10)
        sql.execute("alter system set log_statement = 'all'")
        sql.execute("select pg_reload_conf()")
        time.sleep(2)
        before = server.server.log.stat().st_size
        time.sleep(seconds)
        with server.server.log.open("rb") as log:
            log.seek(before)
            said = [word.lower() for word in LOGGED.findall(log.read())]
        sql.execute("alter system reset log_statement")
        sql.execute("select pg_reload_conf()")
    plain = [word for word in said if word not in (b"begin", b"commit", b"rollback")]
    return {
        "workers": count,
        "workers_asked_for": asked,
        "statements_a_second_of_a_worker": round(len(plain) / seconds / count, 3),
        "with_begin_and_commit": round(len(said) / seconds / count, 3),
    }


def fit_in_memory(asked: int, available: int) -> int:
    """Returns how many of the workers fit into the available bytes, and says so if it is not all of them."""
    count = min(asked, max(1, (available - SPARE_BYTES) // WORKER_BYTES))
    if count < asked:
        print(f"memory is enough for {count} workers of {asked}", flush=True)
    return count


def memory_available() -> int:
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def upkeep_share(sql: psycopg.Connection, dsn: str, home: Path) -> dict[str, Any]:
    """Measures the CPU time of all backends of a fleet as a share of a core, and the part of upkeep: no worker does any
    while another session holds all chores."""
    with working(home, dsn, supervisors=UPKEEPERS):
        wait_for_workers(sql, UPKEEPERS)
        time.sleep(15)
        whole = cpu_share(sql, UPKEEP_SECONDS)
        with psycopg.connect(dsn) as holder:
            holder.execute("select from penstock.chore for update")
            without = cpu_share(sql, UPKEEP_SECONDS)
    return {
        "supervisors": UPKEEPERS,
        "fleet_share_of_a_core": round(whole, 4),
        "upkeep_share_of_a_core": round(max(0.0, whole - without), 4),
    }


def cpu_share(sql: psycopg.Connection, seconds: float) -> float:
    """Returns the CPU share of the backends that live from beginning to end, except this one."""
    before, began = cpu_of_backends(sql), time.monotonic()
    time.sleep(seconds)
    after, lasted = cpu_of_backends(sql), time.monotonic() - began
    return sum(after[pid] - before[pid] for pid in before.keys() & after.keys()) / lasted


def cpu_of_backends(sql: psycopg.Connection) -> dict[int, float]:
    rows = sql.execute(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    ).fetchall()
    found = {}
    for (pid,) in rows:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def queues(server: Bench, home: Path) -> dict[str, Any]:
    names = [f"queue-{n:04}" for n in range(QUEUES)]
    (home / "jobs.py").write_text(CODE.format(names=names), "utf-8")
    pushes = 60
    with server.database() as dsn, server.sql(dsn) as sql, Penstock(dsn) as app:
        for name in names:
            app.create_queue(name)
        app.queue(names[0]).push({})
        with working(home, dsn):
            started = wait_until(lambda: sql.execute("select from penstock.history").rowcount)
            time.sleep(10)
            resting = rate(sql, 20)
            for _ in range(pushes):
                app.queue(random.choice(names)).push({})
                time.sleep(0.1)
            late = lateness(sql, pushes + 1)[1:]  # the first task waited for the start
        parts = {part: timed(sql, "select * from penstock.upkeep_part(%s)", part) for part in parts_of(sql)}
        return {
            "queues": QUEUES,
            "start_seconds": round(started, 2),
            "transactions_a_second": round(resting, 2),
            "push_to_claim": summarize_waits(late),
            "upkeep_ms": {part: round(seconds * 1000, 1) for part, seconds in parts.items()},
            "fleet": upkeep_share(sql, dsn, home),
            "missing_name_ms": round(1000 * missing(app, "queue-12x4"), 2),
        }


def parts_of(sql: psycopg.Connection) -> list[str]:
    return [part for (part,) in sql.execute("select part from penstock.upkeep_pace()")]


def timed(sql: psycopg.Connection, statement: str, *parameters: Any) -> float:
    began = time.perf_counter()
    sql.execute(statement.encode(), parameters)
    return time.perf_counter() - began


def missing(app: Penstock, name: str) -> float:
    """Returns the median seconds until a queue that does not exist is refused."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        try:
            app.queue(name).status()
        except NotFound:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def held(server: Bench, workers: int = 500, beats: int = 100) -> dict[str, Any]:
    """Measures the price of a push under more than three minutes of beats, made as quickly as possible."""

    def median_push() -> float:
        return statistics.median(timed(sql, "select penstock.push('bench')") for _ in range(200))

    with server.database() as dsn, server.sql(dsn) as sql, server.sql(dsn) as reader:
        beat = "select penstock.beat('w' || n, '{bench}', 4, %s) from generate_series(1, %s) as n"
        sql.execute("set synchronous_commit = off")  # because a busy disk would take longer than all the rest
        sql.execute(beat, (0, workers))
        before = median_push()
        reader.execute("begin isolation level repeatable read")
        reader.execute("select count(*) from penstock.queue")
        for n in range(beats):
            sql.execute(beat, (4 if n % 2 == 0 else 0, workers))  # all busy, then all free: each becomes idle
        after = median_push()
    return {"workers": workers, "push_ms": round(1000 * before, 3), "push_ms_under_snapshot": round(1000 * after, 3)}


def judge(found: dict[str, Any]) -> bool:
    """Prints each bar of the parts that ran, and returns whether all are kept."""
    verdicts = [judge_part(found[part]) for part, judge_part in BARS.items() if part in found]
    return all(kept for verdict in verdicts for kept in verdict)


def judge_idle(found: dict[str, Any]) -> list[bool]:
    value = found["transactions_a_second_of_a_process"]
    return [judged("transactions a second of an idle process", value, 1.0, at_least=False)]


def judge_fleet(found: dict[str, Any]) -> list[bool]:
    """The bar is for a hundred workers: the line says how many ran."""
    count, asked = found["workers"], found["workers_asked_for"]
    fewer = f" (lowered from {asked}, because memory is short)" if count < asked else ""
    value = found["statements_a_second_of_a_worker"]
    return [judged(f"statements a second of an idle worker among {count}{fewer}", value, 1.0, at_least=False)]


def judge_queues(found: dict[str, Any]) -> list[bool]:
    share = found["fleet"]["upkeep_share_of_a_core"]
    return [
        judged("transactions a second with 1,000 queues", found["transactions_a_second"], 20.0, at_least=False),
        judged("seconds to start with 1,000 queues", found["start_seconds"], 5.0, at_least=False),
        judged(
            "ms from a push to its claim, with 1,000 queues", found["push_to_claim"]["max_ms"], 1500, at_least=False
        ),
        judged("upkeep's share of a core", share, 0.05, at_least=False),
    ]


def judge_held(found: dict[str, Any]) -> list[bool]:
    ratio = found["push_ms_under_snapshot"] / found["push_ms"]
    return [judged("a push under a held snapshot / before", ratio, 2.0, at_least=False)]


BARS = {"idle": judge_idle, "fleet": judge_fleet, "queues": judge_queues, "held": judge_held}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*BARS, "all"])
    parser.add_argument("--workers", type=int, default=FLEET, help="of the fleet")
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    with bench(SETTINGS) as server, tempfile.TemporaryDirectory() as home:
        parts = {
            "idle": partial(idle, server, Path(home)),
            "fleet": partial(fleet, server, Path(home), asked.workers),
            "queues": partial(queues, server, Path(home)),
            "held": partial(held, server),
        }
        for name, measure in parts.items():
            if asked.what in (name, "all"):
                found[name] = measure()
    report("scale", found)
    return 0 if judge(found) else 1


if __name__ == "__main__":
    sys.exit(main())
