"""Writes the results of a batch of records of an adopted table: their new statuses, what the sidecar remembers, and why
records failed. The failure of one record does not affect the others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import psycopg

from penstock.backlog import failures, ticks
from penstock.backlog.claim import Key, LockedRecord, to_arrays
from penstock.backlog.failures import SharedKey, StatusNotWritten
from penstock.backlog.source import Source, read_clock, to_json
from penstock.client.connections import Connection
from penstock.errors import shown

LOG = logging.getLogger("penstock.backlog")
SAVEPOINT = "savepoint penstock_settle"
UNDO = "rollback to savepoint penstock_settle"
# Checks deferred constraints now, while the transaction can still go back to the savepoint.
CHECK = f"set constraints all immediate; release {SAVEPOINT}; {SAVEPOINT}"
SERVER_LACKS = "53"  # the class of SQLSTATE for a full disk, no memory, too many connections


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


class ResultWriter:
    """Writes the results of the batches of one pass. `noted`: the records whose failure is stored."""

    def __init__(self, source: Source, adopted: int, noted: Collection[Key], *, tracebacks: bool) -> None:
        self.noted = {*noted}
        self._source = source
        self._terms = source.terms
        self._adopted = adopted
        self._tracebacks = tracebacks

    def write(self, connection: Connection, done: list[LockedRecord], failed: list[Failure]) -> SettledBatch:
        """Writes the new statuses, then why records failed. A record whose done status is refused has failed; if the
        failed status is refused too, the record keeps the status it has. The transaction must have a savepoint, and
        its next statement must be the commit: see `_note`."""
        settled = SettledBatch()
        refused = self._change_status(connection, "done", done, settled)
        settled.done = [one for one in done if one.key not in refused]
        settled.failed = [*failed, *(Failure(one, refused[one.key]) for one in done if one.key in refused)]
        if settled.failed:
            settled.now = read_clock(connection)
            self._write_failed(connection, settled, settled.now)
        if self._terms.remembers:
            self._remember(connection, settled)
        self._source.failed.update(one.taken.key for one in settled.failed)
        self._note(connection, settled)
        return settled

    def _write_failed(self, connection: Connection, settled: SettledBatch, now: datetime) -> None:
        settled.given_up = {one.taken.key for one in settled.failed if self._last_try(one.taken, now)}
        taken = [one.taken for one in settled.failed]
        refused = self._change_status(
            connection, "failed", [one for one in taken if one.key not in settled.given_up], settled
        )
        refused |= self._change_status(
            connection, "dead", [one for one in taken if one.key in settled.given_up], settled
        )
        settled.unwritten = {*refused}
        settled.given_up -= settled.unwritten
        for name in ("failed", "unwritten"):
            settled.counts[name] += sum(one.key in refused for one in taken)
        settled.failed = [
            one._replace(error=join_errors(refused[one.taken.key], one.error)) if one.taken.key in refused else one
            for one in settled.failed
        ]

    def _change_status(
        self, connection: Connection, word: str, taken: list[LockedRecord], settled: SettledBatch
    ) -> dict[Key, StatusNotWritten]:
        """Writes the new status. Returns the records that cannot have it, and why; they are found by bisection."""
        if not taken:
            return {}
        status = {
            "done": self._terms.done,
            "failed": self._terms.failed,
            "dead": self._terms.dead or self._terms.failed,
        }
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
        return {key: why for part in parts for key, why in self._change_status(connection, word, part, settled).items()}

    def _change_all(self, connection: Connection, status: str, taken: list[LockedRecord], *, failure: bool) -> int:
        """Returns how many rows got the status. A row that the handler changed or deleted itself is left as it is."""
        written = 0
        for claimed in {one.claimed for one in taken}:
            keys = [one.key for one in taken if one.claimed == claimed]
            statement = self._source.statements.settle(status, failure=failure)
            count = connection.execute(statement, (*to_arrays(keys, len(self._terms.key)), claimed)).rowcount
            if count > len(keys):
                raise SharedKey(f"{count - len(keys) + 1} records have the same key")
            written += count
        return written

    def _not_written(self, status: str, error: Exception) -> StatusNotWritten:
        """Returns an error that names the status and the column, with PostgreSQL's message."""
        said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        column = f"column {self._terms.status.name} of table {self._terms.table}"
        return StatusNotWritten(f"status {shown(status)} could not be written to {column}: {said or error}")

    def _last_try(self, taken: LockedRecord, now: datetime) -> bool:
        if self._terms.failed is None:
            return True
        if self._terms.by_ticks:
            counted = self._terms.max_attempts is not None and taken.failures + 1 >= self._terms.max_attempts
            return (
                counted or not isinstance(taken.since, datetime) or ticks.has_ended(self._terms.rungs, taken.since, now)
            )
        return self._terms.waits.after(taken.failures + 1) is None

    def _remember(self, connection: Connection, settled: SettledBatch) -> None:
        over = [list(one.key) for one in settled.done if one.remembered]
        if over:
            connection.execute("select penstock.forget_records(%s, %s::jsonb)", (self._adopted, to_json(over)))
        notes = []
        for one in settled.failed:
            key, failed = one.taken.key, one.taken.failures + 1
            if key in settled.unwritten and one.taken.claimed in self._terms.ready:
                continue  # it is as ready as before
            wait = None if key in settled.given_up else self._terms.waits.after(failed)
            due = None if wait is None or settled.now is None else settled.now + wait
            notes.append({"key": key, "failures": failed, "due": due, "error": failures.describe(one.error)})
        if notes:
            self._note_apart(connection, "select penstock.note_records(%s, %s::jsonb)", to_json(notes))

    def _note(self, connection: Connection, settled: SettledBatch) -> None:
        """Stores why records failed. It must be the last statement of the transaction: see `note_failures`."""
        over = [one.key for one in settled.done if one.key in self.noted or one.claimed in self._terms.retry]
        if not over and not settled.failed:
            return
        notes = [
            {
                "key": one.taken.key,
                "error_class": failures.read_class(one.error),
                "error": failures.read_error(one.error, keep_traceback=self._tracebacks),
                "dead": one.taken.key in settled.given_up,
                "unwritten": one.taken.key in settled.unwritten,
            }
            for one in settled.failed
        ]
        self._note_apart(connection, failures.NOTE, to_json(notes), to_json(over))

    def _note_apart(self, connection: Connection, statement: str, *parameters: str) -> None:
        """Stores a note in a savepoint: one that is refused (its key may be too long for an index) ends no pass."""
        connection.execute(SAVEPOINT)
        try:
            connection.execute(statement.encode(), (self._adopted, *parameters))
        except psycopg.Error as error:
            if not is_record_error(connection, error):
                raise
            connection.execute(UNDO)
            LOG.warning("failures of %s are not noted: %s", self._terms.name, error.diag.message_primary)


def is_record_error(connection: Connection, error: Exception) -> bool:
    """Returns whether an error can belong to a single record, rather than to the connection or the server.

    The connection says whether it is lost, not the SQLSTATE: a trigger can raise any, for example "could not connect"
    of another server. If the connection ends only now, going back to the savepoint fails."""
    if connection.closed or connection.broken:
        return False
    if not isinstance(error, psycopg.Error):
        return True
    state = error.sqlstate
    return state is not None and not state.startswith(SERVER_LACKS)


def join_errors(refusal: StatusNotWritten, error: BaseException) -> BaseException:
    """Combines why a status could not be written with why the record failed before."""
    if isinstance(error, StatusNotWritten):
        return StatusNotWritten(f"{error}; {refusal}")
    joined = StatusNotWritten(f"{refusal}; its handler raised {failures.describe(error)}")
    joined.__cause__ = error  # the traceback that is stored begins with the handler's
    return joined
