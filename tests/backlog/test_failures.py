"""A bad record never ends a batch, and the reason of its failure is reported."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from backlogs import COLUMNS, TERMS, Handler, Record, make_backlog, statuses
from conftest import Clock
from penstock import Penstock, Unavailable, ValidationError
from shell import COMMAND, in_a_terminal, is_one_block, penstock

STRATEGIES = ["progressive", "fibonacci:1m"]


@pytest.fixture
def seed(sql: Connection, clock: Clock) -> Connection:
    make_backlog(sql)
    return sql


def refuse(sql: Connection, condition: str, *, deferred: bool = False, state: str = "P0001") -> None:
    """Makes a trigger that raises if an updated row would meet the condition."""
    sql.execute(
        "create function public.refuse() returns trigger language plpgsql as"
        f" $$begin raise exception 'not this one' using errcode = '{state}'; end$$".encode()
    )
    kind, when = ("constraint trigger", "after") if deferred else ("trigger", "before")
    sql.execute(
        f"create {kind} refuse {when} update on public.backlog"
        f" {'deferrable initially deferred' if deferred else ''} for each row when ({condition})"
        " execute function public.refuse()".encode()
    )


# --- a status that cannot be written ---------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "at commit"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_record_whose_status_cannot_be_written(
    app: Penstock, seed: Connection, clock: Clock, strategy: str, deferred: bool
) -> None:
    """The other records are handled once. This one keeps its status and is named."""
    refuse(seed, "new.id = 2", deferred=deferred)
    backlog = app.adopt("public.backlog", **TERMS, strategy=strategy)
    report = backlog.process(handler := Handler())
    assert handler.seen == [1, 2, 3, 4]
    assert statuses(seed) == {1: "SUCCESS", 2: "NEW", 3: "SUCCESS", 4: "SUCCESS"}
    assert (report.done, report.failed, report.unwritten, report.changed) == (3, 1, 1, 0)
    assert report.errors == {"StatusNotWritten": 1}
    (failure,) = backlog.failures()
    assert (failure.key, failure.error_class, failure.unwritten, failure.dead) == (
        ("2",),
        "StatusNotWritten",
        True,
        False,
    )
    assert "status 'SUCCESS' could not be written to column status of table public.backlog" in failure.message
    assert "not this one" in failure.message
    assert backlog.process(handler := Handler()).failed == 1
    assert handler.seen == [2], "no other record is handled twice"
    seed.execute("drop trigger refuse on public.backlog")
    assert backlog.process(Handler()).done == 1
    assert backlog.failures() == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("state", ["08001", "25006", "57P01", "58030"])
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "at commit"])
def test_a_trigger_that_raises_what_a_lost_connection_raises(
    app: Penstock, seed: Connection, clock: Clock, state: str, deferred: bool
) -> None:
    """As a trigger does that writes to another server which is down. The connection of the pass is alive."""
    refuse(seed, "new.id = 2", deferred=deferred, state=state)
    backlog = app.adopt("public.backlog", **TERMS)
    report = backlog.process(handler := Handler(), concurrency=2)
    assert sorted(handler.seen) == [1, 2, 3, 4]
    assert statuses(seed) == {1: "SUCCESS", 2: "NEW", 3: "SUCCESS", 4: "SUCCESS"}
    assert (report.done, report.failed, report.unwritten) == (3, 1, 1)
    (failure,) = backlog.failures()
    assert (failure.key, failure.error_class, failure.unwritten) == (("2",), "StatusNotWritten", True)


def test_a_connection_that_is_lost_while_a_status_is_written(app: Penstock, seed: Connection, clock: Clock) -> None:
    refuse(seed, "new.id = 2 and new.status = 'SUCCESS'")
    seed.execute(
        "create or replace function public.refuse() returns trigger language plpgsql as"
        " $$begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60); return new; end$$"
    )
    backlog = app.adopt("public.backlog", **TERMS)
    with pytest.raises(Unavailable):
        backlog.process(Handler())
    assert statuses(seed)[2] == "NEW"
    assert backlog.failures() == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_record_that_cannot_be_done_has_failed(app: Penstock, seed: Connection, clock: Clock, strategy: str) -> None:
    seed.execute("alter table public.backlog add constraint odd check (id <> 2 or status <> 'SUCCESS') not valid")
    backlog = app.adopt("public.backlog", **TERMS, strategy=strategy)
    report = backlog.process(Handler(3))
    assert statuses(seed) == {1: "SUCCESS", 2: "ERROR", 3: "ERROR", 4: "SUCCESS"}
    assert (report.done, report.failed, report.unwritten) == (2, 2, 0)
    assert report.errors == {"RuntimeError": 1, "StatusNotWritten": 1}
    assert backlog.process(handler := Handler()).handled == 0, "it waits like any other failed record"
    assert handler.seen == []


def test_one_bad_record_among_hundreds_in_a_batch(app: Penstock, seed: Connection) -> None:
    seed.execute("insert into public.backlog select n, 'NEW', now() from generate_series(10, 2000) as n")
    refuse(seed, "new.id in (1234, 1500)")
    backlog = app.adopt("public.backlog", **TERMS)
    report = backlog.process(handler := Handler(1500))
    assert len(handler.seen) == len({*handler.seen}) == 1995
    assert (report.done, report.failed, report.unwritten) == (1993, 2, 2)
    found = {one.key: one.message for one in backlog.failures()}
    assert {*found} == {("1234",), ("1500",)}
    assert found[("1500",)].endswith("its handler raised RuntimeError: record 1500 is bad")


def test_effects_of_a_record_whose_status_cannot_be_written_are_undone(app: Penstock, seed: Connection) -> None:
    seed.execute("create table public.effect (id int)")
    refuse(seed, "new.id = 2 and new.status = 'SUCCESS'")

    def handle(record: Record, transaction: Connection) -> None:
        transaction.execute("insert into public.effect values (%s)", (record["id"],))

    report = app.adopt("public.backlog", **TERMS).process(handle)
    assert (report.done, report.failed, report.unwritten) == (3, 1, 0)
    assert statuses(seed)[2] == "ERROR"
    assert sorted(seed.execute("select id from public.effect").fetchall()) == [(1,), (3,), (4,)]


def test_an_effect_that_only_a_commit_refuses(app: Penstock, seed: Connection) -> None:
    seed.execute(
        "create table public.effect (id int references public.backlog deferrable initially deferred)",
    )

    def handle(record: Record, transaction: Connection) -> None:
        transaction.execute("insert into public.effect values (%s)", (record["id"] if record["id"] != 2 else 77,))

    backlog = app.adopt("public.backlog", **TERMS)
    report = backlog.process(handle)
    assert (report.done, report.failed) == (3, 1)
    assert report.errors == {"ForeignKeyViolation": 1}
    assert statuses(seed)[2] == "ERROR"


def test_a_counter_that_is_full(app: Penstock, seed: Connection) -> None:
    seed.execute("alter table public.backlog add failures smallint not null default 0, add last_failure timestamptz")
    seed.execute("update public.backlog set failures = 32767 where id = 2")
    backlog = app.adopt("public.backlog", **TERMS, **COLUMNS, strategy="fibonacci:1m")
    report = backlog.process(Handler(1, 2))
    assert (report.done, report.failed, report.unwritten) == (2, 2, 1)
    assert statuses(seed) == {1: "ERROR", 2: "NEW", 3: "SUCCESS", 4: "SUCCESS"}


def test_records_that_share_a_key_after_all(app: Penstock, seed: Connection) -> None:
    """The key was unique when it was counted, and is not later: no record gets the outcome of another."""
    backlog = app.adopt("public.backlog", **{**TERMS, "key": "date_inserted"}, count_key=True)
    seed.execute("insert into public.backlog select 10, 'NEW', date_inserted from public.backlog where id = 1")
    report = backlog.process(Handler())
    assert statuses(seed) == {1: "NEW", 2: "SUCCESS", 3: "SUCCESS", 4: "SUCCESS", 10: "NEW"}
    assert (report.done, report.unwritten, report.changed) == (3, 1, 0)
    assert "2 records have the same key" in backlog.failures()[0].message


def test_run_leaves_such_a_record_alone_for_a_while(app: Penstock, seed: Connection) -> None:
    refuse(seed, "new.id = 2")
    backlog = app.adopt("public.backlog", **TERMS)
    handler = Handler()
    thread = threading.Thread(target=backlog.run, args=(handler,))
    thread.start()
    until = time.monotonic() + 20
    while handler.seen.count(2) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    backlog.stop()
    thread.join(10)
    assert handler.seen.count(2) >= 2, "it is tried again"
    assert [handler.seen.count(n) for n in (1, 3, 4)] == [1, 1, 1]
    passes = seed.execute("select times from penstock.adopted_failure").fetchone()
    assert passes == (handler.seen.count(2),)


# --- statuses are tried at adoption -----------------------------------------------------------------------------------


def adopted(sql: Connection) -> Any:
    return sql.execute("select count(*) from penstock.adopted").fetchone()


@pytest.mark.parametrize("empty", [False, True], ids=["records", "empty"])
def test_a_status_that_does_not_fit_is_refused(
    app: Penstock, sql: Connection, clock: Clock, dsn: str, empty: bool
) -> None:
    make_backlog(sql, status="varchar(7)")
    if empty:
        sql.execute("truncate public.backlog")
    with pytest.raises(ValidationError) as caught:
        app.adopt("public.backlog", **{**TERMS, "dead": "GIVEN UP"})
    said = "status 'GIVEN UP' cannot be written to column status of table public.backlog"
    assert caught.value.message == f"dead: {said}: value too long for type character varying(7)"
    assert caught.value.field == "dead"
    words = ("--ready", "NEW", "--retry", "ERROR", "--done", "SUCCESS", "--dead", "GIVEN UP")
    for more in ((), ("--apply",)):
        ran = penstock("adopt", "public.backlog", *words, *more, dsn=dsn)
        assert ran.code == 2
        assert is_one_block(ran.err)
        assert said in ran.err
    assert adopted(sql) == (0,)
    ran = penstock("adopt", "public.backlog", *words[:-2], "--no-dead", "--apply", dsn=dsn)
    assert ran.code == 0, ran.err
    assert app.backlog("backlog").terms.dead is None


@pytest.mark.parametrize("empty", [False, True], ids=["records", "empty"])
def test_a_status_that_a_check_refuses(app: Penstock, sql: Connection, clock: Clock, empty: bool) -> None:
    make_backlog(sql)
    sql.execute("alter table public.backlog add constraint known check (status in ('NEW', 'ERROR', 'SUCCESS'))")
    if empty:
        sql.execute("truncate public.backlog")
    with pytest.raises(ValidationError, match=r"dead: status 'DEAD' cannot be written .*violates check constraint"):
        app.adopt("public.backlog", **TERMS)
    app.adopt("public.backlog", **{**TERMS, "dead": None})


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "at commit"])
def test_a_status_that_a_trigger_refuses(app: Penstock, seed: Connection, deferred: bool) -> None:
    refuse(seed, "new.status = 'SUCCESS'", deferred=deferred)
    with pytest.raises(ValidationError, match=r"done: status 'SUCCESS' cannot be written .*not this one"):
        app.adopt("public.backlog", **TERMS)
    assert adopted(seed) == (0,)
    assert {*statuses(seed).values()} == {"NEW"}
    app.adopt("public.backlog", **TERMS, mode="observe")


def test_stored_terms_are_not_tried_again(app: Penstock, seed: Connection) -> None:
    seed.execute("create sequence public.tries")
    seed.execute(
        "create function public.count() returns trigger language plpgsql as"
        " $$begin perform nextval('public.tries'); return new; end$$"
    )
    seed.execute("create trigger count before update on public.backlog for each row execute function public.count()")
    for _ in range(3):
        app.adopt("public.backlog", **TERMS)
    assert seed.execute("select last_value from public.tries").fetchone() == (3,), (
        "three statuses were tried, once each"
    )
    assert {*statuses(seed).values()} == {"NEW"}


def test_a_trial_waits_for_no_lock(app: Penstock, seed: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("select from public.backlog for update")
        app.adopt("public.backlog", **TERMS)


# --- why records failed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_failures_are_reported(app: Penstock, seed: Connection, clock: Clock, strategy: str, caplog: Any) -> None:
    backlog = app.adopt("public.backlog", **TERMS, strategy=strategy)
    with caplog.at_level(logging.WARNING, "penstock.backlog"):
        backlog.process(Handler(1, 4))
    assert sorted(caplog.messages) == [f"record {n} of backlog failed: RuntimeError" for n in (1, 4)]
    first = clock.now()
    found = backlog.failures()
    assert {one.key for one in found} == {("1",), ("4",)}
    assert {one.message for one in found} == {"record 1 is bad", "record 4 is bad"}
    assert {(one.error_class, one.times, one.dead) for one in found} == {("RuntimeError", 1, False)}
    status = backlog.status()
    assert status.errors == {"RuntimeError": 2}
    assert status.last_error in found
    clock.advance(300)
    backlog.process(Handler(4))
    newest = backlog.failures(1)[0]
    assert (newest.key, newest.times, newest.first_at, newest.last_at) == (("4",), 2, first, clock.now())
    clock.advance(86400 * 5)
    backlog.process(Handler())
    assert backlog.failures() == [], "a record that succeeds leaves the list"
    assert backlog.status().last_error is None


def test_the_list_is_bounded_and_forgotten(app: Penstock, sql: Connection, clock: Clock, caplog: Any) -> None:
    make_backlog(sql)
    backlog = app.adopt("public.backlog", **TERMS)
    backlog.process(Handler(1))
    clock.advance(1)
    caplog.clear()
    sql.execute("insert into public.backlog select n, 'NEW', penstock.clock() from generate_series(10, 1299) as n")
    with caplog.at_level(logging.WARNING, "penstock.backlog"):
        report = backlog.process(Handler(*range(10, 1300)), concurrency=2)
    assert report.failed == 1290
    assert len(caplog.messages) == 101
    assert caplog.messages[-1] == "1190 more records of backlog failed"
    assert len(backlog.failures(1000)) == 1000
    assert ("1",) not in {one.key for one in backlog.failures(1000)}, "the oldest are dropped first"
    # Two passes that note failures at once do not see each other's: the next one deletes the surplus.
    sql.execute("insert into public.backlog values (1300, 'NEW', penstock.clock())")
    backlog.process(Handler(1300))
    assert sql.execute("select count(*) from penstock.adopted_failure").fetchone() == (1000,)
    for bad in (0, 1001, True):
        with pytest.raises(ValidationError, match="limit"):
            backlog.failures(bad)
    backlog.abandon()
    assert sql.execute("select count(*) from penstock.adopted_failure").fetchone() == (0,)


def test_overlapping_passes_note_their_failures(app: Penstock, seed: Connection, clock: Clock) -> None:
    """There are more failures than are kept, so each pass deletes failures of another one, without a deadlock."""
    seed.execute("insert into public.backlog select n, 'NEW', penstock.clock() from generate_series(10, 3009) as n")
    backlogs = [app.adopt("public.backlog", **TERMS, strategy="fibonacci:1s") for _ in range(3)]
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            reports = [*pool.map(lambda one: one.process(Handler(*range(3010)), concurrency=2), backlogs)]
        assert sum(report.failed for report in reports) == 3004
        clock.advance(2)
    assert sum(backlogs[0].status().errors.values()) <= 1000 + 3 * 2 * 500, (
        "at most the limit and what was noted at the same time"
    )
    seed.execute("update public.backlog set status = 'NEW' where id = 1")
    backlogs[0].process(Handler(1), limit=1)
    assert sum(backlogs[0].status().errors.values()) == 1000


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pass_over_a_table_that_is_forgotten_meanwhile(app: Penstock, seed: Connection, strategy: str) -> None:
    backlog = app.adopt("public.backlog", **TERMS, strategy=strategy)

    def handle(record: Record) -> None:
        backlog.abandon()
        raise RuntimeError

    backlog.process(handle, limit=1)
    assert seed.execute("select count(*) from penstock.adopted_failure").fetchone() == (0,)
    seed.execute("insert into penstock.adopted_failure values (99, '{1}', 'E', '', 1, false, false, now(), now())")
    assert [finding.what for finding in app.verify().findings] == ["orphans: of no adopted table"]
    assert [one.what for one in app.repair()] == ["of no adopted table, removed"]
    assert app.verify().ok


def test_errors_that_cannot_be_stored_or_printed(app: Penstock, seed: Connection) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def handle(record: Record) -> None:
        if record["id"] == 1:
            raise Mute
        if record["id"] == 2:
            raise ValueError("a\x00b\ud800" + "x" * 100_000)

    backlog = app.adopt("public.backlog", **TERMS)
    assert backlog.process(handle).failed == 2
    found = {one.key: one for one in backlog.failures()}
    assert (found[("1",)].error_class, found[("1",)].message) == ("Mute", "<Mute>")
    assert found[("2",)].message.startswith(r"a\x00b\ud800xxx")
    assert 1900 < len(found[("2",)].message) < 2100


def fail_deep(record: Record) -> None:
    secret = "hunter2"
    try:
        {}[record["status"]]
    except KeyError as error:
        raise ValueError(f"record {record['id']}" + 0 * secret) from error


def fail_in_transaction(record: Record, transaction: Connection) -> None:
    transaction.execute("select 1")
    fail_deep(record)


@pytest.mark.parametrize("handler", [fail_deep, fail_in_transaction])
def test_a_failure_is_stored_with_its_traceback(app: Penstock, seed: Connection, clock: Clock, handler: Any) -> None:
    """As that of a task is: bounded, with causes, without values of variables and frames of Penstock."""
    backlog = app.adopt("public.backlog", **TERMS)
    backlog.process(handler)
    found = backlog.failure("2")
    assert found is not None
    assert (found.error_class, found.message, found.why) == ("ValueError", "record 2", "ValueError: record 2")
    assert found.traceback is not None
    assert found.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert "KeyError: 'NEW'\n\nThe above exception was the direct cause" in found.traceback
    assert "raise ValueError(f" in found.traceback
    assert "hunter2" not in found.error.replace('secret = "hunter2"', "")
    assert "drain.py" not in found.traceback
    assert found.to_json()["traceback"] == found.traceback
    assert backlog.failure("4711") is None
    with pytest.raises(ValidationError, match="key: id needs 1 values, not 2"):
        backlog.failure("1", "2")


def test_a_long_traceback_is_bounded(app: Penstock, seed: Connection, clock: Clock) -> None:
    def recurse(record: Record, depth: int = 200) -> None:
        if depth == 0:
            raise RuntimeError("x" * 10_000)
        recurse(record, depth - 1)

    backlog = app.adopt("public.backlog", **TERMS)
    backlog.process(recurse)
    found = backlog.failures()[0]
    assert len(found.error) <= 6000
    assert found.traceback is not None


@pytest.mark.parametrize("known", ["adopt", "backlog", "backlogs"])
def test_no_traceback_is_stored_if_the_application_says_so(
    app: Penstock, seed: Connection, dsn: str, known: str
) -> None:
    app.adopt("public.backlog", **TERMS)
    with Penstock(dsn, tracebacks=False) as quiet:
        adopted = {
            "adopt": lambda: quiet.adopt("public.backlog", **TERMS),
            "backlog": lambda: quiet.backlog("backlog"),
            "backlogs": lambda: quiet.backlogs()[0],
        }[known]()
        adopted.process(Handler(1))
        assert [(one.error, one.traceback) for one in adopted.failures()] == [("record 1 is bad", None)]


def test_a_status_that_is_refused_keeps_the_traceback_of_the_handler(app: Penstock, seed: Connection) -> None:
    refuse(seed, "new.id = 2")
    backlog = app.adopt("public.backlog", **TERMS)
    backlog.process(Handler(2))
    found = backlog.failure("2")
    assert found is not None
    assert found.error_class == "StatusNotWritten"
    assert found.message.endswith("its handler raised RuntimeError: record 2 is bad")
    assert found.traceback is not None
    assert 'raise RuntimeError(f"record' in found.traceback


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_key_that_cannot_be_stored_ends_no_pass(app: Penstock, sql: Connection, clock: Clock, strategy: str) -> None:
    sql.execute("create table public.backlog (id text, status text, date_inserted timestamptz)")
    sql.execute(
        "insert into public.backlog select string_agg(md5(n::text || k), ''), 'NEW', penstock.clock()"
        " from generate_series(1, 400) as n, generate_series(1, 2) as k group by k"
    )
    sql.execute("insert into public.backlog values ('short', 'NEW', penstock.clock())")
    backlog = app.adopt("public.backlog", **TERMS, count_key=True, strategy=strategy)
    report = backlog.process(Handler(*(key for key in statuses(sql) if key != "short")))
    assert (report.done, report.failed) == (1, 2), "each record is handled once"


def test_the_shell_shows_failures(seed: Connection, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    assert penstock("adopt", "backlog", "--apply", dsn=dsn).code == 0
    assert penstock("backlog", "failures", "backlog", dsn=dsn).out == "no failures\n"
    assert "failed" not in penstock("backlog", "status", dsn=dsn).out
    ran = penstock("backlog", "pass", "backlog", "--handler", "jobs:handle", dsn=dsn, cwd=tmp_path)
    assert "record 1 of backlog failed: ValueError" in ran.err
    assert "no " not in ran.err, "the message of an error may contain data"
    summary = penstock("backlog", "status", dsn=dsn).out
    assert "backlog: 2 records failed: ValueError 2" in summary
    assert "penstock backlog failures backlog" in summary
    told = penstock("backlog", "failures", "backlog", "--json", dsn=dsn, tracebacks=True).json["failures"]
    assert {(*one["key"], one["error_class"], one["times"]) for one in told} == {
        ("1", "ValueError", 1),
        ("2", "ValueError", 1),
    }
    text = penstock("backlog", "failures", "public.backlog", "--limit", "1", dsn=dsn).out
    assert len(text.splitlines()) == 2
    assert "tried again" in text
    assert "\x1b" not in text
    assert penstock("backlog", "status", "--json", dsn=dsn).json["backlogs"][0]["errors"] == {"ValueError": 2}
    ran = penstock("backlog", "failures", "backlog", "--limit", "0", dsn=dsn)
    assert (ran.code, is_one_block(ran.err)) == (2, True)
    quiet = penstock("backlog", "pass", "backlog", "--handler", "jobs:handle", "-q", dsn=dsn, cwd=tmp_path)
    assert (quiet.out, quiet.err) == ("", "")


JOBS = "def handle(record):\n    if record['id'] < 3: raise ValueError(f\"no \x1b[31m{record['id']}\")\n"


def test_the_shell_shows_one_failure_with_its_traceback(seed: Connection, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    assert penstock("adopt", "backlog", "--apply", dsn=dsn).code == 0
    run = ("backlog", "pass", "backlog", "--handler", "jobs:handle")
    assert penstock(*run, dsn=dsn, cwd=tmp_path).code == 0
    show = ("backlog", "failures", "backlog")
    for one in penstock(*show, "--json", dsn=dsn, tracebacks=True).json["failures"]:
        assert "raise ValueError" in one["traceback"]
    (one,) = penstock(*show, "--key", "1", "--json", dsn=dsn, tracebacks=True).json["failures"]
    assert (one["key"], one["message"]) == (["1"], "no \x1b[31m1")
    text = penstock(*show, "--key", "1", dsn=dsn, tracebacks=True).out
    lines = text.splitlines()
    assert lines[0].split() == ["key", "1"]
    assert "error_class  ValueError" in lines
    assert "Traceback (most recent call last):" in lines
    assert lines[-1] == r"ValueError: no \x1b[31m1"
    assert "\x1b" not in text
    ran = penstock(*show, "--key", "4", dsn=dsn)
    assert (ran.code, is_one_block(ran.err)) == (1, True)
    assert "4" in ran.err
    seed.execute("update public.backlog set status = 'NEW'")
    assert penstock(*run, "--no-tracebacks", dsn=dsn, cwd=tmp_path).code == 0
    assert {one["traceback"] for one in penstock(*show, "--json", dsn=dsn).json["failures"]} == {None}


def test_a_pass_says_why_records_failed_in_a_terminal(seed: Connection, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    assert penstock("adopt", "backlog", "--apply", dsn=dsn).code == 0
    words = [*COMMAND, "backlog", "pass", "backlog", "--handler", "jobs:handle"]
    _, said = in_a_terminal(words, dsn, tmp_path)
    assert r"warning record 1 of backlog failed: ValueError (no \x1b[31m1)" in said
    assert "Traceback" not in said


def test_the_shell_says_that_a_status_was_not_written(seed: Connection, dsn: str, tmp_path: Path) -> None:
    refuse(seed, "new.id = 2")
    (tmp_path / "jobs.py").write_text("def handle(record): pass\n")
    assert penstock("adopt", "backlog", "--apply", dsn=dsn).code == 0
    ran = penstock("backlog", "pass", "backlog", "--handler", "jobs:handle", dsn=dsn, cwd=tmp_path)
    assert ran.code == 0
    assert ran.out.startswith("3 done, 1 failed")
    assert "1 record kept the old status" in ran.err
    assert "status not written" in penstock("backlog", "failures", "backlog", dsn=dsn).out


def test_a_table_that_is_gone_can_be_forgotten(seed: Connection, dsn: str) -> None:
    assert penstock("adopt", "backlog", "--apply", dsn=dsn).code == 0
    seed.execute("drop table public.backlog")
    assert penstock("backlog", "forget", "backlog", "--dry-run", dsn=dsn).out == "backlog would be forgotten\n"
    assert penstock("backlog", "forget", "backlog", dsn=dsn).out == "backlog is forgotten\n"
    assert adopted(seed) == (0,)
