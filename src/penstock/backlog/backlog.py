"""An adopted table: a table of another program that is drained in place."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from penstock import retry as strategies
from penstock import validate
from penstock.backlog import failures
from penstock.backlog import status as standing
from penstock.backlog import terms as agreed
from penstock.backlog.claim import Key
from penstock.backlog.crash_marker import CAREFUL_RECORDS, CrashMarker, mark_pass, note_record, remove_markers
from penstock.backlog.drain import Handler, Pass, Progress, check_handler, note_mark, read_clock
from penstock.backlog.failures import RecordFailure
from penstock.backlog.source import Source, begin_walk, read_position, to_json
from penstock.backlog.status import BacklogStatus
from penstock.backlog.table import check_readable, check_writable, look_up
from penstock.backlog.terms import Status, Terms
from penstock.backlog.trial import check_key, check_statuses, check_unique
from penstock.client.database import Connection, Database
from penstock.client.session import CONTRACT, check_contract
from penstock.errors import Conflict, NotFound, Unavailable, shown
from penstock.model import Duration
from penstock.retry import Strategy

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
    which are left alone. `more`: the pass ended at its limit. `alone`: no other pass walked the ticks."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    changed: int = 0
    unwritten: int = 0
    skipped: int = 0
    later: int = 0
    more: bool = False
    alone: bool = True
    seconds: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)

    @property
    def handled(self) -> int:
        return self.done + self.failed + self.dead + self.changed

    @property
    def rate(self) -> float:
        return self.handled / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
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
    """An adopted table. `Penstock.adopt` and `Penstock.backlog` return it."""

    def __init__(self, database: Database, adopted: int, terms: Terms) -> None:
        self.id = adopted
        self.terms = terms
        self._database = database
        self._stop = threading.Event()
        self.stopped_by: int | None = None  # the signal that ended the last `run`
        self._resting = RestingRecords()
        self._begun: set[int] = set()  # passes of this process: if one was interrupted, no record is blamed

    def __repr__(self) -> str:
        return f"<Backlog {self.name}: {self.terms.table}, {self.terms.mode}>"

    @property
    def name(self) -> str:
        return self.terms.name

    def process(
        self,
        handler: Handler,
        *,
        max_age: Duration | None = None,
        max_records: int | None = None,
        newest_first: bool = False,
        concurrency: int = 1,
        progress: Progress | None = None,
    ) -> PassReport:
        """Runs one pass: each record that is ready, or due again, is handled once. Use it with cron.

        The handler is called with the record, a dict of all its columns; it returns (done) or raises (failed). A
        handler with a second parameter, `transaction`, gets the psycopg connection in which the row is locked: what it
        writes there is committed together with the new status.
        """
        self._check(handler)
        self._stop, self._resting = threading.Event(), RestingRecords()
        limits = check_limits(max_age, max_records, newest_first)
        with self._connections(concurrency) as connections:
            return self._pass(connections, handler, limits, progress)

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        max_age: Duration | None = None,
        newest_first: bool = False,
        progress: Callable[[PassReport], None] | None = None,
    ) -> PassReport:
        """Runs passes until SIGTERM, Ctrl-C or `stop()`. Records that have begun are finished. Returns the sum of all
        passes."""
        self._check(handler)
        self._stop, self._resting = threading.Event(), RestingRecords()
        limits = check_limits(max_age, RECORDS_PER_PASS, newest_first)
        total = PassReport()
        self.stopped_by = None
        with handle_signals(self._stopped):
            while not self._stop.is_set():
                try:
                    with self._connections(concurrency) as connections:
                        total = self._run(connections, handler, limits, total, progress)
                except Unavailable:
                    if not self._stop.is_set():
                        self._database.reconnect()
        return total

    def stop(self) -> None:
        """Ends `process` and `run`, from another thread or a signal handler: no further record begins."""
        self._stop.set()

    def status(self) -> BacklogStatus:
        """Returns counts by status, what is due, the age of the oldest waiting record, and the SLA."""
        with self._database.session() as connection:
            return standing.read_status(connection, self.id, self.terms)

    def failures(self, limit: int = 100) -> list[RecordFailure]:
        """Returns why records failed, the newest first: one entry for each record whose last try failed. The newest
        1,000 are kept."""
        validate.whole(limit, "limit", 1, MAX_FAILURES)
        with self._database.session() as connection:
            return failures.read_newest(connection, self.id, limit)

    def abandon(self) -> bool:
        """Forgets the table. Nothing in the table changes."""
        with self._database.session() as connection:
            row = connection.execute("select penstock.abandon(%s)", (self.name,)).fetchone()
        return bool(row and row[0])

    def _check(self, handler: Handler) -> None:
        if self.terms.mode == "observe":
            raise Conflict(
                f"{self.name} was adopted to be observed only", hint="Adopt it with another mode to drain it."
            )
        check_handler(handler)

    @contextmanager
    def _connections(self, concurrency: int) -> Iterator[list[Connection]]:
        """Opens the connections of a pass: one for each handler at a time, and one for what they share."""
        validate.whole(concurrency, "concurrency", 1, 1000)
        with ExitStack() as stack:
            yield [stack.enter_context(self._database.session()) for _ in range(concurrency + 1)]

    def _pass(
        self, connections: list[Connection], handler: Handler, limits: PassLimits, progress: Progress | None
    ) -> PassReport:
        keeper, *workers = connections
        began = time.monotonic()
        fresh = look_up(keeper, f"{self.terms.table.schema}.{self.terms.table.name}")
        check_readable(fresh)
        check_writable(fresh, [fresh.column(one.name, "column") for one in self.terms.written])
        check_unique(self.terms, fresh)
        agreed.check_index(keeper, fresh, self.terms.inserted)
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
            one = Pass(source, self.id, handler, stop=self._stop, progress=progress)
            one.noted = failures.read_keys(workers[0], self.id)
            try:
                if marker.careful:
                    self._carefully(one, workers[0], marker)
                one.drain(workers)
            finally:
                one.log_rest()
                self._resting.note(one.unwritten)
                if not workers[0].closed and not workers[0].broken:
                    self._note_place(workers[0], source)
        more = source.cut or self._stop.is_set()
        report = self._report(keeper, source, one, time.monotonic() - began, more=more, alone=mark is not None)
        if report.handled:
            summary = report.to_json() | {"at": now, "rate": round(report.rate, 1)}
            keeper.execute("select penstock.note_pass(%s, %s::jsonb)", (self.id, to_json(summary)))
        return report

    def _carefully(self, one: Pass, worker: Connection, marker: CrashMarker) -> None:
        """Handles the first records one by one, because a pass before this one did not end: one of them may have ended
        its process."""
        one.blame(worker, [*marker.blamed.values()])
        remove_markers(worker, *marker.lost)
        with self._database.session() as notes:
            one.drain_one_by_one(worker, lambda key: note_record(notes, marker.id, key), CAREFUL_RECORDS)

    def _note_place(self, connection: Connection, source: Source) -> None:
        if self.terms.remembers:
            at = source.position
            place = (None, None) if at is None else (at.due, list(at.key))
            connection.execute("select penstock.mark_adopted(%s, %s, %s, true)", (self.id, *place))
        else:
            note_mark(connection, self.id, source.reached)

    def _report(
        self, connection: Connection, source: Source, one: Pass, seconds: float, *, more: bool, alone: bool
    ) -> PassReport:
        return PassReport(
            done=one.counts.done,
            failed=one.counts.failed,
            dead=one.counts.dead,
            changed=one.counts.changed,
            unwritten=one.counts.unwritten,
            skipped=source.skipped,
            later=standing.count_failed(connection, source.say),
            more=more,
            alone=alone or not self.terms.by_ticks,
            seconds=seconds,
            errors=dict(one.counts.errors),
            undeclared=standing.find_undeclared(connection, source.say),
        )

    def _stopped(self, number: int) -> None:
        self.stopped_by = number
        self._stop.set()

    def _run(
        self,
        connections: list[Connection],
        handler: Handler,
        limits: PassLimits,
        total: PassReport,
        progress: Callable[[PassReport], None] | None,
    ) -> PassReport:
        idle = 0
        while not self._stop.is_set():
            report = self._pass(connections, handler, limits, None)
            total = add_reports(total, report)
            if progress is not None:
                progress(total)
            idle = 0 if report.handled else min(idle + 1, len(IDLE_PAUSES))
            if not report.more or not report.handled:
                self._stop.wait(IDLE_PAUSES[max(idle, 1) - 1])
        return total


def check_limits(max_age: Duration | None, max_records: int | None, newest_first: bool) -> PassLimits:
    age = None if max_age is None else validate.positive(max_age, "max_age", most=LONGEST_AGE)
    most = None if max_records is None else validate.whole(max_records, "max_records", 1, 2**31)
    return PassLimits(age, most, bool(newest_first))


def add_reports(total: PassReport, one: PassReport) -> PassReport:
    sums = {
        name: getattr(total, name) + getattr(one, name)
        for name in ("done", "failed", "dead", "changed", "unwritten", "skipped")
    }
    errors = {name: total.errors.get(name, 0) + one.errors.get(name, 0) for name in {*total.errors, *one.errors}}
    return PassReport(
        **sums,
        later=one.later,
        more=one.more,
        alone=one.alone,
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


# --- adopted tables ---------------------------------------------------------------------------------------------------

# Read in binary: the text of an interval depends on the session.
KNOWN = """
    select a.id, a.name, a.schema_name, a.table_name, a.mode, a.terms, a.retry, a.max_attempts, a.sla
    from penstock.adopted as a
