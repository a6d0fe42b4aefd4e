"""Axes with round numbers, and texts as charts need them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to positions. `bent` is a function that gives small values more room."""

    low: float
    high: float
    begin: float
    end: float
    bent: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        low, high = self.bent(self.low), self.bent(self.high)
        share = (self.bent(value) - low) / (high - low) if high > low else 0.0
        return self.begin + (self.end - self.begin) * min(1.0, max(0.0, share))


def escape_text(text: str) -> str:
    """Escapes a text for XML, and replaces control characters, which XML cannot represent."""
    return escape("".join(one if one.isprintable() else "\ufffd" for one in text))


def round_step(span: float, most: int) -> float:
    """Returns 1, 2 or 5 times a power of ten, so that at most `most` steps fit into the span."""
    least = span / most
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * one for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))


def list_multiples(low: float, high: float, step: float) -> list[float]:
    """Returns the multiples of the step from low to high."""
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def list_round_values(most: float, count: int = 3) -> list[float]:
    """Returns round numbers from 0 to the first one that is not below the largest value."""
    step = round_step(max(most, 1e-9), count)
    return list_multiples(0.0, math.ceil(most / step - 1e-9) * step, step) if most > 0 else [0.0, 1.0]


def format_axis_value(value: float) -> str:
    """Formats a number for an axis."""
    if value >= 10_000:
        short = next((size, name) for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= size)
        return f"{value / short[0]:.4g} {short[1]}"
    return f"{value:.4g}"
