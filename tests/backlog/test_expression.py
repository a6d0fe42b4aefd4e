"""Tables whose times are texts or numbers: `inserted` names an index over an expression."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from backlogs import COLUMNS, TERMS, Handler, make_backlog, statuses
from conftest import Clock
from penstock import AuthError, Backlog, Conflict, Penstock, ValidationError
from penstock.backlog.claim import Statements
from shell import is_one_block, penstock

READ = """
    create function public.moment_of(text) returns timestamptz language sql immutable set timezone = 'UTC'
    as $$ select case when $1 ~ '^\\d{4}-' then $1::timestamptz end $$
"""
EXPRESSED: dict[str, Any] = {**TERMS, "inserted": "backlog_moment"}


@pytest.fixture
def sql(sql: Connection) -> Connection:
    """A connection that makes tables in `public`: the tests' user has the name of our schema, which would be first."""
    sql.execute("set search_path = public")
    return sql


@pytest.fixture
def seed(sql: Connection, clock: Clock) -> Connection:
    """Four records whose dates are texts, and three without a date that can be read."""
    make_backlog(sql)
    sql.execute("set timezone = 'UTC'")
    sql.execute(
        "alter table backlog alter date_inserted type text using to_char(date_inserted, 'YYYY-MM-DD HH24:MI:SS.US')"
    )
    sql.execute("insert into backlog values (7, 'NEW', null), (8, 'NEW', ''), (9, 'ERROR', 'unknown')")
    sql.execute(READ)
    sql.execute("create index backlog_moment on backlog (moment_of(date_inserted))")
    return sql


def tried(backlog: Backlog, *bad: Any, **options: Any) -> list[Any]:
    handler = Handler(*bad)
    backlog.process(handler, **options)
    return handler.seen


def test_text_dates_are_drained_and_tried_again(app: Penstock, seed: Connection, clock: Clock) -> None:
    backlog = app.adopt("backlog", **EXPRESSED)
    assert tried(backlog, 1, 4) == [1, 2, 3, 4], "the oldest come first; records without a time are left alone"
    assert statuses(seed) == {
        1: "ERROR", 2: "SUCCESS", 3: "SUCCESS", 4: "ERROR", 7: "NEW", 8: "NEW", 9: "ERROR"
    }  # fmt: skip
    assert tried(backlog, 1, 4) == []
    clock.advance(121)
    assert tried(backlog, 1, 4) == [4], "8 minutes old: its next tick is at 10"
    clock.advance(4 * 86400)
    assert tried(app.backlog("backlog"), 1) == [1, 4], "according to the stored terms"
    assert statuses(seed)[4] == "SUCCESS"


@pytest.mark.parametrize("mode", ["columns", "sidecar"])
def test_with_strategies_that_count_failures(app: Penstock, seed: Connection, clock: Clock, mode: str) -> None:
    seed.execute("alter table backlog add failures int not null default 0, add last_failure timestamptz")
    columns: dict[str, Any] = COLUMNS if mode == "columns" else {}
    backlog = app.adopt("backlog", **EXPRESSED, **columns, strategy="fibonacci:1m")
    first = tried(backlog, 1, 2)
    assert first == [1, 2, 3, 4]
    assert tried(backlog) == []
    clock.advance(60)
    assert tried(backlog, 2) == [1, 2]
    clock.advance(60)
    assert tried(backlog) == [2]


def test_a_pass_goes_on_behind_what_it_took(app: Penstock, seed: Connection) -> None:
    """In batches, newest first and by age: the position in the order is a value of the expression."""
    seed.execute("update backlog set status = 'SUCCESS'")
    seed.execute(
        "insert into backlog select n, 'NEW', (timestamptz '2020-01-01' + n * interval '1 hour')::text"
        " from generate_series(100, 3000) as n"
    )
    backlog = app.adopt("backlog", **EXPRESSED)
    assert tried(backlog, limit=500) == [*range(100, 600)]
    assert tried(backlog, limit=500, newest_first=True) == [*range(3000, 2500, -1)]
    assert len(tried(backlog, max_age="9000d", concurrency=2)) == 1901


