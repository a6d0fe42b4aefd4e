"""DataFrames and streams are written into a queue: exactly these rows, once, whatever is tried again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock import Conflict, NotFound, Penstock, Queue, ValidationError
from penstock import spark as ours
from penstock.spark.datasource import DefaultSource
from penstock.spark.writer import BatchWriter, name_job


def rows_of(sql: psycopg.Connection) -> list[int]:
    """Returns the numbers in all payloads in order, so that a lost or doubled row shows."""
    return [n for (n,) in sql.execute("select (payload->>'n')::int as n from penstock.task order by n").fetchall()]


def numbers(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(count).repartition(partitions, "id").selectExpr("to_json(named_struct('n', id)) as payload")


# --- one write --------------------------------------------------------------------------------------------------------


def test_a_dataframe_is_pushed_and_counted(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection
) -> None:
    df = spark.range(2000).selectExpr(
        "if(id % 100 = 7, '{\"a\": NaN}', to_json(named_struct('n', id))) as payload",
        "if(id < 1000, concat('s', id % 900), null) as subject",
    )
    report = ours.push(df, "work", dsn=dsn, kind="mail")
    assert (report.rows, report.rejected, report.accepted) == (2000, 20, 1980)
    assert report.created + report.skipped + report.superseded + report.rejected == report.rows
    assert report.created == queue.status().pending == 2000 - 20 - 99  # s7 came twice, and was bad both times
    (rejected,) = sql.execute("select count(*) from penstock.reject where job = %s", (report.job_id,)).fetchone() or (
        0,
    )
    assert rejected == 20
    assert sql.execute("select distinct kind from penstock.task").fetchall() == [("mail",)]


def test_rows_with_all_columns_and_structs(
    spark: SparkSession, dsn: str, app: Penstock, sql: psycopg.Connection
) -> None:
    """The code is as users write it, in a session whose time zone is not UTC."""
    app.create_queue("work")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        df = spark.sql(
            """
            select named_struct('at', timestamp '2030-01-01 09:00:00', 'x', cast('1.10' as decimal(10,2)),
                                'm', map('k', array(1, 2))) as payload,
                   's' as subject, 'k' as kind, timestamp '2031-01-01 09:00:00' as due, cast(3 as byte) as priority
            """
        )
        df.write.format("penstock").options(queue="work", dsn=dsn).mode("append").save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    row = sql.execute("select payload::text, subject, kind, due::text, priority from penstock.task").fetchone()
    assert row is not None
    assert json.loads(row[0]) == {"at": "2030-01-01T00:00:00Z", "x": 1.1, "m": {"k": [1, 2]}}
    assert '"x": 1.10' in row[0]
    assert row[1:] == ("s", "k", "2031-01-01 00:00:00+00", 3)


def test_a_wrong_write_is_refused_before_it_runs(spark: SparkSession, dsn: str, queue: Queue) -> None:
    df = spark.createDataFrame([("{}",)], "payload string")

    def save(frame: DataFrame, mode: str = "append", **options: str) -> str:
        with pytest.raises(AnalysisException) as found:
            frame.write.format("penstock").options(**({"queue": "work", "dsn": dsn} | options)).mode(mode).save()
        return str(found.value)

    said = save(df, onConflit="skip")
    assert "onconflit: this is not an option of writing" in said
    assert "Hint: Did you mean onConflict?" in said
    assert "mode: a queue cannot be overwritten" in save(df, mode="overwrite")
    assert "extra: no column of a task" in save(df.selectExpr("*", "1 as extra"))
    with pytest.raises(NotFound, match="queue 'wrok' does not exist") as found:
        ours.push(df, "wrok", dsn=dsn)
    assert found.value.hint == "Did you mean 'work'?"
    with pytest.raises(ValidationError, match="priority: double is not a whole number"):
        ours.push(df.selectExpr("*", "1.0d as priority"), "work", dsn=dsn)
    with pytest.raises(ValidationError, match="txnVersion: txnAppId and txnVersion go together"):
        ours.push(df, "work", dsn=dsn, txn_app_id="a")
    assert queue.status().pending == 0


def test_an_empty_dataframe_is_a_job_too(spark: SparkSession, dsn: str, queue: Queue) -> None:
    df = spark.createDataFrame([], "payload string")
    report = ours.push(df, "work", dsn=dsn, txn_app_id="a", txn_version=1)
    assert (report.rows, report.partitions, report.created) == (0, 0, 0)
    with pytest.raises(Conflict, match="it is new, and the job was sealed with 0 partitions"):
        ours.push(numbers(spark, 3, 1), "work", dsn=dsn, txn_app_id="a", txn_version=1)
    assert queue.status().pending == 0


# --- retries and repeats ----------------------------------------------------------------------------------------------


def unlucky(spark: SparkSession) -> None:
    """Registers `format("unlucky")`: the data source, but every task fails once after it has written everything. It is
    pickled by value, because Spark's Python cannot import tests."""
    base: Any = BatchWriter

    class UnluckyWriter(base):  # type: ignore[misc]
        def write(self, iterator: Iterator[Any]) -> Any:
            from pyspark import TaskContext

            done = base.write(self, iterator)
            if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
                raise RuntimeError("after the commit")
            return done

    class Unlucky(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "unlucky"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            found = DefaultSource.writer(self, schema, overwrite)
            found.__class__ = UnluckyWriter
            return found

    spark.dataSource.register(Unlucky)


def test_a_task_that_fails_after_its_commit_writes_nothing_twice(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection
) -> None:
    unlucky(spark)
    df = numbers(spark, 3000).selectExpr("payload", "get_json_object(payload, '$.n') as n")
    plain = df.select("payload")
    named = df.selectExpr("payload", "if(n % 2 = 0, concat('s', n), null) as subject")
    bad = df.selectExpr("if(n % 10 = 0, null, payload) as payload")
    for frame, expected in ((plain, 3000), (named, 6000), (bad, 8700)):
        frame.write.format("unlucky").options(queue="work", dsn=dsn).mode("append").save()
        assert queue.status().pending == expected
    assert sql.execute("select count(*) from penstock.reject").fetchone() == (300,)
    assert rows_of(sql) == sorted([*range(3000)] * 2 + [n for n in range(3000) if n % 10])


def test_the_same_job_twice_is_written_once(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection
) -> None:
    df = numbers(spark, 300).cache()
    first = ours.push(df, "work", dsn=dsn, txn_app_id="load", txn_version=1)
    again = ours.push(df.sortWithinPartitions("payload"), "work", dsn=dsn, txn_app_id="load", txn_version=1)
    assert again == first
    assert (first.rows, first.created, first.partitions) == (300, 300, 3)
    assert rows_of(sql) == [*range(300)]
    assert ours.push(df, "work", dsn=dsn, txn_app_id="load", txn_version=2).created == 300
    assert rows_of(sql) == sorted([*range(300)] * 2)


def test_twins_that_write_at_once_write_once(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection
) -> None:
    """As when Spark runs a slow task a second time on another host (never on the same): both live and both write."""
    plain = spark.range(0, 6000, 1, 3).selectExpr("named_struct('n', id) as payload")
    named = spark.range(6000, 12000, 1, 3).selectExpr("named_struct('n', id) as payload", "concat('s/', id) as subject")
    for version, frame in enumerate((plain, named)):
        twin = partial(ours.push, frame, "work", dsn=dsn, txn_app_id="twins", txn_version=version)
        with ThreadPoolExecutor(2) as pool:
            assert [pushed.result().created for pushed in [pool.submit(twin) for _ in range(2)]] == [6000, 6000]
    assert rows_of(sql) == [*range(12000)]


def test_no_more_write_at_once_than_there_may_be_connections(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection
) -> None:
    """While another session holds the only place of a job, its tasks wait and hold no connection."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and state <> 'active'"
    with psycopg.connect(dsn) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("select penstock.take_job_slot(%s, 1)", (name_job("one", 1),))
        pushed = pool.submit(
            ours.push, numbers(spark, 400), "work", dsn=dsn, txn_app_id="one", txn_version=1, max_connections=1
        )
        with pytest.raises(TimeoutError):
            pushed.result(4.0)
        assert rows_of(sql) == []
        before = sql.execute(others).fetchone()
        holder.rollback()
        assert pushed.result(60).created == 400
    assert rows_of(sql) == [*range(400)]
    assert before is not None
    assert before[0] <= 4, "the connections of the holder, the test and the driver, and one that tries"


def test_a_repeat_that_differs_is_an_error_that_says_in_what(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection
) -> None:
    def lists(*parts: list[int]) -> DataFrame:
        spread = spark.sparkContext.parallelize([list(part) for part in parts], len(parts)).flatMap(list)
        return spark.createDataFrame(spread.map(lambda n: (f'{{"n": {n}}}',)), "payload string")

    def push(*parts: list[int]) -> ours.SparkReport:
        return ours.push(lists(*parts), "work", dsn=dsn, txn_app_id="load", txn_version=1)

    push([1, 2], [3, 4])
    for parts, said in (
        (([1, 2], [3]), "partition 1: it was written with 2 rows before, now there are 1"),
        (([1, 2], [3, 5]), "partition 1: its 2 rows were written with other content"),
        (([1, 2],), "sealed with 2 partitions, now there are 1"),
        (([1, 2], [3, 4], [5]), "partition 2: it is new, and the job was sealed with 2 partitions and 4 rows"),
        (([1, 2], []), "sealed with 2 partitions, now there are 1"),
    ):
        with pytest.raises(Conflict, match=said):
            push(*parts)
    assert push([2, 1], [4, 3]).created == 4
    assert rows_of(sql) == [1, 2, 3, 4]


# --- streams ----------------------------------------------------------------------------------------------------------


def drop_file(directory: Path, name: str, values: range) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.json").write_text("".join(f'{{"n": {n}}}\n' for n in values), "utf-8")


def stream(spark: SparkSession, source: Path, checkpoint: Path, dsn: str, **options: str) -> None:
    """Streams all present files, one micro-batch each."""
    frame = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(source))
    written = frame.selectExpr("value as payload").writeStream.format("penstock").queryName("files")
    given = {"queue": "work", "dsn": dsn, "checkpointLocation": str(checkpoint)} | options
    query = written.options(**given).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert not query.isActive


def test_a_stream_is_written_once(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    drop_file(source, "a", range(100))
    drop_file(source, "b", range(100, 150))
    stream(spark, source, checkpoint, dsn)
    assert rows_of(sql) == [*range(150)]
    # As if it was killed after the sink, before the commit log: the micro-batch comes again.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    drop_file(source, "c", range(150, 200))
    stream(spark, source, checkpoint, dsn)
    assert rows_of(sql) == [*range(200)]
    assert sql.execute("select count(*) from penstock.ledger where report ? 'partitions'").fetchone() == (3,)


def test_the_last_micro_batch_is_recognised_after_the_retention(
    spark: SparkSession, app: Penstock, dsn: str, queue: Queue, sql: psycopg.Connection, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    drop_file(source, "a", range(100))
    drop_file(source, "b", range(100, 150))
    stream(spark, source, checkpoint, dsn)
    ours.push(numbers(spark, 10), "work", dsn=dsn)
    before = rows_of(sql)
    sql.execute("update penstock.ledger set at = at - interval '31 days'")
    assert app.upkeep()["ledger parts dropped"] >= 2, "the first micro-batch, and a push without a name"
    # As if it was killed after the sink, before the commit log, and restarted a month later.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    stream(spark, source, checkpoint, dsn)
    assert rows_of(sql) == before


def test_a_stream_with_a_name_outlives_its_checkpoint(
    spark: SparkSession, dsn: str, queue: Queue, sql: psycopg.Connection, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    drop_file(source, "a", range(100))
    stream(spark, source, tmp_path / "one", dsn, txnAppId="files")
    stream(spark, source, tmp_path / "two", dsn, txnAppId="files")
    assert rows_of(sql) == [*range(100)]
    drop_file(source, "a", range(1, 101))
    with pytest.raises(StreamingQueryException, match="its 100 rows were written with other content before"):
        stream(spark, source, tmp_path / "three", dsn, txnAppId="files")
    assert rows_of(sql) == [*range(100)]


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_no_password_in_plans_and_errors(spark: SparkSession, dsn: str, queue: Queue) -> None:
    spark.conf.set("spark.sql.redaction.options.regex", "(?i)url")  # a session that another program configured
    spark.conf.set("spark.sql.ui.explainMode", "extended")
    df = spark.createDataFrame([("{}",)], "payload string")
    secret = f"{dsn} application_name=canary"
    ours.push(df, "work", dsn=secret)
    assert "dsn" in (spark.conf.get("spark.sql.redaction.options.regex") or "")
    with pytest.raises(AnalysisException) as found:
        df.write.format("penstock").options(queue="nowhere", url=secret).mode("append").save()
    shown = [str(found.value), repr(found.value)]
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    for n in range(executions.length()):
        one = executions.apply(n)
        shown += [one.physicalPlanDescription(), one.description(), one.details(), str(one.modifiedConfigs())]
    assert any("url=*********(redacted)" in text for text in shown), "options are shown, but not this one"
    assert [text for text in shown if "canary" in text] == []
    with pytest.raises(NotFound) as ours_found:
        ours.push(df, "nowhere", dsn=secret)
    assert "canary" not in f"{ours_found.value!r} {ours_found.value.__cause__}"
