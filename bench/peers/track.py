"""Shared by all Python runners of the race: payloads, the common start, counting and reports. It needs no package."""

from __future__ import annotations

import asyncio
import inspect
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LANE = Path(os.environ.get("RACE_LANE", "."))  # the directory in which bench/race/lane.py reads our files
VARIANT = os.environ.get("RACE_VARIANT", "")
HASTY = os.environ.get("RACE_HASTY") == "1"  # leases of seconds, to see how they end
SETTINGS: dict[str, Any] = json.loads(os.environ.get("RACE_SETTINGS", "{}"))  # of one variant in bench/race/variants.py
CHUNK = 10_000
STEP = 0.001


def setting(name: str, default: Any) -> Any:
    """Returns a setting of the variant that runs, or the default of the runner."""
    return SETTINGS.get(name, default)


def payload(n: int) -> dict[str, Any]:
    """About 100 bytes of JSON."""
    return {"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50}


def chunks(rows: list[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    return (rows[n : n + size] for n in range(0, len(rows), size))


# --- the start --------------------------------------------------------------------------------------------------------


def ready() -> None:
    """Reports that everything is imported, and waits until all processes are ready."""
    (LANE / f"ready-{os.getpid()}").touch()
    while not (LANE / "go").exists():
        time.sleep(STEP)


@contextmanager
def timed() -> Iterator[None]:
    ready()
    began = time.perf_counter()
    yield
    (LANE / "seconds").write_text(str(time.perf_counter() - began), "ascii")


def paced(count: int, rate: int) -> Iterator[int]:
    """Yields `count` numbers at `rate` a second."""
    ready()
    began = time.perf_counter()
    for n in range(count):
        time.sleep(max(0.0, began + n / rate - time.perf_counter()))
        yield n


# --- handlers ---------------------------------------------------------------------------------------------------------


class Tally:
    """The number of tasks that this process has begun, and the time of the first, in a file that others map."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self.slots = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
        self.lock = threading.Lock()

    def add(self, count: int = 1) -> None:
        with self.lock:
            if not self.slots[0]:
                self.slots[1] = time.time_ns()
            self.slots[0] += count


TALLIES: dict[int, Tally] = {}
FIRST = threading.Lock()


def ran(count: int = 1) -> None:
    """The body of a no-op task. It counts by process, because some peers fork."""
    pid = os.getpid()
    if pid not in TALLIES:
        with FIRST:
            if pid not in TALLIES:  # another thread was first
                TALLIES[pid] = Tally(LANE / f"tally-{pid}")
    TALLIES[pid].add(count)


def began(sent: float) -> None:
    """Records how long ago a task was pushed, by the clock of one machine."""
    waited = time.time() - sent
    append("waits", f"{waited}")
    ran()


def hold() -> None:
    append("told", f"begun {os.getpid()}")
    while not released():
        time.sleep(0.02)
    append("told", f"ended {os.getpid()}")


async def held() -> None:
    append("told", f"begun {os.getpid()}")
    while not released():
        await asyncio.sleep(0.02)
    append("told", f"ended {os.getpid()}")


def released() -> bool:
    return (LANE / f"release-{os.getpid()}").exists() or (LANE / "release").exists()


def append(name: str, line: str) -> None:
    with (LANE / name).open("a", encoding="ascii") as file:
        file.write(line + "\n")


def lines(name: str) -> list[str]:
    return (LANE / name).read_text("ascii").splitlines()


# --- the commands -----------------------------------------------------------------------------------------------------


def run(**commands: Callable[..., Any]) -> None:
    """Runs one of setup · push COUNT · work · trickle COUNT RATE · hold · rescue, as bench/race/lane.py calls them."""
    name, *numbers = sys.argv[1:]
    found = commands[name](*map(int, numbers))
    if inspect.isawaitable(found):
        asyncio.run(awaited(found))


async def awaited(found: Any) -> None:
    await found
