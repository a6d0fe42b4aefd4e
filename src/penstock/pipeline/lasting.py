"""How long tasks take, as far as one can tell while some still run. Pure.

A run that was cut short, or that goes on, has taken at least as long as it has: it counts among those that might have
ended in each bucket that it outlived, and in no other (Kaplan and Meier). To leave it out would make slow tasks look
fast exactly when they pile up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PER_DECADE = 10  # buckets for each power of ten seconds: one is a quarter wider than the one before
SHORTEST = 0.001  # seconds
PRIOR = 20.0  # runs of all kinds that speak beside those of a kind
MOST_KINDS = 200
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of a kind that took about as long as each other. Not ended: they may still go on, or were cut short."""

    kind: str
    bucket: int
    ended: bool
    runs: int
    seconds: float
    squares: float = 0.0  # of seconds, summed


def bucket_of(seconds: float) -> int:
    return math.floor(PER_DECADE * math.log10(max(SHORTEST, seconds)))


def lower_end(bucket: int) -> float:
    return math.pow(10.0, bucket / PER_DECADE)


def survival(ended: Mapping[int, int], cut: Mapping[int, int]) -> tuple[dict[int, float], float]:
    """The share of tasks that end in each bucket, and the share of which nobody has seen the end."""
    left, alive, shares = sum(ended.values()) + sum(cut.values()), 1.0, {}
    for bucket in sorted({*ended, *cut}):
        ends = ended.get(bucket, 0)
        if ends:
            shares[bucket] = alive * ends / left
            alive -= shares[bucket]
        left -= ends + cut.get(bucket, 0)
    return shares, max(0.0, alive) if alive > 1e-12 else 0.0


def quantile(shares: Mapping[int, float], share: float) -> float | None:
    """Seconds within which so many end: the upper end of the bucket; None: longer than anybody has seen."""
    total = 0.0
    for bucket in sorted(shares):
        total += shares[bucket]
        if total >= share - 1e-9:
            return lower_end(bucket + 1)
    return None


def service(runs: Sequence[Runs]) -> dict[str, Any] | None:
    """What a profile says of run times; None: no run has ever ended."""
    ended, cut = counted(runs, ended=True), counted(runs, ended=False)
    completed = sum(ended.values())
    if not completed:
        return None
    mean, spread = pace(runs)
    shares, beyond = survival(ended, cut)
    return {
        "ended": completed,
        "censored": sum(cut.values()),
        "mean": mean,
        "cv": spread,
        "buckets": [[bucket, share] for bucket, share in sorted(shares.items())],
        "beyond": beyond,
        **{f"p{round(100 * share)}": quantile(shares, share) for share in QUANTILES},
        "kinds": kinds(runs, mean, spread),
    }


def counted(runs: Iterable[Runs], *, ended: bool) -> Counter[int]:
    found: Counter[int] = Counter()
    for one in runs:
        if one.ended is ended:
            found[one.bucket] += one.runs
    return found


def pace(runs: Iterable[Runs]) -> tuple[float, float]:
    """Seconds of work for each run that ended, those of the others included; and how much runs differ (cv)."""
    several = [*runs]
    ended = [one for one in several if one.ended]
    count, seconds = sum(one.runs for one in ended), sum(one.seconds for one in ended)
    if not count or not seconds:
        return 0.0, 0.0
    variance = max(0.0, sum(one.squares for one in ended) / count - (seconds / count) ** 2)
    return sum(one.seconds for one in several) / count, math.sqrt(variance) / (seconds / count)


def kinds(runs: Sequence[Runs], mean: float, spread: float) -> dict[str, dict[str, float]]:
    """The same for each kind, drawn towards all of them: the more, the fewer of its runs were seen."""
    by_kind: dict[str, list[Runs]] = {}
    for one in runs:
        by_kind.setdefault(one.kind, []).append(one)
    often = sorted(by_kind, key=lambda kind: (-sum(one.runs for one in by_kind[kind]), kind))[:MOST_KINDS]
    return {kind: drawn(by_kind[kind], mean, spread) for kind in sorted(often)}


def drawn(runs: Sequence[Runs], mean: float, spread: float) -> dict[str, float]:
    count = sum(one.runs for one in runs if one.ended)
    seconds = sum(one.seconds for one in runs)
    _, own = pace(runs)
    return {
        "runs": count,
        "mean": (seconds + PRIOR * mean) / (count + PRIOR),
        "cv": math.sqrt((count * own**2 + PRIOR * spread**2) / (count + PRIOR)),
    }
