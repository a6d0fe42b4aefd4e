"""The context of a handler: its task, whether to go on, more time, and a transaction that settles the task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock import validate
from penstock.errors import HandlerMisuse, ValidationError, shown
from penstock.handlers.notes import Notes, check_part, check_text
from penstock.handlers.tracebacks import error_text
from penstock.model import DONE, Claim, Duration, Json, Outcome, Task, made_inside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.client.queue import Queue
    from penstock.client.queue_async import AsyncQueue


class Held:
    """A claim that a worker holds, and whether its lease is still valid.

    The worker writes this object; handlers read it.
    """

    def __init__(self, claim: Claim, lease: float = 0.0) -> None:
        self.claim = claim
        self.lease = lease  # seconds, as set for its queue
        self.lost = False
        self.revoked: set[int] = set()
        self.stopping = False
        self.notes: Notes | None = None  # what handlers said of their tasks

    def open_notes(self) -> Notes:
        """Returns the notes of this claim. Most claims have none, so they are made when something is said."""
        with OPENING:
            if self.notes is None:
                self.notes = Notes()
            return self.notes


OPENING = threading.Lock()
COMMITTED = ("done", "again")  # outcomes that commit what a transaction() block wrote
SAY_INSIDE = "Say it inside the block, before it ends: context.dead(), context.failed(), context.release() or again()."


class RollBack(Exception):
    """Ends a transaction() block after the handler said that the task failed, is dead or is released."""


class AnyContext:
    """The part that Context and AsyncContext share."""

    def __init__(self, task: Task, held: Held, postpone: Callable[[timedelta], None] | None = None) -> None:
        self.task = task
        self.deadline: float | None = None  # set for a thread, which cannot be ended: the handler can only read it
        self.settled = False  # transaction() has settled the task
        self.decided = False  # the transaction() block has ended, so the outcome is final
        self.keep_traceback = True  # whether context.failed(error) stores the traceback
        self._held = held
        self._postpone = postpone
        self._outcome: Outcome | None = None
        self._begun = False  # transaction() was called

    @property
    def queue(self) -> str:
        """The name of the task's queue."""
        return self._held.claim.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt since the last success. It starts at 1."""
        return self.task.attempt

    @property
    def iterations(self) -> int:
        """The number of earlier successes of this task."""
        return self.task.iterations

    @property
    def key(self) -> str | None:
        """Whose task it is, as the push said; None: it has no key."""
        return self.task.key

    @property
    def meta(self) -> Json:
        """The headers that the push gave the task; without any it is empty."""
        return self.task.meta or {}

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer needed: the lease is lost, the task was cancelled, or its time is up."""
        return self._held.lost or self.task.id in self._held.revoked or self.late

    @property
    def late(self) -> bool:
        """Whether the timeout of the handler has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to stop. A handler that can continue later may `return context.again()`."""
        return self._held.stopping

    @property
    def outcome(self) -> Outcome:
        """The outcome that the handler chose; `done` by default."""
        return self._outcome or DONE

    def progress(self, part: float, text: str | None = None) -> None:
        """Says how far the task is: a part between 0 and 1, and a text such as "page 12 of 30", of which 200 characters
        are kept. `Queue.progress` and `penstock tasks show` show it.

        The call writes nothing to PostgreSQL. The worker stores the last progress and the log of a running task at most
        once in a third of the lease, and when an attempt ends and the task is not done.
        """
        self._held.open_notes().progress(self.task.id, check_part(part), None if text is None else check_text(text))

    def log(self, text: str) -> None:
        """Adds a line to the log of the task, which is stored as `progress` is. The last 100 lines are kept, over all
        attempts, and 200 characters of each."""
        self._held.open_notes().log(self.task.id, check_text(text))

    def again(
        self, due: datetime | None = None, payload: Json | None = None, *, delay: Duration | None = None
    ) -> Outcome:
        """Marks the task as succeeded and runs it again: at `due`, after `delay`, or at once.

        With `payload`, the next run gets that payload. The call takes effect when the handler returns, whether or not
        the handler returns its result.
        """
        checked = None if due is None else validate.moment(due)
        validate.delay(delay)
        if payload is not None:
            validate.payload(payload, validate.MAX_PAYLOAD)
        return self._decide(Outcome.again(checked, delay=delay, payload=payload))

    def dead(self, reason: str) -> Outcome:
        """Gives the task up for this reason; it is not tried again.

        Like `failed` and `release`, the call takes effect when the handler returns, whether or not the handler returns
        its result. Inside `transaction()`, it undoes what the block wrote.
        """
        if not isinstance(reason, str) or not reason:
            raise ValidationError(f"reason: {shown(reason)} is not a text that says why", field="reason")
        return self._decide(Outcome.dead(reason))

    def failed(self, error: str | BaseException, delay: Duration | None = None) -> Outcome:
        """Marks the attempt as failed.

        The task is tried again after `delay`, or as the retry strategy says; see `dead`.
        """
        validate.delay(delay)
        if isinstance(error, BaseException):
            text = error_text(error, keep_traceback=self.keep_traceback)
            return self._decide(Outcome.failed(text, delay=delay, error_class=type(error).__name__))
        return self._decide(Outcome.failed(str(error), delay=delay))

    def release(self, delay: Duration | None = None) -> Outcome:
        """Puts the task back as it was, without using up an attempt.

        With `delay`, it does not run before that time has passed; see `dead`.
        """
        validate.delay(delay)
        return self._decide(Outcome.release(delay=delay))

    def _decide(self, outcome: Outcome) -> Outcome:
        if self.decided and outcome != self.outcome:
            raise outcome_too_late(self, outcome)
        self._outcome = outcome
        return outcome

    def _to_commit(self) -> Outcome:
        """Returns the outcome to commit with the block.

        An Outcome that the handler creates inside the block is most likely its return value, and a return value is not
        known before the commit. Such an outcome is refused.
        """
        made = made_inside.get()
        if made and self._outcome is None:
            raise HandlerMisuse(
                f"outcome: Outcome.{made[-1].word} inside transaction(), which cannot see what is returned",
                hint=f"Call context.{made[-1].word}(…) instead; an outcome for another task is made before the block.",
            )
        if self.outcome.word not in COMMITTED:
            raise RollBack
        return self.outcome

    def _leave(self, connection: Any) -> None:
        """Checks the outcome at the end of a block whose transaction an error has aborted.

        Such a transaction accepts no more statements.
        """
        if connection.info.transaction_status.name == "INERROR":
            self._to_commit()

    def _close(self, *, committed: bool) -> None:
        self.settled, self.decided = committed, True

    def _gain(self, length: Duration | None) -> timedelta | None:
        """Moves the deadline and the timeout to at least `length` from now, and returns the lease to ask for."""
        wanted = validate.lease(length)
        if wanted is None:
            return None
        if self.deadline is not None:
            self.deadline = max(self.deadline, time.monotonic() + wanted.total_seconds())
        if self._postpone is not None:
            self._postpone(wanted)
        # Other tasks share the lease, so it is never shorter than the queue's.
        return max(wanted, timedelta(seconds=self._held.lease))

    def _begin(self) -> None:
        if self._begun:
            raise HandlerMisuse("transaction() was begun before", hint="Once per run: its end is the end of the task.")
        self._begun = True


