"""`penstock schedules …`, from outside."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Penstock, Queue
from shell import Ran, each, is_one_block, penstock

ADD = ("schedules", "add", "nightly", "0 6 * * *", "--queue", "work", "--kind", "report", "--tz", "Europe/Rome")
RUN = re.compile(r"  (Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d+ [A-Z][a-z]{2}( \d{4})? 06:00 \(in \d+ (min|h|d|s)\)")


def refused(ran: Ran, *words: str, code: int = 2) -> None:
    assert (ran.code, ran.out) == (code, ""), ran
    assert is_one_block(ran.err), ran.err
    for word in words:
        assert word in ran.err


def test_from_add_to_rm(app: Penstock, dsn: str, queue: Queue) -> None:
    rehearsed = penstock(*ADD, "--payload", '{"n": 1}', "--dry-run", "--json", dsn=dsn)
    assert rehearsed.json["dry_run"] is True
    assert app.schedules() == []
    added = penstock(*ADD, "--payload", '{"n": 1}', "--backfill", "all", "--priority", "2", dsn=dsn)
    assert added.out.startswith("schedule nightly added: at 06:00 every day, Europe/Rome; next: ")
    (found,) = app.schedules()
    assert (found.payload, found.backfill, found.priority, found.kind) == ({"n": 1}, "all", 2, "report")
    again = penstock(*ADD, dsn=dsn)
    assert again.out.startswith("schedule nightly set: ")
    would, paused, resumed, kept, removed, none = (
        penstock("schedules", *words, dsn=dsn)
        for words in (
            ("pause", "nightly", "--dry-run"),
            ("pause", "nightly", "--json"),
            ("resume", "nightly"),
            ("rm", "nightly", "--dry-run"),
            ("rm", "nightly", "--yes", "--json"),
            ("ls",),
        )
    )
    assert would.out == "schedule nightly would be paused\n"
    assert paused.json["paused"] is True
    assert re.match(r"schedule nightly resumed; next: \w{3} \d+ \w{3}", resumed.out)
    assert kept.out == "schedule nightly would be removed\n"
    assert removed.json == {"name": "nightly", "removed": True}
    assert none.out.startswith("no schedules; add one: ")


def test_ls(app: Penstock, dsn: str, queue: Queue, sql: Connection, clock: Clock) -> None:
    sql.execute("update penstock_test.clock set fixed = '2026-11-15 17:00+00'")
    app.set_schedule("hourly", "0 * * * *", queue="work")
    app.set_schedule("nightly", "0 6 * * *", queue="work", kind="report", tz="Europe/Rome")
    app.set_schedule("off\x1b[2J", "0 6 * * *", queue="work")
    app.pause_schedule("off\x1b[2J")
    clock.advance(3600)
    app.run_schedules()
    table, value, quiet = each(("schedules", "ls"), ("schedules", "ls", "--json"), ("schedules", "ls", "-q"), dsn=dsn)
    head, *rows = table.out.splitlines()
    assert head.split() == ["schedule", "queue", "kind", "cron", "tz", "next", "last", "tick"]
    assert [re.split(r"\s{2,}", row) for row in rows] == [
        ["hourly", "work", "default", "0 * * * *", "UTC", "Sun 15 Nov 19:00 (in 1 h)", "2026-11-15 18:00:00Z"],
        ["nightly", "work", "report", "0 6 * * *", "Europe/Rome", "Mon 16 Nov 06:00 (in 11 h)", "–"],
        [r"off\x1b[2J", "work", "default", "0 6 * * *", "UTC", "paused", "–"],
    ]
    first = value.json["schedules"][0]
    assert (first["name"], first["last_tick"]) == ("hourly", "2026-11-15T18:00:00+00:00")
    assert set(first) == {
        "name", "queue", "kind", "payload", "priority", "cron", "tz", "backfill", "paused", "mark", "next_at",
        "last_tick", "created", "updated", "who", "at", "key", "expires", "until_next",
    }  # fmt: skip
    assert quiet.out == ""


def test_next_in_words(app: Penstock, dsn: str, queue: Queue) -> None:
    app.set_schedule("nightly", "0 6 * * *", queue="work", tz="Europe/Rome")
    line = ("schedules", "next", "--cron", "0 6 * * *", "--tz", "Europe/Rome")
    (words, value), (named, paused) = (
        each(line, (*line, "--json")),  # without a database
        each(("schedules", "next", "nightly"), ("schedules", "next", "nightly", "--json"), dsn=dsn),
    )
    for ran in (words, named):
        head, *runs = ran.out.splitlines()
        assert head == "at 06:00 every day, Europe/Rome"
        assert len(runs) == 5
        assert all(RUN.fullmatch(run) for run in runs), runs
    moments = [datetime.fromisoformat(one) for one in value.json["next"]]
    assert moments == sorted(moments)
    assert {one.hour for one in moments} == {6}
    assert moments[0].utcoffset() in (timedelta(hours=1), timedelta(hours=2))
    assert paused.json["paused"] is False
    app.pause_schedule("nightly")
    assert penstock("schedules", "next", "nightly", dsn=dsn).out.startswith("paused; it would run at 06:00")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("next", "--cron", "60 * * * *"), "minute '60'"),
        (("next", "--cron", "0 0 31 2 *"), "never fires"),
        (("next", "--cron", "0 0 6 * * *"), "6 fields"),
        (("next", "--cron", "0 6 * * *", "--tz", "Europe/Roma"), "'Europe/Rome'"),
        (("next",), "--cron"),
        (("next", "x", "--cron", "* * * * *"), "--cron"),
        (("add", "x", "60 * * * *", "--queue", "work"), "minute '60'"),
        (("add", "x", "* * * * *", "--queue", "work", "--payload", "[1"), "not JSON"),
        (("add", "x", "* * * * *", "--queue", "work", "--payload", "[1]"), "payload"),
        (("add", "x", "* * * * *", "--queue", "work", "--backfill", "al"), "Did you mean all?"),
        (("add", "x", "* * * * *"), "queue"),
        (("rm", "x"), "--yes"),
    ],
)
def test_what_is_refused(app: Penstock, dsn: str, queue: Queue, words: tuple[str, ...], said: str) -> None:
    refused(penstock("schedules", *words, dsn=dsn), said)
    assert app.schedules() == []


def test_what_is_not_there(app: Penstock, dsn: str, queue: Queue) -> None:
    app.set_schedule("nightly", "0 6 * * *", queue="work")
    words = (("rm", "nightyl", "--yes"), ("pause", "nightyl"), ("resume", "nightyl"), ("next", "nightyl"))
    for ran in each(*(("schedules", *one) for one in words), dsn=dsn):
        refused(ran, "PS2001", "'nightyl' does not exist", code=1)
    ran = penstock("schedules", "add", "x", "* * * * *", "--queue", "wrok", dsn=dsn)
    refused(ran, "PS2001", "Did you mean 'work'?", code=1)
