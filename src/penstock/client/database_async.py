"""Connections and transactions. No other module begins or commits a transaction."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from functools import partial
from time import monotonic
from typing import Any, Self, TypeVar

import psycopg
import psycopg_pool
from psycopg.rows import TupleRow

from penstock.client.concurrency_async import (
    Guard,
    Lock,
    PoolKey,
    Watchdog,
    guard,
    is_deserted,
    pool_key,
    repeat,
    sleep,
    to_the_end,
)
from penstock.client.connections_async import (
    AsyncConnection,
    clean_session,
    commit_after,
    fetch_raw,
    is_quiet,
    is_read_only,
    make_commit_unknown,
    prepare_connection,
    reset_factories,
)
from penstock.client.conninfo import check_dsn, describe_dsn
from penstock.client.hosts_async import WATCH_EVERY, AsyncHostConnection, AsyncHosts
from penstock.client.session import BEGIN, CONTRACT, PROBE, Session, check_contract, hang_up
from penstock.client.sqlstate import READ_ONLY, has_collided, to_penstock_error, translate_errors
from penstock.errors import CommitUnknown, Unavailable, ValidationError

# A connection that was cut is replaced. Without a logging set-up, psycopg's warnings do not reach standard error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
Once = Callable[[str, Sequence[Any]], Awaitable[list[TupleRow]]]
# For writes that are repeated if they are lost: they wait neither for the disk nor for a synchronous standby that is
# away.
RELAXED = f"{BEGIN}; set local synchronous_commit = off"
# For writes that can be put off: if another transaction holds a row for longer, the call raises Unavailable with the
# reason "retry".
IMPATIENT = f"{BEGIN}; set local lock_timeout = '500ms'"
Parameters = Sequence[Any] | Mapping[str, Any]
T = TypeVar("T")
RETRIES = 6
WHEN_ASKED = 2**31  # psycopg prepares a statement after so many runs, or when told to


class Home:
    """The state that belongs to one process, and in asyncio to one event loop."""

    def __init__(self, dsn: str) -> None:
        self.hosts = AsyncHosts(dsn)
        self.lock = Lock()
        self.pool: psycopg_pool.AsyncConnectionPool[AsyncHostConnection] | None = None
        self.guards: list[Guard] = []  # the guards of the pool
        self.watchdog = Watchdog()
        self.plain = False  # whether a statement may be a transaction by itself
        self.sets: list[str] = []  # the settings that Penstock's transactions make at their beginning
        self.probed_at = 0.0
        self.renewed_at = 0.0  # connections made before this are not used again


class AsyncDatabase:
    """A connection pool for one DSN. It is safe to use from several threads and after a fork: the child gets a pool of
    its own.

    It uses no session state, so that a pooler in transaction mode can stand between: every transaction sets its own
    isolation level. Without such a pooler, the few statements that each task needs are prepared.

    With a `deadline`, a connection that does not answer within so many seconds is closed, and its statement fails with
    Unavailable: TCP alone never notices a proxy that hangs. Statements of handlers have no deadline.
    """

    def __init__(
        self,
        dsn: str,
        *,
        source: str = "dsn",
        max_connections: int = 8,
        timeout: float = 10.0,
        deadline: float | None = None,
        rehearse: bool = False,
    ) -> None:
        self.dsn = dsn
        self._end = "rollback" if rehearse else "commit"
        self.source = source
        self._max_connections = max_connections
        self._timeout = timeout
        self._deadline = deadline
        self.local_settings: tuple[str, ...] = ()  # statements at the beginning of every transaction
        # After a fork the parent's home stays here and is never closed, because its sockets belong to the parent.
        self._homes: dict[PoolKey, Home] = {}

    def __repr__(self) -> str:
        return f"<AsyncDatabase {describe_dsn(self.dsn)}>"

    def with_settings(self, *statements: str) -> Self:
        """Returns a client of the same connections that runs these statements (`set local …`) at the beginning of each
        of its transactions. Close the original when you close one of the two."""
        found = copy(self)
        found.local_settings = (*self.local_settings, *statements)
        return found

    @property
    def rehearses(self) -> bool:
        """Whether every transaction is rolled back at its end."""
        return self._end == "rollback"

    @property
    def hosts(self) -> AsyncHosts:
        """The hosts of the DSN, as this process sees them."""
        return self._home().hosts

    @asynccontextmanager
    async def transaction(self, begin: str = BEGIN, deadline: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Runs one transaction, which is READ COMMITTED and resolves names in pg_catalog first, whatever the session's
        defaults are. An idle connection that has died (after a server restart) fails at BEGIN, before anything has
        happened; then another connection is taken."""
        async with (
            self._connection(partial(self._begin, begin, True)) as connection,
            commit_after(connection, self._end, self.answering(connection, deadline)),
        ):
            yield connection

    async def rows(
        self, statement: str, parameters: Parameters = (), *, begin: str = BEGIN, deadline: float | None = None
    ) -> list[TupleRow]:
        """Runs one statement in a transaction of its own, and returns its rows."""
        async with self.transaction(begin, deadline) as connection:
            return await (await connection.execute(statement.encode(), parameters)).fetchall()

    async def row(self, statement: str, parameters: Parameters = (), *, begin: str = BEGIN) -> TupleRow:
        """Runs one statement that returns exactly one row, and returns that row."""
        (row,) = await self.rows(statement, parameters, begin=begin)
        return row

    async def value(self, statement: str, parameters: Parameters = (), *, begin: str = BEGIN) -> Any:
        """Runs one statement that returns exactly one row, and returns the first column of it."""
        return (await self.row(statement, parameters, begin=begin))[0]

    async def run(self, statement: str, parameters: Parameters = (), *, begin: str = BEGIN) -> None:
        """Runs one statement in a transaction of its own; what it returns is not read."""
        async with self.transaction(begin) as connection:
            await connection.execute(statement.encode(), parameters)

    @contextmanager
    def answering(self, connection: AsyncConnection, deadline: float | None = None) -> Iterator[None]:
        """Closes the connection when it does not answer within the deadline."""
        seconds = deadline or self._deadline
        if seconds is None:
            yield
            return
        late: list[bool] = []

        def end() -> None:
            late.append(True)
            hang_up(connection)

        try:
            with self._home().watchdog.watch(seconds, end):
                yield
        except CommitUnknown:
            raise
        except Unavailable as error:
            if not late:
                raise
            raise Unavailable(f"PostgreSQL did not answer within {seconds:g} s", reason="deadline") from error

    async def once(self, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
        """Runs one statement that is a transaction by itself, in one round trip instead of three, and returns its rows
        as PostgreSQL sent them (see `raw_loaders`). If the connection breaks, the outcome is unknown, so use it only
        for statements that may run twice."""
        await self._open_pool()
        if self._end != "commit" or self.local_settings or not self._home().plain:
            async with self.transaction() as connection:
                return await fetch_raw(connection, query, parameters)
        async with self._connection(is_quiet) as connection:
            try:
                with self.answering(connection), translate_errors():
                    return await fetch_raw(connection, query, parameters)
            except Unavailable as error:
                if error.reason != "deadline" and (connection.broken or connection.closed):
                    raise make_commit_unknown() from error
                raise

    @asynccontextmanager
    async def lent(self, mark: str) -> AsyncIterator[AsyncConnection]:
        """Opens a transaction for statements of a handler. Errors and settings of those statements remain the
        handler's. Only Penstock may end the transaction: `still_lent` recognises it by the mark, which exists only
        within it."""
        async with self._connection(partial(self._begin, BEGIN, False)) as connection:
            try:
                async with commit_after(connection, self._end, self.answering(connection), ours=False):
                    await connection.execute("select pg_catalog.set_config('penstock.lent', %s, true)", (mark,))
                    try:
                        yield connection
                    finally:
                        reset_factories(connection)
            finally:
                with self.answering(connection):
                    await clean_session(connection)

    async def reconnect(self) -> None:
        """Waits until PostgreSQL can be reached. Connections that were made before this call are not used again."""
        began = monotonic()
        while True:
            try:
                await (await self.connect()).close()
                break
            except Unavailable:
                await sleep(random.uniform(0.1, 0.5))  # noqa: S311 - so that a fleet does not reconnect all at once
        self._home().renewed_at = began

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncHostConnection]:
        """Opens a connection outside the pool, for work that needs a session (advisory locks around several
        transactions)."""
        connection = await self.connect()
        try:
            with translate_errors():
                yield connection
        finally:
            await connection.close()

    def refuse_rehearsal(self, verb: str) -> None:
        """Refuses a verb that uses several transactions: if each were rolled back, the verb would find the same tasks
        again and again."""
        if self.rehearses:
            raise ValidationError(f"rehearse: {verb} is done in several transactions, and cannot be rehearsed")

    async def connect(self) -> AsyncHostConnection:
        """Opens and configures a connection outside the pool."""
        check_dsn(self.dsn, self.source)
        with translate_errors(source=self.source, dsn=self.dsn):
            connection = await self._home().hosts.connect()
        connection.asked_at = monotonic()
        with self.answering(connection), translate_errors(source=self.source, dsn=self.dsn):
            await prepare_connection(connection)
        return connection

    async def check_writable(self) -> None:
        """Raises if PostgreSQL cannot be reached, accepts no writes, or does not have the Penstock schema."""
        async with self.session() as connection:
            row = await (await connection.execute("show transaction_read_only")).fetchone()
            if row != ("off",):
                raise Unavailable(
                    "the server accepts no writes: it is a standby, or default_transaction_read_only is on",
                    hint=READ_ONLY.hint,
                    reason="read_only",
                )
            check_contract(await (await connection.execute(CONTRACT)).fetchone())

    async def close(self) -> None:
        """Closes the pool of this process, and in asyncio of this event loop."""
        home = self._homes.get(pool_key())
        if home is None:
            return
        async with home.lock:  # another caller may be opening the pool
            pool, guards, home.pool, home.guards = home.pool, home.guards, None, []
        if pool is not None:
            await pool.close()
        for one in guards:
            one.cancel()
        home.watchdog.close()

    @asynccontextmanager
    async def _connection(
        self, is_usable: Callable[[AsyncConnection], Awaitable[bool]]
    ) -> AsyncIterator[AsyncConnection]:
        """Takes a connection of the pool that has not died while it was idle. If it leads to a standby, the other
        connections may too: none of them is used again, and new ones are made to the present primary."""
        pool, home = await self._open_pool(), self._home()
        for _ in range(self._max_connections + 1):
            connection = await self._take(pool)
            connection.asked_at = monotonic()
            try:
                if connection.made_at >= home.renewed_at and await is_usable(connection):
                    yield connection
                    return
                await connection.close()
            except (Unavailable, psycopg.Error) as error:
                if is_read_only(error):
                    home.renewed_at = monotonic()
                raise
            finally:
                connection.asked_at = None
                await to_the_end(pool.putconn, connection)
        raise Unavailable("PostgreSQL closes every connection at once", hint="Look at its log.")

    async def _begin(self, begin: str, ours: bool, connection: AsyncConnection) -> bool:
        """Begins a transaction; with `ours` it also sets what Penstock's own statements rely on. Returns False if the
        connection died while it was idle."""
        statement = "; ".join([begin, *(self._home().sets if ours else ()), *self.local_settings])
        try:
            with self.answering(connection), translate_errors():
                await connection.execute(statement.encode())
        except Unavailable as error:
            if error.reason == "deadline":
                raise
            return False
        return True

    async def _take(self, pool: psycopg_pool.AsyncConnectionPool[AsyncHostConnection]) -> AsyncHostConnection:
        try:
            return await pool.getconn()
        except psycopg_pool.PoolClosed:
            raise Unavailable("the client was closed meanwhile", reason="closed") from None
        except psycopg_pool.PoolTimeout:
            failed = self._home().hosts.last_error
            if failed is not None:
                raise to_penstock_error(failed, self.source, self.dsn) from failed
            await (await self.connect()).close()  # raises the reason, if the server is the cause
            raise Unavailable(
                f"all {self._max_connections} connections stayed busy for {self._timeout:g} s",
                hint="Raise max_connections, or do less at once.",
                reason="pool",
            ) from None

    async def _open_pool(self) -> psycopg_pool.AsyncConnectionPool[AsyncHostConnection]:
        home = self._home()
        pool = home.pool
        if pool is None or home.probed_at < home.renewed_at:
            async with home.lock:
                if home.pool is None or home.probed_at < home.renewed_at:
                    began = monotonic()
                    found = await self._probe()
                    home.plain, home.sets, home.probed_at = found.plain, found.sets, began
                pool = home.pool = home.pool or await self._new_pool(home)
        return pool

    def _home(self) -> Home:
        """Returns the connections of this process and event loop. Those of closed event loops are closed."""
        home = self._homes.get(pool_key())
        if home is None:
            for key in [*self._homes]:
                if is_deserted(key):
                    self._homes.pop(key, None)
            home = self._homes.setdefault(pool_key(), Home(self.dsn))
        return home

    async def _new_pool(self, home: Home) -> psycopg_pool.AsyncConnectionPool[AsyncHostConnection]:
        pool = psycopg_pool.AsyncConnectionPool(
            self.dsn,
            connection_class=AsyncHostConnection,
            kwargs={"hosts": home.hosts},
            configure=self._prepare,
            min_size=0,
            max_size=self._max_connections,
            timeout=self._timeout,
            # Without this the pool would wait longer and longer between its attempts.
            reconnect_timeout=0.2,
            reconnect_failed=try_again,
            open=False,
        )
        await pool.open()
        home.guards = [guard(pool.name)]
        if home.hosts.several:
            home.guards.append(repeat(home.hosts.watch, WATCH_EVERY))
        return pool

    async def _prepare(self, connection: AsyncConnection) -> None:
        """Configures a connection of the pool. Statements may be prepared if no pooler shares the session: a pooler
        tells its clients another backend number than PostgreSQL does."""
        with self.answering(connection), translate_errors():
            await prepare_connection(connection)
            row = await (await connection.execute("select pg_catalog.pg_backend_pid()")).fetchone()
            if row == (connection.info.backend_pid,):
                connection.prepare_threshold = WHEN_ASKED

    async def _probe(self) -> Session:
        """Connects once and returns the settings of the role, the database and the DSN. A wrong password or a schema of
        another version becomes an error at once, and not a time-out or an obscure error later."""
        connection = await self.connect()
        try:
            with self.answering(connection), translate_errors():
                check_contract(await (await connection.execute(CONTRACT)).fetchone())
                row = await (await connection.execute(PROBE)).fetchone()
                assert row is not None
                return Session(*row)
        finally:
            await connection.close()


async def retry_unavailable(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats an attempt that may be made twice, while PostgreSQL restarts or the reply to a COMMIT is lost."""
    for n in range(RETRIES):
        try:
            return await attempt()
        except Unavailable as error:
            if n == RETRIES - 1 or error.reason in ("read_only", "closed"):
                raise
            await sleep(min(0.1 * 2**n, 2.0))
    raise AssertionError


async def retry_collided(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats an attempt that PostgreSQL undid because another session wrote a row with an id that it had drawn. The
    repeat draws another id."""
    for _ in range(RETRIES - 1):
        try:
            return await attempt()
        except Unavailable as error:
            if not has_collided(error):
                raise
    return await attempt()


async def try_again(pool: psycopg_pool.AsyncConnectionPool[AsyncHostConnection]) -> None:
    """Tries again soon after the pool gave up making a connection, if a caller waits for one: otherwise that caller
    would wait for its whole time-out although PostgreSQL is back."""
    if pool.get_stats().get("requests_waiting"):
        await sleep(random.uniform(0.05, 0.2))  # noqa: S311 - so that a fleet does not reconnect all at once
        await pool.check()
