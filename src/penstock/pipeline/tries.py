"""When a failed task should be tried again, by what became of those that were. Pure.

The chance of a try is taken to depend on how old the task is: then every schedule can be judged by the same tries, also
one that nobody has used. Twice, because nobody knows how alike the tries of a task are: as if each were a chance of its
own, and as if all within a bucket of age had one fate, so that only the first counts. A suggestion must be as good in
both. Nothing is suggested for ages at which no try was seen.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.pipeline.spoken import length
from penstock.pipeline.wilson import wilson
from penstock.retry import Exponential, Fibonacci, Fixed, Progressive, Schedule, Strategy, from_json

ENOUGH = 30  # retries, below which nothing is suggested
ENOUGH_OF_AN_AGE = 10  # tries of a bucket of age, below which it is counted with the one before
MOST_RETRIES = 50  # that are looked at
AS_GOOD = 0.005  # share of failed tasks that may be lost by a change
WORTH = 0.8  # times retries × time until success, at most: less is not worth a change
NO_LATER = 2.0  # times as long until success, at most
WAITS = (1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)  # seconds
FACTORS = (2.0, 3.0, 4.0)
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)  # retries that a suggestion may make


@dataclass(frozen=True, slots=True)
class Chance:
    """Tries that have something in common, and how many of them were successes."""

    tries: int
    successes: int
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.successes / self.tries if self.tries else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.successes, self.tries)

    def __add__(self, other: Chance) -> Chance:
        return Chance(self.tries + other.tries, self.successes + other.successes, self.seconds + other.seconds)

    def to_json(self) -> dict[str, Any]:
        least, most = self.interval
        told = {"tries": self.tries, "successes": self.successes, "share": self.share, "surely_between": [least, most]}
        return told | {"run_seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Chances:
    """By age: of each bucket its lower end and what became of tries in it, in order."""

    ages: tuple[float, ...]
    of: tuple[Chance, ...]
    end: float  # of the last bucket: nobody has tried an older task

    @classmethod
    def by_age(cls, found: Iterable[tuple[float, Chance]], end: float) -> Chances:
        """Ages of which little was seen are counted with the younger ones; the youngest with the next."""
        merged: list[tuple[float, Chance]] = []
        for age, one in sorted(found, key=lambda pair: pair[0]):
            if merged and min(one.tries, merged[-1][1].tries) < ENOUGH_OF_AN_AGE:
                merged[-1] = (merged[-1][0], merged[-1][1] + one)
            else:
                merged.append((age, one))
        return cls(tuple(age for age, _ in merged), tuple(one for _, one in merged), end)

    @property
    def all(self) -> Chance:
        return sum(self.of, Chance(0, 0))

    def at(self, age: float) -> Chance | None:
        """None: no task was that young when it was tried again. Older ones are as the oldest that were."""
        place = self.place(age)
        return self.of[place] if place >= 0 else None

    def place(self, age: float) -> int:
        """Its bucket; -1: before the first."""
        return bisect_right(self.ages, age) - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy, and after how many attempts a task is dead."""

    strategy: Strategy
    max_attempts: int | None

    def waits(self) -> Iterator[tuple[float, float]]:
        """(age after the wait, the wait) of each retry, if every one fails at once."""
        stored, age = self.strategy.to_json(), 0.0
        plain = from_json({**stored, "jitter": 0.0}) if "jitter" in stored else self.strategy
        for failures in range(1, min(MOST_RETRIES, (self.max_attempts or MOST_RETRIES + 1) - 1) + 1):
            wait = plain.delay(failures, timedelta(seconds=age))
            if wait is None:
                return
            age += wait.total_seconds()
            yield age, wait.total_seconds()


@dataclass(frozen=True, slots=True)
class Prospect:
    """What becomes of tasks that have failed once."""

    plan: Plan
    recovered: float  # share, if each try is a chance of its own
    least: float  # share, if those within a bucket of age have one fate
    retries: float  # each, on average
    until: float  # seconds from the failure to the success, on average of those that recover
    seconds: float  # of work in retries that fail, each
    known: bool  # tries were seen at every age at which it tries

    def to_json(self) -> dict[str, Any]:
        return {
            "code": code(self.plan.strategy),
            "strategy": self.plan.strategy.to_json(),
            "max_attempts": self.plan.max_attempts,
            "waits": [wait for _, wait in self.plan.waits()],
            "recovered": self.recovered,
            "recovered_at_least": self.least,
            "retries_each": self.retries,
            "seconds_until_success": self.until,
            "seconds_in_vain_each": self.seconds,
        }


