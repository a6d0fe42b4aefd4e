"""Pushes on the caller's own connection, with the real libraries: the task exists if and only if the caller commits."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]
import django.conf  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from django.db import connections, transaction
from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]
from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row, tuple_row
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as new_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from penstock import (
    AsyncPenstock,
    ConfigError,
    Conflict,
    NewTask,
    NotFound,
    PayloadError,
    PayloadTooLarge,
    Penstock,
    PenstockError,
    Queue,
    ValidationError,
)
from penstock.client.borrowed import refusal

NOWHERE = "postgresql://127.0.0.1:1/nowhere"  # a push on the caller's connection opens no other

if not django.conf.settings.configured:
    EMPTY = {"ENGINE": "django.db.backends.postgresql", "NAME": "unused"}
    LITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    django.conf.settings.configure(DATABASES={"default": EMPTY, "lite": LITE}, USE_TZ=True)
    django.setup()


# --- the libraries ----------------------------------------------------------------------------------------------------


class Loan:
    """The caller's connection, and what the caller does with it. All calls are awaited, sync or not."""

    def __init__(self, given: object, *, work: Any, ask: Any, begin: Any, commit: Any, rollback: Any) -> None:
        self.given = given
        self.work = work
        self.ask = partial(call, ask)
        self.begin = partial(call, begin)
        self.commit = partial(call, commit)
        self.rollback = partial(call, rollback)
        self.push = partial(call, work.push, connection=given)
        self.push_many = partial(call, work.push_many, connection=given)
        self.upsert_many = partial(call, work.upsert_many, connection=given)


async def call(what: Any, *given: Any, **named: Any) -> Any:
    found = what(*given, **named)
    return await found if inspect.isawaitable(found) else found


def nothing() -> None:
    """Does nothing: the library begins by itself."""


Lender = Callable[[str], AbstractAsyncContextManager[Loan]]
SYNC, ASYNC = Penstock(NOWHERE).queue("work"), AsyncPenstock(NOWHERE).queue("work")


@asynccontextmanager
async def of_psycopg(dsn: str, **options: Any) -> AsyncIterator[Loan]:
    with closing(psycopg.connect(dsn, **options)) as mine:

        def ask(statement: str) -> list[tuple[Any, ...]]:
            cursor = psycopg.Cursor(mine, row_factory=tuple_row)
            cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield Loan(mine, work=SYNC, ask=ask, begin=nothing, commit=mine.commit, rollback=mine.rollback)


@asynccontextmanager
async def of_async_psycopg(dsn: str, **options: Any) -> AsyncIterator[Loan]:
    mine = await psycopg.AsyncConnection.connect(dsn, **options)

    async def ask(statement: str) -> list[tuple[Any, ...]]:
        cursor = psycopg.AsyncCursor(mine, row_factory=tuple_row)
        await cursor.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []

    try:
        yield Loan(mine, work=ASYNC, ask=ask, begin=nothing, commit=mine.commit, rollback=mine.rollback)
    finally:
        await mine.close()


def parts(dsn: str) -> dict[str, Any]:
    """Returns the parts of a DSN as asyncpg takes them."""
    found = psycopg.conninfo.conninfo_to_dict(dsn)
    found["database"] = found.pop("dbname")
    return {key: value for key, value in found.items() if key in ("host", "port", "user", "passfile", "database")}


def asyncpg_loan(mine: Any) -> Loan:
    open_: list[Any] = []

    async def begin() -> None:
        open_.append(mine.transaction())
        await open_[-1].start()

    async def ask(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await mine.fetch(statement)]

    async def end(how: str) -> None:
        await getattr(open_.pop(), how)()

    return Loan(
        mine, work=ASYNC, ask=ask, begin=begin, commit=partial(end, "commit"), rollback=partial(end, "rollback")
    )


@asynccontextmanager
async def of_asyncpg(dsn: str, **options: Any) -> AsyncIterator[Loan]:
    mine = await asyncpg.connect(**parts(dsn), **options)
    try:
        yield asyncpg_loan(mine)
    finally:
        await mine.close()


@asynccontextmanager
async def of_asyncpg_pool(dsn: str) -> AsyncIterator[Loan]:
    async with asyncpg.create_pool(**parts(dsn), min_size=1, max_size=2) as pool, pool.acquire() as mine:
        yield asyncpg_loan(mine)


def sqlalchemy_loan(mine: Any, work: Any) -> Loan:
    async def ask(statement: str) -> list[tuple[Any, ...]]:
        result = await call(mine.execute, sqlalchemy.text(statement), execution_options={"stream_results": False})
        return [tuple(row) for row in result] if result.returns_rows else []

    return Loan(mine, work=work, ask=ask, begin=nothing, commit=mine.commit, rollback=mine.rollback)


@contextmanager
def engine(dsn: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    found = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), **options)
    try:
        yield found
    finally:
        found.dispose()


