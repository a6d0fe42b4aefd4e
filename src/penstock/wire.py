"""The protocol level of PostgreSQL: SQLSTATE codes turned into Penstock's errors, DSNs, and values in binary. It does
no I/O, except that it can end a connection."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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

# Autocommit is on, because Penstock sends BEGIN and COMMIT itself. Nothing is prepared, because a pooler may stand
# between. The encoding is UTF-8, whatever the DSN, the environment, the role or the database says, because the binary
# values are UTF-8.
SETTINGS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "application_name": "penstock",
    "client_encoding": "UTF8",
}


# With these, a network that drops every packet is noticed in half a minute, not in hours. Values in the DSN take
# precedence.
NOTICE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def settings_for(dsn: str) -> dict[str, Any]:
    """Returns the connection settings for a DSN; settings in the DSN take precedence."""
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    return SETTINGS | {name: value for name, value in NOTICE.items() if name not in told}


def each_host(dsn: str) -> list[str]:
    """Returns one DSN for each host that may be the primary, in their order. It returns only the DSN itself if there is
    one host, or if the DSN does not ask for the primary."""
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    set_outside = {
        one.keyword.decode(): one.val.decode()
        for one in pq.Conninfo.get_defaults()
        if one.val and one.val != one.compiled
    }
    known = {**set_outside, **told}
    hosts, addresses, ports = (str(known.get(name) or "").split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(hosts), len(addresses))
    wanted = known.get("target_session_attrs", "read-write")
    lists = [several(one, count) for one in (hosts, addresses, ports)]
    if count == 1 or wanted not in ("read-write", "primary") or None in lists:
        return [dsn]
    return [
        psycopg.conninfo.make_conninfo(
            dsn, host=host or None, hostaddr=address or None, port=port or None, target_session_attrs=wanted
        )
        for host, address, port in zip(*cast("list[list[str]]", lists), strict=True)
    ]


def several(values: list[str], count: int) -> list[str] | None:
    """Returns one value for each host, or None if there are more or fewer values, which libpq then reports."""
    return values if len(values) == count else values * count if len(values) == 1 else None


def for_other_drivers(dsn: str) -> str:
    """Returns the DSN with Penstock's settings in it, for another driver that uses libpq."""
    told = {name: value for name, value in settings_for(dsn).items() if name not in ("autocommit", "prepare_threshold")}
    if len(each_host(dsn)) > 1 and "target_session_attrs" not in psycopg.conninfo.conninfo_to_dict(dsn):
        told["target_session_attrs"] = "read-write"
    return psycopg.conninfo.make_conninfo(dsn, **told)


