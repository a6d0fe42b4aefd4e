"""Connections, transactions, and SQLSTATE turned into our errors. The only place that begins or commits anything."""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

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
        check_dsn(self.dsn)
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


class Meaning(NamedTuple):
    """What a SQLSTATE is for us: an error, the words before PostgreSQL's own, and what to do."""

    error: Callable[..., PenstockError]
    words: str = ""
    hint: str | None = None


UNREACHABLE = "08006"
PASSWORD = Meaning(AuthError, "PostgreSQL refused the user or password", "Check the DSN and PGPASSFILE.")
SCHEMA = Meaning(
    SchemaVersionError, "the schema is missing or of another version", "Run `penstock init` against this database."
)
PAYLOAD = Meaning(partial(PayloadError, field="payload"), "payload")
AGAIN = Meaning(partial(Unavailable, reason="retry"), "", "Try again.")
DOWN = Meaning(Unavailable, "PostgreSQL is not available", "Is it running, and is this its address?")
MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(("28P01", "28000"), PASSWORD),
    "3D000": Meaning(ConfigError, "", "Create it, or name another one in the DSN."),
    "42501": Meaning(AuthError, "", "The role lacks a right that this verb needs."),
    **dict.fromkeys(("42883", "42P01", "3F000", "42704", "42703"), SCHEMA),
    "25006": Meaning(partial(Unavailable, reason="read_only"), "", "Connect to the primary."),
    **dict.fromkeys(("22P05", "22P02", "22021", "22003", "22030", "54001"), PAYLOAD),
    "23514": Meaning(ValidationError),
    **dict.fromkeys(("40001", "40P01", "55P03", "57014"), AGAIN),
    **dict.fromkeys(("08", "53", "57"), DOWN),  # whole classes
}


def as_ours(error: psycopg.Error, source: str | None = None, dsn: str | None = None) -> PenstockError:
    """One of ours for one of PostgreSQL's. No statement, parameter or password gets into the message."""
    message = error.diag.message_primary or first_line(error)
    state = error.sqlstate or guessed_state(error, message)
    if state in OURS:
        return OURS[state](message, hint=error.diag.message_hint)
    if state == "23505" and error.diag.constraint_name == "task_subject":
        return Taken("a subject exists already")
    meaning = MEANINGS.get(state) or MEANINGS.get(state[:2])
    if meaning is None:
        return PenstockError(f"{state} {message}".strip())
    where = f" ({described(dsn)}, from {source})" if dsn and source else ""
    said = f"{meaning.words}{where}: {message}" if meaning.words else f"{message}{where}"
    return meaning.error(said, hint=meaning.hint)


def guessed_state(error: psycopg.Error, message: str) -> str:
    """An error while connecting has no SQLSTATE, only words."""
    if "password authentication failed" in message or "no password supplied" in message:
        return "28P01"
    if "database" in message and "does not exist" in message:
        return "3D000"
    return UNREACHABLE if isinstance(error, psycopg.OperationalError) else ""


def first_line(error: psycopg.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def check_dsn(dsn: str) -> dict[str, Any]:
    """Its parts. An @ or / that is not escaped ends a password early, and libpq would print the rest of it as the name
    of a host, port or database: such a DSN is refused here, and nothing of it is shown."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ConfigError("the DSN can not be read", hint=DSN_HINT) from None
    if any("@" in str(parts.get(name, "")) for name in ("host", "port", "dbname")):
        raise ConfigError("dsn: an @ or / in its password is not escaped", hint="Write %40 for @ and %2F for /.")
    for port in str(parts.get("port") or "").split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise ConfigError("dsn: its port is not a number from 1 to 65535", hint=DSN_HINT)
    return parts


DSN_HINT = "Write postgresql://user@host:port/database, or key=value pairs."


def described(dsn: str | None) -> str:
    """Where a DSN leads, without secrets."""
    try:
        parts = check_dsn(dsn or "")
    except ConfigError:
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
    oid = 1009  # text[]

    def dump(self, obj: TextArray) -> Buffer:
        pack = struct.Struct("!i").pack
        if None in obj.values:
            body = [b"\xff\xff\xff\xff" if one is None else pack(len(one)) + one for one in obj.values]
            return array_head(len(body), 25, nulls=1) + b"".join(body)
        values = cast("Sequence[bytes]", obj.values)
        return array_head(len(values), 25) + b"".join([pack(len(one)) + one for one in values])


class IdArrayDumper(Dumper):
    format = pq.Format.BINARY
    oid = 1016  # bigint[]

    def dump(self, obj: IdArray) -> Buffer:
        pack = struct.Struct("!iq").pack
        return array_head(len(obj.values), 20) + b"".join([pack(8, one) for one in obj.values])


def array_head(length: int, element: int, nulls: int = 0) -> bytes:
    """PostgreSQL's binary form of an array with one dimension; an empty one has none."""
    return struct.pack("!iiIii", 1, nulls, element, length, 1) if length else struct.pack("!iiI", 0, 0, element)
