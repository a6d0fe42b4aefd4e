"""History as DataFrames: each window has every row once, whatever is written meanwhile, and reads the same again."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from penstock import AuthError, ConfigError, Conflict, NewTask, NotFound, Outcome, Penstock, Queue
from penstock.client.statements import history as statements
from penstock.embedded import Server
from penstock.model import Horizon, Span, Window
from penstock.spark import history, options, read_history
from penstock.spark.history import HistoryReader, HistoryStream


def stream(dsn: str, **more: str) -> HistoryStream:
    return HistoryStream(options.parse_history_options({"url": dsn, **more}))


def rows(reader: HistoryReader | HistoryStream, parts: list[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def work_off(queue: Queue, count: int = 100) -> list[int]:
    claim = queue.claim(count)
    queue.settle(claim)
    return claim.ids


@pytest.fixture
def finished(queue: Queue) -> list[int]:
    """Makes three hundred attempts: done, failed and released."""
    queue.push_many([NewTask({"n": n}, f"s{n}" if n % 2 else None, kind=f"k{n % 3}") for n in range(300)])
    ids: list[int] = []
    for _ in range(3):
        claim = queue.claim(100, worker="w")
        told = {
            one: Outcome.failed("föö \x01 bar", error_class="E") if one % 10 == 0 else Outcome.done()
            for one in claim.ids
        }
        queue.settle(claim, told)
        ids += claim.ids
    return ids


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_is_what_postgresql_has(
    spark: SparkSession, app: Penstock, finished: list[int], dsn: str, sql: psycopg.Connection
) -> None:
    """All columns are equal, to the microsecond."""
    frame = read_history(spark, dsn=dsn)
    found = sorted(frame.collect())
    names = [name for name in frame.columns if name != "queue"]
    truth = sql.execute(f"select {', '.join(names)} from penstock.history order by id").fetchall()
    assert len(found) == 300
    assert {row.queue for row in found} == {"work"}
    moments = {"created", "due", "claimed_at", "finished_at"}
    for row, true in zip(found, truth, strict=True):
        for name, value in zip(names, true, strict=True):
            mine = row[name].replace(tzinfo=UTC) if name in moments else row[name]
            assert mine == value, (name, mine, value)


def test_filters(spark: SparkSession, app: Penstock, finished: list[int], dsn: str, sql: psycopg.Connection) -> None:
    app.create_queue("other").push_many([{}] * 7)
    work_off(app.queue("other"))
    moments = [moment for (moment,) in sql.execute("select distinct finished_at from penstock.history order by 1")]
    first, second, _, last = moments
    assert read_history(spark, dsn=dsn, since=second, until=last, queue="work", partitions=2).count() == 200
    assert len(all_of(dsn, queue="other")) == 7
    assert len(all_of(dsn, since=last.isoformat(), queue="work")) == 0
    assert len(all_of(dsn, until=second.isoformat())) == 100
    assert len(all_of(dsn, until=(first - timedelta(days=3)).isoformat())) == 0
    with pytest.raises(NotFound, match="wrok"):
        all_of(dsn, queue="wrok")


def test_the_name_of_a_queue_outlives_it(app: Penstock, queue: Queue, dsn: str) -> None:
    queue.push_many([{}] * 3)
    work_off(queue)
    before = all_of(dsn)
    queue.drop()
    assert all_of(dsn) == before
    app.create_queue("work").push({})
    work_off(app.queue("work"))
    assert Counter(row["queue"] for row in all_of(dsn, queue="work")) == {"work": 4}


def all_of(dsn: str, **more: str) -> list[dict[str, Any]]:
    reader = HistoryReader(options.parse_history_options({"url": dsn, **more}))
    return sorted(rows(reader, reader.partitions()), key=lambda row: row["id"])


def test_many_partitions_of_many_days(app: Penstock, queue: Queue, dsn: str, sql: psycopg.Connection) -> None:
    fill(sql, 60_000, days=3)
    truth = {id_ for (id_,) in sql.execute("select id from penstock.history")}
    for parts in (1, 4, 7):
        reader = HistoryReader(options.parse_history_options({"url": dsn, "numPartitions": str(parts)}))
        planned = reader.partitions()
        found = [id_ for part in planned for batch in reader.read(part) for id_ in batch["id"].to_pylist()]
        assert len(planned) == parts
        assert len(found) == len(truth) == 60_000
        assert {*found} == truth


FILL = """
    insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                  outcome, kind, worker)
    select n, f, f, f, f, 1, 0, 1, 'released', 'k', 'w'
    from generate_series(1, %(rows)s) as n,
         lateral (select penstock.clock() - interval '1 day' * (n %% %(days)s) as f) as s