def configure(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Checks the version of the server and registers the array types on a connection."""
    if connection.info.server_version < OLDEST_SERVER:
        raise ConfigError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old", hint="Penstock needs 15 or newer."
        )
    connection.adapters.register_dumper(TextArray, TextArrayDumper)
    connection.adapters.register_dumper(IdArray, IdArrayDumper)


def hang_up(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Ends the TCP connection below a connection, whichever thread waits for an answer on it: that thread reads an end
    of file."""
    with suppress(OSError, psycopg.Error):
        descriptor = connection.fileno()
        with socket.socket(fileno=os.dup(descriptor)) as end:
            # The owner may have closed the connection before the descriptor was duplicated, and its number may now
            # belong to another socket.
            if not connection.closed and connection.fileno() == descriptor:
                end.shutdown(socket.SHUT_RDWR)


def set_usual(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bytes | None:
    """Returns the statement that sets, for the session, the values that psycopg can read and Penstock's statements rely
    on. It returns None if all are set, as is usual: PostgreSQL reports these by itself. A pooler in transaction mode
    keeps them for each client; no other setting may be made for a session there (see `Session`)."""
    status = connection.pgconn.parameter_status
    odd = []
    if status(b"client_encoding") != b"UTF8":
        odd.append("set client_encoding to 'UTF8'")
    if not (status(b"DateStyle") or b"").startswith(b"ISO"):
        odd.append("set datestyle to 'ISO'")
    if status(b"standard_conforming_strings") != b"on":
        odd.append("set standard_conforming_strings to on")
    return "; ".join(odd).encode() or None


class Session(NamedTuple):
    """The settings of a session that PROBE found."""

    isolation: str
    search_path: str
    interval_style: str
    float_digits: int
    array_nulls: str

    @property
    def plain(self) -> bool:
        """Whether a statement that is a transaction by itself runs with the settings that Penstock relies on."""
        return self.isolation == "read committed" and not self.odd

    @property
    def sets(self) -> list[str]:
        """The settings that a transaction makes at its beginning, because Penstock's statements rely on them. They are
        made for the transaction alone: a pooler may give the session to another client afterwards."""
        return [f"set local {one}" for one in self.odd]

    @property
    def odd(self) -> list[str]:
        """The settings that differ from what Penstock's statements rely on, with the value that they need."""
        found = []
        if not trusted(self.search_path):
            found.append("search_path = pg_catalog, pg_temp")
        if self.interval_style != "postgres":
            found.append("intervalstyle = postgres")
        if self.float_digits < 1:
            found.append("extra_float_digits = 1")
        if self.array_nulls != "on":
            found.append("array_nulls = on")
        return found


BEGIN = "begin isolation level read committed"
PROBE = """
    select pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('search_path'),
           pg_catalog.current_setting('intervalstyle'), pg_catalog.current_setting('extra_float_digits')::int,
           pg_catalog.current_setting('array_nulls')
"""


def trusted(search_path: str) -> bool:
    """Returns whether no schema comes before pg_catalog: either pg_catalog is not named, and so it is the first, or it
    is named first."""
    names = [name.strip().strip('"') for name in search_path.split(",")]
    return "pg_catalog" not in names or names[0] == "pg_catalog"


@contextmanager
def translated(source: str | None = None, dsn: str | None = None) -> Iterator[None]:
    """Turns psycopg's errors into Penstock's."""
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


def as_ours(error: psycopg.Error, source: str | None = None, dsn: str | None = None) -> PenstockError:
    """Returns Penstock's error for one of PostgreSQL's. No statement, parameter or password gets into the message."""
    message = error.diag.message_primary or first_line(error)
    state = error.sqlstate or guessed_state(error, message)
    if state == "23505" and error.diag.constraint_name == "task_subject":
        return Taken("a subject exists already")
    if state == "23505" and error.diag.constraint_name in MOMENTARY:
        return AGAIN.error(message, hint=AGAIN.hint)
    where = f" ({described(dsn)}, from {source})" if dsn and source else ""
    return meant(state, message, error.diag.message_hint, where)


# Indexes in which a transaction may collide with another one by chance. A repeat finds the schema or table, or draws
# other ids.
MOMENTARY = frozenset(
    {"task_pkey", "pg_namespace_nspname_index", "pg_class_relname_nsp_index", "pg_type_typname_nsp_index"}
)


def meant(state: str, message: str, hint: str | None = None, where: str = "") -> PenstockError:
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


def guessed_state(error: psycopg.Error, message: str) -> str:
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


def check_dsn(dsn: str, source: str = "dsn") -> dict[str, Any]:
    """Returns the parts of a DSN. An @ or / that is not escaped ends a password early, and libpq would print the rest
    of the password as the name of a host, port or database: such a DSN is refused here, and no part of it is shown."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ConfigError(f"{source}: the DSN cannot be read", hint=DSN_HINT) from None
    if any("@" in str(parts.get(name, "")) for name in ("host", "port", "dbname")):
        raise ConfigError(f"{source}: an @ or / in its password is not escaped", hint="Write %40 for @ and %2F for /.")
    for port in str(parts.get("port") or "").split(","):
        if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise ConfigError(f"{source}: its port is not a number from 1 to 65535", hint=DSN_HINT)
    return parts


CONTRACT = "select penstock.contract()"
OUR_CONTRACT = 5  # the version of the functions' parameters and results; every change raises it


def check_contract(row: Sequence[Any] | None) -> None:
    """Checks that the schema's functions have the version that this code calls."""
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
    """Returns the DSN of a service in a service file."""
    return psycopg.conninfo.make_conninfo(service=name)


def spelt_out(dsn: str) -> str:
    """Returns the DSN with the values that libpq would take from the environment of this process, because another
    machine has another environment."""
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    if "service" in told:
        return dsn  # the service file contains the rest, on the other machine too
    found = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.envvar and one.val}
    known = {name: value for name, value in found.items() if name in SPELT_OUT and name not in told}
    return psycopg.conninfo.make_conninfo(dsn, **known)


SPELT_OUT = ("host", "hostaddr", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "service")
DSN_HINT = "Write postgresql://user@host:port/database, or key=value pairs."


def described(dsn: str | None) -> str:
    """Returns where a DSN leads, without secrets."""
    try:
        parts = check_dsn(dsn or "")
    except ConfigError:
        return "a DSN that cannot be read"
    host, port, name = parts.get("host"), parts.get("port"), parts.get("dbname")
    return f"{name or 'the default database'} at {host or 'the default host'}{f':{port}' if port else ''}"


def raw_loaders(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """Makes a cursor return moments as microseconds since 2000, and uuid and jsonb as bytes: a claim reads half a
    million of them a second, and psycopg's objects for them cost more than PostgreSQL's whole work."""
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
    cursor.adapters.register_loader("jsonb", ByteaBinaryLoader)


class TextArray:
    """Texts for PostgreSQL as one binary array. It costs a third of psycopg's own list, which is written element by
    element."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.values = values


class IdArray:
    """Ids for PostgreSQL as one binary array."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values


class TextArrayDumper(Dumper):
    """Writes a TextArray in PostgreSQL's binary form."""

    format = pq.Format.BINARY
    oid = 1009  # text[]

    def dump(self, obj: TextArray) -> Buffer:
        """Returns the binary form of the array."""
        pack = struct.Struct("!i").pack
        if None in obj.values:
            body = [b"\xff\xff\xff\xff" if one is None else pack(len(one)) + one for one in obj.values]
            return array_head(len(body), 25, nulls=1) + b"".join(body)
        values = cast("Sequence[bytes]", obj.values)
        return array_head(len(values), 25) + b"".join([pack(len(one)) + one for one in values])


class IdArrayDumper(Dumper):
    """Writes an IdArray in PostgreSQL's binary form."""

    format = pq.Format.BINARY
    oid = 1016  # bigint[]

    def dump(self, obj: IdArray) -> Buffer:
        """Returns the binary form of the array."""
        pack = struct.Struct("!iq").pack
        return array_head(len(obj.values), 20) + b"".join([pack(8, one) for one in obj.values])


def array_head(length: int, element: int, nulls: int = 0) -> bytes:
    """Returns the head of PostgreSQL's binary form of an array with one dimension; an empty array has no dimension."""
    return struct.pack("!iiIii", 1, nulls, element, length, 1) if length else struct.pack("!iiI", 0, 0, element)
