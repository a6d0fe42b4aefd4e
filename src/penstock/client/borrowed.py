"""Runs statements on the caller's own connection. Whatever its library, a statement runs in the connection's present
transaction: Penstock begins, commits, rolls back and retries nothing on it. A refusal by Penstock's SQL becomes a
PenstockError; every other error is passed on unchanged.

The connection is one of psycopg, SQLAlchemy (connection and session) or Django (an alias, or a connection of
`django.db`). `borrowed_async` does the same for asyncio.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from psycopg import Cursor
from psycopg.rows import tuple_row

from penstock.client.sqlstate import OURS
from penstock.errors import ConfigError, PenstockError, ValidationError, shown

PLACEHOLDER = re.compile(r"\$([0-9]+)")
Values = Sequence[str | None]
Rows = list[tuple[Any, ...]]
Run = Callable[[str, Values], Rows]


def borrow(connection: object) -> Run:
    """Returns a function that runs statements on the connection. A statement has the placeholders $1, $2, …, each a
    text, each used once and in order."""
    if isinstance(connection, str):
        connection = django_connection(connection)
    runs = {"psycopg": run_psycopg, "sqlalchemy": run_sqlalchemy, "django": run_django}
    return partial(runs[library(connection, SYNC, ASYNC)], connection)


# --- which library a connection is of ---------------------------------------------------------------------------------


class Client(NamedTuple):
    """The connections that the sync or the async client takes. Classes are known by library and name, so that only the
    caller's own library is imported."""

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
    """Returns the library of a connection, if this client takes it."""
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
    """Refuses a connection to another database. A SQLAlchemy session knows its database only once it has run a
    statement, and then fails by itself."""
    vendor = "postgresql"
    if found == "django":
        vendor = getattr(connection, "vendor", "something else")
    elif found == "sqlalchemy" and hasattr(connection, "dialect"):
        vendor = connection.dialect.name
    if vendor != "postgresql":
        raise refused(f"it leads to {shown(vendor)}", "Tasks are in PostgreSQL: give a connection to their database.")


def refused(words: str, hint: str) -> ValidationError:
    """Returns the error for a connection that is not accepted."""
    return ValidationError(f"connection: {words}", hint=hint, field="connection")


def django_connection(alias: str) -> Any:
    """Returns Django's connection for an alias."""
    # A caller may pass a DSN here by mistake, with a password in it: the message shows only what looks like an alias.
    name = shown(alias) if alias.replace("-", "_").isidentifier() else "a text"
    try:
        from django.db import connections  # type: ignore[import-untyped]  # noqa: PLC0415 - Django is optional
    except ImportError:
        raise ConfigError(
            f"connection: {name} would be a Django alias, but Django is not installed",
            hint="Give a connection, or install Django.",
        ) from None
    if alias not in [*connections]:
        raise refused(f"{name} is no alias of Django's DATABASES", f"They are {', '.join(connections)}.")
    return connections[alias]


# --- refusals by Penstock's SQL ---------------------------------------------------------------------------------------


@contextmanager
def refusals() -> Iterator[None]:
    """Turns an error that Penstock's SQL raised into a PenstockError, and leaves all other errors untouched."""
    try:
        yield
    except Exception as error:
        found = refusal(error)
        if found is None:
            raise
        raise found from error


def refusal(error: BaseException) -> PenstockError | None:
    """Returns the PenstockError for an error, however deep it is wrapped: SQLAlchemy has the driver's error in `orig`,
    Django in `__cause__`. A text that the session's encoding cannot represent never leaves the driver."""
    link: Any = error
    while link is not None:
        if isinstance(link, UnicodeEncodeError):
            return refused(f"its client_encoding ({link.encoding}) has no way to write a text of the task", UTF8)
        state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None) or ""
        said = getattr(link, "diag", None)  # psycopg has this; asyncpg has the message in the error itself
        message = getattr(link, "message", None) if said is None else said.message_primary
        if state in OURS and message:
            return OURS[state](message, hint=getattr(link, "hint", None) if said is None else said.message_hint)
        link = getattr(link, "orig", None) or link.__cause__
    return None


UTF8 = "Set client_encoding to UTF8 for this connection."


# --- how each library runs a statement --------------------------------------------------------------------------------


def percent(statement: str) -> str:
    """Returns the statement with placeholders as psycopg and Django write them."""
    return PLACEHOLDER.sub("%s", statement)


def named(statement: str) -> str:
    """Returns the statement with placeholders as SQLAlchemy's text() writes them."""
    return PLACEHOLDER.sub(r":p\1", statement)


def parameters(values: Values) -> dict[str, str | None]:
    """Returns the values by the names that `named` gives to the placeholders."""
    return {f"p{n}": value for n, value in enumerate(values, 1)}


# The caller may stream large results; Penstock's results are read at once.
AT_ONCE = {"stream_results": False}


def run_psycopg(connection: Any, statement: str, values: Values) -> Rows:
    """Runs a statement on a psycopg connection."""
    # The cursor is a plain one, whatever cursors and rows the connection makes. Nothing is prepared, because a pooler
    # may stand between.
    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(percent(statement).encode(), values, prepare=False)
        return cursor.fetchall()


def run_sqlalchemy(connection: Any, statement: str, values: Values) -> Rows:
    """Runs a statement on a SQLAlchemy connection or session."""
    from sqlalchemy import text  # noqa: PLC0415 - SQLAlchemy is optional

    rows = connection.execute(text(named(statement)), parameters(values), execution_options=AT_ONCE)
    return [tuple(row) for row in rows]


def run_django(connection: Any, statement: str, values: Values) -> Rows:
    """Runs a statement on a Django connection."""
    with connection.cursor() as cursor:
        cursor.execute(percent(statement), values)
        return [tuple(row) for row in cursor.fetchall()]
