# Made from src/penstock/aio/database.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Connections and transactions. The only place that begins or commits anything."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg_pool
from psycopg import pq
from psycopg.rows import TupleRow

from penstock.colour import Lock, Place, deserted, here, to_the_end
from penstock.errors import CommitUnknown, Unavailable, ValidationError
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
Connection = psycopg.Connection[TupleRow]


class Home:
    """What one process, and in asyncio one event loop, has for itself."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.pool: psycopg_pool.ConnectionPool[Connection] | None = None


class Database:
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
        return f"<Database {described(self.dsn)}>"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, READ COMMITTED whatever the session's default. An idle connection that died meanwhile (a
        restarted server) fails at BEGIN, when nothing has happened yet: another one is taken."""
        with self._connection() as connection, committed(connection, self._end):
            yield connection

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """A connection outside the pool, for what needs a session (advisory locks around several transactions)."""
        connection = self.connect()
        try:
            with translated():
                yield connection
        finally:
            connection.close()

    def refuse_rehearsal(self, verb: str) -> None:
        """For what is done in several transactions: undone one by one, they would find the same again and again."""
        if self._end == "rollback":
            raise ValidationError(f"rehearse: {verb} is done in several transactions, and can not be rehearsed")

    def connect(self) -> Connection:
        check_dsn(self.dsn, self.source)
        with translated(source=self.source, dsn=self.dsn):
            connection: Connection = psycopg.Connection.connect(self.dsn, **SETTINGS)
            configure(connection)
            return connection

    def close(self) -> None:
        home = self._homes.get(here())
        if home is None:
            return
        with home.lock:  # somebody may be opening it
            pool, home.pool = home.pool, None
        if pool is not None:
            pool.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        pool = self._open_pool()
        for _ in range(self._max_connections + 1):
            try:
                connection = pool.getconn()
            except psycopg_pool.PoolClosed:
                raise Unavailable("the client was closed meanwhile", reason="closed") from None
            except psycopg_pool.PoolTimeout:
                self.connect().close()  # says why, if it is the server
                raise Unavailable(
                    f"all {self._max_connections} connections stayed busy for {self._timeout:g} s",
                    hint="Raise max_connections, or do less at once.",
                    reason="pool",
                ) from None
            try:
                if begun(connection):
                    yield connection
                    return
            finally:
                to_the_end(pool.putconn, connection)
        raise Unavailable("PostgreSQL closes every connection at once", hint="Look at its log.")

    def _open_pool(self) -> psycopg_pool.ConnectionPool[Connection]:
        home = self._homes.get(here()) or self._move_in()
        pool = home.pool
        if pool is None:
            with home.lock:
                pool = home.pool = home.pool or self._new_pool()
        return pool

    def _move_in(self) -> Home:
        """Pools of event loops that are closed are let go; that closes their connections."""
        for place in [*self._homes]:
            if deserted(place):
                self._homes.pop(place, None)
        return self._homes.setdefault(here(), Home())

    def _new_pool(self) -> psycopg_pool.ConnectionPool[Connection]:
        self._probe()
        pool = psycopg_pool.ConnectionPool(
            self.dsn,
            kwargs=SETTINGS,
            configure=configured,
            min_size=0,
            max_size=self._max_connections,
            timeout=self._timeout,
            open=False,
        )
        pool.open()
        return pool

    def _probe(self) -> None:
        """A wrong password or a schema of another version is an error at once, not a time-out or a riddle later."""
        connection = self.connect()
        try:
            with translated():
                row = connection.execute(CONTRACT).fetchone()
                check_contract(row)
        finally:
            connection.close()


def begun(connection: Connection) -> bool:
    """False: it died while it was idle."""
    try:
        connection.execute("begin isolation level read committed")
    except psycopg.OperationalError:
        return False
    return True


def configured(connection: Connection) -> None:
    configure(connection)


@contextmanager
def committed(connection: Connection, end: str) -> Iterator[None]:
    """COMMIT at the end (ROLLBACK, if it is a rehearsal), ROLLBACK on any error; an error while COMMIT is under way is
    told apart."""
    try:
        with translated():
            yield
    except BaseException:
        rollback(connection)
        raise
    try:
        connection.execute(end.encode())
    except psycopg.OperationalError as error:
        if connection.broken or connection.closed:
            raise CommitUnknown(
                "the connection broke during COMMIT: it happened or it did not", hint="Look before you repeat."
            ) from error
        raise as_ours(error) from error
    except psycopg.Error as error:
        raise as_ours(error) from error


def rollback(connection: Connection) -> None:
    try:
        if not connection.closed and connection.info.transaction_status != pq.TransactionStatus.IDLE:
            connection.execute("rollback")
    except psycopg.Error:
        connection.close()


def fetch_raw(connection: Connection, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
    """Rows as PostgreSQL sent them (see `raw_loaders`)."""
    with connection.cursor(binary=True) as cursor:
        raw_loaders(cursor)
        cursor.execute(query.encode(), parameters)
        return cursor.fetchall()
