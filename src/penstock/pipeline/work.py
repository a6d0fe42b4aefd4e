"""What every stage of the pipeline is given, and the moment at which lake and database are known to belong together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import queue as seam
from penstock.database import Database
from penstock.errors import Conflict
from penstock.model import Horizon
from penstock.pipeline.lake import Lake, Scope, State
from penstock.spark.hints import as_ours
from penstock.spark.options import Place
from penstock.spark.place import opened
from penstock.spark.session import make_ready

Tell = Callable[[str], None]


def silence(_: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Work:
    """`dsn` is whole: executors have another environment. `tell` is told what is being done."""

    spark: SparkSession
    lake: Lake
    database: Database = field(repr=False)
    dsn: str = field(repr=False)
    tell: Tell = silence


@contextmanager
def working(
    spark: SparkSession | Callable[[], SparkSession],
    lake: Lake | Path | str,
    *,
    dsn: str | None = None,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    tell: Tell = silence,
    anywhere: bool = False,
) -> Iterator[Work]:
    """A lake that is ours to change, of the database that we are connected to (or `anywhere`). Begun, if there is none.
    Where `spark` is made only when it is called, everything else is looked at first."""
    found = lake if isinstance(lake, Lake) else Lake(lake)
    with opened(Place(dsn), connections=2) as database:
        now = seam.horizon(database)
        for name in queues:
            seam.queues_named(database, name)  # NotFound says which is near
        scope = Scope(tuple(sorted({*queues})), None if since is None else since.isoformat())
        with found.writing(), sparks_errors():
            if not found.exists:
                found.begin(State(uuid4().hex, now.system, now.database, scope))
            if not anywhere:
                same(found, now, scope)
            session = spark if isinstance(spark, SparkSession) else spark()
            yield Work(own(session), found, database, database.dsn, tell)


def same(lake: Lake, now: Horizon, scope: Scope) -> None:
    """The lake is of this database, and of what was asked for."""
    state = lake.state
    if (state.system, state.database) != now[:2]:
        raise Conflict(
            f"lake: {lake.place} was written from another database "
            f"(system {state.system}, database {state.database}; this is {now.system}, {now.database})",
            hint="Name another directory; after a restore: penstock pipeline rebase.",
        )
    for name in ("queues", "since"):
        asked, there = getattr(scope, name), getattr(state.scope, name)
        if asked and asked != there:
            said = (", ".join(there) if name == "queues" else there) if there else "everything"
            hint = f"Leave --{name} out, or name another directory."
            raise Conflict(f"{name}: {lake.place} was begun with {said}; that can not be changed", hint=hint)


def own(spark: SparkSession) -> SparkSession:
    """The same Spark, with settings of our own: whatever somebody else's are, days are UTC and moments microseconds."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "64")  # else all rows are sorted by day first
    if session.conf.get("spark.sql.shuffle.partitions") == "200":  # nobody has said anything else
        session.conf.set("spark.sql.shuffle.partitions", str(4 * session.sparkContext.defaultParallelism))
    make_ready(session)
    return session


@contextmanager
def sparks_errors() -> Iterator[None]:
    """What Spark made of an error of ours, as that error again."""
    try:
        yield
    except PySparkException as error:
        ours = as_ours(str(error))
        if ours is None:
            raise
        raise ours from error


def signature(*parts: Collection[str] | int) -> str:
    """Of what a day was made: the same files in the same version make the same day."""
    text = "\n".join(str(part) if isinstance(part, int) else " ".join(sorted(part)) for part in parts)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def paths(state: State, table: str, days: Collection[str]) -> list[str]:
    return [file.path for file in state.files(table, days)]
