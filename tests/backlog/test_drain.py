"""Passes over tables of other programs: the table of the first reader exactly as printed, and unusual ones."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.sql import SQL

from backlogs import COLUMNS, TERMS, Handler, Record, make_backlog, statuses
from conftest import Clock
from penstock import (
    AuthError,
    Backlog,
    Conflict,
    Delays,
    Exponential,
    Fibonacci,
    NotFound,
    Outcome,
    Penstock,
    Progressive,
    RunHandler,
    Task,
    ValidationError,
)
from penstock.handlers import Spec
from shell import penstock


@pytest.fixture
def sql(sql: Connection) -> Connection:
    """A connection that makes tables in `public`: the tests' user has the name of our schema, which would be first."""
    sql.execute("set search_path = public")
    return sql


@pytest.fixture
def seed(sql: Connection, clock: Clock) -> Connection:
    make_backlog(sql)
    return sql


def with_columns(sql: Connection) -> None:
    sql.execute("alter table backlog add failures int not null default 0, add last_failure timestamptz")


def tried(backlog: Backlog, *bad: Any, **options: Any) -> list[Any]:
    """Runs one pass and returns the records that it handled, in order."""
    handler = Handler(*bad)
    backlog.process(handler, **options)
    return handler.seen


# --- the first reader's table -----------------------------------------------------------------------------------------


def test_the_table_as_printed(app: Penstock, seed: Connection) -> None:
    backlog = app.adopt("public.backlog", **TERMS, strategy=Progressive.default())
    handler = Handler(1, 4)
    report = backlog.process(handler, max_age="360d", limit=1000)
    assert handler.seen == [1, 2, 3, 4], "the oldest come first"
    assert statuses(seed) == {1: "ERROR", 2: "SUCCESS", 3: "SUCCESS", 4: "ERROR"}, (
        "the statuses are as printed after one call"
    )
    assert (report.done, report.failed, report.dead, report.later, report.more) == (2, 2, 0, 2, False)
    assert report.errors == {"RuntimeError": 2}
    columns = seed.execute("select column_name from information_schema.columns where table_name = 'backlog'").fetchall()
    assert len(columns) == 3, "no column is added"


def test_a_handler_of_an_application_runs_inside_its_wrappers(app: Penstock, seed: Connection) -> None:
    seen: list[Any] = []

    @app.task(queue="work")
    def handle(record: dict[str, Any], transaction: Any) -> None:
        seen.append(record["id"])

    def wrapper(spec: Spec) -> Callable[..., Any]:
        @functools.wraps(spec.function)
        def run(*arguments: Any, **named: Any) -> Any:
            seen.append("enter")
            return spec.function(*arguments, **named)

        return run

    app.registry.wrap(wrapper)
    report = app.adopt("public.backlog", **TERMS).process(handle, limit=2)
    assert (report.done, seen) == (2, ["enter", 1, "enter", 2])


def test_a_record_is_no_task_and_runs_outside_of_middleware(app: Penstock, seed: Connection) -> None:
    seen: list[Any] = []

    @app.middleware
    def around(task: Task, run: RunHandler) -> Outcome:
        raise AssertionError

    @app.task(queue="work")
    def handle(record: dict[str, Any]) -> None:
        seen.append(record["id"])

    report = app.adopt("public.backlog", **TERMS).process(handle, limit=2)
    assert (report.done, seen) == (2, [1, 2])


def test_progressive_tries_each_at_its_own_rate(app: Penstock, seed: Connection, clock: Clock) -> None:
    """Record 4 is 8 minutes old and is tried at 10 and 15 minutes. Record 1 is two months old: every 96 hours."""
    backlog = app.adopt("backlog", **TERMS, strategy=Progressive.default())
    assert tried(backlog, 1, 4) == [1, 2, 3, 4]
    assert tried(backlog, 1, 4) == []
    clock.advance(60)
    assert tried(backlog, 1, 4) == []
    clock.advance(61)
    assert tried(backlog, 1, 4) == [4]
    clock.advance(240)
    assert tried(backlog, 1, 4) == []
    clock.advance(60)
    assert tried(backlog, 1, 4) == [4]
    clock.advance(4 * 86400)
    assert tried(backlog, 1, 4) == [1, 4], "missed ticks are one attempt, in the order of the last ones"
    assert seed.execute("select count(*) from penstock.adopted").fetchone() == (1,)
    assert seed.execute("select count(*) from penstock.adopted_record").fetchone() == (0,), (
        "only one small row is stored"
    )


