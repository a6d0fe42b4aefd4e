"""The workers' bars, as ratios side by side in one run: python bench/worker.py drain|latency|recovery|all"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

from bench.drainers import drained, through_penstock
from bench.harness import Bench, Footprint, alternate, bench, judged, ratio, report, spread
from penstock import NewTask, Penstock

ROUNDS = 5
ROOT = Path(__file__).parent.parent
WORK = [sys.executable, "-m", "penstock.cli", "work", "bench.handlers:app", "-q", "--queues", "bench"]


def payloads(count: int) -> list[dict[str, Any]]:
    """About 100 bytes of JSON each, as in bench/queue.py."""
    return [{"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50} for n in range(count)]


def environment(dsn: str) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_DSN": dsn}


# --- drain ------------------------------------------------------------------------------------------------------------


def drain(server: Bench, tasks: int = 300_000, rounds: int = ROUNDS) -> bool:
    """No-op tasks end to end by `penstock work`, against claim and settle in batches of 500 by the same number of
    processes (what bench/queue.py measures). Both by history: from the first claim to the last settle."""
    rows = payloads(tasks)
    seen: dict[str, Any] = {}

    def run(side: str, processes: int) -> float:
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
                    command = [*WORK, "--until-empty", "--processes", str(processes)]
                    subprocess.run(command, env=environment(dsn), cwd=ROOT, check=True, timeout=300)
                after = Footprint.take(connection).since(before)
                row = connection.execute(
                    "select count(*), extract(epoch from max(finished_at) - min(claimed_at)) from penstock.history"
                    " where outcome = 'done'"
                ).fetchone()
            assert row is not None
            assert row[0] == tasks
            seen[f"{side} {processes}"] = {
                "wal_per_task": after.wal / tasks,
                "commits_per_task": after.commits / tasks,
                "tasks_per_lease": tasks / after.inserted["lease"],
            }
            return tasks / float(row[1])

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
    return all([judged(f"worker / queue, {name} processes", value, 0.8, at_least=True) for name, value in ratios.items()])


BENCHES = {"drain": drain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*BENCHES, "all"], nargs="?", default="all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    with bench() as server:
        kept = [BENCHES[name](server, rounds=asked.rounds) for name in (BENCHES if asked.what == "all" else [asked.what])]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
