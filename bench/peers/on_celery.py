"""Celery and Redis in the race: solo pool, many prefetched, late acknowledgement, no results."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import track

SOON = {"visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
app = Celery("on_celery", broker=os.environ.get("RACE_REDIS", "redis://"))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=track.setting("prefetch", 1_000),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options=SOON if track.HASTY else {},
)
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]


def nothing_(invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


def began_(sent: float) -> None:
    track.began(sent)


def hold_() -> None:
    track.hold()


nothing: Any = app.task(name="nothing")(nothing_)
began: Any = app.task(name="began")(began_)
hold: Any = app.task(name="hold")(hold_)


def setup() -> None:
    """Does nothing, because Redis needs no schema."""


def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    with app.producer_pool.acquire(block=True) as producer, track.timed():
        for row in rows:
            nothing.apply_async(kwargs=row, producer=producer)


def trickle(count: int, rate: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for _ in track.paced(count, rate):
            began.apply_async(kwargs={"sent": time.time()}, producer=producer)


def push_hold() -> None:
    hold.delay()


def work(_: int) -> None:
    track.ready()
    app.worker_main(["worker", "--pool", "solo", "--hostname", f"w{os.getpid()}@race", *QUIET])


if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
