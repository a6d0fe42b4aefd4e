"""Drains in separate processes: through the public API, and by the bare loop that is its limit."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier
from uuid import UUID

import psycopg

from penstock import Penstock
from penstock.app_async import AsyncPenstock
from penstock.client.binary import IdArray
from penstock.client.connections import fetch_raw
from penstock.client.session import configure
from penstock.model import Task
from penstock.validate import decode_payloads

SPAWN = multiprocessing.get_context("spawn")
Marks = list[tuple[float, int]]


def through_penstock(dsn: str, batch: int) -> Marks:
    """Claims and settles through the public API."""
    marks: Marks = []
    with Penstock(dsn) as penstock:
        queue = penstock.queue("bench")
        while claim := queue.claim(batch, worker="bench"):
            queue.settle(claim)
            marks.append((time.time(), len(claim)))
    return marks


def through_async_penstock(dsn: str, batch: int) -> Marks:
    """Does the same through the async client."""

    async def drain() -> Marks:
        marks: Marks = []
        async with AsyncPenstock(dsn) as penstock:
            queue = penstock.queue("bench")
            while claim := await queue.claim(batch, worker="bench"):
                await queue.settle(claim)
                marks.append((time.time(), len(claim)))
        return marks

    return asyncio.run(drain())


TAKE = """
    with chosen as materialized (
        select ctid as place, task_id, due, attempts from penstock.agenda
        where queue_id = 1 and pending order by priority, due, task_id limit %s for update skip locked
    ), taken as (
        delete from penstock.agenda where ctid = any(array(select place from chosen))
    ), leased as (
        insert into penstock.lease (claimed_at, until, queue_id, alone, named, worker, open, ids, dues)
        select now(), now() + interval '30 seconds', 1, false, false, 'bench', repeat('1', count(*)::int)::varbit,
               array_agg(task_id), array_agg(due)
        from chosen having count(*) > 0 returning token, until
    )
    select t.id, t.kind, t.subject, t.payload, t.priority, c.attempts + 1, t.iterations, c.due, t.created,
           case when row_number() over () = 1 then (select token from leased) end,
           case when row_number() over () = 1 then (select until from leased) end
    from chosen as c
    join (select * from penstock.task where id = any(array(select task_id from chosen))) as t on t.id = c.task_id
"""

FINISH = """
    with ended as (
        delete from penstock.lease where token = %s returning ids, dues, claimed_at
    ), gone as (
        delete from penstock.task where id = any(%s) returning id, created, iterations, kind, subject
    )
    insert into penstock.history (xid, task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                  outcome, kind, worker, subject)
    select (select pg_current_xact_id()::text::bigint), g.id, g.created, h.due, e.claimed_at, now(), 1, g.iterations, 1,
           'done', g.kind, 'bench', g.subject
    from ended as e cross join unnest(e.ids, e.dues) as h(id, due) join gone as g on g.id = h.id
"""


def bare(dsn: str, batch: int) -> Marks:
    """Drains the same layout with bare, prepared SQL: without counters, a fence or retries."""
    marks: Marks = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        configure(connection)
        # Settings for the best plans: without these it read whole tables, five times slower.
        connection.execute("set enable_seqscan = off; set enable_bitmapscan = off; set enable_nestloop = off")
        while True:
            connection.execute("begin; set local synchronous_commit = off")
            rows = fetch_raw(connection, TAKE, (batch,))
            connection.execute("commit")
            if not rows:
                return marks
            columns = zip(*rows, strict=True)
            *before, payloads, priorities, attempts, iterations, dues, created, tokens, _ = columns
            after = (priorities, attempts, iterations, dues, created, [None] * len(rows))
            tasks = tuple(map(Task._make, zip(*before, decode_payloads(payloads), *after, strict=True)))
            connection.execute("begin")
            connection.execute(FINISH, (UUID(bytes=tokens[0]), IdArray([task.id for task in tasks])))
            connection.execute("commit")
            marks.append((time.time(), len(tasks)))


def worker(drain: Callable[[str, int], Marks], dsn: str, batch: int, start: Barrier, out: Pipe) -> None:
    start.wait()
    began = time.time()
    out.send((began, drain(dsn, batch)))


def drained(drain: Callable[[str, int], Marks], dsn: str, processes: int, batch: int = 500) -> tuple[float, Marks]:
    """Returns when the drain began, and every batch with the time at which its completion was recorded."""
    start = SPAWN.Barrier(processes)
    started = []
    for _ in range(processes):
        ours, theirs = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=worker, args=(drain, dsn, batch, start, theirs))
        process.start()
        started.append((process, ours))
    received = [ours.recv() for _, ours in started]
    for process, _ in started:
        process.join()
    return min(began for began, _ in received), sorted(mark for _, marks in received for mark in marks)
