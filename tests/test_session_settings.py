"""Settings of a session, from the role, the database, the DSN or the environment, change nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import (
    AsyncPenstock,
    Conflict,
    NewTask,
    Outcome,
    Penstock,
    Progressive,
    Queue,
)
from penstock.client import history, profiles, scaling, workers
from penstock.client.database import Database
from penstock.client.progress import note_progress
from penstock.client.statements import history as statements
from penstock.model import QueueQuestion, Window
from penstock.spark.options import Address
from shell import penstock
from test_roles import TRAPS

NOON = datetime(2026, 11, 15, 12, 0, 30, tzinfo=UTC)
LATER = NOON + timedelta(days=30, microseconds=123456)
ODD = "Zoë 🐘 NULL \"q\" \\ {a,b} 'x' 50% :p1 $1"


class Hostile(NamedTuple):
    """A setting, and where the session gets it."""

    name: str
    value: str
    way: str = "database"


SETTINGS = [
    Hostile("client_encoding", "LATIN1"),
    Hostile("client_encoding", "SQL_ASCII"),
    Hostile("client_encoding", "LATIN1", "environment"),
    Hostile("client_encoding", "LATIN1", "dsn"),
    Hostile("client_encoding", "LATIN1", "options"),
    Hostile("datestyle", "German, DMY"),
    Hostile("datestyle", "SQL, DMY"),
    Hostile("datestyle", "Postgres, MDY", "options"),
    Hostile("intervalstyle", "sql_standard"),
    Hostile("intervalstyle", "iso_8601"),
    Hostile("timezone", "Pacific/Chatham"),
    Hostile("timezone", "<+0330>-03:30"),
    Hostile("standard_conforming_strings", "off"),
    Hostile("array_nulls", "off"),
    Hostile("extra_float_digits", "-15"),
    Hostile("bytea_output", "escape"),
    Hostile("search_path", "evil, pg_catalog"),
    Hostile("search_path", "evil"),
    Hostile("default_transaction_isolation", "serializable"),
    Hostile("default_transaction_isolation", "repeatable read", "options"),
    Hostile("default_transaction_deferrable", "on"),
    Hostile("quote_all_identifiers", "on"),
    Hostile("transform_null_equals", "on"),
    Hostile("plpgsql.extra_errors", "all"),
]
# Several at once, for the slower tests.
BUNDLES = [
    [Hostile("client_encoding", "LATIN1"), Hostile("datestyle", "German, DMY"), Hostile("intervalstyle", "iso_8601"),
     Hostile("timezone", "Pacific/Chatham"), Hostile("array_nulls", "off"), Hostile("extra_float_digits", "-15"),
     Hostile("standard_conforming_strings", "off"), Hostile("default_transaction_isolation", "serializable"),
     Hostile("quote_all_identifiers", "on")],
    [Hostile("search_path", "evil, pg_catalog"), Hostile("client_encoding", "SQL_ASCII"),
     Hostile("datestyle", "SQL, DMY"), Hostile("intervalstyle", "sql_standard")],
]  # fmt: skip


def named(value: object) -> str | None:
    if isinstance(value, Hostile):
        return f"{value.name}={value.value}" + (f" by {value.way}" if value.way != "database" else "")
    return None


@pytest.fixture
def as_set(dsn: str, direct_dsn: str, sql: Connection, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns a function that gives the sessions of a DSN these settings. The database has a fixed clock."""
    pooled, target = dsn != direct_dsn, dsn

    def make(*hostile: Hostile) -> str:
        dsn = target
        if pooled and any(one.way == "options" for one in hostile):
            pytest.skip("PgBouncer passes no options on")
        sql.execute("update penstock_test.clock set fixed = %s", (NOON,))
        if any(one.name == "search_path" for one in hostile):
            sql.execute(TRAPS.encode())
        for one in hostile:
            if one.way == "database":
                database = str(conninfo_to_dict(dsn)["dbname"])
                value = one.value if one.name == "search_path" else f"'{one.value}'"
                sql.execute(f'alter database "{database}" set {one.name} = {value}'.encode())
            elif one.way == "environment":
                monkeypatch.setenv("PGCLIENTENCODING", one.value)
            elif one.way == "dsn":
                dsn = make_conninfo(dsn, **{one.name: one.value})
            else:
                escaped = one.value.replace(" ", "\\ ")
                dsn = make_conninfo(dsn, options=f"-c {one.name}={escaped}")
        return dsn

    return make


