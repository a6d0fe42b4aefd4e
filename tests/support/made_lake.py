"""A simulated lake: a day of three queues, task by task, in the lake's own tables.

One promise is kept, one is broken for an hour, and one queue has none. The gold tables are computed here in plain
Python, by other means than the pipeline's.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from pyspark.sql import SparkSession

from penstock.pipeline.lake import Lake, LakeState, schemas

Row = dict[str, Any]
BEGINS = int(datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp())  # a Monday
ERRORS = (
    ("Timeout", "no answer from <host> within <n> s"),
    ("HttpError", "502 from upstream"),
    ("KeyError", "<script>alert('pwned')</script> & \"quotes\""),
)
IDS = count(1)


@dataclass(frozen=True)
class Made:
    """How a queue behaves; hours count from the beginning."""

    name: str
    rate: Callable[[float], float]  # tasks a second at an hour
    workers: Callable[[float], int]
    service: float  # seconds, on average
    sla: float | None
    failing: Callable[[float, int], float] = lambda _hour, _attempt: 0.02  # chance at an hour, of an attempt
    kinds: tuple[tuple[str, float], ...] = (("mail", 0.7), ("invoice", 2.0))  # and the factor of its service time


def usual() -> list[Made]:
    def day(hour: float) -> float:
        return 0.5 + 0.5 * math.sin(math.pi * (hour + 5) / 12)

    def broken(hour: float, attempt: int) -> float:
        return 0.9 if 1.5 < hour < 2.2 else 0.04 if attempt == 1 else 0.3

    def workers(hour: float) -> int:
        return 4 if 1.9 < hour < 2.4 else 3 + math.ceil(5 * day(hour))

    return [
        Made("orders", lambda hour: 0.05 + 0.25 * day(hour), workers, 8.0, 30.0, broken),
        Made("mail", lambda hour: 0.08 * day(hour), lambda _: 4, 2.0, 60.0),
        Made(
            "<b>odd</b> & more", lambda _: 0.01, lambda _: 1, 20.0, None, kinds=(("</script><i>", 1.0), ("r'\"", 2.0))
        ),
    ]


@dataclass
class World:
    """What happened: rows of silver, and what samples every ten seconds would contain."""

    hours: float
    queues: list[Made]
    seed: int = 1
    attempts: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        for made in self.queues:
            self.attempts += happened(made, self.hours, random.Random(f"{self.seed} {made.name}"))

    def of(self, queue: str) -> list[Row]:
        return [row for row in self.attempts if row["queue"] == queue]


def happened(made: Made, hours: float, chance: random.Random) -> list[Row]:
    """Returns the attempts of a queue: tasks run in the order of their due, by the workers of each hour."""
    waiting = [(at, next(IDS), at, 1, *chosen(made, chance)) for at in arrivals(made, hours, chance)]
    heapq.heapify(waiting)
    free: list[float] = [0.0] * made.workers(0.0)
    rows: list[Row] = []
    while waiting:
        due, task, created, attempt, kind, slow = heapq.heappop(waiting)
        begun = max(due + 0.02 + 0.1 * chance.random(), free[0])
        workers = made.workers(begun / 3600)
        while len(free) > workers:
            heapq.heappop(free)
            begun = max(begun, free[0])
        while len(free) < workers:
            heapq.heappush(free, begun)
        run = max(0.005, made.service * slow * chance.expovariate(1.0))
        heapq.heapreplace(free, begun + run)
        if begun + run > hours * 3600:
            continue  # it still runs: history does not have it
        failed = chance.random() < made.failing(begun / 3600, attempt)
        outcome = "done" if not failed else "failed" if attempt < 6 else "dead"
        rows.append(attempt_row(made, chance, task, created, due, begun, run, attempt, outcome, kind))
        if outcome == "failed":
            delay = 10.0 * 2**attempt
            heapq.heappush(waiting, (begun + run + delay, task, created, attempt + 1, kind, slow))
    return rows


def arrivals(made: Made, hours: float, chance: random.Random) -> Iterable[float]:
    at, most = 0.0, max(made.rate(hour / 4) for hour in range(int(hours * 4) + 1)) + 1e-9
    while (at := at + chance.expovariate(most)) < hours * 3600:
        if chance.random() < made.rate(at / 3600) / most:
            yield at


def chosen(made: Made, chance: random.Random) -> tuple[str, float]:
    return chance.choice(made.kinds)


def attempt_row(
    made: Made,
    chance: random.Random,
    task: int,
    created: float,
    due: float,
    begun: float,
    run: float,
    attempt: int,
    outcome: str,
    kind: str,
) -> Row:
    error_class, shape = ERRORS[min(2, int(chance.expovariate(1.0)))] if outcome != "done" else (None, None)
    wait = begun - due
    late = None if made.sla is None else wait > made.sla
    return {
        "id": next(IDS),
        "xid": next(IDS),
        "queue": made.name,
        "queue_id": 1 + len(made.name),
        "task_id": task,
        "created": stamp(created),
        "due": stamp(due),
        "claimed_at": stamp(begun),
        "finished_at": stamp(begun + run),
        "iteration": 0,
        "attempt": attempt,
        "outcome": outcome,
        "kind": kind,
        "worker": "w",
        "subject": None,
        "error_class": error_class,
        "wait_s": wait,
        "run_s": run,
        "age_s": begun - created,
        "sla_s": made.sla,
        "late": late,
        "late_by_s": None if made.sla is None else max(0.0, wait - made.sla),
        "ended": outcome in ("done", "dead"),
        "fingerprint": None if shape is None else hashlib.sha256(shape.encode()).hexdigest()[:12],
        "error_shape": shape,
        "day": stamp(begun + run).date(),
    }


def stamp(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGINS + round(seconds, 6), UTC)


def since_begin(moment: datetime) -> float:
    return moment.timestamp() - BEGINS


# --- gold -------------------------------------------------------------------------------------------------------------


def minutes(world: World, made: Made) -> list[Row]:
    rows = world.of(made.name)
    starts, ends, born = defaultdict(list), defaultdict(list), Counter[int]()
    for row in rows:
        starts[int(since_begin(row["claimed_at"]) // 60)].append(row)
        ends[int(since_begin(row["finished_at"]) // 60)].append(row)
        if row["attempt"] == 1:
            born[int(since_begin(row["created"]) // 60)] += 1
    seen = samples(world, made)
    return [minute(made, n, starts[n], ends[n], born[n], seen[6 * n : 6 * n + 6]) for n in range(int(world.hours * 60))]


def samples(world: World, made: Made) -> list[tuple[int, float | None, int]]:
    """Returns (waiting, age of the oldest, workers) for every ten seconds."""
    rows = world.of(made.name)
    dues = sorted((since_begin(row["due"]), since_begin(row["claimed_at"])) for row in rows)
    waiting: list[tuple[float, float]] = []
    found, came = [], 0
    for n in range(int(world.hours * 360)):
        at = 10.0 * n + 5
        while came < len(dues) and dues[came][0] <= at:
            waiting.append(dues[came])
            came += 1
        waiting = [one for one in waiting if one[1] > at]
        found.append((len(waiting), at - waiting[0][0] if waiting else None, made.workers(at / 3600)))
    return found


def minute(
    made: Made,
    n: int,
    starts: Sequence[Row],
    ends: Sequence[Row],
    born: int,
    seen: Sequence[tuple[int, float | None, int]],
) -> Row:
    waits, runs = [row["wait_s"] for row in starts], [row["run_s"] for row in ends]
    failures = sum(row["outcome"] != "done" for row in ends)
    late = sum(bool(row["late"]) for row in starts)
    kept = 0 if made.sla is None else len(starts) - late
    row: Row = {
        "queue": made.name,
        "minute": stamp(60.0 * n),
        "arrivals_sampled": born,
        "arrivals_seen": born,
        "starts": len(starts),
        "finishes": len(ends),
        "failures": failures,
        "drain_rate": (len(ends) - failures) / 60,
        "pending": seen[-1][0],
        "oldest_age_s": max((age for _, age, _ in seen if age is not None), default=None),
        "workers": fmean(workers for _, _, workers in seen),
        "samples": len(seen),
        "kept": kept,
        "late": late,
        "sla_s": made.sla,
        "compliance": kept / (kept + late) if kept + late else None,
        "day": stamp(60.0 * n).date(),
    }
    for name, values in (("wait", waits), ("run", runs)):
        row |= {f"{name}_p{q}": percentile(values, q / 100) for q in (50, 95, 99)}
    return row | urgencies(made, [age for _, age, _ in seen])


def urgencies(made: Made, ages: Sequence[float | None]) -> Row:
    if made.sla is None:
        return dict.fromkeys(schemas.URGENCIES)
    levels = [sum((age or 0.0) / made.sla >= least for least in schemas.THRESHOLDS) for age in ages]
    return {name: levels.count(n) / len(levels) for n, name in enumerate(schemas.URGENCIES)}


def percentile(values: Sequence[float], share: float) -> float | None:
    """Interpolates between neighbours, as SQL's percentile_cont does."""
    if not values:
        return None
    ordered, position = sorted(values), share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def breaches(world: World, made: Made) -> list[Row]:
    """Returns the times in which a task should have started and had not; overlapping times are merged."""
    if made.sla is None:
        return []
    spans = sorted(
        (since_begin(row["due"]) + made.sla, since_begin(row["claimed_at"]), row["wait_s"])
        for row in world.of(made.name)
        if row["late"]
    )
    found: list[list[float]] = []
    for began, ended, wait in spans:
        if found and began <= found[-1][1] + 10:
            last = found[-1]
            last[1], last[2], last[3] = max(last[1], ended), max(last[2], wait), last[3] + 1
        else:
            found.append([began, ended, wait, 1])
    return [
        {"queue": made.name, "began": stamp(b), "ended": stamp(e), "worst_age_s": worst, "late_tasks": int(late)}
        for b, e, worst, late in found
    ]


