"""One pass over an adopted table: it locks records, handles them and writes their new status. The failure of one record
does not affect the others."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import pq

from penstock.backlog import failures
from penstock.backlog.claim import Key, LockedRecord
from penstock.backlog.crash_marker import EndedItsProcess
from penstock.backlog.settling import SAVEPOINT, Failure, ResultWriter, SettledBatch
from penstock.backlog.source import ClaimedBatch, Source, note_mark
from penstock.backlog.terms import Terms
from penstock.client.connections import Connection, reset_factories, rollback
from penstock.client.sqlstate import translate_errors
from penstock.errors import HandlerMisuse, ValidationError, shown
from penstock.handlers.tracebacks import SUMMARY, summarize

RecordHandler = Callable[..., Any]
"""Handles one record of an adopted table, which it gets as a dict. A parameter `transaction` gets the
connection that holds the row."""
PassProgress = Callable[["PassCounts"], None]
"""Is told the counts of a pass while it runs."""

# Small records share a transaction of about this many seconds; slow ones have their own.
BATCH_SECONDS = 0.05
MAX_BATCH = 500
MARK_EVERY = 1.0  # seconds
MAX_LOGGED = 100  # failures of a pass, with one line each
MAX_LOGGED_KEY = 200

LOG = logging.getLogger("penstock.backlog")


@dataclass(slots=True)
class PassCounts:
    """The records of a pass so far, by their result."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    changed: int = 0
    unwritten: int = 0  # of those that failed
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def handled(self) -> int:
        """The number of records that were handled, whatever their result."""
        return self.done + self.failed + self.dead + self.changed


def check_handler(handler: RecordHandler) -> str:
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
        self,
        source: Source,
        adopted: int,
        handler: RecordHandler,
        *,
        stop: threading.Event,
        progress: PassProgress | None = None,
        noted: Collection[Key] = (),
        tracebacks: bool = True,
    ) -> None:
        self.source = source
        self.terms: Terms = source.terms
        self.counts = PassCounts()
        self.unwritten: set[Key] = set()
        self._writer = ResultWriter(source, adopted, noted, tracebacks=tracebacks)
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
            with translate_errors():
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
        with translate_errors():
            while self.counts.handled < most and not self._is_over:
                batch = self._begin(connection, 1)
                if batch is None:
                    return
                note(batch.taken[0].key)
                self._handle_batch(connection, batch.taken)
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
            with translate_errors():
                self._work(connection, None)
        except BaseException as error:  # noqa: BLE001 - raised where the pass was called
            self._error = self._error or error

    @property
    def _is_over(self) -> bool:
        """True if the pass was stopped, or one of its threads failed."""
        return self._stop.is_set() or self._error is not None

    def _work(self, connection: Connection, batch: ClaimedBatch | None) -> None:
        size = 1
        while not self._is_over:
            batch = batch or self._begin(connection, size if self._call == "record" else 1)
            if batch is None:
                return
            began = time.monotonic()
            while batch.taken:
                rest = self._handle_batch(connection, batch.taken)
                batch.taken = self._lock_again(connection, rest) if rest and not self._is_over else []
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

    def _lock_again(self, connection: Connection, rest: list[LockedRecord]) -> list[LockedRecord]:
        """Locks the rest of a batch that took longer than expected. Records that have changed meanwhile are left
        out."""
        connection.execute("begin isolation level read committed")
        claimed = {one.key: one.claimed for one in rest}
        found = [one for one in self.source.lock(connection, [*claimed]) if one.claimed == claimed[one.key]]
        if not found:
            connection.execute("commit")
        return found

    def _handle_batch(self, connection: Connection, taken: list[LockedRecord]) -> list[LockedRecord]:
        """Handles and settles locked records in their transaction. Returns those for which there was no time."""
        done: list[LockedRecord] = []
        failed: list[Failure] = []
        until = time.monotonic() + 2 * BATCH_SECONDS
        try:
            if self._call != "record":
                connection.execute(SAVEPOINT)  # undoes what the handler wrote if the status cannot be written
            for one in taken:
                if self._is_over or (time.monotonic() > until and (done or failed)):
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
            reset_factories(connection)
            if connection.info.transaction_status != pq.TransactionStatus.INTRANS:
                rollback(connection)
                connection.execute("begin isolation level read committed")
                connection.execute(SAVEPOINT)
                raise HandlerMisuse(MISUSED, hint=LEAVE_IT)

    # --- settling -------------------------------------------------------------------------------------------------

    def _settle(self, connection: Connection, done: list[LockedRecord], failed: list[Failure]) -> None:
        """Writes the new statuses and commits. The transaction already has a savepoint."""
        try:
            settled = self._writer.write(connection, done, failed)
            connection.execute("commit")
        except BaseException:
            rollback(connection)
            raise
        with self._lock:
            for name in ("done", "failed", "dead", "changed", "unwritten"):
                setattr(self.counts, name, getattr(self.counts, name) + settled.counts[name])
            self.counts.errors.update(failures.read_class(one.error) for one in settled.failed)
            self.unwritten |= settled.unwritten
            self._writer.noted.difference_update(one.key for one in settled.done)
            self._writer.noted.update(one.taken.key for one in settled.failed)
            self._log(settled)
            if self._progress is not None:
                self._progress(self.counts)

    def _log(self, settled: SettledBatch) -> None:
        """Logs a line for each failure, up to a limit. Only a terminal shows the message of an error, which may contain
        data."""
        for one in settled.failed:
            self._failures += 1
            if self._failures <= MAX_LOGGED:
                key, name = ", ".join(one.taken.key)[:MAX_LOGGED_KEY], failures.read_class(one.error)
                message = summarize(failures.read_error(one.error, keep_traceback=False))
                shown_message = None if message in (None, name) else f"({message})"
                LOG.warning("record %s of %s failed: %s", key, self.terms.name, name, extra={SUMMARY: shown_message})

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


def choose_size(size: int, took: float) -> int:
    """Returns how many records are handled in about BATCH_SECONDS seconds."""
    wanted = size * BATCH_SECONDS / max(took, 1e-6)
    return max(1, min(MAX_BATCH, size * 4, int(wanted)))
