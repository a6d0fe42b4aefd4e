"""What metrics cost, as ratios side by side in one run: python bench/metrics.py scrape|drain|all [--tasks N]"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

from bench.support.harness import Bench, alternate, bench, judged, ratio, report, spread
from bench.support.recovery import ROOT, WORK
from penstock import NewTask, Penstock, __version__
from penstock.client.database import Database
from penstock.client.metrics import metrics
from penstock.metrics import render_metrics
from penstock.metrics.source import open_database

ROUNDS = 5
QUEUES = 100
SCRAPES = 20  # in a row, whose median counts
SCRAPES_PER_MINUTE = 50
TASKS, DRAINED = 10_000_000, 300_000
TICKS = os.sysconf("SC_CLK_TCK")


# --- scrape -----------------------------------------------------------------------------------------------------------


@contextmanager
def filled(server: Bench, tasks: int, queues: int) -> Iterator[Database]:
    """Makes a database with so many waiting tasks in so many queues."""
    with server.database() as dsn:
        with Penstock(dsn) as penstock:
            for n in range(queues):
                queue = penstock.create_queue(f"queue{n:03}", sla="1h")
                queue.push_many(NewTask({"n": one}) for one in range(tasks // queues))
                penstock.beat(f"worker{n}", [queue.name], slots=10, busy=n % 10)
            penstock.upkeep()
        with server.sql(dsn) as connection:
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")
        with closing(open_database(dsn)) as database:
            yield database


def scrape(database: Database) -> str:
    return render_metrics(metrics(database), __version__)


def milliseconds(call: Callable[[], object]) -> float:
    """Returns the median of some calls."""
    taken = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def processor_seconds(database: Database) -> float:
    """Returns the time that PostgreSQL computes for one scrape."""
    pid = database.value("select pg_backend_pid()")

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    before = spent()
    for _ in range(5 * SCRAPES):
        scrape(database)
    return (spent() - before) / (5 * SCRAPES)


def compare_scrapes(server: Bench, tasks: int = TASKS, queues: int = QUEUES, rounds: int = ROUNDS) -> bool:
    """A scrape of many tasks in many queues, against as many `select 1` as there are queues, and against a scrape of a
    hundredth of the tasks."""
    with filled(server, tasks, queues) as full, filled(server, tasks // 100, queues) as small:
        sides: dict[str, Callable[[], float]] = {
            "scrape": lambda: milliseconds(lambda: scrape(full)),
            "scrape, 1/100 of the tasks": lambda: milliseconds(lambda: scrape(small)),
            "select 1, once a queue": lambda: milliseconds(lambda: [full.value("select 1") for _ in range(queues)]),
        }
        for side in sides.values():
            side()
        found = alternate(rounds, sides)
        seconds = processor_seconds(full)
        size = len(scrape(full))
    for name, taken in found.items():
        print(f"{name:<28} {spread(taken)} ms")
    print(f"PostgreSQL computes {1000 * seconds:.2f} ms for a scrape of {size:,} bytes")
    ratios = {
        "selects": ratio(found["scrape"], found["select 1, once a queue"]),
        "depth": ratio(found["scrape"], found["scrape, 1/100 of the tasks"]),
        "percent_of_a_core": 100 * seconds * SCRAPES_PER_MINUTE / 60,
    }
    report("metrics_scrape", {"tasks": tasks, "queues": queues, "milliseconds": found, "ratios": ratios})
    return all(
        [
            judged("scrape / select 1 once a queue", ratios["selects"], 5.0, at_least=False),
            judged("scrape / scrape of 1/100 of the tasks", ratios["depth"], 1.25, at_least=False),
            judged("percent of a core, at 50 scrapes a minute", ratios["percent_of_a_core"], 1.0, at_least=False),
        ]
    )


# --- drain ------------------------------------------------------------------------------------------------------------


def rate_of_drain(server: Bench, tasks: int, processes: int, *options: str) -> float:
    """Returns the tasks a second of `penstock work`, from the first claim to the last settle."""
    with server.database() as dsn:
        with Penstock(dsn) as penstock:
            row = {"invoice": 1, "to": "customer@example.com", "note": "x" * 50}
            penstock.queue("bench").push_many(NewTask(row, kind="sync") for _ in range(tasks))
        with server.sql(dsn) as connection:
            connection.execute("vacuum analyze penstock.task, penstock.agenda")
            connection.execute("checkpoint")
            command = [*WORK, "--until-empty", "--processes", str(processes), *options]
            subprocess.run(command, env={**os.environ, "PENSTOCK_DSN": dsn}, cwd=ROOT, check=True, timeout=600)
            found = connection.execute(
                "select count(*), extract(epoch from max(finished_at) - min(claimed_at))::float8 from penstock.history"
            ).fetchone()
    assert found is not None
    assert found[0] == tasks
    return tasks / float(found[1])


def compare_drains(server: Bench, tasks: int = DRAINED, rounds: int = ROUNDS) -> bool:
    """No-op tasks end to end by a worker that measures them, against one that does not."""
    sides: dict[str, Callable[[], float]] = {}
    for processes in (1, 2):
        sides[f"{processes} processes"] = partial(rate_of_drain, server, tasks, processes)
        sides[f"{processes} processes, measured"] = partial(rate_of_drain, server, tasks, processes, "--health", "0")
    found = alternate(rounds, sides)
    for name, rates in found.items():
        print(f"{name:<28} {spread(rates)} tasks/s")
    ratios = {str(n): ratio(found[f"{n} processes, measured"], found[f"{n} processes"]) for n in (1, 2)}
    report("metrics_drain", {"tasks": tasks, "rates": found, "ratios": ratios})
    kept = [judged(f"measured / not, {n} processes", value, 0.99, at_least=True) for n, value in ratios.items()]
    return all(kept)


BENCHES: dict[str, Callable[..., bool]] = {"scrape": compare_scrapes, "drain": compare_drains}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*BENCHES, "all"], nargs="?", default="all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", type=int, help="waiting tasks of a scrape, or tasks of a drain")
    asked = parser.parse_args()
    sizes: dict[str, Any] = {} if asked.tasks is None else {"tasks": asked.tasks}
    with bench() as server:
        kept = [
            BENCHES[name](server, rounds=asked.rounds, **sizes)
            for name in (BENCHES if asked.what == "all" else [asked.what])
        ]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
