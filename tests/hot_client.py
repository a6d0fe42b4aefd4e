"""One client of the hot mix, in a process of its own: it pushes with subjects, claims, extends, settles in parts,
abandons leases, expires, promotes and squeezes, at random."""

from __future__ import annotations

import random
import time
from collections import Counter
from multiprocessing.connection import Connection as Pipe

from penstock import LeaseLost, NewTask, NotFound, Outcome, Penstock, Queue, Unavailable
from penstock.errors import PenstockError

SUBJECTS = 200


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
    verb = dice.choices(("push", "one", "run", "upkeep", "abandon"), (4, 2, 8, 1, 1))[0]
    if verb == "push":
        queue.push_many([NewTask({"n": n}, f"subject-{n}") for n in subjects])
    elif verb == "one":
        queue.push(subject=f"subject-{subjects[0]}")
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
