"""Real workers: an application in a directory, and `penstock work` started there, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import Connection

from shell import Ran, Running, penstock, start_penstock

T = TypeVar("T")
PATIENCE = 30.0  # seconds; nothing takes as long unless it is broken
MODULE = "jobs"

# The start of every application: the `app`, and a file in which its handlers note what they do.
PRELUDE = """\
import asyncio, ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
from typing import Any

from penstock import AsyncContext, Context, Fixed, Outcome, Penstock, Task

app = Penstock()

def note(*words):
    line = " ".join(map(str, (os.getpid(), *words))) + "\\n"
    file = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)

"""


class Effect(NamedTuple):
    """What a handler noted, and the process it ran in."""

    pid: int
    words: str


class End(NamedTuple):
    """A row of history."""

    kind: str
    outcome: str
    attempt: int
    error_class: str | None


def write_app(home: Path, code: str, module: str = MODULE) -> None:
    (home / f"{module}.py").write_text(PRELUDE + code, "utf-8")


def work(home: Path, dsn: str, code: str, *options: str) -> Ran:
    """Runs `penstock work … --until-empty --json` from start to end."""
    write_app(home, code)
    return penstock("work", f"{MODULE}:app", "--until-empty", "--json", *options, dsn=dsn, cwd=home)


def effects(home: Path) -> list[Effect]:
    try:
        lines = (home / "effects").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [Effect(int(pid), words) for pid, _, words in (line.partition(" ") for line in lines)]


def noted(home: Path) -> list[str]:
    """The notes of handlers, in order."""
    return [one.words for one in effects(home)]


def ends(sql: Connection) -> list[End]:
    """History, task by task."""
    statement = "select kind, outcome, attempt, error_class from penstock.history order by task_id, finished_at"
    return [End(*row) for row in sql.execute(statement)]


def eventually(found: Callable[[], T], *, within: float = PATIENCE) -> T:
    """Calls `found` until its answer is true, and returns the answer."""
    deadline = time.monotonic() + within
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not within {within:g} s"
        time.sleep(0.01)
    return answer


class Worker:
    """A running `penstock work`: its output and its processes."""

    def __init__(self, process: Running, home: Path) -> None:
        self.process = process
        self.home = home

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return (self.home / "stdout").read_text("utf-8")

    @property
    def stderr(self) -> str:
        return (self.home / "stderr").read_text("utf-8")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log. A line that is not JSON fails, because only the log may go there."""
        return [json.loads(line) for line in self.stderr.splitlines()]

    @property
    def report(self) -> Any:
        return json.loads(self.stdout)

    @property
    def noted(self) -> list[str]:
        return noted(self.home)

    @property
    def runners(self) -> list[int]:
        return children(self.pid, "penstock.worker")

    @property
    def slot_processes(self) -> list[int]:
        """The processes of process slots, below the runners."""
        return [child for runner in self.runners for child in children(runner, "penstock.worker.child")]

    @property
    def family(self) -> list[int]:
        return [self.pid, *self.runners, *self.slot_processes]

    def allow(self, name: str = "go") -> None:
        """Makes the file that `wait_for` waits for."""
        (self.home / name).touch()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def wait(self, within: float = PATIENCE) -> int:
        """Waits for the end, checks that there was no traceback, and returns the exit code."""
        code = self.process.wait(within)
        assert "Traceback" not in self.stderr, self.stderr
        return code

    def stop(self) -> int:
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kills each process that was started, by its id."""
        found = self.family if self.process.poll() is None else []
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def working(
    home: Path,
    dsn: str,
    code: str,
    *options: str,
    processes: int = 1,
    env: Mapping[str, str] | None = None,
    cold: bool = False,
) -> Iterator[Worker]:
    """Starts `penstock work` in the background, waits until it is in the registry, and kills it at the end."""
    write_app(home, code)
    command = ["work", f"{MODULE}:app", "--json", "--processes", str(processes), *options]
    with (home / "stdout").open("wb") as out, (home / "stderr").open("wb") as err:
        process = start_penstock(*command, dsn=dsn, stdout=out, stderr=err, env=env, cwd=home, cold=cold)
    worker = Worker(process, home)
    try:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as sql:
            eventually(lambda: process.poll() is not None or len(registered(sql)) >= processes)
        assert process.poll() is None, worker.stderr
        yield worker
    finally:
        worker.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def probe(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def registered(sql: Connection) -> list[int]:
    """The process ids in the registry."""
    return [pid for (pid,) in sql.execute("select pid from penstock.worker order by pid")]


# --- /proc ------------------------------------------------------------------------------------------------------------


def children(parent: int, module: str) -> list[int]:
    """The child processes that run this module."""
    return [pid for pid in map(int, processes()) if parent_of(pid) == parent and runs(pid, module)]


def processes() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def command_line(pid: int) -> list[str]:
    """The command line of a process, or [] if it has ended."""
    try:
        return [*filter(None, Path(f"/proc/{pid}/cmdline").read_text("utf-8").split("\0"))]
    except OSError:
        return []


def runs(pid: int, module: str) -> bool:
    line = command_line(pid)
    return "-m" in line and line[line.index("-m") + 1] == module


def alive(pid: int) -> bool:
    """Whether this is a running process, not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
