"""Absurd in the race: tasks spawned in transactions of 1,000, clients in a process that claim 50 and poll often."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg
import uvloop
from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

import track

QUEUE = "race"
LEASE = 5 if track.HASTY else 120


async def nothing_async(_: object, __: object) -> None:
    track.ran()


async def hold_async(_: object, __: object) -> None:
    await track.held()


async def began_async(params: Any, _: object) -> None:
    track.began(params["sent"])


def nothing(_: object, __: object) -> None:
    track.ran()


def hold(_: object, __: object) -> None:
    track.hold()


def began(params: Any, _: object) -> None:
    track.began(params["sent"])


SYNC = {"nothing": nothing, "began": began, "hold": hold}
ASYNC = {"nothing": nothing_async, "began": began_async, "hold": hold_async}


def client(*, autocommit: bool = True) -> Any:
    return Absurd(psycopg.connect(autocommit=autocommit), queue_name=QUEUE)  # libpq reads the environment


def spawn(app: Any, name: str, params: dict[str, Any]) -> None:
    app.spawn(name, params, queue=QUEUE)


def setup() -> None:
    with psycopg.connect(autocommit=True) as sql:
        sql.execute(BUNDLED_SCHEMA_SQL)
    client().create_queue()


def push(count: int) -> None:
    """Spawns one task a call, with a commit for each chunk."""
    rows = [track.payload(n) for n in range(count)]
    connection = psycopg.connect()
    app: Any = Absurd(connection, queue_name=QUEUE)
    with track.timed():
        for chunk in track.chunks(rows, track.setting("chunk", 1_000)):
            for row in chunk:
                spawn(app, "nothing", row)
            connection.commit()


def trickle(count: int, rate: int) -> None:
    app = client()
    for _ in track.paced(count, rate):
        spawn(app, "began", {"sent": time.time()})


def push_hold() -> None:
    spawn(client(), "hold", {})


def options() -> dict[str, Any]:
    batch = track.setting("batch", 50)
    return {
        "worker_id": f"w{os.getpid()}",
        "claim_timeout": LEASE,
        "batch_size": batch,
        "concurrency": track.setting("concurrency", batch),
        "poll_interval": track.setting("poll", 0.01),
    }


async def work_async(clients: int) -> None:
    """Runs several clients in a process, each with a connection, so that their commits share a write to disk."""
    started = [AsyncAbsurd(await psycopg.AsyncConnection.connect(autocommit=True), QUEUE) for _ in range(clients)]
    for app in started:
        for name, handler in ASYNC.items():
            app.register_task(name)(handler)
    await asyncio.gather(*(app.start_worker(**options()) for app in started))


def work_sync() -> None:
    app = client()
    for name, handler in SYNC.items():
        app.register_task(name)(handler)
    app.start_worker(**options())


def work(_: int) -> None:
    track.ready()
    clients = track.setting("clients", 8)
    if clients:
        asyncio.run(work_async(clients))
    else:
        work_sync()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
