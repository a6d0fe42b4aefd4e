"""After a failover or a restore transaction ids are assigned again. A lake goes on if nothing was lost, and refuses if
rows that it has read are gone; then a rebase makes it equal to the table, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from conftest import Clock
from penstock import Conflict, Penstock, Queue
from penstock.pipeline.lake import Lake
from penstock.pipeline.run import LAKE, run
from penstock.pipeline.stages.rebase import rebase
from penstock.pipeline.work import working
from pipeline.test_cli_pipeline import pipeline
from shell import is_one_block
from standby import ReplicatedPair, replicated_pair
from workers import eventually

DAY = 86400
Rows = Counter[tuple[Any, ...]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicatedPair]:
    with replicated_pair(tmp_path / "pair") as found:
        with Penstock(found.dsn) as app:
            app.init()
            app.create_queue("work")
            app.upkeep()
        yield found


def finish(dsn: str, count: int) -> None:
    """Pushes tasks and settles them in several transactions, then takes samples."""
    with Penstock(dsn) as app:
        queue = app.queue("work")
        queue.push_many([{"n": n} for n in range(count)])
        while claim := queue.claim(5):
            queue.settle(claim)
        app.upkeep()


def run_lake(spark: SparkSession, lake: Path, dsn: str, *, until: str = "reconcile") -> None:
    """Runs the stages up to one of them, and checks that none finds an error."""
    names = [stage.name for stage in LAKE]
    with working(spark, lake, dsn=dsn) as work:
        outcomes = run(work, LAKE[: names.index(until) + 1])
    assert all(one.ok for one in outcomes), outcomes


def rows_of_lake(spark: SparkSession, lake: Path, table: str, columns: tuple[str, ...]) -> Rows:
    def plain(value: object) -> object:
        return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value

    found = Lake(lake).read(spark.newSession(), table).select(*columns).collect()
    return Counter(tuple(map(plain, row)) for row in found)


HISTORY = ("id", "xid", "task_id", "created", "due", "claimed_at", "finished_at", "queue_id", "attempt", "outcome")
SAMPLE = ("queue_id", "at", "pending", "active", "xid")


def ids_of_history(sql: psycopg.Connection) -> Rows:
    return Counter(sql.execute("select id from penstock.history").fetchall())


def assert_equal_to_the_table(spark: SparkSession, lake: Path, dsn: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    with psycopg.connect(dsn) as sql:
        for table, name, columns in (("history", "bronze/history", HISTORY), ("sample", "bronze/sample", SAMPLE)):
            true = Counter(sql.execute(f"select {', '.join(columns)} from penstock.{table}".encode()).fetchall())
            assert rows_of_lake(spark, lake, name, columns) == true, name
        ids = ids_of_history(sql)
    assert rows_of_lake(spark, lake, "silver/attempts", ("id",)) == ids


@pytest.mark.slow
def test_rows_lost_in_a_failover(spark: SparkSession, pair: ReplicatedPair, lake: Path) -> None:
    finish(pair.dsn, 30)
    run_lake(spark, lake, pair.dsn, until="bronze")
    pair.wait_for_replay()
    pair.cut_off_standby()
    finish(pair.dsn, 40)
    run_lake(spark, lake, pair.dsn, until="silver")
    pair.primary.kill()
    pair.promote()
    finish(pair.dsn, 65)

    passed = Lake(lake).state.passed
    assert passed is not None
    with psycopg.connect(pair.dsn) as sql:
        given_again = sql.execute(
            "select count(*) filter (where xid < %s), count(*) from penstock.history", (passed.xid,)
        ).fetchone()
    assert given_again is not None
    assert given_again[0] > 30, "otherwise no id was assigned again, and this test proves nothing"
    assert given_again[1] == 95

    ran = pipeline("run", "--lake", str(lake), dsn=pair.dsn)
    assert ran.code == 1, ran
    assert is_one_block(ran.err)
    for said in ("failed over", "timeline 1", "timeline 2", "penstock pipeline rebase"):
        assert said in ran.err, ran.err

    with working(spark, lake, dsn=pair.dsn, anywhere=True) as work:
        answer = rebase(work)
    assert (answer["bronze/history"], answer["bronze/history removed"]) == (65, 40)
    run_lake(spark, lake, pair.dsn)
    assert_equal_to_the_table(spark, lake, pair.dsn)

    finish(pair.dsn, 10)
    run_lake(spark, lake, pair.dsn, until="silver")
    assert_equal_to_the_table(spark, lake, pair.dsn)


def test_a_failover_that_loses_nothing(spark: SparkSession, pair: ReplicatedPair, lake: Path) -> None:
    """The new primary has the lake's mark, so the lake goes on by itself."""
    pair.make_synchronous()
    finish(pair.dsn, 30)
    run_lake(spark, lake, pair.dsn, until="bronze")
    finish(pair.dsn, 20)
    pair.primary.kill()
    pair.promote()
    finish(pair.dsn, 25)
    run_lake(spark, lake, pair.dsn)
    assert_equal_to_the_table(spark, lake, pair.dsn)


