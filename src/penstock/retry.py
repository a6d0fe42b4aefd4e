"""Retry strategies, which decide when a failed task is tried again. Strategies are data: they are stored per queue and
kind, evaluated in SQL (`penstock.retry_delay`), and here for previews. A property test checks that both results are
equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from penstock.errors import ValidationError, shown
from penstock.model import Duration
from penstock.validate import LONGEST_DELAY, positive

LONGEST = LONGEST_DELAY.total_seconds()


class Strategy(Protocol):
    """The interface of a retry strategy."""

    def delay(self, failures: int, age: timedelta = ..., seed: int = ...) -> timedelta | None:
        """Returns how long to wait after so many failures at that age, or None to stop trying."""

    def to_json(self) -> dict[str, Any]:
        """Returns the strategy as it is stored."""
        ...


def spread(seed: int, failures: int) -> float:
    """Returns a number between 0 and 1 that looks random and is the same here and in SQL. Neighbouring ids give distant
    numbers."""
    return ((abs(seed) % 2147483648) * 2654435761 + failures * 1013904223) % 4294967296 / 4294967296


def at_least_one(failures: int) -> int:
    """Returns a count of failures that is at least 1."""
    if type(failures) is not int or failures < 1:
        raise ValidationError(f"failures: {shown(failures)} is not a count of at least 1", field="failures")
    return failures


def make_delay(seconds: float, cap: float | None) -> timedelta:
    """Returns a delay of so many seconds, at most `cap` and ten years."""
    return timedelta(microseconds=round(min(seconds, LONGEST if cap is None else min(cap, LONGEST)) * 1e6))


def seconds_of(value: Duration, field: str) -> float:
    """Returns a positive duration in seconds."""
    return positive(value, field).total_seconds()


@dataclass(frozen=True, slots=True, init=False)
class Fibonacci:
    """Waits 1, 1, 2, 3, 5, 8, … × unit: one unit after one or two failures, eight after six."""

    unit: float
    cap: float | None

    def __init__(self, unit: Duration = "1m", cap: Duration | None = None) -> None:
        object.__setattr__(self, "unit", seconds_of(unit, "unit"))
        object.__setattr__(self, "cap", None if cap is None else seconds_of(cap, "cap"))

    def delay(self, failures: int, age: timedelta = timedelta(), seed: int = 0) -> timedelta | None:  # noqa: ARG002
        """Returns how long to wait after so many failures."""
        before, now, cap = 0.0, self.unit, LONGEST if self.cap is None else min(self.cap, LONGEST)
        for _ in range(at_least_one(failures) - 1):
            if now >= cap:
                break
            before, now = now, now + before
        return make_delay(now, self.cap)

    def to_json(self) -> dict[str, Any]:
        """Returns the strategy as it is stored."""
        return without_none({"type": "fibonacci", "unit": self.unit, "cap": self.cap})


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Waits base, base × factor, base × factor², … up to cap, each spread by ± jitter."""

    base: float
    factor: float
    cap: float | None
    jitter: float

    def __init__(
        self, base: Duration = "5s", factor: float = 2.0, cap: Duration | None = "1h", jitter: float = 0.1
    ) -> None:
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 1 <= factor <= 1000:
            raise ValidationError(f"factor: {shown(factor)} is not between 1 and 1000", field="factor")
        if not isinstance(jitter, (int, float)) or isinstance(jitter, bool) or not 0 <= jitter <= 1:
            raise ValidationError(f"jitter: {shown(jitter)} is not between 0 and 1", field="jitter")
        object.__setattr__(self, "base", seconds_of(base, "base"))
        object.__setattr__(self, "factor", float(factor))
        object.__setattr__(self, "cap", None if cap is None else seconds_of(cap, "cap"))
        object.__setattr__(self, "jitter", float(jitter))

    def delay(self, failures: int, age: timedelta = timedelta(), seed: int = 0) -> timedelta | None:  # noqa: ARG002
        """Returns how long to wait after so many failures."""
        steps, cap = at_least_one(failures) - 1, LONGEST if self.cap is None else min(self.cap, LONGEST)
        # Logarithms are compared first, because the power itself would overflow long before failures run out.
        if steps * math.log(self.factor) >= math.log(cap / self.base):
            wait = cap
        else:
            wait = min(self.base * math.pow(self.factor, steps), cap)
        wait *= 1 + self.jitter * (2 * spread(seed, failures) - 1)
        return timedelta(microseconds=round(wait * 1e6))

    def to_json(self) -> dict[str, Any]:
        """Returns the strategy as it is stored."""
        return without_none(
            {"type": "exponential", "base": self.base, "factor": self.factor, "cap": self.cap, "jitter": self.jitter}
        )


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """Always waits the same time."""

    every: float

    def __init__(self, delay: Duration) -> None:
        object.__setattr__(self, "every", seconds_of(delay, "delay"))

    def delay(self, failures: int, age: timedelta = timedelta(), seed: int = 0) -> timedelta | None:  # noqa: ARG002
        """Returns how long to wait after so many failures."""
        at_least_one(failures)
        return make_delay(self.every, None)

    def to_json(self) -> dict[str, Any]:
        """Returns the strategy as it is stored."""
        return {"type": "fixed", "delay": self.every}


