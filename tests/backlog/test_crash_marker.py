"""Records that end the process that handles them are found and blamed, and the other records go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from penstock import Fibonacci, Penstock, Progressive

TERMS: dict[str, Any] = {"retry": "ERROR", "dead": "DEAD"}
POISONED, RECORDS = 7, 40

# One record ends the process. The others take a moment, so that some run at the same time.
CODE = """
import os, signal, sys, time
from penstock import Penstock

def handle(record):
    if record["id"] == {poisoned}:
        {end}
    time.sleep(0.001)

Penstock().backlog("jobs").process(handle, concurrency={concurrency})
"""
ENDS = {"killed": "os.kill(os.getpid(), signal.SIGKILL)", "left": "sys.exit(3)"}


@pytest.fixture
def jobs(sql: Connection) -> Connection:
    sql.execute("create table public.jobs (id bigint primary key, status text, date_inserted timestamptz)")
    sql.execute(
        "insert into public.jobs select n, 'NEW', penstock.clock() - n * interval '1 minute'"
        f" from generate_series(1, {RECORDS}) as n"
    )
    return sql


def one_pass(dsn: str, end: str, concurrency: int = 1) -> int:
    code = CODE.format(poisoned=POISONED, end=ENDS[end], concurrency=concurrency)
    environment = {**os.environ, "PENSTOCK_DSN": dsn}
    return subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False).returncode


def wait_until_alone(sql: Connection) -> None:
    """Waits until PostgreSQL has noticed that the other sessions are gone."""
    deadline = time.monotonic() + 20
    others = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database"
    others += " where datname = current_database())"
    while sql.execute(others.encode()).fetchone() != (0,) and time.monotonic() < deadline:
        time.sleep(0.05)


def counts(sql: Connection) -> dict[str, int]:
    return dict(sql.execute("select status, count(*) from public.jobs group by 1").fetchall())


@pytest.mark.sample(3)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("end", [*ENDS])
@pytest.mark.parametrize("strategy", [Fibonacci("1h"), Progressive()], ids=["fibonacci", "progressive"])
def test_the_third_pass_knows_the_record(
    app: Penstock, jobs: Connection, dsn: str, strategy: Any, end: str, concurrency: int
) -> None:
    backlog = app.adopt("public.jobs", **TERMS, strategy=strategy)
    codes = []
    for _ in range(3):
        codes.append(one_pass(dsn, end, concurrency))
        wait_until_alone(jobs)
    assert [code == 0 for code in codes] == [False, False, True]
    assert counts(jobs) == {"SUCCESS": RECORDS - 1, "ERROR": 1}
    assert jobs.execute("select id from public.jobs where status = 'ERROR'").fetchone() == (POISONED,)
    assert jobs.execute("select count(*) from penstock.adopted_pass").fetchone() == (0,)
    assert backlog.status().later == 1


def test_its_failures_count(app: Penstock, jobs: Connection, dsn: str) -> None:
    app.adopt("public.jobs", **TERMS, strategy=Fibonacci("1h"), max_attempts=1)
    while one_pass(dsn, "killed"):
        wait_until_alone(jobs)
    assert counts(jobs) == {"SUCCESS": RECORDS - 1, "DEAD": 1}
    row = jobs.execute("select failures, error from penstock.adopted_record").fetchone()
    assert row == (1, "EndedItsProcess: its handler ended the process")


def test_a_pass_that_was_killed_from_outside_blames_no_record(app: Penstock, jobs: Connection, dsn: str) -> None:
    backlog = app.adopt("public.jobs", **TERMS)
    code = CODE.format(poisoned=POISONED, end="time.sleep(60)", concurrency=1)
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PENSTOCK_DSN": dsn})
    deadline = time.monotonic() + 30
    while counts(jobs).get("SUCCESS", 0) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until_alone(jobs)
    assert backlog.process(lambda _: None).failed == 0
    assert counts(jobs) == {"SUCCESS": RECORDS}


def test_a_failed_record_ends_no_pass(app: Penstock, jobs: Connection) -> None:
    """An error in the handler does not end a pass, and the next pass is not careful."""

    def handle(record: dict[str, Any]) -> None:
        raise ValueError(record["id"])

    backlog = app.adopt("public.jobs", **TERMS)
    assert backlog.process(handle).failed == RECORDS
    assert jobs.execute("select count(*) from penstock.adopted_pass").fetchone() == (0,)


def test_overlapping_passes_do_not_think_each_other_lost(app: Penstock, jobs: Connection) -> None:
    backlog = app.adopt("public.jobs", **TERMS)
    seen: list[Any] = []

    def handle(record: dict[str, Any]) -> None:
        if not seen:
            seen.append(record["id"])
            inner = app.backlog("jobs").process(lambda other: seen.append(other["id"]))
            assert (inner.failed, inner.done) == (0, RECORDS - 1)
            assert jobs.execute("select count(*), count(key) from penstock.adopted_pass").fetchone() == (1, 0)

    assert backlog.process(handle).done == 1
    assert sorted(seen) == [*range(1, RECORDS + 1)]


# --- advisory locks that another session holds ------------------------------------------------------------------------

PASS, WALK = 0x50454E48, 0x50454E54


@pytest.fixture
def other_session(direct_dsn: str) -> Iterator[Connection]:
    """A session that takes advisory locks and keeps them, as any login of the database may."""
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        yield connection


def test_no_other_session_can_stop_a_pass(app: Penstock, jobs: Connection, other_session: Connection) -> None:
    backlog = app.adopt("public.jobs", **TERMS, strategy=Progressive())
    other_session.execute("select pg_advisory_lock(%s, n) from generate_series(1, 3) as n", (PASS,))
    other_session.execute("select pg_advisory_lock(%s, id) from penstock.adopted", (WALK,))
    with ThreadPoolExecutor(1) as pool:
        try:
            report = pool.submit(backlog.process, lambda _: None).result(30)
        finally:
            other_session.close()
    assert (report.done, report.walked_ticks) == (RECORDS, True)


def test_another_session_does_not_keep_a_lost_pass_alive(
    app: Penstock, jobs: Connection, dsn: str, other_session: Connection
) -> None:
    """If its lock counted, the lost pass would seem to work, and its record would end one process after the other."""
    app.adopt("public.jobs", **TERMS)
    for _ in range(2):
        assert one_pass(dsn, "killed") != 0
        wait_until_alone(jobs)
    other_session.execute("select pg_advisory_lock(%s, id) from penstock.adopted_pass", (PASS,))
    assert one_pass(dsn, "killed") == 0
    assert counts(jobs) == {"SUCCESS": RECORDS - 1, "ERROR": 1}


def test_one_pass_at_a_time_walks_the_ticks(app: Penstock, jobs: Connection) -> None:
    backlog = app.adopt("public.jobs", **TERMS, strategy=Progressive())
    inner: list[bool] = []

    def handle(_: dict[str, Any]) -> None:
        if not inner:
            inner.append(app.backlog("jobs").process(lambda _: None).walked_ticks)

    assert backlog.process(handle).walked_ticks
    assert inner == [False]
    assert backlog.process(handle).walked_ticks, "the pass that walked has ended"


def test_a_pass_holds_no_transaction_id(app: Penstock, jobs: Connection) -> None:
    """The transaction that keeps its lock lasts as long as the pass. With a transaction id or a snapshot, it would hold
    up vacuum and the folding of counters in all tables."""
    pinned = (
        "select a.backend_xid, a.backend_xmin from pg_stat_activity as a join pg_locks as l on l.pid = a.pid"
        " where l.locktype = 'advisory' and l.classid = %s and a.datname = current_database()"
    )
    seen: list[Any] = []

    def handle(_: dict[str, Any]) -> None:
        seen.extend(jobs.execute(pinned, (PASS,)).fetchall())

    jobs.execute("checkpoint")  # after a checkpoint, the first number of a sequence is written to the log
    app.adopt("public.jobs", **TERMS).process(handle)
    assert set(seen) == {(None, None)}
