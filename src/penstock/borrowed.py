"""Somebody else's connection. Whatever driver or framework it is of, a statement runs in the transaction it is in:
nothing is begun, committed, rolled back or retried on it, and its errors are passed on as they are.

psycopg, SQLAlchemy (connection and session) and Django (an alias, or a connection of `django.db.connections`).
The same for asyncio is in `penstock.aio.borrowed`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from penstock.errors import ConfigError, ValidationError, shown

PLACEHOLDER = re.compile(r"\$(\d)")
Values = Sequence[str | None]
Rows = list[tuple[Any, ...]]


def run(connection: object, statement: str, values: Values) -> Rows:
    """Rows of a statement with $1, $2, …, each a text."""
    if isinstance(connection, str):
        return run_django(django_connection(connection), statement, values)
    match family(connection):
        case "psycopg":
            return run_psycopg(connection, statement, values)
        case "sqlalchemy":
            return run_sqlalchemy(connection, statement, values)
        case "django":
            return run_django(connection, statement, values)
    raise unknown(connection, "psycopg, SQLAlchemy or Django")


def family(connection: object) -> str:
    """Which library it is of, by its classes: none of them is imported here."""
    roots = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    found = roots & {"psycopg", "sqlalchemy", "django", "asyncpg"}
    return found.pop() if found else ""


def unknown(connection: object, known: str) -> ValidationError:
    return ValidationError(
        f"connection: {shown(type(connection).__name__)} is not one that we know",
        hint=f"Give a connection of {known}; for any other call penstock.push_many in SQL.",
        field="connection",
    )


def percent(statement: str) -> bytes:
    """Placeholders as psycopg and Django write them. Each number comes once and in order."""
    return PLACEHOLDER.sub("%s", statement).encode()


def named(statement: str) -> str:
    """Placeholders as SQLAlchemy's text() writes them."""
    return PLACEHOLDER.sub(r":p\1", statement)


def parameters(values: Values) -> dict[str, str | None]:
    return {f"p{n}": value for n, value in enumerate(values, 1)}


def run_psycopg(connection: Any, statement: str, values: Values) -> Rows:
    if not hasattr(connection, "cursor") or hasattr(connection, "__aenter__"):
        raise unknown(connection, "psycopg's sync API (the async client takes the async one)")
    from psycopg.rows import tuple_row  # noqa: PLC0415 - whatever rows the caller's connection makes

    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(percent(statement), values)
        return list(cursor.fetchall())


def run_sqlalchemy(connection: Any, statement: str, values: Values) -> Rows:
    from sqlalchemy import text  # noqa: PLC0415 - only whoever has one gets here

    if hasattr(connection, "__aenter__"):
        raise unknown(connection, "SQLAlchemy's sync API (the async client takes the async one)")
    return [tuple(row) for row in connection.execute(text(named(statement)), parameters(values))]


def run_django(connection: Any, statement: str, values: Values) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(percent(statement).decode(), values)
        return [tuple(row) for row in cursor.fetchall()]


def django_connection(alias: str) -> Any:
    try:
        from django.db import connections  # type: ignore[import-untyped]  # noqa: PLC0415 - only whoever names one
    except ImportError:
        raise ConfigError(
            f"connection: {shown(alias)} would be a Django alias, but Django is not installed",
            hint="Give a connection, or install Django.",
        ) from None
    return connections[alias]
