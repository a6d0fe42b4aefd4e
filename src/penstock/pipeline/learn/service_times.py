"""Estimates how long tasks run while some still run. Pure.

A run that was interrupted, or still goes on, lasts at least as long as it has so far: it counts as at risk in each
bucket that it outlived, and in no other (Kaplan and Meier). Without these runs, slow tasks would look fast exactly when
they pile up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PER_DECADE = 10  # buckets for each power of ten seconds: each is a quarter wider than the one before
MIN_SECONDS = 0.001  # seconds
PRIOR_RUNS = 20.0  # the weight of the mean of all kinds, in runs
MAX_KINDS = 200
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of a kind with about the same duration. Not ended: they still go on, or were interrupted."""

    kind: str
    bucket: int
    ended: bool
    runs: int
    seconds: float
    squares: float = 0.0  # of seconds, summed


def find_bucket(seconds: float) -> int:
    return math.floor(PER_DECADE * math.log10(max(MIN_SECONDS, seconds)))


def lower_end(bucket: int) -> float:
    return math.pow(10.0, bucket / PER_DECADE)


def estimate_survival(ended: Mapping[int, int], cut: Mapping[int, int]) -> tuple[dict[int, float], float]:
    """Returns the share of tasks that end in each bucket, and the share whose end was never seen."""
    left, alive, shares = sum(ended.values()) + sum(cut.values()), 1.0, {}
    for bucket in sorted({*ended, *cut}):
        ends = ended.get(bucket, 0)
        if ends:
            shares[bucket] = alive * ends / left
            alive -= shares[bucket]
        left -= ends + cut.get(bucket, 0)
    return shares, max(0.0, alive) if alive > 1e-12 else 0.0


def find_quantile(shares: Mapping[int, float], share: float) -> float | None:
    """Returns the seconds within which this share ends: the upper bound of a bucket. None: longer than any run that
    ended."""
    total = 0.0
    for bucket in sorted(shares):
        total += shares[bucket]
        if total >= share - 1e-9:
            return lower_end(bucket + 1)
    return None


def summarize_service(runs: Sequence[Runs]) -> dict[str, Any] | None:
    """Returns the run times of a profile. None: no run has ended yet."""
    ended, cut = count_buckets(runs, ended=True), count_buckets(runs, ended=False)
    completed = sum(ended.values())
    if not completed:
        return None
    mean, spread = measure_pace(runs)
    shares, beyond = estimate_survival(ended, cut)
    return {
        "ended": completed,
        "censored": sum(cut.values()),
        "mean": mean,
        "cv": spread,
        "buckets": [[bucket, share] for bucket, share in sorted(shares.items())],
        "beyond": beyond,
        **{f"p{round(100 * share)}": find_quantile(shares, share) for share in QUANTILES},
        "kinds": summarize_kinds(runs, mean, spread),
    }


def count_buckets(runs: Iterable[Runs], *, ended: bool) -> Counter[int]:
    found: Counter[int] = Counter()
    for one in runs:
        if one.ended is ended:
            found[one.bucket] += one.runs
    return found


def measure_pace(runs: Iterable[Runs]) -> tuple[float, float]:
    """Returns the seconds of work for each run that ended, including the work of the others, and the coefficient of
    variation."""
    several = [*runs]
    ended = [one for one in several if one.ended]
    count, seconds = sum(one.runs for one in ended), sum(one.seconds for one in ended)
    if not count or not seconds:
        return 0.0, 0.0
    variance = max(0.0, sum(one.squares for one in ended) / count - (seconds / count) ** 2)
    return sum(one.seconds for one in several) / count, math.sqrt(variance) / (seconds / count)


def summarize_kinds(runs: Sequence[Runs], mean: float, spread: float) -> dict[str, dict[str, float]]:
    """Returns the pace of each kind, shrunk towards the pace of all kinds: the fewer runs of a kind, the more."""
    by_kind: dict[str, list[Runs]] = {}
    for one in runs:
        by_kind.setdefault(one.kind, []).append(one)
    often = sorted(by_kind, key=lambda kind: (-sum(one.runs for one in by_kind[kind]), kind))[:MAX_KINDS]
    return {kind: shrink_kind(by_kind[kind], mean, spread) for kind in sorted(often)}


def shrink_kind(runs: Sequence[Runs], mean: float, spread: float) -> dict[str, float]:
    count = sum(one.runs for one in runs if one.ended)
    seconds = sum(one.seconds for one in runs)
    _, own = measure_pace(runs)
    return {
        "runs": count,
        "mean": (seconds + PRIOR_RUNS * mean) / (count + PRIOR_RUNS),
        "cv": math.sqrt((count * own**2 + PRIOR_RUNS * spread**2) / (count + PRIOR_RUNS)),
    }
