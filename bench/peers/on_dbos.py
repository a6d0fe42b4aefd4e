"""DBOS in the race: workflows enqueued in transactions of 1,000, a queue polled often, many workflows at once."""

from __future__ import annotations

import os
import signal
import time
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from dbos import DBOS, DBOSClient

import track

QUEUE = "race"
NAME = "race"
VERSION = "1"  # without it each process computes one from the source of its workflows


def url() -> str:
    told = {word: quote(os.environ[f"PG{word.upper()}"], safe="") for word in ("host", "port", "user", "password")}
    options = "&".join(f"{word}={value}" for word, value in told.items())
    return f"postgresql+psycopg:///{os.environ['PGDATABASE']}?{options}"


def nothing(params: dict[str, Any]) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


async def nothing_async(params: dict[str, Any]) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


def began(sent: float) -> None:
    track.began(sent)


def hold() -> None:
    track.hold()


def launch(executor: str) -> None:
    """Starts an application; a queue's settings are rows of its database."""
    DBOS(
        config={
            "name": NAME,
            "system_database_url": url(),
            "application_version": VERSION,
            "executor_id": executor,
            "log_level": "ERROR",
            "sys_db_pool_size": track.setting("pool", 20),
        }
    )
    handlers = {"nothing": nothing_async if track.setting("async", False) else nothing, "began": began, "hold": hold}
    for name, handler in handlers.items():
        DBOS.workflow(name=name)(handler)
    DBOS.launch()
    DBOS.register_queue(
        QUEUE, worker_concurrency=track.setting("concurrency", 1_000), polling_interval_sec=track.setting("poll", 0.05)
    )


def options(name: str) -> Any:
    return {"workflow_name": name, "queue_name": QUEUE, "app_version": VERSION, "application_name": NAME}


def client(engine: Any = None) -> Any:
    return DBOSClient(
        system_database_url=None if engine else url(), system_database_engine=engine, application_name=NAME
    )


def setup() -> None:
    launch("setup")
    DBOS.destroy()


def push(count: int) -> None:
    """Enqueues one workflow a call, with a commit for each chunk."""
    rows = [track.payload(n) for n in range(count)]
    engine = sa.create_engine(url())
    app, wanted = client(engine), options("nothing")
    with track.timed():
        for chunk in track.chunks(rows, track.setting("chunk", 1_000)):
            with engine.begin() as connection:
                for row in chunk:
                    app.enqueue_in_transaction(connection, wanted, row)


def trickle(count: int, rate: int) -> None:
    app, wanted = client(), options("began")
    for _ in track.paced(count, rate):
        app.enqueue(wanted, time.time())


def push_hold() -> None:
    client().enqueue(options("hold"))


def work(_: int) -> None:
    track.ready()
    launch(f"w{os.getpid()}")
    signal.pause()


def rescue() -> None:
    """Does what a restart of the stopped process would: the start of an executor gives back its workflows."""
    stopped = track.lines("told")[0].split()[1]
    launch(f"w{stopped}")
    time.sleep(2)
    DBOS.destroy()


if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work, rescue=rescue)
