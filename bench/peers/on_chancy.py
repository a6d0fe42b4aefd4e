"""Chancy in the race: push_many, many async jobs at once, polled eagerly."""

from __future__ import annotations

import time
from typing import Any

from chancy import Chancy, Job, Queue, Worker
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

import track

QUEUE = Queue(
    "race",
    concurrency=track.setting("concurrency", 1_000),
    executor="chancy.executors.asyncex.AsyncExecutor",
    polling_interval=1,
    eager_polling=True,
)


async def nothing(*, invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


async def began(*, sent: float) -> None:
    track.began(sent)


async def hold() -> None:
    await track.held()


def chancy() -> Any:
    soon = [Leadership(poll_interval=1, timeout=2), Recovery(poll_interval=1)]
    plain = not track.setting("plugins", True)
    return Chancy("", plugins=soon if track.HASTY else [], no_default_plugins=plain)  # libpq reads the environment


def job(handler: Any, **payload: Any) -> Any:
    return Job.from_func(handler, queue="race", kwargs=payload)


async def setup() -> None:
    async with chancy() as app:
        await app.migrate()
        await app.declare(QUEUE)


async def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    async with chancy() as app:
        with track.timed():
            jobs = [job(nothing, **row) for row in rows]
            async for _ in app.push_many(jobs, batch_size=track.setting("chunk", 5_000)):
                pass


async def trickle(count: int, rate: int) -> None:
    async with chancy() as app:
        for _ in track.paced(count, rate):
            await app.push(job(began, sent=time.time()))


async def push_hold() -> None:
    async with chancy() as app:
        await app.push(job(hold))


async def work(_: int) -> None:
    beats = {"heartbeat_poll_interval": 1, "heartbeat_timeout": 4} if track.HASTY else {}
    track.ready()
    async with chancy() as app, Worker(app, **beats) as worker:
        worker.send_outgoing_interval = 0.05
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
