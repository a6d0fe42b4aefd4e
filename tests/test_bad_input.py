"""Bad input: a case for each line of the list of bad inputs. A refusal has the right class, names the field, and
changes nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from conftest import TEMPLATE, with_database
from penstock import (
    AuthError,
    Claim,
    ConfigError,
    Conflict,
    LeaseLost,
    NewTask,
    NotFound,
    Outcome,
    PayloadError,
    PayloadTooLarge,
    Penstock,
    Queue,
    SchemaVersionError,
    Unavailable,
    ValidationError,
)
from shell import COMMAND, COUNTS, each, environment, is_one_block, penstock

NUMBER = count()
NAN, INFINITE = float("nan"), float("inf")

# Any write would change this.
CONTENTS = """
    select (select jsonb_agg(to_jsonb(s) - 'at' - 'oldest_pending_age') from penstock.status() as s),
           (select count(*) from penstock.task),
           (select count(*) from penstock.agenda),
           (select count(*) from penstock.lease),
           (select count(*) from penstock.history),
           (select count(*) from penstock.ledger)
"""


@pytest.fixture(scope="module")
def dsn(server_dsn: str) -> Iterator[str]:
    """One database for all tests, because refused input leaves nothing behind. Each test has its own queue."""
    name = f"bad_input_{os.getpid()}"
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template {TEMPLATE}")
        yield with_database(server_dsn, name)
        connection.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def app(dsn: str) -> Iterator[Penstock]:
    with Penstock(dsn) as penstock:
        yield penstock


@pytest.fixture(scope="module")
def sql(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def queue(app: Penstock) -> Iterator[Queue]:
    queue = app.create_queue(f"bad-{next(NUMBER)}", max_attempts=3, lease="1h")
    yield queue
    verdict = queue.verify()
    assert verdict.ok, verdict.findings


@contextmanager
def nothing_changes(sql: Connection) -> Iterator[None]:
    before = sql.execute(CONTENTS).fetchone()
    yield
    assert sql.execute(CONTENTS).fetchone() == before


def refusal(kind_: type[Exception], field_: str, act: Callable[..., object], *given: Any, **named: Any) -> Any:
    """Calls `act`, checks that it raises exactly this class and names the field, and returns the error."""
    with pytest.raises(kind_) as refused:
        act(*given, **named)
    assert refused.type is kind_, refused.value
    assert field_ in str(refused.value)
    assert len(str(refused.value)) < 300
    return refused.value


def refused_by_sql(sql: Connection, statement: str, state: str, field: str) -> None:
    with pytest.raises(psycopg.Error) as refused, sql.transaction(force_rollback=True):
        sql.execute(statement.encode())
    assert refused.value.sqlstate == state, refused.value
    assert field in (refused.value.diag.message_primary or "")


# --- payloads ---------------------------------------------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def in_itself() -> dict[str, Any]:
    value: dict[str, Any] = {"a": []}
    value["a"].append(value)
    return value


@dataclass
class Plain:
    n: int


PAYLOADS: dict[str, tuple[Any, ...]] = {
    "B01": ({"a": "x\x00y"},),
    "B02": ({"x\x00": 1},),
    "B03": ({"a": [{"b": ["\x00"]}]},),
    "B04": ({"a": "\ud800"}, {"\udfff": 1}),
    "B05": ({"a": NAN}, {"a": [NAN, None]}),
    "B06": ({"a": INFINITE}, {"a": [{"b": -INFINITE}]}),
    "B07": ({"a": 2**64}, {"a": -(2**63) - 1}, {"a": [10**400]}),
    "B08": ({"a": float("1e400")},),
    "B09": (nested(101), nested(100_000)),
    "B10": (in_itself(),),
    "B11": ({"a": b"x"}, {b"x": 1}),
    "B12": ({"a": datetime(2030, 1, 1)}, {"a": datetime.now(UTC)}),  # noqa: DTZ001 - naive on purpose
    "B13": ({"a": Decimal("1.5")},),
    "B14": ({"a": {1, 2}},),
    "B15": ({"a": Plain(1)}, Plain(1)),
    "B16": ({1: "a"}, {None: "a"}, {True: "a"}),
    "B18": ({"a": "x" * (2 << 20)}, {"a": "ü" * (1 << 20)}),
    "B19": ({"a": "x" * (20 << 20)},),
    "B22": ({"a": b"\xff\xfe"},),
    "B97": ([1], "text", 5, True, [{}]),
}


@pytest.mark.parametrize("line", PAYLOADS)
def test_payloads(line: str, queue: Queue, sql: Connection) -> None:
    kind = PayloadTooLarge if line in ("B18", "B19") else PayloadError
    queue.push()
    claim = queue.claim()
    for bad in PAYLOADS[line]:
        with nothing_changes(sql):
            refusal(kind, "payload", queue.push, bad)
            for batch in ([{}, bad, {}], [NewTask({}, "s"), NewTask(bad)], iter([None, NewTask(bad, "t")])):
                said = refusal(kind, "payload", queue.push_many, batch)
                assert said.index == 1
                assert str(said).startswith("item 1: payload")
            refusal(kind, "payload", queue.settle, claim, {claim.ids[0]: Outcome.again(payload=bad)})
    queue.settle(claim)


def test_payloads_at_the_limit_are_taken(queue: Queue) -> None:
    edge = [nested(100), {"a": 2**64 - 1}, {"a": -(2**63)}, {"a": "x" * ((1 << 20) - 9)}, {"a": "\\u0000"}, {"a": None}]
    assert queue.push_many(edge).created == len(edge)
    for payload in edge:
        queue.push(payload)
    assert [task.payload for task in queue.claim(20).tasks] == edge * 2


def test_numbers_of_any_length_are_read(queue: Queue, sql: Connection) -> None:
    """Only SQL can push them, and a claim must be able to read them."""
    sql.execute("select penstock.push(%s, '{\"n\": 1e9999}')", (queue.name,))
    assert queue.claim().tasks[0].payload == {"n": 10**9999}


@pytest.mark.parametrize("line", ["B20"])
def test_no_payload_is_an_empty_one(line: str, queue: Queue) -> None:
    queue.push(None)
    queue.push_many([None, NewTask(None), NewTask(None, "s")])
    assert [task.payload for task in queue.claim(10).tasks] == [{}] * 4


@pytest.mark.parametrize("line", ["B21"])
def test_an_iterable_that_raises(line: str, queue: Queue, sql: Connection) -> None:
    def broken(subject: str | None) -> Iterator[NewTask]:
        yield from (NewTask({"n": n}, subject and f"{subject}{n}") for n in range(12_000))
        raise ZeroDivisionError

    with nothing_changes(sql):
        for subject in (None, "s"):
            with pytest.raises(ZeroDivisionError):
                queue.push_many(broken(subject))


# --- names and keys ---------------------------------------------------------------------------------------------------

NAMES: dict[str, tuple[Any, ...]] = {
    "B23": ("", " "),
    "B24": ("x" * 64, "x" * 100_000),
    "B25": ("x'; DROP TABLE--", "x; drop schema penstock cascade"),
    "B26": ("../../etc", "/etc/passwd", "..", ".hidden", "a/b", "a\\b"),
    "B27": ("Ünï", "Upper", "\u202eabc", "a\u200bb", "\u0430bc", "\uff41bc", "٣"),
    "B28": ("a\n", "\na", "a\tb", "a b", "a\r", "a\x1b[31m", "a\x00b"),
    "B29": ('q"', "%s", "{}", "$1", "a:b", "a,b", "-a", "_a", "a*"),
    "B30": (5, None, True, 1.5, b"abc", object(), ["a"]),
}


@pytest.mark.parametrize("line", NAMES)
def test_names(line: str, app: Penstock, sql: Connection) -> None:
    with nothing_changes(sql):
        for name in NAMES[line]:
            refusal(ValidationError, "queue", app.queue, name)
            refusal(ValidationError, "queue", app.create_queue, name)
            if isinstance(name, str) and "\x00" not in name:
                literal = psycopg.sql.Literal(name).as_string()
                refused_by_sql(sql, f"select penstock.create_queue({literal})", "PS400", "queue")
                refused_by_sql(sql, f"select penstock.push({literal})", "PS404", "queue")


def test_names_at_the_limit_are_taken(app: Penstock) -> None:
    for name in ("0", "x" * 63, "a.b-c_d", "pg_catalog"):
        app.create_queue(name).push()


@pytest.mark.parametrize("line", ["B31"])
def test_subjects_that_do_not_fit(line: str, queue: Queue, sql: Connection) -> None:
    bad = ("", "x" * 513, "ü" * 257, "x" * 3_000, "a\x00b", "\ud800", 5, b"x", True)
    with nothing_changes(sql):
        for subject in bad:
            refusal(ValidationError, "subject", queue.push, subject=subject)
            tasks = [NewTask({}, "s"), NewTask({}, subject)]  # type: ignore[arg-type]
            said = refusal(ValidationError, "subject", queue.push_many, tasks)
            assert said.index == 1
        for kind in ("", "x" * 129, "a\x00b", "\ud800", None, 5):
            refusal(ValidationError, "kind", queue.push, kind=kind)
        refused_by_sql(sql, f"select penstock.push('{queue.name}', p_subject => repeat('x', 513))", "PS400", "subject")
        refused_by_sql(sql, f"select penstock.push('{queue.name}', p_subject => '')", "PS400", "subject")
        refused_by_sql(sql, f"select penstock.push('{queue.name}', p_kind => repeat('x', 129))", "PS400", "kind")
    assert queue.push(subject="ü" * 256, kind="x" * 128).result == "created"


@pytest.mark.parametrize("line", ["B32"])
def test_the_last_of_equal_subjects_wins_and_is_counted(line: str, queue: Queue) -> None:
    report = queue.push_many([NewTask({"n": n}, subject) for n, subject in enumerate("abaac")])
    assert report.counts == dict.fromkeys(COUNTS, 0) | {"created": 3, "superseded": 2}
    assert {task.subject: task.payload["n"] for task in queue.claim(10).tasks} == {"a": 3, "b": 1, "c": 4}


@pytest.mark.parametrize("line", ["B33"])
def test_subjects_are_compared_byte_for_byte(line: str, queue: Queue) -> None:
    subjects = ["key", "Key", "KEY", "key ", "caf\u00e9", "cafe\u0301", "\u212b", "\u00c5"]
    assert queue.push_many([NewTask({}, subject) for subject in subjects]).created == len(subjects)
    assert sorted(str(task.subject) for task in queue.claim(20).tasks) == sorted(subjects)


# --- numbers and times ------------------------------------------------------------------------------------------------

Act = Callable[[Queue, Claim, Any], object]


def pushing(field: str) -> tuple[Act, ...]:
    return (
        lambda queue, _, value: queue.push(**{field: value}),
        lambda queue, _, value: queue.push_many([{}, NewTask(**{field: value})]),
        lambda queue, _, value: queue.push_many([NewTask({}, "s"), NewTask({}, "t", **{field: value})]),
    )


LEASING: tuple[Act, ...] = (
    lambda queue, _, value: queue.claim(lease=value),
    lambda queue, claim, value: queue.extend(claim, lease=value),
)
DELAYING: tuple[Act, ...] = (
    lambda queue, claim, value: queue.release(claim, delay=value),
    lambda queue, claim, value: queue.settle(claim, {claim.ids[0]: Outcome.release(delay=value)}),
    lambda queue, claim, value: queue.settle(claim, {claim.ids[0]: Outcome.failed("x", delay=value)}),
)
WORKING: tuple[Act, ...] = (lambda queue, _, value: queue.claim(worker=value),)
DUE: tuple[Act, ...] = (
    *pushing("due"),
    lambda queue, claim, value: queue.settle(claim, {claim.ids[0]: Outcome.again(value)}),
)
OUTSIDE = timezone(timedelta(hours=14))  # in UTC, its first day begins before the calendar does

NUMBERS: dict[str, tuple[str, tuple[Act, ...], tuple[Any, ...]]] = {
    "B34": ("priority", pushing("priority"), (2**31, 2**15, 101, -101, 10**400)),
    "B35": ("priority", pushing("priority"), (True, False, "5", 1.5, 5.0, None, NAN)),
    "B36": (
        "delay",
        DELAYING,
        (-1, NAN, 1e12, INFINITE, -INFINITE, 10**400, "-1s", timedelta(days=-1), timedelta.max, True),
    ),
    "B37": ("due", DUE, (datetime(2030, 1, 1), "2030-01-01T00:00:00")),  # noqa: DTZ001 - naive on purpose
    "B38": (
        "due",
        DUE,
        (
            "294277-01-01T00:00:00Z",
            datetime.max.replace(tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=OUTSIDE),
            datetime.min.replace(tzinfo=UTC),
        ),
    ),
    "B39": ("due", DUE, ("infinity", "-infinity", INFINITE, 5, "tomorrow")),
    "B40": ("lease", LEASING, (0, -300, 1e9, 0.05, "25h", timedelta(minutes=-5), timedelta(0), 10**400, True)),
    "B41": ("limit", (lambda queue, _, value: queue.claim(value),), (0, -1, None, 10**9, 10_001, "1", 1.0, True)),
    "worker": ("worker", WORKING, ("a\x00b", "\ud800", "x" * 201, 5, None)),
    "B95": ("lease", LEASING, ("-5 min", "abc", "", "5", "1 month", "∞")),
}


@pytest.mark.parametrize("line", NUMBERS)
def test_numbers_and_times(line: str, queue: Queue, sql: Connection) -> None:
    field, acts, values = NUMBERS[line]
    queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        for value in values:
            for act in acts:
                refusal(ValidationError, field, act, queue, claim, value)
    queue.settle(claim)


def test_a_delay_has_many_forms(queue: Queue, sql: Connection) -> None:
    forms: tuple[Any, ...] = (60, 60.0, "1m", "60s", timedelta(minutes=1))
    queue.push_many([{}] * len(forms))
    claim = queue.claim(10)
    queue.settle(claim, {id_: Outcome.failed("x", delay=delay) for id_, delay in zip(claim.ids, forms, strict=True)})
    waits = sql.execute(
        "select distinct due - penstock.clock() > '50 s' from penstock.agenda where task_id = any(%s)", (claim.ids,)
    )
    assert waits.fetchall() == [(True,)]


CREATING: dict[str, tuple[str, tuple[Any, ...]]] = {
    "B40": ("lease", (0, -300, 1e9, "25h", timedelta(minutes=-5), "abc", 10**400)),
    "B42": ("max_attempts", (0, -1, 32_768, 2**31, True, "5", 1.5, NAN)),
    "B95": ("sla", (-1, 0, "abc", NAN, INFINITE, "-5s", timedelta.max)),
}


@pytest.mark.parametrize("line", CREATING)
def test_settings_of_a_queue(line: str, app: Penstock, sql: Connection) -> None:
    field, values = CREATING[line]
    with nothing_changes(sql):
        for value in values:
            refusal(ValidationError, field, app.create_queue, "never", **{field: value})
        if field == "sla":
            for value in values:
                refusal(ValidationError, "keep_done", app.create_queue, "never", keep_done=value)
        if field == "max_attempts":
            for value in (*values, None):
                refusal(ValidationError, "max_crashes", app.create_queue, "never", max_crashes=value)


# --- the same through SQL ---------------------------------------------------------------------------------------------

# Call, SQLSTATE, words of the message. {q}: the queue; {t}: the token of a lease; {i}: the id in it.
IN_SQL: dict[str, tuple[tuple[str, str, str], ...]] = {
    "B01": (("push_many('{q}', array['{{\"a\": \"\\u0000\"}}'])", "22P05", "Unicode"),),
    "B04": (("push_many('{q}', array['{{\"a\": \"\\ud800\"}}'])", "22P02", "json"),),
    "B05": (("push_many('{q}', array['{{\"a\": NaN}}'])", "22P02", "json"),),
    "B07": (("push_many('{q}', array['{{\"a\": 1e200000}}'])", "22003", "numeric"),),
    "B18": (
        ("push('{q}', jsonb_build_object('a', repeat('x', 2 << 20)))", "PS413", "payload"),
        ("push_many('{q}', array['{{}}', '{{' || repeat(' ', 2 << 20) || '}}'])", "PS413", "item 1: payload"),
    ),
    "B34": (
        ("push('{q}', p_priority => 101::smallint)", "PS400", "priority"),
        ("push('{q}', p_priority => (-101)::smallint)", "PS400", "priority"),
        ("push('{q}', p_priority => 2147483648::smallint)", "22003", "smallint"),
        ("reprioritise('{q}', 101::smallint, array[{i}])", "PS400", "priority"),
    ),
    "B36": (
        ("release('{t}', p_delay => '-1 s')", "PS400", "delay"),
        ("settle('{t}', array[{i}], array['failed'], p_delays => '{{-1 s}}')", "PS400", "delay"),
        ("settle('{t}', array[{i}], array['failed'], p_delays => '{{11 years}}')", "PS400", "delay"),
    ),
    "B38": (
        ("push('{q}', p_due => '294277-01-01')", "22008", "294277"),
        ("push('{q}', p_due => '294276-01-01')", "PS400", "due"),
        ("push('{q}', p_due => '4713-01-02 BC')", "PS400", "due"),
        ("settle('{t}', array[{i}], array['again'], '{{4713-01-02 BC}}')", "PS400", "due"),
    ),
    "B39": (
        ("push('{q}', p_due => 'infinity')", "PS400", "due"),
        ("push('{q}', p_due => '-infinity')", "PS400", "due"),
        ("settle('{t}', array[{i}], array['again'], '{{infinity}}')", "PS400", "due"),
        ("reschedule('{q}', 'infinity', array[{i}])", "PS400", "due"),
        ("create_queue('never', p_sla => 'infinity')", "PS400", "sla"),
    ),
    "B40": (
        ("claim('{q}', 1, '0')", "PS400", "lease"),
        ("claim('{q}', 1, '-5 minutes')", "PS400", "lease"),
        ("claim('{q}', 1, '1000000000 s')", "PS400", "lease"),
        ("extend('{t}', '-5 minutes')", "PS400", "lease"),
        ("extend('{t}', '0')", "PS400", "lease"),
        ("create_queue('never', '-5 minutes')", "PS400", "lease"),
    ),
    "B41": (
        ("claim('{q}', 0)", "PS400", "limit"),
        ("claim('{q}', -1)", "PS400", "limit"),
        ("claim('{q}', null)", "PS400", "limit"),
        ("claim('{q}', 1000000000)", "PS400", "limit"),
        ("redrive('{q}', p_limit => 0)", "PS400", "limit"),
        ("redrive('{q}', p_error => '')", "PS400", "error"),
        ("purge('{q}', array['dead'], p_error => '')", "PS400", "error"),
        ("redrive('{q}', array[{i}], p_kind => 'k')", "PS400", "kind"),
        ("purge('{q}', array['dead'], p_limit => 10001)", "PS400", "limit"),
    ),
    "B42": (
        ("create_queue('never', p_max_attempts => 0)", "PS400", "max_attempts"),
        ("create_queue('never', p_max_attempts => -1)", "PS400", "max_attempts"),
        ("create_queue('never', p_max_attempts => 32768)", "PS400", "max_attempts"),
        ("create_queue('never', p_max_crashes => 0)", "PS400", "max_crashes: 0 is not between 1 and 32767"),
        ("create_queue('never', p_max_crashes => 32768)", "PS400", "max_crashes"),
        ("set_queue('{q}', '{{\"max_crashes\": null}}')", "PS400", "max_crashes: null"),
        ("set_queue('{q}', '{{\"max_crashes\": 0}}')", "PS400", "max_crashes: 0"),
    ),
    "B43": (
        ("push('{q}', p_due => '2030-01-01 00:00:00 Mars/Phobos')", "22023", "mars/phobos"),
        ("reschedule('{q}', '2030-01-01 00:00:00 Mars/Phobos', array[{i}])", "22023", "mars/phobos"),
    ),
    "B61": (
        ("purge('{q}', array['active'])", "PS409", "active"),
        ("purge('{q}', array['pending'], array[{i}])", "PS409", "active"),
        ("purge('{q}', array['lost'])", "PS400", "state"),
        ("purge('{q}', '{{}}')", "PS400", "states"),
    ),
    "B64": (("drop_queue('{q}')", "PS409", "has 1 tasks"),),
    "B63": (
        ("cancel('{q}', array[null]::bigint[])", "PS400", "ids"),
        ("cancel('{q}', p_subjects => array[null])", "PS400", "subjects"),
        ("redrive('{q}', array[{i}, null])", "PS400", "ids"),
        ("reschedule('{q}', now(), array[null]::bigint[])", "PS400", "ids"),
        ("purge('{q}', array['dead'], array[null]::bigint[])", "PS400", "ids"),
        ("settle('{t}', array[{i}, null])", "PS400", "ids"),
        ("settle('{t}', array[null]::bigint[])", "PS400", "ids"),
        ("release('{t}', array[null]::bigint[])", "PS400", "ids"),
    ),
    "B95": (
        ("claim('{q}', 1, 'abc')", "22007", "interval"),
        ("create_queue('never', p_sla => '-1 s')", "PS400", "sla"),
        ("create_queue('never', p_sla => '0')", "PS400", "sla"),
        ("create_queue('never', p_keep_done => '-1 s')", "PS400", "keep_done"),
    ),
    "B96": (
        ("push_many('{q}', array_fill('{{}}'::text, array[1000000]))", "PS400", "payloads"),
        ("push_many('{q}', array[['{{}}', '{{}}'], ['{{}}', '{{}}']])", "PS400", "payloads"),
        ("push_many('{q}', array['{{}}', '{{}}'], array['a'])", "PS400", "subjects"),
        ("push_many('{q}', array['{{}}', '{{}}'], array[['a', 'b']])", "PS400", "subjects"),
        ("push_many('{q}', array['{{}}'], p_kinds => array['a', 'b'])", "PS400", "kinds"),
        ("push_many('{q}', array['{{}}'], p_dues => '{{}}')", "PS400", "dues"),
        ("push_many('{q}', array['{{}}'], p_priorities => '{{1,2}}')", "PS400", "priorities"),
        ("settle('{t}', array_fill(1::bigint, array[1000000]))", "PS400", "ids"),
        ("settle('{t}', array[[{i}]])", "PS400", "ids"),
        ("settle('{t}', array[{i}, {i}])", "PS400", "ids"),
        ("settle('{t}', array[{i}], array['done', 'done'])", "PS400", "outcomes"),
        ("settle('{t}', array[{i}], array[['done']])", "PS400", "outcomes"),
        ("settle('{t}', array[{i}], array['done'], p_errors => '{{}}')", "PS400", "errors"),
        ("cancel('{q}', array_fill(1::bigint, array[10001]))", "PS400", "ids"),
        ("cancel('{q}', array[[{i}]])", "PS400", "ids"),
        ("cancel('{q}', array[{i}, {i}])", "PS400", "ids"),
        ("cancel('{q}')", "PS400", "ids"),
        ("reprioritise('{q}', 5::smallint, p_subjects => array[['a']])", "PS400", "subjects"),
    ),
    "B97": (
        ("push('{q}', '[]')", "PS422", "payload"),
        ("push('{q}', '5')", "PS422", "payload"),
        ("push('{q}', 'null')", "PS422", "payload"),
        ("push('{q}', '\"{{\"')", "PS422", "payload"),
        ("push_many('{q}', array['{{}}', ' [1]'])", "PS422", "item 1: payload"),
        ("settle('{t}', array[{i}], array['again'], p_payloads => array['[]'])", "PS422", "payload"),
    ),
}


@pytest.mark.parametrize("line", IN_SQL)
def test_sql_functions(line: str, queue: Queue, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        for statement, state, field in IN_SQL[line]:
            filled = statement.format(q=queue.name, t=claim.token, i=claim.ids[0])
            refused_by_sql(sql, f"select penstock.{filled}", state, field)
    queue.settle(claim)


# The arguments of each verb, with a good value and the meaning of NULL: a refusal that names it, or the default.
NULLS: dict[str, dict[str, tuple[str, str]]] = {
    "push": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_payload": ("'{{}}'", "PS422 payload"),
        "p_subject": ("'s'", "PS400 subject"),  # a throttle needs one
        "p_kind": ("'k'", "default"),
        "p_due": ("now()", "default"),
        "p_priority": ("5::smallint", "default"),
        "p_on_conflict": ("'skip'", "PS400 on_conflict"),
        "p_key": ("'k'", "default"),
        "p_meta": ("'{{}}'", "default"),
        "p_expires": ("now() + interval '1 h'", "default"),
        "p_debounce": ("null", "default"),
        "p_at_most": ("null", "default"),
        "p_throttle": ("'1 h'", "default"),
    },
    "push_many": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_payloads": ("array['{{}}']", "PS400 payloads"),
        "p_subjects": ("array['s']", "PS400 subject"),  # a throttle needs them
        "p_kinds": ("array['k']", "default"),
        "p_dues": ("array[now()]", "default"),
        "p_priorities": ("array[5::smallint]", "default"),
        "p_on_conflict": ("'skip'", "PS400 on_conflict"),
        "p_keys": ("array['k']", "default"),
        "p_metas": ("array['{{}}']", "default"),
        "p_expires": ("array[now() + interval '1 h']", "default"),
        "p_debounce": ("null", "default"),
        "p_at_most": ("null", "default"),
        "p_throttle": ("'1 h'", "default"),
    },
    "claim": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_limit": ("1", "PS400 limit"),
        "p_lease": ("'1 min'::interval", "default"),
        "p_worker": ("'w'", "PS400 worker"),
        "p_hint": ("null::penstock.place", "default"),
        "p_quarantined": ("true", "PS400 quarantined"),
        "p_durable": ("true", "PS400 durable"),
    },
    "extend": {"p_token": ("'{t}'::uuid", "PS400 token"), "p_lease": ("'1 h'::interval", "default")},
    "extend_many": {
        "p_tokens": ("array['{t}']::uuid[]", "PS400 tokens"),
        "p_lease": ("'1 h'::interval", "default"),
    },
    "settle": {
        "p_token": ("'{t}'::uuid", "PS400 token"),
        "p_ids": ("array[{i}]::bigint[]", "PS400 ids"),
        "p_outcomes": ("array['failed']", "default"),
        "p_dues": ("array[now()]", "default"),
        "p_delays": ("array['1 s'::interval]", "default"),
        "p_payloads": ("array['{{}}']", "default"),
        "p_errors": ("array['e']", "default"),
        "p_classes": ("array['c']", "default"),
        "p_wait": ("true", "PS400 wait"),
    },
    "release": {
        "p_token": ("'{t}'::uuid", "PS400 token"),
        "p_ids": ("array[{i}]::bigint[]", "default"),
        "p_delay": ("'1 s'::interval", "default"),
        "p_wait": ("true", "PS400 wait"),
    },
    "create_queue": {
        "p_name": ("'never'", "PS400 queue"),
        "p_lease": ("'1 s'::interval", "PS400 lease"),
        "p_max_attempts": ("1", "default"),
        "p_retry": ('\'{{"type": "fixed", "delay": 1}}\'::jsonb', "PS400 retry"),
        "p_sla": ("'1 s'::interval", "default"),
        "p_keep_done": ("'1 s'::interval", "default"),
        "p_keep_dead": ("'1 s'::interval", "default"),
        "p_keep_cancelled": ("'1 s'::interval", "default"),
        "p_settings": ("'{{}}'::jsonb", "PS400 settings"),
        "p_exist_ok": ("false", "PS400 exist_ok"),
        "p_max_crashes": ("1", "PS400 max_crashes"),
        "p_priority_step": ("'1 s'::interval", "default"),
    },
    "set_queue": {"p_name": ("'{q}'", "PS404 queue"), "p_changes": ('\'{{"sla": "5 s"}}\'::jsonb', "PS400 changes")},
    "cancel": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_ids": ("array[{i}]::bigint[]", "default"),
        "p_subjects": ("array['s']", "default"),
        "p_reason": ("'why'", "default"),
    },
    "redrive": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_ids": ("null::bigint[]", "default"),
        "p_subjects": ("null::text[]", "default"),
        "p_kind": ("'k'", "default"),
        "p_error": ("'e'", "default"),
        "p_since": ("now()", "default"),
        "p_limit": ("1", "PS400 limit"),
    },
    "reschedule": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_due": ("now()", "PS400 due"),
        "p_ids": ("array[{i}]::bigint[]", "default"),
        "p_subjects": ("array['s']", "default"),
    },
    "reprioritise": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_priority": ("5::smallint", "PS400 priority"),
        "p_ids": ("array[{i}]::bigint[]", "default"),
        "p_subjects": ("array['s']", "default"),
    },
    "purge": {
        "p_queue": ("'{q}'", "PS404 queue"),
        "p_states": ("array['dead']", "PS400 states"),
        "p_ids": ("array[0]::bigint[]", "default"),
        "p_kind": ("'k'", "default"),
        "p_error": ("'e'", "default"),
        "p_before": ("now()", "default"),
        "p_limit": ("1", "PS400 limit"),
    },
    "drop_queue": {"p_queue": ("'{q}'", "PS404 queue"), "p_force": ("true", "PS400 force")},
    "beat": {
        "p_worker": ("'w'", "PS400 worker"),
        "p_queues": ("array['{q}']", "PS400 queues"),
        "p_slots": ("1", "PS400 slots"),
        "p_busy": ("0", "PS400 busy"),
        "p_host": ("'h'", "PS400 host"),
        "p_pid": ("1", "default"),
        "p_requested_at": ("now()", "default"),
        "p_started_by": ("'s'", "default"),
        "p_leaving": ("false", "PS400 leaving"),
        "p_listens": ("true", "PS400 listens"),
    },
    "beat_all": {
        "p_workers": ("'[]'", "PS400 workers"),
        "p_queues": ("array['{q}']", "PS400 queues"),
        "p_slots": ("1", "PS400 slots"),
        "p_host": ("'h'", "PS400 host"),
        "p_started_by": ("'s'", "default"),
        "p_leaving": ("false", "PS400 leaving"),
        "p_known": ("1", "default"),
    },
    "prepare_work": {"p_queues": ("array['{q}']", "PS400 queues"), "p_kinds": ("'{{}}'", "PS400 kinds")},
    "set_kinds": {"p_queue": ("'{q}'", "PS404 queue"), "p_kinds": ("'[]'", "PS400 kinds")},
    "note_failures": {
        "p_adopted": ("1", "default"),
        "p_failed": ("'[]'", "default"),
        "p_succeeded": ("'[]'", "default"),
    },
    "status": {"p_queue": ("'{q}'", "default")},
    "verify": {"p_queue": ("'{q}'", "default")},
    "repair": {"p_queue": ("'{q}'", "default")},
}
MAY_ANSWER_NOTHING = ("verify", "repair", "cancel", "redrive", "reschedule", "reprioritise")


@pytest.mark.parametrize("line", ["B89"])
def test_null_is_refused_or_a_default(line: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim()
    for verb, arguments in NULLS.items():
        known = sql.execute(
            "select distinct proargnames[1:pronargs] from pg_proc"
            " where pronamespace = 'penstock'::regnamespace and proname = %s",
            (verb,),
        ).fetchall()
        assert known == [(list(arguments),)], "an argument that this test does not know"
        for nulled, (_, meaning) in arguments.items():
            written = (f"{name} => {'null' if name == nulled else good}" for name, (good, _) in arguments.items())
            statement = f"select * from penstock.{verb}({', '.join(written)})"
            statement = statement.format(q=queue.name, t=claim.token, i=claim.ids[0])
            with nothing_changes(sql):
                if meaning == "default":
                    with sql.transaction(force_rollback=True):
                        assert sql.execute(statement.encode()).fetchall() or verb in MAY_ANSWER_NOTHING, statement
                else:
                    refused_by_sql(sql, statement, *meaning.split())
    queue.settle(claim)


@pytest.mark.parametrize("line", ["B91"])
def test_in_a_read_only_transaction(line: str, queue: Queue, sql: Connection, dsn: str) -> None:
    queue.push()
    claim = queue.claim()
    writes = (
        "push('{q}')",
        "push_many('{q}', array['{{}}'])",
        "claim('{q}')",
        "extend('{t}')",
        "settle('{t}', array[{i}])",
        "release('{t}')",
        "create_queue('never')",
    )
    with nothing_changes(sql):
        for call in writes:
            statement = (
                f"set transaction read only; select penstock.{call.format(q=queue.name, t=claim.token, i=claim.ids[0])}"
            )
            refused_by_sql(sql, statement, "25006", "read-only")
        with sql.transaction():
            sql.execute("set transaction read only")
            assert len(sql.execute("select * from penstock.status(%s)", (queue.name,)).fetchall()) == 1
            assert sql.execute("select * from penstock.verify(%s)", (queue.name,)).fetchall() == []

        with Penstock(make_conninfo(dsn, options="-c default_transaction_read_only=on")) as replica:
            same = replica.queue(queue.name)
            acts: tuple[Callable[[], object], ...] = (
                same.push,
                lambda: same.push_many([{}]),
                lambda: same.push_many([NewTask({}, "s")]),
                same.claim,
                lambda: same.extend(claim),
                lambda: same.settle(claim),
                lambda: same.release(claim),
                lambda: replica.create_queue("never"),
            )
            for act in acts:
                with pytest.raises(Unavailable, match="read-only") as refused:
                    act()
                assert refused.value.reason == "read_only"
            assert same.status().active == 1
            assert same.verify().ok
    queue.settle(claim)


@pytest.mark.parametrize("line", ["B92"])
def test_under_another_isolation_level(line: str, queue: Queue, sql: Connection, dsn: str) -> None:
    queue.push_many([{}, {}])
    for level in ("serializable", "repeatable read"):
        with nothing_changes(sql):
            begin = f"set transaction isolation level {level};"
            refused_by_sql(sql, f"{begin} select penstock.claim('{queue.name}')", "PS400", level)
        claim = queue.claim(1)
        with sql.transaction():
            sql.execute(f"set transaction isolation level {level}")
            assert len(sql.execute("select * from penstock.push(%s)", (queue.name,)).fetchall()) == 1
            assert len(sql.execute("select * from penstock.extend(%s)", (claim.token,)).fetchall()) == 1
            assert sql.execute("select result from penstock.settle(%s, %s)", (claim.token, claim.ids)).fetchall() == [
                ("done",)
            ]
            assert sql.execute("select pending, active from penstock.status(%s)", (queue.name,)).fetchall() == [(2, 0)]

    claim = queue.claim(1)
    with psycopg.connect(dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        other.execute("select 1")
        queue.extend(claim)
        with pytest.raises(psycopg.errors.SerializationFailure):
            other.execute("select penstock.extend(%s)", (claim.token,))
        other.rollback()

    with Penstock(make_conninfo(dsn, options="-c default_transaction_isolation=serializable")) as strict:
        assert len(strict.queue(queue.name).claim(1)) == 1


# --- lifecycle --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["B47"])
def test_settling_twice(line: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim(2)
    queue.settle(claim, claim.ids[:1])
    with nothing_changes(sql):
        lost = refusal(LeaseLost, "no longer ours", queue.settle, claim, claim.ids[:1])
    assert lost.refused == tuple(claim.ids[:1])
    queue.settle(claim, claim.ids[1:])
    with nothing_changes(sql):
        lost = refusal(LeaseLost, "no longer ours", queue.settle, claim)
    assert lost.refused == tuple(claim.ids)


@pytest.mark.parametrize("line", ["B48"])
def test_a_token_that_is_not_ours(line: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}, {}])
    old, mine, other = queue.claim(1), queue.claim(1), queue.claim(1)
    queue.release(old)
    with nothing_changes(sql):
        for token in (uuid4(), old.token):
            assert token is not None
            for outcome in (Outcome.done(), Outcome.failed("x"), Outcome.again(), Outcome.dead("x"), Outcome.release()):
                refusal(LeaseLost, "ours", queue.settle, token, {mine.ids[0]: outcome})
            refusal(LeaseLost, "lost", queue.extend, token)
        refusal(LeaseLost, "lost", queue.release, old)
        refusal(NotFound, "id", queue.settle, other.token, mine.ids)
    queue.settle(mine)
    queue.settle(other)


@pytest.mark.parametrize("line", ["B48"])
def test_release_refuses_a_bare_token_that_is_lost(line: str, queue: Queue, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    queue.settle(claim)
    with nothing_changes(sql):
        for token in (claim.token, uuid4()):
            assert token is not None
            refusal(LeaseLost, "lost", queue.release, token)


@pytest.mark.parametrize("line", ["B49"])
def test_a_token_is_a_uuid_or_its_text(line: str, queue: Queue, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        for token in ("", "abc", "x" * 36, 5, b"x" * 16, 1.5, str(claim.token)[:-1], f"{claim.token}0"):
            for act in (queue.extend, queue.release, lambda token: queue.settle(token, claim.ids)):
                refusal(ValidationError, "token", act, token)
        refusal(ValidationError, "UUID", queue.push_many, [{}], batch_id="abc")
    queue.extend(str(claim.token))
    queue.settle(str(claim.token).upper(), claim.ids)


@pytest.mark.parametrize("line", ["B51"])
def test_an_id_that_is_unknown(line: str, queue: Queue, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        refusal(NotFound, "id: 4611686018427387904", queue.settle, claim, [2**62])
        for bad in (0, -1, 2**63, "abc", 1.5, True):
            refusal(ValidationError, "id", queue.settle, claim, [bad])
        refusal(ValidationError, "id", queue.settle, claim, claim.ids * 2)
        refusal(ValidationError, "outcome", queue.settle, claim, {claim.ids[0]: Outcome("finished")})
        refusal(ValidationError, "outcome", queue.settle, claim, {claim.ids[0]: "done"})
    queue.settle(claim)


@pytest.mark.parametrize(
    ("line", "text", "stored"),
    [
        ("B52", "boom " * 2_000_000, None),
        ("B52", "boom " + "😀" * 2_000 + "x" * 10_000, None),
        (
            "B53",
            "nul \x00, half \ud800, red \x1b[31m, csi \x9b1m, bell \x07",
            "nul \\x00, half \\ud800, red ?[31m, csi ?1m, bell ?",
        ),
    ],
    ids=["B52", "B52-of-letters", "B53"],
)
def test_error_texts_are_cut_and_escaped(
    line: str, text: str, stored: str | None, queue: Queue, sql: Connection
) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim(2)
    queue.settle(claim, dict(zip(claim.ids, (Outcome.failed(ValueError(text)), Outcome.dead(text)), strict=True)))
    rows = [
        *sql.execute("select error from penstock.task where id = any(%s)", (claim.ids,)),
        *sql.execute("select error from penstock.history where task_id = any(%s)", (claim.ids,)),
    ]
    assert len(rows) == 4
    for (kept,) in rows:
        assert kept == stored if stored else kept.startswith("boom") and "cut" in kept and len(kept.encode()) <= 8192


@pytest.mark.parametrize("line", ["B50"])
def test_a_heartbeat_after_a_cancel(line: str, queue: Queue, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    queue.cancel(claim.ids)
    with nothing_changes(sql):
        lost = refusal(LeaseLost, "cancelled", queue.extend, claim)
        late = refusal(LeaseLost, "cancelled", queue.settle, claim)
    assert lost.reason == late.reason == "cancelled"
    assert lost.revoked == late.revoked == tuple(claim.ids)


@pytest.mark.parametrize("line", ["B43"])
def test_a_zone_that_is_not_on_earth(line: str, queue: Queue, sql: Connection, dsn: str) -> None:
    moment = "2030-01-01T00:00:00 Mars/Phobos"
    with nothing_changes(sql):
        refusal(ValidationError, "due", queue.push, due=moment)
        refusal(ValidationError, "item 0: due", queue.push_many, [NewTask({}, due=moment)])  # type: ignore[arg-type]
        ran = penstock("push", queue.name, dsn=dsn, stdin=f'{{"payload": {{}}, "due": "{moment}"}}')
    assert ran.code == 2
    assert "line 1: due" in ran.err


@pytest.mark.parametrize("line", ["B61"])
def test_verbs_on_tasks_in_the_wrong_state(line: str, app: Penstock, sql: Connection) -> None:
    queue = app.create_queue(f"bad-{next(NUMBER)}", keep_done="1h")
    done = queue.push()
    queue.settle(queue.claim())
    active = queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        refusal(Conflict, f"id: {done.id} is done", queue.redrive, [done.id])
        refusal(Conflict, "active", queue.purge, "active")
        refusal(Conflict, f"id: {active.id} is active", queue.purge, "pending", ids=[active.id])
    assert queue.cancel([active.id]) == {active.id: "revoked"}, "accepted"
    refusal(LeaseLost, "cancelled", queue.settle, claim)


@pytest.mark.parametrize("line", ["B64"])
def test_pause_then_drain_and_a_drop_with_leased_tasks(line: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim()
    queue.pause()
    with nothing_changes(sql):
        assert queue.claim().tasks == ()
        refusal(Conflict, "has 2 tasks", queue.drop)
    queue.settle(claim)
    queue.resume()
    queue.settle(queue.claim())


@pytest.mark.parametrize("line", ["B41"])
def test_limits_of_the_other_verbs(line: str, queue: Queue, sql: Connection) -> None:
    with nothing_changes(sql):
        for limit in (0, -1, 1.5, True, "1"):
            refusal(ValidationError, "limit", queue.redrive, limit=limit)
            refusal(ValidationError, "limit", queue.purge, "dead", limit=limit)
            refusal(ValidationError, "limit", queue.tasks, limit=limit)
        for priority in (101, -101, True, "5", 1.5, None):
            refusal(ValidationError, "priority", queue.reprioritise, priority, [1])
        for ids in ([0], [-1], [True], ["1"], [1, 1], [2**63]):
            for verb in (queue.cancel, queue.redrive):
                refusal(ValidationError, "id", verb, ids)


@pytest.mark.parametrize("line", ["B48"])
def test_a_claim_of_another_queue(line: str, queue: Queue, app: Penstock, sql: Connection) -> None:
    queue.push()
    claim, other = queue.claim(), app.create_queue(f"bad-{next(NUMBER)}")
    with nothing_changes(sql):
        for verb in (other.settle, other.extend, other.release):
            refusal(ValidationError, "claim", verb, claim)
    queue.settle(claim)


@pytest.mark.parametrize("line", ["B18"])
def test_the_payload_of_again_is_held_to_the_limit(line: str, app: Penstock, sql: Connection) -> None:
    queue = app.create_queue(f"bad-{next(NUMBER)}", max_payload=20)
    pushed = queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        refusal(
            PayloadTooLarge,
            "payload: 21 bytes",
            queue.settle,
            claim,
            {pushed.id: Outcome.again(payload={"a": "x" * 13})},
        )
    assert queue.settle(claim, {pushed.id: Outcome.again(payload={"a": "x" * 12})}) == {pushed.id: "pending"}


@pytest.mark.parametrize("line", ["B29"])
def test_texts_that_choose_tasks(line: str, queue: Queue, app: Penstock, sql: Connection) -> None:
    with nothing_changes(sql):
        for text in ("", "\ud800", "\x00", 5):
            refusal(ValidationError, "error", queue.redrive, error=text)
            refusal(ValidationError, "error", queue.purge, "dead", error=text)
            refusal(ValidationError, "kind", queue.tasks, kind=text)
            refusal(ValidationError, "subject", queue.tasks, subject=text)
            refusal(ValidationError, "subject", queue.cancel, subjects=[text])
            refusal(ValidationError, "queue", app.repair, text)
        for state in ("nonsense", 5, ""):
            refusal(ValidationError, "state", queue.tasks, state=state)
        for after in (-1, 2**63, "1", True):
            refusal(ValidationError, "after", queue.tasks, after=after)
    pushed = queue.push()
    assert queue.cancel([pushed.id], reason="\ud800 \x00") == {pushed.id: "cancelled"}, "the reason is stored escaped"


@pytest.mark.parametrize("line", ["B62"])
def test_an_empty_batch_is_no_error(line: str, queue: Queue, sql: Connection) -> None:
    with nothing_changes(sql):
        nowhere = Penstock("host=127.0.0.1 port=1").queue("nowhere")  # any SQL would fail here
        assert nowhere.push_many([]).total == 0
        assert nowhere.push_many(iter(())).counts == dict.fromkeys(COUNTS, 0)
        assert nowhere.settle(uuid4(), []) == {}
        assert nowhere.settle(uuid4(), {}) == {}
        assert queue.settle(queue.claim()) == {}
        assert queue.release(queue.claim()) == {}
        assert sql.execute("select * from penstock.push_many(%s, '{}')", (queue.name,)).fetchall() == []
        assert sql.execute("select * from penstock.settle(gen_random_uuid(), '{}')").fetchall() == []


@pytest.mark.parametrize("line", ["B63"])
def test_none_among_ids(line: str, queue: Queue, sql: Connection) -> None:
    queue.push()
    claim = queue.claim()
    with nothing_changes(sql):
        refusal(ValidationError, "id", queue.settle, claim, [claim.ids[0], None])
        refusal(ValidationError, "id", queue.settle, claim, {None: Outcome.done()})
    queue.settle(claim)


# --- the shell --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["B79"])
def test_unknown_commands_and_options_name_the_nearest(line: str) -> None:
    words = (
        ("statsu",),
        ("push", "q", "--fiel", "x"),
        ("queues", "crate", "q"),
        ("queues", "create", "q", "--max-attempt", "5"),
    )
    for ran, nearest in zip(each(*words), ("status", "--file", "create", "--max-attempts"), strict=True):
        assert ran.code == 2
        assert nearest in ran.err
        assert ran.out == ""


SECRET = "s3kr3t"
DSNS: tuple[tuple[str, int, str], ...] = (
    # DSN, exit code, error code; {dsn} is a valid DSN
    ("{dsn} password=s3kr3t", 3, AuthError.code),
    ("{dsn} dbname=nowhere password=''", 3, ConfigError.code),
    ("password=s3kr3t hots=x", 3, ConfigError.code),
    ("mysql://u:s3kr3t@h/x", 3, ConfigError.code),
    ("host=127.0.0.1 port=1 password=s3kr3t", 4, Unavailable.code),
    ("postgresql://u:s3kr3t@127.0.0.1:1/x", 4, Unavailable.code),
    ("host=/nonexistent password=s3kr3t", 4, Unavailable.code),
)


@pytest.mark.parametrize("line", ["B80"])
def test_a_dsn_that_leads_nowhere(line: str, dsn: str) -> None:
    tries = [given.format(dsn=dsn).replace(" password=''", "") for given, _, _ in DSNS]
    for ran, (given, code, said) in zip(each(*(("status", "--dsn", one) for one in tries)), DSNS, strict=True):
        assert (ran.code, ran.out) == (code, ""), (given, ran.err)
        assert ran.err.startswith(f"error {said}: "), given
        assert is_one_block(ran.err)
        assert SECRET not in ran.err


@pytest.mark.parametrize("line", ["B80"])
def test_a_password_with_marks_in_it_is_not_echoed(line: str) -> None:
    """Marks that are not percent-encoded end up in the host or the database's name, in libpq and in our messages."""
    given = (
        "postgresql://u:a@s3kr3t@127.0.0.1:1/x",
        "postgresql://u:a/s3kr3t@127.0.0.1:1/x",
        "postgresql://u:s3kr3t/a@127.0.0.1:1/x",
    )
    for ran in each(*(("status", "--dsn", one) for one in given)):
        assert ran.code == 3
        assert SECRET not in ran.err


