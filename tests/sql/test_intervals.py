"""Intervals as arguments. PostgreSQL compares them as if a month had 30 days and a year had 360, but adds real months
and years to a timestamp: '-120 mons 3601 days' compares as one day and leads seven weeks back."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from conftest import Clock
from penstock import Penstock, Queue

BACKWARDS = "-120 mons 3601 days"  # compares as 1 day
TOO_LONG = "121 mons"  # compares as 3,630 days, but is more than 3,650
ENDLESS = ["'infinity'", "'-infinity'"]


def refused(sql: Connection, statement: str, *parameters: object) -> str:
    """Runs a statement that must be refused as invalid, and returns the message."""
    with pytest.raises(psycopg.Error) as caught:
        sql.execute(statement.encode(), parameters)
    assert caught.value.sqlstate == "PS400", caught.value
    return str(caught.value.diag.message_primary)


@pytest.mark.sample(4)
@pytest.mark.parametrize("which", ["history", "samples", "decisions", "ledger", "rejects", "audit"])
@pytest.mark.parametrize("length", [BACKWARDS, "23 hours", "-1 day", "0", "-1000000 years", "1 mon -30 days"])
def test_upkeep_keeps_everything_of_the_last_day(queue: Queue, sql: Connection, which: str, length: str) -> None:
    queue.push()
    queue.settle(queue.claim())
    said = refused(sql, "select penstock.set_retention(%s, %s)", which, length)
    assert said.startswith(f"{which}: ")
    sql.execute("call penstock.upkeep()")
    assert sql.execute("select count(*) from penstock.history").fetchone() == (1,)


def test_upkeep_takes_what_leads_far_enough_back(queue: Queue, sql: Connection) -> None:
    for length in ("1 day", "24 hours", "120 mons -3550 days", "1000000 years", None):
        for which in ("history", "samples", "decisions", "ledger", "rejects", "audit"):
            sql.execute("select penstock.set_retention(%s, %s)", (which, length))
        sql.execute("call penstock.upkeep()")


@pytest.mark.sample(3)
@pytest.mark.parametrize("which", ["keep_done", "keep_dead", "keep_cancelled"])
@pytest.mark.parametrize("length", [BACKWARDS, TOO_LONG, "-1 us"])
def test_a_retention_is_what_it_really_is(queue: Queue, sql: Connection, which: str, length: str) -> None:
    said = refused(sql, "select penstock.set_queue('work', jsonb_build_object(%s::text, %s::text))", which, length)
    assert said.startswith(f"{which}: ")
    said = refused(sql, f"select penstock.create_queue('other', p_{which} => %s)", length)
    assert said.startswith(f"{which}: ")


def test_retentions_are_stored_without_months(app: Penstock, clock: Clock, sql: Connection) -> None:
    sql.execute("set timezone = 'Europe/Rome'")
    sql.execute(
        "select penstock.create_queue('kept', p_sla => '2 mons', p_keep_done => '1 mon', p_keep_dead => '1 day',"
        " p_keep_cancelled => '1 year')"
    )
    row = sql.execute(
        "select extract(epoch from sla), extract(epoch from keep_done), extract(epoch from keep_dead),"
        " extract(epoch from keep_cancelled), extract(month from keep_done), extract(day from keep_dead)"
        " from penstock.queue where name = 'kept'"
    ).fetchone()
    days = 86400
    assert row == (60 * days, 30 * days, days, 365.25 * days, 0, 0)


@pytest.mark.parametrize("length", [BACKWARDS, TOO_LONG, "0"])
def test_a_promise_is_what_it_really_is(queue: Queue, sql: Connection, length: str) -> None:
    assert refused(sql, "select penstock.create_queue('other', p_sla => %s)", length).startswith("sla: ")
    fixed = '{"type": "fixed", "delay": 1}'
    statement = "select penstock.adopt('backlog', 'public', 'backlog', 'observe', '{}', %s, null, %s)"
    assert refused(sql, statement, fixed, length).startswith("sla: ")


@pytest.mark.parametrize("length", [BACKWARDS, TOO_LONG, "0"])
def test_a_timeout_is_what_it_really_is(queue: Queue, sql: Connection, length: str) -> None:
    kinds = Jsonb([{"kind": "k", "timeout": length}])
    assert refused(sql, "select penstock.set_kinds('work', %s)", kinds).startswith("timeout: ")


@pytest.mark.parametrize("length", [BACKWARDS, TOO_LONG, "-1 us"])
def test_a_delay_is_what_it_really_is(queue: Queue, sql: Connection, length: str) -> None:
    pushed = queue.push()
    claim = queue.claim()
    for outcome in ("again", "failed", "release"):
        statement = "select * from penstock.settle(%s, %s, array[%s], p_delays => array[%s::interval])"
        assert refused(sql, statement, claim.token, [pushed.id], outcome, length).startswith("item 0: delay: ")
    assert refused(sql, "select * from penstock.release(%s, p_delay => %s)", claim.token, length).startswith("item 0:")
    queue.settle(claim)


@pytest.mark.parametrize("outcome", ["again", "failed", "release"])
def test_a_day_has_24_hours(queue: Queue, clock: Clock, sql: Connection, outcome: str) -> None:
    """This holds whatever the time zone of the session, also in the night in which clocks change."""
    sql.execute("update penstock_test.clock set fixed = '2026-03-28 12:00:00+01'")
    sql.execute("set timezone = 'Europe/Rome'")
    pushed = queue.push()
    claim = queue.claim()
    statement = "select result from penstock.settle(%s, %s, array[%s], p_delays => array[interval '1 day'])"
    assert sql.execute(statement, (claim.token, [pushed.id], outcome)).fetchall() == [("planned",)]
    assert sql.execute("select due - penstock.clock() from penstock.agenda").fetchone() == (timedelta(days=1),)


@pytest.mark.parametrize("length", [BACKWARDS, "24 hours 1 us", "-1 s"])
def test_a_lease_is_what_it_really_is(queue: Queue, sql: Connection, length: str) -> None:
    queue.push()
    claim = queue.claim()
    assert refused(sql, "select penstock.create_queue('other', p_lease => %s)", length).startswith("lease: ")
    assert refused(sql, "select * from penstock.claim('work', p_lease => %s)", length).startswith("lease: ")
    assert refused(sql, "select * from penstock.extend(%s, %s)", claim.token, length).startswith("lease: ")
    assert refused(sql, "select * from penstock.extend_many(array[%s], %s)", claim.token, length).startswith("lease: ")
    statement = "select * from penstock.hold_stream('work', 'g', 1, 'd', %s)"
    assert refused(sql, statement, length).startswith("lease: ")
    statement = "select * from penstock.hold_scaling('{work}', 'h', 'p', %s)"
    assert refused(sql, statement, length).startswith("lease: ")
    queue.settle(claim)


def test_nothing_lasts_for_ever(queue: Queue, sql: Connection) -> None:
    """PostgreSQL 17 and later know infinite intervals."""
    if sql.info.server_version < 170000:
        pytest.skip("this PostgreSQL has no infinite intervals")
    claim = queue.claim() if queue.push() else None
    assert claim is not None
    for length in ENDLESS:
        for setting in ("lease", "sla", "keep_done", "keep_dead", "keep_cancelled"):
            said = refused(sql, f"select penstock.create_queue('other', p_{setting} => {length})")
            assert said.startswith(f"{setting}: ")
        assert refused(sql, f"select * from penstock.release(%s, p_delay => {length})", claim.token)
    assert refused(sql, "select penstock.set_retention('history', '-infinity')").startswith("history: ")
    sql.execute("select penstock.set_retention('history', 'infinity')")
    sql.execute("call penstock.upkeep()")
    queue.settle(claim)
