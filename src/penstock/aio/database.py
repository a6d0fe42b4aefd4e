"""Connections and transactions. The only place that begins or commits anything."""

from __future__ import annotations

import logging
import random
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import psycopg
import psycopg_pool
from psycopg import pq
from psycopg.rows import TupleRow, tuple_row

from penstock.aio.colour import Guard, Lock, Place, deserted, guard, here, sleep, to_the_end
from penstock.errors import CommitUnknown, HandlerMisuse, Unavailable, ValidationError
from penstock.wire import (
    CONTRACT,
    as_ours,
    check_contract,
    check_dsn,
    configure,
    described,
    raw_loaders,
    settings_for,
    translated,
)

# A connection that was cut is replaced, and that is all: without a logging set-up it shall not reach standard error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
AsyncConnection = psycopg.AsyncConnection[TupleRow]
Once = Callable[[str, Sequence[Any]], Awaitable[list[TupleRow]]]


class Home:
    """What one process, and in asyncio one event loop, has for itself."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.pool: psycopg_pool.AsyncConnectionPool[AsyncConnection] | None = None
        self.guard: Guard | None = None  # of the pool
        self.read_committed = False  # is what a transaction has here if nobody says otherwise


class AsyncDatabase:
    """A pool over one DSN. Safe among threads, and after a fork: the child gets a pool of its own.

    No session state, so that a pooler in transaction mode may stand between: every transaction says its own isolation
    level, and nothing is prepared (the plans live inside the functions).
    """

    def __init__(
        self,
        dsn: str,
        *,
        source: str = "dsn",
        max_connections: int = 8,
        timeout: float = 10.0,
        rehearse: bool = False,
    ) -> None:
        self.dsn = dsn
        self._end = "rollback" if rehearse else "commit"
        self.source = source
        self._max_connections = max_connections
        self._timeout = timeout
        # After a fork the parent's home stays in here, and is never closed: its sockets are not ours.
        self._homes: dict[Place, Home] = {}

    def __repr__(self) -> str:
        return f"<AsyncDatabase {described(self.dsn)}>"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, READ COMMITTED whatever the session's default. An idle connection that died meanwhile (a
        restarted server) fails at BEGIN, when nothing has happened yet: another one is taken."""
        async with self._connection() as connection, committed(connection, self._end):
            yield connection

    async def once(self, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
        """One statement that is a transaction by itself, in one round trip instead of three; its rows as PostgreSQL
        sent them (see `raw_loaders`). If the connection breaks meanwhile nobody knows whether it happened: for what may
        happen once more."""
        pool = await self._open_pool()
        home = self._homes[here()]
        if self._end != "commit" or not home.read_committed:
            async with self.transaction() as connection:
                return await fetch_raw(connection, query, parameters)
        async with self._lively(pool) as connection:
            try:
                with translated():
                    return await fetch_raw(connection, query, parameters)
            except Unavailable as error:
                if connection.broken or connection.closed:
                    raise unknown() from error
                raise

    @asynccontextmanager
    async def lent(self, mark: str) -> AsyncIterator[AsyncConnection]:
        """A transaction for somebody else's statements. Their errors stay theirs; only we may end it: `still_lent`
        knows it by the mark, which ends with it."""
        async with self._connection() as connection:
            try:
                async with committed(connection, self._end, ours=False):
                    await connection.execute("select set_config('penstock.lent', %s, true)", (mark,))
                    try:
                        yield connection
                    finally:
                        as_before(connection)
            finally:
                await cleaned(connection)

    async def reconnect(self) -> None:
        """Waits until PostgreSQL can be reached, then begins with new connections: the pool would wait longer and
        longer between its tries."""
        while True:
            try:
                await (await self.connect()).close()
                break
            except Unavailable:
                await sleep(random.uniform(0.1, 0.5))  # noqa: S311 - so that a fleet does not come all at once
        await self.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncConnection]:
        """A connection outside the pool, for what needs a session (advisory locks around several transactions)."""
        connection = await self.connect()
        try:
            with translated():
                yield connection
        finally:
            await connection.close()

    def refuse_rehearsal(self, verb: str) -> None:
        """For what is done in several transactions: undone one by one, they would find the same again and again."""
        if self._end == "rollback":
            raise ValidationError(f"rehearse: {verb} is done in several transactions, and can not be rehearsed")

    async def connect(self) -> AsyncConnection:
        check_dsn(self.dsn, self.source)
        with translated(source=self.source, dsn=self.dsn):
            connection: AsyncConnection = await psycopg.AsyncConnection.connect(self.dsn, **settings_for(self.dsn))
            configure(connection)
            return connection

    async def close(self) -> None:
        home = self._homes.get(here())
        if home is None:
            return
        async with home.lock:  # somebody may be opening it
            pool, watched, home.pool, home.guard = home.pool, home.guard, None, None
        if pool is not None:
            await pool.close()
        if watched is not None:
            watched.cancel()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        """With a transaction begun."""
        pool = await self._open_pool()
        for _ in range(self._max_connections + 1):
            connection = await self._taken(pool)
            try:
                if await begun(connection):
                    yield connection
                    return
            finally:
                await to_the_end(pool.putconn, connection)
        raise Unavailable("PostgreSQL closes every connection at once", hint="Look at its log.")

    @asynccontextmanager
    async def _lively(self, pool: psycopg_pool.AsyncConnectionPool[AsyncConnection]) -> AsyncIterator[AsyncConnection]:
        """None that died while it was idle: nothing has been said on it yet."""
        for _ in range(self._max_connections + 1):
            connection = await self._taken(pool)
            try:
                if said_nothing(connection):
                    yield connection
                    return
                await connection.close()
            finally:
                await to_the_end(pool.putconn, connection)
        raise Unavailable("PostgreSQL closes every connection at once", hint="Look at its log.")

    async def _taken(self, pool: psycopg_pool.AsyncConnectionPool[AsyncConnection]) -> AsyncConnection:
        try:
            return await pool.getconn()
        except psycopg_pool.PoolClosed:
            raise Unavailable("the client was closed meanwhile", reason="closed") from None
        except psycopg_pool.PoolTimeout:
            await (await self.connect()).close()  # says why, if it is the server
            raise Unavailable(
                f"all {self._max_connections} connections stayed busy for {self._timeout:g} s",
                hint="Raise max_connections, or do less at once.",
                reason="pool",
            ) from None

    async def _open_pool(self) -> psycopg_pool.AsyncConnectionPool[AsyncConnection]:
        home = self._homes.get(here()) or self._move_in()
        pool = home.pool
        if pool is None:
            async with home.lock:
                pool = home.pool = home.pool or await self._new_pool(home)
        return pool

    def _move_in(self) -> Home:
        """Pools of event loops that are closed are let go; that closes their connections."""
        for place in [*self._homes]:
            if deserted(place):
                self._homes.pop(place, None)
        return self._homes.setdefault(here(), Home())

    async def _new_pool(self, home: Home) -> psycopg_pool.AsyncConnectionPool[AsyncConnection]:
        home.read_committed = await self._probe() == "read committed"
        pool = psycopg_pool.AsyncConnectionPool(
            self.dsn,
            kwargs=settings_for(self.dsn),
            configure=configured,
            min_size=0,
            max_size=self._max_connections,
            timeout=self._timeout,
            reconnect_timeout=1.0,  # then the next who asks tries anew; by itself it would wait longer and longer
            open=False,
        )
        await pool.open()
        home.guard = guard(pool.name)
        return pool

    async def _probe(self) -> str:
        """A wrong password or a schema of another version is an error at once, not a time-out or a riddle later. The
        isolation of transactions for which nobody says it."""
        connection = await self.connect()
        try:
            with translated():
                check_contract(await (await connection.execute(CONTRACT)).fetchone())
                row = await (await connection.execute("show default_transaction_isolation")).fetchone()
                return str(row and row[0])
        finally:
            await connection.close()