@pytest.mark.parametrize("line", ["B80"])
def test_a_port_that_is_none_is_configuration(line: str) -> None:
    for ran in each(("status", "--dsn", "host=127.0.0.1 port=abc"), ("status", "--dsn", "host=127.0.0.1 port=99999")):
        assert ran.code == 3
        assert "port" in ran.err


@pytest.mark.parametrize("line", ["B81"])
def test_closed_streams(line: str, dsn: str, queue: Queue) -> None:
    """Standard streams are closed: `| head` that has ended, `<&-`, `>&-`."""
    for arguments in (("status",), ("status", "--json")):
        reader, writer = os.pipe()
        os.close(reader)
        ran = subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(dsn),
            check=False,
        )
        os.close(writer)
        assert ran.returncode in (0, 141)
        assert ran.stderr == b""
    closed = [
        "sh",
        "-c",
        f'"$@" push {queue.name} <&- && echo \'{{"payload": {{}}}}\' | "$@" push {queue.name} >&-',
        "sh",
        *COMMAND,
    ]
    ran = subprocess.run(closed, capture_output=True, env=environment(dsn), check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"nothing to push\n", b"")
    assert queue.status().pending == 1


@pytest.mark.parametrize("line", ["B82"])
def test_a_bad_line_is_named_and_nothing_is_written(
    line: str, dsn: str, queue: Queue, sql: Connection, tmp_path: Path
) -> None:
    bad = {
        "{broken": "not JSON",
        '{"payload": {"a": "\\u0000"}, "subject": "s"}': "payload.a",
        '{"payload": {}, "priority": 101}': "priority",
        '{"payload": {}, "due": "2030-01-01"}': "due",
        '{"payload": {}, "subjekt": "x"}': "Did you mean subject?",
        '{"payload": {"n": 123456789012345678901234567890}}': "payload.n",
    }
    good = '{"payload": {}}\n'
    files = [tmp_path / str(n) for n in range(len(bad))]
    for file, text in zip(files, bad, strict=True):
        file.write_text("\n" + good * 20 + "\n \n" + good * 33 + text + "\n" + good * 3)
    with nothing_changes(sql):
        commands = (("push", queue.name, "--file", str(file), "--json") for file in files)
        for ran, word in zip(each(*commands, dsn=dsn), bad.values(), strict=True):
            assert (ran.code, ran.out) == (2, "")
            assert "line 57: " in ran.err
            assert word in ran.err


