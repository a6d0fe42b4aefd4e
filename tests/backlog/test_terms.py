"""Terms that were agreed on are kept, and guessed terms are shown."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from backlogs import TERMS, Handler, Record, make_backlog, statuses
from conftest import Clock
from penstock import Penstock, ValidationError
from shell import COMMAND, environment, is_one_block, penstock

INDEXES = """
    select c.relname, pg_get_expr(i.indpred, i.indrelid), i.indisvalid
    from pg_index as i join pg_class as c on c.oid = i.indexrelid
    where c.relname like 'penstock%' and c.relnamespace = 'public'::regnamespace order by 1
"""


@pytest.fixture
def seed(sql: Connection, clock: Clock) -> Connection:
    make_backlog(sql)
    return sql


def applied(dsn: str, *arguments: str) -> Any:
    ran = penstock("adopt", "public.backlog", "--apply", "--json", *arguments, dsn=dsn)
    assert ran.code == 0, ran.err
    return ran.json


# --- NULL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
@pytest.mark.parametrize("others", [[], ["NEW"]])
def test_records_without_a_status_are_ready(
    app: Penstock, seed: Connection, clock: Clock, strategy: str, others: list[str]
) -> None:
    seed.execute("update public.backlog set status = null where id in (1, 2)")
    backlog = app.adopt("public.backlog", **{**TERMS, "ready": [None, *others]}, strategy=strategy)
    assert backlog.status().ready == (4 if others else 2)
    assert backlog.status().undeclared == ({} if others else {"NEW": 2})
    report = backlog.process(Handler(2))
    assert (report.done, report.failed) == (3 if others else 1, 1)
    rest = "SUCCESS" if others else "NEW"
    assert statuses(seed) == {1: "SUCCESS", 2: "ERROR", 3: rest, 4: rest}
    assert app.backlog("backlog").terms.ready == (*others, None), "the terms are as agreed on"
    clock.advance(86400)
    assert backlog.process(Handler()).done == 1


def test_null_is_ready_or_nothing(app: Penstock, seed: Connection) -> None:
    for bad in ({"ready": None}, {"retry": [None]}, {"retry": None}, {"done": None}):
        with pytest.raises(ValidationError) as caught:
            app.adopt("public.backlog", **{**TERMS, **bad})
        assert caught.value.hint is not None
        assert "--ready-null" in caught.value.hint


def test_null_in_the_shell(seed: Connection, dsn: str) -> None:
    seed.execute("update public.backlog set status = null")
    told = penstock("adopt", "public.backlog", "--json", dsn=dsn).json
    assert told["terms"]["ready"] == [None]
    assert (told["ready"], told["statuses"]) == (4, {"null": 4})
    text = penstock("adopt", "public.backlog", dsn=dsn).out
    assert "ready        NULL  (guessed)" in text
    assert "undeclared" not in text
    told = applied(dsn, "--ready", "NEW", "--ready-null")
    assert told["terms"]["ready"] == ["NEW", None]
    wanted = "((status = 'NEW'::text) OR (status IS NULL))"
    assert seed.execute(INDEXES).fetchall()[1] == ("penstock_backlog_ready", wanted, True)
    seed.execute(
        "insert into public.backlog select n, case when n % 100 = 0 then null else 'SUCCESS' end, now()"
        " from generate_series(10, 20000) as n"
    )
    seed.execute("analyze public.backlog")
    plan = penstock("adopt", "public.backlog", "--json", dsn=dsn).json["plans"][0]
    assert any("penstock_backlog_ready" in line for line in plan["before"]), plan


# --- a second run -----------------------------------------------------------------------------------------------------


def test_a_second_run_keeps_what_was_agreed_on(app: Penstock, seed: Connection, dsn: str) -> None:
    words = ("--ready", "NEW", "--retry", "FAULTY", "--done", "DONE", "--dead", "GONE", "--sla", "1h")
    first = applied(dsn, *words, "--strategy", "fibonacci:2m", "--max-attempts", "7", "--tz", "Asia/Tokyo")
    seed.execute("update public.backlog set status = 'DONE'")
    again = applied(dsn)
    assert (again["terms"], again["strategy"]) == (first["terms"], first["strategy"])
    assert again["guessed"] == []
    assert {"ready", "retry", "done", "dead", "sla", "strategy", "tz"} <= {*again["kept"]}
    backlog = app.backlog("backlog")
    assert (backlog.terms.max_attempts, backlog.status().sla) == (7, 3600)
    text = penstock("adopt", "public.backlog", dsn=dsn).out
    assert "retry        FAULTY  (agreed)" in text
    assert "max_attempts 7  (agreed)" in text
    assert "sla          1h  (agreed)" in text


def test_an_option_changes_the_stored_terms(app: Penstock, seed: Connection, dsn: str) -> None:
    applied(dsn, "--dead", "GONE", "--sla", "1h", "--strategy", "fibonacci:2m", "--max-attempts", "7")
    told = applied(dsn, "--retry", "FAULTY", "--sla", "none")
    assert (told["terms"]["retry"], told["terms"]["failed"], told["terms"]["dead"]) == (["FAULTY"], "FAULTY", "GONE")
    assert app.backlog("backlog").terms.sla is None
    applied(dsn, "--strategy", "progressive")
    assert app.backlog("backlog").terms.max_attempts is None
    seed.execute("alter table public.backlog add failures int not null default 0, add last_failure timestamptz")
    assert applied(dsn, "--mode", "columns")["terms"]["failures"] == "failures"
    told = applied(dsn, "--mode", "sidecar", "--strategy", "fibonacci:2m", "--max-attempts", "3")
    assert (told["mode"], told["terms"]["failures"]) == ("sidecar", None)
    assert applied(dsn, "--max-attempts", "none")["mode"] == "sidecar"
    assert app.backlog("backlog").terms.max_attempts is None
    ran = penstock("adopt", "public.backlog", "--max-attempts", "many", dsn=dsn)
    assert (ran.code, is_one_block(ran.err)) == (2, True)


def test_a_name_of_its_own_is_found_again(seed: Connection, dsn: str) -> None:
    applied(dsn, "--name", "mine", "--dead", "GONE")
    told = applied(dsn)
    assert (told["name"], told["terms"]["dead"]) == ("mine", "GONE")
    applied(dsn, "--name", "other", "--dead", "LOST", "--retry", "BAD")
    ran = penstock("adopt", "public.backlog", "--apply", dsn=dsn)
    assert ran.code == 1
    assert "is adopted as mine, other" in ran.err
    assert applied(dsn, "--name", "mine")["terms"]["dead"] == "GONE"
    names = {row[0]: row[1] for row in seed.execute(INDEXES)}
    assert names["penstock_mine_again"] == "(status = 'ERROR'::text)"
    assert names["penstock_other_again"] == "(status = 'BAD'::text)"


def test_a_failed_status_is_tried_again(seed: Connection, dsn: str) -> None:
    """If it is given, it is not combined with a guess."""
    assert applied(dsn, "--retry", "FAULTY")["terms"]["failed"] == "FAULTY"
    penstock("backlog", "forget", "backlog", dsn=dsn)
    assert applied(dsn, "--failed", "FAULTY")["terms"]["retry"] == ["FAULTY"]


def test_an_empty_table(sql: Connection, dsn: str, clock: Clock) -> None:
    make_backlog(sql)
    sql.execute("truncate public.backlog")
    ran = penstock("adopt", "public.backlog", dsn=dsn)
    assert ran.code == 2
    assert "they are none yet" in ran.err
    told = applied(dsn, "--ready", "NEW", "--retry", "ERROR", "--done", "SUCCESS", "--dead", "DEAD")
    assert (told["ready"], told["oldest_age"]) == (0, None)


# --- times ------------------------------------------------------------------------------------------------------------


def test_the_zone_of_times_without_one_is_shown(seed: Connection, dsn: str) -> None:
    assert "tz  " not in penstock("adopt", "public.backlog", dsn=dsn).out
    seed.execute("alter table public.backlog alter date_inserted type timestamp")
    told = penstock("adopt", "public.backlog", "--json", dsn=dsn, env={"PGTZ": "Europe/Rome"}).json
    assert told["terms"]["tz"] == "Europe/Rome"
    assert "tz" in told["guessed"]
    text = penstock("adopt", "public.backlog", dsn=dsn, env={"PGTZ": "Europe/Rome"}).out
    assert "tz           Europe/Rome  (guessed: the session's;" in text
    told = applied(dsn, "--tz", "Asia/Tokyo")
    assert (told["terms"]["tz"], "tz" in told["guessed"]) == ("Asia/Tokyo", False)
    assert applied(dsn)["terms"]["tz"] == "Asia/Tokyo"


def test_the_agreed_zone_is_kept_in_a_session_with_another_zone(
    app: Penstock, seed: Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    seed.execute("update public.backlog set date_inserted = penstock.clock() - interval '4000 hours' where id = 1")
    seed.execute("set timezone = 'Europe/Rome'")
    seed.execute("alter table public.backlog alter date_inserted type timestamp")
    monkeypatch.setenv("PGTZ", "Europe/Rome")
    assert app.adopt("public.backlog", **TERMS).terms.zone == "Europe/Rome", "the first call takes the session's"
    age = pytest.approx(4000 * 3600, abs=60)
    assert app.backlog("backlog").status().oldest_age == age, "also if summer time ended meanwhile"
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    again = app.adopt("public.backlog", **TERMS)
    assert again.terms.zone == "Europe/Rome"
    assert again.status().oldest_age == age
    assert app.adopt("public.backlog", **TERMS, sla="1h").terms.zone == "Europe/Rome", "with another term, too"
    assert app.adopt("public.backlog", **TERMS, name="second").terms.zone == "Europe/Rome", "and under another name"
    assert app.adopt("public.backlog", **TERMS, tz="America/Lima").terms.zone == "America/Lima"
    assert app.backlog("backlog").terms.zone == app.adopt("public.backlog", **TERMS).terms.zone == "America/Lima"
    assert app.backlog("second").terms.zone == app.adopt("public.backlog", **TERMS, name="second").terms.zone
    told = penstock("adopt", "public.backlog", "--name", "backlog", "--json", dsn=dsn, env={"PGTZ": "Asia/Tokyo"}).json
    assert told["terms"]["tz"] == "America/Lima"


def test_a_zone_that_is_not_used_is_said(
    app: Penstock, seed: Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.adopt("public.backlog", **TERMS)
    assert not caplog.records
    ages = [app.adopt("public.backlog", **TERMS, tz=tz).status().oldest_age for tz in ("UTC", "Asia/Tokyo")]
    assert ages[0] == pytest.approx(ages[1], abs=1)
    said = "tz: Asia/Tokyo is not used: all times of table public.backlog have a zone of their own"
    assert said in caplog.messages
    ran = penstock("adopt", "public.backlog", "--tz", "Asia/Tokyo", dsn=dsn)
    assert (ran.code, ran.err) == (0, said + "\n")


@pytest.mark.parametrize(
    ("kind", "using", "words"),
    [
        ("text", "date_inserted::text", "alter date_inserted type timestamptz using date_inserted::timestamptz"),
        ("bigint", "extract(epoch from date_inserted)", "using to_timestamp(date_inserted)"),
    ],
)
def test_times_that_are_texts_or_numbers(seed: Connection, dsn: str, kind: str, using: str, words: str) -> None:
    seed.execute(f"alter table public.backlog alter date_inserted type {kind} using {using}".encode())
    for more in ((), ("--inserted", "date_inserted")):
        ran = penstock("adopt", "public.backlog", *more, dsn=dsn)
        assert ran.code == 2
        assert is_one_block(ran.err)
        assert f"inserted: column date_inserted is {kind}, not a timestamp or date" in ran.err
        assert words in ran.err
    hinted = ran.err.partition("alter table ")[2].strip().removesuffix(".")
    seed.execute(f"alter table {hinted}".encode())
    assert penstock("adopt", "public.backlog", dsn=dsn).code == 0, "the hint can be followed"


# --- indexes ----------------------------------------------------------------------------------------------------------


def test_without_indexes_none_is_reported_as_made(seed: Connection, dsn: str) -> None:
    assert "index " not in penstock("adopt", "public.backlog", "--no-index", dsn=dsn).out
    text = penstock("adopt", "public.backlog", "--no-index", "--apply", dsn=dsn).out
    assert "index made" not in text
    assert seed.execute(INDEXES).fetchall() == []
    text = penstock("adopt", "public.backlog", "--mode", "observe", "--apply", dsn=dsn).out
    assert "index proposed" in text
    assert "index made" not in text
    assert "index made" in penstock("adopt", "public.backlog", "--mode", "sidecar", "--apply", dsn=dsn).out
    assert "index exists" in penstock("adopt", "public.backlog", "--apply", dsn=dsn).out


def test_an_index_for_other_terms_is_replaced(seed: Connection, dsn: str) -> None:
    applied(dsn)
    looked = penstock("adopt", "public.backlog", "--retry", "FAULTY", "--json", dsn=dsn).json["indexes"]
    assert [(one["state"], one["replaces"]) for one in looked] == [("exists", False), ("proposed", True)]
    applied(dsn, "--retry", "FAULTY")
    found = {row[0]: row[1:] for row in seed.execute(INDEXES)}
    assert found["penstock_backlog_again"] == ("(status = 'FAULTY'::text)", True)
    assert found["penstock_backlog_ready"] == ("(status = 'NEW'::text)", True)


def test_a_second_run_completes_an_interrupted_one(seed: Connection, dsn: str) -> None:
    """After Ctrl-C while an index is made, the terms are stored and the index is not valid. A second run makes it."""
    with psycopg.connect(dsn) as other:
        other.execute("update public.backlog set status = status where id = 1")  # the index waits for its end
        running = subprocess.Popen(
            [*COMMAND, "adopt", "public.backlog", "--apply"],
            env=environment(dsn),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        waits = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and query like 'create index%' and wait_event_type = 'Lock'"
        )
        until = time.monotonic() + 30
        while seed.execute(waits.encode()).fetchone() == (0,) and time.monotonic() < until:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=20)
        assert running.returncode == 130, err
        assert "interrupted; run it again" in err
        other.rollback()
    until = time.monotonic() + 20
    while seed.execute(waits.encode()).fetchone() != (0,) and time.monotonic() < until:
        time.sleep(0.05)
    assert [row[2] for row in seed.execute(INDEXES)] == [False]
    told = applied(dsn)
    assert [one["state"] for one in told["indexes"]] == ["made", "made"]
    assert [row[2] for row in seed.execute(INDEXES)] == [True, True]


@pytest.fixture
def parted(sql: Connection, clock: Clock) -> Connection:
    """A table that is partitioned by day, with one day partitioned by key."""
    sql.execute("set search_path = public")
    sql.execute(
        "create table backlog (id bigint, status text, date_inserted timestamptz, primary key (id, date_inserted))"
        " partition by range (date_inserted)"
    )
    sql.execute("create table backlog_old partition of backlog for values from (minvalue) to ('2020-01-01')")
    sql.execute(
        "create table backlog_new partition of backlog for values from ('2020-01-01') to (maxvalue)"
        " partition by list (id)"
    )
    sql.execute("create table backlog_new_1 partition of backlog_new for values in (1)")
    sql.execute("create table backlog_new_rest partition of backlog_new default")
    sql.execute(
        "insert into backlog select n, 'NEW', penstock.clock() - n * interval '700 days'"
        " from generate_series(1, 9) as n"
    )
    return sql


def test_indexes_on_partitions_are_made_concurrently(app: Penstock, parted: Connection, dsn: str) -> None:
    text = penstock("adopt", "public.backlog", dsn=dsn).out
    assert "then on 3 partitions, concurrently" in text
    assert parted.execute(INDEXES).fetchall() == []
    steps = penstock("adopt", "public.backlog", "--json", dsn=dsn).json["indexes"][0]["steps"]
    assert sum("create index concurrently" in one for one in steps) == 3
    assert all(" on only " in one for one in steps if one.startswith("create index if"))
    told = applied(dsn)
    assert {one["state"] for one in told["indexes"]} == {"made"}
    found: Record = {row[0]: row[2] for row in parted.execute(INDEXES)}
    assert len(found) == 10
    assert all(found.values()), found
    assert {one["state"] for one in applied(dsn)["indexes"]} == {"exists"}
    assert app.backlog("backlog").process(Handler()).done == 9


def test_a_partition_whose_index_is_missing_gets_it(parted: Connection, dsn: str) -> None:
    """An index on one partition is missing, as after Ctrl-C between two partitions."""
    steps = penstock("adopt", "public.backlog", "--json", dsn=dsn).json["indexes"][0]["steps"]
    for step in steps[:2]:
        parted.execute(step.encode())
    parted.execute("update pg_index set indisvalid = false where indexrelid = 'penstock_backlog_old_ready'::regclass")
    applied(dsn)
    assert all(row[2] for row in parted.execute(INDEXES))
    told = applied(dsn, "--ready", "OTHER")
    assert [one["replaces"] for one in told["indexes"]] == [True, False]
    found = parted.execute(INDEXES).fetchall()
    assert {row[1] for row in found if row[0].endswith("_ready")} == {"(status = 'OTHER'::text)"}
    assert all(row[2] for row in found)
