"""One pass over an adopted table: it locks records, handles them and writes their new status. The failure of one record
does not affect the others."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import pq

from penstock.backlog import failures, ticks
from penstock.backlog.claim import Key, LockedRecord, to_arrays
from penstock.backlog.crash_marker import EndedItsProcess
from penstock.backlog.failures import SharedKey, StatusNotWritten
from penstock.backlog.source import ClaimedBatch, Source, to_json
from penstock.backlog.terms import Terms
from penstock.client.database import Connection, as_before, rollback
from penstock.client.sqlstate import translated
from penstock.errors import HandlerMisuse, ValidationError, shown

Handler = Callable[..., Any]
Progress = Callable[["Counts"], None]

# Small records share a transaction of about this many seconds; slow ones have their own.
BATCH_SECONDS = 0.05
MAX_BATCH = 500
MARK_EVERY = 1.0  # seconds
MAX_LOGGED = 100  # failures of a pass, with one line each
MAX_LOGGED_KEY = 200

LOG = logging.getLogger("penstock.backlog")
SAVEPOINT = "savepoint penstock_settle"
UNDO = "rollback to savepoint penstock_settle"
# Checks deferred constraints now, while the transaction can still go back to the savepoint.
CHECK = f"set constraints all immediate; release {SAVEPOINT}; {SAVEPOINT}"
# SQLSTATE classes that are not about a record: connection, read-only, resources, shutdown, disk.
SERVER_ERRORS = ("08", "25", "53", "57", "58")
CANCELLED = "57014"  # statement_timeout, perhaps in a trigger


@dataclass(slots=True)
class Counts:
    """The records of a pass so far, by their result."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    changed: int = 0
    unwritten: int = 0  # of those that failed
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def handled(self) -> int:
        return self.done + self.failed + self.dead + self.changed


class Failure(NamedTuple):
    """A record that failed, and its error."""

    taken: LockedRecord
    error: BaseException


@dataclass(slots=True)
class SettledBatch:
    """The result of a batch."""

    done: list[LockedRecord] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    given_up: set[Key] = field(default_factory=set)
    unwritten: set[Key] = field(default_factory=set)  # their status has not changed
    counts: Counter[str] = field(default_factory=Counter)
    now: datetime | None = None


def check_handler(handler: Handler) -> str:
    """Returns how a handler is called: with the record, or also with the connection that holds its row. Raises
    ValidationError if it cannot be called so."""
    if not callable(handler):
        raise ValidationError(f"handler: {shown(handler)} cannot be called", field="handler")
    if inspect.iscoroutinefunction(handler):
        raise ValidationError(
            "handler: an async function cannot handle adopted records",
            hint="Write a sync one; threads run it (concurrency=).",
            field="handler",
        )
    try:
        parameters = [*inspect.signature(handler).parameters.values()]
    except (TypeError, ValueError):
        return "record"  # a builtin
    placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    variadic = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not placed and not variadic:
        raise ValidationError("handler: it takes no record", hint="def handle(record): …", field="handler")
    named = [one.name for one in parameters if one.name == "transaction"]
    required = [one for one in placed[1:] if one.default is one.empty]
    if named:
        return "keyword"
    if len(required) > 1:
        raise ValidationError(
            f"handler: it takes {len(required) + 1} arguments",
            hint="def handle(record), or def handle(record, transaction).",
            field="handler",
        )
    return "both" if required else "record"


