"""Where a stream's queue is: found once, on the driver, and handed to executors with the reader."""

from __future__ import annotations

import os

from psycopg.conninfo import make_conninfo

from penstock.dsn import find_dsn
from penstock.spark.options import Place


def found(place: Place) -> tuple[str, str]:
    """The DSN, and where it came from."""
    if place.service is not None:
        return make_conninfo(service=place.service), "the service given"
    return find_dsn(place.dsn, os.environ)
