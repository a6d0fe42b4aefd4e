"""`penstock work` stores the schedules of the code when it starts, and fires them when they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from psycopg import Connection

from conftest import Clock
from penstock import Penstock, Queue
from workers import eventually, noted, work, working

EVERY_MINUTE = """
@app.task(queue="work")
@app.schedule("* * * * *", name="minutes", payload={"word": "tick"})
def note_it(word: str, task: Task) -> None:
    note(word, task.subject)

@app.schedule("0 6 * * *", tz="Europe/Rome")
@app.task(queue="elsewhere")
async def not_mine() -> None: ...
"""


def test_what_the_code_schedules_is_run(
    app: Penstock, dsn: str, queue: Queue, sql: Connection, clock: Clock, tmp_path: Path
) -> None:
    """Two supervisors go on minute by minute, and each tick runs once."""
    sql.execute("update penstock_test.clock set fixed = '2026-11-15 12:00:30+00'")
    other = tmp_path / "other"
    other.mkdir()
    with (
        working(tmp_path, dsn, EVERY_MINUTE, "--queues", "work") as worker,
        working(other, dsn, EVERY_MINUTE, "--queues", "work"),
    ):
        (found,) = app.schedules()
        assert (found.name, found.queue, found.kind, found.payload) == ("minutes", "work", "note_it", {"word": "tick"})
        expected = []
        for minute in range(1, 4):
            clock.advance(60)
            expected.append(f"tick minutes@2026-11-15T12:0{minute}:00Z")
            eventually(lambda: len(noted(tmp_path) + noted(other)) == len(expected))
            # Before the clock moves on, which would end the leases of tasks that are not settled yet.
            eventually(lambda: queue.status().totals["done"] == len(expected))
        assert sorted(noted(tmp_path) + noted(other)) == expected
        assert worker.stop() == 0
    assert queue.status().totals["done"] == 3


def test_a_tick_of_real_time_is_on_time(app: Penstock, dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    """The clock of the test starts ten seconds before a full minute and runs: the tick is that minute."""
    sql.execute("update penstock_test.clock set shift = date_trunc('minute', now()) + '50 s' - now()")
    late = "select extract(epoch from created - date_trunc('minute', created)) from penstock.history"
    with working(tmp_path, dsn, EVERY_MINUTE, "--queues", "work"):
        ((seconds,),) = eventually(lambda: sql.execute(late).fetchall())
    assert seconds < 20


def test_what_was_missed_is_there_before_all_is_drained(
    app: Penstock, dsn: str, queue: Queue, clock: Clock, tmp_path: Path
) -> None:
    app.set_schedule("minutes", "* * * * *", queue="work", kind="note_it", payload={"word": "tick"}, backfill="last")
    clock.advance(3600)
    ran = work(tmp_path, dsn, EVERY_MINUTE, "--queues", "work")
    assert (ran.code, ran.json["done"]) == (0, 1), ran.err


def test_a_schedule_that_the_code_no_longer_has_is_left_alone(
    app: Penstock, dsn: str, queue: Queue, tmp_path: Path
) -> None:
    app.set_schedule("old", "0 6 * * *", queue="work")
    before = app.schedules()
    assert work(tmp_path, dsn, EVERY_MINUTE, "--queues", "work").code == 0
    assert [one.name for one in app.schedules()] == ["minutes", "old"]
    assert app.schedules()[1].mark == before[0].mark


def test_a_schedule_that_cannot_fire_is_reported_once_and_stops_no_other(
    app: Penstock, dsn: str, queue: Queue, sql: Connection, tmp_path: Path
) -> None:
    app.set_schedule("bad", "0 6 * * *", queue="work")
    soon = datetime.now(UTC) - timedelta(seconds=1)
    sql.execute("update penstock.schedule set cron = '99 * * * *', next_at = %s", (soon,))
    with working(tmp_path, dsn, EVERY_MINUTE, "--queues", "work") as worker:
        queue.push({"word": "hello"}, kind="note_it")
        eventually(lambda: noted(tmp_path))
        sql.execute("select pg_sleep(1.5)")
        told = [event for event in worker.events if event["event"] == "schedule bad not fired"]
        assert [event["code"] for event in told] == ["PS1001"]
        assert worker.stop() == 0


def test_a_function_that_is_no_handler_is_an_error_at_start(dsn: str, queue: Queue, tmp_path: Path) -> None:
    code = EVERY_MINUTE + "@app.schedule('0 6 * * *')\ndef forgotten(): ...\n"
    ran = work(tmp_path, dsn, code, "--queues", "work")
    assert (ran.code, ran.out) == (3, "")
    assert "forgotten is not a handler" in ran.err