def test_the_handler_is_given_the_time(app: Penstock, seed: Connection, clock: Clock) -> None:
    seen: list[dict[str, Any]] = []
    app.adopt("backlog", **EXPRESSED).process(seen.append, limit=1)
    assert {*seen[0]} == {"id", "status", "date_inserted", "backlog_moment"}
    assert (clock.now() - seen[0]["backlog_moment"]).days in range(58, 63)


def test_names_of_columns_that_our_statements_use(app: Penstock, sql: Connection, clock: Clock) -> None:
    """An expression names its columns without a table, and these must not be taken for parameters."""
    sql.execute(READ)
    sql.execute("create table odd (k0 int primary key, n text, age text, after text, until text, status text, t text)")
    sql.execute("create index odd_moment on odd (moment_of(coalesce(n, age, after, until, t)))")
    sql.execute("insert into odd select n, ((penstock.clock() - interval '8 minutes') at time zone 'UTC')::text, null,"
                " null, null, 'NEW', '%' from generate_series(1, 3) as n")  # fmt: skip
    backlog = app.adopt("odd", **{**EXPRESSED, "key": "k0", "inserted": "odd_moment"})

    def fail(record: dict[str, Any]) -> None:
        raise RuntimeError(record["k0"])

    assert backlog.process(fail).failed == 3
    clock.advance(121)
    assert (backlog.status().due, backlog.process(fail).failed) == (3, 3)


def test_dates_and_times_without_a_zone(app: Penstock, seed: Connection, clock: Clock) -> None:
    seed.execute("create index by_day on backlog (((moment_of(date_inserted) at time zone 'UTC')::date))")
    backlog = app.adopt("backlog", **{**EXPRESSED, "inserted": "by_day"}, tz="Asia/Tokyo", name="days")
    assert (backlog.terms.inserted.kind, backlog.terms.naive) == ("date", True)
    seed.execute("drop index by_day")
    seed.execute("create index backlog_utc on backlog ((moment_of(date_inserted) at time zone 'UTC'))")
    backlog = app.adopt("backlog", **{**EXPRESSED, "inserted": "backlog_utc"}, tz="UTC")
    assert tried(backlog, 4) == [1, 2, 3, 4]
    clock.advance(121)
    assert tried(backlog) == [4]


# --- the shell --------------------------------------------------------------------------------------------------------


def test_status_and_a_second_run(seed: Connection, dsn: str) -> None:
    ran = penstock("adopt", "backlog", "--inserted", "backlog_moment", "--sla", "1h", "--apply", "--json", dsn=dsn)
    assert ran.code == 0, ran.err
    first = ran.json
    assert (first["ready"], first["undated"]) == (6, 3)
    assert first["terms"]["inserted_expression"] == "public.moment_of(date_inserted)"
    status = penstock("backlog", "status", "--json", dsn=dsn).json["backlogs"][0]
    assert (status["ready"], status["due"], status["sla"]) == (6, 0, 3600)
    assert 58 * 86400 < status["oldest_age"] < 63 * 86400
    again = penstock("adopt", "backlog", "--apply", "--json", dsn=dsn).json
    assert (again["terms"], again["guessed"]) == (first["terms"], [])
    assert [one["state"] for one in again["indexes"]] == ["exists", "exists"]
    text = penstock("adopt", "backlog", dsn=dsn).out
    assert "inserted     backlog_moment: public.moment_of(date_inserted)  (agreed)" in text
    assert "left alone, as backlog_moment is NULL: 3 records" in text
    seed.execute("create index other_moment on backlog ((moment_of(date_inserted) at time zone 'UTC'))")
    changed = penstock("adopt", "backlog", "--inserted", "other_moment", "--apply", "--json", dsn=dsn).json
    assert [one["state"] for one in changed["indexes"]] == ["made", "made"]
    assert all(one["replaces"] for one in changed["indexes"]), "the old indexes were over the other expression"
    seed.execute("alter table backlog add came timestamptz default now()")
    told = penstock("adopt", "backlog", "--inserted", "came", "--apply", "--json", dsn=dsn).json["terms"]
    assert (told["inserted"], "inserted_expression" in told) == ("came", False)