"""


def fill(sql: psycopg.Connection, count: int, days: int = 1) -> None:
    """Inserts rows that no worker wrote. The counters do not include them, so the queue is not verified."""
    sql.execute(DAYS, (days,))
    sql.execute(FILL, {"rows": count, "days": days})
    sql.execute(NOTED, (count,))


DAYS = """
    select penstock._make_history((penstock.clock() at time zone 'UTC')::date - n) from generate_series(0, %s) as n
"""
NOTED = """
    insert into penstock.counter as c (queue_id, xid, metric, value)
    select queue_id, sums, 'released_total', %s from penstock.watermark where queue_id = 1
    on conflict (queue_id, xid, metric) do update set value = c.value + excluded.value
"""


@pytest.mark.parametrize(
    ("pages", "parts"), [((0,), 3), ((10,), 3), ((1000,), 3), ((700, 1, 300, 5000), 4), ((65,), 8)]
)
def test_pages_are_shared_out(pages: tuple[int, ...], parts: int) -> None:
    day = datetime.now(UTC).date()
    spans = [Span(day - timedelta(days=n), n, 7 * n, many) for n, many in enumerate(pages)]
    cut = history.split_pages(spans, parts)
    assert len(cut) <= parts
    found = Counter(
        (one.relation, page)
        for some in cut
        for one in some
        for page in range(one.first_page, one.first_page + one.pages)
    )
    assert found == Counter(
        (one.relation, page) for one in spans for page in range(one.first_page, one.first_page + one.pages)
    )
    assert max((sum(one.pages for one in some) for some in cut), default=0) <= max(
        -(-sum(pages) // parts), history.MIN_PAGES
    )


# --- windows ----------------------------------------------------------------------------------------------------------


class Walk:
    """A reader that reads again and again, and remembers what it got."""

    def __init__(self, dsn: str, **more: str) -> None:
        self.reader = stream(dsn, **more)
        self.at = self.reader.initialOffset()
        self.seen: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = []

    def step(self) -> list[dict[str, Any]]:
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        found = self.window(self.at, end)
        if end != self.at:
            self.seen.append((self.at, end, found))
        self.at = end
        return found

    def window(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        return sorted(rows(self.reader, self.reader.partitions(start, end)), key=lambda row: row["id"])


def test_nothing_is_lost_or_doubled_among_six_writers(
    app: Penstock, queue: Queue, direct_dsn: str, sql: psycopg.Connection
) -> None:
    """Settles are committed after a random time or rolled back, and every window is read again at the end."""
    queue.set(lease="1h")
    queue.push_many([{}] * 3_000)
    walk = Walk(direct_dsn)
    seed = random.randrange(10**6)
    print("seed", seed)
    stop = time.monotonic() + 6
    errors: list[BaseException] = []

    def write(n: int) -> None:
        dice = random.Random(seed + n)
        try:
            with psycopg.connect(direct_dsn) as own:
                while time.monotonic() < stop and (claim := queue.claim(dice.randint(1, 8))):
                    while True:
                        own.execute("select penstock.settle(%s, %s)", (claim.token, claim.ids))
                        time.sleep(dice.random() ** 3 * 0.2)
                        if dice.random() > 0.3:
                            own.commit()
                            break
                        own.rollback()
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        walk.step()
    for writer in writers:
        writer.join()
    walk.step()
    assert not errors
    truth = sql.execute("select count(*) from penstock.history").fetchone()
    found = Counter(row["id"] for _, _, some in walk.seen for row in some)
    assert truth is not None
    assert len(walk.seen) > 5
    assert truth[0] > 300
    assert (len(found), found.total()) == (truth[0], truth[0])
    for start, end, some in walk.seen:
        assert walk.window(start, end) == some


def test_an_open_transaction_makes_the_reader_late_not_wrong(queue: Queue, direct_dsn: str) -> None:
    queue.push_many([{}] * 30)
    walk = Walk(direct_dsn)
    assert walk.step() == []
    claim = queue.claim(10)
    with psycopg.connect(direct_dsn) as held:
        held.execute("select penstock.settle(%s, %s)", (claim.token, claim.ids))
        work_off(queue, 10)
        assert walk.step() == [], "the task is finished, but an older transaction is still open"
        held.commit()
    work_off(queue, 10)
    assert len(walk.step()) == 30
    with psycopg.connect(direct_dsn) as held:
        held.execute("select pg_current_xact_id()")
        assert walk.step() == []


def test_an_idle_queue_moves_no_offset(queue: Queue, dsn: str, sql: psycopg.Connection) -> None:
    queue.push({})
    work_off(queue)
    walk = Walk(dsn)
    assert len(walk.step()) == 1
    at = walk.at
    for _ in range(3):
        sql.execute("select pg_current_xact_id()")  # of another program
        assert walk.step() == []
    assert walk.at == at
    walk.reader.prepareForTriggerAvailableNow()
    queue.push({})
    work_off(queue)
    assert walk.step() == [], "it came after the stream began"
    walk.reader = stream(dsn)
    assert len(walk.step()) == 1


def test_a_window_is_found_by_its_pages(queue: Queue, dsn: str, sql: psycopg.Connection) -> None:
    """A window has few rows of a large day: few pages of that day are read."""
    fill(sql, 50_000)
    walk = Walk(dsn)
    assert len(walk.step()) == 50_000
    sql.execute("vacuum penstock.history")
    queue.push_many([{}] * 5)
    work_off(queue)
    end = walk.reader.latestOffset(walk.at, ReadAllAvailable())
    (part,) = walk.reader.partitions(walk.at, end)
    assert isinstance(part, history.HistoryPart)
    assert sum(span.pages for span in part.spans) <= 2
    assert len(walk.step()) == 5


# --- history that is gone ---------------------------------------------------------------------------------------------


def drop_days(sql: psycopg.Connection) -> None:
    """Moves the clock two days ahead, and drops today's history."""
    sql.execute("update penstock_test.clock set shift = shift + '2 days'")
    sql.execute("select penstock.set_retention('history', '1 day')")
    sql.execute("call penstock.upkeep()")


