"""The soak: python bench/soak.py [--minutes 60] [--rate 1000] [--held] [--write docs]

For an hour, 1,000 tasks a second are pushed in small batches and drained by real workers, while an analytic query
holds its snapshot for 60 s, again and again (`--held`: one snapshot for the whole time). Every ten seconds a sample is
taken: the latency of push, claim and status, the size of each table and index, dead rows, memory, WAL. The bar: in no
part of the run is the median of push, claim or status more than twice that of the first minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import psycopg

from bench.support.harness import Bench, bench, judged, report
from bench.support.recovery import ROOT, WORK, children, registered, wait_until
from bench.support.soak_page import RUNS, write_page
from penstock import NewTask, Penstock

INTERVAL = 10.0  # seconds between two samples
FIRST = 60.0  # seconds that the rest is measured against
WINDOWS = 12  # parts of the rest, each with a median of its own
QUERY = 60.0  # seconds that the analytic query holds its snapshot
BATCH = 20  # tasks in a push
PUSHERS = 4  # threads that push, because one cannot keep up if a push takes longer than 20 ms
TIMED = 20  # one in so many tasks records how long ago it was pushed
PROBES = 10  # claims and statuses a second
CLAIM = 10  # tasks that a probe asks for
PROCESSES = 2
BAR = 2.0
LEAST_RATE = 0.95  # share of the requested rate
VERBS = ("push", "claim", "status")


@dataclass
class Latencies:
    """The seconds that each verb took, with the time of its end. Threads write them and the sampler reads them."""

    began: float = field(default_factory=time.monotonic)
    all: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def measure(self, verb: str, act: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        answer = act()
        took = time.perf_counter() - begin
        self.all.setdefault(verb, []).append((time.monotonic() - self.began, took))
        return answer

    def between(self, verb: str, since: float, until: float) -> list[float]:
        return [took for at, took in [*self.all.get(verb, [])] if since <= at < until]


def percentiles(seconds: list[float]) -> dict[str, float] | None:
    """In milliseconds."""
    if len(seconds) < 2:
        return None
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49] * 1000, 3), "p99": round(cuts[98] * 1000, 3)}


# --- load -------------------------------------------------------------------------------------------------------------


class Load:
    """Threads that push, probe and hold snapshots until they are told to stop. An error in one of them ends the run."""

    def __init__(self, dsn: str, rate: float, latencies: Latencies, *, held: bool) -> None:
        self._dsn = dsn
        self._rate = rate
        self._latencies = latencies
        self._held = held
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.errors: list[BaseException] = []
        self.pushed = 0
        self.queries = 0
        duties = (*(self._push for _ in range(PUSHERS)), self._probe, self._query)
        self._threads = [threading.Thread(target=self._guarded, args=(duty,)) for duty in duties]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            self.errors.append(error)

    def _paced(self, rate: float) -> Iterator[int]:
        began, n = time.monotonic(), 0
        while not self._over.is_set():
            wait = began + n / rate - time.monotonic()
            if wait > 0 and self._over.wait(wait):
                return
            yield n
            n += 1

    def _push(self) -> None:
        with Penstock(self._dsn) as app:
            queue = app.queue("bench")
            for n in self._paced(self._rate / BATCH / PUSHERS):
                items = [task(n * BATCH + one) for one in range(BATCH)]
                self._latencies.measure("push", partial(queue.push_many, items))
                with self._lock:
                    self.pushed += BATCH

    def _probe(self) -> None:
        """Claims from the same queue as the workers, and settles the claimed tasks."""
        with Penstock(self._dsn) as app:
            queue = app.queue("bench")
            for _ in self._paced(PROBES):
                claim = self._latencies.measure("claim", lambda: queue.claim(CLAIM, worker="probe"))
                if claim:
                    self._latencies.measure("settle", partial(queue.settle, claim))
                self._latencies.measure("status", queue.status)

    def _query(self) -> None:
        """Runs an analytic query over history, whose snapshot keeps newer dead rows from being removed."""
        while not self._over.is_set():
            with psycopg.connect(self._dsn) as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                began = time.monotonic()
                connection.execute(
                    "select outcome, count(*), max(finished_at - claimed_at) from penstock.history group by 1"
                )
                self.queries += 1
                self._over.wait(None if self._held else max(0.0, began + QUERY - time.monotonic()))
                connection.rollback()


def task(n: int) -> NewTask:
    if n % TIMED == 0:
        return NewTask({"sent": time.time()}, kind="timed")
    return NewTask({"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50}, kind="sync")


@contextmanager
def worker(dsn: str, log: Path) -> Iterator[int]:
    """Runs `penstock work` with two processes, and yields the pid of its supervisor."""
    process = subprocess.Popen(
        [*WORK, "--processes", str(PROCESSES)], env={**os.environ, "PENSTOCK_DSN": dsn, "BENCH_LOG": str(log)}, cwd=ROOT
    )
    try:
        wait_until(lambda: registered(dsn, process.pid))
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


# --- samples ----------------------------------------------------------------------------------------------------------

SIZES = """
    select regexp_replace(c.relname, '_\\d{8}', ''), sum(pg_relation_size(c.oid))::bigint
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = 'penstock' and c.relkind in ('r', 'i')
    group by 1 having sum(pg_relation_size(c.oid)) > 0 order by 2 desc
