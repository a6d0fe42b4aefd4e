"""Procrastinate in the race: batch_defer, and one worker a process; it fetches one job a call."""

from __future__ import annotations

import time
from typing import Any

import procrastinate

import track

app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=4, max_size=track.setting("pool", 8)))


async def nothing_(invoice: int, to: str, note: str) -> None:  # noqa: ARG001 - only read from the queue
    track.ran()


async def began_(sent: float) -> None:
    track.began(sent)


async def hold_() -> None:
    await track.held()


nothing: Any = app.task(name="nothing")(nothing_)
began: Any = app.task(name="began")(began_)
hold: Any = app.task(name="hold")(hold_)


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    async with app.open_async():
        with track.timed():
            for chunk in track.chunks(rows, track.setting("chunk", 5_000)):
                await nothing.batch_defer_async(*chunk)


async def trickle(count: int, rate: int) -> None:
    async with app.open_async():
        for _ in track.paced(count, rate):
            await began.defer_async(sent=time.time())


async def push_hold() -> None:
    async with app.open_async():
        await hold.defer_async()


async def work(_: int) -> None:
    beats = {"update_heartbeat_interval": 1.0, "stalled_worker_timeout": 4.0} if track.HASTY else {}
    track.ready()
    async with app.open_async():
        await app.run_worker_async(concurrency=track.setting("concurrency", 20), delete_jobs="always", **beats)


async def rescue() -> None:
    """Runs what the documentation tells users to run from time to time."""
    async with app.open_async():
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=3.0):
            await app.job_manager.retry_job(job)


if __name__ == "__main__":
    track.run(setup=setup, push=push, trickle=trickle, hold=push_hold, work=work, rescue=rescue)
