"""Dramatiq and Redis in the race: two threads a process; it has no bulk push."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import track

SOON = {"heartbeat_timeout": 4_000, "maintenance_chance": 1_000_000}
broker = RedisBroker(url=os.environ.get("RACE_REDIS", "redis://"), **(SOON if track.HASTY else {}))
dramatiq.set_broker(broker)


def nothing_(invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - it is read from the queue, and that is all
    track.ran()


def began_(sent: float) -> None:
    track.began(sent)


def hold_() -> None:
    track.hold()


nothing: Any = dramatiq.actor(nothing_, actor_name="nothing")
began: Any = dramatiq.actor(began_, actor_name="began")
hold: Any = dramatiq.actor(hold_, actor_name="hold", time_limit=3_600_000)


def setup() -> None:
    """Nothing: Redis needs no schema."""


def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    broker.client.ping()
    with track.timed():
        for row in rows:
            nothing.send(**row)


def trickle(count: int, rate: int) -> None:
    broker.client.ping()
    for _ in track.paced(count, rate):
        began.send(sent=time.time())


def push_hold() -> None:
    hold.send()


def work(_: int) -> None:
    track.ready()
    worker = dramatiq.Worker(broker, worker_threads=2)
    worker.start()
    signal.pause()


if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
