"""An adopted table, a table of another program that is drained in place: its passes, its status, its failures."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from penstock import validate
from penstock.backlog import failures
from penstock.backlog import status as standing
from penstock.backlog import terms as agreed
from penstock.backlog.claim import Key
from penstock.backlog.crash_marker import CAREFUL_RECORDS, CrashMarker, mark_pass, note_record, remove_markers
from penstock.backlog.drain import Pass, PassProgress, RecordHandler, check_handler
from penstock.backlog.failures import RecordFailure
from penstock.backlog.source import Source, begin_walk, note_mark, read_clock, read_position, to_json
from penstock.backlog.status import BacklogStatus
from penstock.backlog.table import check_readable, check_writable, look_up
from penstock.backlog.terms import Terms
from penstock.backlog.trial import check_unique
from penstock.client.connections import Connection
from penstock.client.database import Database
from penstock.errors import Conflict, Unavailable, ValidationError
from penstock.handlers.registry import find_for_records
from penstock.model import Duration

LONGEST_AGE = timedelta(days=36500)
RECORDS_PER_PASS = 10_000  # in `run`
IDLE_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds between passes without a record
SHORTEST_REST, LONGEST_REST = 1.0, 300.0  # seconds between two attempts of a record whose status cannot be written
MAX_FAILURES = 1000  # stored for each table


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did. `changed`: the handler changed or deleted the row itself, and that stands. `unwritten`: failed
    records that keep their status, because the new one could not be written. `skipped`: due records that another
    session held. `later`: failed records that are not due yet (counted up to 10,000). `undeclared`: unknown statuses,
    which are left alone. `more`: the pass ended at its limit. `walked_ticks`: failed records were tried again, which
    only one pass at a time does."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    changed: int = 0
    unwritten: int = 0
    skipped: int = 0
    later: int = 0
    more: bool = False
    walked_ticks: bool = True
    seconds: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)

    @property
    def handled(self) -> int:
        """The number of records that were handled, whatever their result."""
        return self.done + self.failed + self.dead + self.changed

    @property
    def rate(self) -> float:
        """Handled records per second."""
        return self.handled / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return asdict(self) | {"errors": dict(self.errors), "undeclared": dict(self.undeclared)}


class PassLimits(NamedTuple):
    """What one pass may take."""

    age: timedelta | None
    records: int | None
    newest_first: bool


class RestingRecords:
    """Records whose status could not be written. Each is skipped for a while, twice as long each time; otherwise `run`
    would handle it several times a second."""

    def __init__(self) -> None:
        self._until: dict[Key, tuple[float, float]] = {}  # until when it rests, and for how long

    def keys(self) -> set[Key]:
        """Returns the records that are skipped now."""
        now = time.monotonic()
        return {key for key, (until, _) in self._until.items() if until > now}

    def note(self, keys: set[Key]) -> None:
        """Adds the records of a pass whose status could not be written; drops those that rested and then succeeded."""
        now, resting = time.monotonic(), self.keys()
        self._until = {key: value for key, value in self._until.items() if key in resting or key in keys}
        for key in keys:
            waited = self._until.get(key, (0.0, SHORTEST_REST / 2))[1]
            wait = min(2 * waited, LONGEST_REST)
            self._until[key] = (now + wait, wait)


class Backlog:
    """An adopted table. `Penstock.adopt` and `Penstock.backlog` return it. With `tracebacks=False`, passes store only
    class and message of errors."""

    def __init__(self, database: Database, adopted: int, terms: Terms, *, tracebacks: bool = True) -> None:
        self.id = adopted
        self.terms = terms
        self.tracebacks = tracebacks
        self._database = database
        self._stop = threading.Event()
        self.stopped_by: int | None = None  # the signal that ended the last `run`
        self._resting = RestingRecords()
        self._begun: set[int] = set()  # passes of this process: if one was interrupted, no record is blamed

    def __repr__(self) -> str:
        return f"<Backlog {self.name}: {self.terms.table}, {self.terms.mode}>"

    @property
    def name(self) -> str:
        """The name under which the table was adopted."""
        return self.terms.name

    def process(
        self,
        handler: RecordHandler,
        *,
        max_age: Duration | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        concurrency: int = 1,
        progress: PassProgress | None = None,
    ) -> PassReport:
        """Runs one pass: each record that is ready, or due again, is handled once, at most `limit` records. Use it with
        cron.

        The handler is called with the record, a dict of all its columns; it returns (done) or raises (failed). A
        handler with a second parameter, `transaction`, gets the psycopg connection in which the row is locked: what it
        writes there is committed together with the new status. A decorated function runs as in a worker of its
        application: inside the same wrappers.
        """
        function = self._prepare(handler)
        self._stop, self._resting = threading.Event(), RestingRecords()
        limits = check_limits(max_age, limit, newest_first)
        with self._connections(concurrency) as connections:
            return self._run_pass(connections, function, limits, progress)

    def run(
        self,
        handler: RecordHandler,
        *,
        concurrency: int = 1,
        max_age: Duration | None = None,
        newest_first: bool = False,
        progress: Callable[[PassReport], None] | None = None,
    ) -> PassReport:
        """Runs passes until SIGTERM, Ctrl-C or `stop()`. Records that have begun are finished. Returns the sum of all
        passes."""
        function = self._prepare(handler)
        self._stop, self._resting = threading.Event(), RestingRecords()
        limits = check_limits(max_age, RECORDS_PER_PASS, newest_first)
        total = PassReport()
        self.stopped_by = None
        with handle_signals(self._stop_by_signal):
            while not self._stop.is_set():
                try:
                    with self._connections(concurrency) as connections:
                        total = self._run_passes(connections, function, limits, total, progress)
                except Unavailable:
                    if not self._stop.is_set():
                        self._database.reconnect()
        return total

    def stop(self) -> None:
        """Ends `process` and `run`, from another thread or a signal handler: no further record begins."""
        self._stop.set()

    def status(self) -> BacklogStatus:
        """Returns counts by status, what is due, the age of the oldest waiting record, and the SLA."""
        with self._database.session() as connection, self._database.answering(connection):
            return standing.read_status(connection, self.id, self.terms)

    def failures(self, limit: int = 100) -> list[RecordFailure]:
        """Returns why records failed, the newest first: one entry for each record whose last try failed. The newest
        1,000 are kept."""
        validate.whole(limit, "limit", 1, MAX_FAILURES)
        with self._database.session() as connection:
            return failures.read_newest(connection, self.id, limit)

    def failure(self, *key: str) -> RecordFailure | None:
        """Returns why the record with this key failed, or None if no failure of it is kept. The values of the key are
        texts, in the order of its columns."""
        names = [one.name for one in self.terms.key]
        if len(key) != len(names):
            raise ValidationError(f"key: {', '.join(names)} needs {len(names)} values, not {len(key)}", field="key")
        with self._database.session() as connection:
            return failures.read_one(connection, self.id, key)

    def abandon(self) -> bool:
        """Forgets the table. Nothing in the table changes."""
        with self._database.session() as connection:
            row = connection.execute("select penstock.abandon(%s)", (self.name,)).fetchone()
        return bool(row and row[0])

    def _prepare(self, handler: RecordHandler) -> RecordHandler:
        """Returns the function that is called for each record, checked."""
        if self.terms.mode == "observe":
            raise Conflict(
                f"{self.name} was adopted to be observed only", hint="Adopt it with another mode to drain it."
            )
        registered = find_for_records(handler)
        function = handler if registered is None else registered.function
        check_handler(function)
        return function

    @contextmanager
    def _connections(self, concurrency: int) -> Iterator[list[Connection]]:
        """Opens the connections of a pass: one for each handler at a time, and one for what they share."""
        validate.whole(concurrency, "concurrency", 1, 1000)
        with ExitStack() as stack:
            yield [stack.enter_context(self._database.session()) for _ in range(concurrency + 1)]

    def _run_pass(
        self, connections: list[Connection], handler: RecordHandler, limits: PassLimits, progress: PassProgress | None
    ) -> PassReport:
        """Checks that the table is still as agreed, then runs one pass over it. The first connection holds the marker
        of the pass; each of the others handles records."""
        keeper, *workers = connections
        began = time.monotonic()
        self._check_table(keeper)
        with mark_pass(keeper, workers[0], self.id, self._begun) as marker:
            mark = begin_walk(workers[0], self.id, marker.id) if self.terms.by_ticks else None
            now = read_clock(keeper)
            oldest = None if limits.age is None else now - limits.age
            source = Source(
                self.terms, self.id, now, mark, limit=limits.records, oldest=oldest, newest_first=limits.newest_first
            )
            source.resting = self._resting.keys()
            if self.terms.remembers:
                source.position, source.remembering = read_position(keeper, self.id)
            one = Pass(
                source,
                self.id,
                handler,
                stop=self._stop,
                progress=progress,
                noted=failures.read_keys(workers[0], self.id),
                tracebacks=self.tracebacks,
            )
            try:
                if marker.careful:
                    self._drain_carefully(one, workers[0], marker)
                one.drain(workers)
            finally:
                one.log_rest()
                self._resting.note(one.unwritten)
                if not workers[0].closed and not workers[0].broken:
                    self._note_position(workers[0], source)
        more = source.cut or self._stop.is_set()
        report = self._report(keeper, source, one, time.monotonic() - began, more=more, walked_ticks=mark is not None)
        if report.handled:
            summary = report.to_json() | {"at": now, "rate": round(report.rate, 1)}
            keeper.execute("select penstock.note_pass(%s, %s::jsonb)", (self.id, to_json(summary)))
        return report

    def _check_table(self, connection: Connection) -> None:
        """Refuses a table that can no longer be drained on these terms."""
        present = look_up(connection, f"{self.terms.table.schema}.{self.terms.table.name}")
        check_readable(present)
        check_writable(present, [present.column(one.name, "column") for one in self.terms.written])
        check_unique(self.terms, present)
        agreed.check_index(connection, present, self.terms.inserted)

    def _drain_carefully(self, one: Pass, worker: Connection, marker: CrashMarker) -> None:
        """Handles the first records one by one, because a pass before this one did not end: one of them may have ended
        its process."""
        one.blame(worker, [*marker.blamed.values()])
        remove_markers(worker, *marker.lost)
        with self._database.session() as notes:
            one.drain_one_by_one(worker, lambda key: note_record(notes, marker.id, key), CAREFUL_RECORDS)

    def _note_position(self, connection: Connection, source: Source) -> None:
        """Stores where the next pass begins to look for failed records."""
        if self.terms.remembers:
            at = source.position
            position = (None, None) if at is None else (at.due, list(at.key))
            connection.execute("select penstock.mark_adopted(%s, %s, %s, true)", (self.id, *position))
        else:
            note_mark(connection, self.id, source.reached)

    def _report(
        self, connection: Connection, source: Source, one: Pass, seconds: float, *, more: bool, walked_ticks: bool
    ) -> PassReport:
        return PassReport(
            done=one.counts.done,
            failed=one.counts.failed,
            dead=one.counts.dead,
            changed=one.counts.changed,
            unwritten=one.counts.unwritten,
            skipped=source.skipped,
            later=standing.count_failed(connection, source.statements),
            more=more,
            walked_ticks=walked_ticks or not self.terms.by_ticks,
            seconds=seconds,
            errors=dict(one.counts.errors),
            undeclared=standing.find_undeclared(connection, source.statements),
        )

    def _stop_by_signal(self, number: int) -> None:
        self.stopped_by = number
        self._stop.set()

    def _run_passes(
        self,
        connections: list[Connection],
        handler: RecordHandler,
        limits: PassLimits,
        total: PassReport,
        progress: Callable[[PassReport], None] | None,
    ) -> PassReport:
        """Runs passes with these connections until it is stopped, with pauses while no record is handled. Returns the
        sum with `total`."""
        idle = 0
        while not self._stop.is_set():
            report = self._run_pass(connections, handler, limits, None)
            total = add_reports(total, report)
            if progress is not None:
                progress(total)
            idle = 0 if report.handled else min(idle + 1, len(IDLE_PAUSES))
            if not report.more or not report.handled:
                self._stop.wait(IDLE_PAUSES[max(idle, 1) - 1])
        return total


def check_limits(max_age: Duration | None, limit: int | None, newest_first: bool) -> PassLimits:
    """Returns the limits of a pass, checked."""
    age = None if max_age is None else validate.positive(max_age, "max_age", most=LONGEST_AGE)
    records = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
    return PassLimits(age, records, bool(newest_first))


def add_reports(total: PassReport, one: PassReport) -> PassReport:
    """Returns the sums of two reports. What is a state of the table and no sum is taken from the newer report."""
    sums = {
        name: getattr(total, name) + getattr(one, name)
        for name in ("done", "failed", "dead", "changed", "unwritten", "skipped")
    }
    errors = {name: total.errors.get(name, 0) + one.errors.get(name, 0) for name in {*total.errors, *one.errors}}
    return PassReport(
        **sums,
        later=one.later,
        more=one.more,
        walked_ticks=one.walked_ticks,
        seconds=total.seconds + one.seconds,
        errors=errors,
        undeclared=one.undeclared,
    )


@contextmanager
def handle_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Handles SIGTERM and Ctrl-C while it runs in the main thread. In another thread it leaves them alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, lambda number, _: stop(number)) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
