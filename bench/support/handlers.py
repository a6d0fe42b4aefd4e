"""The application for bench/worker.py: handlers that do nothing, and one that records when it began."""

from __future__ import annotations

import os
import time
from pathlib import Path

from penstock import AsyncRunHandler, Outcome, Penstock, RunHandler, Task

app = Penstock(os.environ.get("PENSTOCK_DSN", "host=nowhere"))


@app.task(queue="bench", kind="sync")
def nothing(invoice: int, to: str, note: str) -> None:
    pass


@app.task(queue="bench", kind="async")
async def nothing_async(invoice: int, to: str, note: str) -> None:
    pass


WRAPPED = ("sync in middleware", "async in middleware")


@app.middleware(kind=WRAPPED)
def through(task: Task, run: RunHandler) -> Outcome:  # noqa: ARG001 - middleware gets it
    return run()


@app.middleware(form_of=through)
async def through_async(task: Task, run: AsyncRunHandler) -> Outcome:  # noqa: ARG001 - middleware gets it
    return await run()


@app.task(queue="bench", kind=WRAPPED[0])
def nothing_inside(invoice: int, to: str, note: str) -> None:
    pass


@app.task(queue="bench", kind=WRAPPED[1])
async def nothing_inside_async(invoice: int, to: str, note: str) -> None:
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
