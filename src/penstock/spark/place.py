"""Where the queue is, for processes that Spark starts: found once, in the driver, and told to the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import make_conninfo

from penstock.database import Database
from penstock.dsn import find_dsn
from penstock.spark.hints import hinted
from penstock.spark.options import Place


def found(place: Place) -> tuple[str, str]:
    """The DSN, and where it came from."""
    if place.service is not None:
        return make_conninfo(service=place.service), "the service given"
    return find_dsn(place.dsn, os.environ)


@contextmanager
def opened(place: Place, connections: int = 1) -> Iterator[Database]:
    """For a moment: what Spark pickles must hold no connection."""
    dsn, source = found(place)
    database = Database(dsn, source=source, max_connections=connections)
    try:
        with hinted():
            yield database
    finally:
        database.close()
