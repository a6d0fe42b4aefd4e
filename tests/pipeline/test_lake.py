"""The lake as a whole: a run that is repeated, interrupted, late or during work ends in the same lake."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock import Conflict, NotFound, Penstock, Queue, ValidationError
from penstock.errors import SchemaVersionError
from penstock.pipeline.lake import Lake
from penstock.pipeline.lake.schemas import TABLES
from penstock.pipeline.run import run
from penstock.pipeline.stages import bronze as bronze_stage
from penstock.pipeline.stages.bronze import bronze
from penstock.pipeline.stages.gold import gold
from penstock.pipeline.stages.rebase import rebase
from penstock.pipeline.stages.reconcile import reconcile
from penstock.pipeline.stages.release import release
from penstock.pipeline.stages.silver import silver
from penstock.pipeline.work import Work, working
from pipeline.conftest import START, Story


def work_off(queue: Queue, count: int = 100) -> None:
    claim = queue.claim(count)
    if claim:
        queue.settle(claim)


def files(lake: Path) -> dict[str, tuple[int, int]]:
    """Returns all files but the lock, with their size and time."""
    found = [path for path in lake.rglob("*") if path.is_file() and path.name != "_lock"]
    return {str(path.relative_to(lake)): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def content(spark: SparkSession, lake: Path) -> dict[str, Counter[Any]]:
    found = Lake(lake)
    return {name: Counter(tuple(row) for row in found.read(spark, name).collect()) for name in TABLES}


def ids(spark: SparkSession, lake: Path, table: str = "silver/attempts") -> Counter[int]:
    return Counter(row.id for row in Lake(lake).read(spark, table).select("id").collect())


def ids_of_history(sql: psycopg.Connection) -> Counter[int]:
    return Counter(id_ for (id_,) in sql.execute("select id from penstock.history"))


@contextmanager
def at(spark: SparkSession, lake: Path, dsn: str, **more: Any) -> Iterator[Work]:
    with working(spark, lake, dsn=dsn, **more) as work:
        yield work


@pytest.mark.slow
def test_a_run_cut_short_anywhere_ends_in_the_same_lake(
    spark: SparkSession, story: Story, direct_dsn: str, lake: Path, tmp_path: Path
) -> None:
    """Runs are stopped at each progress message in turn, until one ends; another lake has an undisturbed run. Then a
    run without new rows touches no file."""
    story.live(30)
    told = ("transactions", "promises", "attempts", "minutes", "the queue's counters")
    for nth in range(len(told)):

        def stop(text: str, point: str = told[nth]) -> None:
            if text.startswith(point):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), at(spark, lake, direct_dsn, tell=stop) as work:
            run(work)
        (lake / "_staging/left").mkdir(parents=True, exist_ok=True)
        litter = lake / "silver/attempts/day=2026-10-24/00000099-left.parquet"
        litter.parent.mkdir(parents=True, exist_ok=True)
        litter.write_bytes(b"half a file")
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
    with at(spark, tmp_path / "peace", direct_dsn) as work:
        assert run(work)[-1].ok
    assert content(spark, lake) == content(spark, tmp_path / "peace")
    assert not [name for name in files(lake) if "left" in name]
    before = files(lake)
    with at(spark, lake, direct_dsn) as work:
        run(work)
    assert files(lake) == before


def test_late_rows_land_in_their_day(
    spark: SparkSession, story: Story, sql: psycopg.Connection, direct_dsn: str, lake: Path
) -> None:
    """A slow transaction has written into a day that is over, and commits after the lake has that day."""
    queue = story.queues[0]
    sql.execute(
        "select penstock._make_history(%s)", (START.date(),)
    )  # otherwise the slow transaction makes it, and all others wait
    queue.push_many([{}] * 20)
    early = queue.claim(5)
    with psycopg.connect(direct_dsn) as slow:
        slow.execute("select penstock.settle(%s, %s)", (early.token, early.ids))
        work_off(queue, 5)
        story.at(START.replace(day=25, hour=3))
        with at(spark, lake, direct_dsn) as work:
            assert bronze(work)["bronze/history"] == 0, "the lake is late, never wrong"
        slow.commit()
    work_off(queue, 10)
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
    rows = Lake(lake).read(spark, "silver/attempts").collect()
    assert Counter(str(row.day) for row in rows) == {"2026-10-24": 10, "2026-10-25": 10}
    assert ids(spark, lake) == ids_of_history(sql)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_while_workers_drain(
    spark: SparkSession, queue: Queue, sql: psycopg.Connection, direct_dsn: str, lake: Path, monkeypatch: Any
) -> None:
    """Each run is a window of its own, and the many files of a day become one file with the same rows."""
    monkeypatch.setattr(bronze_stage, "MAX_FILES", 2)
    queue.push_many([{}] * 6_000)
    over = threading.Event()

    def drain() -> None:
        while not over.is_set() and (claim := queue.claim(5)):
            queue.settle(claim)

    drainers = [threading.Thread(target=drain) for _ in range(2)]
    for drainer in drainers:
        drainer.start()
    taken = []
    try:
        for _ in range(4):
            with at(spark, lake, direct_dsn) as work:
                taken.append(bronze(work)["bronze/history"])
    finally:
        over.set()
        for drainer in drainers:
            drainer.join()
    with at(spark, lake, direct_dsn) as work:
        taken.append(bronze(work)["bronze/history"])
        silver(work)
        gold(work)
        found = reconcile(work)
    assert found.ok, found.differences
    assert len([count for count in taken if count]) >= 3, taken
    assert ids(spark, lake) == ids(spark, lake, "bronze/history") == ids_of_history(sql)
    assert len([*(lake / "bronze/history").rglob("*.parquet")]) < len(taken)


def test_empty(spark: SparkSession, app: Penstock, direct_dsn: str, lake: Path) -> None:
    """There is no queue, no history and no sample; then there is a queue that has only samples."""
    with at(spark, lake, direct_dsn) as work:
        outcomes = run(work)
    assert [one.ok for one in outcomes] == [True] * 4
    assert all(not rows for rows in content(spark, lake).values())
    app.create_queue("idle", sla="1m")
    app.upkeep()
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
        assert release(work) == []
    (minute,) = Lake(lake).read(spark, "gold/minutes").collect()
    assert (minute.queue, minute.samples, minute.finishes, minute.sla_s, minute.normal) == ("idle", 1, 0, 60.0, 1.0)


# --- lakes with errors ------------------------------------------------------------------------------------------------


def test_a_lake_that_cannot_be_trusted(
    spark: SparkSession, queue: Queue, sql: psycopg.Connection, direct_dsn: str, lake: Path, make_database: Any
) -> None:
    queue.push_many([{}] * 30)
    work_off(queue)
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
        with pytest.raises(Conflict, match="is writing"), at(spark, lake, direct_dsn):
            pass
    (file,) = (lake / "bronze/history").rglob("*.parquet")
    whole = file.read_bytes()

    def said() -> str:
        with pytest.raises(Conflict) as raised:
            Lake(lake).read(spark, "bronze/history")
        assert str(file) in raised.value.message
        return raised.value.message

    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert "its content has changed" in said()
    file.write_bytes(whole[:-10])
    assert "bytes, not" in said()
    file.unlink()
    assert "missing" in said()
    queue.push_many([{}] * 3)
    work_off(queue)
    with pytest.raises(Conflict, match=file.name), at(spark, lake, direct_dsn) as work:
        run(work)
    file.write_bytes(whole)
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
    assert ids(spark, lake) == ids_of_history(sql)

    with pytest.raises(Conflict, match="another database"), at(spark, lake, make_database()):
        pass
    with pytest.raises(NotFound, match="there is none"):
        _ = Lake(lake / "nowhere").state
    with pytest.raises(NotFound, match="silver/atempts") as raised:
        Lake(lake).read(spark, "silver/atempts")
    assert raised.value.hint == "Did you mean silver/attempts?"
    with pytest.raises(ValidationError, match="lake"):
        Lake(lake / "all*")
    log = lake / "lake.json"
    known = orjson.loads(log.read_bytes())
    for change, kind, pattern in (
        ({"format": 99}, SchemaVersionError, "format 99"),
        ({"versions": {"gold/minutes": 99}}, SchemaVersionError, "gold/minutes .* version 99"),
        ({"versions": {"gold/minutes": 0}}, SchemaVersionError, "gold/minutes .* version 0"),
        ({"tables": {"gold/minutes": 7}}, Conflict, "damaged"),
    ):
        log.write_bytes(orjson.dumps(known | change))
        with pytest.raises(kind, match=pattern):
            Lake(lake).read(spark, "gold/minutes")
    log.write_bytes(b"{")
    with pytest.raises(Conflict, match="damaged"):
        Lake(lake).read(spark, "gold/minutes")


@pytest.mark.slow
def test_some_queues_since_then(
    spark: SparkSession, story: Story, sql: psycopg.Connection, direct_dsn: str, lake: Path
) -> None:
    story.live(40)
    since = story.clock.now()
    story.live(40)
    with pytest.raises(NotFound, match="mial"), at(spark, lake, direct_dsn, queues=["mial"]):
        pass
    assert not Lake(lake).exists
    with at(spark, lake, direct_dsn, queues=["mail", "plain"], since=since) as work:
        run(work)
        with pytest.raises(Conflict, match="holds parts of days"):
            release(work)
    true = sql.execute(
        "select id from penstock.history where queue_id in (1, 3) and finished_at >= %s", (since,)
    ).fetchall()
    assert ids(spark, lake) == Counter(id_ for (id_,) in true)
    assert len(true) > 20
    with (
        pytest.raises(Conflict, match=r"queues: .* was begun with mail, plain"),
        at(spark, lake, direct_dsn, queues=["image"]),
    ):
        pass


@pytest.mark.unbalanced
def test_impossible_rows_are_set_aside(
    spark: SparkSession, queue: Queue, sql: psycopg.Connection, direct_dsn: str, lake: Path
) -> None:
    queue.push_many([{}] * 20)
    work_off(queue)
    odd = {
        "finished before claimed": "claimed_at = finished_at + interval '1 s'",
        "claimed before created": "created = claimed_at + interval '1 s'",
        "attempt below 1": "attempt = 0",
        "iteration below 0": "iteration = -1",
        "a queue of which nothing is known": "queue_id = 99",
    }
    for n, change in enumerate(odd.values(), 1):
        sql.execute(f"update penstock.history set {change} where id = {n}".encode())
    sql.execute("insert into penstock.history select * from penstock.history where id in (10, 11)")
    with at(spark, lake, direct_dsn) as work:
        outcomes = run(work)
    found = Lake(lake).read(spark, "silver/rejected").collect()
    assert Counter(row.reason for row in found) == Counter({**dict.fromkeys(odd, 1), "duplicate": 2})
    assert outcomes[1].answer["silver/rejected"] == 7
    assert ids(spark, lake) == Counter(range(6, 21))


@pytest.mark.slow
def test_rebase(spark: SparkSession, make_database: Callable[..., str], lake: Path) -> None:
    """A copy of the database that is newer than the lake's last run goes on with the lake; an older one does not."""
    first = make_database()
    with Penstock(first) as app:
        queue = app.create_queue("work")
        queue.push_many([{}] * 30)
        work_off(queue, 10)
    older = make_database(template=name_of(first))
    with Penstock(first) as app:
        work_off(app.queue("work"), 10)
    with at(spark, lake, first) as work:
        assert run(work)[-1].ok
    with Penstock(first) as app:
        work_off(app.queue("work"), 5)
        app.upkeep()
    copy = make_database(template=name_of(first))
    with pytest.raises(Conflict, match="another database"), at(spark, lake, copy):
        pass
    with (
        pytest.raises(Conflict, match="10 rows that this history lacks"),
        at(spark, lake, older, anywhere=True) as work,
    ):
        rebase(work)
    with at(spark, lake, copy, anywhere=True) as work:
        answer = rebase(work)
    assert (answer["bronze/history"], answer["bronze/sample"]) == (5, 1)
    assert (answer["bronze/history removed"], answer["bronze/sample removed"]) == (0, 0)
    with Penstock(copy) as app:
        work_off(app.queue("work"), 5)
    with at(spark, lake, copy) as work:
        assert run(work)[-1].ok
    with psycopg.connect(copy) as sql:
        assert ids(spark, lake) == ids_of_history(sql)
    with pytest.raises(Conflict, match="another database"), at(spark, lake, first):
        pass