def test_plans_use_an_index(app: Penstock, seed: Connection, dsn: str) -> None:
    seed.execute(
        "insert into backlog select n,"
        " case when n % 50 = 0 then 'ERROR' when n % 50 = 1 then 'NEW' else 'SUCCESS' end,"
        " (penstock.clock() - n * interval '1 minute')::text from generate_series(10, 30000) as n"
    )
    seed.execute("analyze backlog")
    given = ("adopt", "backlog", "--inserted", "backlog_moment", "--json")
    for told in (penstock(*given, dsn=dsn).json, penstock(*given, "--apply", dsn=dsn).json):
        for plan in told["plans"]:
            assert any("penstock_backlog" in line for line in plan["after"]), plan
    statements = Statements(app.backlog("backlog").terms)
    statement = statements.ready(newest_first=False, bounded=True, onward=True)
    place = ("2020-01-01", "2020-01-01", 1, 100)
    plan = "\n".join(row[0] for row in seed.execute(b"explain " + statement, place))
    assert re.search(r"Index Scan using penstock_backlog_ready .*\n +Index Cond: ", plan), plan
    assert "Sort" not in plan


def test_a_partitioned_table(app: Penstock, sql: Connection, clock: Clock, dsn: str) -> None:
    sql.execute(READ)
    sql.execute("create table parted (id int primary key, status text, created text) partition by range (id)")
    sql.execute("create table parted_1 partition of parted for values from (0) to (10)")
    sql.execute("create table parted_2 (created text, status text, id int not null)")
    sql.execute("alter table parted attach partition parted_2 for values from (10) to (20)")
    sql.execute("insert into parted select n, 'NEW', '2026-01-02' from generate_series(1, 19) as n")
    ran = penstock("adopt", "parted", "--inserted", "created", dsn=dsn)
    assert "create index parted_created_moment on public.parted" in ran.err, "it cannot be made concurrently"
    sql.execute("create index parted_moment on parted (moment_of(created))")
    given = ("adopt", "parted", "--inserted", "parted_moment", "--apply", "--json")
    for state in ("made", "exists"):
        told = penstock(*given, dsn=dsn).json
        assert {one["state"] for one in told["indexes"]} == {state}
    assert tried(app.backlog("parted")) == [*range(1, 20)]


@pytest.mark.parametrize("kind", ["text", "bigint"])
def test_the_hint_can_be_followed(seed: Connection, dsn: str, kind: str) -> None:
    if kind == "bigint":
        seed.execute("drop index backlog_moment")
        seed.execute("alter table backlog alter date_inserted type bigint"
                     " using extract(epoch from moment_of(date_inserted))")  # fmt: skip
    ran = penstock("adopt", "backlog", "--tz", "UTC", dsn=dsn)
    assert ran.code == 2
    assert is_one_block(ran.err)
    assert f"inserted: column date_inserted is {kind}, not a timestamp or date" in ran.err
    assert "rewrites the table" in ran.err
    said = " ".join(ran.err.split())
    for statement in re.findall(r"create function .*?\$\$.*?\$\$|create index .*?\)(?=; then)", said):
        seed.execute(statement.encode())
    name = re.search(r"--inserted (\w+)", said)
    assert name is not None
    told = penstock("adopt", "backlog", "--inserted", name[1], "--json", dsn=dsn).json
    assert 58 * 86400 < told["oldest_age"] < 63 * 86400
    seed.execute("delete from backlog where id > 4")
    seed.execute(f"drop index {name[1]}".encode())
    if kind == "text":
        seed.execute("drop index backlog_moment")
    alter = re.search(r"alter table .* using .*\)?(?=\.)", said)
    assert alter is not None
    seed.execute(alter[0].encode())
    assert penstock("adopt", "backlog", dsn=dsn).code == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_index_that_was_dropped(app: Penstock, seed: Connection, dsn: str) -> None:
    backlog = app.adopt("backlog", **EXPRESSED)
    seed.execute("drop index backlog_moment")
    for call in (lambda: backlog.process(Handler()), lambda: app.backlog("backlog")):
        with pytest.raises(ValidationError) as caught:
            call()
        assert "index backlog_moment of table public.backlog" in str(caught.value)
        assert "does not exist any more" in str(caught.value)
        hint = caught.value.hint or ""
        again = "create index concurrently backlog_moment on public.backlog (public.moment_of(date_inserted))"
        assert again in hint
        assert "--inserted NAME --apply" in hint
    ran = penstock("adopt", "backlog", "--apply", dsn=dsn)
    assert (ran.code, is_one_block(ran.err)) == (2, True)
    assert "does not exist any more" in ran.err
    assert [*statuses(seed).values()].count("NEW") == 6
    seed.execute(again.encode())
    assert tried(backlog) == [1, 2, 3, 4]


