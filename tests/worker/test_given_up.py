"""PostgreSQL answers but gives up what a worker asks, because of a time limit: the log and the probe say so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg import sql as parts

from penstock import Penstock, Unavailable
from penstock.worker.given_up import GivenUp
from workers import Worker, eventually, free_port, probe, working

WAITS = """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")
"""


@contextmanager
def locked(dsn: str, *tables: str) -> Iterator[None]:
    """Locks tables, so that every statement about them lasts until the time limit of the database ends it."""
    with psycopg.connect(dsn, options="-c statement_timeout=0 -c lock_timeout=0") as other:
        for table in tables:
            other.execute(f"lock table penstock.{table} in access exclusive mode".encode())
        yield


def given_up(worker: Worker) -> set[tuple[str, str]]:
    """Returns the duties that the log names, with the reason of PostgreSQL."""
    text = "PostgreSQL gave up a call, which is tried again"
    return {(one["duty"], one["error"]) for one in worker.events if one["event"] == text}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("statement_timeout", "canceling statement due to statement timeout"),
        ("lock_timeout", "canceling statement due to lock timeout"),
    ],
)
def test_beats_that_postgresql_gives_up_are_logged_and_fail_the_probe(
    dsn: str, app: Penstock, sql: Connection, tmp_path: Path, setting: str, reason: str
) -> None:
    app.create_queue("work")
    alter = parts.SQL("alter database {} set {} = '1s'").format(parts.Identifier(sql.info.dbname), parts.SQL(setting))
    sql.execute(alter)
    port = free_port()
    with working(tmp_path, dsn, WAITS, "--health", str(port), "--silence", "3") as worker:
        eventually(lambda: probe(port)[0] == 200)
        with locked(dsn, "worker"):
            status, told = eventually(lambda: found if (found := probe(port))[0] != 200 else None, within=60)  # type: ignore[misc]
            assert (status, told["given_up"], told["stalled"]) == (503, ["beat"], [])
            assert given_up(worker) == {("beat", reason)}
        eventually(lambda: probe(port)[0] == 200)
        assert probe(port)[1]["given_up"] == []
        assert worker.stop() == 0


def test_claims_and_extensions_that_postgresql_gives_up_are_logged(
    dsn: str, app: Penstock, sql: Connection, tmp_path: Path
) -> None:
    queue = app.create_queue("work", lease="12s")
    sql.execute(parts.SQL("alter database {} set statement_timeout = '1s'").format(parts.Identifier(sql.info.dbname)))
    queue.push({"n": 1}, kind="waits")
    port = free_port()
    with working(tmp_path, dsn, WAITS, "-c", "2", "--health", str(port), "--silence", "3") as worker:
        eventually(lambda: worker.noted == ["begun 1"])
        with locked(dsn, "lease"):
            eventually(lambda: {duty for duty, _ in given_up(worker)} >= {"claim", "extension of leases"}, within=60)
            status, _ = eventually(
                lambda: found if "extension of leases" in (found := probe(port))[1]["given_up"] else None
            )  # type: ignore[misc]
            assert status == 503
        eventually(lambda: probe(port)[0] == 200)
        worker.allow()
        assert worker.stop() == 0


def test_the_list_of_upkeep_that_postgresql_gives_up_is_logged(
    dsn: str, app: Penstock, sql: Connection, tmp_path: Path
) -> None:
    app.create_queue("work")
    sql.execute(parts.SQL("alter database {} set statement_timeout = '1s'").format(parts.Identifier(sql.info.dbname)))
    sql.execute("""
        create or replace function penstock.upkeep_parts(p_due boolean default false) returns setof text
        language plpgsql as $$
        begin
            if current_query() like 'select penstock.upkeep_parts%' then  -- and no look for work, which calls it too
                perform pg_sleep(10);
            end if;
            return next 'squeezed';
        end
        $$
    """)
    with working(tmp_path, dsn, WAITS) as worker:
        eventually(lambda: "upkeep" in {duty for duty, _ in given_up(worker)}, within=60)
        assert worker.stop() == 0


def test_the_same_duty_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    found = GivenUp()
    late = Unavailable("canceling statement due to statement timeout", reason="retry")
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        for duty in ("beat", "beat", "claim", "beat"):
            found.note(duty, late)
    assert [record.duty for record in caplog.records] == ["beat", "claim"]  # type: ignore[attr-defined]
    assert found.longer_than(0, ["beat", "claim", "upkeep"]) == ["beat", "claim"]
    found.clear("beat")
    found.note("claim", Unavailable("it is gone"))
    assert found.longer_than(0, ["beat", "claim"]) == [], "one works again, the other waits for PostgreSQL"