"""
DEAD = """
    select regexp_replace(relname, '_\\d{8}$', ''), sum(n_dead_tup)::bigint
    from pg_stat_user_tables where schemaname = 'penstock' group by 1 having sum(n_dead_tup) > 0 order by 2 desc
"""
BACKENDS = "select pid from pg_stat_activity where backend_type = 'client backend' and datname = current_database()"
WAL = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"


class Sampler:
    """Takes a sample every ten seconds."""

    def __init__(self, dsn: str, supervisor: int, log: Path, latencies: Latencies) -> None:
        self._sql = psycopg.connect(dsn, autocommit=True)
        self._app = Penstock(dsn)
        self._supervisor = supervisor
        self._latencies = latencies
        self._log = log.open("r", encoding="ascii")
        self._wal = self._number(WAL)
        self._at = 0.0

    def take(self) -> dict[str, Any]:
        at = time.monotonic() - self._latencies.began
        status = self._app.queue("bench").status()
        wal = self._number(WAL)
        waits = [float(line) for line in self._log.readlines() if line.endswith("\n")]
        sample = {
            "at": round(at, 1),
            "latency_ms": {
                **{verb: percentiles(self._latencies.between(verb, self._at, at)) for verb in (*VERBS, "settle")},
                "start": percentiles(waits),
            },
            "done": status.totals["done"],
            "left": status.queued + status.active,
            "bytes": dict(self._sql.execute(SIZES.encode()).fetchall()),
            "dead_rows": dict(self._sql.execute(DEAD.encode()).fetchall()),
            "memory": self._memory(),
            "wal_per_second": round((wal - self._wal) / max(at - self._at, 0.001)),
        }
        self._wal, self._at = wal, at
        return sample

    def _number(self, query: str) -> int:
        row = self._sql.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _memory(self) -> dict[str, int]:
        """Returns bytes: all memory of worker processes, and that of backends without the shared buffers."""
        pids = [pid for (pid,) in self._sql.execute(BACKENDS.encode()).fetchall()]
        below = children(self._supervisor)
        return {
            "supervisor": memory_of(self._supervisor, "VmRSS"),
            "runners": sum(memory_of(pid, "VmRSS") for pid in below),
            "backends": sum(memory_of(pid, "RssAnon") for pid in pids),
            "largest_backend": max((memory_of(pid, "RssAnon") for pid in pids), default=0),
        }

    def close(self) -> None:
        self._log.close()
        self._app.close()
        self._sql.close()


def memory_of(pid: int, name: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


# --- the run ----------------------------------------------------------------------------------------------------------


def soak(server: Bench, minutes: float, rate: float, *, held: bool) -> dict[str, Any]:
    """Runs the soak, and returns the samples and their summary."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-soak-")))
        dsn = stack.enter_context(server.database())
        log = home / "starts"
        log.touch()
        supervisor = stack.enter_context(worker(dsn, log))
        latencies = Latencies()
        sampler = Sampler(dsn, supervisor, log, latencies)
        stack.callback(sampler.close)
        load = stack.enter_context(Load(dsn, rate, latencies, held=held))
        samples: list[dict[str, Any]] = []
        until = latencies.began + 60 * minutes
        while (now := time.monotonic()) < until and not load.errors:
            time.sleep(max(0.0, min(INTERVAL - (now - latencies.began) % INTERVAL, until - now)))
            samples.append(sampler.take())
            print(line_of(samples[-1], load), flush=True)
    if load.errors:
        raise load.errors[0]
    return {
        "minutes": minutes,
        "rate": rate,
        "held": held,
        "pushed": load.pushed,
        "queries": load.queries,
        "settings": {"batch": BATCH, "processes": PROCESSES, "query_seconds": QUERY, "bar": BAR},
        "verbs": {verb: summary(latencies, verb, 60 * minutes) for verb in VERBS},
        "samples": samples,
    }