"""


@contextmanager
def open_session(dsn: str, source: str) -> Iterator[tuple[Database, Connection]]:
    database = Database(dsn, source=source)
    with database.session() as connection:
        check_contract(connection.execute(CONTRACT).fetchone())
        yield database, connection


def adopt(dsn: str, source: str, table: str, **terms: Any) -> Backlog:
    """Agrees on the terms and notes them; if they are noted already, nothing is written."""
    with open_session(dsn, source) as (database, connection):
        found = look_up(connection, table)
        check_readable(found)
        agreement = agreed.agree(connection, found, **terms)
        if agreement.mode != "observe":
            check_writable(found, agreement.written)
        if not find_noted(connection, agreement):
            check_terms(connection, agreement)
        return Backlog(database, note_terms(connection, agreement), agreement)


def check_terms(connection: Connection, terms: Terms, *, on_records: bool = True) -> None:
    """Tests what the catalog does not say, before terms are noted. A table that is only observed needs no test."""
    if terms.mode != "observe":
        check_key(connection, terms)
        check_statuses(connection, terms, on_records=on_records)


def find_noted(connection: Connection, terms: Terms) -> int | None:
    """Returns the id of the adopted table with exactly these terms, if there is one."""
    row = connection.execute(KNOWN + "where a.name = %s", (terms.name,), binary=True).fetchone()
    return int(row[0]) if row is not None and row[2:] == to_stored(terms) else None


def to_stored(terms: Terms) -> tuple[Any, ...]:
    strategy, limits = terms.strategy.to_json(), (terms.max_attempts, terms.sla)
    return (terms.table.schema, terms.table.name, terms.mode, terms.to_json(), strategy, *limits)


def note_terms(connection: Connection, terms: Terms) -> int:
    known = find_noted(connection, terms)
    if known is not None:
        return known
    schema, table, mode, told, strategy, max_attempts, sla = to_stored(terms)
    row = connection.execute(
        "select penstock.adopt(%s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s)",
        (terms.name, schema, table, mode, to_json(told), to_json(strategy), max_attempts, sla),
    ).fetchone()
    assert row is not None
    return int(row[0])


def load(dsn: str, source: str, name: str) -> Backlog:
    """Returns an adopted table, by its name or the name of the table."""
    with open_session(dsn, source) as (database, connection):
        return restore(database, connection, find_known(connection, name))


def find_known(connection: Connection, name: str) -> Sequence[Any]:
    """Returns the stored row of an adopted table."""
    found = [
        row
        for row in connection.execute(KNOWN + "order by a.name", binary=True).fetchall()
        if name in (row[1], row[3], f"{row[2]}.{row[3]}")
    ]
    exact = [row for row in found if row[1] == name] or found
    if len(exact) != 1:
        why = "is not adopted" if not exact else f"is adopted as {', '.join(row[1] for row in exact)}"
        hint = "`penstock adopt TABLE --apply` does it; `penstock backlog status` lists them."
        raise NotFound(f"{shown(name)} {why}", hint=hint)
    return exact[0]


def forget(dsn: str, source: str, name: str, *, dry_run: bool = False) -> str:
    """Forgets an adopted table, even one that no longer exists. Returns its name."""
    with open_session(dsn, source) as (_, connection):
        found = str(find_known(connection, name)[1])
        if not dry_run:
            connection.execute("select penstock.abandon(%s)", (found,))
        return found


def every(dsn: str, source: str) -> list[Backlog]:
    """Returns all adopted tables."""
    with open_session(dsn, source) as (database, connection):
        rows = connection.execute(KNOWN + "order by a.name", binary=True).fetchall()
        return [restore(database, connection, row) for row in rows]


def restore(database: Database, connection: Connection, row: Sequence[Any]) -> Backlog:
    found = look_up(connection, f"{row[2]}.{row[3]}")
    return Backlog(database, row[0], agreed.agree(connection, found, **read_terms(row)))


def read_terms(row: Sequence[Any]) -> dict[str, Any]:
    """Returns stored terms as arguments for `agree`."""
    _, name, _, _, mode, told, retry, max_attempts, sla = row
    strategy = strategies.from_json(retry)
    return {**told, "name": name, "mode": mode, "max_attempts": max_attempts, "sla": sla, "strategy": strategy}


__all__ = ["Backlog", "PassReport", "Status", "Strategy", "adopt", "every", "forget", "load"]
