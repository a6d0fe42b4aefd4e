"""Registered readers of history: rows that they have not read are kept, and a day is dropped only when its copy is
complete."""

from __future__ import annotations

from datetime import date, timedelta

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import Conflict, NotFound, Penstock, Queue, ValidationError
from penstock.client import history
from penstock.client.database import Database
from penstock.doctor import examine
from penstock.model import Horizon
from penstock.pipeline.stages.history_counts import count_history
from workers import eventually

DAY = 86400


def finish(queue: Queue, count: int = 3) -> None:
    queue.push_many([{}] * count)
    queue.settle(queue.claim(count))


@pytest.fixture
def database(direct_dsn: str) -> Database:
    return Database(direct_dsn)


def horizon(database: Database) -> Horizon:
    """A mark above every transaction so far. The whole cluster has one horizon, so it waits for other tests too."""
    with database.transaction() as connection:
        row = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    eventually(lambda: history.read_horizon(database).xid > row[0])
    return history.read_horizon(database)


def days(sql: Connection) -> int:
    row = sql.execute("select count(distinct tableoid) from penstock.history").fetchone()
    assert row is not None
    return int(row[0])


def test_upkeep_waits_for_readers(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, database: Database
) -> None:
    finish(queue)
    app.upkeep()
    history.note_reader(database, "lake a", horizon(database))
    history.note_reader(database, "lake b", horizon(database)._replace(xid=0))
    clock.advance(120 * DAY)
    assert app.upkeep()["samples dropped"] == 0
    assert days(sql) == 1, "only days without rows are dropped"
    history.note_reader(database, "lake b", horizon(database))
    history.note_reader(database, "lake b", horizon(database)._replace(xid=0))  # a mark only grows
    assert app.upkeep()["samples dropped"] > 0
    eventually(lambda: app.upkeep() and days(sql) == 0)
    database.close()


def test_a_forgotten_reader_holds_nothing(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, database: Database
) -> None:
    finish(queue)
    history.note_reader(database, "lake a", horizon(database)._replace(xid=0))
    clock.advance(40 * DAY)
    app.upkeep()
    assert days(sql) == 1
    late = [found for found in examine(database) if found.check == "readers"]
    assert [(found.level, found.numbers) for found in late] == [("warning", {"days": 40.0})]
    assert "lake a" in late[0].what
    with pytest.raises(NotFound, match="lake x") as raised:
        app.forget_reader("lake x")
    assert "lake a" in str(raised.value.hint)
    app.forget_reader("lake a")
    eventually(lambda: app.upkeep() and days(sql) == 0)
    database.close()


def test_what_a_reader_may_say(app: Penstock, database: Database) -> None:
    now = horizon(database)
    with pytest.raises(Conflict, match="another cluster"):
        history.note_reader(database, "lake", now._replace(system="1"))
    with pytest.raises(Conflict, match="ahead of this cluster"):
        history.note_reader(database, "lake", now._replace(xid=now.xid + 10**6))
    with pytest.raises(ValidationError, match="200 bytes"):
        history.note_reader(database, "", now)
    database.close()


def test_a_day_is_released_when_it_is_what_was_copied(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, direct_dsn: str, database: Database
) -> None:
    finish(queue, 5)
    today = history.today(database)
    now = horizon(database)
    (copy,) = count_history(database, now, thorough=True)
    assert (copy.day, copy.total, copy.rows) == (today, 5, {(1, "done"): 5})
    assert copy.checksum > 0
    with pytest.raises(ValidationError, match="is not over"):
        history.release_day(database, today, rows=5, below=now.xid)
    clock.advance(DAY)
    with pytest.raises(NotFound, match="no history"):
        history.release_day(database, date(2000, 1, 1), rows=5, below=now.xid)
    with pytest.raises(Conflict, match="5 rows, not 4"):
        history.release_day(database, today, rows=4, below=now.xid)
    with pytest.raises(Conflict, match="5 of them came late"):
        history.release_day(database, today, rows=5, below=1)
    history.note_reader(database, "lake", now._replace(xid=0))
    with pytest.raises(Conflict, match="has not passed"):
        history.release_day(database, today, rows=5, below=now.xid)
    history.note_reader(database, "lake", now)
    with psycopg.connect(direct_dsn) as held:
        held.execute("lock table penstock.history in access share mode")
        assert not history.release_day(database, today, rows=5, below=now.xid), "another session holds it"
    assert history.release_day(database, today, rows=5, below=now.xid)
    assert days(sql) == 0
    assert history.history_gone(database, 0) == {(today, 1): 5}
    assert app.verify().ok
    database.close()


def test_sums_see_every_change(queue: Queue, sql: Connection, database: Database) -> None:
    finish(queue, 2)
    now = horizon(database)
    (before,) = count_history(database, now, thorough=True)
    columns = ("id", "task_id", "iteration", "attempt")
    changes = [f"{name} = {name} + 1" for name in columns]
    changes += [
        f"{name} = {name} + interval '1 microsecond'" for name in ("created", "due", "claimed_at", "finished_at")
    ]
    changes += ["outcome = 'dead'", "kind = 'x'", "worker = 'x'", "subject = ''", "error_class = ''", "error = ''"]
    for change in changes:
        with sql.transaction(force_rollback=True):
            sql.execute(
                f"update penstock.history set {change} where id = (select min(id) from penstock.history)".encode()
            )
            rows = sql.execute(
                "select sum(checksum) from penstock.history_sums(%s, 0, 1000, 9223372036854775807, true)", (before.day,)
            ).fetchone()
        assert rows is not None
        assert int(rows[0]) != before.checksum, change
    tomorrow = before.day + timedelta(days=1)
    assert sql.execute("select * from penstock.history_sums(%s, 0, 1000, 10, true)", (tomorrow,)).fetchall() == []
    database.close()
