"""PgQueuer in the race: asyncpg and uvloop, large chunks and batches, all its tables logged."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import asyncpg  # type: ignore[import-untyped]  # it has no types
import orjson
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

import track


async def queries() -> Queries:
    return Queries.from_asyncpg_connection(await asyncpg.connect())


async def setup() -> None:
    found = await queries()
    await found.install()
    await found.optimize_autovacuum()


async def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    found = await queries()
    with track.timed():
        for chunk in track.chunks(rows, track.setting("chunk", 10_000)):
            size = len(chunk)
            await found.enqueue(["nothing"] * size, [orjson.dumps(row) for row in chunk], [0] * size)


async def trickle(count: int, rate: int) -> None:
    found = await queries()
    for _ in track.paced(count, rate):
        await found.enqueue("began", str(time.time()).encode())


async def push_hold() -> None:
    await (await queries()).enqueue("hold", None)


async def nothing(_: object) -> None:
    track.ran()


async def began(job: object) -> None:
    track.began(float(getattr(job, "payload")))  # noqa: B009 - its type is in another environment


async def hold(_: object) -> None:
    await track.held()


async def work(_: int) -> None:
    track.ready()
    worker = PgQueuer.from_asyncpg_connection(await asyncpg.connect())
    for name, handler in {"nothing": nothing, "began": began, "hold": hold}.items():
        worker.entrypoint(name)(handler)
    beats = {"heartbeat_timeout": timedelta(seconds=4), "dequeue_timeout": timedelta(seconds=1)}
    await worker.run(batch_size=track.setting("batch", 500), **(beats if track.HASTY else {}))


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
