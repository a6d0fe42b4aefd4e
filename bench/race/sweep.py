"""The sweep: it runs the variants of each peer in turn, and records which is fastest in what, for the race to use."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psycopg

from bench.race import measures
from bench.race.contestants import Peer
from bench.race.lane import PeerFailed
from bench.race.variants import Chosen, Variant, variants_of
from bench.support.harness import Bench

Measure = Literal["push", "drain_1", "drain_2", "latency"]
MEASURES: tuple[Measure, ...] = ("push", "drain_1", "drain_2", "latency")
SWEPT: tuple[Measure, ...] = ("push", "drain_1", "drain_2")
RECORD = Path(__file__).parent / "sweep.json"
WORK: tuple[tuple[Measure, str], ...] = (("drain_1", "one process"), ("latency", "single pushes"))
PUSHES, RATE = 200, 50
Peers = dict[str, dict[str, Any]]


# --- the record -------------------------------------------------------------------------------------------------------


def read(path: Path = RECORD) -> Peers:
    """Returns what sweeps have recorded of each peer."""
    return dict(json.loads(path.read_text("utf-8"))["peers"]) if path.exists() else {}


def write(peer: str, measure: Measure, found: dict[str, Any], path: Path = RECORD) -> None:
    """Records one measure of a peer, and keeps the rest of the record."""
    peers = read(path)
    peers[peer] = {**peers.get(peer, {}), measure: found}
    path.write_text(json.dumps({"peers": dict(sorted(peers.items()))}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def candidates(peer: str, measure: Measure) -> tuple[Variant, ...]:
    """Returns the variants that can change a measure."""
    return variants_of(peer).push if measure == "push" else variants_of(peer).work


def find_best(recorded: Peers, peer: str, measure: Measure) -> Variant:
    """Returns the variant with the best recorded median, or the first if no sweep has measured those of today."""
    rows = recorded.get(peer, {}).get(measure, {}).get("variants", [])
    medians = [
        (row["median"], variant)
        for variant in candidates(peer, measure)
        for row in rows
        if row["settings"] == variant.settings and row["median"] is not None
    ]
    if not medians:
        return candidates(peer, measure)[0]
    choose = min if measure == "latency" else max
    return choose(medians, key=lambda found: float(found[0]))[1]


def choose(recorded: Peers, peer: str, measure: Measure) -> Chosen:
    """Returns the best push, and the workers that are best in the measure."""
    work = "drain_2" if measure == "push" else measure
    return Chosen(find_best(recorded, peer, "push"), find_best(recorded, peer, work))


def is_swept(recorded: Peers, peer: Peer) -> bool:
    """Returns whether a sweep has measured each variant of today in push and drain, or found that it fails."""
    return all(
        variant.settings
        in [row["settings"] for row in recorded.get(peer.name, {}).get(measure, {}).get("variants", [])]
        for measure in SWEPT
        for variant in candidates(peer.name, measure)
        if len(candidates(peer.name, measure)) > 1
    )


def describe(recorded: Peers, peer: Peer) -> str:
    """Returns the settings with which the race runs a peer, in words."""
    of = {measure: find_best(recorded, peer.name, measure).name for measure in MEASURES}
    work = [f"with {what} {of[measure]}" for measure, what in WORK if of[measure] != of["drain_2"]]
    return "; ".join(part for part in (of["push"], of["drain_2"], *work, peer.settings) if part)


# --- the runs ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trials:
    """The rounds of each variant of a peer in one measure."""

    peer: Peer
    measure: Measure
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rounds = {variant.name: [] for variant in self.variants}

    @property
    def variants(self) -> tuple[Variant, ...]:
        return candidates(self.peer.name, self.measure)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns a row for each variant that ran, the best first, and then those that failed."""
        rows = [self.row(variant) for variant in self.variants if self.rounds[variant.name]]
        rows.sort(key=lambda row: float(row["median"]), reverse=self.measure != "latency")
        failed = [
            {"variant": one.name, "settings": dict(one.settings), "median": None, "failed": self.failed[one.name]}
            for one in self.variants
            if one.name in self.failed
        ]
        return rows + failed

    def row(self, variant: Variant) -> dict[str, Any]:
        rounds = self.rounds[variant.name]
        middle = statistics.median(rounds)
        return {
            "variant": variant.name,
            "settings": dict(variant.settings),
            "median": rounded(middle),
            "rounds": [rounded(one) for one in rounds],
        }


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def sweep(
    server: Bench,
    peers: Sequence[Peer],
    asked: Sequence[Measure],
    rounds: int,
    count: Callable[[Peer], int],
    keep: Callable[[Trials], None],
) -> None:
    """Runs the variants of all peers in turn, and gives the rounds so far to `keep` after each run."""
    trials = [Trials(peer, measure) for measure in asked for peer in peers if len(candidates(peer.name, measure)) > 1]
    for n in range(rounds):
        for trial in trials:
            for variant in turns(trial, n):
                attempt(trial, variant, partial(run, server, trial, variant, count(trial.peer)))
                keep(trial)


def turns(trial: Trials, n: int) -> Iterator[Variant]:
    """Yields the variants that have not failed, in an order that rotates each round."""
    turn = n % len(trial.variants)
    for variant in trial.variants[turn:] + trial.variants[:turn]:
        if variant.name not in trial.failed:
            print(f"  {trial.measure}, round {n + 1}: {trial.peer.name}: {variant.name}", flush=True)
            yield variant


def attempt(trial: Trials, variant: Variant, run_it: Callable[[], float]) -> None:
    """Runs one variant once. A variant that fails is named, and does not run again."""
    try:
        value = run_it()
    except (PeerFailed, psycopg.Error, OSError) as error:
        trial.failed[variant.name] = str(error)
        trial.rounds[variant.name].clear()
        print(f"    failed: {error}", flush=True)
        return
    trial.rounds[variant.name].append(value)
    print(f"    {value:,.1f}", flush=True)


def run(server: Bench, trial: Trials, variant: Variant, tasks: int) -> float:
    """Measures tasks a second, or the median latency in milliseconds."""
    peer, first = trial.peer, variants_of(trial.peer.name)
    if trial.measure == "push":
        return measures.lap(server, peer, Chosen(variant, first.work[0]), tasks, 0).push.rate
    chosen = Chosen(first.push[0], variant)
    if trial.measure == "latency":
        return measures.latency(server, peer, chosen, PUSHES, RATE)["p50"]
    found = measures.lap(server, peer, chosen, tasks, 1 if trial.measure == "drain_1" else 2).drain
    assert found is not None
    return found.rate
