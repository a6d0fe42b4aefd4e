"""Distributes workers among queues that share one machine."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Want:
    """The workers that a queue wants. `late` returns how many tasks would start late with a given number of workers."""

    queue: str
    wanted: int
    min_workers: int = 0
    late: Callable[[int], float] | None = None

    def gain(self, workers: int) -> float:
        """Returns how many late starts one more worker would prevent."""
        if self.late is None:
            return 1.0
        return max(0.0, self.late(workers) - self.late(workers + 1))


@dataclass(frozen=True, slots=True)
class Shares:
    """The workers that each queue gets, and those that it lacks."""

    given: dict[str, int]
    short: dict[str, int]  # workers that a queue wanted and did not get; queues that got all are absent


def share(wants: Sequence[Want], capacity: int) -> Shares:
    """Gives each queue its minimum first, in turns. Then each worker goes to the queue where it prevents the most late
    starts, and among equals to the queue with the smallest part of what it wants."""
    given = dict.fromkeys((want.queue for want in wants), 0)
    left = capacity
    for least in range(max((want.min_workers for want in wants), default=0)):
        for want in wants:
            if left > 0 and want.min_workers > least:
                given[want.queue] += 1
                left -= 1
    hungry = [(n, want) for n, want in enumerate(wants) if left > 0 and given[want.queue] < want.wanted]
    heap = [priority(want, n, given[want.queue]) for n, want in hungry]  # each gain is expensive to compute
    heapq.heapify(heap)
    while heap and left > 0:
        *_, n = heapq.heappop(heap)
        want = wants[n]
        given[want.queue] += 1
        left -= 1
        if given[want.queue] < want.wanted:
            heapq.heappush(heap, priority(want, n, given[want.queue]))
    short = {want.queue: want.wanted - given[want.queue] for want in wants if given[want.queue] < want.wanted}
    return Shares(given, short)


def priority(want: Want, n: int, workers: int) -> tuple[float, float, int]:
    """Returns the sort key of a queue: the greatest gain comes first."""
    return -want.gain(workers), workers / want.wanted, n
