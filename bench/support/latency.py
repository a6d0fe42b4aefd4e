"""Latency from push to the start of the handler, with an idle worker, against a bare LISTEN loop."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import psycopg

from bench.support.harness import Bench
from bench.support.recovery import worker
from penstock import Penstock

SPAWN = multiprocessing.get_context("spawn")


def through_penstock(server: Bench, home: Path, *, notify: bool, pushes: int, rate: int) -> list[float]:
    log = home / f"latencies-{time.monotonic_ns()}"
    with server.database() as dsn, Penstock(dsn) as app:
        queue = app.queue("bench")
        queue.set(notify=notify)
        with worker(dsn, log):
            time.sleep(1.5)  # until the worker rests
            for _ in paced(pushes, rate):
                queue.push({"sent": time.time()}, kind="timed")
            until = time.monotonic() + 20
            while not log.exists() or len(log.read_text("ascii").split()) < pushes:
                assert time.monotonic() < until
                time.sleep(0.05)
    return [float(one) for one in log.read_text("ascii").split()]


def paced(count: int, rate: int) -> Iterator[int]:
    """Yields `count` numbers at `rate` a second."""
    began = time.perf_counter()
    for n in range(count):
        time.sleep(max(0.0, began + n / rate - time.perf_counter()))
        yield n


def bare(server: Bench, *, pushes: int, rate: int) -> list[float]:
    """Measures a table, an insert that notifies, and a loop that listens and deletes what it finds."""
    with server.database() as dsn:
        with server.sql(dsn) as sql:
            sql.execute("create table bare (id bigint generated always as identity primary key, sent float8)")
        ours, theirs = SPAWN.Pipe(duplex=False)
        listener = SPAWN.Process(target=listen, args=(dsn, pushes, theirs))
        listener.start()
        assert ours.recv() == "listening"
        with server.sql(dsn) as sql:
            for _ in paced(pushes, rate):
                with sql.transaction():
                    sql.execute("insert into bare (sent) values (%s)", (time.time(),))
                    sql.execute("select pg_notify('bare', '')")
        found: list[float] = ours.recv()
        listener.join()
    return found


def listen(dsn: str, pushes: int, out: Pipe) -> None:
    found: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as listening, psycopg.connect(dsn, autocommit=True) as sql:
        listening.execute("listen bare")
        out.send("listening")
        while len(found) < pushes:
            for _ in listening.notifies(timeout=1, stop_after=1):
                pass
            for (sent,) in sql.execute("delete from bare returning sent").fetchall():
                found.append(time.time() - sent)
    out.send(found)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000, "max": max(seconds) * 1000}
