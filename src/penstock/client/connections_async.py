"""What is done with one connection: its settings, commit and rollback, and the reset after a handler used it."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from typing import Any

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow, tuple_row

from penstock.client.binary import raw_loaders
from penstock.client.session import configure, set_usual
from penstock.client.sqlstate import to_penstock_error, translate_errors
from penstock.errors import CommitUnknown, HandlerMisuse, Unavailable

AsyncConnection = psycopg.AsyncConnection[TupleRow]


async def prepare_connection(connection: AsyncConnection) -> None:
    """Prepares a new connection for Penstock's statements."""
    configure(connection)
    await restore_settings(connection)


async def restore_settings(connection: AsyncConnection) -> None:
    """Sets the session settings that Penstock needs, if they have other values."""
    statement = set_usual(connection)
    if statement is not None:
        await connection.execute(statement)


async def is_quiet(connection: AsyncConnection) -> bool:
    """Returns whether the connection is open and has no unread data: a message from the server to an idle connection
    mostly announces its end."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def is_read_only(error: Exception) -> bool:
    """Returns whether the error says that the server is a standby. Handlers get psycopg's own error."""
    ours = isinstance(error, Unavailable) and error.reason == "read_only"
    return ours or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)


@asynccontextmanager
async def commit_after(
    connection: AsyncConnection, end: str, answering: AbstractContextManager[None], *, ours: bool = True
) -> AsyncIterator[None]:
    """Commits at the end of the block (or rolls back, in a rehearsal), and rolls back on any error. An error during
    COMMIT has an error class of its own. Penstock's own statements, and every COMMIT, have the deadline."""
    with ExitStack() as stack:
        if ours:
            stack.enter_context(answering)
        try:
            with translate_errors() if ours else nullcontext():
                yield
        except BaseException:
            await rollback(connection)
            raise
        if not ours:
            stack.enter_context(answering)
        try:
            await connection.execute(end.encode())
        except psycopg.OperationalError as error:
            if connection.broken or connection.closed:
                raise make_commit_unknown() from error
            raise to_penstock_error(error) from error
        except psycopg.Error as error:
            raise to_penstock_error(error) from error


def make_commit_unknown() -> CommitUnknown:
    """Returns the error for a COMMIT whose outcome is unknown."""
    said = "the connection broke during COMMIT: it happened or it did not"
    return CommitUnknown(said, hint="Look before you repeat.")


async def rollback(connection: AsyncConnection) -> None:
    """Rolls back the open transaction, and closes the connection if that fails."""
    try:
        if not connection.closed and connection.info.transaction_status != pq.TransactionStatus.IDLE:
            await connection.execute("rollback")
    except psycopg.Error:
        await connection.close()


async def fetch_raw(connection: AsyncConnection, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
    """Runs a statement and returns its rows as PostgreSQL sent them (see `raw_loaders`)."""
    async with connection.cursor(binary=True) as cursor:
        raw_loaders(cursor)
        await cursor.execute(query.encode(), parameters, prepare=True)
        return await cursor.fetchall()


def reset_factories(connection: AsyncConnection) -> None:
    """Resets the row and cursor factories, which a handler may have changed."""
    connection.row_factory = tuple_row
    connection.cursor_factory = psycopg.AsyncCursor


async def check_still_lent(connection: AsyncConnection, mark: str) -> None:
    """Raises HandlerMisuse if the handler closed the connection or ended its transaction."""
    reset_factories(connection)
    if connection.closed or connection.info.transaction_status == pq.TransactionStatus.IDLE:
        raise HandlerMisuse(ENDED, hint="Leave it open: it is committed, with the task, at the end of the block.")
    row = await (await connection.execute("select pg_catalog.current_setting('penstock.lent', true)")).fetchone()
    if row != (mark,):
        raise HandlerMisuse(ENDED, hint="Leave it open: it is committed, with the task, at the end of the block.")
    await restore_settings(connection)  # for the statement that follows: the handler may have set another encoding


ENDED = "the handler closed the connection of transaction(), or ended its transaction"


# Resets what DISCARD ALL resets, but keeps Penstock's prepared statements and their plans: psycopg does not notice the
# second DISCARD ALL of a connection, and goes on to use statements that are gone. Returns whether a handler's SQL
# prepared other statements.
CLEAN = """
    select exists (select from pg_catalog.pg_prepared_statements as p where p.from_sql)
    from pg_catalog.pg_advisory_unlock_all();
    close all; set session authorization default; reset all; unlisten *; discard temp; discard sequences
"""


async def clean_session(connection: AsyncConnection) -> None:
    """Resets a session before it goes back to the pool: otherwise claims and settles would run with the settings of a
    handler."""
    try:
        if not connection.closed:
            row = await (await connection.execute(CLEAN)).fetchone()
            if row != (False,):  # the next handler would find a prepared statement of that name
                await connection.close()
            else:
                await restore_settings(connection)
    except psycopg.Error:
        await connection.close()
