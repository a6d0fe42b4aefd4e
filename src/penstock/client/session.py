"""What a session needs: the version of the server and of the schema, and the settings that statements rely on."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg

from penstock.client.binary import IdArray, IdArrayDumper, TextArray, TextArrayDumper
from penstock.client.sqlstate import SCHEMA
from penstock.errors import ConfigError, SchemaVersionError

OLDEST_SERVER = 150000


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
        if not is_trusted(self.search_path):
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


def is_trusted(search_path: str) -> bool:
    """Returns whether no schema comes before pg_catalog: either pg_catalog is not named, and so it is the first, or it
    is named first."""
    names = [name.strip().strip('"') for name in search_path.split(",")]
    return "pg_catalog" not in names or names[0] == "pg_catalog"


CONTRACT = "select penstock.contract(), penstock.oldest_client()"
OUR_CONTRACT = 6  # the version of the functions' parameters and results; every change raises it


def check_contract(row: Sequence[Any] | None) -> None:
    """Checks that the functions of the schema serve this code: the contract of this code is not above theirs, and not
    below that of the oldest clients that they serve."""
    theirs, oldest = row or (0, 0)
    if theirs < OUR_CONTRACT:
        raise SchemaVersionError(
            f"the schema is older than this Penstock (contract {theirs}, needed {OUR_CONTRACT})", hint=SCHEMA.hint
        )
    if oldest > OUR_CONTRACT:
        raise SchemaVersionError(
            f"the schema is newer than this Penstock (contract {theirs}, which serves clients from {oldest} on; "
            f"this one has {OUR_CONTRACT})",
            hint="Upgrade Penstock: pip install -U penstock.",
        )
