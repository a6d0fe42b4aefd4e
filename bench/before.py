"""The price of a change for plain work that does not need it: python bench/before.py COMMIT [--rounds 30]

Two processes, one with the code of this tree and one with that of another commit, do the same plain work on one server,
each in a database of its own: a bulk push, a drain in batches, single pushes, claims and settles, the way from a push
to an idle worker's handler, and a drain by that worker. They take turns every fraction of a second, so that changes of
the machine's speed affect both. Prints the cost of each kind of work relative to the other commit; none may be more
than 2 % worse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import psycopg

from bench.support.harness import Bench, bench, ratio, report, spread
from bench.support.latency import paced
from bench.support.recovery import wait_until, worker
from penstock import NewTask, Penstock, Queue
from penstock.model import Json

ROOT = Path(__file__).parent.parent
BULK = 5_000
WORKED = 20_000  # tasks that the worker drains at once
BATCH = 500
SINGLES = 50
BAR = 1.02
STEPS = ("push", "drain", "singles", "to_handler", "work")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--serve", metavar="DSN", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
    elif asked.commit:
        compare(asked.commit, asked.rounds)
    else:
        parser.error("which commit?")


def compare(commit: str, rounds: int) -> None:
    found: dict[str, dict[str, list[float]]] = {"before": {}, "now": {}}
    with bench() as server, checked_out(commit) as before, ExitStack() as stack:
        sides = {
            name: stack.enter_context(Side.started(server, name, source))
            for name, source in (("before", before), ("now", ROOT / "src"))
        }
        for n in range(rounds):
            for step in STEPS:
                for name in list(sides)[:: 1 if n % 2 else -1]:
                    for what, cost in sides[name].ask(step).items():
                        found[name].setdefault(what, []).append(cost)
            print(f"  round {n + 1} of {rounds}", end="\r", flush=True)
    costs = {what: ratio(now, found["before"][what]) for what, now in found["now"].items()}
    for what, times in costs.items():
        now, then = (spread(found[side][what]) for side in ("now", "before"))
        print(f"{what:<24} {now:>28}  before {then:>28}  cost × {times:.3f}  {'kept' if times <= BAR else 'MISSED'}")
    report("before", {"against": commit, "rounds": rounds, "costs": costs, "found": found})


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Checks out the sources of a commit into a directory of their own."""
    with tempfile.TemporaryDirectory(prefix="penstock-before-") as home:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", home], input=archive.stdout, check=True)
        yield Path(home) / "src"


@dataclass
class Side:
    """A process that imports Penstock from a given directory, and does a step on request."""

    process: subprocess.Popen[str]

    @classmethod
    @contextmanager
    def started(cls, server: Bench, name: str, source: Path) -> Iterator[Self]:
        with server.sql(server.server.dsn) as sql:
            sql.execute(f"create database {name}")
        dsn = psycopg.conninfo.make_conninfo(server.server.dsn, dbname=name)
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", dsn],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield cls(process)
        finally:
            process.communicate("end\n")

    def ask(self, step: str) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.process.stdout.readline())
        return found


# --- in the process of a side -----------------------------------------------------------------------------------------


def serve(dsn: str) -> None:
    items = [{"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50} for n in range(BULK)]
    with Penstock(dsn) as app, psycopg.connect(dsn, autocommit=True) as sql, ExitStack() as stack:
        app.init()
        plain, timed = app.create_queue("plain"), app.create_queue("bench")
        app.upkeep()
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "latencies"
        stack.enter_context(worker(dsn, log))
        steps: dict[str, Callable[[], dict[str, float]]] = {
            "push": lambda: push(plain, items, sql),
            "drain": lambda: drain(plain, sql),
            "singles": lambda: singles(plain, items[0]),
            "to_handler": lambda: to_handler(timed, log),
            "work": lambda: work(timed, items[0], sql),
        }
        for line in sys.stdin:
            if line.strip() not in steps:
                return
            print(json.dumps(steps[line.strip()]()), flush=True)


def push(queue: Queue, items: list[Json], sql: psycopg.Connection) -> dict[str, float]:
    before = written(sql)
    cost = seconds(lambda: queue.push_many(items))
    return {"push, µs a task": cost / BULK * 1e6, "push, WAL a task": (written(sql) - before) / BULK}


def drain(queue: Queue, sql: psycopg.Connection) -> dict[str, float]:
    def work() -> None:
        while claim := queue.claim(BATCH):
            queue.settle(claim)

    before = written(sql)
    cost = seconds(work)
    return {"drain, µs a task": cost / BULK * 1e6, "drain, WAL a task": (written(sql) - before) / BULK}


def singles(queue: Queue, item: Json) -> dict[str, float]:
    pushes, claims, settles = [], [], []
    for _ in range(SINGLES):
        pushes.append(seconds(lambda: queue.push(item)))
        began = time.perf_counter()
        claim = queue.claim()
        claims.append(time.perf_counter() - began)
        settles.append(seconds(partial(queue.settle, claim)))
    told = {"push of one, ms": pushes, "claim of one, ms": claims, "settle of one, ms": settles}
    return {what: statistics.median(times) * 1000 for what, times in told.items()}


def to_handler(queue: Queue, log: Path) -> dict[str, float]:
    log.write_bytes(b"")
    for _ in paced(SINGLES // 2, 50):
        queue.push({"sent": time.time()}, kind="timed")
    wait_until(lambda: len(log.read_bytes().split()) == SINGLES // 2)
    return {"push to handler, ms": statistics.median(map(float, log.read_text("ascii").split())) * 1000}


def work(queue: Queue, item: Json, sql: psycopg.Connection) -> dict[str, float]:
    began = sql.execute("select clock_timestamp()").fetchone()
    queue.push_many([NewTask(item, kind="sync")] * WORKED)
    drained = "select count(*), extract(epoch from max(finished_at) - min(claimed_at)) from penstock.history"
    found: list[tuple[int, float]] = [(0, 0.0)]

    def is_over() -> bool:
        time.sleep(0.1)  # a look reads the history of the step: it must not take a core from the worker
        found[:] = sql.execute(f"{drained} where kind = 'sync' and finished_at > %s", began).fetchall()
        return found[0][0] == WORKED

    wait_until(is_over)
    return {"drain by a worker, µs a task": float(found[0][1]) / WORKED * 1e6}


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def written(sql: psycopg.Connection) -> int:
    """Returns the bytes of WAL. The other side rests meanwhile, except its worker."""
    row = sql.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