def prospect(plan: Plan, chances: Chances) -> Prospect:
    failing, recovered, retries, until, seconds, known = 1.0, 0.0, 0.0, 0.0, 0.0, True
    fates: dict[int, float] = {}
    for age, _ in plan.waits():
        chance = chances.at(age)
        known = known and chance is not None and age < chances.end
        share, mean = (0.0, 0.0) if chance is None else (chance.share, chance.seconds / chance.tries)
        fates[chances.place(age)] = share
        retries += failing
        recovered += failing * share
        until += failing * share * age
        seconds += failing * (1 - share) * mean
        failing *= 1 - share
    least = 1 - math.prod(1 - share for share in fates.values())
    return Prospect(plan, recovered, least, retries, until / recovered if recovered else 0.0, seconds, known)


# --- suggesting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advice:
    """`suggested` is None: nothing better is known, and `said` says why."""

    present: Prospect | None
    suggested: Prospect | None
    said: str

    def to_json(self) -> dict[str, Any]:
        told = {"present": self.present, "suggested": self.suggested}
        return {name: None if one is None else one.to_json() for name, one in told.items()} | {"said": self.said}


def advise(chances: Chances, present: Plan | None) -> Advice:
    """As many tasks recovered as by the present plan, with no more retries; of those the least retries × time."""
    seen = chances.all.tries
    now = prospect(present, chances) if present is not None and seen else None
    if seen < ENOUGH:
        return Advice(now, None, f"Too little is known: {seen} retries were seen, {ENOUGH} are needed.")
    if not chances.all.successes:
        said = f"None of {seen:,} retries succeeded: whatever the schedule, it is the errors that must be mended."
        return Advice(now, None, said)
    found = [one for plan in candidates() if (one := prospect(plan, chances)).known]
    fit = [one for one in found if as_good(one, now, found)]
    if not fit:
        return Advice(now, None, "Keep it: nothing that was tried recovers as many tasks as soon.")
    best = min(fit, key=lambda one: (round(one.retries * one.until, 1), len(code(one.plan.strategy))))
    if now is not None and best.retries * best.until > WORTH * now.retries * now.until:
        said = f"Keep it: nothing is much better than {now.retries:.1f} retries each and {length(now.until)}."
        return Advice(now, None, said)
    return Advice(now, best, reason(chances, now, best))


def as_good(one: Prospect, now: Prospect | None, others: Sequence[Prospect]) -> bool:
    if now is None:
        most, least = max(other.recovered for other in others), max(other.least for other in others)
        return one.recovered >= 0.98 * most and one.least >= 0.98 * least
    within = one.retries <= now.retries and one.until <= NO_LATER * now.until
    return within and one.recovered >= now.recovered - AS_GOOD and one.least >= now.least - AS_GOOD


def candidates() -> Iterator[Plan]:
    """Of every form, from the shortest waits to the longest."""
    for wait in WAITS:
        strategies: list[Strategy] = [Fixed(wait), Fibonacci(wait, cap="1d")]
        strategies += [Exponential(wait, factor, "1d", 0.1) for factor in FACTORS]
        for strategy in strategies:
            yield from (Plan(strategy, count + 1) for count in COUNTS)


def reason(chances: Chances, now: Prospect | None, best: Prospect) -> str:
    said = f"Of 100 failed tasks {most_likely(best)} recover after {best.retries:.1f} retries each"
    said += f" and {length(best.until)} on average"
    if now is not None:
        said += f"; now {most_likely(now)}, {now.retries:.1f} and {length(now.until)}"
    worst = min(zip(chances.ages, chances.of, strict=True), key=lambda pair: pair[1].share)
    top = max(zip(chances.ages, chances.of, strict=True), key=lambda pair: pair[1].share)
    if worst[1].interval[1] < top[1].interval[0]:
        said += (
            f". Tries from {length(top[0])} of age on: {shown(top[1])}; from {length(worst[0])} on: {shown(worst[1])}"
        )
    return said + "."


def most_likely(one: Prospect) -> str:
    least, most = round(100 * one.least), round(100 * one.recovered)
    return f"{least} to {most}" if least != most else str(most)


def shown(chance: Chance) -> str:
    least, most = chance.interval
    return f"{100 * chance.share:.0f} % of {chance.tries:,} ({100 * least:.0f}–{100 * most:.0f} %)"


# --- as one writes it -------------------------------------------------------------------------------------------------


def code(strategy: Strategy) -> str:
    """For Python."""
    match strategy:
        case Fibonacci(unit=unit, cap=cap):
            return f"Fibonacci({short(unit)!r}, cap={quoted(cap)})"
        case Exponential(base=base, factor=factor, cap=cap, jitter=jitter):
            return f"Exponential({short(base)!r}, factor={factor:g}, cap={quoted(cap)}, jitter={jitter:g})"
        case Fixed(every=every):
            return f"Fixed({short(every)!r})"
        case Schedule(delays=delays):
            return f"Schedule({[short(one) for one in delays]!r})"
        case Progressive(tiers=tiers):
            return f"Progressive({[(short(until), short(every)) for until, every in tiers]!r})"
    return str(strategy.to_json())


def quoted(cap: float | None) -> str:
    return "None" if cap is None else repr(short(cap))


def short(seconds: float) -> str:
    """The largest unit in which it is a whole number."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:g}ms"
