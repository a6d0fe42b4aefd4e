"""Upkeep: each part is a short transaction of its own, and a day of history is counted before it is locked."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta
from uuid import UUID, uuid4, uuid5

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import NotFound, Outcome, Penstock, PenstockError, Queue, ValidationError
from penstock.client.statements.upkeep import FailureLog, Upkeep
from workers import eventually

DAY = 86400.0
PARTS = "select penstock.upkeep_parts()"


@pytest.fixture
def other(direct_dsn: str) -> Iterator[Connection]:
    """A session with a transaction of its own."""
    with psycopg.connect(direct_dsn) as connection:
        yield connection


def part(sql: Connection, name: str, *, due: bool = False) -> tuple[int | None, bool]:
    row = sql.execute("select rows, more from penstock.upkeep_part(%s, %s)", (name, due)).fetchone()
    assert row is not None
    return row[0], row[1]


def break_part(sql: Connection) -> None:
    """Makes one part fail: audit entries cannot be deleted."""
    sql.execute("""
        create function penstock_test.refuse() returns trigger language plpgsql as
            $$ begin raise exception 'deletes are refused here'; end $$;
        create trigger refuse before delete on penstock.audit
            for each row execute function penstock_test.refuse();
        insert into penstock.audit (at, verb) values ('2000-01-01', 'drop');
    """)


def no_time(sql: Connection) -> None:
    """Gives parts no time: from now on each does one step and leaves the rest for the next call."""
    sql.execute(
        "create or replace function penstock._part_ends() returns timestamptz"
        " language sql volatile set search_path = pg_catalog, pg_temp as $$ select '-infinity'::timestamptz $$"
    )


# --- parts ------------------------------------------------------------------------------------------------------------


def test_each_part_is_a_transaction_of_its_own(app: Penstock, queue: Queue, sql: Connection) -> None:
    queue.push()
    done = app.upkeep()
    assert {*done} - {"scheduled", "schedules failed"} == {name for (name,) in sql.execute(PARTS)}
    writers = sql.execute(
        "select c.xmin::text from penstock.chore as c join penstock.upkeep_pace() on part = name"
    ).fetchall()
    assert len(writers) == len({*writers}) == len({*done} - {"scheduled", "schedules failed"})


def test_a_part_that_fails_stops_no_other(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    break_part(sql)
    queue.push(due=clock.now() + timedelta(seconds=5))
    clock.advance(6)
    done = app.upkeep()
    assert [*done.failed] == ["audit entries dropped"]
    assert "deletes are refused here" in done.failed["audit entries dropped"].message
    assert (done["promoted"], done["sampled"]) == (1, 1)


def test_plain_sql_commits_each_part(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    break_part(sql)
    queue.push(due=clock.now() + timedelta(seconds=5))
    clock.advance(6)
    with pytest.raises(psycopg.Error, match="failed parts: audit entries dropped"):
        sql.execute("call penstock.upkeep()")
    assert queue.status().pending == 1, "the other parts are done"
    sql.execute("drop trigger refuse on penstock.audit")
    sql.execute("call penstock.upkeep()")
    assert sql.execute("select count(*) from penstock.audit where verb = 'drop'").fetchone() == (0,)


def test_failures_in_a_row_are_logged_less_and_less() -> None:
    def round_of(*, fails: bool) -> Upkeep:
        done = Upkeep()
        if fails:
            done.failed["promoted"] = PenstockError("no")
        else:
            done["promoted"] = 0
        return done

    log = FailureLog()
    logged = [[one["times"] for one in log.note(round_of(fails=True))] for _ in range(9)]
    assert logged == [[1], [2], [], [4], [], [], [], [8], []]
    log.note(Upkeep())  # not due
    assert log.note(round_of(fails=False)) == []
    assert [one["times"] for one in log.note(round_of(fails=True))] == [1]


def test_an_unknown_part_is_refused(sql: Connection) -> None:
    with pytest.raises(psycopg.Error, match="part: 'nonsense' is no part of upkeep") as refused:
        part(sql, "nonsense")
    assert refused.value.sqlstate == "PS400"
    assert "squeezed" in str(refused.value.diag.message_hint)


def test_a_part_that_was_just_done_is_left_out(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    names = [name for (name,) in sql.execute(PARTS)]
    assert [name for (name,) in sql.execute("select penstock.upkeep_parts(true)")] == names
    assert app.upkeep()["sampled"] == 1
    assert sql.execute("select penstock.upkeep_parts(true)").fetchall() == []
    assert part(sql, "promoted", due=True) == (None, False)
    assert part(sql, "promoted") == (0, False), "a caller that insists may run it"
    clock.advance(8.5)
    assert "promoted" in {name for (name,) in sql.execute("select penstock.upkeep_parts(true)")}
    assert part(sql, "promoted", due=True) == (0, False)
    clock.advance(-3600)
    assert part(sql, "promoted", due=True) == (0, False), "a clock that was set back stops nothing"


def test_a_part_that_another_session_runs_is_left_to_it(sql: Connection, other: Connection) -> None:
    assert part(other, "promoted") == (0, False)
    assert part(sql, "promoted") == (None, False)
    assert part(sql, "expired") == (0, False)
    other.rollback()
    assert part(sql, "promoted") == (0, False)


def test_a_part_with_more_to_do_says_so(app: Penstock, clock: Clock, sql: Connection) -> None:
    queue = app.create_queue("kept", keep_done="1h")
    queue.push_many([{}] * 6000)
    for _ in range(6):
        queue.settle(queue.claim(1000))
    clock.advance(7200)
    assert part(sql, "ended tasks retired") == (5000, True)
    assert part(sql, "ended tasks retired", due=True) == (1000, False), "the rest is due at once"
    queue.push_many([{}] * 6000)
    for _ in range(6):
        queue.settle(queue.claim(1000))
    clock.advance(7200)
    assert app.upkeep()["ended tasks retired"] == 6000, "upkeep goes on until all is done"


def test_parts_leave_the_rest_for_the_next_call(app: Penstock, clock: Clock, sql: Connection) -> None:
    """With little time or a short statement_timeout, each call still does some of the work."""
    queues = [app.create_queue(f"q{n}", lease="10s") for n in range(3)]
    for queue in queues:
        queue.push()
        queue.claim()
        queue.push(due=clock.now() + timedelta(seconds=1))
    clock.advance(11)
    no_time(sql)
    for name in ("expired", "promoted"):
        assert [part(sql, name) for _ in range(4)] == [*[(1, True)] * 3, (0, False)]
    assert [(one.pending, one.active) for one in app.status()] == [(2, 0)] * 3


def test_a_part_ends_well_before_the_statement_timeout(sql: Connection) -> None:
    assert sql.execute("select penstock._part_ends() - clock_timestamp() <= '200 ms'").fetchone() == (True,)
    sql.execute("set statement_timeout = '400ms'")
    assert sql.execute("select penstock._part_ends() - clock_timestamp() <= '100 ms'").fetchone() == (True,)


# --- retention --------------------------------------------------------------------------------------------------------


def test_retentions_are_kept_in_the_database(app: Penstock, sql: Connection) -> None:
    assert app.retentions() == {
        "audit": timedelta(days=365),
        "decisions": timedelta(days=90),
        "history": timedelta(days=30),
        "ledger": timedelta(days=30),
        "rejects": timedelta(days=30),
        "samples": timedelta(days=90),
    }
    app.set_retention("history", "7d")
    app.set_retention("audit", None)
    assert (app.retentions()["history"], app.retentions()["audit"]) == (timedelta(days=7), None)
    assert sql.execute("select detail->>'what' from penstock.audit where verb = 'retain' order by id").fetchall() == [
        ("history",),
        ("audit",),
    ]
    with pytest.raises(ValidationError, match="history: 23:59:59 is less than 1 day"):
        app.set_retention("history", "23h59m59s")
    with pytest.raises(NotFound, match="'payloads' is not kept by upkeep"):
        app.set_retention("payloads", "7d")


def test_upkeep_follows_the_retentions(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    queue.settle(queue.claim())
    app.upkeep()
    app.set_retention("history", "2d")
    app.set_retention("samples", "2d")
    day = day_of(clock)
    clock.advance(3 * DAY)
    assert app.upkeep()["samples dropped"] == 1
    eventually(lambda: app.upkeep() and not there(sql, day))
    app.set_retention("samples", None)
    clock.advance(400 * DAY)
    assert app.upkeep()["samples dropped"] == 0


def test_the_audit_ends_where_its_retention_does(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.set(lease="20s")
    clock.advance(366 * DAY)
    queue.set(lease="30s")
    assert app.upkeep()["audit entries dropped"] == 1
    assert sql.execute("select count(*) from penstock.audit").fetchone() == (1,)


# --- days of history --------------------------------------------------------------------------------------------------


def there(sql: Connection, name: str) -> bool:
    return sql.execute("select to_regclass(%s) is not null", (name,)).fetchone() == (True,)


def day_of(clock: Clock) -> str:
    return f"penstock.history_{clock.now().astimezone(UTC):%Y%m%d}"


def counted(sql: Connection) -> None:
    """Waits until the day is counted: transactions of other tests may hold it back for a moment."""
    eventually(lambda: part(sql, "history days counted")[0] == 1)


def finish(queue: Queue, count: int) -> None:
    queue.push_many([{}] * count)
    claim = queue.claim(count)
    queue.settle(claim, {id_: Outcome.done() if n else Outcome.dead("x") for n, id_ in enumerate(claim.ids)})


def test_a_day_is_counted_some_pages_at_a_time(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    finish(queue, 500)
    before = "select rows, more from penstock._count_history(penstock.clock() - interval '30 days', 1)"
    size = f"select pg_relation_size('{day_of(clock)}') / 8192"
    clock.advance(31 * DAY)
    (count,) = sql.execute(size.encode()).fetchone() or (0,)
    assert count > 3
    no_time(sql)
    eventually(lambda: sql.execute(before).fetchone() == (0, True))
    assert [sql.execute(before).fetchone() for _ in range(count - 1)] == [*[(0, True)] * (count - 2), (1, True)]
    assert sql.execute(before).fetchone() == (0, False)
    sums: dict[str, int] = dict(sql.execute("select outcome, rows from penstock.history_sum").fetchall())
    assert sums == {"done": 499, "dead": 1}
    app.upkeep()
    assert dict(sql.execute("select outcome, rows from penstock.history_dropped").fetchall()) == sums
    assert sql.execute("select sum(rows) from penstock.history_gone").fetchone() == (500,)
    assert app.verify().ok


def test_what_is_counted_is_not_locked(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """Another session writes to that very day and reads it while it is counted."""
    finish(queue, 10)
    day = day_of(clock)
    other.execute(f"lock table {day} in row exclusive mode".encode())
    clock.advance(31 * DAY)
    sql.execute("set lock_timeout = '1ms'")
    counted(sql)
    assert part(sql, "history days dropped") == (0, False), "not while another session uses it"
    other.rollback()
    assert part(sql, "history days dropped") == (1, False)


def test_a_row_that_comes_after_the_count_is_counted_too(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """One settle keeps its transaction open until the day is counted, and another comes even later."""
    finish(queue, 10)
    queue.push_many([{}, {}])
    early, late = queue.claim(1), queue.claim(1)
    other.execute("select penstock.settle(%s, %s)", (early.token, early.ids))
    clock.advance(31 * DAY)
    counted(sql)
    other.commit()
    assert part(sql, "history days dropped") == (0, False), "the day has changed since the count"
    counted(sql)
    clock.advance(-31 * DAY)
    queue.settle(late)
    clock.advance(31 * DAY)
    assert part(sql, "history days dropped") == (0, False)
    counted(sql)
    assert part(sql, "history days dropped") == (1, False)
    assert dict(sql.execute("select outcome, rows from penstock.history_dropped").fetchall()) == {"done": 11, "dead": 1}
    assert app.verify().ok


def test_a_write_between_count_and_lock_keeps_the_day(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """The last check runs under the lock: it waits for a settle that is under way and sees its row."""
    finish(queue, 10)
    queue.push()
    claim, day = queue.claim(1), day_of(clock)
    before = clock.now()
    clock.advance(31 * DAY)
    counted(sql)
    (below,) = sql.execute("select below from penstock.history_count").fetchone() or ()
    sql.execute("update penstock_test.clock set fixed = %s, shift = '0'", (before,))
    other.execute("select penstock.settle(%s, %s)", (claim.token, claim.ids))
    with ThreadPoolExecutor() as pool:
        dropping = pool.submit(
            sql.execute, "select penstock._drop_day(%s::regclass, %s, %s)", (day, before.date(), below)
        )
        other.commit()
        assert dropping.result(timeout=30).fetchone() == (False,)
    assert sql.execute("select count(*) from penstock.history").fetchone() == (11,)


@pytest.mark.parametrize("obstacle", ["a view", "a reader"])
def test_a_day_that_cannot_be_dropped_holds_up_no_other(
    app: Penstock, queue: Queue, clock: Clock, sql: Connection, other: Connection, obstacle: str
) -> None:
    finish(queue, 1)
    first = day_of(clock)
    clock.advance(DAY)
    finish(queue, 2)
    clock.advance(31 * DAY)
    if obstacle == "a view":
        sql.execute(f"create view penstock_test.first as select * from {first}".encode())
    else:
        other.execute(f"select from {first}".encode())
    second = f"{first[:-8]}{clock.now().astimezone(UTC) - timedelta(days=31):%Y%m%d}"
    eventually(lambda: app.upkeep() and not there(sql, second))
    assert [
        name
        for (name,) in sql.execute(
            "select relation::text from penstock._history_days(penstock.clock() - interval '30 days')"
        )
    ] == [first]
    assert app.verify().ok
    sql.execute("drop view if exists penstock_test.first")
    other.rollback()
    assert app.upkeep()["history days dropped"] == 1
    assert app.verify().ok


def test_settles_do_not_wait_for_a_day_that_is_made(
    queue: Queue, clock: Clock, sql: Connection, other: Connection
) -> None:
    """At midnight the first upkeep makes the day, and the others leave it to that one."""
    clock.advance(DAY)
    assert part(other, "history days made") == (1, False)
    sql.execute("set lock_timeout = '1ms'")
    assert part(sql, "history days made") == (None, False)
    queue.push()
    assert queue.settle(queue.claim()).popitem()[1] == "done"
    other.commit()


# --- the ledger -------------------------------------------------------------------------------------------------------


def enter_job(
    sql: Connection, job: UUID, series: UUID | None, partitions: int = 2, *, queue: str = "work"
) -> set[UUID]:
    """Enters partitions with two parts each, and the seal, and returns their batch ids."""
    batches = {uuid5(job, str(number)) for number in range(partitions)}
    for number, batch in enumerate(batches):
        sql.execute("select penstock.enter_partition(%s, %s, %s, %s, 1, 'x', %s)", (queue, job, number, batch, series))
        sql.execute("select penstock.enter_part(%s, %s, 1, 1, 'x', '{}')", (queue, batch))
    sql.execute("select penstock.seal_job(%s, %s, %s, 2, 'x', '{}')", (queue, job, partitions))
    return {*batches, job}


def in_ledger(sql: Connection) -> set[UUID]:
    return {batch for (batch,) in sql.execute("select batch_id from penstock.ledger")}


def test_the_newest_job_of_a_series_is_kept(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    """A streaming query repeats its last batch when it restarts, however long it was stopped."""
    query, other = uuid4(), uuid4()
    enter_job(sql, uuid4(), query)
    clock.advance(60)
    last = enter_job(sql, uuid4(), query)
    enter_job(sql, uuid4(), None)
    alone = enter_job(sql, uuid4(), other)
    queue.push_many([{}] * 3)
    clock.advance(31 * DAY)
    assert app.upkeep()["ledger parts dropped"] > 0
    assert in_ledger(sql) == last | alone
    assert app.upkeep()["ledger parts dropped"] == 0
    assert sql.execute("select count(*) from penstock.ledger").fetchone() == (10,), "with their parts and seals"


def test_kept_jobs_do_not_hide_what_is_to_be_dropped(queue: Queue, clock: Clock, sql: Connection) -> None:
    kept = {batch for _ in range(4) for batch in enter_job(sql, uuid4(), uuid4())}
    clock.advance(60)
    enter_job(sql, uuid4(), None)
    clock.advance(60)
    dropped = sql.execute(
        "select penstock._drop_ledger(penstock.clock(), 3), penstock._drop_ledger(penstock.clock(), 3)"
    )
    assert dropped.fetchone() == (3, 2)
    assert in_ledger(sql) == kept


def test_a_series_ends_with_its_queue(app: Penstock, clock: Clock, sql: Connection) -> None:
    app.create_queue("gone")
    enter_job(sql, uuid4(), uuid4(), queue="gone")
    app.queue("gone").drop()
    clock.advance(31 * DAY)
    app.upkeep()
    assert in_ledger(sql) == set()


# --- vacuum -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["task", "agenda", "lease", "counter_log"])
def test_tables_that_every_task_passes_through_are_vacuumed_early(sql: Connection, table: str) -> None:
    """By default a table is vacuumed when a fifth of it is dead: millions of rows where many tasks wait or are kept."""
    options: dict[str, float] = dict(
        sql.execute(
            "select o.option_name, o.option_value::float8 from pg_class as c, pg_options_to_table(c.reloptions) as o"
            " where c.oid = ('penstock.' || %s)::regclass and o.option_name <> 'fillfactor'",
            (table,),
        ).fetchall()
    )
    assert options["autovacuum_vacuum_scale_factor"] <= 0.05