def line_of(sample: dict[str, Any], load: Load) -> str:
    said = ", ".join(
        f"{verb} {one['p50']:.1f}/{one['p99']:.1f}" for verb, one in sample["latency_ms"].items() if one is not None
    )
    size, dead = sum(sample["bytes"].values()) / 1e6, sum(sample["dead_rows"].values())
    return (
        f"{sample['at']:6.0f} s  pushed {load.pushed:,}, left {sample['left']:,}  |  ms, p50/p99: {said}  |  "
        f"{size:.0f} MB, {dead:,} dead rows"
    )


def summary(latencies: Latencies, verb: str, seconds: float) -> dict[str, Any]:
    """Returns the medians of the first minute and of the parts of the rest, and the worst ratio to the first minute."""
    length = max(FIRST, (seconds - FIRST) / WINDOWS)
    first = percentiles(latencies.between(verb, 0.0, FIRST))
    parts = []
    begin = FIRST
    while begin + length <= seconds + 1:
        parts.append(percentiles(latencies.between(verb, begin, begin + length)))
        begin += length
    found = [one["p50"] for one in parts if one is not None]
    worst = max(found, default=None)
    ratio = None if worst is None or first is None else round(worst / first["p50"], 3)
    return {"first": first, "part_seconds": length, "parts": parts, "worst_p50": worst, "ratio": ratio}


def judge(found: dict[str, Any]) -> bool:
    """Prints each bar, and returns whether all are kept."""
    bars = [
        judged(f"{verb}: p50 of the worst part / of the first minute", one["ratio"], BAR, at_least=False)
        for verb, one in found["verbs"].items()
        if one["ratio"] is not None
    ]
    asked = found["rate"] * 60 * found["minutes"]
    bars.append(judged("tasks pushed / asked for", found["pushed"] / asked, LEAST_RATE, at_least=True))
    left = found["samples"][-1]["left"] / found["rate"]
    bars.append(judged("seconds of work that are left at the end", left, 1.0, at_least=False))
    return all(bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="tasks a second")
    parser.add_argument("--held", action="store_true", help="one snapshot for the whole time")
    parser.add_argument("--write", type=Path, help="a directory for soak.md and its pictures: docs")
    parser.add_argument("--render", action="store_true", help="write the page from the results there are; run nothing")
    asked = parser.parse_args()
    kept = True
    name = "soak_held" if asked.held else "soak"
    if not asked.render:
        with bench() as server:
            found = soak(server, asked.minutes, asked.rate, held=asked.held)
        report(name, found)
        kept = judge(found)
    if asked.write:
        write_page(asked.write, renewed=RUNS if asked.render else (name,))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
