"""Awa in the race: COPY of thousands, hundreds of workers in a process; its core is Rust."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import awa
import uvloop

import track

QUEUE = "race"


@dataclass
class Nothing:
    invoice: int
    to: str
    note: str


@dataclass
class Began:
    sent: float


@dataclass
class Hold:
    pass


def client() -> Any:
    told = {word: quote(os.environ[f"PG{word.upper()}"], safe="") for word in ("host", "port", "user", "password")}
    options = "&".join(f"{word}={value}" for word, value in told.items())
    return awa.AsyncClient(f"postgres:///{os.environ['PGDATABASE']}?{options}")


async def setup() -> None:
    app = client()
    await app.migrate()
    await app.install_queue_storage()  # a new database may be without it until a worker has run


async def push(count: int) -> None:
    rows = [Nothing(**track.payload(n)) for n in range(count)]
    app = client()
    await app.queue_stats()
    with track.timed():
        for chunk in track.chunks(rows, track.setting("chunk", 5_000)):
            await app.enqueue_many_copy(chunk, queue=QUEUE)


async def trickle(count: int, rate: int) -> None:
    app = client()
    for _ in track.paced(count, rate):
        await app.insert(Began(time.time()), queue=QUEUE)


async def push_hold() -> None:
    await client().insert(Hold(), queue=QUEUE)


async def nothing(_: object) -> None:
    track.ran()


async def began(job: Any) -> None:
    track.began(job.args.sent)


async def hold(_: object) -> None:
    await track.held()


async def work(_: int) -> None:
    app = client()
    for kind, handler in ((Nothing, nothing), (Began, began), (Hold, hold)):
        app.task(kind, queue=QUEUE)(handler)
    soon = {"heartbeat_interval_ms": 500, "heartbeat_staleness_ms": 4_000, "heartbeat_rescue_interval_ms": 500}
    hurry = {"leader_election_interval_ms": 500, **soon} if track.HASTY else {}
    track.ready()
    await app.start([(QUEUE, track.setting("workers", 512))], poll_interval_ms=50, **hurry)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
