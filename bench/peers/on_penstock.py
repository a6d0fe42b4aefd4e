"""Penstock in the race: push_many, and `penstock work` with a sync or an async handler."""

from __future__ import annotations

import os
import sys
import time

import track
from penstock import Penstock

app = Penstock(os.environ.get("PENSTOCK_DSN", "host=nowhere"))


def nothing(invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


async def nothing_async(invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


app.task(queue="race", kind="default")(nothing if track.VARIANT == "sync" else nothing_async)


@app.task(queue="race", kind="began")
async def began(sent: float) -> None:
    track.began(sent)


@app.task(queue="race", kind="hold")
async def hold() -> None:
    await track.held()


@app.on_start
def ready() -> None:
    track.ready()


def setup() -> None:
    app.init()
    app.create_queue("race", lease="5s" if track.HASTY else "30s")
    app.upkeep()


def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    queue = app.queue("race")
    queue.status()
    with track.timed():
        queue.push_many(rows)


def trickle(count: int, rate: int) -> None:
    queue = app.queue("race")
    queue.status()
    for _ in track.paced(count, rate):
        queue.push({"sent": time.time()}, kind="began")


def push_hold() -> None:
    app.queue("race").push({}, kind="hold")


def work(processes: int) -> None:
    options = ["-q", "--queues", "race", "--processes", str(processes)]
    command = [sys.executable, "-m", "penstock.cli", "work", "on_penstock:app", *options]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
