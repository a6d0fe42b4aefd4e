"""A table that is not ours, drained where it is."""

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
from penstock.backlog import status as standing
from penstock.backlog import terms as agreed
from penstock.backlog.drain import Handler, Pass, Progress, clock, note_mark, wanted_by
from penstock.backlog.hand import CAREFUL, Hand, end, in_hand
from penstock.backlog.hand import note as note_hand
from penstock.backlog.source import Source, as_json, remembered, walk_from
from penstock.backlog.status import BacklogStatus
from penstock.backlog.table import check_readable, check_writable, look_up
from penstock.backlog.terms import Status, Terms
from penstock.database import Connection, Database
from penstock.errors import Conflict, NotFound, Unavailable, shown
from penstock.model import Duration
from penstock.retry import Strategy
from penstock.wire import CONTRACT, check_contract

LONGEST_AGE = timedelta(days=36500)
AT_ONCE = 10_000  # records in one of the passes of `run`
PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds, while there is nothing to do


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did. `changed`: the handler changed or deleted the row itself, and that stands. `skipped`: due, but
    somebody held it. `later`: failed records that wait for their time (counted up to 10,000). `undeclared`: statuses
    that nobody told us of, left alone. `more`: it was cut by its limit. `alone`: nobody else walked the ticks."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    changed: int = 0
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


class Limits(NamedTuple):
    """What one pass may take."""

    age: timedelta | None
    records: int | None
    newest_first: bool


class Backlog:
    """An adopted table. Made by `Penstock.adopt` and `Penstock.backlog`."""

    def __init__(self, database: Database, adopted: int, terms: Terms) -> None:
        self.id = adopted
        self.terms = terms
        self._database = database
        self._stop = threading.Event()
        self._begun: set[int] = set()  # passes, so that one we were torn from is not blamed on a record

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
        """One pass: what is ready and what is due again is handled once; then it ends. For cron.

        The handler is called with the record, a dict of all its columns; it returns (done) or raises (failed). One with
        a second parameter, `transaction`, is given the psycopg connection in which the row is locked: what it writes
        there and the new status are committed together.
        """
        self._check(handler)
        self._stop = threading.Event()
        limits = checked_limits(max_age, max_records, newest_first)
        with self._hands(concurrency) as hands:
            return self._pass(hands, handler, limits, progress)

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        max_age: Duration | None = None,
        newest_first: bool = False,
        progress: Callable[[PassReport], None] | None = None,
    ) -> PassReport:
        """Pass after pass, until SIGTERM, Ctrl-C or `stop()`: what has begun is finished. Answers the sum."""
        self._check(handler)
        self._stop = threading.Event()
        limits = checked_limits(max_age, AT_ONCE, newest_first)
        total = PassReport()
        with stopped_by_signals(self._stop):
            while not self._stop.is_set():
                try:
                    with self._hands(concurrency) as hands:
                        total = self._run(hands, handler, limits, total, progress)
                except Unavailable:
                    if not self._stop.is_set():
                        self._database.reconnect()
        return total

    def stop(self) -> None:
        """Ends `process` and `run`, from another thread or a signal: no record is begun any more."""
        self._stop.set()

    def status(self) -> BacklogStatus:
        """How it stands: counts by status, what is due, the oldest that waits, and the promise."""
        with self._database.session() as connection:
            return standing.look(connection, self.id, self.terms)

    def abandon(self) -> bool:
        """Forgets it. Nothing in the table is changed."""
        with self._database.session() as connection:
            row = connection.execute("select penstock.abandon(%s)", (self.name,)).fetchone()
        return bool(row and row[0])

    def _check(self, handler: Handler) -> None:
        if self.terms.mode == "observe":
            raise Conflict(
                f"{self.name} was adopted to be observed only", hint="Adopt it with another mode to drain it."
            )
        wanted_by(handler)

    @contextmanager
    def _hands(self, concurrency: int) -> Iterator[list[Connection]]:
        """The connections of a pass: one for each handler at a time, and one for what belongs to all."""
        validate.whole(concurrency, "concurrency", 1, 1000)
        with ExitStack() as stack:
            yield [stack.enter_context(self._database.session()) for _ in range(concurrency + 1)]

    def _pass(self, hands: list[Connection], handler: Handler, limits: Limits, progress: Progress | None) -> PassReport:
        keeper, *workers = hands
        began = time.monotonic()
        fresh = look_up(keeper, f"{self.terms.table.schema}.{self.terms.table.name}")
        check_readable(fresh)
        check_writable(fresh, [fresh.column(one.name, "column") for one in self.terms.written])
        with in_hand(keeper, workers[0], self.id, self._begun) as hand:
            mark = walk_from(keeper, self.id) if self.terms.by_ticks else None
            now = clock(keeper)
            oldest = None if limits.age is None else now - limits.age
            source = Source(
                self.terms, self.id, now, mark, limit=limits.records, oldest=oldest, newest_first=limits.newest_first
            )
            if self.terms.remembers:
                source.position, source.remembering = remembered(keeper, self.id)
            one = Pass(source, self.id, handler, stop=self._stop, progress=progress)
            try:
                if hand.careful:
                    self._carefully(one, workers[0], hand)
                one.drain(workers)
            finally:
                if not workers[0].closed and not workers[0].broken:
                    self._note_place(workers[0], source)
        more = source.cut or self._stop.is_set()
        report = self._report(keeper, source, one, time.monotonic() - began, more=more, alone=mark is not None)
        if report.handled:
            summary = report.to_json() | {"at": now, "rate": round(report.rate, 1)}
            keeper.execute("select penstock.note_pass(%s, %s::jsonb)", (self.id, as_json(summary)))
        return report

    def _carefully(self, one: Pass, worker: Connection, hand: Hand) -> None:
        """A pass before this one did not end: one of the records that come first may have ended it."""
        one.blame(worker, [*hand.blamed.values()])
        end(worker, *hand.lost)
        with self._database.session() as notes:
            one.drain_one_by_one(worker, lambda key: note_hand(notes, hand.id, key), CAREFUL)

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
            skipped=source.skipped,
            later=standing.count_again(connection, source.say),
            more=more,
            alone=alone or not self.terms.by_ticks,
            seconds=seconds,
            errors=dict(one.counts.errors),
            undeclared=standing.undeclared(connection, source.say),
        )

    def _run(
        self,
        hands: list[Connection],
        handler: Handler,
        limits: Limits,
        total: PassReport,
        progress: Callable[[PassReport], None] | None,
    ) -> PassReport:
        idle = 0
        while not self._stop.is_set():
            report = self._pass(hands, handler, limits, None)
            total = added(total, report)
            if progress is not None:
                progress(total)
            idle = 0 if report.handled else min(idle + 1, len(PAUSES))
            if not report.more or not report.handled:
                self._stop.wait(PAUSES[max(idle, 1) - 1])
        return total


