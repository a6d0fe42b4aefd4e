"""Oban for Python in the race: asyncio, jobs inserted in transactions of 5,000, a limit of 500 jobs at once."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

import track

HURRY: dict[str, Any] = {"lifeline": {"interval": 1.0, "rescue_after": 4.0}} if track.HASTY else {}


@worker(queue="race")
class Nothing:
    async def process(self, _: object) -> None:
        track.ran()


@worker(queue="race")
class Began:
    async def process(self, job: Any) -> None:
        track.began(job.args["sent"])


@worker(queue="race")
class Hold:
    async def process(self, _: object) -> None:
        await track.held()


def new(kind: Any, args: dict[str, Any]) -> Any:
    return kind.new(args)


async def pool() -> Any:
    return await Oban.create_pool(f"dbname={os.environ['PGDATABASE']}")  # libpq reads the rest from the environment


async def setup() -> None:
    await install(await pool())


async def push(count: int) -> None:
    """Inserts jobs in transactions; the free version inserts a row with each statement."""
    jobs = [new(Nothing, track.payload(n)) for n in range(count)]
    app = Oban(pool=await pool())
    with track.timed():
        for chunk in track.chunks(jobs, track.setting("chunk", 5_000)):
            await app.enqueue_many(chunk)


async def trickle(count: int, rate: int) -> None:
    app = Oban(pool=await pool())
    for _ in track.paced(count, rate):
        await app.enqueue(new(Began, {"sent": time.time()}))


async def push_hold() -> None:
    await Oban(pool=await pool()).enqueue(new(Hold, {}))


async def work(_: int) -> None:
    limit = {"limit": track.setting("limit", 500), "debounce_interval": track.setting("debounce", 0.005)}
    track.ready()
    await Oban(pool=await pool(), queues={"race": limit}, **HURRY).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
