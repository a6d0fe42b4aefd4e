"""Decides how many tasks to claim at once, from which queue, and how long to rest.

Its only input from outside is the clock.
"""

from __future__ import annotations

import math
import random
import time

AHEAD = 0.1  # seconds of work to have in hand
LARGEST_BATCH = 1000
TRUST = 4  # limit of tasks in hand, as a multiple of the tasks seen so far
TINY = 50e-6  # seconds
QUICKEST, SLOWEST = 0.01, 0.25  # seconds between two claims from a queue that has just become empty
GROWTH = 3  # factor by which that pause grows from claim to claim


class Pace:
    """Estimates the recent duration of a task, and from it the number of tasks that are a tenth of a second of work."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.seconds: float | None = None
        self.seen = 0.0

    def note(self, tasks: float, seconds: float) -> None:
        """Records that `tasks` tasks took `seconds` of work. Tasks that a handler takes at once count as one."""
        self.seen += tasks
        mean = seconds / tasks
        weight = min(0.5, tasks / 50)
        self.seconds = mean if self.seconds is None else self.seconds + weight * (mean - self.seconds)

    def note_stall(self) -> None:
        """Records that claimed tasks have waited too long.

        From now on, only tasks that can begin at once are claimed.
        """
        self.seconds = max(self.seconds or 0.0, AHEAD)

    @property
    def tiny(self) -> bool:
        """Whether tasks are so small that one slot finishes them sooner than other slots could be woken."""
        return self.seconds is not None and self.seconds < TINY

    @property
    def target(self) -> int:
        """The number of tasks to have in hand: one for each slot, and more if they take very little time."""
        if self.seconds is None:
            return self.slots
        ahead = AHEAD * self.slots / max(self.seconds, 1e-7)
        ahead = min(ahead, TRUST * self.seen)  # the first task may have been an exception
        return self.slots if ahead < self.slots else int(min(ahead, LARGEST_BATCH))

    def room(self, in_hand: float) -> int:
        """Returns how many tasks to claim now.

        Beyond the number of slots, it claims in half batches, because many small claims cost more.
        """
        target = self.target
        if target > self.slots and in_hand > target // 2:
            return 0
        return max(0, target - math.ceil(in_hand))


class Turns:
    """Decides which queue to claim from next, by weight among the queues that seem to have tasks.

    If a queue returns fewer tasks than asked for, it is asked again soon, then less and less often, and then only after
    `wake` reports a new task: the supervisor looks at all queues at once, and pushes notify.
    """

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self._credit = dict.fromkeys(weights, 0)
        self._pause = dict.fromkeys(weights, QUICKEST)
        self._ask_at: dict[str, float] = {}  # the queues that are not here rest
        self._woken: set[str] = set()  # woken since they were last chosen: a running claim may have been too early
        self._refused: set[str] = set()

    def next(self) -> str | None:
        """Returns the queue to claim from, or None if all queues rest."""
        now = time.monotonic()
        ready = [name for name, at in self._ask_at.items() if at <= now]
        if not ready:
            return None
        for name in ready:
            self._credit[name] += self.weights[name]
        chosen = max(ready, key=lambda name: self._credit[name])
        self._credit[chosen] -= sum(self.weights[name] for name in ready)
        self._woken.discard(chosen)
        return chosen

    def note(self, name: str, got: int, asked: int) -> None:
        """Records that a claim from this queue got `got` of `asked` tasks."""
        self._refused.discard(name)
        if got:
            self._pause[name] = QUICKEST
        if got >= asked or name in self._woken:
            self._ask_at[name] = 0.0
        elif self._pause[name] > SLOWEST:
            self._ask_at.pop(name, None)
        else:
            self._ask_at[name] = time.monotonic() + self._pause[name] * random.uniform(0.8, 1.2)  # noqa: S311
            if not got:
                self._pause[name] *= GROWTH

    def note_refused(self, name: str) -> bool:
        """Stops claiming from a queue that refuses claims, until `wake` is called for it.

        Returns whether the queue was not stopped before.
        """
        self._ask_at.pop(name, None)
        news = name not in self._refused
        self._refused.add(name)
        return news

    def wake(self, name: str) -> None:
        """Records that a task arrived in this queue."""
        self._woken.add(name)
        self._ask_at[name] = 0.0

    def rest(self) -> float | None:
        """Returns the seconds until the next queue is due, or None if all queues rest until one is woken."""
        return max(0.0, min(self._ask_at.values()) - time.monotonic()) if self._ask_at else None
