"""A table is only adopted if its key identifies one record."""

from __future__ import annotations

import pytest
from psycopg import Connection

from backlogs import TERMS, Handler, make_backlog
from conftest import Clock
from penstock import Penstock, ValidationError
from shell import is_one_block, penstock


@pytest.fixture
def seed(sql: Connection, clock: Clock) -> Connection:
    make_backlog(sql)
    return sql


def adopted(sql: Connection) -> int:
    row = sql.execute("select count(*) from penstock.adopted").fetchone()
    return row[0] if row else 0


def test_a_key_without_a_unique_index_is_refused(app: Penstock, seed: Connection, dsn: str) -> None:
    seed.execute("update public.backlog set date_inserted = now()")
    with pytest.raises(ValidationError, match=r"key: no unique index .* says that date_inserted identifies") as caught:
        app.adopt("public.backlog", **{**TERMS, "key": "date_inserted"})
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("These identify a record: id.")
    for more in ((), ("--apply",)):
        ran = penstock("adopt", "public.backlog", "--key", "date_inserted", *more, dsn=dsn)
        assert ran.code == 2
        assert is_one_block(ran.err)
        assert "--count-key" in ran.err
    assert adopted(seed) == 0


def test_a_count_may_prove_that_a_key_is_unique(app: Penstock, seed: Connection, dsn: str) -> None:
    told = ("adopt", "public.backlog", "--key", "date_inserted", "--count-key")
    ran = penstock(*told, "--apply", "--no-index", dsn=dsn)
    assert ran.code == 0, ran.err
    assert app.backlog("backlog").process(Handler()).done == 4
    seed.execute("insert into public.backlog select id + 10, 'NEW', date_inserted from public.backlog where id = 1")
    ran = penstock(*told, "--sla", "1h", "--apply", dsn=dsn)
    assert ran.code == 2
    assert "several records of table public.backlog have the same date_inserted" in ran.err


def test_any_unique_index_will_do(app: Penstock, sql: Connection, clock: Clock) -> None:
    make_backlog(sql, id_="bigint not null unique")
    assert [one.name for one in app.adopt("public.backlog", **{**TERMS, "key": None}).terms.key] == ["id"]
    app.adopt("public.backlog", **{**TERMS, "key": ["id", "status"]})
    sql.execute("alter table public.backlog drop constraint backlog_id_key")
    with pytest.raises(ValidationError, match="no primary key and no other unique index"):
        app.adopt("public.backlog", **{**TERMS, "key": None})
    sql.execute("create unique index on public.backlog (id) where id > 0")
    sql.execute("create unique index on public.backlog ((id + 1))")
    with pytest.raises(ValidationError, match="key: no unique index") as caught:
        app.adopt("public.backlog", **TERMS)
    assert caught.value.hint is not None
    assert "create unique index" in caught.value.hint
    sql.execute("create unique index on public.backlog (id) include (status)")
    app.adopt("public.backlog", **TERMS)


def test_an_index_that_is_dropped_later_ends_passes_before_the_first_record(app: Penstock, seed: Connection) -> None:
    backlog = app.adopt("public.backlog", **TERMS)
    seed.execute("alter table public.backlog drop constraint backlog_pkey")
    with pytest.raises(ValidationError, match="no unique index"):
        backlog.process(handler := Handler())
    assert handler.seen == []
    assert app.backlog("backlog").status().ready == 4, "reading is allowed"


@pytest.mark.parametrize("strategy", ["progressive", "fibonacci:1m"])
def test_a_record_without_a_key_is_left_alone(app: Penstock, sql: Connection, clock: Clock, strategy: str) -> None:
    make_backlog(sql, id_="bigint unique")
    backlog = app.adopt("public.backlog", **TERMS, strategy=strategy)
    sql.execute(
        "insert into public.backlog select null, status, penstock.clock() - interval '1 hour'"
        " from unnest('{NEW,ERROR}'::text[]) as r(status)"
    )
    handler = Handler(2)
    assert backlog.process(handler).failed == 1
    assert None not in handler.seen
    with pytest.raises(ValidationError, match=r"some records of table public\.backlog have no value in id"):
        app.adopt("public.backlog", **TERMS, strategy=strategy, sla="1h")
