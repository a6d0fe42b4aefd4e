"""History as DataFrames, whole or as a stream. By windows of transactions, never by ids: those commit out of order.

Below the horizon rows never change. So a window is read in many short transactions, a few pages of one day in each, and
is still exact: no snapshot is held for long, whatever its size and however slowly Spark takes the rows."""

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

from penstock import queue as seam
from penstock import statements as say
from penstock import validate
from penstock.errors import ConfigError, Conflict, PenstockError, Unavailable, shown
from penstock.model import Horizon, Span, Window
from penstock.spark.hints import hinted
from penstock.spark.options import HistoryOptions, Pace, Place
from penstock.spark.place import found, opened
from penstock.spark.session import make_ready
from penstock.wire import for_other_drivers, meant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "id bigint, xid bigint, queue string, queue_id int, task_id bigint, created timestamp, due timestamp, "
    "claimed_at timestamp, finished_at timestamp, iteration int, attempt int, outcome string, kind string, "
    "worker string, subject string, error_class string, error string"
)
TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC")}
ARROW = pa.schema([(name, TYPES[kind]) for name, kind in map(str.split, SCHEMA.split(", "))])

FIRST = 256  # pages of the first transaction; then as many as take about so long, and give about so much
SECONDS = 0.15
BYTES = 8 << 20
MOST = 1 << 16
REST = 19.0  # times as long as a slice took: while workers are at it, reading shall not be felt (decision 20)
LEAST = 64  # pages for which a Spark task of their own is worth its while
ROWS = 20_000  # in a batch for Spark