def outcome_too_late(context: AnyContext, outcome: Outcome) -> HandlerMisuse:
    """Returns the error for an outcome that the handler chooses after its transaction() block has ended."""
    ended = "settled" if context.settled else "decided"
    return HandlerMisuse(
        f"outcome: {outcome.word} after transaction(), whose end has {ended} the task: {context.outcome.word}",
        hint=SAY_INSIDE,
    )


class Context(AnyContext):
    """The context of a sync handler: `def send(order_id: int, context: Context) -> None`."""

    def __init__(
        self, task: Task, held: Held, queue: Queue, postpone: Callable[[timedelta], None] | None = None
    ) -> None:
        super().__init__(task, held, postpone)
        self._queue = queue

    def extend(self, length: Duration | None = None) -> None:
        """Extends the lease to `length` from now, and to at least the lease of the queue.

        With a length, a timeout is also at least that long from now. `LeaseLost` means that another worker has the
        task: stop. You need no call to keep the lease, because a running worker extends it anyway.
        """
        self._held.revoked.update(self._queue.extend(self._held.claim, lease=self._gain(length)).revoked)

    def transaction(self) -> AbstractContextManager[Any]:
        """Returns a psycopg connection in a transaction that settles this task when the block ends.

        Your writes and the end of the task are committed together, or not at all. You can call it once per run. After
        the block, do only what may happen twice or never.

        The end of the block commits, also when a `return` leaves it; the value that is returned is not known at that
        moment. So choose the outcome inside the block: after `dead`, `failed` or `release` the writes are rolled back,
        and that outcome is final.
        """
        return self._settling()

    @contextmanager
    def _settling(self) -> Iterator[Any]:
        self._begin()
        try:
            with self._queue.settling(self._held.claim, self.task.id, self._to_commit) as connection:
                made_inside.set([])
                yield connection
                self._leave(connection)
        except RollBack:
            self._close(committed=False)
        else:
            self._close(committed=True)
        finally:
            made_inside.set(None)


class AsyncContext(AnyContext):
    """The context of an async handler: `async def send(order_id: int, context: AsyncContext) -> None`."""

    def __init__(
        self, task: Task, held: Held, queue: AsyncQueue, postpone: Callable[[timedelta], None] | None = None
    ) -> None:
        super().__init__(task, held, postpone)
        self._queue = queue

    async def extend(self, length: Duration | None = None) -> None:
        """Does the same as `Context.extend`."""
        extended = await self._queue.extend(self._held.claim, lease=self._gain(length))
        self._held.revoked.update(extended.revoked)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Does the same as `Context.transaction`, with psycopg's AsyncConnection."""
        return self._settling()

    @asynccontextmanager
    async def _settling(self) -> AsyncIterator[Any]:
        self._begin()
        try:
            async with self._queue.settling(self._held.claim, self.task.id, self._to_commit) as connection:
                made_inside.set([])
                yield connection
                self._leave(connection)
        except RollBack:
            self._close(committed=False)
        else:
            self._close(committed=True)
        finally:
            made_inside.set(None)
