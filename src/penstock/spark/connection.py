"""Finds the DSN in the driver, and opens connections in processes that Spark starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.client.conninfo import for_service, spell_out_dsn
from penstock.client.database import Database
from penstock.dsn import find_dsn
from penstock.spark.options import Address


def resolve_dsn(address: Address) -> tuple[str, str]:
    """Returns the DSN, complete with what the environment of this process adds, and where it came from."""
    if address.service is not None:
        return for_service(address.service), "the service given"
    dsn, source = find_dsn(address.dsn, os.environ)
    return spell_out_dsn(dsn), source


@contextmanager
def open_database(address: Address, connections: int = 1) -> Iterator[Database]:
    """Opens a database for a short time: objects that Spark pickles must hold no connection."""
    dsn, source = resolve_dsn(address)
    database = Database(dsn, source=source, max_connections=connections)
    try:
        yield database
    finally:
        database.close()
