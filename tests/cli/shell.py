"""Runs the shell from outside, in real processes with real pipes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import psutil

import warm_shell
from penstock import Outcome, Queue
from penstock.embedded import Server

COMMAND = (sys.executable, "-m", "penstock.cli")
COLD = bool(os.environ.get("PENSTOCK_TEST_COLD"))
STARTERS = [("demo",), ("up",)]
# The sessions that wait for the table of tasks. Other tests run in clones of the same database, where it has the same
# number.
WAITING = (
    "select l.pid from pg_locks as l join pg_database as d on d.oid = l.database"
    " where not l.granted and l.relation = 'penstock.task'::regclass and d.datname = current_database()"
)
CONFIGURES_PYTHON = ("PYTHON", "LANG", "LC_", "LD_", "TZ")
COUNTS = ("created", "updated", "renewed", "reopened", "skipped", "superseded")


Running = subprocess.Popen[bytes] | warm_shell.Process


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(dsn: str | None = None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a command: the given DSN only, no server of this directory, and wide lines."""
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "COLUMNS": "200", "PENSTOCK_HOME": "/nonexistent/penstock"}
    return base | ({"PENSTOCK_DSN": dsn} if dsn is not None else {}) | dict(more or {})


def penstock(
    *arguments: str,
    dsn: str | None = None,
    stdin: str | bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 60,
    tracebacks: bool = False,
    cold: bool = False,
) -> Ran:
    """Runs one command, and checks that it prints no traceback, except that of a task if `tracebacks` is set. It runs
    in a new interpreter if `cold` is set."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    run = run_cold if cold or needs_cold(arguments, env or {}) else warm_shell.run
    done = run(arguments, given, environment(dsn, env), cwd, within)
    ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in ran.err + ("" if tracebacks else ran.out), ran.err
    return ran


def needs_cold(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command needs a new interpreter: it starts servers, or its environment configures Python."""
    return COLD or tuple(arguments[:1]) in STARTERS or any(name.startswith(CONFIGURES_PYTHON) for name in env)


def start_penstock(
    *arguments: str,
    dsn: str,
    stdout: BinaryIO | int,
    stderr: BinaryIO | int,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    cold: bool = False,
) -> Running:
    """Starts a command that goes on beside the test, in a new interpreter if `cold` is set."""
    surroundings = environment(dsn, env)
    if cold or needs_cold(arguments, env or {}):
        return subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=surroundings, cwd=cwd
        )
    with Path(os.devnull).open("rb") as stdin:
        standard = [one if isinstance(one, int) else one.fileno() for one in (stdin, stdout, stderr)]
        return warm_shell.start(arguments, standard, surroundings, cwd)


def run_cold(
    arguments: Sequence[str], stdin: bytes, env: Mapping[str, str], cwd: Path | None, within: float
) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=env, cwd=cwd, timeout=within, check=False)


def in_a_terminal(command: Sequence[str], dsn: str, cwd: Path) -> tuple[int, str]:
    """Runs a program in a terminal, and returns its exit code and its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(dsn, {"TERM": "dumb"}), cwd=cwd
    )
    os.close(theirs)
    said = b""
    with suppress(OSError):  # the other end is closed
        while some := os.read(ours, 4096):
            said += some
    os.close(ours)
    return process.wait(60), said.decode().replace("\r\n", "\n")


def interrupted_demo(home: Path, after: bytes, *arguments: str) -> tuple[int, bytes, bytes]:
    """Interrupts a demo at the line that begins so, and checks that nothing it started is left.

    Returns its exit code and the rest of its output.
    """
    with subprocess.Popen(
        [*COMMAND, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(more={"PENSTOCK_HOME": str(home)}),
        start_new_session=True,
    ) as process:
        assert process.stdout
        while not process.stdout.readline().startswith(after):
            assert process.poll() is None
        time.sleep(0.5)
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert Server.running(home) is None
    assert not psutil.wait_procs(started, timeout=20)[1]
    return process.returncode, out, err


def each(*commands: Sequence[str], dsn: str | None = None, env: Mapping[str, str] | None = None) -> list[Ran]:
    """Runs several commands, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda command: partial(penstock, dsn=dsn, env=env)(*command), commands))


def is_one_block(text: str) -> bool:
    """Whether a text is one error: its code and message, then the hint, indented."""
    first, *rest = text.splitlines()
    return first.startswith("error PS") and len(rest) <= 1 and all(line.startswith("  ") for line in rest)


def bury(queue: Queue, *errors: str, kind: str = "default") -> list[int]:
    """Makes dead tasks with these errors, and returns their ids."""
    ids = []
    for error in errors:
        ids.append(queue.push({}, kind=kind, priority=0).id)
        queue.settle(queue.claim(), {ids[-1]: Outcome.dead(error)})
    return ids


@contextmanager
def nothing_changes(queue: Queue) -> Iterator[None]:
    """Checks that the block changes nothing in the queue."""

    def picture() -> object:
        return queue.tasks(limit=10_000), queue.settings(), queue.status().totals

    before = picture()
    yield
    assert picture() == before


def refused(ran: Ran, *words: str, code: int = 2) -> None:
    """Checks that a command was refused, with these words in its error."""
    assert (ran.code, ran.out) == (code, ""), ran
    assert is_one_block(ran.err), ran.err
    for word in words:
        assert word in ran.err
