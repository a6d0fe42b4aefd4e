"""What PostgreSQL says and how it wants to be told: SQLSTATE turned into our errors, DSNs, values in binary. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

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

OLDEST_SERVER = 150000

# Autocommit, because we write BEGIN and COMMIT ourselves. Nothing prepared: a pooler may stand between.
SETTINGS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "application_name": "penstock"}


# A network that swallows everything is noticed in half a minute, not in hours; what the DSN says comes first.
NOTICE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def settings_for(dsn: str) -> dict[str, Any]:
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    return SETTINGS | {name: value for name, value in NOTICE.items() if name not in told}


def for_other_drivers(dsn: str) -> str:
    """The DSN with our settings in it, for a driver that has libpq inside."""
    told = {name: value for name, value in settings_for(dsn).items() if name not in ("autocommit", "prepare_threshold")}
    return psycopg.conninfo.make_conninfo(dsn, **told)


def configure(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        raise ConfigError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old", hint="Penstock needs 15 or newer."
        )
    connection.adapters.register_dumper(TextArray, TextArrayDumper)
    connection.adapters.register_dumper(IdArray, IdArrayDumper)


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
    if state == "23505" and error.diag.constraint_name == "task_subject":
        return Taken("a subject exists already")
    where = f" ({described(dsn)}, from {source})" if dsn and source else ""
    return meant(state, message, error.diag.message_hint, where)


def meant(state: str, message: str, hint: str | None = None, where: str = "") -> PenstockError:
    """What a SQLSTATE means, whatever driver brought it."""
    if state in OURS:
        return OURS[state](message, hint=hint)
    meaning = MEANINGS.get(state) or MEANINGS.get(state[:2])
    if meaning is None:
        return PenstockError(f"{state} {message}".strip())
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


def check_dsn(dsn: str, source: str = "dsn") -> dict[str, Any]:
    """Its parts. An @ or / that is not escaped ends a password early, and libpq would print the rest of it as the name
    of a host, port or database: such a DSN is refused here, and nothing of it is shown."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ConfigError(f"{source}: the DSN can not be read", hint=DSN_HINT) from None
    if any("@" in str(parts.get(name, "")) for name in ("host", "port", "dbname")):
        raise ConfigError(f"{source}: an @ or / in its password is not escaped", hint="Write %40 for @ and %2F for /.")
    for port in str(parts.get("port") or "").split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise ConfigError(f"{source}: its port is not a number from 1 to 65535", hint=DSN_HINT)
    return parts


CONTRACT = "select penstock.contract()"
OUR_CONTRACT = 3  # what the functions are called with and answer; it grows with every change of that


def check_contract(row: Sequence[Any] | None) -> None:
    """The schema's functions are of the version this code calls."""
    theirs = int(row[0]) if row else 0
    if theirs < OUR_CONTRACT:
        raise SchemaVersionError(
            f"the schema is older than this Penstock (contract {theirs}, needed {OUR_CONTRACT})", hint=SCHEMA.hint
        )
    if theirs > OUR_CONTRACT:
        raise SchemaVersionError(
            f"the schema is newer than this Penstock (contract {theirs}, known {OUR_CONTRACT})",
            hint="Upgrade Penstock: pip install -U penstock.",
        )


def for_service(name: str) -> str:
    """The DSN of what a service file says."""
    return psycopg.conninfo.make_conninfo(service=name)


def spelt_out(dsn: str) -> str:
    """The DSN with what libpq would take from this process's environment: another machine has another one."""
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    if "service" in told:
        return dsn  # its file says the rest, there too
    found = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.envvar and one.val}
    known = {name: value for name, value in found.items() if name in SPELT_OUT and name not in told}
    return psycopg.conninfo.make_conninfo(dsn, **known)


SPELT_OUT = ("host", "hostaddr", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "service")
DSN_HINT = "Write postgresql://user@host:port/database, or key=value pairs."


def described(dsn: str | None) -> str:
    """Where a DSN leads, without secrets."""
    try:
        parts = check_dsn(dsn or "")
    except ConfigError:
        return "a DSN that can not be read"
    host, port, name = parts.get("host"), parts.get("port"), parts.get("dbname")
    return f"{name or 'the default database'} at {host or 'the default host'}{f':{port}' if port else ''}"


def raw_loaders(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """Moments as microseconds since 2000, and uuid and jsonb as their bytes: a claim reads half a million of them a
    second, and psycopg's objects for them cost more than PostgreSQL's whole work."""
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
    cursor.adapters.register_loader("jsonb", ByteaBinaryLoader)


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
