"""Records that end the process that handles them: found, blamed, and the others go on."""

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

# One record ends the process, by hook or by crook; the others take a moment, so that some are in hand with it.
CODE = """
import os, signal, sys, time
from penstock import Penstock

def handle(record):
    if record["id"] == {poisoned}:
        {end}
    time.sleep(0.001)

Penstock().backlog("jobs").process(handle, concurrency={hands})
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


def one_pass(dsn: str, end: str, hands: int = 1) -> int:
    code = CODE.format(poisoned=POISONED, end=ENDS[end], hands=hands)
    environment = {**os.environ, "PENSTOCK_DSN": dsn}
    return subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False).returncode


def wait_for_nobody(sql: Connection) -> None:
    """Until PostgreSQL has noticed that the others are gone."""
    deadline = time.monotonic() + 20
    others = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database"
    others += " where datname = current_database())"
    while sql.execute(others.encode()).fetchone() != (0,) and time.monotonic() < deadline:
        time.sleep(0.05)


def counts(sql: Connection) -> dict[str, int]:
    return dict(sql.execute("select status, count(*) from public.jobs group by 1").fetchall())


@pytest.mark.parametrize("hands", [1, 4])
@pytest.mark.parametrize("end", [*ENDS])
@pytest.mark.parametrize("strategy", [Fibonacci("1h"), Progressive()], ids=["fibonacci", "progressive"])
def test_the_third_pass_knows_who_it_was(
    app: Penstock, jobs: Connection, dsn: str, strategy: Any, end: str, hands: int
) -> None:
    backlog = app.adopt("public.jobs", **TERMS, strategy=strategy)
    codes = []
    for _ in range(3):
        codes.append(one_pass(dsn, end, hands))
        wait_for_nobody(jobs)
    assert [code == 0 for code in codes] == [False, False, True]
    assert counts(jobs) == {"SUCCESS": RECORDS - 1, "ERROR": 1}
    assert jobs.execute("select id from public.jobs where status = 'ERROR'").fetchone() == (POISONED,)
    assert jobs.execute("select count(*) from penstock.adopted_hand").fetchone() == (0,)
    assert backlog.status().later == 1


def test_its_failures_count(app: Penstock, jobs: Connection, dsn: str) -> None:
    app.adopt("public.jobs", **TERMS, strategy=Fibonacci("1h"), max_attempts=1)
    while one_pass(dsn, "killed"):
        wait_for_nobody(jobs)
    assert counts(jobs) == {"SUCCESS": RECORDS - 1, "DEAD": 1}
    row = jobs.execute("select failures, error from penstock.adopted_record").fetchone()
    assert row == (1, "EndedItsProcess: its handler ended the process")


def test_a_pass_that_was_killed_from_outside_blames_nobody(app: Penstock, jobs: Connection, dsn: str) -> None:
    backlog = app.adopt("public.jobs", **TERMS)
    code = CODE.format(poisoned=POISONED, end="time.sleep(60)", hands=1)
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PENSTOCK_DSN": dsn})
    deadline = time.monotonic() + 30
    while counts(jobs).get("SUCCESS", 0) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_nobody(jobs)
    assert backlog.process(lambda _: None).failed == 0
    assert counts(jobs) == {"SUCCESS": RECORDS}


def test_what_fails_ends_no_pass(app: Penstock, jobs: Connection) -> None:
    """An error of the handler's is no end of a pass; the next one is not careful."""

    def handle(record: dict[str, Any]) -> None:
        raise ValueError(record["id"])

    backlog = app.adopt("public.jobs", **TERMS)
    assert backlog.process(handle).failed == RECORDS
    assert jobs.execute("select count(*) from penstock.adopted_hand").fetchone() == (0,)


def test_overlapping_passes_do_not_think_each_other_lost(app: Penstock, jobs: Connection) -> None:
    backlog = app.adopt("public.jobs", **TERMS)
    seen: list[Any] = []

    def handle(record: dict[str, Any]) -> None:
        if not seen:
            seen.append(record["id"])
            inner = app.backlog("jobs").process(lambda other: seen.append(other["id"]))
            assert (inner.failed, inner.done) == (0, RECORDS - 1)
            assert jobs.execute("select count(*), count(key) from penstock.adopted_hand").fetchone() == (1, 0)

    assert backlog.process(handle).done == 1
    assert sorted(seen) == [*range(1, RECORDS + 1)]


# --- advisory locks that a stranger holds -----------------------------------------------------------------------------

HAND, WALK = 0x50454E48, 0x50454E54


@pytest.fixture
def stranger(direct_dsn: str) -> Iterator[Connection]:
    """Any login may take any advisory lock of its database, and keep it."""
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        yield connection


def test_no_stranger_can_stop_a_pass(app: Penstock, jobs: Connection, stranger: Connection) -> None:
    backlog = app.adopt("public.jobs", **TERMS, strategy=Progressive())
    stranger.execute("select pg_advisory_lock(%s, n) from generate_series(1, 3) as n", (HAND,))
    stranger.execute("select pg_advisory_lock(%s, id) from penstock.adopted", (WALK,))
    with ThreadPoolExecutor(1) as pool:
        try:
            report = pool.submit(backlog.process, lambda _: None).result(30)
        finally:
            stranger.close()
    assert (report.done, report.alone) == (RECORDS, True)


def test_a_stranger_does_not_keep_a_lost_pass_alive(
    app: Penstock, jobs: Connection, dsn: str, stranger: Connection
) -> None:
    """With its lock it would seem to be at work, and its record would end one process after the other."""
    app.adopt("public.jobs", **TERMS)
    for _ in range(2):
        assert one_pass(dsn, "killed") != 0
        wait_for_nobody(jobs)
    stranger.execute("select pg_advisory_lock(%s, id) from penstock.adopted_hand", (HAND,))
    assert one_pass(dsn, "killed") == 0
    assert counts(jobs) == {"SUCCESS": RECORDS - 1, "ERROR": 1}


def test_one_pass_at_a_time_walks_the_ticks(app: Penstock, jobs: Connection) -> None:
    backlog = app.adopt("public.jobs", **TERMS, strategy=Progressive())
    inner: list[bool] = []

    def handle(_: dict[str, Any]) -> None:
        if not inner:
            inner.append(app.backlog("jobs").process(lambda _: None).alone)

    assert backlog.process(handle).alone
    assert inner == [False]
    assert backlog.process(handle).alone, "the pass that walked has ended"


def test_a_pass_holds_no_transaction_id(app: Penstock, jobs: Connection) -> None:
    """The transaction that keeps its lock lasts as long as the pass: with an id, or a snapshot, it would hold up vacuum
    and the folding of counters everywhere."""
    pinned = (
        "select a.backend_xid, a.backend_xmin from pg_stat_activity as a join pg_locks as l on l.pid = a.pid"
        " where l.locktype = 'advisory' and l.classid = %s and a.datname = current_database()"
    )
    seen: list[Any] = []

    def handle(_: dict[str, Any]) -> None:
        seen.extend(jobs.execute(pinned, (HAND,)).fetchall())

    jobs.execute("checkpoint")  # the first number that a sequence gives after one is written to the log
    app.adopt("public.jobs", **TERMS).process(handle)
    assert set(seen) == {(None, None)}
