"""Connections, transactions, and SQLSTATE turned into our errors. The only place that begins or commits anything."""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
import psycopg_pool
from psycopg import IsolationLevel, pq
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from penstock.errors import (
    AuthError,
    CommitUnknown,
    ConfigError,
    Conflict,
    NotFound,
    PayloadError,
    PayloadTooLarge,
    PenstockError,
    SchemaVersionError,
    Taken,
    Unavailable,
    ValidationError,
)

OLDEST_SERVER = 150000

# A connection that was cut is replaced, and that is all: without a logging set-up it shall not reach standard error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
Connection = psycopg.Connection[TupleRow]


class Database:
    """A pool over one DSN. Safe among threads, and after a fork: the child gets a pool of its own.

    No session state, so that a pooler in transaction mode may stand between: every transaction says its own isolation
    level, and nothing is prepared (the plans live inside the functions).
    """

    def __init__(self, dsn: str, *, source: str = "dsn", max_connections: int = 8, timeout: float = 10.0) -> None:
        self.dsn = dsn
        self.source = source
        self._max_connections = max_connections
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[Connection] | None = None
        self._inherited: list[object] = []
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Database {described(self.dsn)}>"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, READ COMMITTED whatever the session's default. An idle connection that died meanwhile (a
        restarted server) fails at BEGIN, when nothing has happened yet: another one is taken."""
        with self._connection() as connection, committed(connection):
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

    def connect(self) -> Connection:
        with translated(source=self.source, dsn=self.dsn):
            connection: Connection = psycopg.connect(self.dsn, **SETTINGS)
            configure(connection)
            return connection

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        pool = self._open_pool()
        for _ in range(self._max_connections + 1):
            try:
                connection = pool.getconn()
            except psycopg_pool.PoolTimeout:
                self.connect().close()  # says why, if it is the server
                raise Unavailable(
                    f"all {self._max_connections} connections stayed busy for {self._timeout:g} s",
                    hint="Raise max_connections, or use fewer threads.",
                    reason="pool",
                ) from None
            try:
                connection.execute("begin isolation level read committed")
            except psycopg.OperationalError:
                pool.putconn(connection)
                continue
            try:
                yield connection
            finally:
                pool.putconn(connection)
            return
        raise Unavailable("PostgreSQL closes every connection at once", hint="Look at its log.")

    def _open_pool(self) -> psycopg_pool.ConnectionPool[Connection]:
        if self._pool is not None and self._pid == os.getpid():
            return self._pool
        with self._lock:
            if self._pid != os.getpid() and self._pool is not None:
                # Kept, never closed: the sockets belong to the parent.
                self._inherited.append(self._pool)
                self._pool, self._pid = None, os.getpid()
            if self._pool is None:
                self.connect().close()  # a wrong password is an error at once, not a time-out of the pool
                self._pool = psycopg_pool.ConnectionPool(
                    self.dsn,
                    kwargs=SETTINGS,
                    configure=configure,
                    min_size=0,
                    max_size=self._max_connections,
                    timeout=self._timeout,
                    open=True,
                )
            return self._pool


# Autocommit, because we write BEGIN and COMMIT ourselves.
SETTINGS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "application_name": "penstock"}


def configure(connection: Connection) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        raise ConfigError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old", hint="Penstock needs 15 or newer."
        )
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.adapters.register_dumper(TextArray, TextArrayDumper)
    connection.adapters.register_dumper(IdArray, IdArrayDumper)


@contextmanager
def committed(connection: Connection) -> Iterator[None]:
    """COMMIT at the end, ROLLBACK on any error; an error while COMMIT is under way is told apart."""
    try:
        with translated():
            yield
    except BaseException:
        rollback(connection)
        raise
    try:
        connection.execute("commit")
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


@contextmanager
def translated(source: str | None = None, dsn: str | None = None) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise as_ours(error, source, dsn) from error


OURS: Mapping[str, type[PenstockError]] = {
    "PS400": ValidationError,
    "PS404": NotFound,
    "PS409": Conflict,
    "PS413": PayloadTooLarge,
    "PS422": PayloadError,
}
INIT = "Run `penstock init` against this database."


def as_ours(error: psycopg.Error, source: str | None = None, dsn: str | None = None) -> PenstockError:
    """One of ours for one of PostgreSQL's. No statement, parameter or password gets into the message."""
    state = error.sqlstate or ""
    message = error.diag.message_primary or first_line(error)
    if state in OURS:
        return OURS[state](message, hint=error.diag.message_hint)
    where = f" ({described(dsn)}, from {source})" if dsn and source else ""
    if state in ("28P01", "28000") or "password authentication failed" in message or "no password supplied" in message:
        return AuthError(f"PostgreSQL refused the user or password{where}: {message}", hint="Check the DSN and PGPASSFILE.")
    if state == "3D000" or ("database" in message and "does not exist" in message):
        return ConfigError(f"{message}{where}", hint="Create it, or name another one in the DSN.")
    if state == "42501":
        return AuthError(message, hint="The role lacks a right that this verb needs.")
    if state in ("42883", "42P01", "3F000", "42704", "42703"):
        return SchemaVersionError(f"the schema is missing or of another version: {message}", hint=INIT)
    if state == "25006":
        return Unavailable(message, reason="read_only", hint="Connect to the primary.")
    if state in ("22P05", "22P02", "22021", "22003", "22030", "54001"):
        return PayloadError(f"payload: {message}", field="payload")
    if state == "23505" and error.diag.constraint_name == "task_subject":
        return Taken("a subject exists already")
    if state == "23514":
        return ValidationError(f"{error.diag.constraint_name}: {message}")
    if state in ("40001", "40P01", "55P03", "57014"):
        return Unavailable(message, reason="retry", hint="Try again.")
    if isinstance(error, psycopg.OperationalError) or state[:2] in ("08", "53", "57"):
        return Unavailable(f"PostgreSQL is not available{where}: {message}", hint="Is it running, and is this its address?")
    if isinstance(error, psycopg.ProgrammingError) and not state:
        return ConfigError(f"the DSN can not be read{where}", hint="Write postgresql://user@host/database, or key=value pairs.")
    return PenstockError(f"{state} {message}".strip())