class Pass:
    """Runs one pass. Each of its threads has a connection of its own."""

    def __init__(
        self, source: Source, adopted: int, handler: Handler, *, stop: threading.Event, progress: Progress | None = None
    ) -> None:
        self.source = source
        self.terms: Terms = source.terms
        self.counts = Counts()
        self.unwritten: set[Key] = set()
        self.noted: set[Key] = set()  # records whose failure is noted
        self._adopted = adopted
        self._handler = handler
        self._call = check_handler(handler)
        self._stop = stop
        self._progress = progress
        self._lock = threading.Lock()
        self._marked = time.monotonic()
        self._error: BaseException | None = None
        self._failures = 0

    def drain(self, connections: Sequence[Connection]) -> None:
        """Handles records until none is left or the pass is stopped. The calling thread uses the first connection."""
        threads = [
            threading.Thread(target=self._work_in_thread, args=(connection,), daemon=True)
            for connection in connections[1:]
        ]
        first = self._begin(connections[0], 1)
        if first is None:
            return
        for thread in threads:
            thread.start()
        try:
            with translated():
                self._work(connections[0], first)
        except BaseException as error:
            self._error = error
            raise
        finally:
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def drain_one_by_one(self, connection: Connection, note: Callable[[Key], None], most: int) -> None:
        """Handles at most `most` records with one connection. Each is noted before it is handled."""
        with translated():
            while self.counts.handled < most and not self._over:
                batch = self._begin(connection, 1)
                if batch is None:
                    return
                note(batch.taken[0].key)
                self._through(connection, batch.taken)
                self.source.finish(batch)

    def blame(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Settles records that ended their process as failed. A record that another session still holds is left for
        later."""
        if not keys:
            return
        connection.execute("begin isolation level read committed")
        taken = self.source.lock(connection, [*keys])
        connection.execute(SAVEPOINT)
        self._settle(connection, [], [Failure(one, EndedItsProcess("its handler ended the process")) for one in taken])

    def _work_in_thread(self, connection: Connection) -> None:
        try:
            with translated():
                self._work(connection, None)
        except BaseException as error:  # noqa: BLE001 - raised where the pass was called
            self._error = self._error or error

    @property
    def _over(self) -> bool:
        """True if the pass was stopped, or one of its threads failed."""
        return self._stop.is_set() or self._error is not None

    def _work(self, connection: Connection, batch: ClaimedBatch | None) -> None:
        size = 1
        while not self._over:
            batch = batch or self._begin(connection, size if self._call == "record" else 1)
            if batch is None:
                return
            began = time.monotonic()
            while batch.taken:
                rest = self._through(connection, batch.taken)
                batch.taken = self._begin_again(connection, rest) if rest and not self._over else []
            self.source.finish(batch)
            self._move_mark(connection)
            size, batch = choose_size(size, time.monotonic() - began), None

    def _begin(self, connection: Connection, size: int) -> ClaimedBatch | None:
        connection.execute("begin isolation level read committed")
        try:
            batch = self.source.take(connection, size)
        except BaseException:
            rollback(connection)
            raise
        if batch is None:
            connection.execute("commit")  # keeps what `take` has removed from the sidecar
        return batch

    def _begin_again(self, connection: Connection, rest: list[LockedRecord]) -> list[LockedRecord]:
        """Locks the rest of a batch that took longer than expected. Records that have changed meanwhile are left
        out."""
        connection.execute("begin isolation level read committed")
        claimed = {one.key: one.claimed for one in rest}
        found = [one for one in self.source.lock(connection, [*claimed]) if one.claimed == claimed[one.key]]
        if not found:
            connection.execute("commit")
        return found

    def _through(self, connection: Connection, taken: list[LockedRecord]) -> list[LockedRecord]:
        """Handles and settles locked records in their transaction. Returns those for which there was no time."""
        done: list[LockedRecord] = []
        failed: list[Failure] = []
        until = time.monotonic() + 2 * BATCH_SECONDS
        try:
            if self._call != "record":
                connection.execute(SAVEPOINT)  # undoes what the handler wrote if the status cannot be written
            for one in taken:
                if self._over or (time.monotonic() > until and (done or failed)):
                    break
                error = self._handle(connection, one)
                if error is None:
                    done.append(one)
                else:
                    failed.append(Failure(one, error))
            if self._call == "record":
                connection.execute(SAVEPOINT)
        except (SystemExit, KeyboardInterrupt):
            if self._call == "record":
                connection.execute(SAVEPOINT)
            self._settle(connection, done, failed)
            raise
        except BaseException:
            rollback(connection)
            raise
        self._settle(connection, done, failed)
        return taken[len(done) + len(failed) :]

    # --- one record -----------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, taken: LockedRecord) -> Exception | None:
        """Handles one record. Returns its error."""
        try:
            if self._call == "record":
                self._handler(taken.record)
            else:
                self._handle_inside(connection, taken)
        except Exception as error:  # noqa: BLE001 - any error of the handler
            return error
        return None

    def _handle_inside(self, connection: Connection, taken: LockedRecord) -> None:
        """Calls a handler with the connection. What it writes is undone if it fails, and committed with the status if
        not."""
        try:
            with connection.transaction():
                if self._call == "keyword":
                    self._handler(taken.record, transaction=connection)
                else:
                    self._handler(taken.record, connection)
                if not connection.closed and connection.info.transaction_status == pq.TransactionStatus.INTRANS:
                    connection.execute("set constraints all immediate")  # otherwise the commit would fail
        finally:
            if connection.closed:
                raise HandlerMisuse(MISUSED, hint=LEAVE_IT)
            as_before(connection)
            if connection.info.transaction_status != pq.TransactionStatus.INTRANS:
                rollback(connection)
                connection.execute("begin isolation level read committed")
                connection.execute(SAVEPOINT)
                raise HandlerMisuse(MISUSED, hint=LEAVE_IT)

    # --- settling -------------------------------------------------------------------------------------------------

    def _settle(self, connection: Connection, done: list[LockedRecord], failed: list[Failure]) -> None:
        """Writes the new statuses and commits. The transaction already has a savepoint."""
        try:
            settled = self._write(connection, done, failed)
            self._note(connection, settled)
            connection.execute("commit")
        except BaseException:
            rollback(connection)
            raise
        with self._lock:
            for name in ("done", "failed", "dead", "changed", "unwritten"):
                setattr(self.counts, name, getattr(self.counts, name) + settled.counts[name])
            self.counts.errors.update(failures.read_class(one.error) for one in settled.failed)
            self.unwritten |= settled.unwritten
            self.noted.difference_update(one.key for one in settled.done)
            self.noted.update(one.taken.key for one in settled.failed)
            self._log(settled)
            if self._progress is not None:
                self._progress(self.counts)

    def _write(self, connection: Connection, done: list[LockedRecord], failed: list[Failure]) -> SettledBatch:
        """Writes the new statuses. A record whose done status is refused has failed; if the failed status is refused
        too, the record keeps the status it has."""
        settled = SettledBatch()
        refused = self._change(connection, "done", done, settled)
        settled.done = [one for one in done if one.key not in refused]
        settled.failed = [*failed, *(Failure(one, refused[one.key]) for one in done if one.key in refused)]
        if settled.failed:
            settled.now = read_clock(connection)
            self._write_failed(connection, settled, settled.now)
        if self.terms.remembers:
            self._remember(connection, settled)
        self.source.failed.update(one.taken.key for one in settled.failed)
        return settled

    def _write_failed(self, connection: Connection, settled: SettledBatch, now: datetime) -> None:
        settled.given_up = {one.taken.key for one in settled.failed if self._last_try(one.taken, now)}
        taken = [one.taken for one in settled.failed]
        refused = self._change(connection, "failed", [one for one in taken if one.key not in settled.given_up], settled)
        refused |= self._change(connection, "dead", [one for one in taken if one.key in settled.given_up], settled)
        settled.unwritten = {*refused}
        settled.given_up -= settled.unwritten
        for name in ("failed", "unwritten"):
            settled.counts[name] += sum(one.key in refused for one in taken)
        settled.failed = [
            one._replace(error=join_errors(refused[one.taken.key], one.error)) if one.taken.key in refused else one
            for one in settled.failed
        ]

    def _change(
        self, connection: Connection, word: str, taken: list[LockedRecord], settled: SettledBatch
    ) -> dict[Key, StatusNotWritten]:
        """Writes the new status. Returns the records that cannot have it, and why; they are found by bisection."""
        if not taken:
            return {}
        status = {"done": self.terms.done, "failed": self.terms.failed, "dead": self.terms.dead or self.terms.failed}
        try:
            written = self._change_all(connection, str(status[word]), taken, failure=word != "done")
            connection.execute(CHECK)
        except (psycopg.Error, SharedKey) as error:
            if not is_record_error(connection, error):
                raise
            connection.execute(UNDO)
            if len(taken) == 1:
                return {taken[0].key: self._not_written(str(status[word]), error)}
        else:
            settled.counts[word] += written
            settled.counts["changed"] += len(taken) - written
            return {}
        half = len(taken) // 2
        parts = (taken[:half], taken[half:])
        return {key: why for part in parts for key, why in self._change(connection, word, part, settled).items()}

    def _change_all(self, connection: Connection, status: str, taken: list[LockedRecord], *, failure: bool) -> int:
        """Returns how many rows got the status. A row that the handler changed or deleted itself is left as it is."""
        written = 0
        for claimed in {one.claimed for one in taken}:
            keys = [one.key for one in taken if one.claimed == claimed]
            statement = self.source.say.settle(status, failure=failure)
            count = connection.execute(statement, (*to_arrays(keys, len(self.terms.key)), claimed)).rowcount
            if count > len(keys):
                raise SharedKey(f"{count - len(keys) + 1} records have the same key")
            written += count
        return written

    def _not_written(self, status: str, error: Exception) -> StatusNotWritten:
        """Returns an error that names the status and the column, with PostgreSQL's message."""
        said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        place = f"column {self.terms.status.name} of table {self.terms.table}"
        return StatusNotWritten(f"status {shown(status)} could not be written to {place}: {said or error}")

    def _last_try(self, taken: LockedRecord, now: datetime) -> bool:
        if self.terms.failed is None:
            return True
        if self.terms.by_ticks:
            counted = self.terms.max_attempts is not None and taken.failures + 1 >= self.terms.max_attempts
            return (
                counted or not isinstance(taken.since, datetime) or ticks.has_ended(self.terms.rungs, taken.since, now)
            )
        return self.terms.waits.after(taken.failures + 1) is None

    def _remember(self, connection: Connection, settled: SettledBatch) -> None:
        over = [list(one.key) for one in settled.done if one.remembered]
        if over:
            connection.execute("select penstock.forget_records(%s, %s::jsonb)", (self._adopted, to_json(over)))
        notes = []
        for one in settled.failed:
            key, failed = one.taken.key, one.taken.failures + 1
            if key in settled.unwritten and one.taken.claimed in self.terms.ready:
                continue  # it is as ready as before
            wait = None if key in settled.given_up else self.terms.waits.after(failed)
            due = None if wait is None or settled.now is None else settled.now + wait
            notes.append({"key": key, "failures": failed, "due": due, "error": failures.describe(one.error)})
        if notes:
            self._note_apart(connection, "select penstock.note_records(%s, %s::jsonb)", to_json(notes))

    def _note(self, connection: Connection, settled: SettledBatch) -> None:
        """Stores why records failed. It must be the last statement of the transaction: see `note_failures`."""
        over = [one.key for one in settled.done if one.key in self.noted or one.claimed in self.terms.retry]
        if not over and not settled.failed:
            return
        notes = [
            {
                "key": one.taken.key,
                "error_class": failures.read_class(one.error),
                "message": failures.read_message(one.error),
                "dead": one.taken.key in settled.given_up,
                "unwritten": one.taken.key in settled.unwritten,
            }
            for one in settled.failed
        ]
        self._note_apart(connection, failures.NOTE, to_json(notes), to_json(over))

    def _note_apart(self, connection: Connection, statement: str, *told: str) -> None:
        """Stores a note in a savepoint: one that is refused (its key may be too long for an index) ends no pass."""
        connection.execute(SAVEPOINT)
        try:
            connection.execute(statement.encode(), (self._adopted, *told))
        except psycopg.Error as error:
            if not is_record_error(connection, error):
                raise
            connection.execute(UNDO)
            LOG.warning("failures of %s are not noted: %s", self.terms.name, error.diag.message_primary)

    def _log(self, settled: SettledBatch) -> None:
        """Logs a line for each failure, up to a limit. The message of an error is left out: it may contain data."""
        for one in settled.failed:
            self._failures += 1
            if self._failures <= MAX_LOGGED:
                key, name = ", ".join(one.taken.key)[:MAX_LOGGED_KEY], failures.read_class(one.error)
                LOG.warning("record %s of %s failed: %s", key, self.terms.name, name)

    def log_rest(self) -> None:
        """Logs at the end of a pass how many failures had no line."""
        if self._failures > MAX_LOGGED:
            LOG.warning("%s more records of %s failed", self._failures - MAX_LOGGED, self.terms.name)

    def _move_mark(self, connection: Connection) -> None:
        if self.terms.by_ticks and time.monotonic() - self._marked > MARK_EVERY:
            with self._lock:
                self._marked = time.monotonic()
                note_mark(connection, self._adopted, self.source.walk.mark)


MISUSED = "the handler closed the connection it was lent, or ended its transaction"
LEAVE_IT = "Leave it open: it is committed, with the status, afterwards."


def note_mark(connection: Connection, adopted: int, mark: ticks.Mark | None) -> None:
    if mark is not None:
        key = None if mark.key is None else list(mark.key)
        connection.execute("select penstock.mark_adopted(%s, %s, %s)", (adopted, mark.tick, key))


def read_clock(connection: Connection) -> datetime:
    row = connection.execute("select penstock.clock()").fetchone()
    assert row is not None
    return row[0]  # type: ignore[no-any-return]


def choose_size(size: int, took: float) -> int:
    """Returns how many records are handled in about BATCH_SECONDS seconds."""
    wanted = size * BATCH_SECONDS / max(took, 1e-6)
    return max(1, min(MAX_BATCH, size * 4, int(wanted)))


def is_record_error(connection: Connection, error: Exception) -> bool:
    """Returns whether an error can belong to a single record, rather than to the connection or the server."""
    if connection.closed or connection.broken:
        return False
    if not isinstance(error, psycopg.Error):
        return True
    state = error.sqlstate
    return state is not None and (state[:2] not in SERVER_ERRORS or state == CANCELLED)


def join_errors(refusal: StatusNotWritten, error: BaseException) -> BaseException:
    """Combines why a status could not be written with why the record failed before."""
    if isinstance(error, StatusNotWritten):
        return StatusNotWritten(f"{failures.read_message(error)}; {failures.read_message(refusal)}")
    return StatusNotWritten(f"{failures.read_message(refusal)}; its handler raised {failures.describe(error)}")