# --- a walk through everything ----------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Makes a value comparable with that of another run: times in UTC, and nothing random."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, UUID):
        return "uuid"
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None | timedelta | date) else repr(value)


def pushes(queue: Queue, dsn: str) -> Iterator[object]:
    """Pushes in every way that a client has."""
    yield queue.push({"name": ODD, "float": 0.1 + 0.2, "none": None})
    yield queue.push({"name": ODD}, subject=ODD, kind=ODD, due=LATER, priority=1)
    yield queue.push({}, subject=ODD)
    yield queue.push({"new": ODD}, subject=ODD, on_conflict="update")
    mixed = [
        NewTask({"n": n, "name": ODD}, None if n % 3 else f"s{n} {ODD}", LATER if n % 2 else None, n % 10, f"k{n % 2}")
        for n in range(12)
    ]
    yield queue.push_many([{"name": ODD}] * 3)
    yield queue.push_many(mixed)
    yield queue.upsert_many(mixed)
    yield queue.push_many([NewTask({}, f"strict{n}") for n in range(3)], on_conflict="error")
    try:
        queue.push_many([NewTask({}, "strict0"), NewTask({}, "new")], on_conflict="error")
    except Conflict as error:
        yield str(error)
    with psycopg.connect(make_conninfo(dsn, client_encoding="utf8")) as own:
        yield queue.push({"name": ODD}, subject=f"borrowed {ODD}", connection=own)
        some = [NewTask({"n": n}, None if n % 2 else f"b{n}", None if n % 3 else LATER) for n in range(9)]
        yield queue.push_many(some, connection=own)


def settles(queue: Queue, database: Database) -> Iterator[object]:
    """Settles with each outcome, with and without its arguments."""
    claim = queue.claim(8, lease="90s", worker=ODD)
    yield claim.tasks
    yield queue.extend(claim, lease=timedelta(seconds=2.5))
    yield [*workers.extend_leases(database, [claim.token or ""], lease="1m").values()]
    said = {"id": claim.ids[0], "part": 0.25, "text": ODD, "ago": 1.5, "lines": [[1, 2.5, ODD]]}
    yield note_progress(database, str(claim.token), [said])
    yield queue.progress(claim.ids[0])
    outcomes = [
        Outcome.done(),
        Outcome.again(LATER, payload={"name": ODD}),
        Outcome.again(delay=1.5),
        Outcome.failed(ODD, error_class=ODD),
        Outcome.failed(ODD + "\x00\ud800", delay=3601.000001),
        Outcome.dead(ODD),
        Outcome.release(delay="1h"),
    ]
    yield queue.settle(claim, dict(zip(claim.ids, outcomes, strict=False)))
    yield queue.release(claim)
    claim = queue.claim(2)
    yield queue.settle(claim)
    claim = queue.claim(1)
    with queue.settling(claim, claim.ids[0]) as own:
        own.execute("create table if not exists public.effect (name pg_catalog.text)")
        own.execute("insert into public.effect values (%s)", (ODD,))
    yield queue.tasks(limit=1000)
    yield queue.task(2)
    yield queue.cancel(subjects=["b0"], reason=ODD)
    yield queue.redrive(error="zoë")
    yield queue.reschedule(LATER, subjects=["b4"])
    yield queue.reprioritise(3, subjects=["b4"])
    yield queue.purge("cancelled", before=LATER)


