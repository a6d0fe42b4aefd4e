"""What every stage of the pipeline is given, and the checks that the lake belongs to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.client import history
from penstock.client.database import Database
from penstock.errors import Conflict
from penstock.model import Horizon
from penstock.pipeline.lake import Lake, LakeState, Scope
from penstock.spark.connection import open_database
from penstock.spark.error_text import parse_error
from penstock.spark.options import Address
from penstock.spark.session import make_ready


def ignore(_: str) -> None:
    """Ignores a progress message."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage works with. `dsn` is complete, because executors have another environment. `tell` is called with
    progress messages."""

    spark: SparkSession
    lake: Lake
    database: Database = field(repr=False)
    dsn: str = field(repr=False)
    tell: Callable[[str], None] = ignore


@contextmanager
def working(
    spark: SparkSession | Callable[[], SparkSession],
    lake: Lake | Path | str,
    *,
    dsn: str | None = None,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    tell: Callable[[str], None] = ignore,
    anywhere: bool = False,
) -> Iterator[Work]:
    """Opens a lake for writing and yields the work for its stages. A lake that does not exist is begun.

    The lake must be of the connected database, unless `anywhere` is true. If `spark` is a function, it is called last,
    after all checks.
    """
    found = lake if isinstance(lake, Lake) else Lake(lake)
    with open_database(Address(dsn), connections=2) as database:
        now = history.read_horizon(database)
        for name in queues:
            history.queues_named(database, name)  # NotFound says which is near
        scope = Scope(tuple(sorted({*queues})), None if since is None else since.isoformat())
        with found.writing(), sparks_errors():
            if not found.exists:
                found.begin(LakeState(uuid4().hex, now.system, now.database, scope))
            if not anywhere:
                check_same(found, now, scope)
                check_past(found, database)
            session = spark if isinstance(spark, SparkSession) else spark()
            yield Work(make_own_session(session), found, database, database.dsn, tell)


def check_same(lake: Lake, now: Horizon, scope: Scope) -> None:
    """Raises Conflict if the lake is of another database or of another scope than the one asked for."""
    state = lake.state
    if (state.system, state.database) != now[:2]:
        raise Conflict(
            f"lake: {lake.directory} was written from another database "
            f"(system {state.system}, database {state.database}; this is {now.system}, {now.database})",
            hint="Name another directory; after a restore: penstock pipeline rebase.",
        )
    for name in ("queues", "since"):
        asked, there = getattr(scope, name), getattr(state.scope, name)
        if asked and asked != there:
            said = (", ".join(there) if name == "queues" else there) if there else "everything"
            hint = f"Leave --{name} out, or name another directory."
            raise Conflict(f"{name}: {lake.directory} was begun with {said}; that cannot be changed", hint=hint)


def check_past(lake: Lake, database: Database) -> None:
    """Raises Conflict if a failover or a restore took rows that the lake has read."""
    passed = lake.state.passed
    if passed is None:
        return
    try:
        history.check_mark(database, passed)
    except Conflict as error:
        hint = f"penstock pipeline rebase --lake {lake.directory} compares the lake with history, and makes it equal."
        raise Conflict(f"lake: {lake.directory}: {error.message}", hint=hint) from error


def make_own_session(spark: SparkSession) -> SparkSession:
    """Returns a session of the same Spark with our settings: days are UTC and timestamps have microseconds, whatever
    the settings of the given session are."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "64")  # otherwise Spark first sorts all rows by day
    if session.conf.get("spark.sql.shuffle.partitions") == "200":  # Spark's default
        session.conf.set("spark.sql.shuffle.partitions", str(4 * session.sparkContext.defaultParallelism))
    make_ready(session)
    return session


@contextmanager
def sparks_errors() -> Iterator[None]:
    """Raises the PenstockError that Spark wrapped in an exception of its own."""
    try:
        yield
    except PySparkException as error:
        ours = parse_error(str(error))
        if ours is None:
            raise
        raise ours from error