def first_line(error: psycopg.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def described(dsn: str | None) -> str:
    """Where a DSN leads, without user secrets."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn or "")
    except psycopg.ProgrammingError:
        return "a DSN that can not be read"
    host, port, name = parts.get("host"), parts.get("port"), parts.get("dbname")
    return f"{name or 'the default database'} at {host or 'the default host'}{f':{port}' if port else ''}"


def fetch_raw(connection: Connection, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
    """Rows with moments as microseconds since 2000, and uuid and jsonb as their bytes: a claim reads half a million of
    them a second, and psycopg's objects for them cost more than PostgreSQL's whole work."""
    with connection.cursor(binary=True) as cursor:
        cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
        cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
        cursor.adapters.register_loader("jsonb", ByteaBinaryLoader)
        return cursor.execute(query.encode(), parameters).fetchall()


class TextArray:
    """Texts for PostgreSQL as one binary array: a third of the cost of psycopg's own list, element by element."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.values = values


class IdArray:
    """Ids for PostgreSQL as one binary array."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values


class TextArrayDumper(Dumper):
    format = pq.Format.BINARY
    oid: ClassVar[int] = 1009  # text[]

    def dump(self, obj: TextArray) -> Buffer:
        pack = struct.Struct("!i").pack
        if None in obj.values:
            body = [b"\xff\xff\xff\xff" if one is None else pack(len(one)) + one for one in obj.values]
            return array_head(len(body), 25, nulls=1) + b"".join(body)
        return array_head(len(obj.values), 25) + b"".join([pack(len(one)) + one for one in obj.values if one is not None])


class IdArrayDumper(Dumper):
    format = pq.Format.BINARY
    oid: ClassVar[int] = 1016  # bigint[]

    def dump(self, obj: IdArray) -> Buffer:
        pack = struct.Struct("!iq").pack
        return array_head(len(obj.values), 20) + b"".join([pack(8, one) for one in obj.values])


def array_head(length: int, element: int, nulls: int = 0) -> bytes:
    """PostgreSQL's binary form of an array with one dimension; an empty one has none."""
    return struct.pack("!iiIii", 1, nulls, element, length, 1) if length else struct.pack("!iiI", 0, 0, element)