def test_progressive_ends(app: Penstock, seed: Connection, clock: Clock) -> None:
    seed.execute("insert into backlog values (9, 'ERROR', penstock.clock() - interval '359 days')")
    seed.execute("insert into backlog values (8, 'ERROR', penstock.clock() - interval '3 years')")
    backlog = app.adopt("backlog", **TERMS)
    report = backlog.process(Handler(9, 8))
    assert report.dead == 2, "this was the last tick"
    assert statuses(seed)[9] == statuses(seed)[8] == "DEAD"
    clock.advance(20 * 86400)
    assert tried(backlog) == []


@pytest.mark.parametrize("mode", ["columns", "sidecar"])
def test_fibonacci(app: Penstock, seed: Connection, clock: Clock, mode: str) -> None:
    """After one or two failures a record waits one minute, after six it waits eight."""
    if mode == "columns":
        with_columns(seed)
    columns: Record = COLUMNS if mode == "columns" else {}
    backlog = app.adopt("backlog", **TERMS, **columns, strategy=Fibonacci("1m"))
    assert backlog.terms.mode == mode
    assert tried(backlog, 4) == [1, 2, 3, 4]
    for minutes in (1, 1, 2, 3, 5, 8):
        clock.advance(minutes * 60 - 1)
        assert tried(backlog, 4) == [], minutes
        clock.advance(1)
        assert tried(backlog, 4) == [4], minutes
    if mode == "columns":
        assert seed.execute("select failures, last_failure from backlog where id = 4").fetchone() == (7, clock.now())
        assert seed.execute("select failures from backlog where id = 3").fetchone() == (0,)
    else:
        row = seed.execute("select key, failures, error from penstock.adopted_record").fetchone()
        assert row == (["4"], 7, "RuntimeError: record 4 is bad")
    clock.advance(13 * 60)
    assert tried(backlog) == [4]
    assert statuses(seed)[4] == "SUCCESS"
    assert seed.execute("select count(*) from penstock.adopted_record").fetchone() == (0,)


def test_the_second_table_as_printed(app: Penstock, seed: Connection, clock: Clock) -> None:
    """The second table of the first reader, with FAILURES and LAST_FAILURE: two minutes later record 4 is due."""
    with_columns(seed)
    seed.execute("update backlog set last_failure = penstock.clock() - interval '50 seconds'")
    seed.execute("update backlog set status = 'SUCCESS' where id in (2, 3)")
    seed.execute("update backlog set status = 'ERROR' where id in (1, 4)")
    seed.execute("update backlog set failures = 1 where id in (2, 4)")
    backlog = app.adopt("backlog", **TERMS, **COLUMNS, strategy=Fibonacci("1m"))
    assert tried(backlog, 1, 4) == [1], "a record without failures does not wait"
    clock.advance(11)
    assert tried(backlog, 4) == [4]


@pytest.mark.parametrize("mode", ["columns", "sidecar"])
def test_the_end_of_tries_is_dead(app: Penstock, seed: Connection, clock: Clock, mode: str) -> None:
    if mode == "columns":
        with_columns(seed)
    columns: Record = COLUMNS if mode == "columns" else {}
    backlog = app.adopt("backlog", **TERMS, **columns, strategy=Fibonacci("1m"), max_attempts=2)
    assert backlog.process(Handler(2, 3)).failed == 2
    clock.advance(60)
    report = backlog.process(Handler(2))
    assert (report.done, report.failed, report.dead) == (1, 0, 1)
    assert statuses(seed) == {1: "SUCCESS", 2: "DEAD", 3: "SUCCESS", 4: "SUCCESS"}
    seed.execute("update backlog set status = 'NEW' where id = 2")
    if mode == "sidecar":
        assert backlog.process(Handler(2)).failed == 1, "after it was ready again, its failures count from the start"


def test_a_schedule_ends_too(app: Penstock, seed: Connection, clock: Clock) -> None:
    backlog = app.adopt("backlog", **TERMS, strategy=Delays(["1m"]))
    assert backlog.process(Handler(1)).failed == 1
    clock.advance(60)
    assert backlog.process(Handler(1)).dead == 1


def test_without_a_dead_status_it_stays_failed_and_is_not_tried(app: Penstock, seed: Connection, clock: Clock) -> None:
    backlog = app.adopt("backlog", **{**TERMS, "dead": None}, strategy=Fibonacci("1m"), max_attempts=1)
    assert backlog.process(Handler(1)).dead == 1
    clock.advance(86400)
    assert tried(backlog) == []
    assert statuses(seed)[1] == "ERROR"


# --- limits and order -------------------------------------------------------------------------------------------------


