"""Where workers are harmed: a PostgreSQL of its own, workers that are started again whenever they die, somebody who
does harm, and a checker who joins what everybody noted with what the tables say at rest."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from penstock import NewTask, Penstock
from penstock.embedded import Server

HERE = Path(__file__).parent
TABLES = """
    create table effect (task bigint not null, attempt int not null, pid int not null);
    create table exact (task bigint not null, attempt int not null, pid int not null);
"""


@dataclass
class Arena:
    server: Server
    home: Path
    dice: random.Random
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    keeping: int = 0
    pushed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _options: tuple[str, ...] = ()
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def dsn(self) -> str:
        return self.server.dsn

    @property
    def history(self) -> Path:
        return self.home / "history.jsonl"

    @property
    def points(self) -> Path:
        return self.home / "points"

    # --- workers ----------------------------------------------------------------------------------------------------

    def keep(self, count: int, *options: str) -> None:
        """So many `penstock work`, each started again when it ends."""
        self.keeping, self._options = count, options
        self.look_after()

    def look_after(self) -> None:
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < self.keeping:
            self.workers.append(self.start(*self._options))

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock.cli", "work", "fault_app:app", "-q", "--grace", "1s", *options]
        environment = {
            **os.environ,
            "PENSTOCK_DSN": self.dsn,
            "FAULT_HISTORY": str(self.history),
            "FAULT_POINTS": str(self.points),
        }
        log = (self.home / "workers.log").open("ab")
        with log:
            return subprocess.Popen(
                command, env=environment, cwd=HERE, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def runners(self, worker: subprocess.Popen[bytes] | None = None) -> list[int]:
        """Processes in which handlers run."""
        found: list[int] = []
        for one in self.workers if worker is None else [worker]:
            with suppress(OSError):
                found += map(int, Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text("ascii").split())
        return found

    def serving(self) -> bool:
        with Penstock(self.dsn) as app:
            return app.queue("faults").status().totals["done"] > 0

    def end_workers(self) -> None:
        self.keeping = 0
        for worker in self.workers:
            below = self.runners(worker)
            for pid in (worker.pid, *below):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            with suppress(ProcessLookupError):
                worker.terminate()
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                for pid in (worker.pid, *below):
                    send(pid, signal.SIGKILL)
                worker.wait()

    # --- tasks ------------------------------------------------------------------------------------------------------

    def push(self, kind: str, count: int, payload: Callable[[], dict[str, Any]] = dict) -> None:
        with Penstock(self.dsn) as app:
            queue = app.queue("faults")
            ids = (
                [queue.push(payload(), kind=kind).id for _ in range(count)]
                if count < 50
                else self._push_many(queue, kind, count, payload)
            )
        self.pushed[kind] += ids

    def _push_many(self, queue: Any, kind: str, count: int, payload: Callable[[], dict[str, Any]]) -> list[int]:
        with psycopg.connect(self.dsn) as sql:
            row = sql.execute("select coalesce(max(id), 0) from penstock.task").fetchone()
            before = max(int(row[0]) if row else 0, max((max(ids) for ids in self.pushed.values() if ids), default=0))
            queue.push_many(NewTask(payload(), kind=kind) for _ in range(count))
            sql.rollback()
            rows = sql.execute(
                "select id from penstock.task where id > %s and kind = %s union"
                " select task_id from penstock.history where task_id > %s and kind = %s",
                (before, kind, before, kind),
            ).fetchall()
        assert len(rows) == count
        return [id_ for (id_,) in rows]

    # --- harm -------------------------------------------------------------------------------------------------------

    def harm(self, seconds: float, every: float, blow: Callable[[], None]) -> None:
        """A blow every so often, until so much time has passed; the dead are replaced."""
        begun = time.monotonic()
        while not self.operations() and time.monotonic() < begun + 60:
            time.sleep(0.05)  # on a busy machine the worst would be over before anybody has claimed anything
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.empty():
            time.sleep(every * self.dice.uniform(0.5, 1.5))
            blow()
            self.look_after()

    def frozen_in_the_act(self) -> list[int]:
        """The processes of a worker, its supervisor the last, all stopped while it holds tasks."""
        for _ in range(50):
            worker = self.dice.choice(self.workers)
            runners = self.runners(worker)
            for pid in (worker.pid, *runners):
                send(pid, signal.SIGSTOP)
            with psycopg.connect(self.dsn) as sql:
                held = sql.execute("select worker from penstock.lease").fetchall()
            if {int(name.rpartition(":")[2]) for (name,) in held} & {*runners}:
                return [*runners, worker.pid]
            for pid in (worker.pid, *runners):
                send(pid, signal.SIGCONT)
            time.sleep(0.1)
        return []

    def empty(self) -> bool:
        with suppress(Exception), Penstock(self.dsn, timeout=1) as app:
            status = app.queue("faults").status()
            return status.waiting + status.active == 0
        return False

    # --- rest -------------------------------------------------------------------------------------------------------

    def rest(self, timeout: float = 90) -> None:
        """Liveness: no more harm, and everything drains."""
        until = time.monotonic() + timeout
        while not self.empty():
            self.look_after()
            if time.monotonic() > until:
                with Penstock(self.dsn) as app:
                    raise AssertionError(f"stuck: {app.queue('faults').status()}\n{self.tail()}")
            time.sleep(0.05)
        self.end_workers()

    def tail(self) -> str:
        return (self.home / "workers.log").read_text("utf-8", "replace")[-3000:]

    def operations(self) -> list[dict[str, Any]]:
        return (
            [json.loads(line) for line in self.history.read_text("utf-8").splitlines()] if self.history.exists() else []
        )


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def arena(home: Path, seed: int, *, lease: str = "1s", settings: dict[str, str] | None = None) -> Iterator[Arena]:
    print(f"\nseed {seed} (PENSTOCK_FAULT_SEED={seed} runs it again)")
    chosen = {"shared_buffers": "256MB", "fsync": "off", **(settings or {})}
    server = Server.start(home / "pg", environ=os.environ, settings=chosen)
    place = Arena(server, home, random.Random(seed))
    place.points.mkdir()
    try:
        with Penstock(server.dsn) as app, psycopg.connect(server.dsn, autocommit=True) as sql:
            app.init()
            app.create_queue("faults", lease=lease, max_attempts=1000, retry="fixed:50ms")
            sql.execute(TABLES)
        yield place
    finally:
        place.end_workers()
        running = Server.running(home / "pg")
        if running is not None:
            running.stop("immediate")


# --- the checker ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    lost: int
    unexpected: int
    stale_accepted: int
    completed_twice: int
    stuck: int
    drift: int
    inexact: int
    deadlocks: int

    @property
    def ok(self) -> bool:
        return not any(vars(self).values())


def judged(place: Arena, dead: int = 0) -> Verdict:
    """What everybody noted, joined with the tables at rest."""
    pushed = {id_ for ids in place.pushed.values() for id_ in ids}
    with Penstock(place.dsn) as app, psycopg.connect(place.dsn) as sql:
        status = app.queue("faults").status()
        ends = counted(sql, "select task_id, count(*) from penstock.history where outcome = 'done' group by 1")
        gone = {id_ for (id_,) in sql.execute("select id from penstock.task where ended = 'dead'")}
        effects = counted(sql, "select task, count(*) from effect group by 1")
        exact = counted(sql, "select task, count(*) from exact group by 1")
        row = sql.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
        verified = app.verify()
    accepted = accepted_completions(place)
    without = {id_ for id_ in place.pushed["plain"] if not effects[id_] and id_ not in gone}
    return Verdict(
        lost=len(pushed - ends.keys() - gone) + len(without) + abs(len(gone) - dead),
        unexpected=len(ends.keys() - pushed) + len((effects.keys() | exact.keys()) - pushed),
        stale_accepted=sum(count > 1 for count in accepted.values()),
        completed_twice=sum(count > 1 for count in ends.values()),
        stuck=status.waiting + status.active,
        drift=0 if verified.ok else 1 + len(verified.findings),
        inexact=sum(exact[id_] != 1 for id_ in place.pushed["exact"]),
        deadlocks=int(row[0]) if row else 0,
    )


def counted(sql: psycopg.Connection, query: LiteralString) -> Counter[int]:
    return Counter({int(id_): int(count) for id_, count in sql.execute(query)})


def accepted_completions(place: Arena) -> Counter[int]:
    """How often somebody was told that its completion was accepted."""
    found: Counter[int] = Counter()
    for one in place.operations():
        if one["op"] == "settle" and one["phase"] == "ok":
            states = one.get("states") or {}
            found.update(id_ for id_ in one["ids"] if states.get(str(id_)) == "done")
    return found


def refusals(place: Arena, verb: str) -> int:
    return sum(one["op"] == verb and one["phase"] == "fail" for one in place.operations())