def test_an_index_that_was_changed(app: Penstock, seed: Connection) -> None:
    backlog = app.adopt("backlog", **EXPRESSED)
    seed.execute("drop index backlog_moment")
    seed.execute("create index backlog_moment on backlog ((moment_of(date_inserted) at time zone 'UTC'))")
    with pytest.raises(Conflict, match=r"is over .* now"):
        backlog.process(Handler())
    assert tried(app.backlog("backlog")) == [1, 2, 3, 4], "a new start reads the catalog"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("other_moment", "is an index of table public.other, not of public.backlog", "--inserted NAME"),
        ("by_status", "is an index over column status", "Name the column: --inserted status."),
        ("by_length", "over length(date_inserted), which is integer, not a timestamp or date", "--inserted NAME"),
        ("by_row", "cannot be used in a query", "not over the whole row"),
        ("broken", "is not valid", "drop index public.broken"),
        ("nowhere", "has no column 'nowhere'", None),
    ],
)
def test_an_index_that_cannot_be_used(app: Penstock, seed: Connection, name: str, words: str, hint: str | None) -> None:
    seed.execute("create table other (id int primary key, created text)")
    seed.execute("create index other_moment on other (moment_of(created))")
    seed.execute("create index by_status on backlog (status, moment_of(date_inserted))")
    seed.execute("create index by_length on backlog (length(date_inserted))")
    seed.execute(
        "create function row_moment(backlog) returns timestamptz language sql immutable as"
        " $$ select public.moment_of($1.date_inserted) $$"
    )
    seed.execute("create index by_row on backlog (row_moment(backlog.*))")
    seed.execute("create index broken on backlog (moment_of(date_inserted), id)")
    seed.execute("update pg_index set indisvalid = false where indexrelid = 'broken'::regclass")
    with pytest.raises(ValidationError) as caught:
        app.adopt("backlog", **{**TERMS, "inserted": name})
    assert words in str(caught.value)
    assert hint is None or hint in (caught.value.hint or "")
    assert seed.execute("select count(*) from penstock.adopted").fetchone() == (0,)


def test_a_function_that_this_role_may_not_call(seed: Connection, direct_dsn: str) -> None:
    name = f"other_role_{seed.info.backend_pid}"
    seed.execute(f"create role {name} login password 'secret' in role penstock_worker, penstock_admin".encode())
    seed.execute("grant usage on schema penstock_test to public")
    seed.execute("grant select on penstock_test.clock to public")
    seed.execute("grant select, update on backlog to public")
    seed.execute("revoke execute on function moment_of(text) from public")
    try:
        with Penstock(psycopg.conninfo.make_conninfo(direct_dsn, user=name, password="secret")) as app:
            with pytest.raises(AuthError, match="permission denied for function moment_of"):
                app.adopt("public.backlog", **EXPRESSED)
            seed.execute("grant execute on function moment_of(text) to public")
            assert tried(app.adopt("public.backlog", **EXPRESSED)) == [1, 2, 3, 4]
    finally:
        seed.execute(f"drop owned by {name}".encode())
        seed.execute(f"drop role {name}".encode())
