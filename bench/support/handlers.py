"""The application for bench/worker.py: handlers that do nothing, and one that records when it began."""

from __future__ import annotations

import os
import time
from pathlib import Path

from penstock import Penstock

app = Penstock(os.environ.get("PENSTOCK_DSN", "host=nowhere"))


@app.task(queue="bench", kind="sync")
def nothing(invoice: int, to: str, note: str) -> None:
    pass


@app.task(queue="bench", kind="async")
async def nothing_async(invoice: int, to: str, note: str) -> None:
    pass


@app.task(queue="bench", kind="timed")
def tell(sent: float) -> None:
    """Writes to a file how long ago the task was pushed, by the clock of one machine."""
    log(f"{time.time() - sent}")


@app.task(queue="bench", kind="hold")
def hold() -> None:
    log("begun")
    time.sleep(3600)


@app.task(queue="bench", kind="sleep")
def sleep(seconds: float) -> None:
    time.sleep(seconds)


def log(line: str) -> None:
    with Path(os.environ["BENCH_LOG"]).open("a", encoding="ascii") as file:
        file.write(line + "\n")
