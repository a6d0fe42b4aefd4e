"""How much to take at once, from which queue, and how long to rest when there is nothing. Pure but for the clock."""

from __future__ import annotations

import math
import random
import time

AHEAD = 0.1  # seconds of work to have in hand
LARGEST_BATCH = 1000
TRUST = 4  # times what was seen
TINY = 50e-6  # seconds
ASIDE = 5.0  # seconds
QUICKEST, SLOWEST = 0.01, 0.6  # seconds between two looks at an empty queue


class Pace:
    """How long a task takes, lately; so how many are a tenth of a second of work."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.seconds: float | None = None
        self.seen = 0.0

    def note(self, tasks: float, seconds: float) -> None:
        """So many were done in so many seconds of work. What a handler takes at once counts as one."""
        self.seen += tasks
        mean = seconds / tasks
        weight = min(0.5, tasks / 50)
        self.seconds = mean if self.seconds is None else self.seconds + weight * (mean - self.seconds)

    def stalled(self) -> None:
        """What waits here has waited too long: from now on only what can begin at once is taken."""
        self.seconds = max(self.seconds or 0.0, AHEAD)

    @property
    def tiny(self) -> bool:
        """Tasks are so small that one slot does them sooner than others could be woken."""
        return self.seconds is not None and self.seconds < TINY

    @property
    def target(self) -> int:
        """How many to have in hand: one for each slot, and what is done in no time ahead."""
        if self.seconds is None:
            return self.slots
        ahead = AHEAD * self.slots / max(self.seconds, 1e-7)
        ahead = min(ahead, TRUST * self.seen)  # the first one may have been an exception
        return self.slots if ahead < self.slots else int(min(ahead, LARGEST_BATCH))

    def room(self, in_hand: float) -> int:
        """How many to take now. Ahead of the slots it goes by half batches: many small ones would cost more."""
        target = self.target
        if target > self.slots and in_hand > target // 2:
            return 0
        return max(0, target - math.ceil(in_hand))


class Turns:
    """Whose turn it is: by weight among the queues that seem to have something. One that came back short rests until
    it is looked at again or somebody says that something came."""

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self._credit = dict.fromkeys(weights, 0)
        self._wake_at = dict.fromkeys(weights, 0.0)
        self._pause = dict.fromkeys(weights, QUICKEST)

    def next(self) -> str | None:
        """The queue to claim from; None: all rest."""
        now = time.monotonic()
        ready = [name for name, at in self._wake_at.items() if at <= now]
        if not ready:
            return None
        for name in ready:
            self._credit[name] += self.weights[name]
        chosen = max(ready, key=lambda name: self._credit[name])
        self._credit[chosen] -= sum(self.weights[name] for name in ready)
        return chosen

    def note(self, name: str, got: int, asked: int) -> None:
        if got:
            self._pause[name] = QUICKEST
        if got >= asked:
            self._wake_at[name] = 0.0
            return
        self._wake_at[name] = time.monotonic() + self._pause[name] * random.uniform(0.8, 1.2)  # noqa: S311
        if not got:
            self._pause[name] = min(self._pause[name] * 1.5, SLOWEST)

    def put_aside(self, name: str) -> bool:
        """It can not be claimed from: for a while nobody asks. Whether that is news."""
        news = self._pause[name] < ASIDE
        self._pause[name] = ASIDE
        self._wake_at[name] = time.monotonic() + ASIDE
        return news

    def wake(self, name: str | None = None) -> None:
        for one in self.weights if name is None else (name,):
            self._wake_at[one] = 0.0

    def rest(self) -> float:
        """Seconds until somebody's turn."""
        return max(0.0, min(self._wake_at.values()) - time.monotonic())
