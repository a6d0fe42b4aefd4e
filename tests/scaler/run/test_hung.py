"""A connection of the scaler still acknowledges TCP but does not answer: only a deadline notices."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import Connection

from penstock import Penstock, Queue, Unavailable
from penstock.backlog import AdoptedTables
from penstock.client.database import Database
from penstock.scaler.run.background import BackgroundCall
from proxy import Lane
from scalers import scaling
from workers import eventually


def test_a_scaler_whose_connections_hang_goes_on_by_new_ones(
    tmp_path: Path, dsn: str, app: Penstock, sql: Connection, lane: Lane
) -> None:
    app.create_queue("work", sla="30s")
    decided = "select decided_at from penstock.scaling where queue = 'work'"
    with scaling(tmp_path, lane.dsn(dsn), "--advise") as scaler:
        eventually(lambda: sql.execute(decided).fetchone())
        assert lane.hang_present() > 0
        eventually(lambda: any(one.startswith("held: PostgreSQL has not answered") for one in scaler.events))
        eventually(lambda: "PostgreSQL is back" in scaler.events, within=90)
        before = sql.execute(decided).fetchone()
        eventually(lambda: sql.execute(decided).fetchone() != before)
        assert scaler.process.poll() is None, scaler.stderr
        assert scaler.stderr.count("a connection hung, connecting again") == 1


def test_a_call_that_ends_too_late_tells_its_error_to_the_next_call(dsn: str, lane: Lane) -> None:
    """Otherwise the next call may take another connection that hangs, and wait as long."""
    background, database = BackgroundCall(), Database(lane.dsn(dsn), deadline=1.0)
    try:
        assert background.call(lambda: database.value("select 1"), 30.0) == 1
        lane.hang()
        with pytest.raises(Unavailable) as silent:
            background.call(lambda: database.value("select 1"), 0.1)
        assert silent.value.reason == "silent"
        eventually(lambda: not background.busy)
        with pytest.raises(Unavailable) as late:
            background.call(lambda: database.value("select 1"), 0.1)
        assert late.value.reason in ("deadline", "unreachable")
        lane.heal()
        assert background.call(lambda: database.value("select 1"), 30.0) == 1
    finally:
        database.close()


def test_a_count_of_adopted_tables_that_hangs_ends(
    dsn: str, queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.backlog.scaled.DEADLINE", 1.0)
    tables = AdoptedTables(lane.dsn(dsn))
    assert tables.count(["none"]) == []
    lane.hang_statements()
    with pytest.raises(Unavailable):
        tables.count(["none"])