async def begun(connection: AsyncConnection) -> bool:
    """False: it died while it was idle."""
    try:
        await connection.execute("begin isolation level read committed")
    except psycopg.OperationalError:
        return False
    return True


async def configured(connection: AsyncConnection) -> None:
    configure(connection)


@asynccontextmanager
async def committed(connection: AsyncConnection, end: str, *, ours: bool = True) -> AsyncIterator[None]:
    """COMMIT at the end (ROLLBACK, if it is a rehearsal), ROLLBACK on any error; an error while COMMIT is under way is
    told apart."""
    try:
        with translated() if ours else nullcontext():
            yield
    except BaseException:
        await rollback(connection)
        raise
    try:
        await connection.execute(end.encode())
    except psycopg.OperationalError as error:
        if connection.broken or connection.closed:
            raise unknown() from error
        raise as_ours(error) from error
    except psycopg.Error as error:
        raise as_ours(error) from error


def unknown() -> CommitUnknown:
    said = "the connection broke during COMMIT: it happened or it did not"
    return CommitUnknown(said, hint="Look before you repeat.")


def said_nothing(connection: AsyncConnection) -> bool:
    """What a server says to an idle connection is mostly farewell."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def as_before(connection: AsyncConnection) -> None:
    """Whoever had it may like dicts for rows; we do not."""
    connection.row_factory = tuple_row
    connection.cursor_factory = psycopg.AsyncCursor


async def still_lent(connection: AsyncConnection, mark: str) -> None:
    """Refuses a connection that was closed, or whose transaction was ended, by whom it was lent to."""
    as_before(connection)
    if connection.closed or connection.info.transaction_status == pq.TransactionStatus.IDLE:
        raise HandlerMisuse(ENDED, hint="Leave it open: it is committed, with the task, at the end of the block.")
    row = await (await connection.execute("select current_setting('penstock.lent', true)")).fetchone()
    if row != (mark,):
        raise HandlerMisuse(ENDED, hint="Leave it open: it is committed, with the task, at the end of the block.")


ENDED = "the handler closed the connection of transaction(), or ended its transaction"


async def cleaned(connection: AsyncConnection) -> None:
    """What somebody set in a session that goes back to the pool: claims and settles would run with it."""
    try:
        if not connection.closed:
            await connection.execute("discard all")
    except psycopg.Error:
        await connection.close()


async def rollback(connection: AsyncConnection) -> None:
    try:
        if not connection.closed and connection.info.transaction_status != pq.TransactionStatus.IDLE:
            await connection.execute("rollback")
    except psycopg.Error:
        await connection.close()


async def fetch_raw(connection: AsyncConnection, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
    """Rows as PostgreSQL sent them (see `raw_loaders`)."""
    async with connection.cursor(binary=True) as cursor:
        raw_loaders(cursor)
        await cursor.execute(query.encode(), parameters)
        return await cursor.fetchall()
