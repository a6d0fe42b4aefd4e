"""Advice when to retry failed tasks, from the results of earlier retries. Pure.

The chance of an attempt is taken to depend on the age of the task only. Then every strategy can be judged by the same
attempts, also one that was never used. It is judged twice, because we do not know how much the attempts of a task have
in common: as if each had a chance of its own, and as if all within a bucket of age had the same result, so that only
the first counts. A suggestion must be as good as the present plan in both. Nothing is suggested for ages without
attempts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.formatting import format_duration
from penstock.pipeline.learn.wilson import wilson_interval
from penstock.retry import Delays, Exponential, Fibonacci, Fixed, Progressive, Strategy, from_json

MIN_RETRIES = 30  # with fewer, nothing is suggested
MIN_TRIES_PER_AGE = 10  # a bucket with fewer is merged into the one before
MAX_RETRIES = 50  # of a plan that are considered
MAX_LOSS = 0.005  # share of failed tasks that a change may lose
MAX_COST_SHARE = 0.8  # of retries × time until success: a smaller improvement is not worth a change
MAX_DELAY_FACTOR = 2.0  # times the present time until success
WAITS = (1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)  # seconds
FACTORS = (2.0, 3.0, 4.0)
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)  # retries that a suggestion may make


@dataclass(frozen=True, slots=True)
class Chance:
    """Attempts that have something in common, and how many of them succeeded."""

    tries: int
    successes: int
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """The share of the attempts that succeeded."""
        return self.successes / self.tries if self.tries else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds between which the true share is with 95 % confidence."""
        return wilson_interval(self.successes, self.tries)

    def __add__(self, other: Chance) -> Chance:
        return Chance(self.tries + other.tries, self.successes + other.successes, self.seconds + other.seconds)

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as JSON."""
        least, most = self.interval
        facts = {"tries": self.tries, "successes": self.successes, "share": self.share, "surely_between": [least, most]}
        return facts | {"run_seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Chances:
    """Chances by age: the lower bound of each bucket, and the attempts in it, in order."""

    ages: tuple[float, ...]
    of: tuple[Chance, ...]
    end: float  # of the last bucket: no older task was retried

    @classmethod
    def by_age(cls, found: Iterable[tuple[float, Chance]], end: float) -> Chances:
        """Merges ages with few attempts into the next younger one; the youngest into the next older one."""
        merged: list[tuple[float, Chance]] = []
        for age, one in sorted(found, key=lambda pair: pair[0]):
            if merged and min(one.tries, merged[-1][1].tries) < MIN_TRIES_PER_AGE:
                merged[-1] = (merged[-1][0], merged[-1][1] + one)
            else:
                merged.append((age, one))
        return cls(tuple(age for age, _ in merged), tuple(one for _, one in merged), end)

    @property
    def all(self) -> Chance:
        return sum(self.of, Chance(0, 0))

    def at(self, age: float) -> Chance | None:
        """Returns the chance at an age. None: no task was that young when it was retried. Ages above the oldest bucket
        have its chance."""
        index = self.find_index(age)
        return self.of[index] if index >= 0 else None

    def find_index(self, age: float) -> int:
        """Returns the index of the bucket of an age; -1: it is below the first bucket."""
        return bisect_right(self.ages, age) - 1


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """A retry strategy, and after how many attempts a task is dead."""

    strategy: Strategy
    max_attempts: int | None

    def waits(self) -> Iterator[tuple[float, float]]:
        """Yields (age after the wait, the wait) of each retry, if each attempt fails at once."""
        stored, age = self.strategy.to_json(), 0.0
        plain = from_json({**stored, "jitter": 0.0}) if "jitter" in stored else self.strategy
        for failures in range(1, min(MAX_RETRIES, (self.max_attempts or MAX_RETRIES + 1) - 1) + 1):
            wait = plain.delay(failures, timedelta(seconds=age))
            if wait is None:
                return
            age += wait.total_seconds()
            yield age, wait.total_seconds()


@dataclass(frozen=True, slots=True)
class Prospect:
    """What becomes of tasks that have failed once, under a plan."""

    plan: RetryPlan
    recovered: float  # share, if each attempt has a chance of its own
    least: float  # share, if all attempts within a bucket of age have the same result
    retries: float  # per failed task, on average
    until: float  # seconds from the failure to the success, on average of the tasks that recover
    seconds: float  # of work in failed retries, per failed task
    known: bool  # attempts were seen at every age at which the plan retries

    def to_json(self) -> dict[str, Any]:
        """Returns the plan and its figures as JSON."""
        return {
            "code": format_code(self.plan.strategy),
            "strategy": self.plan.strategy.to_json(),
            "max_attempts": self.plan.max_attempts,
            "waits": [wait for _, wait in self.plan.waits()],
            "recovered": self.recovered,
            "recovered_at_least": self.least,
            "retries_each": self.retries,
            "seconds_until_success": self.until,
            "seconds_in_vain_each": self.seconds,
        }


def predict(plan: RetryPlan, chances: Chances) -> Prospect:
    """Predicts what becomes of failed tasks under a plan."""
    failing, recovered, retries, until, seconds, known = 1.0, 0.0, 0.0, 0.0, 0.0, True
    fates: dict[int, float] = {}
    for age, _ in plan.waits():
        chance = chances.at(age)
        known = known and chance is not None and age < chances.end
        share, mean = (0.0, 0.0) if chance is None else (chance.share, chance.seconds / chance.tries)
        fates[chances.find_index(age)] = share
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
    """What to do. If `suggested` is None, nothing better is known, and `said` explains why."""

    present: Prospect | None
    suggested: Prospect | None
    said: str

    def to_json(self) -> dict[str, Any]:
        """Returns both plans and the advice as JSON."""
        facts = {"present": self.present, "suggested": self.suggested}
        return {name: None if one is None else one.to_json() for name, one in facts.items()} | {"said": self.said}


def advise(chances: Chances, present: RetryPlan | None) -> Advice:
    """Suggests a plan that recovers as many tasks as the present one with no more retries. Of those plans it takes the
    one with the lowest product of retries and time until success."""
    seen = chances.all.tries
    now = predict(present, chances) if present is not None and seen else None
    if seen < MIN_RETRIES:
        return Advice(now, None, f"Too little is known: {seen} retries were seen, {MIN_RETRIES} are needed.")
    if not chances.all.successes:
        said = f"None of {seen:,} retries succeeded: whatever the schedule, it is the errors that must be mended."
        return Advice(now, None, said)
    found = [one for plan in list_candidates() if (one := predict(plan, chances)).known]
    fit = [one for one in found if is_as_good(one, now, found)]
    if not fit:
        return Advice(now, None, "Keep it: nothing that was tried recovers as many tasks as soon.")
    best = min(fit, key=lambda one: (round(one.retries * one.until, 1), len(format_code(one.plan.strategy))))
    if now is not None and best.retries * best.until > MAX_COST_SHARE * now.retries * now.until:
        said = f"Keep it: nothing is much better than {now.retries:.1f} retries each and {format_duration(now.until)}."
        return Advice(now, None, said)
    return Advice(now, best, explain(chances, now, best))


def is_as_good(one: Prospect, now: Prospect | None, others: Sequence[Prospect]) -> bool:
    if now is None:
        most, least = max(other.recovered for other in others), max(other.least for other in others)
        return one.recovered >= 0.98 * most and one.least >= 0.98 * least
    within = one.retries <= now.retries and one.until <= MAX_DELAY_FACTOR * now.until
    return within and one.recovered >= now.recovered - MAX_LOSS and one.least >= now.least - MAX_LOSS


def list_candidates() -> Iterator[RetryPlan]:
    """Yields plans of each strategy, from the shortest waits to the longest."""
    for wait in WAITS:
        strategies: list[Strategy] = [Fixed(wait), Fibonacci(wait, cap="1d")]
        strategies += [Exponential(wait, factor, "1d", 0.1) for factor in FACTORS]
        for strategy in strategies:
            yield from (RetryPlan(strategy, count + 1) for count in COUNTS)


def explain(chances: Chances, now: Prospect | None, best: Prospect) -> str:
    said = f"Of 100 failed tasks {format_recovered(best)} recover after {best.retries:.1f} retries each"
    said += f" and {format_duration(best.until)} on average"
    if now is not None:
        said += f"; now {format_recovered(now)}, {now.retries:.1f} and {format_duration(now.until)}"
    worst = min(zip(chances.ages, chances.of, strict=True), key=lambda pair: pair[1].share)
    top = max(zip(chances.ages, chances.of, strict=True), key=lambda pair: pair[1].share)
    if worst[1].interval[1] < top[1].interval[0]:
        said += f". Tries from {format_duration(top[0])} of age on: {format_chance(top[1])}"
        said += f"; from {format_duration(worst[0])} on: {format_chance(worst[1])}"
    return said + "."


def format_recovered(one: Prospect) -> str:
    least, most = round(100 * one.least), round(100 * one.recovered)
    return f"{least} to {most}" if least != most else str(most)


def format_chance(chance: Chance) -> str:
    least, most = chance.interval
    return f"{100 * chance.share:.0f} % of {chance.tries:,} ({100 * least:.0f}–{100 * most:.0f} %)"


# --- formatting -------------------------------------------------------------------------------------------------------


def format_code(strategy: Strategy) -> str:
    """Returns a strategy as Python code."""
    match strategy:
        case Fibonacci(unit=unit, cap=cap):
            return f"Fibonacci({format_short(unit)!r}, cap={format_cap(cap)})"
        case Exponential(base=base, factor=factor, cap=cap, jitter=jitter):
            return f"Exponential({format_short(base)!r}, factor={factor:g}, cap={format_cap(cap)}, jitter={jitter:g})"
        case Fixed(every=every):
            return f"Fixed({format_short(every)!r})"
        case Delays(delays=delays):
            return f"Delays({[format_short(one) for one in delays]!r})"
        case Progressive(tiers=tiers):
            return f"Progressive({[(format_short(until), format_short(every)) for until, every in tiers]!r})"
    return str(strategy.to_json())


def format_cap(cap: float | None) -> str:
    return "None" if cap is None else repr(format_short(cap))


def format_short(seconds: float) -> str:
    """Formats seconds in the largest unit in which they are a whole number."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:g}ms"