def reports(app: Penstock, queue: Queue) -> Iterator[object]:
    yield queue.set(sla="90m", keep_done="36h", keep_dead="1d", retry="fibonacci:90s")
    yield queue.settings()
    database = Database(app.dsn)
    kind = {"kind": "k0", "max_attempts": 2, "timeout": "1 day 2 hours", "on_dead": "work:k1", "on_done": "work:k2"}
    yield workers.set_kinds(database, "work", [kind])
    yield app.set_schedule("nightly", "*/5 6 * * 1-5", queue="work", tz="Europe/Rome", payload={"name": ODD})
    yield app.set_schedule("often", "* * * * *", queue="work", backfill="all")
    yield app.pause_schedule("nightly")
    yield app.resume_schedule("nightly")
    yield app.beat("worker", ["work"], slots=3, busy=1)
    yield {part: rows for part, rows in app.upkeep().items() if part != "squeezed"}
    yield app.schedules()
    yield app.status()
    yield app.board(samples=5)
    yield app.verify()
    yield app.repair()
    yield workers.find_lease(database, "work")
    yield scaling.scaler_snapshot(database, [QueueQuestion("work", 3600.5, 100, 0.25)]).queues
    held = scaling.hold_scaling(database, ["work"], holder="h", policy="p", lease="1m")
    yield held
    decided = {"queue": "work", "epoch": held["work"].epoch, "policy": "p", "workers": 1, "actual": 0, "wanted": 1,
               "urgency": "none", "bound_by": "min", "reason": ODD, "time_to_breach": 1.1, "predicted_breach": None,
               "inputs": {"a": 0.1}, "rules": {}, "memory": {"name": ODD}}  # fmt: skip
    yield scaling.decide(database, [decided], holder="h", lease="1m")
    yield app.decisions("work")
    yield scaling.target_workers(database, "work")
    yield profiles.find_profiles(database)
    yield profiles.running_times(database)
    now = history.read_horizon(database)
    yield history.sample_days(database, Window(now._replace(xid=0), now._replace(xid=2**62)))
    yield history.today(database)
    database.close()


def adopted(app: Penstock, dsn: str) -> Iterator[object]:
    """Drains an adopted table, by strategy and by ticks."""
    with psycopg.connect(make_conninfo(dsn, client_encoding="utf8"), autocommit=True) as own:
        own.execute("set search_path = public")
        own.execute("create table jobs (id bigint primary key, status text, date_inserted timestamptz, note text)")
        rows = [(n, "NEW", NOON - timedelta(days=n, hours=n), ODD) for n in range(12)]
        own.cursor().executemany("insert into public.jobs values (%s, %s, %s, %s)", rows)
    backlog = app.adopt("public.jobs", name="jobs", retry="ERROR", dead="DEAD", strategy=Progressive(), sla="36h")

    def handle(record: dict[str, Any]) -> None:
        assert record["note"] == ODD
        if record["id"] % 3 == 0:
            raise ValueError(ODD)

    for _ in range(2):
        report = backlog.process(handle)
        yield (report.done, report.failed, report.dead, report.later, dict(report.errors))
    status = asdict(backlog.status())
    yield {name: value for name, value in status.items() if name not in ("last_pass", "rate", "eta")}


def rows(sql: Connection) -> list[Any]:
    """Returns the stored rows, read by a session without settings."""
    queries = (
        "select id, kind, subject, payload, priority, due, ended, reason, error from penstock.task order by id",
        "select task_id, due, priority, attempts, pending, named from penstock.agenda order by 1",
        "select task_id, outcome, kind, worker, subject, error_class, error, due from penstock.history order by id",
        "select name, lease, sla, keep_done, keep_dead, retry, settings, paused from penstock.queue order by 1",
        "select name, cron, tz, payload, mark, next_at from penstock.schedule order by 1",
        "select kind, max_attempts, timeout from penstock.kind order by 1",
        "select key, failures, due, error from penstock.adopted_record order by 1",
        "select id, status from public.jobs order by 1",
        "select name from public.effect",
        "select day from (select relname as day from pg_class where relname ~ '^history_[0-9]+$') as d order by 1",
    )
    return [plain(sql.execute(query.encode()).fetchall()) for query in queries]