@pytest.mark.slow
@pytest.mark.unbalanced
def test_days_that_changed_and_days_that_are_gone(
    spark: SparkSession, app: Penstock, queue: Queue, clock: Clock, sql: psycopg.Connection, dsn: str, lake: Path
) -> None:
    """Changes the tables as a restore does, so that the test controls time and a lake of several days is quick."""
    first = clock.now().astimezone(UTC).date()
    finish(dsn, 4)
    run_lake(spark, lake, dsn, until="bronze")
    clock.advance(2 * DAY)
    app.set_retention("history", "1d")
    eventually(lambda: app.upkeep() and not ids_of_history(sql))  # the first day is dropped, because the lake has it
    finish(dsn, 4)
    run_lake(spark, lake, dsn, until="bronze")
    back_to = [
        sql.execute(f"select to_jsonb(b) from penstock.{table} as b".encode()).fetchall()
        for table in ("history_branch", "history_reader")
    ]
    mark = sql.execute("select max(xid) + 1 from penstock.history").fetchone()
    finish(dsn, 3)
    clock.advance(DAY)
    finish(dsn, 2)
    run_lake(spark, lake, dsn, until="gold")
    assert [len(Lake(lake).days(name)) for name in ("bronze/history", "silver/attempts")] == [3, 3]

    for table, rows in zip(("history_branch", "history_reader"), back_to, strict=True):
        sql.execute(f"delete from penstock.{table}".encode())
        for (row,) in rows:
            record = f"jsonb_populate_record(null::penstock.{table}, %s)"
            statement = f"insert into penstock.{table} overriding system value select * from {record}"
            sql.execute(statement.encode(), (Jsonb(row),))
    sql.execute("update penstock.history_branch set started = started - interval '1 hour'")
    for table in ("history", "sample"):
        sql.execute(f"delete from penstock.{table} where xid >= %s".encode(), mark)
    clock.advance(-DAY + 60)
    finish(dsn, 5)
    with pytest.raises(Conflict, match="restored from an older copy"):
        run_lake(spark, lake, dsn, until="bronze")

    with working(spark, lake, dsn=dsn, anywhere=True) as work:
        answer = rebase(work)
    assert (answer["days"], answer["bronze/history"], answer["bronze/history removed"]) == (2, 5, 5)
    run_lake(spark, lake, dsn, until="gold")
    days = [first, first + timedelta(days=2)]
    for name in ("bronze/history", "bronze/sample", "silver/attempts", "silver/promises", "gold/minutes", "gold/kinds"):
        assert Lake(lake).days(name) == days, name
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    first_four = Counter((n,) for n in range(1, 5))
    assert rows_of_lake(spark, lake, "silver/attempts", ("id",)) == ids_of_history(sql) + first_four
    samples = Counter(sql.execute(f"select {', '.join(SAMPLE)} from penstock.sample".encode()).fetchall())
    assert rows_of_lake(spark, lake, "bronze/sample", SAMPLE) == samples

    with working(spark, lake, dsn=dsn, anywhere=True) as work:
        again = rebase(work)
    assert not any(again.values()), "there is nothing left to do"
