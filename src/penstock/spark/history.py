"""Reads history as DataFrames, completely or as a stream. It reads windows of transactions, because ids commit out of
order.

Rows below the horizon never change. Therefore a window is read in many short transactions, a few pages of a day in
each, and the result is still exact. No snapshot is held for long, however large the window is and however slowly Spark
takes the rows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from penstock import validate
from penstock.client import history
from penstock.client.conninfo import for_other_drivers
from penstock.client.sqlstate import make_error
from penstock.client.statements import history as statements
from penstock.errors import ConfigError, Conflict, PenstockError, Unavailable, shown
from penstock.model import Horizon, Span, Window
from penstock.spark.connection import open_database, resolve_dsn
from penstock.spark.options import Address, HistoryOptions, Pace
from penstock.spark.session import make_ready

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "id bigint, xid bigint, queue string, queue_id int, task_id bigint, created timestamp, due timestamp, "
    "claimed_at timestamp, finished_at timestamp, iteration int, attempt int, outcome string, kind string, "
    "worker string, subject string, error_class string, error string"
)
TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC")}
ARROW = pa.schema([(name, TYPES[kind]) for name, kind in map(str.split, SCHEMA.split(", "))])

FIRST_PAGES = 256  # of the first transaction; the next ones take about SLICE_SECONDS and give about SLICE_BYTES
SLICE_SECONDS = 0.15
SLICE_BYTES = 8 << 20
MAX_PAGES = 1 << 16
REST_FACTOR = 19.0  # pause after a slice, times its duration, while workers run (decision 20)
MIN_PAGES = 64  # of a Spark task
BATCH_ROWS = 20_000  # in a batch for Spark


class HistoryPart(InputPartition):
    """What one Spark task reads."""

    def __init__(
        self, window: Window, spans: Sequence[Span], queues: Sequence[int] | None, names: Mapping[int, str]
    ) -> None:
        super().__init__(None)
        self.window = window
        self.spans = spans
        self.queues = queues
        self.names = names


class HistoryReader(DataSourceReader):
    """Reads all history up to now, or a part of it."""

    def __init__(self, options: HistoryOptions) -> None:
        self._options = resolve_options(options)

    def partitions(self) -> list[InputPartition]:
        if self._options.window is not None:
            return plan_parts(self._options, *self._options.window)
        with open_database(self._options.address) as database:
            now = history.read_horizon(database)
        return plan_parts(self._options, now._replace(xid=0), now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._options, partition)


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads history as it grows. An offset is a transaction id with its cluster and branch. PostgreSQL stores each
    offset before Spark gets it."""

    def __init__(self, options: HistoryOptions) -> None:
        self._options = resolve_options(options)
        self._last: Horizon | None = None  # AvailableNow: the end of the stream

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return to_offset(self._options, self._horizon()._replace(xid=0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        with open_database(self._options.address) as database:
            self._last = history.note_horizon(database)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's
        """Returns the start if no row was written since: transactions of other programs move the horizon all the
        time."""
        since = from_offset(self._options, start)
        with open_database(self._options.address) as database:
            if not history.was_written(database, since, self._last or history.read_horizon(database)):
                return start
            return to_offset(self._options, self._last or history.note_horizon(database))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return to_offset(self._options, self._horizon())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return plan_parts(self._options, from_offset(self._options, start), from_offset(self._options, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._options, partition)

    def _horizon(self) -> Horizon:
        with open_database(self._options.address) as database:
            return history.read_horizon(database)


def read_history(
    spark: SparkSession,
    *,
    queue: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    dsn: str | None = None,
    partitions: int | None = None,
    pace: Pace = "gentle",
    window: tuple[Horizon, Horizon] | None = None,
) -> DataFrame:
    """Returns history as a DataFrame: one row per finished attempt, of one queue or all, finished in [since, until).
    With `window`, it returns the rows that were written between two horizons, which are always the same. A gentle
    reader pauses most of the time while workers claim tasks; `pace="full"` reads as fast as it can."""
    given = {
        "url": resolve_dsn(Address(dsn))[0] or None,
        "queue": None if queue is None else validate.queue_name(queue),
        "since": None if since is None else validate.moment(since, "since").isoformat(),
        "until": None if until is None else validate.moment(until, "until").isoformat(),
        "numPartitions": partitions,
        "pace": pace,
        "window": None if window is None else json.dumps([at._asdict() for at in window]),
    }
    make_ready(spark)
    reader = spark.read.format("penstock").option("read", "history")
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load()


# --- offsets ----------------------------------------------------------------------------------------------------------


def to_offset(options: HistoryOptions, at: Horizon) -> dict[str, Any]:
    return {**at._asdict(), "queue": options.queue}


def from_offset(options: HistoryOptions, offset: Mapping[str, Any]) -> Horizon:
    """Returns the horizon of an offset. Raises ConfigError if the checkpoint is of another query; PostgreSQL checks the
    cluster."""
    queue = offset.get("queue")
    if {*offset} != {*Horizon._fields, "queue"}:
        raise ConfigError(f"checkpoint: {shown(dict(offset))} is no offset of history. {OWN_CHECKPOINT}")
    if queue != options.queue:
        raise ConfigError(
            f"queue: the checkpoint is of {shown(queue)}, not of {shown(options.queue)}. {OWN_CHECKPOINT}"
        )
    return Horizon(**{name: offset[name] for name in Horizon._fields})


OWN_CHECKPOINT = "Give each query a checkpoint of its own."


# --- planning, in the driver ------------------------------------------------------------------------------------------


def resolve_options(options: HistoryOptions) -> HistoryOptions:
    """Adds the DSN to the options, because executors have another environment."""
    dsn, _ = resolve_dsn(options.address)
    fields = {name: getattr(options, name) for name in asdict(options)}
    return HistoryOptions(**fields | {"address": Address(dsn)}) if dsn else options


def plan_parts(options: HistoryOptions, start: Horizon, end: Horizon) -> list[InputPartition]:
    if start.xid == end.xid and start[:2] == end[:2]:
        return []
    window = Window(start, end, options.queue, options.since, options.until)
    with open_database(options.address) as database:
        spans = history.read_spans(database, window)
        queues = None if options.queue is None else history.queues_named(database, options.queue)
        names = history.queue_names(database)
    return [HistoryPart(window, some, queues, names) for some in split_pages(spans, options.partitions)]


def split_pages(spans: Iterable[Span], parts: int) -> list[list[Span]]:
    """Splits pages into equal parts: at most `parts`, and fewer if there are few pages."""
    left = [one for one in spans if one.pages]
    pages = sum(one.pages for one in left)
    size = max(-(-pages // parts), MIN_PAGES)
    cut: list[list[Span]] = []
    room = 0
    while left:
        if not room:
            cut.append([])
            room = size
        one = left.pop(0)
        taken = min(room, one.pages)
        cut[-1].append(one._replace(pages=taken))
        if taken < one.pages:
            left.insert(0, one._replace(first_page=one.first_page + taken, pages=one.pages - taken))
        room -= taken
    return cut


# --- reading, in the executors ----------------------------------------------------------------------------------------


def read_part(options: HistoryOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, HistoryPart):
        return  # Spark's own, if no part was planned
    with connect_arrow(options.address) as arrow:
        for span in partition.spans:
            for slice_ in read_slices(arrow, partition, span):
                began = time.monotonic() - slice_.seconds
                yield from name_queues(slice_.table, partition.names).to_batches(BATCH_ROWS)
                if slice_.beside_workers and options.pace == "gentle":
                    time.sleep(REST_FACTOR * (time.monotonic() - began))  # including Spark's part of the work


class HistorySlice(NamedTuple):
    """The rows of one transaction."""

    table: pa.Table
    beside_workers: bool  # workers claim tasks meanwhile
    seconds: float = 0.0


def read_slices(arrow: ArrowConnection, part: HistoryPart, span: Span) -> Iterator[HistorySlice]:
    """Yields the rows of a span, a few pages at a time. All rows of a slice are fetched before Spark gets any, so no
    transaction of ours waits for Spark. If PostgreSQL ends a transaction because it took too long, it is repeated with
    fewer pages."""
    first, end, size = span.first_page, span.first_page + span.pages, FIRST_PAGES
    while first < end:
        pages = range(first, min(first + size, end))
        began = time.monotonic()
        try:
            found = arrow.rows(statements.history_rows(part.window, part.queues, span.day, pages), span)
        except Unavailable as error:
            if error.reason != "retry" or len(pages) == 1:
                raise
            size = max(len(pages) // 8, 1)
            continue
        first = pages.stop
        seconds = time.monotonic() - began
        size = choose_pages(len(pages), seconds, found.table.nbytes)
        yield found._replace(seconds=seconds)


def choose_pages(pages: int, seconds: float, size: int) -> int:
    wanted = pages * min(SLICE_SECONDS / max(seconds, 1e-6), SLICE_BYTES / max(size, 1), 4.0)
    return max(1, min(int(wanted), MAX_PAGES))


def name_queues(table: pa.Table, names: Mapping[int, str]) -> pa.Table:
    """Returns the columns of Spark's schema, with the name of the queue."""
    ids = pa.array(names.keys(), pa.int32())
    known = pa.array(names.values(), pa.string())
    queues = known.take(pc.index_in(table["queue_id"].combine_chunks(), value_set=ids))
    columns = [queues if name == "queue" else table[name] for name in ARROW.names]
    return pa.Table.from_arrays(columns, schema=ARROW)


class ArrowConnection(NamedTuple):
    """A connection that returns Arrow: PostgreSQL's binary COPY, decoded in C (decision 17)."""

    connection: Any

    def rows(self, statement: str, span: Span) -> HistorySlice:
        """Runs a statement in a transaction of its own. The day is locked from its first row on: if it still exists at
        the end, it existed all the time."""
        with self.shortly() as cursor:
            cursor.execute(statement)
            table = cursor.fetch_arrow_table()
            cursor.execute(statements.STILL_THERE.format(relation=int(span.relation)))
            there = cursor.fetchone()
        if there is None:
            raise Conflict(f"history of {span.day} was dropped while it was being read. Read again what is there now")
        return HistorySlice(table, beside_workers=there[0])

    def table(self, statement: str) -> pa.Table:
        """Runs a statement over a table that is never dropped, in a transaction of its own."""
        with self.shortly() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()

    @contextmanager
    def shortly(self) -> Iterator[Any]:
        """Opens a short transaction."""
        own = self.connection.adbc_connection
        with translate_errors():
            own.set_autocommit(False)
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute("set transaction isolation level read committed")
                    cursor.execute(statements.SHORTLY)
                    yield cursor
            finally:
                own.set_autocommit(True)


@contextmanager
def connect_arrow(address: Address) -> Iterator[ArrowConnection]:
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - executors only

    dsn, _ = resolve_dsn(address)
    with translate_errors():
        connection = dbapi.connect(for_other_drivers(dsn), autocommit=True)
    try:
        yield ArrowConnection(connection)
    finally:
        connection.close()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raises our errors instead of the driver's, whose messages repeat the statement."""
    from adbc_driver_manager import Error  # noqa: PLC0415 - executors only

    try:
        yield
    except Error as error:
        said = re.search(r"(?:ERROR|FATAL): +(.*)", str(error)) or re.search(r"(.*)", str(error))
        message = said[1] if said else "PostgreSQL does not answer"
        ours: PenstockError = make_error(error.sqlstate or "08006", message)
        raise ours from None


__all__ = ["SCHEMA", "HistoryReader", "HistoryStream", "read_history"]
