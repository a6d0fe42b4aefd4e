"""A trace, and the random numbers and checks that all traces share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from penstock.errors import ValidationError, shown

MAX_TASKS = 20_000_000
MAX_DURATION = 31 * 86_400.0  # seconds
MINUTE = 60.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Tasks in the order in which they fall due, with their service times. Every policy gets the same tasks."""

    name: str
    due: list[float]  # seconds from the beginning, in ascending order
    service: list[float]  # seconds that each task takes in a slot
    known: list[float]  # when each task was planned; its due time: it was not planned
    duration: float
    outages: tuple[tuple[float, float], ...] = ()  # (from, to) in which no metrics can be read


def check_between(value: object, field: str, least: float, most: float) -> float:
    """Returns the value as a float, or raises ValidationError if it is not a number within the limits."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise ValidationError(f"{field}: {shown(value)} is not a number from {least:g} to {most:g}", field=field)


def random_stream(seed: int, use: str) -> Random:
    """Returns random numbers for one use, so that other service times do not change the arrivals."""
    return Random(f"{seed} {use}")  # noqa: S311 - it is not for secrets


def poisson_arrivals(stretches: Iterable[tuple[float, float, float]], random: Random) -> list[float]:
    """Returns the arrivals of a Poisson process over stretches of (begin, end, expected arrivals). On a clock that runs
    faster where more arrivals are expected, there is one arrival per unit on average."""
    found, clock, next_at = [], 0.0, random.expovariate(1.0)
    for begin, end, expected in stretches:
        while next_at < clock + expected:
            found.append(begin + (end - begin) * (next_at - clock) / expected)
            next_at += random.expovariate(1.0)
        clock += expected
    return found


def draw_lognormal(mean: float, cv: float, count: int, random: Random) -> list[float]:
    if not cv:
        return [mean] * count
    variance = math.log1p(cv * cv)
    mu, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return [random.lognormvariate(mu, sigma) for _ in range(count)]


def transpose(rows: Sequence[tuple[float, ...]], width: int) -> list[list[float]]:
    return [[row[n] for row in rows] for n in range(width)]