@pytest.mark.parametrize("line", ["B83"])
def test_line_ends_marks_and_long_lines(line: str, dsn: str, queue: Queue, tmp_path: Path) -> None:
    strange = tmp_path / "strange.jsonl"
    strange.write_bytes(
        b'\xef\xbb\xbf{"payload": {"n": 1}}\r\n\r\n  {"payload": {"n": 2}}\r\n{"payload": {"n": "\xc3\xbc"}}'
    )
    ran = penstock("push", queue.name, "--file", str(strange), "--json", dsn=dsn)
    assert (ran.code, ran.json["created"]) == (0, 3)
    assert [task.payload["n"] for task in queue.claim(10).tasks] == [1, 2, "ü"]

    strange.write_bytes(b'{"payload": {}}\n{"payload": {"a": "' + b"x" * (20 << 20) + b'"}}\n')
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"payload": {"a": "ü"}}'.encode("latin-1"))
    long, large, wrong = each(
        ("push", queue.name, "--file", str(strange)),
        ("push", queue.name, "--file", str(small_but_large(tmp_path))),
        ("push", queue.name, "--file", str(latin)),
        dsn=dsn,
    )
    assert [long.code, large.code, wrong.code] == [2, 2, 2]
    assert "line 2: it is longer than" in long.err
    assert "line 1: payload: " in large.err
    assert "line 1: it is not JSON" in wrong.err
    assert queue.status().totals["pushed"] == 3


