"""Connections and transactions. The only place that begins or commits anything."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import psycopg_pool
from psycopg import pq
from psycopg.rows import TupleRow

from penstock.aio.colour import Lock, here
from penstock.errors import CommitUnknown, Unavailable
from penstock.wire import (
    CONTRACT,
    SETTINGS,
    as_ours,
    check_contract,
    check_dsn,
    configure,
    described,
    raw_loaders,
    translated,
)

# A connection that was cut is replaced, and that is all: without a logging set-up it shall not reach standard error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
AsyncConnection = psycopg.AsyncConnection[TupleRow]


class AsyncDatabase:
    """A pool over one DSN. Safe among threads, and after a fork: the child gets a pool of its own.

    No session state, so that a pooler in transaction mode may stand between: every transaction says its own isolation
    level, and nothing is prepared (the plans live inside the functions).
    """

    def __init__(self, dsn: str, *, source: str = "dsn", max_connections: int = 8, timeout: float = 10.0) -> None:
        self.dsn = dsn
        self.source = source
        self._max_connections = max_connections
        self._timeout = timeout
        self._lock = Lock()
        self._pool: psycopg_pool.AsyncConnectionPool[AsyncConnection] | None = None
        self._place: tuple[int, int] | None = None
        self._inherited: list[object] = []

    def __repr__(self) -> str:
        return f"<AsyncDatabase {described(self.dsn)}>"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, READ COMMITTED whatever the session's default. An idle connection that died meanwhile (a
        restarted server) fails at BEGIN, when nothing has happened yet: another one is taken."""
        async with self._connection() as connection, committed(connection):
            yield connection

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncConnection]:
        """A connection outside the pool, for what needs a session (advisory locks around several transactions)."""
        connection = await self.connect()
        try:
            with translated():
                yield connection
        finally:
            await connection.close()

    async def connect(self) -> AsyncConnection:
        check_dsn(self.dsn)
        with translated(source=self.source, dsn=self.dsn):
            connection: AsyncConnection = await psycopg.AsyncConnection.connect(self.dsn, **SETTINGS)
            configure(connection)
            return connection

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and self._place == here():
            await pool.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        pool = await self._open_pool()
        for _ in range(self._max_connections + 1):
            try:
                connection = await pool.getconn()
            except psycopg_pool.PoolTimeout:
                await (await self.connect()).close()  # says why, if it is the server
                raise Unavailable(
                    f"all {self._max_connections} connections stayed busy for {self._timeout:g} s",
                    hint="Raise max_connections, or use fewer threads.",
                    reason="pool",
                ) from None
            try:
                await connection.execute("begin isolation level read committed")
            except psycopg.OperationalError:
                await pool.putconn(connection)
                continue
            try:
                yield connection
            finally:
                await pool.putconn(connection)
            return
        raise Unavailable("PostgreSQL closes every connection at once", hint="Look at its log.")

    async def _open_pool(self) -> psycopg_pool.AsyncConnectionPool[AsyncConnection]:
        if self._pool is not None and self._place == here():
            return self._pool
        async with self._lock:
            if self._pool is not None and self._place != here():
                # Kept, never closed: its sockets belong to a parent process or another event loop.
                self._inherited.append(self._pool)
                self._pool = None
            if self._pool is None:
                await self._probe()
                pool = psycopg_pool.AsyncConnectionPool(
                    self.dsn,
                    kwargs=SETTINGS,
                    configure=configured,
                    min_size=0,
                    max_size=self._max_connections,
                    timeout=self._timeout,
                    open=False,
                )
                await pool.open()
                self._pool, self._place = pool, here()
            return self._pool

    async def _probe(self) -> None:
        """A wrong password or a schema of another version is an error at once, not a time-out or a riddle later."""
        connection = await self.connect()
        try:
            with translated():
                row = await (await connection.execute(CONTRACT)).fetchone()
                check_contract(row)
        finally:
            await connection.close()


async def configured(connection: AsyncConnection) -> None:
    configure(connection)


@asynccontextmanager
async def committed(connection: AsyncConnection) -> AsyncIterator[None]:
    """COMMIT at the end, ROLLBACK on any error; an error while COMMIT is under way is told apart."""
    try:
        with translated():
            yield
    except BaseException:
        await rollback(connection)
        raise
    try:
        await connection.execute("commit")
    except psycopg.OperationalError as error:
        if connection.broken or connection.closed:
            raise CommitUnknown(
                "the connection broke during COMMIT: it happened or it did not", hint="Look before you repeat."
            ) from error
        raise as_ours(error) from error
    except psycopg.Error as error:
        raise as_ours(error) from error


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
