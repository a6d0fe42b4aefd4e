"""Somebody else's async connection: psycopg, asyncpg, SQLAlchemy (connection and session). See `penstock.borrowed`."""

from __future__ import annotations

from typing import Any

from penstock.borrowed import Rows, Values, family, named, parameters, percent, unknown


async def run(connection: object, statement: str, values: Values) -> Rows:
    match family(connection):
        case "psycopg":
            return await run_psycopg(connection, statement, values)
        case "asyncpg":
            return await run_asyncpg(connection, statement, values)
        case "sqlalchemy":
            return await run_sqlalchemy(connection, statement, values)
    raise unknown(connection, "asyncpg, psycopg or SQLAlchemy")


async def run_psycopg(connection: Any, statement: str, values: Values) -> Rows:
    if not hasattr(connection, "__aenter__"):
        raise unknown(connection, "psycopg's async API (the sync client takes the sync one)")
    from psycopg.rows import tuple_row  # noqa: PLC0415 - whatever rows the caller's connection makes

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(percent(statement), values)
        return list(await cursor.fetchall())


async def run_asyncpg(connection: Any, statement: str, values: Values) -> Rows:
    return [tuple(row.values()) for row in await connection.fetch(statement, *values)]


async def run_sqlalchemy(connection: Any, statement: str, values: Values) -> Rows:
    from sqlalchemy import text  # noqa: PLC0415 - only whoever has one gets here

    if not hasattr(connection, "__aenter__"):
        raise unknown(connection, "SQLAlchemy's async API (the sync client takes the sync one)")
    return [tuple(row) for row in await connection.execute(text(named(statement)), parameters(values))]
