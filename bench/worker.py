"""The workers' bars, as ratios side by side in one run: python bench/worker.py drain|middleware|latency|recovery|all"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

from bench.support.drainers import drained, through_penstock
from bench.support.harness import Bench, Footprint, alternate, bench, judged, ratio, report, spread
from bench.support.latency import bare, percentiles
from bench.support.latency import through_penstock as waits
from bench.support.recovery import ROOT, WORK, WORK_INSIDE, after_a_kill, after_a_restart
from penstock import NewTask, Penstock

ROUNDS = 5


def payloads(count: int) -> list[dict[str, Any]]:
    """Makes payloads of about 100 bytes of JSON each, as in bench/queue.py."""
    return [{"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50} for n in range(count)]


def environment(dsn: str) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_DSN": dsn}


# --- drain ------------------------------------------------------------------------------------------------------------


def measure_drain(server: Bench, rows: list[dict[str, Any]], seen: dict[str, Any], side: str, processes: int) -> float:
    """Returns the tasks a second of one drain, and notes in `seen` what PostgreSQL saw of it."""
    with server.database() as dsn:
        with Penstock(dsn) as penstock:
            kind = side if side != "queue" else "sync"
            penstock.queue("bench").push_many([NewTask(row, kind=kind) for row in rows])
        with server.sql(dsn) as connection:
            connection.execute("vacuum analyze penstock.task, penstock.agenda")
            connection.execute("checkpoint")
            before = Footprint.take(connection)
            if side == "queue":
                drained(through_penstock, dsn, processes)
            else:
                work = WORK_INSIDE if "middleware" in side else WORK
                command = [*work, "--until-empty", "--processes", str(processes)]
                subprocess.run(command, env=environment(dsn), cwd=ROOT, check=True, timeout=300)
            after = Footprint.take(connection).since(before)
            row = connection.execute(
                "select count(*), extract(epoch from max(finished_at) - min(claimed_at)) from penstock.history"
                " where outcome = 'done'"
            ).fetchone()
    assert row is not None
    assert row[0] == len(rows)
    seen[f"{side} {processes}"] = {
        "wal_per_task": after.wal / len(rows),
        "commits_per_task": after.commits / len(rows),
        "tasks_per_lease": len(rows) / after.inserted["lease"],
    }
    return len(rows) / float(row[1])


def drain(server: Bench, tasks: int = 300_000, rounds: int = ROUNDS) -> bool:
    """No-op tasks end to end with `penstock work`, against claim and settle in batches of 500 by the same number of
    processes, as in bench/queue.py. Both are measured by history, from the first claim to the last settle."""
    seen: dict[str, Any] = {}
    run = partial(measure_drain, server, payloads(tasks), seen)
    sides: dict[str, Callable[[], float]] = {
        f"{side}, {processes}": partial(run, side, processes)
        for processes in (1, 2)
        for side in ("queue", "sync", "async")
    }
    found = alternate(rounds, sides)
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    for name, figures in seen.items():
        print(f"{name:<24} " + ", ".join(f"{word} {value:.3f}" for word, value in figures.items()))
    ratios = {
        f"{side}, {processes}": ratio(found[f"{side}, {processes}"], found[f"queue, {processes}"])
        for processes in (1, 2)
        for side in ("sync", "async")
    }
    report("worker_drain", {"tasks": tasks, "rates": found, "ratios": ratios, "postgresql_saw": seen})
    kept = [judged(f"worker / queue, {name} processes", value, 0.8, at_least=True) for name, value in ratios.items()]
    return all(kept)


# --- middleware -------------------------------------------------------------------------------------------------------


def middleware(server: Bench, tasks: int = 300_000, rounds: int = ROUNDS) -> bool:
    """No-op tasks end to end inside a middleware that only calls `run`, against the same without one."""
    run = partial(measure_drain, server, payloads(tasks), {})
    pairs = {f"{side}, {processes}": (side, processes) for processes in (1, 2) for side in ("sync", "async")}
    sides: dict[str, Callable[[], float]] = {}
    for name, (side, processes) in pairs.items():
        sides[name] = partial(run, side, processes)
        sides[f"{name}, inside"] = partial(run, f"{side} in middleware", processes)
    found = alternate(rounds, sides)
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    ratios = {name: ratio(found[f"{name}, inside"], found[name]) for name in pairs}
    report("worker_middleware", {"tasks": tasks, "rates": found, "ratios": ratios})
    kept = [judged(f"in middleware / without, {name}", value, 0.97, at_least=True) for name, value in ratios.items()]
    return all(kept)


# --- latency ----------------------------------------------------------------------------------------------------------


def latency(server: Bench, rounds: int = ROUNDS, pushes: int = 500, rate: int = 50) -> bool:
    """From push to the start of the handler, with an idle worker and 50 pushes a second; with and without NOTIFY, and
    in a bare loop."""
    seen: dict[str, list[dict[str, float]]] = {"notify": [], "polling": [], "bare LISTEN": []}
    with tempfile.TemporaryDirectory() as home:
        sides: dict[str, Callable[[], list[float]]] = {
            "notify": lambda: waits(server, Path(home), notify=True, pushes=pushes, rate=rate),
            "polling": lambda: waits(server, Path(home), notify=False, pushes=pushes, rate=rate),
            "bare LISTEN": lambda: bare(server, pushes=pushes, rate=rate),
        }
        for n in range(rounds):
            for name, side in sides.items():
                seen[name].append(percentiles(side()))
                said = ", ".join(f"{word} {value:.2f} ms" for word, value in seen[name][-1].items())
                print(f"  round {n + 1}  {name:<14} {said}", flush=True)
    middle = {
        name: {word: statistics.median(one[word] for one in runs) for word in runs[0]} for name, runs in seen.items()
    }
    for name, figures in middle.items():
        print(f"{name:<16} " + ", ".join(f"{word} {value:.2f} ms" for word, value in figures.items()))
    report("worker_latency", {"pushes": pushes, "per_second": rate, "milliseconds": seen, "medians": middle})
    return True


# --- recovery ---------------------------------------------------------------------------------------------------------


def recovery(server: Bench, rounds: int = ROUNDS) -> bool:
    """From kill -9 of a worker until its task runs again, 50 times; from PostgreSQL's restart to a claim, 20 times."""
    lease = 2.0
    with tempfile.TemporaryDirectory() as home:
        whole, runner = after_a_kill(server, Path(home), 10 * rounds, lease)
        back = after_a_restart(Path(home), 4 * rounds)
    print(f"killed with its supervisor   {spread(whole)} s, lease {lease:g} s")
    print(f"killed, supervisor lives     {spread(runner)} s")
    print(f"PostgreSQL accepts again     {spread(back)} s")
    figures = {"lease": lease, "killed": whole, "killed_runner": runner, "restarted": back}
    report("worker_recovery", figures)
    return all(
        [
            judged("kill -9 to claimed again, worst of all, beyond the lease", max(whole) - lease, 1.0, at_least=False),
            judged("PostgreSQL accepts to first claim, worst of all", max(back), 3.0, at_least=False),
        ]
    )


BENCHES: dict[str, Callable[..., bool]] = {
    "drain": drain,
    "middleware": middleware,
    "latency": latency,
    "recovery": recovery,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*BENCHES, "all"], nargs="?", default="all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    with bench() as server:
        kept = [
            BENCHES[name](server, rounds=asked.rounds) for name in (BENCHES if asked.what == "all" else [asked.what])
        ]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
