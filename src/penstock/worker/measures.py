"""Measures how long tasks wait and run: histograms of one process, counted batch by batch.

A process sends its sums to its supervisor now and then, so no file is shared and no message is sent for a task. A
process that is killed loses the sums of its last second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.handlers.outcomes import SETTLED
from penstock.model import EPOCH
from penstock.worker.in_flight import Entry, InFlight

WAIT_EDGES = (0.005, 0.05, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)  # seconds
RUN_EDGES = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
MAX_KINDS = 200
OTHER = "other"  # the kinds above that number
FEW = 12  # values: for more of them it is faster to sort them and to look for the edges
MICROS = 1e-6
Slas = dict[str, float | None]
Key = tuple[str, str, str | None]  # queue, kind, and the outcome of a run; None: a wait


class Series:
    """The counts of one histogram, and the sum of its values."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float], counts: Sequence[int] = (), total: float = 0.0) -> None:
        self.edges = edges
        self.counts = [*counts] or [0] * (len(edges) + 1)
        self.total = total

    def add(self, values: list[float]) -> None:
        """Adds values. The list may be sorted."""
        self.total += sum(values)
        if len(values) <= FEW:
            for value in values:
                self.counts[bisect_left(self.edges, value)] += 1
            return
        values.sort()
        before = 0
        for n, edge in enumerate(self.edges):
            upto = bisect_right(values, edge)
            self.counts[n] += upto - before
            before = upto
        self.counts[-1] += len(values) - before

    def merge(self, other: Series) -> None:
        """Adds the values of another series with the same edges."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Kinds:
    """The kinds that have a series of their own. The others share one, because each takes memory wherever it goes."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def fold(self, queue: str, kind: str) -> str:
        """Returns the kind, or `other` if there are too many."""
        if kind == OTHER or (queue, kind) in self._known:
            return kind
        if len(self._known) >= MAX_KINDS:
            return OTHER
        self._known.add((queue, kind))
        return kind


class Measures:
    """What one process has measured. The loop of its runner alone calls it."""

    def __init__(self, slas: Slas) -> None:
        self._slas = slas
        self._kinds = Kinds()
        self._series: dict[Key, Series] = {}
        self._changed: set[Key] = set()
        self._losses: Counter[str] = Counter()
        self._said: tuple[int, int] = (0, 0)

    def note(self, entries: list[Entry], now: float) -> None:
        """Counts outcomes that came in just before `now`. A task whose handler was not called is not counted."""
        waits: dict[tuple[str, str], list[float]] = {}
        runs: dict[Key, list[float]] = {}
        clocks: dict[InFlight, float] = {}
        for flight, task, outcome, took in entries:
            if not took:
                continue
            queue = flight.claim.queue
            word = "done" if outcome is SETTLED else outcome.word
            runs.setdefault((queue, task.kind, word), []).append(took)
            clock = clocks.get(flight)
            if clock is None:
                clock = clocks[flight] = clock_of(flight, now)
            began = clock - took if flight.unit == 1 else clock  # of a batch only the claim is known
            waits.setdefault((queue, task.kind), []).append(max(0.0, began - task.due_micros * MICROS))
        self._add(waits, runs)

    def note_tiny(self, flight: InFlight, entries: list[Entry]) -> None:
        """Counts tiny tasks that are all done, and that began when they were claimed."""
        claimed, queue = claimed_at(flight), flight.claim.queue
        for kind in {task.kind for _, task, _, _ in entries}:
            some = [(task.due_micros, took) for _, task, _, took in entries if task.kind == kind]
            waits = [max(0.0, claimed - due * MICROS) for due, _ in some]
            self._add({(queue, kind): waits}, {(queue, kind, "done"): [took for _, took in some]})

    def note_loss(self, queue: str) -> None:
        """Counts a lease that was lost."""
        self._losses[queue] += 1

    def _add(self, waits: dict[tuple[str, str], list[float]], runs: dict[Key, list[float]]) -> None:
        for (queue, kind), values in waits.items():
            self._find((queue, self._kinds.fold(queue, kind), None)).add(values)
        for (queue, kind, word), values in runs.items():
            self._find((queue, self._kinds.fold(queue, kind), word)).add(values)

    def _find(self, key: Key) -> Series:
        self._changed.add(key)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = Series(edges_of(key, self._slas))
        return found

    def take_news(self, reconnects: int) -> dict[str, Any] | None:
        """Returns what has changed since the last call as a message, or None. Its numbers count from the start."""
        said = (self._losses.total(), reconnects)
        if not self._changed and said == self._said:
            return None
        changed = [[*key, self._series[key].counts, self._series[key].total] for key in self._changed]
        self._changed.clear()
        self._said = said
        return {"series": changed, "losses": dict(self._losses), "reconnects": reconnects}


def edges_of(key: Key, slas: Slas) -> Sequence[float]:
    """Returns the edges of a histogram. The SLA of a queue is an edge of its waits, so that the share of the tasks that
    kept it is exact."""
    if key[2] is not None:
        return RUN_EDGES
    sla = slas.get(key[0])
    return WAIT_EDGES if sla is None else sorted({*WAIT_EDGES, sla})


def claimed_at(flight: InFlight) -> float:
    """Returns when a flight was claimed, in seconds since 2000 by the clock of PostgreSQL, which dates tasks too."""
    assert flight.claim.until is not None
    return (flight.claim.until - EPOCH).total_seconds() - flight.lease


def clock_of(flight: InFlight, now: float) -> float:
    """Returns the time of PostgreSQL's clock at which a flight's outcomes came in, or for a batch when it was
    claimed."""
    return claimed_at(flight) + (now - flight.taken_at if flight.unit == 1 else 0.0)