# The columns of an adopted table are compared as its owner compares them: another `=` may be meant there.
DROP_OPERATORS = """
    do $$
    declare
        v_one record;
    begin
        for v_one in
            select o.oid::regoperator as name
            from pg_operator as o join pg_namespace as n on n.oid = o.oprnamespace where n.nspname = 'evil'
        loop
            execute format('drop operator %s', v_one.name);
        end loop;
    end
    $$
"""


def walk(dsn: str, sql: Connection) -> list[Any]:
    with Penstock(dsn) as app, closing(Database(dsn)) as database:
        queue = app.create_queue("work", max_attempts=3, lease="10s", sla="30s")
        told = [
            plain(one) for part in (pushes(queue, dsn), settles(queue, database), reports(app, queue)) for one in part
        ]
        sql.execute(DROP_OPERATORS)
        told += [plain(one) for one in adopted(app, dsn)]
    return [told, rows(sql)]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {}


@pytest.fixture
def usual(expected: dict[str, Any], make_database: Callable[..., str]) -> list[Any]:
    """The walk in a session without settings."""
    if "walk" not in expected:
        dsn = make_database()
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("update penstock_test.clock set fixed = %s", (NOON,))
            expected["walk"] = walk(dsn, sql)
    return list(expected["walk"])


@pytest.mark.sample(8)
@pytest.mark.parametrize("hostile", SETTINGS, ids=named)
def test_a_setting_of_the_session_changes_nothing(
    hostile: Hostile, as_set: Callable[..., str], sql: Connection, usual: list[Any]
) -> None:
    told, stored = walk(as_set(hostile), sql)
    for n, (one, other) in enumerate(zip(told, usual[0], strict=True)):
        assert one == other, n
    assert stored == usual[1]


# --- the same in other ways -------------------------------------------------------------------------------------------


def test_async_is_no_different(as_set: Callable[..., str], sql: Connection) -> None:
    dsn = as_set(*BUNDLES[0], Hostile("search_path", "evil, pg_catalog"))

    async def main() -> list[Any]:
        async with AsyncPenstock(dsn) as app:
            queue = await app.create_queue("work", sla="90m")
            await queue.push({"name": ODD}, subject=ODD, due=LATER)
            await queue.push_many([NewTask({"n": n}, None if n % 2 else f"s{n}") for n in range(6)])
            claim = await queue.claim(4)
            await queue.settle(claim, {claim.ids[0]: Outcome.failed(ODD, delay=1.5), claim.ids[1]: Outcome.done()})
            await queue.release(claim)
            async with queue.settling(claim := await queue.claim(), claim.ids[0]) as own:
                await own.execute("select 1")
            found = await queue.settings()
            return [found.sla, found.lease, (await queue.status()).totals["done"], len(await queue.tasks())]

    assert asyncio.run(main()) == [timedelta(minutes=90), timedelta(seconds=30), 2, 5]
    row = sql.execute("select error, a.due from penstock.task as t join penstock.agenda as a on a.task_id = t.id"
                      " where error is not null").fetchone()  # fmt: skip
    assert row == (ODD, NOON + timedelta(seconds=1.5))


