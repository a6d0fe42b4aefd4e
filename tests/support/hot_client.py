"""A client in a process of its own that does everything at random over a few subjects: it pushes, upserts, claims,
extends, settles in parts, abandons leases, cancels, redrives, reschedules, purges, expires, promotes and squeezes."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe

from penstock import Conflict, LeaseLost, NewTask, NotFound, Outcome, Penstock, Queue, Unavailable
from penstock.errors import PenstockError

SUBJECTS = 200
WEIGHTS = {
    "push": 3,
    "upsert": 4,
    "strict": 1,
    "one": 2,
    "run": 10,
    "abandon": 1,
    "cancel": 1,
    "redrive": 1,
    "reprioritise": 1,
    "reschedule": 1,
    "purge": 1,
    "upkeep": 1,
}


def run(dsn: str, seed: int, seconds: float, report: Pipe) -> None:
    report.send("ready")
    dice = random.Random(seed)
    seen: Counter[str] = Counter()
    with Penstock(dsn, max_connections=2) as penstock:
        queue = penstock.queue("hot")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                step(queue, penstock, dice, seen)
            except (LeaseLost, NotFound):
                seen["refused"] += 1
            except Unavailable as error:
                seen["deadlock" if "deadlock" in error.message else "cut"] += 1
            except PenstockError as error:
                seen[f"unexpected {error.code} {error.message}"] += 1
    report.send(dict(seen))


def step(queue: Queue, penstock: Penstock, dice: random.Random, seen: Counter[str]) -> None:
    subjects = dice.sample(range(SUBJECTS), 20)
    verb = dice.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
    names = [f"subject-{n}" for n in subjects]
    if verb == "push":
        queue.push_many([NewTask({}, name) for name in names])
    elif verb == "upsert":
        queue.upsert_many([NewTask({"n": dice.random()}, name, priority=dice.randint(0, 9)) for name in names])
    elif verb == "strict":
        with suppress(Conflict):
            queue.push_many([NewTask({}, name) for name in names], on_conflict="error")
    elif verb == "cancel":
        queue.cancel(subjects=names)
    elif verb == "redrive":
        queue.redrive(limit=50)
    elif verb == "reprioritise":
        queue.reprioritise(dice.randint(0, 9), subjects=names)
    elif verb == "reschedule":
        queue.reschedule(datetime.now(UTC), subjects=names)
    elif verb == "purge":
        queue.purge("dead", "cancelled", limit=20)
    elif verb == "one":
        queue.push(subject=names[0], on_conflict="update")
    elif verb == "upkeep":
        penstock.upkeep()
    elif claim := queue.claim(dice.randint(1, 20), lease="1s"):
        if verb == "abandon":
            seen[verb] += 1
            return
        queue.extend(claim, lease="1s")
        ids = claim.ids
        dice.shuffle(ids)
        cut = dice.randint(0, len(ids))
        choices = (
            Outcome.done(),
            Outcome.failed("x", delay=None),
            Outcome.again(),
            Outcome.release(),
            Outcome.dead("x"),
        )
        queue.settle(claim, ids[:cut])
        queue.settle(claim, {id_: dice.choices(choices, (6, 1, 1, 1, 1))[0] for id_ in ids[cut:]})
    seen[verb] += 1