def small_but_large(directory: Path) -> Path:
    """Writes a line that can be read, with a payload that is too large."""
    file = directory / "large.jsonl"
    file.write_bytes(b'{"payload": {"a": "' + b"x" * (2 << 20) + b'"}}\n')
    return file


@pytest.mark.parametrize("line", ["B85"])
def test_another_schema(line: str, make_database: Callable[..., str]) -> None:
    empty, newer, older = make_database("template0"), make_database(), make_database()
    with psycopg.connect(newer) as connection:
        for number in ("contract", "oldest_client"):
            connection.execute(f"create or replace function penstock.{number}() returns int language sql return 9999")
    with psycopg.connect(older) as connection:
        connection.execute("drop function penstock.status(text) cascade")
    missing, old, new = each(("status", "--dsn", empty), ("status", "--dsn", older), ("init", "--dsn", newer))
    for ran in (missing, old, new):
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.startswith(f"error {SchemaVersionError.code}: ")
        assert is_one_block(ran.err)
    assert "penstock init" in missing.err
    assert "penstock init" in old.err
    assert "9999" in new.err
    assert "pip install -U penstock" in new.err


@pytest.mark.parametrize("line", ["B86"])
def test_a_read_only_server(line: str, dsn: str, queue: Queue, sql: Connection) -> None:
    replica = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    with nothing_changes(sql):
        push = penstock("push", queue.name, dsn=replica, stdin='{"payload": {}}')
        create, status = each(("queues", "create", "never"), ("status", queue.name, "--json"), dsn=replica)
    for ran in (push, create):
        assert (ran.code, ran.out) == (4, "")
        assert ran.err.startswith(f"error {Unavailable.code}: ")
        assert "primary" in ran.err
    assert status.code == 0