APP = """
from penstock import Context, Penstock
app = Penstock()

@app.schedule("*/5 6 * * 1-5", payload={"name": "Zoë 🐘"}, tz="Europe/Rome")
@app.task(queue="work", retry="fibonacci:90s")
def handle(name: str, context: Context) -> None:
    with context.transaction() as connection:
        connection.execute("insert into public.effect values (%s)", (name,))

@app.task(queue="work", timeout="26h", max_attempts=1)
def fail(name: str) -> None:
    raise ValueError(name)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("bundle", BUNDLES, ids=["settings", "names"])
def test_workers_and_the_shell_behave_the_same(
    bundle: list[Hostile], as_set: Callable[..., str], sql: Connection, tmp_path: Path
) -> None:
    dsn = as_set(*bundle)
    sql.execute("create table public.effect (name text)")
    (tmp_path / "mine.py").write_text(APP, "utf-8")

    def shell(*arguments: str, stdin: str = "") -> Any:
        ran = penstock(*arguments, dsn=dsn, cwd=tmp_path, stdin=stdin)
        assert ran.code == 0, ran.err
        return ran

    shell("queues", "create", "work", "--sla", "90m", "--lease", "10s")
    tasks = [{"payload": {"name": ODD}, "kind": "handle"}] * 30 + [{"payload": {"name": ODD}, "kind": "fail"}] * 2
    shell("push", "work", "--file", "-", stdin="\n".join(map(json.dumps, tasks)))
    done = shell("work", "mine:app", "--until-empty", "--json").json
    assert (done["done"], done["dead"]) == (30, 2), done
    assert sql.execute("select distinct name, count(*) over () from public.effect").fetchall() == [(ODD, 30)]
    assert sql.execute(
        "select distinct split_part(error, E'\\n', 1) from penstock.task where ended = 'dead'"
    ).fetchall() == [(ODD,)]
    (status,) = shell("status", "--json").json["queues"]
    assert (status["dead"], status["pending"], status["sla"]) == (2, 0, 5400)
    shell("upkeep")
    shell("verify")
    shell("schedules", "ls")
    shell("tasks", "ls", "work")
    shell("scale", "mine:app", "--advise", "--once", "--json")
    shell("why", "work")
    findings = json.loads(penstock("doctor", "--json", dsn=dsn).out)["findings"]
    assert {one["check"] for one in findings if one["level"] == "error"} <= {"fsync"}, findings
    assert not [one for one in findings if "could not look" in one["what"]]


def test_the_settings_of_a_handler_end_with_its_transaction(queue: Queue, dsn: str, sql: Connection) -> None:
    """The connection of `transaction()` belongs to the pool: whatever was set, the settle that follows is right, and so
    is the next use of the connection."""
    sql.execute(TRAPS.encode())
    odd = (
        "set client_encoding = 'LATIN1'", "set datestyle = 'SQL, DMY'", "set intervalstyle = 'iso_8601'",
        "set array_nulls = off", "set standard_conforming_strings = off", "set timezone = 'Pacific/Chatham'",
        "set search_path = evil, pg_catalog",
    )  # fmt: skip
    with Penstock(dsn, max_connections=1) as app:
        mine = app.queue("work")
        for outcome in (Outcome.failed(ODD, delay=60), Outcome.again(LATER, payload={"name": ODD})):
            mine.push({}, subject=f"{outcome.word} {ODD}")
            claim = mine.claim()
            with mine.settling(claim, claim.ids[0], lambda outcome=outcome: outcome) as own:  # type: ignore[misc]
                for one in odd:
                    own.execute(one.encode())
            assert mine.settings().lease == timedelta(seconds=10)
            assert mine.tasks()[-1].subject == f"{outcome.word} {ODD}"
    rows = sql.execute("select error, payload from penstock.task order by id").fetchall()
    assert rows == [(ODD, {}), (None, {"name": ODD})]


@pytest.mark.parametrize("bundle", BUNDLES, ids=["settings", "names"])
def test_history_is_read_by_another_driver_alike(
    bundle: list[Hostile], as_set: Callable[..., str], sql: Connection
) -> None:
    """Spark's executors read by ADBC, which has a libpq of its own. It looks up types before any statement of ours,
    with operators of the session's search_path, and does not know them by quoted names."""
    spark_history = pytest.importorskip("penstock.spark.history")
    dsn = as_set(*(one for one in bundle if one.name != "quote_all_identifiers"))
    sql.execute(DROP_OPERATORS)
    with Penstock(dsn) as app:
        queue = app.create_queue("work")
        queue.push_many([NewTask({}, f"{n} {ODD}", kind=ODD) for n in range(5)])
        claim = queue.claim(5, worker=ODD)
        queue.settle(claim, {id_: Outcome.failed(ODD) for id_ in claim.ids})
    database = Database(dsn)
    now = history.read_horizon(database)
    window = Window(now._replace(xid=0), now._replace(xid=2**62))
    (span,) = history.find_spans(database, window, roughly=True)
    database.close()
    statement = statements.history_rows(window, None, span.day, range(span.pages))
    with spark_history.connect_arrow(Address(dsn)) as arrow:
        found = arrow.rows(statement, span).table.to_pylist()
    assert sorted(row["subject"] for row in found) == [f"{n} {ODD}" for n in range(5)]
    assert {(row["kind"], row["worker"], row["error"], row["finished_at"]) for row in found} == {(ODD, ODD, ODD, NOON)}