def test_a_day_that_was_dropped_is_told(queue: Queue, app: Penstock, dsn: str, sql: psycopg.Connection) -> None:
    app.create_queue("other").push({})
    queue.push_many([{}] * 6)
    work_off(queue, 2)
    walk, late, other = Walk(dsn), Walk(dsn), Walk(dsn, queue="other")
    assert len(walk.step()) == 2
    work_off(queue, 2)
    assert len(walk.step()) == 2
    assert other.step() == []
    work_off(app.queue("other"))
    drop_days(sql)
    work_off(queue, 2)
    for start, end, _ in walk.seen:
        with pytest.raises(Conflict, match=r"history of \d+-\d+-\d+ was dropped before it was read") as told:
            walk.window(start, end)
        assert "rebase_history" in "".join(told.value.__notes__)
        with pytest.raises(Conflict, match="was dropped before it was read"):
            # Spark repeats the first batch like this: its start is made anew, and its end is noted.
            walk.window(walk.reader.initialOffset(), end)
    with pytest.raises(Conflict, match="up to 5 rows"):
        late.step()
    with pytest.raises(Conflict, match="up to 1 rows"):
        other.step()
    # The unread rows of that day belong to another queue, so later rows are read.
    with pytest.raises(Conflict, match="up to 1 rows"):
        walk.step()
    ours = Walk(dsn, queue="work")
    assert len(ours.step()) == 2, "a reader that begins now does not expect the dropped day"
    assert len(all_of(dsn)) == 2


def test_a_reader_that_had_read_all_goes_on_after_a_drop(queue: Queue, dsn: str, sql: psycopg.Connection) -> None:
    queue.push_many([{}] * 4)
    work_off(queue, 2)
    walk = Walk(dsn)
    assert len(walk.step()) == 2
    drop_days(sql)
    assert walk.step() == []
    work_off(queue, 2)
    assert len(walk.step()) == 2


def test_a_day_dropped_between_plan_and_read(queue: Queue, dsn: str, sql: psycopg.Connection) -> None:
    queue.push_many([{}] * 4)
    work_off(queue)
    reader = HistoryReader(options.parse_history_options({"url": dsn}))
    parts = reader.partitions()
    drop_days(sql)
    with pytest.raises(Conflict, match="was dropped while it was being read"):
        rows(reader, parts)


