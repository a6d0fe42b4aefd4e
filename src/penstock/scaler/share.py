"""Many queues, one machine: who gets the next worker."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Want:
    """What a queue asks for. `late` says how many tasks would be started too late with so many workers."""

    queue: str
    wanted: int
    min_workers: int = 0
    late: Callable[[int], float] | None = None

    def gain(self, workers: int) -> float:
        """What one more than so many would save."""
        if self.late is None:
            return 1.0
        return max(0.0, self.late(workers) - self.late(workers + 1))


@dataclass(frozen=True, slots=True)
class Shares:
    given: dict[str, int]
    short: dict[str, int]  # workers that a queue wanted and there are not; queues that got all are not in it


def share(wants: Sequence[Want], capacity: int) -> Shares:
    """The minimum of each first, one after the other; then each worker goes where it saves most late starts, and among
    equals to the queue that has the smallest part of what it wants."""
    given = dict.fromkeys((want.queue for want in wants), 0)
    left = capacity
    for least in range(max((want.min_workers for want in wants), default=0)):
        for want in wants:
            if left > 0 and want.min_workers > least:
                given[want.queue] += 1
                left -= 1
    hungry = [(n, want) for n, want in enumerate(wants) if left > 0 and given[want.queue] < want.wanted]
    line = [place(want, n, given[want.queue]) for n, want in hungry]  # what each would gain is not cheap to know
    heapq.heapify(line)
    while line and left > 0:
        *_, n = heapq.heappop(line)
        want = wants[n]
        given[want.queue] += 1
        left -= 1
        if given[want.queue] < want.wanted:
            heapq.heappush(line, place(want, n, given[want.queue]))
    short = {want.queue: want.wanted - given[want.queue] for want in wants if given[want.queue] < want.wanted}
    return Shares(given, short)


def place(want: Want, n: int, workers: int) -> tuple[float, float, int]:
    """Before whom it stands in line: the greater gain first."""
    return -want.gain(workers), workers / want.wanted, n
