"""Somebody else's connection. Whatever library it is of, a statement runs in the transaction it is in: nothing is
begun, committed, rolled back or retried on it. What our own SQL refuses is our error; every other error is passed on
as it is.

psycopg, SQLAlchemy (connection and session) and Django (an alias, or a connection of `django.db`).
The same for asyncio is in `penstock.aio.borrowed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from psycopg import Cursor
from psycopg.rows import tuple_row

from penstock.errors import ConfigError, PenstockError, ValidationError, shown
from penstock.wire import OURS

PLACEHOLDER = re.compile(r"\$(\d)")
Values = Sequence[str | None]
Rows = list[tuple[Any, ...]]
Run = Callable[[str, Values], Rows]


def borrow(connection: object) -> Run:
    """How a statement is run on it: one with $1, $2, …, each a text, once and in order."""
    if isinstance(connection, str):
        connection = django_connection(connection)
    runs = {"psycopg": run_psycopg, "sqlalchemy": run_sqlalchemy, "django": run_django}
    return partial(runs[library(connection, SYNC, ASYNC)], connection)


# --- whose it is ------------------------------------------------------------------------------------------------------


class Client(NamedTuple):
    """What the client of a colour takes. Classes go by library and name: only the caller's own library is imported."""

    name: str
    takes: str
    classes: frozenset[tuple[str, str]]


SYNC = Client(
    "Penstock",
    "psycopg's Connection, SQLAlchemy's Connection or Session, or Django's alias or connection",
    frozenset(
        {
            ("psycopg", "Connection"),
            ("sqlalchemy", "Connection"),
            ("sqlalchemy", "Session"),
            ("sqlalchemy", "scoped_session"),
            ("django", "BaseDatabaseWrapper"),
            ("django", "ConnectionProxy"),
        }
    ),
)
ASYNC = Client(
    "AsyncPenstock",
    "asyncpg's Connection, psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession",
    frozenset(
        {
            ("asyncpg", "Connection"),
            ("asyncpg", "PoolConnectionProxy"),
            ("psycopg", "AsyncConnection"),
            ("sqlalchemy", "AsyncConnection"),
            ("sqlalchemy", "AsyncSession"),
            ("sqlalchemy", "async_scoped_session"),
        }
    ),
)


def library(connection: object, mine: Client, other: Client) -> str:
    """The library a connection is of, if this client takes it."""
    kind = type(connection)
    ancestors = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
    for found, _ in mine.classes & ancestors:
        check_postgresql(connection, found)
        return found
    name = shown(f"{kind.__module__}.{kind.__qualname__}")
    if other.classes & ancestors:
        raise refused(f"{name} is for {other.name}, this is {mine.name}", f"{mine.name} takes {mine.takes}.")
    raise refused(
        f"{name} is not one that we know",
        f"{mine.name} takes {mine.takes}; through any other, call penstock.push_many in SQL.",
    )


def check_postgresql(connection: Any, found: str) -> None:
    """A session only knows when it has run something, and then says so itself."""
    vendor = "postgresql"
    if found == "django":
        vendor = getattr(connection, "vendor", "something else")
    elif found == "sqlalchemy" and hasattr(connection, "dialect"):
        vendor = connection.dialect.name
    if vendor != "postgresql":
        raise refused(f"it leads to {shown(vendor)}", "Tasks are in PostgreSQL: give a connection to their database.")


def refused(words: str, hint: str) -> ValidationError:
    return ValidationError(f"connection: {words}", hint=hint, field="connection")


def django_connection(alias: str) -> Any:
    # Somebody may take this for the place of a DSN, with a password in it: only what looks like an alias is shown.
    name = shown(alias) if alias.replace("-", "_").isidentifier() else "a text"
    try:
        from django.db import connections  # type: ignore[import-untyped]  # noqa: PLC0415 - only whoever names one
    except ImportError:
        raise ConfigError(
            f"connection: {name} would be a Django alias, but Django is not installed",
            hint="Give a connection, or install Django.",
        ) from None
    if alias not in [*connections]:
        raise refused(f"{name} is no alias of Django's DATABASES", f"They are {', '.join(connections)}.")
    return connections[alias]


# --- what our SQL refuses ---------------------------------------------------------------------------------------------


@contextmanager
def refusals() -> Iterator[None]:
    """An error that our SQL raised becomes ours; all others are the caller's, untouched."""
    try:
        yield
    except Exception as error:
        found = refusal(error)
        if found is None:
            raise
        raise found from error


def refusal(error: BaseException) -> PenstockError | None:
    """Our own error, however deep it is wrapped: SQLAlchemy has the driver's in `orig`, Django in `__cause__`."""
    link: Any = error
    while link is not None:
        state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None) or ""
        said = getattr(link, "diag", None)  # psycopg; asyncpg has it in the error itself
        message = getattr(link, "message", None) if said is None else said.message_primary
        if state in OURS and message:
            return OURS[state](message, hint=getattr(link, "hint", None) if said is None else said.message_hint)
        link = getattr(link, "orig", None) or link.__cause__
    return None


# --- how each runs a statement ----------------------------------------------------------------------------------------


def percent(statement: str) -> str:
    """Placeholders as psycopg and Django write them."""
    return PLACEHOLDER.sub("%s", statement)


def named(statement: str) -> str:
    """Placeholders as SQLAlchemy's text() writes them."""
    return PLACEHOLDER.sub(r":p\1", statement)


def parameters(values: Values) -> dict[str, str | None]:
    return {f"p{n}": value for n, value in enumerate(values, 1)}


# The caller may stream large results; ours are read at once.
AT_ONCE = {"stream_results": False}


def run_psycopg(connection: Any, statement: str, values: Values) -> Rows:
    # A plain cursor, whatever kind of cursor and rows the connection makes; nothing prepared: a pooler may be between.
    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(percent(statement).encode(), values, prepare=False)
        return cursor.fetchall()


def run_sqlalchemy(connection: Any, statement: str, values: Values) -> Rows:
    from sqlalchemy import text  # noqa: PLC0415 - only whoever has one gets here

    rows = connection.execute(text(named(statement)), parameters(values), execution_options=AT_ONCE)
    return [tuple(row) for row in rows]


def run_django(connection: Any, statement: str, values: Values) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(percent(statement), values)
        return [tuple(row) for row in cursor.fetchall()]
