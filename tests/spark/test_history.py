"""History as DataFrames: every row of every window once, whoever writes meanwhile, and the same again."""

from __future__ import annotations

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
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Conflict, ConfigError, NewTask, Outcome, Penstock, Queue
from penstock.embedded import Server
from penstock.model import Horizon, Span, Window
from penstock.spark import history, options, read_history
from penstock.spark.history import HistoryReader, HistoryStream

LATER = pytest.mark.slow


def stream(dsn: str, **more: str) -> HistoryStream:
    return HistoryStream(options.for_history({"dsn": dsn, **more}))


def rows(reader: HistoryReader | HistoryStream, parts: list[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def work_off(queue: Queue, count: int = 100) -> list[int]:
    claim = queue.claim(count)
    queue.settle(claim)
    return claim.ids


@pytest.fixture
def finished(queue: Queue) -> list[int]:
    """Three hundred attempts: done, failed and released."""
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


# --- what is in a row -------------------------------------------------------------------------------------------------


def test_a_row_is_what_postgresql_has(
    spark: SparkSession, app: Penstock, finished: list[int], dsn: str, sql: psycopg.Connection
) -> None:
    """All columns, to the microsecond."""
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
    assert read_history(spark, dsn=dsn, queue="other").count() == 7
    moments = [moment for (moment,) in sql.execute("select distinct finished_at from penstock.history order by 1")]
    assert len(moments) == 4
    assert read_history(spark, dsn=dsn, since=moments[1], until=moments[3]).count() == 200
    assert read_history(spark, dsn=dsn, until=moments[0] - timedelta(days=3)).count() == 0
    assert read_history(spark, dsn=dsn, since=moments[3].isoformat(), queue="work").count() == 0


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
    reader = HistoryReader(options.for_history({"dsn": dsn, **more}))
    return sorted(rows(reader, reader.partitions()), key=lambda row: row["id"])


def test_many_partitions_of_many_days(app: Penstock, queue: Queue, dsn: str, sql: psycopg.Connection) -> None:
    fill(sql, 200_000, days=3)
    truth = {id_ for (id_,) in sql.execute("select id from penstock.history")}
    for parts in (1, 4, 7):
        reader = HistoryReader(options.for_history({"dsn": dsn, "numPartitions": str(parts)}))
        planned = reader.partitions()
        found = rows(reader, planned)
        assert len(planned) == parts
        assert len(found) == len(truth) == 200_000
        assert {row["id"] for row in found} == truth


FILL = """
    insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt,
                                  outcome, kind, worker)
    select n, f, f, f, f, 1, 0, 1, 'released', 'k', 'w'
    from generate_series(1, %(rows)s) as n,
         lateral (select penstock.clock() - interval '1 day' * (n %% %(days)s) as f) as s
"""


def fill(sql: psycopg.Connection, count: int, days: int = 1) -> None:
    """Rows as no worker wrote them: the books know nothing of them, so the queue is not asked for its balance."""
    sql.execute(
        "select penstock.make_history(((penstock.clock() at time zone 'UTC')::date - n)) from generate_series(0, %s) as n",
        (days,),
    )
    sql.execute(FILL, {"rows": count, "days": days})
    sql.execute(
        "insert into penstock.counter (queue_id, metric, value) values (1, 'released_total', %s) on conflict (queue_id, metric) do update set value = penstock.counter.value + excluded.value",
        (count,),
    )


@pytest.mark.parametrize(
    ("pages", "parts"), [((0,), 3), ((10,), 3), ((1000,), 3), ((700, 1, 300, 5000), 4), ((65,), 8)]
)
def test_pages_are_shared_out(pages: tuple[int, ...], parts: int) -> None:
    day = datetime.now(UTC).date()
    spans = [Span(day - timedelta(days=n), n, 7 * n, many) for n, many in enumerate(pages)]
    cut = history.shared(spans, parts)
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
        -(-sum(pages) // parts), history.LEAST
    )
