"""The shell as people have it: real processes, real pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from penstock.embedded import Server

COMMAND = (sys.executable, "-m", "penstock.cli")
COUNTS = ("created", "updated", "renewed", "reopened", "skipped", "superseded")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(dsn: str | None = None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of ours leaks in: no DSN but the one given, no server of this directory, room for one line."""
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "COLUMNS": "200", "PENSTOCK_HOME": "/nonexistent/penstock"}
    return base | ({"PENSTOCK_DSN": dsn} if dsn is not None else {}) | dict(more or {})


def penstock(
    *arguments: str,
    dsn: str | None = None,
    stdin: str | bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 60,
) -> Ran:
    """One command. Whatever it does, it never shows a traceback."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        capture_output=True,
        env=environment(dsn, env),
        cwd=cwd,
        timeout=within,
        check=False,
    )
    ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in ran.out + ran.err, ran.err
    return ran


def interrupted_demo(home: Path, after: bytes, *arguments: str) -> tuple[int, bytes, bytes]:
    """Ctrl-C when a line begins so. Nothing it started is left; its exit code, and the rest of what it said."""
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
    """Several commands, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda command: partial(penstock, dsn=dsn, env=env)(*command), commands))


def is_one_block(text: str) -> bool:
    """An error: its code and what is wrong, then what to do, indented."""
    first, *rest = text.splitlines()
    return first.startswith("error PS") and len(rest) <= 1 and all(line.startswith("  ") for line in rest)