def test_newest_first_max_age_and_limit(app: Penstock, seed: Connection) -> None:
    backlog = app.adopt("backlog", **TERMS)
    assert tried(backlog, newest_first=True, limit=1) == [4]
    assert tried(backlog, max_age="4d", limit=1) == [2]
    report = backlog.process(Handler(), max_age="4d")
    assert (report.done, report.more) == (1, False)
    assert statuses(seed)[1] == "NEW", "older than max_age"


def hopeless(sql: Connection, rows: int, bad: int, status: str = "ERROR") -> None:
    """Fills a large table whose newest records always fail."""
    sql.execute(
        "create table backlog (id bigint primary key, status text not null, date_inserted timestamptz not null)"
    )
    sql.execute(
        "insert into backlog select n,"
        " case when n > %(good)s then %(bad)s when n %% 20 = 0 then 'NEW' else 'SUCCESS' end,"
        " penstock.clock() - make_interval(secs => (%(rows)s - n) * 0.5 + 600) from generate_series(1, %(rows)s) as n",
        {"rows": rows, "good": rows - bad, "bad": status},
    )
    sql.execute("analyze backlog")


@pytest.mark.parametrize("rows", [50_000, pytest.param(2_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_hopeless_records_do_not_hold_the_others_up(
    app: Penstock, sql: Connection, clock: Clock, rows: int, strategy: str
) -> None:
    """The 5,000 newest records always fail, and a pass takes 500, the newest first: every pass does useful work."""
    hopeless(sql, rows, 5000)
    backlog = app.adopt("backlog", **TERMS, strategy=strategy)

    def handle(record: Record) -> None:
        if record["id"] > rows - 5000:
            raise RuntimeError

    for _ in range(5):
        report = backlog.process(handle, limit=500, newest_first=True)
        assert report.done >= 250, report
        assert report.failed > 0, "those that fail are not forgotten"
        clock.advance(300)


def test_a_pass_cut_by_its_limit_goes_on_there(app: Penstock, sql: Connection, clock: Clock) -> None:
    sql.execute("create table backlog (id int primary key, status text, date_inserted timestamptz)")
    sql.execute(
        "insert into backlog select n, 'ERROR', penstock.clock() - interval '2 days' - n % 7 * interval '1 hour'"
        " from generate_series(1, 100) as n"
    )
    backlog = app.adopt("backlog", **TERMS)
    everyone = [*range(1, 101)]
    passes = [tried(backlog, *everyone, limit=30) for _ in range(5)]
    assert [len(one) for one in passes] == [30, 30, 30, 10, 0]
    assert sorted(chain.from_iterable(passes)) == everyone, "each once"


@pytest.mark.sample(4)
@pytest.mark.parametrize("limit", [2, 5, 20, 100, 500])
@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_a_quarter_is_for_what_is_due_again(
    app: Penstock, sql: Connection, clock: Clock, limit: int, strategy: str
) -> None:
    hopeless(sql, 20_000, 1000)
    backlog = app.adopt("backlog", **TERMS, strategy=strategy)
    report = backlog.process(lambda _: None, limit=limit)
    assert report.done == limit
    again = 1000 - (sql.execute("select count(*) from backlog where status = 'ERROR'").fetchone() or (0,))[0]
    assert max(limit // 4, 1) <= again <= limit // 3 + 1


def test_foreign_failures_are_found_a_slice_at_a_time(app: Penstock, sql: Connection, clock: Clock) -> None:
    """Records that failed before the adoption, or through another program, in a table with more failures than a pass
    compares."""
    sql.execute("create table backlog (id int primary key, status text, date_inserted timestamptz)")
    sql.execute(
        "insert into backlog select n, 'ERROR', penstock.clock() - n * interval '1 minute'"
        " from generate_series(1, 5000) as n"
    )
    backlog = app.adopt("backlog", **TERMS, strategy=Fibonacci("1d"))
    everyone = [*range(1, 5001)]
    first, second = tried(backlog, *everyone, limit=2500), tried(backlog, *everyone, limit=2500)
    assert sorted(chain(first, second)) == everyone
    sql.execute("insert into backlog values (9001, 'ERROR', now() - interval '100 days'), (9002, 'ERROR', now())")
    later = [tried(backlog, *everyone) for _ in range(5)]
    assert sorted(chain.from_iterable(later)) == [9001, 9002], "each is found within a few passes"


def test_a_new_failure_waits_for_its_own_tick(app: Penstock, seed: Connection) -> None:
    """In the first pass all earlier failures are due; a record that fails in it is not tried twice."""
    seed.execute("update backlog set status = 'ERROR' where id = 2")
    backlog = app.adopt("backlog", **TERMS)
    assert sorted(tried(backlog, 1, 2, 3, 4)) == [1, 2, 3, 4]


# --- odd tables -------------------------------------------------------------------------------------------------------

ODD = [
    pytest.param("Mixed Case", '"ID"', '"Status"', '"Date Inserted"', id="mixed-case"),
    pytest.param("order", '"select"', '"from"', '"where"', id="reserved"),
    pytest.param("rückstand", '"schlüssel"', '"größe"', '"日付"', id="unicode"),
    pytest.param('q"uo%te', '"a""b"', '"per%cent"', '"{x}"', id="quotes"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("table", "key", "status", "inserted"), ODD)
@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_any_identifier(
    app: Penstock, sql: Connection, clock: Clock, table: str, key: str, status: str, inserted: str, strategy: str
) -> None:
    quoted = '"' + table.replace('"', '""') + '"'
    sql.execute('create schema "Odd.Schema"')
    sql.execute(
        f'create table "Odd.Schema".{quoted} ({key} int primary key, {status} text, {inserted} timestamptz)'.encode()
    )
    sql.execute(
        f"insert into \"Odd.Schema\".{quoted} select n, 'NEW', penstock.clock() - interval '1 hour'"
        " from generate_series(1, 5) as n".encode()
    )
    plain = [one[1:-1].replace('""', '"') for one in (key, status, inserted)]
    backlog = app.adopt(
        f'"Odd.Schema".{quoted}',
        **{**TERMS, "key": plain[0], "status": plain[1], "inserted": plain[2]},
        strategy=strategy,
        name="odd",
    )

    def handle(record: Record) -> None:
        if record[plain[0]] == 3:
            raise RuntimeError

    report = backlog.process(handle)
    assert (report.done, report.failed) == (4, 1)
    clock.advance(300)
    assert backlog.process(handle).failed == 1
    assert backlog.status().statuses == {"ERROR": 1, "SUCCESS": 4}
    assert app.backlog("odd").process(handle).failed == 0, "the table is found again by its name"


STATUSES = [
    pytest.param("create type st as enum ('NEW', 'ERROR', 'SUCCESS', 'DEAD')", "st", TERMS, id="enum"),
    pytest.param("select 1", "int", {"ready": [0], "retry": [2], "done": 1, "failed": 2, "dead": 3}, id="integer"),
    pytest.param("select 1", "varchar(10)", TERMS, id="varchar"),
    pytest.param("select 1", "char(10)", TERMS, id="char"),
    pytest.param("create domain st as text check (value <> '')", "st", TERMS, id="domain"),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("prepare", "kind", "words"), STATUSES)
@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_statuses_of_any_type(
    app: Penstock, sql: Connection, clock: Clock, prepare: str, kind: str, words: Record, strategy: str
) -> None:
    sql.execute(prepare.encode())
    new = words["ready"][0]
    sql.execute(f"create table backlog (id int primary key, status {kind}, date_inserted timestamptz)".encode())
    sql.execute(
        f"insert into backlog select n, '{new}', penstock.clock() - interval '1 hour'"
        " from generate_series(1, 4) as n".encode()
    )
    backlog = app.adopt("backlog", **{**TERMS, **words}, strategy=strategy)
    assert tried(backlog, 2) == [1, 2, 3, 4]
    clock.advance(300)
    assert tried(backlog, 2) == [2]
    found: Record = dict(sql.execute("select status::text, count(*) from backlog group by 1").fetchall())
    assert {one.strip(): count for one, count in found.items()} == {str(words["done"]): 3, str(words["failed"]): 1}


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
@pytest.mark.parametrize("kind", ["uuid", "text", "numeric(10, 2)"])
def test_keys_of_any_type(app: Penstock, sql: Connection, clock: Clock, kind: str, strategy: str) -> None:
    made = {"uuid": "gen_random_uuid()", "text": "'k %s ' || n"}.get(kind, "n + 0.25")
    sql.execute(f"create table backlog (id {kind} primary key, status text, date_inserted timestamptz)".encode())
    sql.execute(
        f"insert into backlog select {made}, 'NEW', penstock.clock() - interval '1 hour'"
        " from generate_series(1, 9) as n".encode()
    )
    backlog = app.adopt("backlog", **{**TERMS, "key": None}, strategy=strategy)
    first = tried(backlog, limit=3)
    others = tried(backlog, *(row[0] for row in sql.execute("select id from backlog where status = 'NEW'")))
    assert (len(first), len(others)) == (3, 6)
    clock.advance(300)
    assert sorted(tried(backlog)) == sorted(others)


@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_a_key_of_two_columns(app: Penstock, sql: Connection, clock: Clock, strategy: str) -> None:
    sql.execute(
        "create table backlog (tenant text, id int, status text, date_inserted timestamptz, primary key (tenant, id))"
    )
    sql.execute(
        "insert into backlog select t, n, 'NEW', penstock.clock() - interval '1 hour'"
        " from generate_series(1, 3) as n, unnest('{a,b}'::text[]) as t"
    )
    backlog = app.adopt("backlog", **{**TERMS, "key": None}, strategy=strategy)

    def handle(record: Record) -> None:
        if record["tenant"] == "a" and record["id"] == 2:
            raise RuntimeError

    assert (report := backlog.process(handle)).done == 5, report
    clock.advance(300)
    assert backlog.process(lambda _: None).done == 1
    assert sql.execute("select count(*) from backlog where status = 'SUCCESS'").fetchone() == (6,)


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_times_with_and_without_a_zone(app: Penstock, sql: Connection, clock: Clock, kind: str, strategy: str) -> None:
    """Times without a zone are read in `tz`, whatever the zone of the session."""
    sql.execute(
        "create table backlog (id int primary key, status text,"
        f" date_inserted {kind}, failures int, last_failure {kind})".encode()
    )
    zone = " at time zone 'Asia/Tokyo'" if kind == "timestamp" else ""
    sql.execute(f"insert into backlog values (1, 'NEW', (penstock.clock() - interval '8 minutes'){zone})".encode())
    backlog = app.adopt("backlog", **TERMS, **COLUMNS, strategy=strategy, tz="Asia/Tokyo", sla="10m")
    status = backlog.status()
    assert status.oldest_age == pytest.approx(480, abs=1)
    assert status.sla_used == pytest.approx(0.8, abs=0.01)
    assert tried(backlog, 1) == [1]
    wait = 121 if strategy == "progressive" else 60
    clock.advance(wait - 2)
    assert tried(backlog) == []
    clock.advance(2)
    assert tried(backlog) == [1]


@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_times_that_python_cannot_hold(app: Penstock, seed: Connection, clock: Clock, strategy: str) -> None:
    seed.execute("alter table backlog add note timestamptz default '-infinity', add day date default '4713-01-01 BC'")
    seed.execute("insert into backlog values (5, 'NEW', 'infinity'), (6, 'NEW', '-infinity')")
    seed.execute("insert into backlog values (7, 'ERROR', '0044-03-15 BC'), (8, 'ERROR', 'infinity')")
    backlog = app.adopt("backlog", **TERMS, strategy=strategy)
    assert sorted(tried(backlog, 4, 5, 6)) == [1, 2, 3, 4, 5, 6]
    clock.advance(300)
    assert 4 in tried(backlog, 4)
    assert backlog.status().oldest_age is None


# --- other programs at the same table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
@pytest.mark.parametrize("mode", ["columns", "sidecar"])
def test_overlapping_runs_handle_each_record_once(
    app: Penstock, sql: Connection, clock: Clock, strategy: str, mode: str
) -> None:
    """Runs four passes of two threads each over new and failed records, half of which fail."""
    sql.execute("create table backlog (id int primary key, status text, date_inserted timestamptz)")
    if mode == "columns":
        with_columns(sql)
    sql.execute(
        "insert into backlog select n, case when n % 2 = 0 then 'NEW' else 'ERROR' end,"
        " penstock.clock() - interval '2 hours' - n * interval '1 second' from generate_series(1, 600) as n"
    )
    columns: Record = COLUMNS if mode == "columns" else {}
    backlogs = [app.adopt("backlog", **TERMS, **columns, strategy=strategy) for _ in range(4)]
    handlers = [Handler(*(n for n in range(1, 601) if n % 4 < 2)) for _ in backlogs]
    threads = [
        threading.Thread(target=one.process, args=(handler,), kwargs={"concurrency": 2})
        for one, handler in zip(backlogs, handlers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted(chain.from_iterable(one.seen for one in handlers))
    assert {*seen} == {*range(1, 601)}
    twice = {n for n in seen if seen.count(n) > 1}
    if strategy == "progressive" and mode == "sidecar":
        assert twice <= handlers[0].bad, "a new failure of another run looks like an old one"
    else:
        assert twice == set()
    found: Record = dict(sql.execute("select status, count(*) from backlog group by 1").fetchall())
    assert found == {"SUCCESS": 300, "ERROR": 300}


def test_rows_that_another_session_locks_are_left(app: Penstock, seed: Connection, dsn: str) -> None:
    seed.execute("update backlog set status = 'ERROR' where id in (1, 2)")
    backlog = app.adopt("backlog", **TERMS)
    with psycopg.connect(dsn) as other:
        other.execute("select from backlog where id in (1, 3) for update")
        report = backlog.process(handler := Handler())
        assert sorted(handler.seen) == [2, 4]
        assert report.skipped == 1
    assert tried(backlog) == [3], "1 waits for its next tick"


def test_undeclared_statuses_are_left_alone_and_reported(app: Penstock, seed: Connection) -> None:
    seed.execute("insert into backlog values (5, 'PAUSED', now()), (6, null, now()), (7, 'PAUSED', now())")
    backlog = app.adopt("backlog", **TERMS)
    report = backlog.process(Handler())
    assert report.undeclared == {"PAUSED": 2, "null": 1}
    assert backlog.status().undeclared == {"PAUSED": 2, "null": 1}
    assert statuses(seed)[5] == "PAUSED"


# --- handlers ---------------------------------------------------------------------------------------------------------


def test_effect_and_status_together(app: Penstock, seed: Connection) -> None:
    seed.execute("create table effect (id int)")

    def handle(record: Record, transaction: Connection) -> None:
        transaction.execute("insert into effect values (%s)", (record["id"],))
        if record["id"] == 2:
            raise RuntimeError

    report = app.adopt("backlog", **TERMS).process(handle, concurrency=2)
    assert (report.done, report.failed) == (3, 1)
    assert sorted(seed.execute("select id from effect").fetchall()) == [(1,), (3,), (4,)]


def test_a_handler_may_change_the_row_itself(app: Penstock, seed: Connection) -> None:
    def handle(record: Record, transaction: Connection) -> None:
        if record["id"] == 1:
            transaction.execute("delete from backlog where id = 1")
        elif record["id"] == 2:
            transaction.execute("update backlog set status = 'PARKED' where id = 2")

    report = app.adopt("backlog", **TERMS).process(handle)
    assert (report.done, report.changed) == (2, 2)
    assert statuses(seed) == {2: "PARKED", 3: "SUCCESS", 4: "SUCCESS"}


@pytest.mark.parametrize("end", ["commit", "rollback", "commit; begin", "select 1/0"])
def test_a_handler_that_ends_the_transaction_fails(app: Penstock, seed: Connection, end: str) -> None:
    def handle(record: Record, transaction: Connection) -> None:
        if record["id"] == 2:
            with suppress(psycopg.Error):
                transaction.execute(end.encode())

    report = app.adopt("backlog", **TERMS).process(handle)
    assert (report.done, report.failed) == (3, 1)
    assert statuses(seed)[2] == "ERROR"


def test_a_handler_that_cannot_be_called(app: Penstock, seed: Connection) -> None:
    backlog = app.adopt("backlog", **TERMS)

    async def later(record: Record) -> None: ...

    for bad in (later, 7, lambda: None, lambda _a, _b, _c: None):
        with pytest.raises(ValidationError, match="handler"):
            backlog.process(bad)  # type: ignore[arg-type]
    assert set(statuses(seed).values()) == {"NEW"}


def test_a_process_that_dies_leaves_its_record_untouched(app: Penstock, seed: Connection, dsn: str) -> None:
    backlog = app.adopt("backlog", **TERMS)
    code = (
        "import os, signal, time\n"
        "from penstock import Penstock\n"
        "def handle(record):\n"
        "    if record['id'] == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(0.06)\n"
        "Penstock().backlog('backlog').process(handle)\n"
    )
    environment = {**os.environ, "PENSTOCK_DSN": dsn}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert statuses(seed) == {1: "SUCCESS", 2: "NEW", 3: "NEW", 4: "NEW"}
    deadline = time.monotonic() + 20
    while not backlog.process(Handler()).done and time.monotonic() < deadline:
        time.sleep(0.1)  # until PostgreSQL has noticed
    assert statuses(seed)[2] == "SUCCESS"


def test_a_handler_that_leaves_its_process(app: Penstock, seed: Connection) -> None:
    def handle(record: Record) -> None:
        if record["id"] == 2:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        app.adopt("backlog", **TERMS).process(handle)
    assert statuses(seed) == {1: "SUCCESS", 2: "NEW", 3: "NEW", 4: "NEW"}


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def other_role(sql: Connection, direct_dsn: str) -> Iterator[str]:
    """The DSN of a role that may drain, but has no right on the table yet."""
    name = f"other_role_{os.getpid()}"
    sql.execute(f"create role {name} login password 'secret' in role penstock_worker, penstock_admin".encode())
    sql.execute("grant usage on schema penstock_test to public")
    sql.execute("grant select on penstock_test.clock to public")
    yield psycopg.conninfo.make_conninfo(direct_dsn, user=name, password="secret")
    sql.execute(f"drop owned by {name}".encode())
    sql.execute(f"drop role {name}".encode())


def test_without_permission_to_write(seed: Connection, other_role: str) -> None:
    with Penstock(other_role) as app:
        with pytest.raises(AuthError, match=r"may not read table public\.backlog"):
            app.adopt("backlog", **TERMS)
        seed.execute("grant select on backlog to public")
        with pytest.raises(AuthError, match=r"may not update status of table public\.backlog"):
            app.adopt("backlog", **TERMS)
        watched = app.adopt("backlog", **TERMS, mode="observe")
        assert watched.status().ready == 4, "reading is allowed"
        with pytest.raises(Conflict, match="observed only"):
            watched.process(Handler())
        seed.execute("grant update (status) on backlog to public")
        backlog = app.adopt("backlog", **TERMS)
        seed.execute("revoke update (status) on backlog from public")
        with pytest.raises(AuthError, match="may not update"):
            backlog.process(handler := Handler())
        assert handler.seen == [], "it fails before the first record"
        seed.execute("grant update (status) on backlog to public")
        assert backlog.process(Handler()).done == 4


def test_indexes_that_only_the_owner_may_make(seed: Connection, other_role: str) -> None:
    seed.execute("grant select, update (status) on backlog to public")
    told = ("adopt", "public.backlog", "--apply")
    ran = penstock(*told, dsn=other_role)
    assert ran.code == 3, ran.err
    assert "backlog is adopted, but this role may not make its indexes: must be owner of table backlog" in ran.err
    assert "Its owner may: create index concurrently" in ran.err
    ran = penstock(*told, "--no-index", dsn=other_role)
    assert ran.code == 0, ran.err


BAD = [
    ({"table": "nowhere"}, NotFound, "'nowhere' does not exist"),
    ({"table": ""}, ValidationError, "table"),
    ({"table": "x'; drop table backlog; --"}, NotFound, "does not exist"),
    ({"status": "state"}, ValidationError, "has no column 'state'"),
    ({"inserted": "status"}, ValidationError, "not a timestamp"),
    ({"key": ["id", "id"]}, ValidationError, "key"),
    ({"key": []}, ValidationError, "key"),
    ({"ready": []}, None, ""),
    ({"ready": [], "retry": []}, ValidationError, "ready"),
    ({"ready": ["NEW", "ERROR"]}, ValidationError, "'ERROR' cannot be in both ready and retry"),
    ({"done": "NEW"}, ValidationError, "cannot also be in ready or retry"),
    ({"dead": "ERROR"}, ValidationError, "cannot also be in ready or retry"),
    ({"failed": "NEW"}, ValidationError, "handled again at once"),
    ({"failed": "SUCCESS"}, ValidationError, "cannot also be the done status"),
    ({"ready": [b"NEW"]}, ValidationError, "is not a status"),
    ({"ready": ["N\x00W"]}, ValidationError, "is not a status"),
    ({"strategy": "often"}, ValidationError, "is not a strategy"),
    ({"strategy": lambda *_: None}, ValidationError, "cannot be stored"),
    ({"strategy": Progressive([("10d", "1s")])}, ValidationError, "more than 5000"),
    ({"strategy": Progressive([("1s", "1m")])}, ValidationError, "nothing would be tried"),
    ({"max_attempts": 3}, ValidationError, "Progressive counts no failures"),
    ({"max_attempts": 0, "strategy": "fibonacci"}, ValidationError, "max_attempts"),
    ({"failures": "id"}, ValidationError, "go together"),
    ({"failures": "status", "last_failure": "date_inserted"}, ValidationError, "not a whole number"),
    ({"mode": "columns"}, ValidationError, "needs failures and last_failure"),
    ({"mode": "fast"}, ValidationError, "'fast' is not one of"),
    ({"sla": 0}, ValidationError, "sla"),
    ({"name": "No Name"}, ValidationError, "is not a name"),
    ({"tz": "Mars/Phobos"}, ValidationError, "is not a time zone"),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("changes", "error", "words"), BAD)
def test_bad_terms_are_refused_before_anything_is_written(
    app: Penstock, seed: Connection, changes: Record, error: type[Exception] | None, words: str
) -> None:
    terms = {"table": "backlog", **TERMS, **changes}
    table = terms.pop("table")
    if error is None:
        app.adopt(table, **terms)
        return
    with pytest.raises(error, match=words):
        app.adopt(table, **terms)
    assert seed.execute("select count(*) from penstock.adopted").fetchone() == (0,)


def test_an_enum_names_its_labels(app: Penstock, seed: Connection) -> None:
    seed.execute("create type st as enum ('NEW', 'ERROR', 'SUCCESS')")
    seed.execute("alter table backlog alter status type st using status::st")
    with pytest.raises(ValidationError, match="dead: 'DEAD' is not a value of column status") as caught:
        app.adopt("backlog", **TERMS)
    assert caught.value.hint == "It has NEW, ERROR, SUCCESS."


def test_views_and_names_of_others(app: Penstock, seed: Connection) -> None:
    seed.execute("create view seen as select * from backlog")
    with pytest.raises(ValidationError, match="is not a table"):
        app.adopt("seen", **TERMS)
    app.create_queue("backlog")
    with pytest.raises(Conflict, match="there is a queue 'backlog'"):
        app.adopt("backlog", **TERMS)
    app.adopt("backlog", **TERMS, name="theirs")
    seed.execute("create table other (like backlog including all)")
    with pytest.raises(Conflict, match=r"is the adopted table public\.backlog"):
        app.adopt("other", **TERMS, name="theirs")


@pytest.mark.parametrize("bad", [{"limit": 0}, {"max_age": "-1s"}, {"concurrency": 0}, {"limit": True}])
def test_bad_limits(app: Penstock, seed: Connection, bad: Record) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        app.adopt("backlog", **TERMS).process(Handler(), **bad)
    assert set(statuses(seed).values()) == {"NEW"}


# --- for ever ---------------------------------------------------------------------------------------------------------


def test_run_until_stopped(app: Penstock, seed: Connection) -> None:
    backlog = app.adopt("backlog", **TERMS, strategy=Exponential("1h", jitter=0.5))
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(backlog.run(Handler(2), concurrency=3)))
    thread.start()
    wait_for(lambda: "NEW" not in statuses(seed).values())
    seed.execute("insert into backlog select n, 'NEW', penstock.clock() from generate_series(10, 59) as n")
    wait_for(lambda: "NEW" not in statuses(seed).values())
    backlog.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert (reports[0].done, reports[0].failed) == (53, 1)


def test_run_survives_the_loss_of_its_connections(app: Penstock, seed: Connection, dsn: str) -> None:
    backlog = app.adopt("backlog", **TERMS)
    thread = threading.Thread(target=backlog.run, args=(Handler(),), kwargs={"concurrency": 2})
    thread.start()
    wait_for(lambda: "NEW" not in statuses(seed).values())
    seed.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    seed.execute("insert into backlog values (5, 'NEW', penstock.clock())")
    wait_for(lambda: "NEW" not in statuses(seed).values())
    backlog.stop()
    thread.join(10)
    assert not thread.is_alive()


def wait_for(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_status(app: Penstock, seed: Connection, clock: Clock, strategy: str) -> None:
    seed.execute("update backlog set status = 'ERROR' where id = 3")
    backlog = app.adopt("backlog", **TERMS, strategy=strategy, sla="1h")
    before = backlog.status()
    assert (before.ready, before.due, before.later, before.done) == (3, 1, 0, 0)
    backlog.process(Handler(3, 4))
    status = backlog.status()
    assert (status.ready, status.due, status.later, status.done, status.dead) == (0, 0, 2, 2, 0)
    assert status.oldest_age is None
    assert status.last_pass["done"] == 2
    clock.advance(3600)
    queue = backlog.status().as_queue()
    assert (queue.queue, queue.pending, queue.planned, queue.sla) == ("backlog", 2, 0, 3600)
    assert queue.oldest_pending_age is not None
    assert timedelta(0) < timedelta(seconds=queue.oldest_pending_age) <= timedelta(hours=1)
    assert [one.name for one in app.backlogs()] == ["backlog"]
    assert backlog.abandon()
    assert app.backlogs() == []


def test_statuses_are_never_read_as_sql(app: Penstock, seed: Connection) -> None:
    """A status that looks like SQL is data."""
    word = "x'; drop table backlog; --"
    seed.execute(SQL("update backlog set status = {} where id = 1").format(word))
    backlog = app.adopt("backlog", **{**TERMS, "ready": [word]})
    assert tried(backlog) == [1]
