"""A claim on its way through a runner: its tasks, and the outcomes that PostgreSQL does not know yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from queue import SimpleQueue

from penstock.client.queue import Queue
from penstock.handlers import Held
from penstock.handlers.outcomes import LOST, SETTLED
from penstock.model import DONE, Claim, Outcome, Task

FIRST_RETRY = 0.05  # seconds until a deferred outcome is tried again; the time doubles
LOG_AFTER = 2.0  # seconds for which outcomes are deferred before the log says so


class InFlight(Held):
    """One claim, from the moment it is taken until all of its tasks are settled."""

    def __init__(self, claim: Claim, queue: Queue, asked_at: float, lease: float, unit: float = 1.0) -> None:
        super().__init__(claim, lease)
        self.queue = queue
        self.unit = unit  # the part of a slot that one task takes; less than 1 if handlers take many tasks at once
        self.taken_at = asked_at  # taken before the claim, so that the lease is never overestimated
        self.left = len(claim)  # tasks that are not settled
        self.known = 0  # tasks of these with an outcome that PostgreSQL does not know yet
        self.known_since: float | None = None  # when the first of these outcomes came in
        self.done: list[int] = []
        self.others: dict[int, Outcome] = {}
        self.settling = 0  # outcomes in the settle that is running
        self.unanswered_since: float | None = None  # since when PostgreSQL owes the answer to a settle that broke off
        self.deferred: dict[int, Outcome] = {}  # outcomes of tasks that another transaction holds; they are tried again
        self.deferred_since: float | None = None  # when the first of them was deferred
        self.given_up: dict[int, str] = {}  # deferred tasks whose settle PostgreSQL gave up even alone, with the error
        self.given_up_since: float | None = None  # when it gave up the first of them
        self.retry_in = FIRST_RETRY
        self.log_at = 0.0
        self.busy = False  # a settle is running
        self.released = False  # this process has put its tasks back
        self.note_at = asked_at + lease / 3  # when what handlers said is stored next
        self.timer: asyncio.TimerHandle | None = None
        # A thread that waits to settle the flight as soon as it is complete.
        self.waiter: SimpleQueue[bool] | None = None

    @property
    def token(self) -> str:
        """The token of the lease, as text."""
        return str(self.claim.token)

    def task(self, id_: int) -> Task:
        """Returns the task of this claim with this id."""
        return next(task for task in self.claim.tasks if task.id == id_)

    @property
    def unsettled(self) -> int:
        """The number of outcomes that PostgreSQL does not know yet."""
        return self.known + self.settling + len(self.deferred)

    def note(self, task: Task, outcome: Outcome) -> None:
        """Records the outcome of a task."""
        self.known += 1
        if self.known_since is None:
            self.known_since = time.monotonic()
        if outcome is DONE:
            self.done.append(task.id)
        elif outcome is not SETTLED and outcome is not LOST:
            self.others[task.id] = outcome

    def note_no_answer(self) -> None:
        """Records that a settle broke off: PostgreSQL may still be carrying it out."""
        if self.unanswered_since is None:
            self.unanswered_since = self.known_since or time.monotonic()

    def take_outcomes(self) -> tuple[int, list[int], dict[int, Outcome]]:
        """Removes and returns the outcomes that are recorded: their number, the done tasks, and the others."""
        taken = self.known, self.done, self.others
        self.known, self.done, self.others = 0, [], {}
        return taken

    def defer(self, outcomes: dict[int, Outcome]) -> None:
        """Defers outcomes that cannot be settled now."""
        if self.deferred_since is None:
            self.deferred_since = time.monotonic()
            self.log_at = self.deferred_since + LOG_AFTER
        self.deferred |= outcomes

    def note_given_up(self, busy: Collection[int]) -> None:
        """Updates the tasks that were given up, after a settle that left these outcomes unsettled.

        The others that were given up are now settled or lost.
        """
        left = {*busy, *self.deferred}
        self.given_up = {id_: why for id_, why in self.given_up.items() if id_ in left}
        if not self.given_up:
            self.given_up_since = None
        elif self.given_up_since is None:
            self.given_up_since = time.monotonic()

    def take_back(self) -> None:
        """Moves the deferred outcomes to the next settle."""
        self.known += len(self.deferred)
        self.others |= self.deferred
        self.deferred = {}


Entry = tuple[InFlight, Task, Outcome, float]  # the outcome of one task, and how long it took
