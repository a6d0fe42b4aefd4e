"""One peer in one database: its commands as real processes, and the files that they write."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

from bench.race.contestants import Peer
from bench.race.install import NODE, PLACE, ROOT, SCRIPTS, python_of
from bench.race.redis import Redis, redis
from bench.race.variants import Chosen
from bench.support.harness import Bench, Footprint
from bench.support.recovery import children

NUMBER = count()
STILL = 120.0  # seconds without progress after which it counts as stuck
Marks = list[tuple[float, int]]


class PeerFailed(Exception):
    pass


@dataclass(slots=True)
class Lane:
    peer: Peer
    home: Path
    dsn: str
    sql: psycopg.Connection
    redis: Redis | None
    chosen: Chosen
    hasty: bool
    polls: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # --- processes

    def start(self, *command: str | int) -> subprocess.Popen[bytes]:
        """Starts a command in a session of its own, so that Ctrl-C reaches only this process, which then ends it."""
        with (self.home / "errors").open("ab") as errors:
            process = subprocess.Popen(
                [*self.runs(), *map(str, command)],
                env=self.environment(str(command[0])),
                cwd=SCRIPTS,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def call(self, *command: str | int, timeout: float = 600.0) -> None:
        process = self.start(*command)
        self.ends(process, timeout)

    def ends(self, process: subprocess.Popen[bytes], timeout: float = 600.0) -> None:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{process.args!r} does not end") from None
        self.processes.remove(process)
        if code:
            raise PeerFailed(f"exit code {code}: {self.errors()}")

    def runs(self) -> list[str]:
        if self.peer.home == "node":
            return [str(NODE), str(PLACE / self.peer.script)]
        return [
            sys.executable if self.peer.home == "ours" else str(python_of(self.peer)),
            str(SCRIPTS / self.peer.script),
        ]

    def environment(self, command: str) -> dict[str, str]:
        variant = self.chosen.push if command == "push" else self.chosen.work
        told = psycopg.conninfo.conninfo_to_dict(self.dsn)
        ours = f"{SCRIPTS}:{ROOT / 'src'}" if self.peer.home == "ours" else ""
        return {
            **os.environ,
            "PYTHONPATH": ours,
            "PENSTOCK_DSN": self.dsn,
            "PGHOST": str(told["host"]),
            "PGPORT": str(told["port"]),
            "PGUSER": str(told["user"]),
            "PGDATABASE": str(told["dbname"]),
            "PGPASSWORD": password(str(told["passfile"])),
            "RACE_LANE": str(self.home),
            "RACE_REDIS": self.redis.url if self.redis else "",
            "RACE_VARIANT": self.peer.variant,
            "RACE_SETTINGS": json.dumps(dict(variant.settings)),
            "RACE_HASTY": "1" if self.hasty else "0",
        }

    def errors(self) -> str:
        lines = (self.home / "errors").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])

    # --- workers

    def workers(self, processes: int = 1) -> list[subprocess.Popen[bytes]]:
        """Starts workers, which have imported everything and wait for the start."""
        before = len(self.told("ready-*"))
        commands = [processes] if self.peer.forks else [1] * processes
        started = [self.start("work", one) for one in commands]
        self.until(lambda: len(self.told("ready-*")) >= before + processes, "is not ready")
        return started

    def go(self) -> None:
        (self.home / "go").touch()

    def dismiss(self) -> None:
        """Ends all processes, first with SIGTERM, and removes files that the next ones would take for their own."""
        pids = [pid for process in self.processes for pid in family(process.pid)]
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        signalled(pids, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes.clear()
        for path in [*self.told("ready-*"), *self.told("tally-*"), self.home / "go"]:
            path.unlink(missing_ok=True)

    # --- files of the runners

    def told(self, pattern: str) -> list[Path]:
        return [*self.home.glob(pattern)]

    def lines(self, name: str) -> list[str]:
        path = self.home / name
        return path.read_text("ascii").splitlines() if path.exists() else []

    def tally(self) -> tuple[int, float]:
        """Returns how many tasks were begun, and when the first was."""
        found = [struct.unpack("<QQ", data) for path in self.told("tally-*") if len(data := path.read_bytes()) == 16]
        firsts = [first for _, first in found if first]
        return sum(number for number, _ in found), min(firsts, default=0) / 1e9

    def open(self) -> int:
        """Returns the number of tasks whose end is not recorded."""
        if self.redis:
            return sum(self.redis.ask(command) for command in self.peer.open.split(", "))
        self.polls += 1
        row = self.sql.execute(self.peer.open).fetchone()
        assert row is not None
        return int(row[0])

    def footprint(self) -> Footprint:
        return Footprint.take(self.sql)

    def until(self, true: Callable[[], bool], otherwise: str, timeout: float = 60.0, step: float = 0.01) -> float:
        limit = time.monotonic() + timeout
        while not true():
            if any(process.poll() for process in self.processes):
                raise PeerFailed(f"a process ended: {self.errors()}")
            if time.monotonic() > limit:
                raise PeerFailed(f"{otherwise} after {timeout:g} s: {self.errors()}")
            time.sleep(step)
        return time.time()


def family(pid: int) -> list[int]:
    """Returns a process and all its descendants, in whatever sessions."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def signalled(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def password(passfile: str) -> str:
    return Path(passfile).read_text().splitlines()[0].rsplit(":", 1)[1]


@contextmanager
def lane(server: Bench, peer: Peer, chosen: Chosen, *, hasty: bool = False) -> Iterator[Lane]:
    """Makes a new database (or Redis) with the peer's schema in it."""
    name = f"race_{next(NUMBER)}"
    dsn = psycopg.conninfo.make_conninfo(server.server.dsn, dbname=name)
    with server.sql(server.server.dsn) as sql:
        sql.execute(f"create database {name}")
    with tempfile.TemporaryDirectory(prefix="penstock-race-") as directory:
        home = Path(directory)
        try:
            with server.sql(dsn) as sql, redis_of(peer, home) as store:
                # A count by an index marks its dead entries, and that WAL would be in the peer's figures.
                sql.execute("set enable_indexscan = off; set enable_indexonlyscan = off; set enable_bitmapscan = off")
                found = Lane(peer, home, dsn, sql, store, chosen, hasty)
                try:
                    found.call("setup")
                    sql.execute("checkpoint")
                    yield found
                finally:
                    found.dismiss()
        finally:
            with server.sql(server.server.dsn) as sql:
                sql.execute(f"drop database {name} with (force)")


@contextmanager
def redis_of(peer: Peer, home: Path) -> Iterator[Redis | None]:
    if not peer.redis:
        yield None
        return
    with redis(home) as found:
        yield found