def kinds(world: World) -> list[Row]:
    groups = grouped(world.attempts, "queue", "kind", "attempt", "day")
    return [named | told(rows) | {"run_s_total": seconds(rows)} for named, rows in groups]


def told(rows: Sequence[Row]) -> Row:
    outcomes = Counter(row["outcome"] for row in rows)
    done, failed, dead = outcomes["done"], outcomes["failed"], outcomes["dead"]
    rate = (failed + dead) / len(rows)
    return {"runs": len(rows), "done": done, "failed": failed, "dead": dead, "failure_rate": rate}


def errors(world: World) -> list[Row]:
    failed = [row for row in world.attempts if row["fingerprint"] is not None]
    return [
        named
        | {
            "runs": len(rows),
            "tasks": len({row["task_id"] for row in rows}),
            "run_s_total": seconds(rows),
            "first_seen": min(row["finished_at"] for row in rows),
            "last_seen": max(row["finished_at"] for row in rows),
        }
        for named, rows in grouped(failed, "queue", "kind", "fingerprint", "error_shape", "error_class", "day")
    ]


def chances(world: World) -> list[Row]:
    before: dict[tuple[int, int], str | None] = {
        (row["task_id"], row["attempt"]): row["fingerprint"] for row in world.attempts
    }
    tries = [
        {
            **{name: row[name] for name in ("queue", "kind", "attempt", "day", "run_s", "outcome")},
            "age_bucket_s": max(one for one in schemas.AGES if one <= row["age_s"]),
            "fingerprint": before.get((row["task_id"], row["attempt"] - 1)),
        }
        for row in world.attempts
    ]
    return [
        named
        | {
            "tries": len(rows),
            "successes": sum(row["outcome"] == "done" for row in rows),
            "run_s_total": seconds(rows),
        }
        for named, rows in grouped(tries, "queue", "kind", "attempt", "age_bucket_s", "fingerprint", "day")
    ]


