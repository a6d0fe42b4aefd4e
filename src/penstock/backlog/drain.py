"""One pass over an adopted table: take, handle, say what became of each. One record's failure is its own."""

from __future__ import annotations

import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import pq

from penstock.backlog import ticks
from penstock.backlog.claim import Key, Taken, arrays
from penstock.backlog.hand import EndedItsProcess
from penstock.backlog.source import Batch, Source, as_json
from penstock.backlog.terms import Terms
from penstock.database import Connection, as_before, rollback
from penstock.errors import HandlerMisuse, ValidationError, shown
from penstock.statements import storable
from penstock.wire import translated

Handler = Callable[..., Any]
Progress = Callable[["Counts"], None]

# Tiny records share a transaction, of about so many seconds; slow ones have their own.
TOGETHER = 0.05
LARGEST_BATCH = 500
MARK_EVERY = 1.0  # seconds
LONGEST_ERROR = 6000


@dataclass(slots=True)
class Counts:
    """What became of the records of a pass, so far."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    changed: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def handled(self) -> int:
        return self.done + self.failed + self.dead + self.changed


class Failure(NamedTuple):
    taken: Taken
    error: BaseException


def wanted_by(handler: Handler) -> str:
    """How a handler is called: with the record, or with the connection that holds its row too."""
    if not callable(handler):
        raise ValidationError(f"handler: {shown(handler)} can not be called", field="handler")
    if inspect.iscoroutinefunction(handler):
        raise ValidationError(
            "handler: an async function can not handle adopted records",
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
    """The hands of one pass: each thread has a connection of its own."""

    def __init__(
        self, source: Source, adopted: int, handler: Handler, *, stop: threading.Event, progress: Progress | None = None
    ) -> None:
        self.source = source
        self.terms: Terms = source.terms
        self.counts = Counts()
        self._adopted = adopted
        self._handler = handler
        self._call = wanted_by(handler)
        self._stop = stop
        self._progress = progress
        self._lock = threading.Lock()
        self._marked = time.monotonic()
        self._error: BaseException | None = None

    def drain(self, hands: Sequence[Connection]) -> None:
        """Until nothing is left, or somebody says stop. The calling thread is the first hand."""
        threads = [threading.Thread(target=self._work_aside, args=(hand,), daemon=True) for hand in hands[1:]]
        first = self._begin(hands[0], 1)
        if first is None:
            return
        for thread in threads:
            thread.start()
        try:
            with translated():
                self._work(hands[0], first)
        except BaseException as error:
            self._error = error
            raise
        finally:
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def drain_one_by_one(self, hand: Connection, note: Callable[[Key], None], most: int) -> None:
        """The same, with one hand, for so many records; each is noted before it is handled."""
        with translated():
            while self.counts.handled < most and not self._over:
                batch = self._begin(hand, 1)
                if batch is None:
                    return
                note(batch.taken[0].key)
                self._through(hand, batch.taken)
                self.source.finish(batch)

    def blame(self, hand: Connection, keys: Sequence[Key]) -> None:
        """These ended the processes that handled them. One that somebody still holds is met again."""
        if not keys:
            return
        hand.execute("begin isolation level read committed")
        taken = self.source.lock(hand, [*keys])
        self._settle(hand, [], [Failure(one, EndedItsProcess("its handler ended the process")) for one in taken])

    def _work_aside(self, connection: Connection) -> None:
        try:
            with translated():
                self._work(connection, None)
        except BaseException as error:  # noqa: BLE001 - raised where the pass was called
            self._error = self._error or error

    @property
    def _over(self) -> bool:
        """Somebody said stop, or a thread of this pass came to grief."""
        return self._stop.is_set() or self._error is not None

    def _work(self, connection: Connection, batch: Batch | None) -> None:
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
            size, batch = paced(size, time.monotonic() - began), None

    def _begin(self, connection: Connection, size: int) -> Batch | None:
        connection.execute("begin isolation level read committed")
        try:
            batch = self.source.take(connection, size)
        except BaseException:
            rollback(connection)
            raise
        if batch is None:
            connection.execute("commit")  # what was forgotten stays forgotten
        return batch

    def _begin_again(self, connection: Connection, rest: list[Taken]) -> list[Taken]:
        """The rest of a batch that took longer than was thought: locked anew, as far as it is still as it was."""
        connection.execute("begin isolation level read committed")
        claimed = {one.key: one.claimed for one in rest}
        found = [one for one in self.source.lock(connection, [*claimed]) if one.claimed == claimed[one.key]]
        if not found:
            connection.execute("commit")
        return found

    def _through(self, connection: Connection, taken: list[Taken]) -> list[Taken]:
        """Handles and settles what is locked, in its transaction; answers what there was no time for."""
        done: list[Taken] = []
        failed: list[Failure] = []
        until = time.monotonic() + 2 * TOGETHER
        try:
            for one in taken:
                if self._over or (time.monotonic() > until and (done or failed)):
                    break
                error = self._handle(connection, one)
                if error is None:
                    done.append(one)
                else:
                    failed.append(Failure(one, error))
        except (SystemExit, KeyboardInterrupt):
            self._settle(connection, done, failed)
            raise
        except BaseException:
            rollback(connection)
            raise
        self._settle(connection, done, failed)
        return taken[len(done) + len(failed) :]

    # --- one record -----------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, taken: Taken) -> Exception | None:
        """What went wrong with it."""
        try:
            if self._call == "record":
                self._handler(taken.record)
            else:
                self._handle_inside(connection, taken)
        except Exception as error:  # noqa: BLE001 - its own, whatever it is
            return error
        return None

    def _handle_inside(self, connection: Connection, taken: Taken) -> None:
        """What the handler writes is undone if it fails, and committed with the status if not."""
        try:
            with connection.transaction():
                if self._call == "keyword":
                    self._handler(taken.record, transaction=connection)
                else:
                    self._handler(taken.record, connection)
        finally:
            if connection.closed:
                raise HandlerMisuse(MISUSED, hint=LEAVE_IT)
            as_before(connection)
            if connection.info.transaction_status != pq.TransactionStatus.INTRANS:
                rollback(connection)
                connection.execute("begin isolation level read committed")
                raise HandlerMisuse(MISUSED, hint=LEAVE_IT)

    # --- what became of them --------------------------------------------------------------------------------------

    def _settle(self, connection: Connection, done: list[Taken], failed: list[Failure]) -> None:
        try:
            counts = self._write(connection, done, failed)
            connection.execute("commit")
        except BaseException:
            rollback(connection)
            raise
        with self._lock:
            for name in ("done", "failed", "dead", "changed"):
                setattr(self.counts, name, getattr(self.counts, name) + counts[name])
            self.counts.errors.update(type(one.error).__name__ for one in failed)
            if self._progress is not None:
                self._progress(self.counts)

    def _write(self, connection: Connection, done: list[Taken], failed: list[Failure]) -> Counter[str]:
        counts: Counter[str] = Counter()
        now = clock(connection) if failed else None
        given_up = {one.taken.key for one in failed if now is not None and self._last_try(one.taken, now)}
        groups = {
            "done": done,
            "failed": [one.taken for one in failed if one.taken.key not in given_up],
            "dead": [one.taken for one in failed if one.taken.key in given_up],
        }
        for word, taken in groups.items():
            written = self._change(connection, word, taken)
            counts[word] += written
            counts["changed"] += len(taken) - written
        if self.terms.remembers:
            self._remember(connection, done, failed, given_up, now)
        if self.terms.by_ticks:
            self.source.failed.update(one.taken.key for one in failed)
        return counts

    def _last_try(self, taken: Taken, now: datetime) -> bool:
        if self.terms.failed is None:
            return True
        if self.terms.by_ticks:
            counted = self.terms.max_attempts is not None and taken.failures + 1 >= self.terms.max_attempts
            return counted or not isinstance(taken.since, datetime) or ticks.ended(self.terms.rungs, taken.since, now)
        return self.terms.waits.after(taken.failures + 1) is None

    def _change(self, connection: Connection, word: str, taken: list[Taken]) -> int:
        """The new status; answers how many got it. Whoever changed or deleted the row itself is right."""
        status = {"done": self.terms.done, "failed": self.terms.failed, "dead": self.terms.dead or self.terms.failed}
        written = 0
        for claimed in {one.claimed for one in taken}:
            keys = [one.key for one in taken if one.claimed == claimed]
            statement = self.source.say.settle(str(status[word]), failure=word != "done")
            written += connection.execute(statement, (*arrays(keys, len(self.terms.key)), claimed)).rowcount
        return written

    def _remember(
        self,
        connection: Connection,
        done: list[Taken],
        failed: list[Failure],
        given_up: set[Key],
        now: datetime | None,
    ) -> None:
        over = [list(one.key) for one in done if one.remembered]
        if over:
            connection.execute("select penstock.forget_records(%s, %s::jsonb)", (self._adopted, as_json(over)))
        if not failed or now is None:
            return
        notes = []
        for one in failed:
            failures = one.taken.failures + 1
            wait = None if one.taken.key in given_up else self.terms.waits.after(failures)
            due = None if wait is None else now + wait
            notes.append({"key": one.taken.key, "failures": failures, "due": due, "error": told(one.error)})
        connection.execute("select penstock.note_records(%s, %s::jsonb)", (self._adopted, as_json(notes)))

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


def clock(connection: Connection) -> datetime:
    row = connection.execute("select penstock.clock()").fetchone()
    assert row is not None
    return row[0]  # type: ignore[no-any-return]


def paced(size: int, took: float) -> int:
    """As many at once as are handled in about TOGETHER seconds."""
    wanted = size * TOGETHER / max(took, 1e-6)
    return max(1, min(LARGEST_BATCH, size * 4, int(wanted)))


def told(error: BaseException) -> str:
    """An error as we keep it. Somebody's may not even be able to say what it is."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - somebody else's
        text = type(error).__name__
    return (storable(text) or "")[:LONGEST_ERROR]