def checked_limits(max_age: Duration | None, max_records: int | None, newest_first: bool) -> Limits:
    age = None if max_age is None else validate.positive(max_age, "max_age", most=LONGEST_AGE)
    most = None if max_records is None else validate.whole(max_records, "max_records", 1, 2**31)
    return Limits(age, most, bool(newest_first))


def added(total: PassReport, one: PassReport) -> PassReport:
    sums = {
        name: getattr(total, name) + getattr(one, name) for name in ("done", "failed", "dead", "changed", "skipped")
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
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C, while it runs in the main thread; elsewhere they are somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# --- ours of it -------------------------------------------------------------------------------------------------------

KNOWN = """
    select a.id, a.name, a.schema_name, a.table_name, a.mode, a.terms, a.retry, a.max_attempts, a.sla
    from penstock.adopted as a
"""


@contextmanager
def session(dsn: str, source: str) -> Iterator[tuple[Database, Connection]]:
    database = Database(dsn, source=source)
    with database.session() as connection:
        check_contract(connection.execute(CONTRACT).fetchone())
        yield database, connection


def adopt(dsn: str, source: str, table: str, **terms: Any) -> Backlog:
    """Agrees on the terms and notes them; if they are noted already, nothing is written."""
    with session(dsn, source) as (database, connection):
        found = look_up(connection, table)
        check_readable(found)
        agreement = agreed.agree(connection, found, **terms)
        if agreement.mode != "observe":
            check_writable(found, agreement.written)
        return Backlog(database, note(connection, agreement), agreement)


def note(connection: Connection, terms: Terms) -> int:
    wanted = (terms.table.schema, terms.table.name, terms.mode, terms.to_json(), terms.strategy.to_json())
    row = connection.execute(KNOWN + "where a.name = %s", (terms.name,)).fetchone()
    if row is not None and row[2:] == (*wanted, terms.max_attempts, terms.sla):
        return int(row[0])
    schema, table, mode, told, strategy = wanted
    row = connection.execute(
        "select penstock.adopt(%s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s)",
        (terms.name, schema, table, mode, as_json(told), as_json(strategy), terms.max_attempts, terms.sla),
    ).fetchone()
    assert row is not None
    return int(row[0])


def load(dsn: str, source: str, name: str) -> Backlog:
    """One that was adopted before, by its name or its table's."""
    with session(dsn, source) as (database, connection):
        found = [
            row
            for row in connection.execute(KNOWN + "order by a.name").fetchall()
            if name in (row[1], row[3], f"{row[2]}.{row[3]}")
        ]
        exact = [row for row in found if row[1] == name] or found
        if len(exact) != 1:
            why = "is not adopted" if not exact else f"is adopted as {', '.join(row[1] for row in exact)}"
            hint = "`penstock adopt TABLE --apply` does it; `penstock backlog status` lists them."
            raise NotFound(f"{shown(name)} {why}", hint=hint)
        return restored(database, connection, exact[0])


def every(dsn: str, source: str) -> list[Backlog]:
    with session(dsn, source) as (database, connection):
        rows = connection.execute(KNOWN + "order by a.name").fetchall()
        return [restored(database, connection, row) for row in rows]


def restored(database: Database, connection: Connection, row: Sequence[Any]) -> Backlog:
    adopted, name, schema, table, mode, told, retry, max_attempts, sla = row
    found = look_up(connection, f"{schema}.{table}")
    stored = {**told, "name": name, "mode": mode, "max_attempts": max_attempts, "sla": sla}
    terms = agreed.agree(connection, found, **stored, strategy=strategies.from_json(retry))
    return Backlog(database, adopted, terms)


__all__ = ["Backlog", "PassReport", "Status", "Strategy", "adopt", "every", "load"]
