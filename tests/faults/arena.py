"""The arena of the fault tests: a PostgreSQL of its own, workers and producers that are started again when they die,
faults that are injected, and a checker that compares the notes of all processes with the tables at rest."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psycopg

from checker import Verdict, check
from notes import Notes, read_notes
from penstock import NewTask, Penstock
from penstock.embedded import Server
from proxy import Lane

HERE = Path(__file__).parent
TABLES = """
    create table effect (task bigint not null, key bigint not null, attempt int not null, pid int not null);
    create table exact (task bigint not null, key bigint not null, attempt int not null, pid int not null);
"""
FIRST_NUMBER = 1  # of a producer; tasks that the test itself pushes have the keys of number 0
Process = subprocess.Popen[bytes]


@dataclass
class Arena:
    """A database, its workers and producers, and the file in which they note what they do.

    With `lanes`, each worker and each producer reaches PostgreSQL through a lane of its own, so that one of them can be
    cut off.
    """

    dsn: str
    home: Path
    dice: random.Random
    lease: float = 1.0
    lanes: list[Lane] = field(default_factory=list)
    log: list[Path] = field(default_factory=list)  # of PostgreSQL, if no other test uses it
    workers: list[Process] = field(default_factory=list)
    producers: list[Process] = field(default_factory=list)
    keeping: int = 0
    pushed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    excused: list[tuple[float, float]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: Notes = field(init=False)
    _options: tuple[str, ...] = ()
    _kept_at: int = 0
    _producing: dict[str, Any] = field(default_factory=dict)
    _keys: Iterator[int] = field(default_factory=count)
    _numbers: Iterator[int] = field(default_factory=lambda: count(FIRST_NUMBER))
    _counts: list[Path] = field(default_factory=list)
    _lane_of: dict[int, Lane] = field(default_factory=dict)
    _tasks_of: dict[int, tuple[int, Path]] = field(default_factory=dict)
    _stopping: bool = False
    _killed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.notes = Notes(self.history)
        self.points.mkdir(exist_ok=True)

    @property
    def history(self) -> Path:
        return self.home / "history.jsonl"

    @property
    def points(self) -> Path:
        return self.home / "points"

    # --- workers ----------------------------------------------------------------------------------------------------

    def keep(self, count: int, *options: str) -> None:
        """Start `count` workers (`penstock work`), each of which is started again when it ends."""
        self.keeping, self._options, self._kept_at = count, options, self.history.stat().st_size
        self.look_after()

    def look_after(self) -> None:
        """Replace the workers and producers that died."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < self.keeping:
            self.workers.append(self.start(*self._options))
        for producer in [*self.producers]:
            if producer.poll() is not None:
                self._replace(producer)

    def start(self, *options: str) -> Process:
        command = [sys.executable, "-m", "penstock.cli", "work", "fault_app:app", "-q", "--grace", "1s", *options]
        dsn, lane = self._way()
        environment = {
            **os.environ,
            "PENSTOCK_DSN": dsn,
            "FAULT_HISTORY": str(self.history),
            "FAULT_POINTS": str(self.points),
        }
        return self._spawn(command, "workers.log", environment, lane)

    def _spawn(self, command: list[str], log: str, environment: dict[str, str], lane: Lane | None) -> Process:
        with (self.home / log).open("ab") as file:
            process = subprocess.Popen(
                command, env=environment, cwd=HERE, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        if lane is not None:
            self._lane_of[process.pid] = lane
        return process

    def _way(self) -> tuple[str, Lane | None]:
        """Return the DSN for a new process: through a lane that no living process uses, if there are lanes."""
        living = [process.pid for process in (*self.workers, *self.producers) if process.poll() is None]
        used = [self._lane_of.get(pid) for pid in living]
        lane = next((one for one in self.lanes if one not in used), None)
        return (self.dsn, None) if lane is None else (lane.dsn(self.dsn), lane)

    def lane_of(self, process: Process) -> Lane | None:
        return self._lane_of.get(process.pid)

    def runners(self, worker: Process | None = None) -> list[int]:
        """Return the processes in which handlers run."""
        found: list[int] = []
        for one in self.workers if worker is None else [worker]:
            with suppress(OSError):
                found += map(int, Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text("ascii").split())
        return found

    def end_workers(self) -> None:
        self.keeping = 0
        ended = [(worker, self.runners(worker)) for worker in self.workers]
        for worker, below in ended:
            for pid in (worker.pid, *below):
                send(pid, signal.SIGCONT)
            send(worker.pid, signal.SIGTERM)
        for worker, below in ended:
            wait_or_kill(worker, below)

    # --- producers --------------------------------------------------------------------------------------------------

    def produce(self, producers: int, tasks: int, rate: float, seed: int, **orders: Any) -> None:
        """Start producers that together push `tasks` tasks, `rate` a second. Each is replaced when it is killed."""
        self._stopping = False
        self._producing = {"rate": rate / producers, "seed": seed, **orders}
        for n in range(producers):
            self._start_producer(tasks // producers + (n < tasks % producers))

    def _start_producer(self, tasks: int) -> None:
        number = next(self._numbers)
        counts = self.home / f"producer-{number}"
        dsn, lane = self._way()
        orders = {
            "dsn": dsn,
            "history": str(self.history),
            "counts": str(counts),
            "number": number,
            "tasks": tasks,
            **self._producing,
        }
        command = [sys.executable, str(HERE / "producer.py"), json.dumps(orders)]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        producer = self._spawn(command, "producers.log", environment, lane)
        self._counts.append(counts)
        self._tasks_of[producer.pid] = (tasks, counts)
        self.producers.append(producer)

    def _replace(self, producer: Process) -> None:
        """Start a producer that goes on where a killed one was, under another number. One that ended by itself is a
        finding."""
        self.producers.remove(producer)
        tasks, counts = self._tasks_of[producer.pid]
        if producer.returncode == 0:
            return
        if producer.returncode == -signal.SIGTERM and self._stopping:
            return
        if producer.pid not in self._killed:
            self.findings.append(
                f"unexpected: a producer ended with {producer.returncode}: {self.tail('producers.log')}"
            )
        left = tasks - pushed_by(counts)
        if left > 0:
            self._start_producer(left)

    @property
    def tasks_pushed(self) -> int:
        return sum(map(pushed_by, self._counts)) + sum(map(len, self.pushed.values()))

    def end_producers(self) -> None:
        self._stopping = True
        for producer in self.producers:
            send(producer.pid, signal.SIGCONT)
            send(producer.pid, signal.SIGTERM)
        for producer in self.producers:
            wait_or_kill(producer, [])

    # --- tasks ------------------------------------------------------------------------------------------------------

    def push(self, kind: str, count: int, payload: Callable[[], dict[str, Any]] = dict) -> None:
        """Push tasks and note their keys."""
        items = [{"serial": next(self._keys), **payload()} for _ in range(count)]
        with Penstock(self.dsn) as app:
            queue = app.queue("faults")
            if count < 50:
                for item in items:
                    self._noted(kind, [item], partial(queue.push, item, kind=kind))
            else:
                self._noted(kind, items, lambda: queue.push_many(NewTask(item, kind=kind) for item in items))
        self.pushed[kind] += [item["serial"] for item in items]

    def _noted(self, kind: str, items: list[dict[str, Any]], push: Callable[[], object]) -> None:
        facts = {"op": "push", "batch": str(uuid4()), "kind": kind, "first": items[0]["serial"], "count": len(items)}
        self.notes.write(**facts, phase="invoke")
        push()
        self.notes.write(**facts, phase="ok")

    # --- harm -------------------------------------------------------------------------------------------------------

    def harm(self, seconds: float, every: float, blow: Callable[[], None]) -> None:
        """Strike about every `every` seconds, for `seconds` seconds or until the queue is empty, and replace workers
        that died."""
        self.wait_for_claims()
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.empty():
            time.sleep(every * self.dice.uniform(0.5, 1.5))
            blow()
            self.look_after()

    def wait_for_claims(self, timeout: float = 60) -> None:
        """Wait until the workers that `keep` started claim: on a busy machine the harm would be over before."""
        begun = time.monotonic()
        while b'"op":"claim"' not in self._noted_since() and time.monotonic() < begun + timeout:
            self.look_after()
            time.sleep(0.05)

    def _noted_since(self) -> bytes:
        """Return the notes since `keep`."""
        with self.history.open("rb") as file:
            file.seek(self._kept_at)
            return file.read()

    def kill(self, pids: list[int]) -> None:
        """End processes with SIGKILL, and note which."""
        self._killed.update(pids)
        for pid in pids:
            send(pid, signal.SIGKILL)
        self.notes.write(op="kill", pids=pids)

    def freeze_while_it_holds(self) -> list[int]:
        """Freeze a worker while it holds tasks, and return its processes, the supervisor last."""
        for _ in range(50):
            worker = self.dice.choice(self.workers)
            runners = self.runners(worker)
            for pid in (worker.pid, *runners):
                send(pid, signal.SIGSTOP)
            with psycopg.connect(self.dsn) as sql:
                held = sql.execute(
                    "select w.pid from penstock.lease as l join penstock.worker as w on w.name = l.worker"
                ).fetchall()
            if {pid for (pid,) in held} & {*runners}:
                return [*runners, worker.pid]
            for pid in (worker.pid, *runners):
                send(pid, signal.SIGCONT)
            time.sleep(0.1)
        return []

    def empty(self) -> bool:
        found = self._progress()
        return found is not None and found[0] == 0

    # --- rest -------------------------------------------------------------------------------------------------------

    def rest(self, timeout: float = 90) -> None:
        """Check liveness: without more harm, everything drains."""
        if not self.drain(timeout):
            with Penstock(self.dsn) as app:
                raise AssertionError(f"stuck: {app.queue('faults').status()}\n{self.tail()}")

    def drain(self, timeout: float, patience: float = 60.0) -> bool:
        """Wait until no task waits or runs, then end the workers. Return False if that took longer than `timeout`, or
        if nothing changed for `patience` seconds."""
        until = time.monotonic() + timeout
        before, changed = (-1, -1), time.monotonic()
        while (now := self._progress()) is None or now[0]:
            self.look_after()
            if now is not None and now != before:
                before, changed = now, time.monotonic()
            if time.monotonic() > min(until, changed + patience):
                break
            time.sleep(0.05)
        self.end_workers()
        return now is not None and now[0] == 0

    def _progress(self) -> tuple[int, int] | None:
        """Return how many tasks wait or run and how many are done, or None if PostgreSQL does not answer."""
        with suppress(Exception), Penstock(self.dsn, timeout=1) as app:
            status = app.queue("faults").status()
            return status.queued + status.active, status.totals["done"]
        return None

    def left(self) -> int:
        """Return how many tasks wait or run."""
        with Penstock(self.dsn) as app:
            status = app.queue("faults").status()
            return status.queued + status.active

    def completed(self) -> int:
        with Penstock(self.dsn) as app:
            return app.queue("faults").status().totals["done"]

    def tail(self, log: str = "workers.log") -> str:
        file = self.home / log
        return file.read_text("utf-8", "replace")[-3000:] if file.exists() else ""

    def operations(self) -> list[dict[str, Any]]:
        return [orjson.loads(note) for note in read_notes(self.history)]

    def judge(self) -> Verdict:
        """Return the checker's verdict. No process may be running any more."""
        return check(
            self.dsn, self.history, deadlocks=self.deadlocks(), excused=self.excused, others=tuple(self.findings)
        )

    def deadlocks(self) -> int:
        """Count deadlocks, in the server's log if no other test uses it: its statistics do not survive a crash."""
        if self.log:
            return sum(log.read_bytes().count(b"deadlock detected") for log in self.log)
        with psycopg.connect(self.dsn) as sql:
            row = sql.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
        return int(row[0]) if row else 0


def pushed_by(counts: Path) -> int:
    with suppress(OSError, ValueError):
        return int(counts.read_text("ascii"))
    return 0


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_or_kill(process: Process, below: list[int]) -> None:
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        for pid in (process.pid, *below):
            send(pid, signal.SIGKILL)
        process.wait()


def prepare(dsn: str, lease: str = "1s") -> None:
    """Make the schema, the queue and the tables of effects."""
    with Penstock(dsn) as app, psycopg.connect(dsn, autocommit=True) as sql:
        app.init()
        app.create_queue("faults", lease=lease, max_attempts=1000, retry="fixed:50ms")
        sql.execute(TABLES.encode())


@contextmanager
def arena_on(arena: Arena) -> Iterator[Arena]:
    """Yield the arena, and at the end stop all of its processes."""
    try:
        yield arena
    finally:
        arena.keeping = 0
        arena.end_producers()
        arena.end_workers()
        arena.notes.close()


@contextmanager
def start_arena(home: Path, seed: int, *, lease: str = "1s", settings: dict[str, str] | None = None) -> Iterator[Arena]:
    """Start an arena with a server of its own."""
    print(f"\nseed {seed} (PENSTOCK_FAULT_SEED={seed} runs it again)")
    chosen = {"shared_buffers": "256MB", "fsync": "off", **(settings or {})}
    server = Server.start(home / "pg", environ=os.environ, settings=chosen)
    try:
        prepare(server.dsn, lease)
        arena = Arena(server.dsn, home, random.Random(seed), float(lease.rstrip("s")), log=[server.log])
        with arena_on(arena):
            yield arena
    finally:
        running = Server.running(home / "pg")
        if running is not None:
            running.stop("immediate")


def refusals(arena: Arena, verb: str) -> int:
    return sum(one["op"] == verb and one.get("phase") == "fail" for one in arena.operations())
