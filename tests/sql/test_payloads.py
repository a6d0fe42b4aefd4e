"""Payloads that are small when they are sent and huge when they are read: PostgreSQL writes all digits of a number."""

from __future__ import annotations

import time

import psycopg
import pytest
from psycopg import Connection

from penstock import Penstock, Queue
from penstock.validate import decode_text

INSERT = "insert into penstock.task (queue_id, payload) select id, %s::jsonb from penstock.queue where name = 'work'"


def numbers(one: str, count: int) -> str:
    return '{"a": [' + ",".join([one] * count) + "]}"


SWELLING = [
    pytest.param(numbers("1e131071", 1000), id="large"),
    pytest.param(numbers("-1.5E+131000", 600), id="negative"),
    pytest.param(numbers("1e-16383", 5000), id="small"),
    pytest.param(numbers("0e-16383", 5000), id="zero"),
    pytest.param(numbers("1e131071", 10_000), id="more than a gigabyte"),
]


def refused(sql: Connection, statement: str, payload: str) -> str:
    with pytest.raises(psycopg.Error, match=r"payload: \d+( or more)? bytes as text are more than 67108864") as error:
        sql.execute(statement.encode(), (payload,))
    assert error.value.sqlstate == "PS413"
    return str(error.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("payload", SWELLING)
def test_numbers_that_are_written_out_are_refused(queue: Queue, sql: Connection, payload: str) -> None:
    refused(sql, INSERT, payload)
    refused(sql, "select penstock.push_many('work', array['{}', %s])", payload)
    refused(sql, "select penstock.push_many('work', array[%s], array['s'])", payload)
    with pytest.raises(psycopg.Error):  # as text, before a check of ours can run
        sql.execute("select penstock.push('work', %s::jsonb)", (payload,))
    assert queue.status().pending == 0
    queue.push()
    assert len(queue.claim(10)) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("payload", SWELLING)
def test_an_update_is_refused_too(queue: Queue, sql: Connection, payload: str) -> None:
    queue.push({"n": 1}, subject="s")
    statement = "select penstock.push_many('work', array['{}', %s], array['t', 's'], p_on_conflict => 'update')"
    assert refused(sql, statement, payload).startswith("item 1: ")
    assert queue.claim().tasks[0].payload == {"n": 1}


def test_what_was_compressed_before_is_looked_at_too(queue: Queue, sql: Connection) -> None:
    sql.execute("create temporary table packed as select %s::jsonb as payload", (numbers("1e131071", 1000),))
    assert sql.execute("select pg_column_size(payload) < 1000 from packed").fetchone() == (True,)
    refused(sql, INSERT.replace("%s::jsonb", "(select payload from packed where %s <> '')"), "x")


def test_large_numbers_within_the_limit_are_read_back(queue: Queue, sql: Connection) -> None:
    whole, few = 10**1233 + 1, [10**131071] * 3
    sql.execute(INSERT.encode(), (f'{{"key": {whole}, "text": "{"x" * 500}"}}',))
    sql.execute(INSERT.encode(), (numbers("1e131071", 3),))
    sql.execute(INSERT.encode(), (numbers("1.5e300", 5000),))
    found = [task.payload for task in queue.claim(3).tasks]
    assert found[0]["key"] == whole
    assert found[1]["a"] == few
    assert found[2]["a"] == [int("15" + "0" * 299)] * 5000


def test_a_large_number_is_read_quickly() -> None:
    """A large number takes nine bytes to send. Read digit by digit, each took half a second."""
    text = numbers(f"-12{'0' * 131_000}", 64)
    began = time.process_time()
    assert decode_text(text) == {"a": [-12 * 10**131_000] * 64}
    assert time.process_time() - began < 8


def test_the_limit_grows_with_max_payload(app: Penstock, queue: Queue, sql: Connection) -> None:
    payload = numbers("1e131071", 600)
    refused(sql, INSERT, payload)
    queue.set(max_payload=2 << 20)
    sql.execute(INSERT.encode(), (payload,))
    assert queue.status().pending == 1
