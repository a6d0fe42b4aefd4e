"""Chores: work that only one session does at a time, and which logins can block it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Penstock, Queue
from workers import eventually


@pytest.fixture
def other(direct_dsn: str) -> Iterator[Connection]:
    """A session with a transaction of its own."""
    with psycopg.connect(direct_dsn) as connection:
        yield connection


def take(connection: Connection, name: str) -> bool:
    row = connection.execute("select penstock._take_chore(%s)", (name,)).fetchone()
    assert row is not None
    return bool(row[0])


def do_upkeep(sql: Connection) -> dict[str, int]:
    """Runs the parts of upkeep one after the other in this session and returns what each of them did."""
    parts = [part for (part,) in sql.execute("select penstock.upkeep_parts()").fetchall()]
    rows = [sql.execute("select coalesce(rows, 0) from penstock.upkeep_part(%s)", (part,)).fetchone() for part in parts]
    return {part: row[0] for part, row in zip(parts, rows, strict=True) if row is not None}


def test_one_session_has_a_chore_until_its_transaction_ends(sql: Connection, other: Connection) -> None:
    assert take(other, "take_samples")
    assert take(other, "take_samples"), "a session may take it twice"
    assert not take(sql, "take_samples")
    assert take(sql, "drop_history"), "another chore is free"
    other.rollback()
    assert take(sql, "take_samples")


def test_an_unknown_chore_is_an_error(sql: Connection) -> None:
    with pytest.raises(psycopg.Error, match="chore: there is no 'nonsense'") as refused:
        take(sql, "nonsense")
    assert refused.value.sqlstate == "PS404"


LOCKED = ("penstock.take_samples", "penstock.make_history", "penstock.drop_history")


def test_no_login_can_stop_upkeep_with_an_advisory_lock(
    queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """Any login may take and keep any advisory lock. Upkeep and settle use none."""
    queue.push_many([{}] * 2)
    queue.settle(queue.claim(1))
    for name in LOCKED:
        other.execute("select pg_advisory_lock(hashtext(%s))", (name,))
    clock.advance(40 * 86400)
    sql.execute("set statement_timeout = '20s'")
    claimed = sql.execute("select token, array[id] from penstock.claim('work')").fetchone()
    assert claimed is not None
    assert sql.execute("select result from penstock.settle(%s, %s)", claimed).fetchall() == [("done",)]
    parts = do_upkeep(sql)
    assert parts["sampled"] == 1
    assert parts["history days made"] == 14
    # A day is counted and dropped when all older transactions of the cluster have ended, those of other tests included.
    dropped = parts["history days dropped"] or eventually(lambda: do_upkeep(sql)["history days dropped"], within=60)
    assert dropped == 1


def test_days_ahead_are_left_to_the_session_that_makes_them(
    queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """At midnight every upkeep finds the same day missing: one of them makes it, and the others do not wait."""
    clock.advance(86400)
    assert take(other, "make_history")
    sql.execute("set lock_timeout = '2s'")
    parts = do_upkeep(sql)
    assert parts["history days made"] == 0
    other.rollback()
    parts = do_upkeep(sql)
    assert parts["history days made"] == 1


def test_a_day_of_history_is_dropped_by_one_at_a_time(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    queue.push()
    queue.settle(queue.claim())
    day = clock.now().astimezone(UTC).date()
    clock.advance(40 * 86400)
    assert take(other, "drop_history")
    assert app.upkeep()["history days dropped"] == 0
    release = "select penstock.release_day(%s, 1, 9223372036854775807)"
    assert sql.execute(release, (day,)).fetchone() == (False,)
    other.rollback()
    assert sql.execute(release, (day,)).fetchone() == (True,)


def test_a_job_has_so_many_slots(sql: Connection, other: Connection, direct_dsn: str) -> None:
    job, slot = uuid4(), "select penstock.take_job_slot(%s, 2)"
    with psycopg.connect(direct_dsn) as third:
        assert other.execute(slot, (job,)).fetchone() == (True,)
        assert third.execute(slot, (job,)).fetchone() == (True,)
        assert sql.execute(slot, (job,)).fetchone() == (False,)
        assert sql.execute("select penstock.take_job_slot(%s, 1000)", (uuid4(),)).fetchone() == (True,), (
            "of another job"
        )
        third.rollback()
        assert sql.execute(slot, (job,)).fetchone() == (True,)
