"""init: once, again, from many processes, onto what is older, newer or edited; and the dump that reviewers read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from penstock import Penstock, SchemaVersionError, migrate
from penstock.embedded.binaries import find_binaries
from scripts.dump_schema import TARGET, dumped


@pytest.fixture
def empty(make_database: Callable[..., str]) -> str:
    return make_database("template0")


def test_fresh_is_what_reviewers_read(empty: str) -> None:
    with Penstock(empty) as penstock:
        penstock.init()
    assert dumped(find_binaries({}) / "pg_dump", empty) == TARGET.read_text("utf-8"), "run `make schema`"


def test_init_is_safe_to_repeat(empty: str) -> None:
    with Penstock(empty) as penstock:
        assert penstock.plan() == ["0001_heart.sql", "functions"]
        assert penstock.init() == ["0001_heart.sql", "functions"]
        assert penstock.init() == []
        assert penstock.plan() == []


def init(dsn: str) -> int:
    with Penstock(dsn) as penstock:
        return len(penstock.init())


def test_many_at_once(empty: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(init, [empty] * 6)) == [0, 0, 0, 0, 0, 2]


def test_functions_are_applied_when_their_text_changed(empty: str) -> None:
    with Penstock(empty) as penstock, psycopg.connect(empty, autocommit=True) as sql:
        penstock.init()
        sql.execute("drop function penstock.claim")
        assert penstock.init() == [], "nobody edits a database by hand and expects us to notice"
        sql.execute("update penstock.migration set checksum = 'older' where number = 0")
        assert penstock.init() == ["functions"]
        penstock.create_queue("work").claim()


def test_a_newer_schema_is_refused(empty: str) -> None:
    with Penstock(empty) as penstock, psycopg.connect(empty, autocommit=True) as sql:
        penstock.init()
        sql.execute("insert into penstock.migration (number, name, checksum) values (99, 'later', 'x')")
        with pytest.raises(SchemaVersionError, match="is at migration 99") as refused:
            penstock.init()
        assert "Upgrade Penstock" in (refused.value.hint or "")


def test_an_edited_migration_is_refused(empty: str) -> None:
    with Penstock(empty) as penstock, psycopg.connect(empty, autocommit=True) as sql:
        penstock.init()
        sql.execute("update penstock.migration set checksum = 'other' where number = 1")
        with pytest.raises(SchemaVersionError, match="was edited"):
            penstock.init()


def test_a_missing_schema_names_the_command(empty: str) -> None:
    with Penstock(empty) as penstock, pytest.raises(SchemaVersionError) as missing:
        penstock.queue("work").push()
    assert "penstock init" in (missing.value.hint or "")


def test_every_statement_of_a_failed_step_is_undone(empty: str, tmp_path: Path) -> None:
    with psycopg.connect(empty, autocommit=True) as sql:
        broken = migrate.Step(7, "broken", "create schema penstock; create table penstock.x (n int); select 1/0;")
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate.apply(sql, broken)
        assert sql.execute("select to_regnamespace('penstock')").fetchone() == (None,)


def test_functions_pin_their_search_path(sql: Connection) -> None:
    """Every function of ours pins its search_path, or has a body that was parsed when it was created."""
    loose = sql.execute(
        "select proname from pg_proc where pronamespace = 'penstock'::regnamespace and prokind = 'f'"
        " and not coalesce(proconfig::text like '%%search_path%%', false) and prosqlbody is null and proname <> 'clock'"
    ).fetchall()
    assert loose == []
