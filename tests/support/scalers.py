"""A real scaler: `penstock scale` in a directory with an application, and real workers below it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from psycopg import Connection

from shell import Running, start_penstock
from workers import MODULE, PATIENCE, alive, children, eventually, write_app

# Tasks that sleep, and tasks that wait for a file.
JOBS = """
@app.task(queue="work")
def rest(seconds: float) -> None:
    time.sleep(seconds)

@app.task(queue="work")
def wait(name: str) -> None:
    note("began", name)
    wait_for(name)
    note("ended", name)
"""


class Scaling:
    """A running `penstock scale`: its output and its workers."""

    def __init__(self, process: Running, home: Path, name: str) -> None:
        self.process, self.home, self.name = process, home, name

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = (self.home / f"{self.name}.out").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    @property
    def stderr(self) -> str:
        return (self.home / f"{self.name}.err").read_text("utf-8")

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [one for one in self.lines if "queue" in one]

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.lines if "event" in one]

    @property
    def workers(self) -> list[int]:
        """The `penstock work` processes below it."""
        return [pid for pid in children(self.process.pid, "penstock.cli") if alive(pid)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        code = self.process.wait(within)
        assert "Traceback" not in self.stderr, self.stderr
        return code


@contextmanager
def scaling(home: Path, dsn: str, *options: str, code: str = JOBS, name: str = "scaler") -> Iterator[Scaling]:
    """Starts a scaler and waits until it has decided, stands by or has ended. At the end, it and its workers are
    ended."""
    write_app(home, code)
    with (home / f"{name}.out").open("wb") as out, (home / f"{name}.err").open("wb") as err:
        process = start_penstock(
            "scale", f"{MODULE}:app", "--json", *options, dsn=dsn, stdout=out, stderr=err, cwd=home
        )
    found = Scaling(process, home, name)
    seen: set[int] = set()
    try:
        eventually(lambda: process.poll() is not None or len(found.lines) > 1)
        yield found
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        seen.update(found.workers)
        below = [runner for worker in seen for runner in children(worker, "penstock.worker")]
        for pid in (process.pid, *seen, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def end_workers(sql: Connection) -> None:
    """Ends the workers whose scaler is dead, found through the registry."""
    for (pid,) in sql.execute("select pid from penstock.worker where started_by is not null").fetchall():
        with suppress(OSError, ProcessLookupError):
            above = int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[1])
            for one in (above, pid):
                if above > 1:
                    os.kill(one, signal.SIGKILL)


def registered(sql: Connection) -> list[str]:
    return [name for (name,) in sql.execute("select name from penstock.worker where not leaving order by name")]


def targets(sql: Connection, queue: str = "work") -> list[int]:
    """Returns the targets from the first decision to the last."""
    rows = sql.execute("select workers from penstock.decision where queue = %s order by id", (queue,)).fetchall()
    return [workers for (workers,) in rows]