@asynccontextmanager
async def async_engine(dsn: str, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    connect = {
        "psycopg": partial(psycopg.AsyncConnection.connect, dsn),
        "asyncpg": partial(asyncpg.connect, **parts(dsn)),
    }[driver]
    found = new_async_engine(f"postgresql+{driver}://", async_creator=connect, **options)
    try:
        yield found
    finally:
        await found.dispose()


@asynccontextmanager
async def of_sqlalchemy(dsn: str, **options: Any) -> AsyncIterator[Loan]:
    with engine(dsn, **options) as found, found.connect() as mine:
        yield sqlalchemy_loan(mine, SYNC)


@asynccontextmanager
async def of_session(dsn: str) -> AsyncIterator[Loan]:
    with engine(dsn) as found, Session(found) as mine:
        yield sqlalchemy_loan(mine, SYNC)


@asynccontextmanager
async def of_scoped_session(dsn: str) -> AsyncIterator[Loan]:
    with engine(dsn) as found:
        mine = scoped_session(sessionmaker(found))
        try:
            yield sqlalchemy_loan(mine, SYNC)
        finally:
            mine.remove()


@asynccontextmanager
async def of_async_sqlalchemy(dsn: str, driver: str, **options: Any) -> AsyncIterator[Loan]:
    async with async_engine(dsn, driver, **options) as found, found.connect() as mine:
        yield sqlalchemy_loan(mine, ASYNC)


@asynccontextmanager
async def of_async_session(dsn: str, driver: str) -> AsyncIterator[Loan]:
    async with async_engine(dsn, driver) as found, AsyncSession(found) as mine:
        yield sqlalchemy_loan(mine, ASYNC)


@asynccontextmanager
async def of_async_scoped_session(dsn: str) -> AsyncIterator[Loan]:
    async with async_engine(dsn, "psycopg") as found:
        mine = async_scoped_session(async_sessionmaker(found), scopefunc=asyncio.current_task)
        try:
            yield sqlalchemy_loan(mine, ASYNC)
        finally:
            await mine.remove()


@contextmanager
def django_alias(dsn: str, **options: Any) -> Iterator[str]:
    found = {name.upper().replace("DATABASE", "NAME"): value for name, value in parts(dsn).items()}
    options |= {"passfile": found.pop("PASSFILE")}
    connections.settings["lent"] = connections.settings["default"] | found | {"OPTIONS": options}
    try:
        yield "lent"
    finally:
        connections["lent"].close()
        del connections["lent"]
        del connections.settings["lent"]


@asynccontextmanager
async def of_django(dsn: str, form: str = "alias", **options: Any) -> AsyncIterator[Loan]:
    with django_alias(dsn, **options) as alias:
        given = {"alias": alias, "connection": connections[alias], "proxy": ConnectionProxy(connections, alias)}[form]
        blocks: list[Any] = []

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with connections[alias].cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []

        def begin() -> None:
            blocks.append(transaction.atomic(using=alias))
            blocks[-1].__enter__()

        def rollback() -> None:
            transaction.set_rollback(True, using=alias)
            blocks.pop().__exit__(None, None, None)

        def commit() -> None:
            blocks.pop().__exit__(None, None, None)

        yield Loan(given, work=SYNC, ask=ask, begin=begin, commit=commit, rollback=rollback)


LENDERS: dict[str, Lender] = {
    "psycopg": of_psycopg,
    "psycopg, async": of_async_psycopg,
    "asyncpg": of_asyncpg,
    "sqlalchemy": of_sqlalchemy,
    "session": of_session,
    "sqlalchemy, async, psycopg": partial(of_async_sqlalchemy, driver="psycopg"),
    "sqlalchemy, async, asyncpg": partial(of_async_sqlalchemy, driver="asyncpg"),
    "session, async, psycopg": partial(of_async_session, driver="psycopg"),
    "session, async, asyncpg": partial(of_async_session, driver="asyncpg"),
    "django": of_django,
}
# The same libraries, configured in ways that change the answers or the texts of statements.
VARIANTS: dict[str, Lender] = {
    "psycopg, dict_row": partial(of_psycopg, row_factory=dict_row),
    "psycopg, namedtuple_row": partial(of_psycopg, row_factory=namedtuple_row),
    "psycopg, ClientCursor": partial(of_psycopg, cursor_factory=psycopg.ClientCursor),
    "psycopg, RawCursor": partial(of_psycopg, cursor_factory=psycopg.RawCursor),
    "psycopg, async, dict_row": partial(of_async_psycopg, row_factory=dict_row),
    "psycopg, async, AsyncRawCursor": partial(of_async_psycopg, cursor_factory=psycopg.AsyncRawCursor),
    "asyncpg, pool": of_asyncpg_pool,
    "asyncpg, no cache": partial(of_asyncpg, statement_cache_size=0),
    "sqlalchemy, streaming": partial(of_sqlalchemy, execution_options={"stream_results": True}),
    "sqlalchemy, async, streaming": partial(
        of_async_sqlalchemy, driver="asyncpg", execution_options={"stream_results": True}
    ),
    "session, scoped": of_scoped_session,
    "session, async, scoped": of_async_scoped_session,
    "django, connection": partial(of_django, form="connection"),
    "django, proxy": partial(of_django, form="proxy"),
    "django, server-side binding": partial(of_django, server_side_binding=True),
}


def lent(dsn: str, lender: Lender, act: Callable[[Loan], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with lender(dsn) as loan:
            await act(loan)

    # Django refuses to work inside an event loop, and takes this for none.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        asyncio.run(main())


every = pytest.mark.parametrize("lender", LENDERS.values(), ids=LENDERS)
every_variant = pytest.mark.parametrize(
    "lender",
    [pytest.param(lender, id=name) for name, lender in LENDERS.items()]
    + [pytest.param(lender, id=name, marks=pytest.mark.unsampled) for name, lender in VARIANTS.items()],
)


@pytest.fixture
def mine(queue: Queue, sql: Connection) -> None:
    """The caller's own table."""
    sql.execute("create table mine (n int)")


def state_of(error: BaseException) -> str | None:
    """Returns the SQLSTATE of a driver's own error, even if the error is wrapped."""
    link: Any = error
    while link is not None:
        if getattr(link, "sqlstate", None):
            return str(link.sqlstate)
        link = getattr(link, "orig", None) or link.__cause__
    return None


@contextmanager
def passed_through(state: str) -> Iterator[None]:
    """Checks that the block raises the driver's own error, not one of Penstock's."""
    with pytest.raises(Exception) as raised:
        yield
    assert not isinstance(raised.value, PenstockError), raised.value
    assert state_of(raised.value) == state, repr(raised.value)


# --- one transaction --------------------------------------------------------------------------------------------------


@every_variant
def test_a_task_is_there_exactly_if_the_transaction_is(
    mine: None, queue: Queue, sql: Connection, dsn: str, lender: Lender
) -> None:
    async def act(loan: Loan) -> None:
        for end in (loan.rollback, loan.commit):
            await loan.begin()
            await loan.ask("insert into mine values (1)")
            before = await loan.ask("select pg_current_xact_id()::text")
            pushed = await loan.push({"n": 1})
            assert (pushed.result, pushed.state) == ("created", "pending")
            assert (await loan.push_many([{"n": 2}, NewTask({"n": 3}, "s")])).created == 2
            assert (await loan.upsert_many([NewTask({"n": 4}, "s"), NewTask({"n": 5}, "t")])).counts == {
                **dict.fromkeys(("renewed", "reopened", "skipped", "superseded"), 0),
                "created": 1,
                "updated": 1,
            }
            assert await loan.ask("select pg_current_xact_id()::text") == before, "it is still the same transaction"
            assert queue.status().totals["pushed"] == 0, "no other session sees it"
            assert sql.execute("select n from mine").fetchall() == []
            await end()
        assert sql.execute("select n from mine").fetchall() == [(1,)]
        assert {task.payload["n"] for task in queue.claim(10).tasks} == {1, 2, 4, 5}

    lent(dsn, lender, act)


def test_psycopg_is_left_as_it_was(mine: None, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:

        def status() -> TransactionStatus:
            return connection.info.transaction_status

        with pytest.raises(PayloadError):
            SYNC.push({"n": float("nan")}, connection=connection)
        assert SYNC.push_many([], connection=connection).total == 0
        assert status() == TransactionStatus.IDLE, "nothing was sent"
        SYNC.push(connection=connection)
        assert status() == TransactionStatus.INTRANS, "psycopg itself begins before the first statement"
        connection.rollback()
        with connection.transaction():
            SYNC.push(connection=connection)
            assert status() == TransactionStatus.INTRANS
        assert status() == TransactionStatus.IDLE
        for _ in range(10):
            SYNC.push(connection=connection)
        assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


def test_sqlalchemy_is_left_as_it_was(mine: None, queue: Queue, dsn: str) -> None:
    with engine(dsn) as found:
        with found.begin() as connection:
            begun = connection.get_transaction()
            SYNC.push(connection=connection)
            assert connection.get_transaction() is begun
        with Session(found) as session, session.begin() as outer:
            SYNC.push(connection=session)
            assert session.get_transaction() is outer
            assert not session.get_nested_transaction()
    assert queue.status().pending == 2


def test_inside_run_sync_of_an_async_session(mine: None, queue: Queue, dsn: str) -> None:
    async def main() -> None:
        async with async_engine(dsn, "asyncpg") as found, AsyncSession(found) as session, session.begin():
            pushed = await session.run_sync(lambda inner: SYNC.push({"n": 1}, connection=inner))
            assert pushed.result == "created"

    asyncio.run(main())
    assert queue.status().pending == 1


def test_django_on_commit_comes_after_the_task(mine: None, queue: Queue, dsn: str) -> None:
    seen: list[int] = []
    with django_alias(dsn) as alias:
        with transaction.atomic(using=alias):
            SYNC.push(connection=alias)
            transaction.on_commit(lambda: seen.append(queue.status().pending), using=alias)
        with transaction.atomic(using=alias):
            SYNC.push(connection=alias)
            transaction.set_rollback(True, using=alias)
    assert seen == [1]
    assert queue.status().pending == 1


@every
def test_subjects_within_the_transaction(mine: None, queue: Queue, dsn: str, lender: Lender) -> None:
    queue.push({"n": 0}, subject="old")

    async def act(loan: Loan) -> None:
        await loan.begin()
        first = await loan.push({"n": 1}, subject="new")
        assert await loan.push({"n": 2}, subject="new") == (first.id, "skipped", "pending")
        assert await loan.push({"n": 3}, subject="new", on_conflict="update") == (first.id, "updated", "pending")
        assert (await loan.push({"n": 4}, subject="old", on_conflict="update")).result == "updated"
        assert (await loan.push_many([NewTask({}, "new"), NewTask({}, "more")])).skipped == 1
        await loan.commit()
        await loan.begin()
        with pytest.raises(Conflict, match=r"^item 1: subject 'new' is taken in queue 'work'$") as taken:
            await loan.push_many([NewTask({}, "x"), NewTask({}, "new")], on_conflict="error")
        assert taken.type is Conflict
        assert state_of(taken.value.__cause__ or taken.value) == "PS409", "the driver's error is its cause"
        with passed_through("25P02"):
            await loan.ask("select 1")
        await loan.rollback()

    lent(dsn, lender, act)
    assert {task.subject: task.payload for task in queue.claim(10).tasks} == {
        "old": {"n": 4},
        "new": {"n": 3},
        "more": {},
    }


@every
def test_an_aborted_transaction_is_not_hidden(mine: None, queue: Queue, dsn: str, lender: Lender) -> None:
    """B59: the error of the aborted transaction reaches the caller."""

    async def act(loan: Loan) -> None:
        await loan.begin()
        await loan.push()
        with passed_through("22012"):
            await loan.ask("select 1 / 0")
        for _ in range(2):
            with passed_through("25P02"):
                await loan.push()
        with passed_through("25P02"):
            await loan.push_many([NewTask({}, f"s{n}") for n in range(10_001)], batch_id=uuid4())
        await loan.rollback()
        await loan.begin()
        await loan.push()
        await loan.commit()

    lent(dsn, lender, act)
    assert queue.status().totals["pushed"] == 1


def test_a_producer_may(mine: None, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("set local role penstock_producer")
        SYNC.push(connection=connection)
        SYNC.push_many(({} for _ in range(10_001)), batch_id=uuid4(), connection=connection)
    assert queue.status().pending == 10_002


def test_a_savepoint_saves_the_transaction(mine: None, queue: Queue, dsn: str) -> None:
    queue.push(subject="s")
    with psycopg.connect(dsn) as connection:
        SYNC.push(connection=connection)
        with pytest.raises(Conflict), connection.transaction():
            SYNC.push(subject="s", on_conflict="error", connection=connection)
    with django_alias(dsn) as alias, transaction.atomic(using=alias):
        SYNC.push(connection=alias)
        with pytest.raises(Conflict), transaction.atomic(using=alias):
            SYNC.push(subject="s", on_conflict="error", connection=alias)
    with engine(dsn) as found, found.begin() as lent_:
        SYNC.push(connection=lent_)
        with pytest.raises(Conflict), lent_.begin_nested():
            SYNC.push(subject="s", on_conflict="error", connection=lent_)
    assert queue.status().pending == 4


# --- values -----------------------------------------------------------------------------------------------------------

# fmt: off
TEXTS = [
    "", "NULL", "null", "'", '"', "\\", "\\\\", '\\"', "a,b", "{a}", "{", "}", "%", "%s", "%%", "%(p1)s", ":p1",
    "::text", "$1", "?", " leading and trailing ", "\t\r\n\x0b\x01\x7f", "\\n", "\\u0041", "grüße, 日本語, 🎛",
    "\u200b\ufeff\u2028", "e\u0301", "--", "/* */", "E'\\x41'", "$$", "☃" * 42,
]
# fmt: on


@every_variant
def test_everything_arrives_exactly(mine: None, queue: Queue, dsn: str, lender: Lender) -> None:
    due = datetime.now(UTC).replace(microsecond=123456) - timedelta(days=1)
    payloads: list[dict[str, Any]] = [{"text": text, text: [text, {text: text}]} for text in TEXTS]
    payloads += [{}, {"n": [0, -1, 2**63, 1.5e-300, True, None]}]
    given = [NewTask({"n": n}, text or None, due, n % 10, text or "default") for n, text in enumerate(TEXTS)]

    async def act(loan: Loan) -> None:
        await loan.begin()
        await loan.push_many([*payloads, None])
        await loan.push_many(given)
        for n, payload in enumerate(payloads):
            await loan.push(payload, kind="one", due=due, priority=n % 10)
        await loan.push(None, subject=" '\"\\,{}% ", kind=" NULL ")
        await loan.commit()

    lent(dsn, lender, act)
    found = {task.id: task for task in queue.claim(1_000).tasks}
    tasks = [found[id_] for id_ in sorted(found)]
    plain, named, single, last = (
        tasks[: len(payloads) + 1],
        tasks[len(payloads) + 1 :][: len(given)],
        tasks[-len(payloads) - 1 : -1],
        tasks[-1],
    )
    assert [task.payload for task in plain] == [*payloads, {}]
    assert [NewTask(task.payload, task.subject, task.due, task.priority, task.kind) for task in named] == given
    assert [(task.payload, task.kind, task.due, task.priority) for task in single] == [
        (payload, "one", due, n % 10) for n, payload in enumerate(payloads)
    ]
    assert (last.payload, last.subject, last.kind) == ({}, " '\"\\,{}% ", " NULL ")


def test_whatever_the_session_is_set_to(mine: None, queue: Queue, dsn: str) -> None:
    due = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
    settings = "-c datestyle=German,DMY -c timezone=Asia/Tokyo -c standard_conforming_strings=off -c search_path=public"
    for lender in (of_psycopg, partial(of_psycopg, cursor_factory=psycopg.ClientCursor), of_django):

        async def act(loan: Loan) -> None:
            await loan.begin()
            await loan.push({"a\\'b": "\\"}, subject="\\'", due=due, on_conflict="update")
            await loan.commit()

        lent(psycopg.conninfo.make_conninfo(dsn, options=settings), lender, act)
    (task,) = queue.claim(10).tasks
    assert (task.payload, task.subject, task.due) == ({"a\\'b": "\\"}, "\\'", due)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["psycopg", "asyncpg", "session", "sqlalchemy, async, asyncpg", "django"])
def test_many_chunks_in_one_transaction(mine: None, queue: Queue, sql: Connection, dsn: str, name: str) -> None:
    seen: list[int] = []

    async def act(loan: Loan) -> None:
        await loan.begin()
        items = (NewTask({"n": n}, f"s{n}" if n % 2 else None) for n in range(25_000))
        assert (await loan.push_many(items, progress=seen.append)).created == 25_000
        assert queue.status().totals["pushed"] == 0
        await loan.commit()

    lent(dsn, LENDERS[name], act)
    assert seen == [10_000, 20_000, 25_000]
    assert queue.status().pending == 25_000
    assert sql.execute("select count(distinct xmin::text), count(distinct payload) from penstock.task").fetchone() == (
        1,
        25_000,
    )


def test_the_async_client_takes_async_items_too(mine: None, queue: Queue, dsn: str) -> None:
    async def items() -> AsyncIterator[dict[str, int]]:
        for n in range(120):
            yield {"n": n}

    async def act(loan: Loan) -> None:
        assert (await loan.push_many(items())).created == 120
        await loan.commit()

    lent(dsn, of_async_psycopg, act)
    assert queue.status().pending == 120


@pytest.mark.parametrize("name", ["psycopg", "asyncpg", "session", "django"])
def test_a_repeated_batch_doubles_nothing(mine: None, queue: Queue, dsn: str, name: str) -> None:
    """This is for callers that do not know whether their COMMIT succeeded."""
    batch = uuid4()
    items = [NewTask({"n": n}, f"s{n}") for n in range(10_010)]

    async def act(loan: Loan) -> None:
        reports = []
        for end in (loan.rollback, loan.commit, loan.commit):
            await loan.begin()
            reports.append(await loan.push_many(items, batch_id=batch))
            await end()
        assert reports == [reports[0]] * 3
        assert (reports[0].batch_id, reports[0].created) == (batch, 10_010)
        await loan.begin()
        with pytest.raises(Conflict, match="other content"):
            await loan.push_many(items[1:], batch_id=batch)
        await loan.rollback()

    lent(dsn, LENDERS[name], act)
    assert queue.status().totals["pushed"] == 10_010


# --- three behaviours -------------------------------------------------------------------------------------------------

AUTOCOMMIT: dict[str, Lender] = {
    "psycopg": partial(of_psycopg, autocommit=True),
    "psycopg, async": partial(of_async_psycopg, autocommit=True),
    "asyncpg": of_asyncpg,
    "sqlalchemy": partial(of_sqlalchemy, isolation_level="AUTOCOMMIT"),
    "sqlalchemy, async": partial(of_async_sqlalchemy, driver="asyncpg", isolation_level="AUTOCOMMIT"),
    "django": of_django,
}


@pytest.mark.parametrize("lender", AUTOCOMMIT.values(), ids=AUTOCOMMIT)
def test_on_autocommit_it_is_written_at_once(app: Penstock, queue: Queue, dsn: str, lender: Lender) -> None:
    """B60: it is written chunk by chunk. A payload above the queue's limit is refused before the first chunk."""
    queue.set(max_payload=100)

    async def act(loan: Loan) -> None:
        await loan.push()
        assert queue.status().pending == 1
        items: list[dict[str, Any]] = [{}] * 10_005 + [{"a": "x" * 100}]
        with pytest.raises(PayloadTooLarge, match=r"^item 10005: payload: 108 bytes are more than 100$"):
            await loan.push_many(items)
        assert queue.status().pending == 1
        seen: list[int] = []
        await loan.push_many(items[:-1], progress=lambda done: seen.append(queue.status().pending - done))
        assert seen == [1, 1]

    lent(dsn, lender, act)


@pytest.mark.parametrize("name", ["psycopg", "psycopg, async", "asyncpg", "sqlalchemy", "sqlalchemy, async, asyncpg"])
def test_a_closed_connection_is_the_drivers_own_error(mine: None, queue: Queue, dsn: str, name: str) -> None:
    """B60"""
    expected = {
        "psycopg": psycopg.OperationalError,
        "asyncpg": asyncpg.InterfaceError,
        "sqlalchemy": sqlalchemy.exc.ResourceClosedError,
    }[name.partition(",")[0]]

    async def act(loan: Loan) -> None:
        await call(loan.given.close)  # type: ignore[attr-defined]
        for push in (loan.push, partial(loan.push_many, [{}] * 10_001)):
            with pytest.raises(expected, match="closed"):
                await push()

    lent(dsn, LENDERS[name], act)
    assert queue.status().totals["pushed"] == 0


@pytest.mark.parametrize("name", ["psycopg", "asyncpg", "session", "django"])
def test_a_connection_that_was_cut_is_the_drivers_own_error(
    mine: None, queue: Queue, sql: Connection, dsn: str, name: str
) -> None:
    expected: dict[str, type[Exception]] = {
        "psycopg": psycopg.OperationalError,
        "asyncpg": asyncpg.PostgresError,
        "session": sqlalchemy.exc.OperationalError,
        "django": django.db.OperationalError,
    }

    async def act(loan: Loan) -> None:
        await loan.begin()
        await loan.push()
        ((pid,),) = await loan.ask("select pg_backend_pid()")
        sql.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        with pytest.raises((expected[name], asyncpg.InterfaceError, ConnectionError)):
            await loan.push()
        with suppress(asyncpg.InterfaceError, psycopg.OperationalError):
            await loan.rollback()

    lent(dsn, LENDERS[name], act)
    assert queue.status().totals["pushed"] == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.sample(5)
@every
def test_our_own_checks_come_before_anything_is_sent(mine: None, queue: Queue, dsn: str, lender: Lender) -> None:
    async def act(loan: Loan) -> None:
        await loan.begin()
        await loan.ask("insert into mine values (1)")
        cases: list[tuple[str, Any]] = [
            (r"payload\.n", partial(loan.push, {"n": object()})),
            ("subject", partial(loan.push, subject="")),
            ("due", partial(loan.push, due=datetime(2020, 1, 1))),  # noqa: DTZ001 - naive on purpose
            ("on_conflict", partial(loan.push, on_conflict="replace")),
            ("on_conflict", partial(loan.push_many, [{}], on_conflict="replace")),
            ("item 10500: kind", partial(loan.push_many, [{}] * 10_500 + [NewTask(kind="")])),
            ("item 1: priority", partial(loan.upsert_many, [NewTask(), NewTask(priority=101)])),
            ("batch_id", partial(loan.push_many, [{}], batch_id="x")),
        ]
        for field, push in cases:
            with pytest.raises(ValidationError, match=f"^{field}: "):
                await push()
        await loan.commit()

    lent(dsn, lender, act)
    assert queue.status().totals["pushed"] == 0


@every
def test_a_refusal_by_our_sql_is_our_error(app: Penstock, queue: Queue, dsn: str, lender: Lender) -> None:
    queue.set(max_payload=50)

    async def act(loan: Loan) -> None:
        client = Penstock(NOWHERE) if loan.work is SYNC else AsyncPenstock(NOWHERE)
        await loan.begin()
        with pytest.raises(NotFound, match="'wrok'") as missing:
            await call(client.queue("wrok").push, connection=loan.given)
        assert missing.value.hint == "Did you mean 'work'?"
        await loan.rollback()
        await loan.begin()
        with pytest.raises(PayloadTooLarge, match=r"^item 0: payload: 58 bytes are more than 50$"):
            await loan.push({"a": "x" * 50})
        await loan.rollback()

    lent(dsn, lender, act)
    assert queue.status().totals["pushed"] == 0


@pytest.mark.sample(5)
@every
def test_all_other_errors_are_the_drivers(make_database: Callable[..., str], lender: Lender) -> None:
    async def act(loan: Loan) -> None:
        await loan.begin()
        with passed_through("3F000"):  # the schema is missing
            await loan.push()
        await loan.rollback()

    lent(make_database("template0"), lender, act)


def test_a_later_chunk_names_the_item_too(mine: None, queue: Queue, dsn: str) -> None:
    queue.push(subject="s10042")
    with psycopg.connect(dsn) as connection, pytest.raises(Conflict, match=r"^item 10042: subject 's10042' is taken"):
        SYNC.push_many((NewTask({}, f"s{n}") for n in range(10_100)), on_conflict="error", connection=connection)


def test_a_snapshot_too_old_is_the_drivers_error(mine: None, queue: Queue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1 from penstock.task")
        queue.push(subject="s")
        with pytest.raises(psycopg.errors.SerializationFailure):
            SYNC.push(subject="s", connection=connection)


def test_a_deadlock_is_the_callers_to_repeat(mine: None, queue: Queue, dsn: str) -> None:
    """Two transactions upsert the same subjects in different orders: PostgreSQL ends one of the two."""
    both, ended = threading.Barrier(2), list[str]()

    def write(first: str, second: str) -> None:
        with psycopg.connect(dsn) as connection:
            SYNC.upsert_many([NewTask({}, first)], connection=connection)
            both.wait(30)
            try:
                SYNC.upsert_many([NewTask({}, second)], connection=connection)
                connection.commit()
                ended.append("committed")
            except psycopg.errors.DeadlockDetected:
                connection.rollback()
                ended.append("deadlock")

    queue.push_many([NewTask({}, "a"), NewTask({}, "b")])
    threads = [threading.Thread(target=write, args=order) for order in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["committed", "deadlock"]


def refusal_of(connection: object, client: Any = SYNC) -> ValidationError:
    with pytest.raises(ValidationError, match=r"^connection: ") as refused:
        asyncio.run(call(client.push_many, [], connection=connection))
    assert refused.value.field == "connection"
    return refused.value


def test_a_sync_connection_in_an_async_client_and_the_reverse(mine: None, dsn: str) -> None:
    with closing(psycopg.connect(dsn)) as connection:
        refused = refusal_of(connection, ASYNC)
        assert str(refused) == "connection: 'psycopg.Connection' is for Penstock, this is AsyncPenstock"
        assert "AsyncConnection or AsyncSession" in (refused.hint or "")
    with engine(dsn) as found, found.connect() as lent_, Session(found) as session:
        for one in (lent_, session, scoped_session(sessionmaker(found))):
            assert "is for Penstock, this is AsyncPenstock" in str(refusal_of(one, ASYNC))
    with django_alias(dsn) as alias:
        for lent_django in (alias, connections[alias]):
            assert "is for Penstock, this is AsyncPenstock" in str(refusal_of(lent_django, ASYNC))

    async def main() -> list[object]:
        lenders: list[Lender] = [lender for name, lender in LENDERS.items() if "async" in name]
        given: list[object] = []
        for lender in [*lenders, of_asyncpg_pool, of_async_scoped_session]:
            async with lender(dsn) as loan:
                with pytest.raises(ValidationError, match="is for AsyncPenstock, this is Penstock") as refused:
                    SYNC.push(connection=loan.given)
                assert "psycopg's Connection" in (refused.value.hint or "")
                given.append(loan.given)
        return given

    assert len(asyncio.run(main())) == 8


def test_objects_that_are_not_connections(mine: None, dsn: str) -> None:
    pool: psycopg_pool.ConnectionPool[Any] = psycopg_pool.ConnectionPool(dsn, open=False)
    for one in (object(), 5, b"default", psycopg.Connection, pool, {"dbname": "x"}):
        for client in (SYNC, ASYNC):
            assert "is not one that we know" in str(refusal_of(one, client))
    with closing(psycopg.connect(dsn)) as connection, engine(dsn) as found:
        for other in (connection.cursor(), found, sessionmaker(found)):
            refused = refusal_of(other)
            assert "psycopg's Connection, SQLAlchemy's Connection or Session" in (refused.hint or "")


def test_a_database_that_is_not_postgresql() -> None:
    lite = sqlalchemy.create_engine("sqlite://")
    with lite.connect() as connection:
        assert "it leads to 'sqlite'" in str(refusal_of(connection))
    lite.dispose()
    for one in ("lite", connections["lite"]):
        assert "it leads to 'sqlite'" in str(refusal_of(one))
    from django.core.cache import cache  # type: ignore[import-untyped]

    assert "it leads to 'something else'" in str(refusal_of(cache))


def test_an_alias_that_is_not_there() -> None:
    refused = refusal_of("replica")
    assert str(refused) == "connection: 'replica' is no alias of Django's DATABASES"
    assert refused.hint == "They are default, lite."


def test_a_dsn_in_the_place_of_a_connection_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = "postgresql://me:secret@host/db"
    for client in (SYNC, ASYNC):
        refused = refusal_of(dsn, client)
        assert "secret" not in f"{refused} {refused.hint}"
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(ConfigError, match="Django is not installed") as missing:
        SYNC.push(connection=dsn)
    assert "secret" not in str(missing.value)
    with pytest.raises(ConfigError, match="'default' would be a Django alias"):
        SYNC.push(connection="default")


def test_errors_of_psycopg2_are_read_too() -> None:
    """It is not installed here, but SQLAlchemy and Django may use it. Its errors carry `pgcode` and `diag`."""

    class Said:
        message_primary = "subject 's' is taken"
        message_hint = None

    class Old(Exception):
        pgcode = "PS409"
        diag = Said()

    class Wrapped(Exception):
        orig = Old()

    found = refusal(Wrapped())
    assert type(found) is Conflict
    assert str(found) == "subject 's' is taken"
    assert refusal(ValueError("x")) is None


# --- the page about it ------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "connections.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
URL = "://me@db.example.com/app"

# The settings of a Django project.
PROJECT = """
import sys, types
import django
from django.conf import settings

settings.configure(DATABASES={{"default": {database}}}, DEFAULT_AUTO_FIELD="django.db.models.AutoField")
django.setup()

from django.db import models

class Customer(models.Model):
    name = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "customer"

sys.modules["shop"] = types.ModuleType("shop")
sys.modules["shop.models"] = sys.modules[__name__]
"""


def test_the_page_has_an_example_for_each_library() -> None:
    used = "\n".join(EXAMPLES)
    for library in ("psycopg.connect", "asyncpg.connect", "Session(", "create_async_engine", "transaction.atomic"):
        assert library in used


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "code", EXAMPLES, ids=lambda code: re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)[0]
)
def test_every_example_of_the_page_runs(app: Penstock, sql: Connection, dsn: str, code: str) -> None:
    queue = app.create_queue("mail")
    sql.execute("create table customer (id serial primary key, name text not null)")
    place = parts(dsn)
    host, port, passfile = (quote(str(place[name]), safe="") for name in ("host", "port", "passfile"))
    url = f"://{place['user']}@/{place['database']}?host={host}&port={port}&passfile={passfile}"
    before = ""
    if "django" in code:
        with django_alias(dsn) as alias:
            before = PROJECT.format(database=connections.settings[alias])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", before + code.replace(URL, url)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "claim" in code:
        assert queue.status().pending == 1
    else:
        assert sql.execute("select name from customer").fetchall() == [("ann",)]
        (task,) = queue.claim(10).tasks
        assert (task.kind, task.payload["to"]) in (
            ("welcome", "ann@example.com"),
            ("welcome", "customer-1@example.com"),
        )


# --- settings of the caller's session ---------------------------------------------------------------------------------

ELEPHANT = "Zoë 🐘"
SET = (
    "set array_nulls = off",
    "set datestyle = 'German, DMY'",
    "set intervalstyle = 'sql_standard'",
    "set timezone = 'Pacific/Chatham'",
    "set search_path = evil, pg_catalog",
    "set quote_all_identifiers = on",
)
EVIL = """
    create schema evil;
    create function evil.array_replace(text[], text, text) returns text[] language sql return array['evil'];
    create function evil.array_replace(anycompatiblearray, anycompatible, anycompatible) returns anycompatiblearray
        language sql as 'select $1';
    create domain evil.text as pg_catalog.bool;
    create domain evil.timestamptz as pg_catalog.bool;
    create domain evil.uuid as pg_catalog.bool;
    create domain evil.jsonb as pg_catalog.bool;
"""


@pytest.mark.sample(5)
@every
def test_the_callers_settings_change_nothing(dsn: str, queue: Queue, sql: Connection, lender: Lender) -> None:
    sql.execute(EVIL)
    later = datetime.now(UTC).replace(microsecond=123456) + timedelta(days=3)
    named = [None, ELEPHANT, None, 'NULL "\\', "null", "NULL"]
    tasks = [NewTask({"n": n, "name": ELEPHANT}, name, later if n % 2 else None) for n, name in enumerate(named)]
    batch = uuid4()

    async def act(loan: Loan) -> None:
        await loan.begin()
        for one in SET:
            await loan.ask(one)
        assert (await loan.push({"name": ELEPHANT})).result == "created"
        assert (await loan.push_many(tasks, batch_id=batch)).created == 6
        assert (await loan.push_many(tasks, batch_id=batch)).created == 6
        await loan.ask("set search_path = public")
        await loan.commit()

    lent(dsn, lender, act)
    rows = sql.execute("select subject, due, payload->>'name' from penstock.task order by id").fetchall()
    assert rows == [(None, None, ELEPHANT), *((one.subject, one.due, ELEPHANT) for one in tasks)]


@pytest.mark.sample(6)
@every
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_another_encoding_is_right_or_refused(
    dsn: str, queue: Queue, sql: Connection, lender: Lender, encoding: str
) -> None:
    """Libraries write texts in the encoding of the session. A character that it does not have is an error."""
    refused: dict[str, ValidationError] = {}

    async def act(loan: Loan) -> None:
        await loan.begin()
        await loan.ask(f"set client_encoding = '{encoding}'")
        for name in ("Ann", "Zoë", ELEPHANT):
            try:
                pushed = await loan.push({"name": name}, subject=name)
                assert (pushed.result, pushed.state) == ("created", "pending")
                assert (await loan.push_many([NewTask({}, name)])).skipped == 1
            except ValidationError as error:
                refused[name] = error
        await loan.commit()

    lent(dsn, lender, act)
    rows = sql.execute("select subject, payload->>'name' from penstock.task").fetchall()
    assert all(subject == name for subject, name in rows)
    assert {subject for subject, _ in rows} | {*refused} == {"Ann", "Zoë", ELEPHANT}
    assert "Ann" not in refused
    if encoding == "LATIN1":
        assert {*refused} == {ELEPHANT}
    for error in refused.values():
        assert error.message.startswith("connection: its client_encoding ")
        assert "UTF8" in (error.hint or "")