def name_of(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


# --- reconcile and release --------------------------------------------------------------------------------------------


@pytest.mark.unbalanced
def test_reconcile_says_what_differs_and_where(
    spark: SparkSession, queue: Queue, app: Penstock, sql: psycopg.Connection, direct_dsn: str, lake: Path
) -> None:
    queue.push_many([{}] * 30)
    work_off(queue, 20)
    app.upkeep()
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok

        def differs() -> set[tuple[str, str, int, int]]:
            return {(one.where, one.queue, one.expected, one.found) for one in reconcile(work).differences}

        sql.execute("delete from penstock.history where id = 1")
        assert ("lake", "work", 19, 20) in differs()
        assert ("counters", "work", 19, 20) in differs(), "history differs from its counter"
        sql.execute("update penstock.counter set value = value + 5 where metric = 'pushed_total'")
        assert ("counters", "work", 35, 30) in differs()
        sql.execute(
            "insert into penstock.sample (queue_id, at, planned, pending, active, done, dead, cancelled, oldest_age,"
            " sla, workers, totals) select queue_id, at + interval '10 s', planned, pending + 1, active, done,"
            " dead, cancelled, oldest_age, sla, workers, totals || '{\"done\": 1000}' from penstock.sample"
        )
        bronze(work)
        found = differs()
        assert ("samples", "work", 30, 31) in found, "this sample does not add up"
        assert ("samples", "work", 20, 1000) in found, "this sample is ahead"


@pytest.mark.slow
def test_release(
    spark: SparkSession, story: Story, app: Penstock, sql: psycopg.Connection, direct_dsn: str, lake: Path
) -> None:
    """Days that are over and complete in the lake are dropped. Nothing else changes, not even what reconcile finds."""
    story.live(60)
    story.at(START.replace(day=26))
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
        before = content(spark, lake)
        work_off(story.queues[0], 5)
        sql.execute("update penstock.history set worker = 'another' where id = 1")
        with pytest.raises(Conflict, match="the lake's copy of 2026-10-24 differs: sum"):
            release(work)
        sql.execute("update penstock.history set worker = %s where id = 1", (worker_of(before, 1),))
        days = sorted({one.day.isoformat() for one in release(work)})
        assert days == ["2026-10-24"] or days == ["2026-10-24", "2026-10-25"]
        assert reconcile(work).ok
    left = sql.execute("select distinct (finished_at at time zone 'UTC')::date::text from penstock.history").fetchall()
    assert left == [("2026-10-26",)]
    assert app.verify().ok
    assert content(spark, lake) == before
    with at(spark, lake, direct_dsn) as work:
        assert run(work)[-1].ok
    names = TABLES["bronze/history"].schema.names
    released = Counter(row[names.index("id")] for row in before["bronze/history"])
    assert ids(spark, lake) == released + ids_of_history(sql)


def worker_of(content: dict[str, Counter[Any]], id_: int) -> str:
    names = TABLES["bronze/history"].schema.names
    return next(str(row[names.index("worker")]) for row in content["bronze/history"] if row[0] == id_)
