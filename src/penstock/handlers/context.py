"""What a handler may ask for: its task, whether it shall go on, more time, and a transaction that settles the task."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock import validate
from penstock.errors import HandlerMisuse
from penstock.model import DONE, Claim, Duration, Json, Outcome, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.aio.queue import AsyncQueue
    from penstock.queue import Queue


class Held:
    """A claim in the hands of a worker: whether it is still ours. The worker writes it, handlers read it."""

    def __init__(self, claim: Claim, lease: float = 0.0) -> None:
        self.claim = claim
        self.lease = lease  # seconds, as its queue has it
        self.lost = False
        self.revoked: set[int] = set()
        self.stopping = False


class AnyContext:
    """What both colours have."""

    def __init__(self, task: Task, held: Held, postpone: Callable[[timedelta], None] | None = None) -> None:
        self.task = task
        self.deadline: float | None = None  # of a thread, which nobody can end: the handler is told, that is all
        self.settled = False  # by transaction()
        self._held = held
        self._postpone = postpone
        self._outcome: Outcome | None = None
        self._begun = False  # transaction()

    @property
    def queue(self) -> str:
        return self._held.claim.queue

    @property
    def attempt(self) -> int:
        """Which try this is since the last success, from 1."""
        return self.task.attempt

    @property
    def iterations(self) -> int:
        """How often it has succeeded before."""
        return self.task.iterations

    @property
    def cancelled(self) -> bool:
        """Nobody waits for the result any more: the lease is lost, the task was cancelled, or its time is up."""
        return self._held.lost or self.task.id in self._held.revoked or self.late

    @property
    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def stopping(self) -> bool:
        """The worker is about to stop. Who can leave off here may: `return context.again()`."""
        return self._held.stopping

    @property
    def outcome(self) -> Outcome:
        return self._outcome or DONE

    def again(
        self, due: datetime | None = None, payload: Json | None = None, *, delay: Duration | None = None
    ) -> Outcome:
        """It succeeded and shall run again: at `due`, after `delay`, or at once; with another payload, if one is given.
        It counts when the handler returns, whether or not it returns this."""
        checked = None if due is None else validate.moment(due)
        validate.delay(delay)
        if payload is not None:
            validate.payload(payload, validate.LARGEST_EVER)
        self._outcome = Outcome.again(checked, delay=delay, payload=payload)
        return self._outcome

    def _gain(self, length: Duration | None) -> timedelta | None:
        """A timeout begins anew, with that length."""
        wanted = validate.lease(length)
        if wanted is None:
            return None
        if self.deadline is not None:
            self.deadline = max(self.deadline, time.monotonic() + wanted.total_seconds())
        if self._postpone is not None:
            self._postpone(wanted)
        return max(wanted, timedelta(seconds=self._held.lease))  # others share it, and need as much as ever

    def _begin(self) -> None:
        if self._begun:
            raise HandlerMisuse("transaction() was begun before", hint="Once per run: its end is the end of the task.")
        self._begun = True


class Context(AnyContext):
    """For a sync handler: `def send(order_id: int, context: Context) -> None`."""

    def __init__(
        self, task: Task, held: Held, queue: Queue, postpone: Callable[[timedelta], None] | None = None
    ) -> None:
        super().__init__(task, held, postpone)
        self._queue = queue

    def extend(self, length: Duration | None = None) -> None:
        """More time: the lease goes on from now for `length`, at least for as long as its queue says; with a length, a
        timeout lasts at least that much longer too. LeaseLost: stop, somebody else has the task. While its worker
        lives, a lease is kept alive anyway."""
        self._held.revoked.update(self._queue.extend(self._held.claim, lease=self._gain(length)).revoked)

    def transaction(self) -> AbstractContextManager[Any]:
        """A psycopg connection in a transaction that settles this task when the block ends: your writes and the end of
        the task happen both, or neither. Once per run; after it only what may happen twice or never."""
        return self._settling()

    @contextmanager
    def _settling(self) -> Iterator[Any]:
        self._begin()
        with self._queue.settling(self._held.claim, self.task.id, lambda: self.outcome) as connection:
            yield connection
        self.settled = True


class AsyncContext(AnyContext):
    """For an async handler: `async def send(order_id: int, context: AsyncContext) -> None`."""

    def __init__(
        self, task: Task, held: Held, queue: AsyncQueue, postpone: Callable[[timedelta], None] | None = None
    ) -> None:
        super().__init__(task, held, postpone)
        self._queue = queue

    async def extend(self, length: Duration | None = None) -> None:
        """As `Context.extend`."""
        extended = await self._queue.extend(self._held.claim, lease=self._gain(length))
        self._held.revoked.update(extended.revoked)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """As `Context.transaction`, with psycopg's AsyncConnection."""
        return self._settling()

    @asynccontextmanager
    async def _settling(self) -> AsyncIterator[Any]:
        self._begin()
        async with self._queue.settling(self._held.claim, self.task.id, lambda: self.outcome) as connection:
            yield connection
        self.settled = True
