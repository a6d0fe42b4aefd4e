"""SQLSTATE codes, turned into Penstock's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import psycopg

from penstock.client.conninfo import describe_dsn
from penstock.errors import (
    AuthError,
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


@contextmanager
def translate_errors(source: str | None = None, dsn: str | None = None) -> Iterator[None]:
    """Turns psycopg's errors into Penstock's."""
    try:
        yield
    except psycopg.Error as error:
        raise to_penstock_error(error, source, dsn) from error


OURS: Mapping[str, type[PenstockError]] = {
    "PS400": ValidationError,
    "PS404": NotFound,
    "PS409": Conflict,
    "PS413": PayloadTooLarge,
    "PS422": PayloadError,
}


class Meaning(NamedTuple):
    """The meaning of a SQLSTATE: an error, the words before PostgreSQL's own message, and what to do."""

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
READ_ONLY = Meaning(partial(Unavailable, reason="read_only"), "", "Connect to the primary.")
MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(("28P01", "28000"), PASSWORD),
    "3D000": Meaning(ConfigError, "", "Create it, or name another one in the DSN."),
    "42501": Meaning(AuthError, "", "The role lacks a right that this verb needs."),
    **dict.fromkeys(("42883", "42P01", "3F000", "42704", "42703"), SCHEMA),
    "25006": READ_ONLY,
    **dict.fromkeys(("22P05", "22P02", "22021", "22003", "22030", "54001"), PAYLOAD),
    "23514": Meaning(ValidationError),
    **dict.fromkeys(("40001", "40P01", "55P03", "57014"), AGAIN),
    **dict.fromkeys(("42P06", "42P07", "42710"), AGAIN),  # another session made it meanwhile: a repeat finds it
    **dict.fromkeys(("08", "53", "57"), DOWN),  # whole classes
}


def to_penstock_error(error: psycopg.Error, source: str | None = None, dsn: str | None = None) -> PenstockError:
    """Returns Penstock's error for one of PostgreSQL's. No statement, parameter or password gets into the message."""
    message = error.diag.message_primary or first_line(error)
    state = error.sqlstate or guess_state(error, message)
    if state == "23505" and error.diag.constraint_name == "task_subject":
        return Taken("a subject exists already")
    if state == "23505" and error.diag.constraint_name in MOMENTARY:
        return AGAIN.error(message, hint=AGAIN.hint)
    where = f" ({describe_dsn(dsn)}, from {source})" if dsn and source else ""
    return make_error(state, message, error.diag.message_hint, where)


# Indexes in which a transaction may collide with another one by chance. A repeat finds the schema or table, or draws
# other ids.
MOMENTARY = frozenset(
    {"task_pkey", "pg_namespace_nspname_index", "pg_class_relname_nsp_index", "pg_type_typname_nsp_index"}
)


def has_collided(error: PenstockError) -> bool:
    """Returns whether a statement was undone by chance, because another session wrote the same id or name first."""
    cause = error.__cause__
    return isinstance(cause, psycopg.errors.UniqueViolation) and cause.diag.constraint_name in MOMENTARY


def make_error(state: str, message: str, hint: str | None = None, where: str = "") -> PenstockError:
    """Returns the error that a SQLSTATE means, whichever driver reported it."""
    if state in OURS:
        return OURS[state](message, hint=hint)
    meaning = MEANINGS.get(state) or MEANINGS.get(state[:2])
    if meaning is None:
        return PenstockError(f"{state} {message}".strip())
    said = f"{meaning.words}{where}: {message}" if meaning.words else f"{message}{where}"
    return meaning.error(said, hint=meaning.hint)


REFUSED_LOGIN = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects connection",
    "is not permitted to log in",
)


def guess_state(error: psycopg.Error, message: str) -> str:
    """Returns a SQLSTATE for an error while connecting, which has only words and no SQLSTATE."""
    if any(words in message for words in REFUSED_LOGIN) or ("role " in message and "does not exist" in message):
        return "28P01"
    if "database" in message and "does not exist" in message:
        return "3D000"
    return UNREACHABLE if isinstance(error, psycopg.OperationalError) else ""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
