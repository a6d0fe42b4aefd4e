"""Dramatiq and Redis in the race: its command line, with no middleware but Retries; it has no bulk push."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

import track

SOON = {"heartbeat_timeout": 4_000, "maintenance_chance": 1_000_000}
WORKS = "RACE_WORKS"  # set in the processes of its command line
broker = RedisBroker(
    url=os.environ.get("RACE_REDIS", "redis://"), middleware=[Retries()], **(SOON if track.HASTY else {})
)
dramatiq.set_broker(broker)


def nothing_(invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


def began_(sent: float) -> None:
    track.began(sent)


def hold_() -> None:
    track.hold()


nothing: Any = dramatiq.actor(nothing_, actor_name="nothing")
began: Any = dramatiq.actor(began_, actor_name="began")
hold: Any = dramatiq.actor(hold_, actor_name="hold")


def setup() -> None:
    """Does nothing, because Redis needs no schema."""


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


def work(processes: int) -> None:
    prefetch = {"dramatiq_queue_prefetch": str(found)} if (found := track.setting("prefetch", 1_000)) else {}
    options = ["--processes", str(processes), "--threads", str(track.setting("threads", 2))]
    command = [sys.executable, "-m", "dramatiq", "on_dramatiq", *options]
    os.execve(sys.executable, command, {**os.environ, **prefetch, WORKS: "1"})


if os.environ.get(WORKS):
    track.ready()

if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work)