def test_offsets_of_another_database(queue: Queue, dsn: str, make_database: Callable[..., str]) -> None:
    reader = stream(dsn)
    start = reader.initialOffset()
    now = reader.reportLatestOffset()
    ahead = start | {"xid": now["xid"] + 1_000}
    foreign = start | {"system": "1"}
    for wrong, said in ((foreign, "of another cluster"), (ahead, "ahead of this cluster")):
        for ask in (
            lambda wrong=wrong: reader.latestOffset(wrong, ReadAllAvailable()),
            lambda wrong=wrong: reader.partitions(wrong, wrong | {"xid": wrong["xid"] + 1}),
            lambda wrong=wrong: reader.partitions(start, wrong | {"xid": wrong["xid"] + 1}),
        ):
            with pytest.raises(Conflict, match=said) as told:
                ask()
            assert "rebase_history" in "".join(told.value.__notes__)
    with pytest.raises(Conflict, match="of another database"):
        stream(make_database()).latestOffset(start, ReadAllAvailable())
    with pytest.raises(ConfigError, match="the checkpoint is of None, not of 'work'"):
        stream(dsn, queue="work").latestOffset(start, ReadAllAvailable())
    with pytest.raises(ConfigError, match="no offset of history"):
        reader.latestOffset({"batch": 7}, ReadAllAvailable())


RESTORED = (
    "queue", "history_origin", "history_gone", "history",
)  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The DSN of another cluster, whose transaction ids are still small."""
    server = Server.start(tmp_path / "pg", environ=os.environ, settings={"shared_buffers": "64MB", "fsync": "off"})
    yield server.dsn
    server.stop("immediate")


def restore(source: str, target: str) -> None:
    """Copies the rows as they are, as pg_dump and psql do."""
    with Penstock(target) as app:
        app.init()
        app.upkeep()
    with psycopg.connect(source) as old, psycopg.connect(target) as new:
        for table in RESTORED:
            copy = f"copy (select * from penstock.{table}) to stdout"
            columns = [d.name for d in old.execute(f"select * from penstock.{table} limit 0").description or ()]
            if table == "queue":
                new.execute("alter table penstock.queue alter column id set generated by default")
            into = f"copy penstock.{table} ({', '.join(columns)}) from stdin"
            with old.cursor().copy(copy.encode()) as out, new.cursor().copy(into.encode()) as back:
                for data in out:
                    back.write(data)


def test_restored_into_another_cluster(
    spark: SparkSession, queue: Queue, app: Penstock, dsn: str, elsewhere: str, tmp_path: Path, sql: psycopg.Connection
) -> None:
    """No reader goes on there, with or without a checkpoint, until an admin says that these rows are its own."""
    sql.execute("do $$ begin for n in 1 .. 3000 loop perform pg_current_xact_id(); commit; end loop; end $$")
    queue.push_many([{}] * 20)
    work_off(queue, 12)
    path = tmp_path / "stream"
    assert drained(spark, dsn, path) == 12
    restore(dsn, elsewhere)
    with pytest.raises(PySparkException, match="written in another cluster and restored") as told:
        drained(spark, elsewhere, path)
    assert "rebase_history" in str(told.value)
    with pytest.raises(Conflict, match="written in another cluster and restored"):
        all_of(elsewhere)

    with psycopg.connect(elsewhere, autocommit=True) as there:
        assert there.execute("select penstock.rebase_history()").fetchone() == (12,)
        assert there.execute("select penstock.rebase_history()").fetchone() == (0,)
    assert len(all_of(elsewhere)) == 12, "although their transaction ids are in the future of this cluster"
    with pytest.raises(PySparkException, match="of another cluster") as told:
        drained(spark, elsewhere, path)
    assert "new checkpoint; after a restore" in str(told.value)
    walk = Walk(elsewhere)
    assert len(walk.step()) == 12


def drained(spark: SparkSession, dsn: str, path: Path, **more: str) -> int:
    """Writes the present history to Parquet, and returns how many rows the files have."""
    reader = spark.readStream.format("penstock").option("read", "history").option("dsn", dsn)
    query: StreamingQuery = (
        reader.options(**more)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(path / "rows"))
    )
    query.awaitTermination()
    return spark.read.parquet(str(path / "rows")).count()


# --- through Spark ----------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession, app: Penstock, queue: Queue, dsn: str, tmp_path: Path
) -> None:
    queue.push_many([{}] * 60)
    work_off(queue, 10)
    assert drained(spark, dsn, tmp_path) == 10
    work_off(queue, 20)
    assert drained(spark, dsn, tmp_path) == 30
    assert drained(spark, dsn, tmp_path) == 30
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.select("id").distinct().count() == 30


def test_no_password_is_shown(spark: SparkSession, queue: Queue, dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    told_of = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(dsn).items()}
    canary = Path(told_of.pop("passfile")).read_text("utf-8").strip().rpartition(":")[2]
    secret = psycopg.conninfo.make_conninfo("", **told_of, password=canary)
    frame: DataFrame = read_history(spark, dsn=secret)
    frame.explain(extended=True)
    frame.explain(mode="formatted")
    wrong = psycopg.conninfo.make_conninfo("host=127.0.0.1 port=1 dbname=no", password=canary)
    with pytest.raises(PySparkException) as told:
        read_history(spark, dsn=wrong).collect()
    assert "127.0.0.1" in str(told.value)
    shown = capfd.readouterr()
    reader = HistoryReader(options.parse_history_options({"url": secret}))
    for text in (shown.out, shown.err, str(told.value), repr(reader.partitions()), repr(reader), repr(vars(reader))):
        assert canary not in text


def test_a_reader_needs_no_other_role(queue: Queue, dsn: str, sql: psycopg.Connection, server_dsn: str) -> None:
    queue.push_many([{}] * 4)
    work_off(queue)
    for role in ("reader", "worker"):
        sql.execute(f"drop role if exists history_{role}")
        sql.execute(f"create role history_{role} login password 'x'")
        sql.execute(f"grant penstock_{role} to history_{role}")
    sql.execute("grant usage on schema penstock_test to history_reader, history_worker")
    sql.execute("grant select on penstock_test.clock to history_reader, history_worker")
    try:
        own = {
            role: psycopg.conninfo.make_conninfo(dsn, user=f"history_{role}", password="x")
            for role in ("reader", "worker")
        }
        assert len(all_of(own["reader"])) == 4
        with pytest.raises(AuthError, match="permission denied"):
            all_of(own["worker"])
    finally:
        sql.execute("drop owned by history_reader, history_worker")
        sql.execute("drop role history_reader, history_worker")


def test_no_transaction_is_long(
    queue: Queue, dsn: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Spark takes the rows, however slowly, no transaction is open. PostgreSQL ends one that takes too long, and
    it is repeated in smaller steps."""
    fill(sql, 20_000)
    reader = HistoryReader(options.parse_history_options({"url": dsn, "numPartitions": "1"}))
    (part,) = reader.partitions()
    batches = reader.read(part)
    count = len(next(batches))
    held = "select count(*) from pg_stat_activity where application_name = 'penstock' and xact_start is not null"
    assert sql.execute(held + " and datname = current_database()").fetchone() == (0,)
    count += sum(map(len, batches))
    assert count == 20_000

    # A day of which 40 pages take longer than the statement timeout.
    monkeypatch.setattr(statements, "SHORTLY", "set local statement_timeout = '300ms'")
    slow = (
        "create function public.slowly(bigint) returns bigint language sql as"
        " 'select pg_sleep(case when $1 % 50 = 0 then 0.002 else 0 end); select $1'"
    )
    sql.execute(slow.encode())
    monkeypatch.setattr(
        statements, "HISTORY", statements.HISTORY.replace("select id,", "select public.slowly(id) as id,")
    )
    tried: list[int] = []
    real = statements.history_rows

    def noted(window: Window, queues: Any, day: Any, pages: range) -> str:
        tried.append(len(pages))
        return real(window, queues, day, pages)

    monkeypatch.setattr(statements, "history_rows", noted)
    assert sum(len(batch) for batch in reader.read(part)) == 20_000
    assert tried[0] == history.FIRST_PAGES
    assert min(tried) < 40