# --- functions in sessions of other programs --------------------------------------------------------------------------

CALLS = (
    """select penstock.create_queue('work', '10 seconds', 3, p_sla => '36:00:00', p_keep_dead => '1 day')""",
    """select * from penstock.push('work', '{"name": "Zoë"}', 'Zoë', p_due => '2026-12-24 18:00:00+01')""",
    """select * from penstock.push_many('work', array['{}', '{}', '{}'], array['a', null, 'NULL'])""",
    """select kind, subject, payload, due, attempt, created from penstock.claim('work', 2, '90 seconds')""",
    """select l.open, s.* from penstock.lease as l,
       penstock.settle(l.token, l.ids, array['failed', 'dead'], p_delays => array[interval '1 day', null]) as s""",
    """select penstock.set_retention('history', '40 days')""",
    """select p.part, u.rows from penstock.upkeep_pace() as p, penstock.upkeep_part(p.part) as u
       where p.part <> 'squeezed'""",
    """select penstock.set_schedule('s', 'work', '*/5 6 * * 1-5', 'Europe/Rome')""",
    """update penstock_test.clock set shift = interval '3600 s' returning true""",
    """select penstock.fire('s', mark, array[mark + interval '1 s'], mark + interval '1 s', mark + interval '1 day')
       from penstock.schedule where penstock.clock() is not null""",
    """select name, cron, mark, next_at, last_tick from penstock.schedules()""",
    """select subject from penstock.task order by id""",
    """select * from penstock.beat('w', array['work'])""",
    """select penstock.board(p_samples => 3) - 'workers'""",
    """select penstock.scaler_snapshot(array['work'], array[60.5], array[10], array[0.25]) - 'connections'""",
    """select * from penstock.status()""",
    """select penstock._drop_history(penstock.clock() + interval '5 days')""",
    """select penstock._make_history('2031-12-03')""",
    """select penstock._make_history('2026-10-05')""",
    """select day, pages from penstock.history_spans(0, 9223372036854775807, p_roughly => true)""",
    """select penstock.release_day('2026-10-05', 0, 9223372036854775807)""",
    """select penstock.retry_delay('{"type": "fibonacci", "unit": 0.1, "jitter": 0.5}', 3)""",
    """select penstock.set_queue('work', '{"keep_done": "1 day 02:00", "retry": {"type": "fixed", "delay": 1.5}}')""",
    """select relname::text, pg_get_expr(relpartbound, oid) is not null from pg_class
       where relname ~ '^history_[0-9]{8}$' order by 1""",
    """select * from penstock.verify()""",
)


def called(sql: Connection) -> list[Any]:
    """Returns the answers of functions, read in binary because text depends on the session."""
    found = []
    for call in CALLS:
        with sql.cursor(binary=True) as cursor:
            cursor.execute(call.encode(sql.info.encoding))
            found.append(plain(cursor.fetchall()))
    return found


def test_functions_do_not_depend_on_the_callers_session(make_database: Callable[..., str]) -> None:
    found = []
    for unusual in (False, True):
        with psycopg.connect(make_database(), autocommit=True) as sql:
            sql.execute("update penstock_test.clock set fixed = %s", (NOON,))
            if unusual:
                for name, value in [(one.name, one.value) for one in BUNDLES[0] if "isolation" not in one.name]:
                    sql.execute(f"set {name} = '{value}'".encode())
            found.append(called(sql))
    for call, usual, unusually in zip(CALLS, *found, strict=True):
        assert unusually == usual, call
