"""Shared by all benchmarks: a durable server, a database per run, alternating rounds, ratios and reports."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from penstock import Penstock
from penstock.embedded import Server

RESULTS = Path(__file__).parent.parent / "results"
NUMBER = count()


@dataclass(frozen=True)
class Bench:
    """A running server. Settings are the embedded defaults: fsync, full_page_writes and synchronous_commit on."""

    server: Server

    def sql(self, dsn: str) -> psycopg.Connection:
        return psycopg.connect(dsn, autocommit=True)

    @contextmanager
    def database(self, *, queue: str = "bench", triggers: bool = True) -> Iterator[str]:
        """Makes a new database with the schema and one queue, checkpointed so that no run pays for the one before."""
        name = f"bench_{next(NUMBER)}"
        dsn = psycopg.conninfo.make_conninfo(self.server.dsn, dbname=name)
        with self.sql(self.server.dsn) as connection:
            connection.execute(f"create database {name}")
        with Penstock(dsn) as penstock:
            penstock.init()
            penstock.create_queue(queue)
            penstock.upkeep()
        with self.sql(dsn) as connection:
            if not triggers:
                for table in ("task", "agenda", "lease"):
                    connection.execute(f"alter table penstock.{table} disable trigger all")
            connection.execute("checkpoint")
        try:
            yield dsn
        finally:
            with self.sql(self.server.dsn) as connection:
                connection.execute(f"drop database {name} with (force)")


@contextmanager
def bench(settings: dict[str, str] | None = None) -> Iterator[Bench]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a benchmark that is stopped stops its server too
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
        server = Server.start(Path(home) / "pg", environ=os.environ, settings=settings or {})
        try:
            yield Bench(server)
        finally:
            server.stop("immediate")


@dataclass(frozen=True)
class Footprint:
    """What PostgreSQL has written, or wrote between two footprints."""

    wal: int
    commits: int
    inserted: dict[str, int]
    deleted: dict[str, int]
    dead: dict[str, int]

    @classmethod
    def take(cls, connection: psycopg.Connection) -> Footprint:
        connection.execute("select pg_stat_force_next_flush()")
        time.sleep(1.1)  # other sessions report their statistics once a second
        row = connection.execute(
            "select pg_current_wal_insert_lsn() - '0/0', xact_commit"
            " from pg_stat_database where datname = current_database()"
        ).fetchone()
        assert row is not None
        tables = connection.execute(
            "select relname, n_tup_ins, n_tup_del, n_dead_tup from pg_stat_user_tables where schemaname = 'penstock'"
        ).fetchall()
        return cls(int(row[0]), row[1], *({t[0]: t[n] for t in tables} for n in (1, 2, 3)))

    def since(self, before: Footprint) -> Footprint:
        def less(now: dict[str, int], then: dict[str, int]) -> dict[str, int]:
            return {name: value - then.get(name, 0) for name, value in now.items() if value != then.get(name, 0)}

        return Footprint(
            self.wal - before.wal,
            self.commits - before.commits,
            less(self.inserted, before.inserted),
            less(self.deleted, before.deleted),
            less(self.dead, before.dead),
        )


def alternate(rounds: int, sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Runs each side once a round, in a rotating order, so that changes of the machine's speed affect all alike."""
    names = list(sides)
    found: dict[str, list[float]] = {name: [] for name in names}
    for n in range(rounds):
        for name in names[n % len(names) :] + names[: n % len(names)]:
            found[name].append(sides[name]())
            print(f"  round {n + 1}  {name:<24} {found[name][-1]:>14,.1f}", flush=True)
    return found


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:,.1f} ({min(values):,.1f} – {max(values):,.1f})"


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Returns the median of the ratios of the rounds, each of which compares two runs of the same minute."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def report(name: str, figures: dict[str, Any]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps(
            {
                "bench": name,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": commit.strip(),
                "machine": {
                    "cores": os.cpu_count(),
                    "system": platform.platform(),
                    "python": platform.python_version(),
                },
                **figures,
            },
            indent=2,
        )
        + "\n"
    )


def judged(label: str, value: float, bar: float, *, at_least: bool) -> bool:
    kept = value >= bar if at_least else value <= bar
    print(f"{'kept  ' if kept else 'MISSED'}  {label}: {value:.2f} ({'≥' if at_least else '≤'} {bar})", flush=True)
    return kept