def seconds(rows: Iterable[Row]) -> float:
    return math.fsum(row["run_s"] for row in rows)


def grouped(rows: Iterable[Row], *names: str) -> list[tuple[Row, list[Row]]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return [(dict(zip(names, key, strict=True)), group) for key, group in found.items()]


# --- the lake ---------------------------------------------------------------------------------------------------------


def make_lake(spark: SparkSession, path: Path, world: World) -> Lake:
    """Writes all that the report, profiles and evidence read."""
    lake = Lake(path)
    tables = {
        schemas.ATTEMPTS: world.attempts,
        schemas.MINUTES: [row for made in world.queues for row in minutes(world, made)],
        schemas.BREACHES: [row for made in world.queues for row in breaches(world, made)],
        schemas.KINDS: kinds(world),
        schemas.ERRORS: errors(world),
        schemas.CHANCES: chances(world),
    }
    with lake.writing():
        lake.begin(LakeState(id="made", system="1", database=1))
        lake.commit(replaces={table.name: staged(spark, lake, table, rows) for table, rows in tables.items()})
    return lake


def staged(spark: SparkSession, lake: Lake, table: schemas.LakeTable, rows: Sequence[Row]) -> Any:
    columns = table.schema.names
    frame = spark.createDataFrame([tuple(row[name] for name in columns) for row in rows], table.schema)
    return lake.stage(frame.coalesce(1), table)
