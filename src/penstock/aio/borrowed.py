"""Somebody else's async connection: psycopg, asyncpg, SQLAlchemy (connection and session). See `penstock.borrowed`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from psycopg import AsyncCursor
from psycopg.rows import tuple_row

from penstock.borrowed import (
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
    """How a statement is run on it: one with $1, $2, …, each a text, once and in order."""
    if isinstance(connection, str):  # not shown: it may be a DSN
        raise refused("a Django alias is for Penstock, this is AsyncPenstock", f"AsyncPenstock takes {ASYNC.takes}.")
    runs = {"psycopg": run_psycopg, "asyncpg": run_asyncpg, "sqlalchemy": run_sqlalchemy}
    return partial(runs[library(connection, ASYNC, SYNC)], connection)


async def run_psycopg(connection: Any, statement: str, values: Values) -> Rows:
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(percent(statement).encode(), values, prepare=False)
        return await cursor.fetchall()


async def run_asyncpg(connection: Any, statement: str, values: Values) -> Rows:
    from asyncpg import Record  # type: ignore[import-untyped]  # noqa: PLC0415 - only whoever has one gets here

    return [tuple(row) for row in await connection.fetch(statement, *values, record_class=Record)]


async def run_sqlalchemy(connection: Any, statement: str, values: Values) -> Rows:
    from sqlalchemy import text  # noqa: PLC0415 - only whoever has one gets here

    rows = await connection.execute(text(named(statement)), parameters(values), execution_options=AT_ONCE)
    return [tuple(row) for row in rows]