@dataclass(frozen=True, slots=True, init=False)
class Delays:
    """Waits these delays one after the other, then stops."""

    delays: tuple[float, ...]

    def __init__(self, delays: Sequence[Duration]) -> None:
        if isinstance(delays, str) or not 1 <= len(delays) <= 1000:
            raise ValidationError(f"delays: {shown(delays)} is not a list of 1 to 1000 waits", field="delays")
        object.__setattr__(self, "delays", tuple(seconds_of(one, "delays") for one in delays))

    def delay(self, failures: int, age: timedelta = timedelta(), seed: int = 0) -> timedelta | None:  # noqa: ARG002
        """Returns how long to wait after so many failures, or None to stop trying."""
        at_least_one(failures)
        return make_delay(self.delays[failures - 1], None) if failures <= len(self.delays) else None

    def to_json(self) -> dict[str, Any]:
        """Returns the strategy as it is stored."""
        return {"type": "delays", "delays": list(self.delays)}


@dataclass(frozen=True, slots=True, init=False)
class Progressive:
    """Waits by age, not by failures: young tasks are tried often, old ones rarely, and at last no more. Tiers are
    (younger than, every)."""

    tiers: tuple[tuple[float, float], ...]

    def __init__(self, tiers: Sequence[tuple[Duration, Duration]] | None = None) -> None:
        pairs = PROGRESSIVE if tiers is None else tiers
        if not 1 <= len(pairs) <= 100:
            raise ValidationError(f"tiers: {len(pairs)} are not 1 to 100", field="tiers")
        found = tuple((duration_of_age(until), seconds_of(every, "tiers")) for until, every in pairs)
        if list(found) != sorted(found) or len({until for until, _ in found}) != len(found):
            raise ValidationError(f"tiers: {shown(pairs)} do not grow by age", field="tiers")
        object.__setattr__(self, "tiers", found)

    @classmethod
    def default(cls) -> Progressive:
        """Returns the strategy with the default tiers."""
        return cls()

    def delay(self, failures: int, age: timedelta = timedelta(), seed: int = 0) -> timedelta | None:  # noqa: ARG002
        """Returns how long to wait at that age, or None to stop trying."""
        at_least_one(failures)
        old = max(age.total_seconds(), 0.0)
        return next((make_delay(every, None) for until, every in self.tiers if old < until), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the strategy as it is stored."""
        return {"type": "progressive", "tiers": [list(tier) for tier in self.tiers]}


RetryPolicy = Callable[[BaseException, int, timedelta], Duration | None]
"""Decides about a retry, by the error, the failures so far and the age of the task. Returns how long to wait, or None
to stop trying."""


@dataclass(frozen=True, slots=True)
class CustomRetry:
    """A retry function of your own. It runs in the worker. Failures without a worker, such as an expiry or another
    client's settle, follow the stored fallback, or the queue's own strategy if there is no fallback."""

    policy: RetryPolicy
    fallback: Strategy | None = None


PROGRESSIVE: tuple[tuple[Duration, Duration], ...] = (
    ("1d", "5m"),
    ("7d", "1h"),
    ("14d", "12h"),
    ("30d", "24h"),
    ("180d", "96h"),
    ("360d", "192h"),
)


def duration_of_age(value: Duration) -> float:
    """Returns the age limit of a tier in seconds."""
    return positive(value, "tiers", most=timedelta(days=36500)).total_seconds()


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def from_json(value: Mapping[str, Any]) -> Strategy:
    """Returns the strategy that `to_json` wrote."""
    match value.get("type"):
        case "fibonacci":
            return Fibonacci(value["unit"], value.get("cap"))
        case "exponential":
            return Exponential(value["base"], value.get("factor", 2.0), value.get("cap"), value.get("jitter", 0.0))
        case "fixed":
            return Fixed(value["delay"])
        case "delays":
            return Delays(value["delays"])
        case "progressive":
            return Progressive([tuple(tier) for tier in value["tiers"]])
        case other:
            raise ValidationError(f"retry: type {shown(other)} is not known", hint=GRAMMAR, field="retry")


GRAMMAR = (
    "Write fibonacci:1m[,cap=1d] · exponential:5s[,factor=2][,cap=1h][,jitter=0.1] · fixed:30s · "
    "delays:1m,5m,1h · progressive[:1d=5m,7d=1h]."
)


def parse(text: str) -> Strategy:
    """Parses a strategy as it is written in a shell."""
    name, _, rest = text.partition(":")
    words = [word for word in rest.split(",") if word]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    try:
        match name:
            case "fibonacci" if len(plain) <= 1 and named.keys() <= {"cap"}:
                return Fibonacci(plain[0] if plain else "1m", cap=named.get("cap"))
            case "exponential" if len(plain) <= 1 and named.keys() <= {"factor", "cap", "jitter"}:
                return Exponential(
                    plain[0] if plain else "5s",
                    factor=float(named.get("factor", 2)),
                    cap=named.get("cap", "1h"),
                    jitter=float(named.get("jitter", 0.1)),
                )
            case "fixed" if len(plain) == 1 and not named:
                return Fixed(plain[0])
            case "delays" if plain and not named:
                return Delays(plain)
            case "progressive" if not plain:
                return Progressive(list(named.items()) or None)
    except ValueError as error:
        if isinstance(error, ValidationError):
            raise ValidationError(f"retry: {shown(text)}: {error.bare}", hint=GRAMMAR, field="retry") from None
    raise ValidationError(f"retry: {shown(text)} is not a strategy", hint=GRAMMAR, field="retry")
