"""Runs statements on the caller's own async connection: psycopg, asyncpg or SQLAlchemy (connection and session). See
`borrowed`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from psycopg import AsyncCursor
from psycopg.rows import tuple_row

from penstock.client.borrowed import (
    ASYNC,
    AT_ONCE,
    SYNC,
    Rows,
    Values,
    library,
    named,
    parameters,
    percent,
    refusals,
    refused,
)

__all__ = ["borrow", "refusals"]
Run = Callable[[str, Values], Awaitable[Rows]]


def borrow(connection: object) -> Run:
    """Returns a function that runs statements on the connection. A statement has the placeholders $1, $2, …, each a
    text, each used once and in order."""
    if isinstance(connection, str):  # the message does not show it: it may be a DSN
        raise refused("a Django alias is for Penstock, this is AsyncPenstock", f"AsyncPenstock takes {ASYNC.takes}.")
    runs = {"psycopg": run_psycopg, "asyncpg": run_asyncpg, "sqlalchemy": run_sqlalchemy}
    return partial(runs[library(connection, ASYNC, SYNC)], connection)


async def run_psycopg(connection: Any, statement: str, values: Values) -> Rows:
    """Runs a statement on a psycopg connection."""
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(percent(statement).encode(), values, prepare=False)
        return await cursor.fetchall()


async def run_asyncpg(connection: Any, statement: str, values: Values) -> Rows:
    """Runs a statement on an asyncpg connection."""
    from asyncpg import Record  # type: ignore[import-untyped]  # noqa: PLC0415 - asyncpg is optional

    return [tuple(row) for row in await connection.fetch(statement, *values, record_class=Record)]


async def run_sqlalchemy(connection: Any, statement: str, values: Values) -> Rows:
    """Runs a statement on a SQLAlchemy connection or session."""
    from sqlalchemy import text  # noqa: PLC0415 - SQLAlchemy is optional

    rows = await connection.execute(text(named(statement)), parameters(values), execution_options=AT_ONCE)
    return [tuple(row) for row in rows]
