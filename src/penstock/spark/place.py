"""Where the queue is, for processes that Spark starts: found once, in the driver, and told to the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.database import Database
from penstock.dsn import find_dsn
from penstock.spark.hints import hinted
from penstock.spark.options import Place
from penstock.wire import for_service, spelt_out


def found(place: Place) -> tuple[str, str]:
    """The DSN, with what this process's environment adds to it, and where it came from."""
    if place.service is not None:
        return for_service(place.service), "the service given"
    dsn, source = find_dsn(place.dsn, os.environ)
    return spelt_out(dsn), source


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