@pytest.mark.parametrize(
    ("pace", "claims", "rests"), [("gentle", True, True), ("full", True, False), ("gentle", False, False)]
)
def test_a_gentle_reader_rests_while_workers_claim(
    queue: Queue,
    dsn: str,
    sql: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    pace: str,
    claims: bool,
    rests: bool,
) -> None:
    fill(sql, 20_000)
    rested: list[float] = []
    me, sleep = threading.current_thread(), time.sleep
    monkeypatch.setattr(  # in all modules: other threads of Spark's client sleep as before
        time, "sleep", lambda s: rested.append(s) if threading.current_thread() is me else sleep(s)
    )
    reader = HistoryReader(options.parse_history_options({"url": dsn, "numPartitions": "1", "pace": pace}))
    (part,) = reader.partitions()
    if claims:
        queue.push({})
        assert queue.claim(1)
    assert sum(len(batch) for batch in reader.read(part)) == 20_000
    assert bool(rested) is rests


def test_horizons_compare() -> None:
    """If both ends of a window know of a drop, the earlier drop counts."""
    start, end = Horizon("a", 1, "1-a", 5, 9), Horizon("b", 1, "1-b", 7, 3)
    assert statements.window_parameters(Window(start, end)) == (5, 7, 3, None, None, None)