class Part(InputPartition):
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
    """All of history up to now, or a part of it."""

    def __init__(self, options: HistoryOptions) -> None:
        self._options = resolved(options)

    def partitions(self) -> list[InputPartition]:
        if self._options.window is not None:
            return planned(self._options, *self._options.window)
        with opened(self._options.place) as database:
            now = seam.horizon(database)
        return planned(self._options, now._replace(xid=0), now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """History as it grows. An offset says up to which transaction, and of which cluster: there is no other meaning."""

    def __init__(self, options: HistoryOptions) -> None:
        self._options = resolved(options)
        self._last: Horizon | None = None  # where a stream of what is there now ends

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return to_offset(self._options, self._horizon()._replace(xid=0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._last = self._horizon()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's
        """The start, if nothing was written since: other people's transactions move the horizon all the time."""
        since, now = from_offset(self._options, start), self._last or self._horizon()
        with opened(self._options.place) as database:
            if not seam.written(database, since, now):
                return start
        return to_offset(self._options, now)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return to_offset(self._options, self._horizon())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return planned(self._options, from_offset(self._options, start), from_offset(self._options, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)

    def _horizon(self) -> Horizon:
        with opened(self._options.place) as database:
            return seam.horizon(database)


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
    """History as a DataFrame: one row per finished attempt, of a queue or all, finished in [since, until). A gentle
    reader rests most of the time while workers claim tasks; `pace="full"` takes what it can get. A window is for those
    who come again: what was written between two horizons, always the same."""
    given = {
        "url": found(Place(dsn))[0] or None,
        "queue": None if queue is None else validate.queue_name(queue),
        "since": None if since is None else validate.moment(since, "since").isoformat(),
        "until": None if until is None else validate.moment(until, "until").isoformat(),
        "numPartitions": partitions,
        "window": None if window is None else json.dumps([at._asdict() for at in window]),
        "pace": pace,
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
    """Of a checkpoint that is ours; whether of this cluster, PostgreSQL knows."""
    queue = offset.get("queue")
    if {*offset} != {*Horizon._fields, "queue"}:
        raise ConfigError(f"checkpoint: {shown(dict(offset))} is no offset of history. {ANEW}")
    if queue != options.queue:
        raise ConfigError(f"queue: the checkpoint is of {shown(queue)}, not of {shown(options.queue)}. {ANEW}")
    return Horizon(**{name: offset[name] for name in Horizon._fields})


ANEW = "Give each query a checkpoint of its own."


# --- planning, in the driver ------------------------------------------------------------------------------------------


def resolved(options: HistoryOptions) -> HistoryOptions:
    """With the DSN in it: executors have another environment."""
    with hinted():
        dsn, _ = found(options.place)
    fields = {name: getattr(options, name) for name in asdict(options)}
    return HistoryOptions(**fields | {"place": Place(dsn)}) if dsn else options


def planned(options: HistoryOptions, start: Horizon, end: Horizon) -> list[InputPartition]:
    if start.xid == end.xid and start[:2] == end[:2]:
        return []
    window = Window(start, end, options.queue, options.since, options.until)
    with opened(options.place) as database:
        spans = seam.spans(database, window)
        queues = None if options.queue is None else seam.queues_named(database, options.queue)
        names = seam.queue_names(database)
    return [Part(window, some, queues, names) for some in shared(spans, options.partitions)]


def shared(spans: Iterable[Span], parts: int) -> list[list[Span]]:
    """Pages in so many equal parts, or fewer if there are few."""
    left = [one for one in spans if one.pages]
    pages = sum(one.pages for one in left)
    size = max(-(-pages // parts), LEAST)
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


def read(options: HistoryOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Part):
        return  # Spark's own, where nothing was planned
    with connected(options.place) as line:
        for span in partition.spans:
            for slice_ in sliced(line, partition, span):
                began = time.monotonic() - slice_.seconds
                yield from with_names(slice_.table, partition.names).to_batches(ROWS)
                if slice_.beside_workers and options.pace == "gentle":
                    time.sleep(REST * (time.monotonic() - began))  # Spark's part of the work counts, too


class Slice(NamedTuple):
    table: pa.Table
    beside_workers: bool  # somebody claims tasks meanwhile
    seconds: float = 0.0


def sliced(line: Line, part: Part, span: Span) -> Iterator[Slice]:
    """A span's rows, a few pages at a time. Each time they are all here before Spark gets any: no transaction of ours
    waits for it. One that PostgreSQL had to end because it took too long is tried again with fewer."""
    first, end, size = span.first_page, span.first_page + span.pages, FIRST
    while first < end:
        pages = range(first, min(first + size, end))
        began = time.monotonic()
        try:
            found = line.rows(say.history_rows(part.window, part.queues, span.day, pages), span)
        except Unavailable as error:
            if error.reason != "retry" or len(pages) == 1:
                raise
            size = max(len(pages) // 8, 1)
            continue
        first = pages.stop
        seconds = time.monotonic() - began
        size = paced(len(pages), seconds, found.table.nbytes)
        yield found._replace(seconds=seconds)


def paced(pages: int, seconds: float, size: int) -> int:
    wanted = pages * min(SECONDS / max(seconds, 1e-6), BYTES / max(size, 1), 4.0)
    return max(1, min(int(wanted), MOST))


def with_names(table: pa.Table, names: Mapping[int, str]) -> pa.Table:
    """The columns as Spark knows them, the queue's name among them."""
    ids = pa.array(names.keys(), pa.int32())
    known = pa.array(names.values(), pa.string())
    queues = known.take(pc.index_in(table["queue_id"].combine_chunks(), value_set=ids))
    columns = [queues if name == "queue" else table[name] for name in ARROW.names]
    return pa.Table.from_arrays(columns, schema=ARROW)


class Line(NamedTuple):
    """A connection that answers in Arrow: PostgreSQL's binary COPY, decoded in C (decision 17)."""

    connection: Any

    def rows(self, statement: str, span: Span) -> Slice:
        """In a transaction of its own. The day is locked from its first row on: if it is still there at the end, it was
        there all the time."""
        with self.shortly() as cursor:
            cursor.execute(statement)
            table = cursor.fetch_arrow_table()
            cursor.execute(say.STILL_THERE.format(relation=int(span.relation)))
            there = cursor.fetchone()
        if there is None:
            raise Conflict(f"history of {span.day} was dropped while it was being read. Read again what is there now")
        return Slice(table, beside_workers=there[0])

    def table(self, statement: str) -> pa.Table:
        """Of what nobody drops, in a transaction of its own."""
        with self.shortly() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()

    @contextmanager
    def shortly(self) -> Iterator[Any]:
        own = self.connection.adbc_connection
        with driver_errors():
            own.set_autocommit(False)
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute("set transaction isolation level read committed")
                    cursor.execute(say.SHORTLY)
                    yield cursor
            finally:
                own.set_autocommit(True)


@contextmanager
def connected(place: Place) -> Iterator[Line]:
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - executors only

    dsn, _ = found(place)
    with driver_errors():
        connection = dbapi.connect(for_other_drivers(dsn), autocommit=True)
    try:
        yield Line(connection)
    finally:
        connection.close()


@contextmanager
def driver_errors() -> Iterator[None]:
    """Errors of the driver as ours: its messages repeat the statement."""
    from adbc_driver_manager import Error  # noqa: PLC0415 - executors only

    try:
        yield
    except Error as error:
        said = re.search(r"(?:ERROR|FATAL): +(.*)", str(error)) or re.search(r"(.*)", str(error))
        message = said[1] if said else "PostgreSQL does not answer"
        ours: PenstockError = meant(error.sqlstate or "08006", message)
        raise ours from None


__all__ = ["SCHEMA", "HistoryReader", "HistoryStream", "read_history"]
