"""Updates of subjects: through the public API, and by the bare statement that is its limit."""

from __future__ import annotations

import time

import orjson
import psycopg

from bench.support.harness import Bench
from penstock import NewTask, Penstock
from penstock.client.binary import TextArray
from penstock.client.session import configure
from penstock.model import Json

CHUNK = 10_000

UPSERT = """
    insert into penstock.task as t (queue_id, subject, payload)
    select 1, i.subject, i.payload::jsonb from unnest(%s, %s) as i(subject, payload) order by i.subject collate "C"
    on conflict (queue_id, subject) where subject is not null do update set payload = excluded.payload
"""


def through_penstock(server: Bench, rows: list[Json], names: list[str]) -> float:
    with server.database() as dsn, Penstock(dsn) as penstock:
        queue = penstock.queue("bench")
        prepare(server, dsn, rows, names)
        began = time.perf_counter()
        report = queue.upsert_many(NewTask(row, name) for row, name in zip(rows, names, strict=True))
        seconds = time.perf_counter() - began
        assert (report.created, report.updated) == (len(rows) - len(rows) // 2, len(rows) // 2)
        return len(rows) / seconds


def bare(server: Bench, rows: list[Json], names: list[str]) -> float:
    """Upserts sorted rows in chunks of the same size, a transaction each, without agenda, counters or a report."""
    with server.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        configure(connection)
        prepare(server, dsn, rows, names)
        connection.execute("alter table penstock.task disable trigger all")
        began = time.perf_counter()
        for first in range(0, len(rows), CHUNK):
            subjects = [name.encode() for name in names[first : first + CHUNK]]
            payloads = [orjson.dumps(row) for row in rows[first : first + CHUNK]]
            connection.execute(UPSERT, (TextArray(subjects), TextArray(payloads)))
        return len(rows) / (time.perf_counter() - began)


def prepare(server: Bench, dsn: str, rows: list[Json], names: list[str]) -> None:
    """Makes every other subject in advance."""
    with Penstock(dsn) as penstock:
        half = zip(rows[1::2], names[1::2], strict=True)
        penstock.queue("bench").push_many(NewTask(row, name) for row, name in half)
    with server.sql(dsn) as connection:
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
