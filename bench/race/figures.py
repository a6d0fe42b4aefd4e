"""The results of the race: the rounds of each peer, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.race.contestants import OURS, Peer
from bench.race.measures import Batches, Held, Lap
from bench.support.harness import judged, ratio


@dataclass(frozen=True, slots=True)
class Bar:
    """What we promise of one ratio, and the more that we aim at."""

    label: str
    bar: float
    at_least: bool
    goal: float | None = None

    def is_kept(self, value: float) -> bool:
        return self.reaches(value, self.bar)

    def is_goal(self, value: float) -> bool:
        return self.goal is not None and self.reaches(value, self.goal)

    def reaches(self, value: float, limit: float) -> bool:
        return value >= limit if self.at_least else value <= limit


@dataclass(frozen=True, slots=True)
class Judgement:
    """A bar, what was measured, and the peer that it was measured against."""

    bar: Bar
    value: float
    against: str = ""

    @property
    def label(self) -> str:
        return f"{self.bar.label} ({self.against})" if self.against else self.bar.label

    @property
    def kept(self) -> bool:
        return self.bar.is_kept(self.value)


@dataclass(slots=True)
class Figures:
    """The figures of one peer, with a value for each round."""

    push: list[float] = field(default_factory=list)
    drain_1: list[float] = field(default_factory=list)
    drain_2: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    push_wal: list[float] = field(default_factory=list)
    drain_wal: list[float] = field(default_factory=list)
    push_commits: list[float] = field(default_factory=list)
    drain_commits: list[float] = field(default_factory=list)
    held_first: list[float] = field(default_factory=list)
    held_last: list[float] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    push_batch: float | None = None
    drain_batch: float | None = None

    def add_lap(self, lap: Lap, processes: int, *, postgres: bool) -> None:
        self.push.append(lap.push.rate)
        if lap.drain is not None:
            (self.drain_1 if processes == 1 else self.drain_2).append(lap.drain.rate)
        if not postgres:
            return
        self.push_wal.append(lap.push.wal)
        self.push_commits.append(lap.push.commits)
        if lap.drain is not None:
            self.drain_wal.append(lap.drain.wal)
            self.drain_commits.append(lap.drain.commits)

    def add_latency(self, found: dict[str, float]) -> None:
        self.p50.append(found["p50"])
        self.p99.append(found["p99"])

    def add_held(self, held: Held) -> None:
        self.held_first.append(held.first)
        self.held_last.append(held.last)

    def add_batches(self, batches: Batches) -> None:
        self.push_batch, self.drain_batch = batches.push, batches.drain

    @property
    def wal(self) -> list[float]:
        """Bytes of WAL for a task's whole life."""
        return [push + drain for push, drain in zip(self.push_wal, self.drain_wal, strict=False)]

    @property
    def kept(self) -> list[float]:
        """The rate of the last part under a held snapshot, divided by that of the first."""
        return [last / first for first, last in zip(self.held_first, self.held_last, strict=True)]

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}


Found = dict[str, Figures]
Series = Callable[[Figures], list[float]]


def best(found: Found, peers: Iterable[Peer], series: Series, *, most: bool = True) -> str | None:
    """Returns the peer with the best median."""
    names = [peer.name for peer in peers if peer.other_tool and series(found[peer.name])]
    choose = max if most else min
    return choose(names, key=lambda name: statistics.median(series(found[name])), default=None)


def against(found: Found, name: str, series: Series) -> float:
    """Returns Penstock's figure divided by the peer's, over the rounds that both ran."""
    ours, theirs = series(found[OURS]), series(found[name])
    rounds = min(len(ours), len(theirs))
    return ratio(ours[:rounds], theirs[:rounds])


def drain_1(one: Figures) -> list[float]:
    return one.drain_1


def drain_2(one: Figures) -> list[float]:
    return one.drain_2


def push(one: Figures) -> list[float]:
    return one.push


def wal(one: Figures) -> list[float]:
    return one.wal


def p50(one: Figures) -> list[float]:
    return one.p50


def kept(one: Figures) -> list[float]:
    return one.kept


DRAIN_2 = Bar("drain, 2 processes / fastest peer of any language", 1.9, at_least=True, goal=2.5)
DRAIN_2_PYTHON = Bar("drain, 2 processes / fastest Python peer", 6.0, at_least=True)
DRAIN_1 = Bar("drain, 1 process / fastest peer", 1.7, at_least=True)
PUSH = Bar("bulk push / fastest peer", 1.3, at_least=True, goal=1.5)
WAL = Bar("WAL bytes a task / lowest peer", 0.85, at_least=False, goal=0.75)
P50 = Bar("p50 push → start / best PostgreSQL peer", 0.8, at_least=False)
P50_CELERY = Bar("p50 push → start / Celery on Redis", 0.9, at_least=False)
HELD = Bar("last / first under a held snapshot", 0.95, at_least=True)
BARS = (DRAIN_2, DRAIN_2_PYTHON, DRAIN_1, PUSH, WAL, P50, P50_CELERY, HELD)


def judge(found: Found, peers: list[Peer]) -> list[Judgement]:
    """Compares Penstock with the best peer in each figure that was measured."""
    stored = [peer for peer in peers if peer.postgres]
    in_python = [peer for peer in peers if peer.in_python]
    celery = [peer for peer in peers if peer.script == "on_celery.py"]
    asked: list[tuple[Bar, list[Peer], Series]] = [
        (DRAIN_2, peers, drain_2),
        (DRAIN_2_PYTHON, in_python, drain_2),
        (DRAIN_1, peers, drain_1),
        (PUSH, peers, push),
        (WAL, stored, wal),
        (P50, stored, p50),
        (P50_CELERY, celery, p50),
    ]
    said = []
    for bar, others, series in asked:
        name = best(found, others, series, most=bar.at_least)
        if name is not None and OURS in found and series(found[OURS]):
            said.append(Judgement(bar, against(found, name, series), name))
    if OURS in found and found[OURS].kept:
        said.append(Judgement(HELD, statistics.median(found[OURS].kept)))
    return said


def show(said: Iterable[Judgement]) -> bool:
    """Prints the bars, and returns whether all are kept."""
    kept = [judged(one.label, one.value, one.bar.bar, at_least=one.bar.at_least) for one in said]
    return all(kept)