@pytest.mark.parametrize("line", ["B87"])
def test_the_flag_wins_over_the_environment(line: str, dsn: str) -> None:
    elsewhere = {"PENSTOCK_DSN": "host=127.0.0.1 port=1", "DATABASE_URL": "host=127.0.0.1 port=2"}
    ran = penstock("status", "--dsn", dsn, "-v", env=elsewhere)
    assert ran.code == 0
    assert "from the dsn given; PENSTOCK_DSN and DATABASE_URL not used" in ran.err


@pytest.mark.parametrize("line", ["B88"])
def test_a_terminal_without_letters(line: str, dsn: str, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "Ünï.jsonl"
    file.write_text('{"payload": {"to": "Ünï"}, "subject": "Ünï"}', "utf-8")
    ascii_only = {
        "LANG": "C",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    ran = penstock("push", queue.name, "--file", str(file), dsn=dsn, env=ascii_only)
    assert (ran.code, ran.out) == (0, "1 created\n")
    shown, listed, again = each(
        ("status", queue.name),
        ("push", "--help"),
        ("push", queue.name, "-f", str(tmp_path / "Ö")),
        dsn=dsn,
        env=ascii_only,
    )
    assert shown.code == listed.code == 0
    assert "\\u2013" in shown.out
    assert again.code == 2
    assert (shown.out + listed.out + again.err).isascii()
    assert queue.claim().tasks[0].payload == {"to": "Ünï"}
