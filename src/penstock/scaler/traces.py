"""What arrives when: recorded, or made up with a seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trace:
    """Tasks in the order in which they fall due. Everything is given: every policy meets the same tasks."""

    name: str
    due: list[float]  # seconds from the beginning, ascending
    service: list[float]  # seconds each takes in a slot
    known: list[float]  # since when it was in our tables as planned; its due time: it came unannounced
    duration: float
    outages: tuple[tuple[float, float], ...] = ()  # (from, to) when no metrics could be read
