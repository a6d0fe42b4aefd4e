"""Rows as tasks: schemas that are accepted, and what becomes of each value. Arrow and PostgreSQL, without Java."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import Conflict, Penstock, Queue, ValidationError
from penstock.client.bulk import BulkWriter
from penstock.client.database import Database
from penstock.model import OnConflict
from penstock.spark import parts
from penstock.spark.parts import Partition, Target
from penstock.spark.rows import plan_columns

LARGEST = 1 << 20
NOW = datetime.now(UTC).replace(microsecond=123456)


def writer_of(queue: Queue) -> BulkWriter:
    return BulkWriter(Database(queue.dsn, max_connections=2), queue.name)


def target(queue: Queue, on_conflict: OnConflict = "skip", reject_table: str | None = None) -> Target:
    writer = writer_of(queue)
    return Target(writer, *writer.limits(), on_conflict, reject_table)


def written(
    queue: Queue, table: pa.Table, *, pack: bool = False, kind: str | None = None, rows: int = 10_000, **more: Any
) -> Counter[str]:
    """Writes a table of rows as the only partition of a job."""
    plan = plan_columns(from_arrow_schema(table.schema), pack=pack, kind=kind)
    with Partition(more.pop("job", None) or uuid4(), more.pop("number", 0)) as partition:
        aim = target(queue, **more)
        partition.fill(plan, table.to_batches(rows), aim)
        return partition.write(aim)


def stored(sql: psycopg.Connection, column: str = "payload::text") -> list[Any]:
    return [one for (one,) in sql.execute(f"select {column} from penstock.task order by id").fetchall()]


def reasons(sql: psycopg.Connection, table: str = "penstock.reject") -> list[str]:
    return [one for (one,) in sql.execute(f"select reason from {table} order by id").fetchall()]


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"payload": t.IntegerType()}, "payload"),
        ({"payload": t.ArrayType(t.StringType())}, "payload"),
        ({"payload": t.MapType(t.IntegerType(), t.StringType())}, "payload"),
        ({"payload": t.VariantType()}, "payload"),
        ({"payload": t.StructType().add("a", t.DayTimeIntervalType())}, "payload.a"),
        ({"payload": t.StringType(), "subject": t.LongType()}, "subject"),
        ({"payload": t.StringType(), "kind": t.BooleanType()}, "kind"),
        ({"payload": t.StringType(), "due": t.StringType()}, "due"),
        ({"payload": t.StringType(), "due": t.TimestampNTZType()}, "due"),
        ({"payload": t.StringType(), "due": t.DateType()}, "due"),
        ({"payload": t.StringType(), "priority": t.DoubleType()}, "priority"),
        ({"payload": t.StringType(), "priority": t.StringType()}, "priority"),
        ({"payload": t.StringType(), "key": t.LongType()}, "key"),
        ({"payload": t.StringType(), "meta": t.LongType()}, "meta"),
        ({"payload": t.StringType(), "meta": t.MapType(t.LongType(), t.StringType())}, "meta"),
        ({"payload": t.StringType(), "expires": t.DateType()}, "expires"),
        ({"subject": t.StringType()}, "payload"),
    ],
)
def test_a_column_of_a_wrong_type_is_refused_by_name(columns: dict[str, t.DataType], word: str) -> None:
    schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ValidationError) as found:
        plan_columns(schema, pack=False, kind=None)
    assert found.value.message.startswith(word)


def test_other_columns_are_refused_unless_packed() -> None:
    schema = t.StructType().add("payload", "string").add("subjct", "string").add("amount", "long")
    with pytest.raises(ValidationError, match="subjct, amount: no column") as found:
        plan_columns(schema, pack=False, kind=None)
    assert "Did you mean subject?" in (found.value.hint or "")
    assert plan_columns(schema, pack=True, kind=None).packed == ("subjct", "amount")


# --- values -----------------------------------------------------------------------------------------------------------

EXACT = ('{"a": 1234567890123456789012345678901234567890}', '{"a": 1.0}', '{"a": 0.1000}', '{"a": "é\\n\\\\u0000 \\t"}')


def test_text_crosses_as_it_is(queue: Queue, sql: psycopg.Connection) -> None:
    given = [*EXACT, '{"a": 1e400}', ' {\n\t"b" :\r\n 1 } ', '{"c": "\\u00e9\\ud83d\\ude00"}']
    assert written(queue, pa.table({"payload": given})) == {"created": len(given)}
    sql.execute("create temp table given (n serial, payload jsonb)")
    for one in given:
        sql.execute("insert into given (payload) values (%s::jsonb)", (one,))
    assert stored(sql) == [one for (one,) in sql.execute("select payload::text from given order by n").fetchall()]
    assert stored(sql)[:3] == list(EXACT[:3])


def test_structs_and_maps_become_json(queue: Queue, sql: psycopg.Connection) -> None:
    rome = timezone(timedelta(hours=2))
    value = {
        "at": datetime(2030, 6, 1, 12, 30, 15, 250, tzinfo=rome),
        "local": datetime(2030, 6, 1, 12, 30),  # noqa: DTZ001 - a time without a zone
        "day": date(2030, 6, 1),
        "exact": Decimal("12345678901234567890.123400"),
        "raw": b"\x00\xff",
        "list": [1, None],
        "tags": {"k": "v"},
        "nothing": None,
    }
    kind = pa.struct(
        [
            ("at", pa.timestamp("us", "Europe/Rome")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("exact", pa.decimal128(38, 6)),
            ("raw", pa.binary()),
            ("list", pa.list_(pa.int64())),
            ("tags", pa.map_(pa.string(), pa.string())),
            ("nothing", pa.string()),
        ]
    )
    values = [value | {"tags": [("k", "v")]}]
    written(queue, pa.table({"payload": pa.array(values, kind)}))
    written(queue, pa.table({"payload": pa.array([[("x", 1), ("y", None)]], pa.map_(pa.string(), pa.int64()))}))
    first, second = stored(sql)
    assert json.loads(first, parse_float=Decimal) == {
        "at": "2030-06-01T10:30:15.000250Z",
        "local": "2030-06-01T12:30:00",
        "day": "2030-06-01",
        "exact": Decimal("12345678901234567890.123400"),
        "raw": "AP8=",
        "list": [1, None],
        "tags": {"k": "v"},
        "nothing": None,
    }
    assert json.loads(second) == {"x": 1, "y": None}


def test_other_columns_are_packed(queue: Queue, sql: psycopg.Connection) -> None:
    table = pa.table({"subject": ["a", "b"], "amount": [1, None], "note": ["x", "y"]})
    written(queue, table, pack=True)
    mixed = pa.table({"payload": ['{"amount": 1.0}', " { } ", "[1]"], "amount": [5, 6, 7]})
    assert written(queue, mixed, pack=True) == {"created": 2, "rejected": 1}
    found = [json.loads(one) for one in stored(sql)]
    assert found == [{"amount": 1, "note": "x"}, {"amount": None, "note": "y"}, {"amount": 1.0}, {"amount": 6}]
    assert stored(sql)[2] == '{"amount": 1.0}'


def test_all_columns_arrive(queue: Queue, sql: psycopg.Connection) -> None:
    table = pa.table(
        {
            "payload": ["{}", "{}"],
            "subject": ["s\t1", None],
            "kind": ["mail", None],
            "due": pa.array([NOW, None], pa.timestamp("us", "Asia/Tokyo")),
            "priority": pa.array([0, None], pa.int8()),
        }
    )
    assert written(queue, table, kind="other") == {"created": 2}
    rows = sql.execute("select subject, kind, due, priority from penstock.task order by subject").fetchall()
    assert rows == [("s\t1", "mail", NOW, 0), (None, "other", None, 5)]


def test_keys_meta_and_ends_arrive(queue: Queue, sql: psycopg.Connection) -> None:
    """Of rows with a subject, which are merged, and of others, which are copied; meta is text or a map."""
    late = NOW + timedelta(hours=1)
    columns = {
        "payload": ["{}"] * 3,
        "subject": ["s", None, None],
        "key": ["tenant:7", "ü\\t", None],
        "expires": pa.array([late, late, None], pa.timestamp("us", "UTC")),
    }
    texts = pa.table(columns | {"meta": ['{"a": "\\n\\\\"}', '{"b": 1}', None]})
    pairs = pa.array([[("a", "x")], None, [("b", "y")]], pa.map_(pa.string(), pa.string()))
    assert written(queue, texts) == {"created": 3}
    assert written(queue, pa.table(columns | {"subject": ["t", None, None], "meta": pairs})) == {"created": 3}
    find = "select key, meta, expires from penstock.task where subject is {} null order by id"
    assert sql.execute(find.format("not").encode()).fetchall() == [
        ("tenant:7", {"a": "\n\\"}, late),
        ("tenant:7", {"a": "x"}, late),
    ]
    assert sql.execute(find.format("").encode()).fetchall() == [
        ("ü\\t", {"b": 1}, late),
        (None, None, None),
        ("ü\\t", None, late),
        (None, {"b": "y"}, None),
    ]
    assert sql.execute("select count(*) from penstock.agenda where key_id > 0").fetchone() == (4,)


# --- rows that cannot be tasks ---------------------------------------------------------------------------------------

BAD: dict[str, tuple[str | None, str]] = {
    "null": (None, "payload: null"),
    "raw NUL": ('{"a": "\x00"}', "payload: there is a NUL"),
    "escaped NUL": ('{"a": "\\u0000"}', "payload: unsupported Unicode escape sequence. \\u0000 cannot"),
    "lone surrogate": ('{"a": "\\ud800"}', "payload: invalid input syntax for type json. Unicode low surrogate"),
    "NaN": ('{"a": NaN}', "payload: invalid input syntax"),
    "infinity": ('{"a": -Infinity}', "payload: invalid input syntax"),
    "cut": ('{"a": ', "payload: invalid input syntax"),
    "empty": ("", "payload: invalid input syntax"),
    "raw newline in text": ('{"a": "x\ny"}', "payload: invalid input syntax"),
    "array": ("[1]", "payload: it is not a JSON object"),
    "number": ("7", "payload: it is not a JSON object"),
    "json null": ("null", "payload: it is not a JSON object"),
    "deep": ('{"a": ' + "[" * 100 + "]" * 100 + "}", "payload: it is nested deeper than 100"),
    "too large": ('{"a": "' + "x" * LARGEST + '"}', "payload: 1048585 bytes are more than 1048576"),
    "large number": ('{"a": 1e200000}', "payload: "),
    "small number": ('{"a": 1e-20000}', "payload: "),
}


def test_a_bad_payload_is_rejected_with_the_reason(queue: Queue, sql: psycopg.Connection) -> None:
    good = ['{"a": "[[[[' + "{" * 200 + '"}', '{"a": ' + "[" * 99 + "]" * 99 + "}", '{"ok": true}']
    given = [good[0], *(payload for payload, _ in BAD.values()), *good[1:]]
    counts = written(queue, pa.table({"payload": given}))
    assert counts == {"created": 3, "rejected": len(BAD)}
    assert {name for (name, (_, why)) in BAD.items() if not any(r.startswith(why) for r in reasons(sql))} == set()
    assert len(stored(sql)) == 3
    kept = sql.execute("select payload from penstock.reject where reason like '%%nested%%'").fetchone()
    assert kept == (BAD["deep"][0],)


def test_a_row_that_only_postgresql_refuses_is_rejected_with_its_message(queue: Queue, sql: psycopg.Connection) -> None:
    """The client sees no error, so PostgreSQL refuses the whole part. Then each row is checked, and the rest is
    written."""
    given = [f'{{"n": {n}}}' for n in range(300)]
    given[150] = '{"n": ' + "9" * 140_000 + "}"
    named = pa.table({"payload": given, "subject": [f"s{n}" for n in range(300)]})
    assert written(queue, pa.table({"payload": given})) == {"created": 299, "rejected": 1}
    assert written(queue, named) == {"created": 299, "rejected": 1}
    assert len(stored(sql)) == 598
    assert sql.execute("select subject from penstock.reject order by id").fetchall() == [(None,), ("s150",)]


def test_two_halves_are_not_one(queue: Queue, sql: psycopg.Connection) -> None:
    """Each is half of an object, but joined they are three objects."""
    given = ['{"a": [1', "2]}", '{"b": 1}, {"c": 2}']
    assert written(queue, pa.table({"payload": [*given, "{}"]})) == {"created": 1, "rejected": 3}
    assert sorted(one for (one,) in sql.execute("select payload from penstock.reject").fetchall()) == sorted(given)


def test_structs_with_odd_values_are_rejected(queue: Queue, sql: psycopg.Connection) -> None:
    kind = pa.struct([("x", pa.list_(pa.float64())), ("s", pa.string())])
    values = [
        {"x": [1.5]},
        {"x": [float("nan")]},
        None,
        {"s": "a\x00b"},
        {"x": [float("-inf")], "s": None},
        {"x": [None]},
    ]
    assert written(queue, pa.table({"payload": pa.array(values, kind)})) == {"created": 2, "rejected": 4}
    assert sorted(reasons(sql)) == [
        "payload.x[0]: -inf is not JSON",
        "payload.x[0]: nan is not JSON",
        "payload: null is not a JSON object",
        "payload: unsupported Unicode escape sequence. \\u0000 cannot be converted to text.",
    ]


def test_other_columns_out_of_range_are_rejected(queue: Queue, sql: psycopg.Connection) -> None:
    rows: list[tuple[Any, ...]] = [
        ("s", "k", NOW, 5),
        ("", "k", NOW, 5),
        ("x" * 513, "k", NOW, 5),
        ("nul\x00", "k", NOW, 5),
        ("t", "", NOW, 5),
        ("t", "x" * 129, NOW, 5),
        ("t", "k", NOW + timedelta(days=3700), 5),
        ("t", "k", datetime(1, 1, 1, tzinfo=UTC), 5),
        ("t", "k", NOW, 101),
        ("t", "k", NOW, -101),
        ("t", "k", NOW, 2**40),
    ]
    subjects, kinds, dues, priorities = zip(*rows, strict=True)
    table = pa.table(
        {
            "payload": ["{}"] * len(rows),
            "subject": subjects,
            "kind": kinds,
            "due": pa.array(dues, pa.timestamp("us", "UTC")),
            "priority": pa.array(priorities, pa.int64()),
        }
    )
    assert written(queue, table) == {"created": 1, "rejected": 10}
    assert [one.split(":")[0] for one in reasons(sql)] == ["subject"] * 3 + ["kind"] * 2 + ["due"] * 2 + [
        "priority"
    ] * 3
    assert sql.execute("select priority from penstock.reject order by id desc limit 1").fetchone() == (str(2**40),)


def test_bad_keys_meta_and_ends_are_rejected(queue: Queue, sql: psycopg.Connection) -> None:
    late = NOW + timedelta(hours=1)
    rows: list[tuple[Any, ...]] = [
        ("k", "{}", late),
        ("", "{}", late),
        ("x" * 129, "{}", late),
        ("k", "[]", late),
        ("k", "{", late),
        ("k", '{"a": "\\u0000"}', late),
        ("k", '{"a": "' + "x" * 8190 + '"}', late),
        ("k", "{}", NOW),
        ("k", "{}", NOW + timedelta(days=2 * 3700)),
    ]
    keys, metas, expires = zip(*rows, strict=True)
    ends = pa.array(expires, pa.timestamp("us", "UTC"))
    dues = pa.array([NOW] * len(rows), pa.timestamp("us", "UTC"))
    table = pa.table({"payload": ["{}"] * len(rows), "key": keys, "meta": metas, "expires": ends, "due": dues})
    assert written(queue, table) == {"created": 1, "rejected": 8}
    assert [one.split(":")[0] for one in reasons(sql)] == ["key"] * 2 + ["meta"] * 4 + ["expires"] * 2
    kept = sql.execute("select key, meta, expires from penstock.reject order by id desc limit 2").fetchall()
    assert [(key, meta) for key, meta, _ in kept] == [("k", "{}")] * 2
    assert str(NOW.year) in str(kept[1][2])


def test_bytes_that_are_no_text_are_rejected(queue: Queue, sql: psycopg.Connection) -> None:
    """Spark allows any bytes in a string."""
    raw = pa.array([b'{"a": "\xff"}', b'{"a": 1}'], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    assert written(queue, pa.table({"payload": column})) == {"created": 1, "rejected": 1}
    assert reasons(sql) == ["payload: it is not UTF-8"]
    assert sql.execute("select payload from penstock.reject").fetchone() == ('{"a": "\\xff"}',)


def test_rejects_go_to_the_given_table(queue: Queue, sql: psycopg.Connection) -> None:
    sql.execute("create schema own")
    writer_of(queue).prepare_rejects("own.Rejects")
    writer_of(queue).prepare_rejects("own.Rejects")
    job = uuid4()
    assert written(queue, pa.table({"payload": [None, "{}"]}), reject_table="own.Rejects", job=job, number=3) == {
        "created": 1,
        "rejected": 1,
    }
    assert reasons(sql) == []
    row = sql.execute('select queue, job, partition, reason, payload from own."Rejects"').fetchone()
    assert row == ("work", job, 3, "payload: null is not a JSON object", None)
    sql.execute("create table own.taken (id int)")
    with pytest.raises(
        ValidationError,
        match=r"rejectTable: table own\.taken cannot be used, because it has no column due, expires, job",
    ):
        writer_of(queue).prepare_rejects("own.taken")


def test_many_make_the_table_of_rejects_at_once(queue: Queue, sql: psycopg.Connection, direct_dsn: str) -> None:
    """The second session finds the table. No advisory lock is needed, which any login could hold."""
    with psycopg.connect(direct_dsn, autocommit=True) as other_session, ThreadPoolExecutor(6) as pool:
        other_session.execute("select pg_advisory_lock(hashtext('penstock.reject'))")
        try:
            for made in [pool.submit(writer_of(queue).prepare_rejects, "public.rejects") for _ in range(12)]:
                made.result(30)
        finally:
            other_session.close()
    assert sql.execute("select count(*) from public.rejects").fetchone() == (0,)


# --- parts ------------------------------------------------------------------------------------------------------------


def many(count: int, seed: int = 0) -> pa.Table:
    order = random.Random(seed).sample(range(count), count)
    payloads = [f'{{"n": {n}}}' for n in order]
    return pa.table({"payload": payloads, "subject": [None if n % 10 == 0 else f"s{n:06d}" for n in order]})


@pytest.mark.parametrize("together", [200_000, 700])
def test_a_partition_that_was_half_written_is_completed_in_any_order(
    app: Penstock, queue: Queue, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """The write is killed between two parts, and tried again with its rows in another order, as after a shuffle."""
    monkeypatch.setattr(parts, "CHUNK", 500)
    monkeypatch.setattr(parts, "SORTED_ROWS", together)
    plan, job = plan_columns(from_arrow_schema(many(2).schema), pack=False, kind=None), uuid4()
    with Partition(job, 0) as partition:
        partition.fill(plan, many(3000).to_batches(400), target(queue))
        for part, _ in zip(partition._parts(together=False), range(3), strict=False):
            parts.write_part(part, target(queue), copying=True)
    before = queue.status().pending
    assert 300 < before < 3000
    assert written(queue, many(3000, seed=7), job=job, rows=300) == {"created": 3000}
    assert written(queue, many(3000, seed=8), job=job, rows=900) == {"created": 3000}
    assert queue.status().pending == 3000
    with pytest.raises(Conflict, match="partition 0: it was written with 3000 rows before, now there are 2999"):
        written(queue, many(2999), job=job)
    changed = many(3000).to_pydict()
    changed["payload"][5] += " "
    with pytest.raises(Conflict, match="partition 0: its 3000 rows were written with other content"):
        written(queue, pa.table(changed), job=job)
    assert queue.status().pending == 3000


@pytest.mark.parametrize("on_conflict", ["skip", "update", "error"])
def test_equal_subjects_are_merged_and_counted(
    queue: Queue, sql: psycopg.Connection, on_conflict: OnConflict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B105: the last row of a subject wins, however many there are."""
    monkeypatch.setattr(parts, "CHUNK", 10)
    table = pa.table(
        {"payload": [f'{{"n": {n}}}' for n in range(100)], "subject": [f"s{n % 25:02d}" for n in range(100)]}
    )
    assert written(queue, table, on_conflict=on_conflict, rows=7) == {"created": 25, "superseded": 75}
    assert sorted(json.loads(one)["n"] for one in stored(sql)) == [*range(75, 100)]


