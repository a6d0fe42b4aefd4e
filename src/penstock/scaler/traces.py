"""What arrives when: recorded, or made up with a seed."""

from __future__ import annotations

import csv
import difflib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random

from penstock.errors import ValidationError, shown
from penstock.validate import whole

MOST_TASKS = 20_000_000
LONGEST = 31 * 86_400.0
MINUTE = 60.0
HOUR = 3600.0
FIBONACCI = (60.0, 60.0, 120.0, 180.0, 300.0, 480.0, 780.0, 1260.0, 2040.0, 3300.0)  # what a failed task waits
HEAVY_TAIL = 4.0  # standard deviation / mean


@dataclass(frozen=True, slots=True)
class Trace:
    """Tasks in the order in which they fall due. Everything is given: every policy meets the same tasks."""

    name: str
    due: list[float]  # seconds from the beginning, ascending
    service: list[float]  # seconds each takes in a slot
    known: list[float]  # since when it was in our tables as planned; its due time: it came unannounced
    duration: float
    outages: tuple[tuple[float, float], ...] = ()  # (from, to) when no metrics could be read


def find(
    text: str,
    *,
    seed: int = 0,
    service: float = 2.0,
    cv: float = 1.0,
    start: float | str | None = None,
    duration: float | None = None,
    tasks: int | None = None,
    speed: float = 1.0,
) -> Trace:
    """A trace by what one writes in a shell: the name of a made-up one, or a file."""
    if text not in SYNTHETIC:
        if not Path(text).exists() and Path(text).name == text and not Path(text).suffix:
            raise unknown(text)
        return load(
            text, seed=seed, service=service, cv=cv, start=start, duration=duration, tasks=tasks, speed=speed
        )
    for field, value, usual in (("start", start, None), ("speed", speed, 1.0)):
        if value != usual:
            raise ValidationError(f"{field}: {text} is made up, only a recording has a {field}", field=field)
    return named(
        text,
        seed=seed,
        service=service,
        cv=cv,
        duration=6 * HOUR if duration is None else duration,
        tasks=100_000 if tasks is None else tasks,
    )


def unknown(name: object) -> ValidationError:
    near = difflib.get_close_matches(str(name), SYNTHETIC, n=1, cutoff=0.4)
    meant = f"Did you mean {near[0]}? " if near else ""
    return ValidationError(
        f"trace: {shown(name)} is neither a name nor a file",
        hint=f"{meant}Names are {', '.join(SYNTHETIC)}.",
        field="trace",
    )


def above(value: object, field: str, least: float, most: float) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not least <= value <= most:  # type: ignore[operator]
        raise ValidationError(f"{field}: {shown(value)} is not a number from {least:g} to {most:g}", field=field)
    return float(value)  # type: ignore[arg-type]


# --- made up ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    seed: int
    service: float
    cv: float
    duration: float
    tasks: int

    @property
    def rate(self) -> float:
        return self.tasks / self.duration

    def stream(self, use: str) -> Random:
        """Each use has random numbers of its own: asking for other service times leaves the arrivals as they are."""
        return stream(self.seed, use)
