"""Evidence for retries: how likely an attempt succeeds by its number, its age and the error before; what retries cost;
and a retry strategy that would have cost less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from penstock.client import queues
from penstock.client.database import Database
from penstock.errors import NotFound, shown
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.schemas import AGES, CHANCES, ERRORS
from penstock.pipeline.learn.retry_advice import Advice, Chance, Chances, RetryPlan, advise
from penstock.retry import from_json

K = TypeVar("K", int, str)
MAX_FINGERPRINTS = 10  # of a kind: those that occurred most often
MAX_CELLS = 200  # of a kind, by attempt, age and fingerprint
Plans = Mapping[tuple[str, str], RetryPlan]
"""Retry plans by queue and kind. The kind "" is the queue's own."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """An error, and what became of the attempts after it."""

    fingerprint: str
    shape: str
    chance: Chance  # of the attempt after it
    cost: float  # seconds of runs that ended with it


@dataclass(frozen=True, slots=True)
class Cell:
    """Attempts of the same number, age and error before."""

    attempt: int
    age: int
    fingerprint: str | None
    chance: Chance


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of one kind of a queue."""

    queue: str
    kind: str
    first: Chance
    retries: Chance
    attempts: tuple[tuple[int, Chance], ...]
    ages: tuple[tuple[int, Chance], ...]  # of retries
    fingerprints: tuple[Fingerprint, ...]
    cells: tuple[Cell, ...]
    advice: Advice

    def to_json(self) -> dict[str, Any]:
        """Returns the evidence as JSON."""
        return {
            "queue": self.queue,
            "kind": self.kind,
            "first_tries": self.first.to_json(),
            "retries": self.retries.to_json(),
            "by_attempt": [{"attempt": at, **one.to_json()} for at, one in self.attempts],
            "by_age": [{"age_from": at, **one.to_json()} for at, one in self.ages],
            "by_fingerprint": [
                {"fingerprint": one.fingerprint, "error": one.shape, "cost_seconds": one.cost, **one.chance.to_json()}
                for one in self.fingerprints
            ],
            "cells": [
                {"attempt": one.attempt, "age_from": one.age, "fingerprint": one.fingerprint, **one.chance.to_json()}
                for one in self.cells
            ],
            "advice": self.advice.to_json(),
        }


def present_plans(database: Database) -> Plans:
    """Returns the present retry plans, of queues and of kinds that have settings of their own."""
    plans = {one.queue: RetryPlan(from_json(one.retry), one.max_attempts) for one in queues.settings(database)}
    kinds = {
        (queue, kind): RetryPlan(
            plans[queue].strategy if retry is None else from_json(retry),
            plans[queue].max_attempts if most is None else most,
        )
        for queue, kind, retry, most in queues.kind_settings(database)
        if queue in plans
    }
    return kinds | {(queue, ""): plan for queue, plan in plans.items()}


def find_evidence(spark: SparkSession, lake: Lake, plans: Plans, *, queue: str | None = None) -> list[Evidence]:
    """Returns the evidence of each kind; those with most retries first."""
    cells = read_cells(spark, lake)
    if queue is not None:
        check_queue_name(queue, {name for name, _ in cells})
    costs = read_costs(spark, lake)
    found = [
        weigh(name, kind, several, costs.get((name, kind), {}), plans.get((name, kind)) or plans.get((name, "")))
        for (name, kind), several in cells.items()
        if queue in (None, name)
    ]
    return sorted(found, key=lambda one: (-one.retries.tries, one.queue, one.kind))


def check_queue_name(queue: str, known: set[str]) -> None:
    if queue not in known:
        near = get_close_matches(queue, sorted(known), 1)
        hint = f"Did you mean {near[0]}?" if near else "No task of it has run, or the lake was last updated before."
        raise NotFound(f"queue: the lake has no data of queue {shown(queue)}", hint=hint)


def read_cells(spark: SparkSession, lake: Lake) -> dict[tuple[str, str], list[Cell]]:
    """Reads attempts by all that is known before them. There are as many rows as kinds, errors and buckets, however
    large the lake is."""
    rows = (
        lake.read(spark, CHANCES.name)
        .where(f.col("queue").isNotNull())
        .groupBy("queue", "kind", "attempt", "age_bucket_s", "fingerprint")
        .agg(f.sum("tries"), f.sum("successes"), f.sum("run_s_total"))
        .collect()
    )
    found: dict[tuple[str, str], list[Cell]] = {}
    for queue, kind, attempt, age, fingerprint, tries, successes, seconds in rows:
        one = Cell(attempt, age, fingerprint, Chance(tries, successes, seconds or 0.0))
        found.setdefault((queue, kind), []).append(one)
    return found


def read_costs(spark: SparkSession, lake: Lake) -> dict[tuple[str, str], dict[str, tuple[str, float]]]:
    rows = (
        lake.read(spark, ERRORS.name)
        .where(f.col("queue").isNotNull())
        .groupBy("queue", "kind", "fingerprint")
        .agg(f.max(f.concat_ws(": ", "error_class", "error_shape")), f.sum("run_s_total"))
        .collect()
    )
    found: dict[tuple[str, str], dict[str, tuple[str, float]]] = {}
    for queue, kind, fingerprint, shape, seconds in rows:
        found.setdefault((queue, kind), {})[fingerprint] = (shape or "", seconds or 0.0)
    return found


def weigh(
    queue: str, kind: str, cells: Sequence[Cell], costs: Mapping[str, tuple[str, float]], present: RetryPlan | None
) -> Evidence:
    """Returns the evidence about the retries of one kind, with advice."""
    again = [one for one in cells if one.attempt > 1]
    ages = sum_chances((one.age, one.chance) for one in again)
    chances = Chances.by_age(
        ((float(age), one) for age, one in ages), find_age_end(max((age for age, _ in ages), default=0))
    )
    met = sorted(
        sum_chances((one.fingerprint, one.chance) for one in again if one.fingerprint), key=lambda one: -one[1].tries
    )
    return Evidence(
        queue,
        kind,
        sum((one.chance for one in cells if one.attempt == 1), Chance(0, 0)),
        sum((one.chance for one in again), Chance(0, 0)),
        tuple(sum_chances((one.attempt, one.chance) for one in cells)),
        tuple(ages),
        tuple(make_fingerprint(key, one, costs) for key, one in met[:MAX_FINGERPRINTS]),
        tuple(sorted(cells, key=lambda one: -one.chance.tries)[:MAX_CELLS]),
        advise(chances, present),
    )


def make_fingerprint(key: str, chance: Chance, costs: Mapping[str, tuple[str, float]]) -> Fingerprint:
    shape, seconds = costs.get(key, ("", 0.0))
    return Fingerprint(key, shape, chance, seconds)


def find_age_end(age: int) -> float:
    """Returns the upper bound of the bucket of an age."""
    return float(next((one for one in AGES if one > age), 2 * AGES[-1]))


def sum_chances(pairs: Iterable[tuple[K, Chance]]) -> list[tuple[K, Chance]]:
    found: dict[K, Chance] = {}
    for key, chance in pairs:
        found[key] = found.get(key, Chance(0, 0)) + chance
    return sorted(found.items())
