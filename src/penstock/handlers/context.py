"""What a handler may ask for: its task, whether it shall go on, more time, and a transaction that settles the task."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock import validate
from penstock.model import DONE, Claim, Duration, Json, Outcome, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.aio.queue import AsyncQueue
    from penstock.queue import Queue


class Held:
    """A claim in the hands of a worker: whether it is still ours. The worker writes it, handlers read it."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
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
        if wanted is not None and self.deadline is not None:
            self.deadline = time.monotonic() + wanted.total_seconds()
        if wanted is not None and self._postpone is not None:
            self._postpone(wanted)
        return wanted


class Context(AnyContext):
    """For a sync handler: `def send(order_id: int, context: Context) -> None`."""

    def __init__(
        self, task: Task, held: Held, queue: Queue, postpone: Callable[[timedelta], None] | None = None
    ) -> None:
        super().__init__(task, held, postpone)
        self._queue = queue

    def extend(self, length: Duration | None = None) -> None:
        """More time: the lease goes on from now for `length` (by default the queue's); if a length is given, a timeout
        begins anew with it. LeaseLost: stop, somebody else has the task. While its worker lives, a lease is kept alive
        anyway."""
        self._held.revoked.update(self._queue.extend(self._held.claim, lease=self._gain(length)).revoked)

    def transaction(self) -> AbstractContextManager[Any]:
        """A psycopg connection in a transaction that settles this task when the block ends: your writes and the end of
        the task happen both, or neither. Once per run; after it only what may happen twice or never."""
        return self._settling()

    @contextmanager
    def _settling(self) -> Iterator[Any]:
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
        async with self._queue.settling(self._held.claim, self.task.id, lambda: self.outcome) as connection:
            yield connection
        self.settled = True