def test_taken_subjects_follow_the_rule(queue: Queue, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "CHUNK", 10)
    queue.push({"old": True}, subject="s07")
    table = pa.table({"payload": ['{"new": 1}'] * 40, "subject": [f"s{n:02d}" for n in range(40)]})
    with pytest.raises(Conflict, match="'s07' is taken"):
        written(queue, table, on_conflict="error")
    assert queue.status().pending == 1, "all or nothing"
    assert written(queue, table) == {"created": 39, "skipped": 1}
    assert written(queue, table, on_conflict="update") == {"updated": 40}


def test_a_sealed_job_takes_nothing_more(queue: Queue) -> None:
    job, writer = UUID(int=7), writer_of(queue)
    table = pa.table({"payload": ["{}"] * 3})
    assert writer.job_report(job) is None
    written(queue, table, job=job)
    assert writer.seal_job(job, 1, 3, "x", {"created": 3}) == {"created": 3, "partitions": 1, "rows": 3}
    assert writer.seal_job(job, 1, 3, "x", {"created": 3}) == writer.job_report(job)
    written(queue, table, job=job)
    with pytest.raises(Conflict, match="partition 1: it is new, and the job was sealed with 1 partitions and 3 rows"):
        written(queue, table, job=job, number=1)
    with pytest.raises(Conflict, match="sealed with 1 partitions, now there are 2"):
        writer.seal_job(job, 2, 3, "x", {})
    with pytest.raises(Conflict, match="with 3 rows before, now there are 4"):
        writer.seal_job(job, 1, 4, "x", {})
    with pytest.raises(Conflict, match="other content"):
        writer.seal_job(job, 1, 3, "y", {})
    assert queue.status().pending == 3


def test_another_queue_is_another_job(app: Penstock, queue: Queue) -> None:
    """B107: the checkpoint or name of a write into one queue is used for another queue."""
    other = app.create_queue("other")
    job, table = uuid4(), pa.table({"payload": ["{}"]})
    written(queue, table, job=job)
    with pytest.raises(Conflict, match="into another queue before, not into 'other'"):
        written(other, table, job=job)
    assert other.status().pending == 0
