"""What the race found: rounds of each peer, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.race.contestants import OURS, Peer
from bench.race.measures import Batches, Held, Lap
from bench.support.harness import judged, ratio

Bars = list[tuple[str, float, float, bool]]


@dataclass(slots=True)
class Figures:
    """Of one peer: a value for each round."""

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
        """Bytes for a task's whole life."""
        return [push + drain for push, drain in zip(self.push_wal, self.drain_wal, strict=False)]

    @property
    def kept(self) -> list[float]:
        """The last part under a held snapshot over the first."""
        return [last / first for first, last in zip(self.held_first, self.held_last, strict=True)]

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}


Found = dict[str, Figures]
Series = Callable[[Figures], list[float]]


def best(found: Found, peers: Iterable[Peer], series: Series, *, most: bool = True) -> str | None:
    """The peer with the best median."""
    names = [peer.name for peer in peers if peer.rival and series(found[peer.name])]
    choose = max if most else min
    return choose(names, key=lambda name: statistics.median(series(found[name])), default=None)


def against(found: Found, name: str, series: Series) -> float:
    """Ours over theirs, by the rounds that both ran."""
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


def bars(found: Found, peers: list[Peer]) -> Bars:
    """Label, value, bar and whether it is a least one; of what was measured."""
    stored = [peer for peer in peers if peer.postgres]
    in_python = [peer for peer in peers if peer.home == "python"]
    asked: list[tuple[str, list[Peer], Series, float, bool]] = [
        ("drain, 2 processes / fastest peer", peers, drain_2, 1.5, True),
        ("drain, 2 processes / fastest Python peer", in_python, drain_2, 3.5, True),
        ("drain, 1 process / fastest peer", peers, drain_1, 1.3, True),
        ("bulk push / fastest peer", peers, push, 1.2, True),
        ("WAL bytes a task / lowest peer", stored, wal, 1.0, False),
        ("p50 push → start / best PostgreSQL peer", stored, p50, 1.3, False),
    ]
    said: Bars = []
    for label, rivals, series, bar, at_least in asked:
        name = best(found, rivals, series, most=at_least)
        if name is not None and OURS in found and series(found[OURS]):
            said.append((f"{label} ({name})", against(found, name, series), bar, at_least))
    if OURS in found and found[OURS].kept:
        said.append(("last / first under a held snapshot", statistics.median(found[OURS].kept), 0.85, True))
    return said


def judge(said: Bars) -> bool:
    kept = [judged(label, value, bar, at_least=at_least) for label, value, bar, at_least in said]
    return all(kept)
