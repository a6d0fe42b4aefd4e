# Made from src/penstock/async_inline.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Draining where the caller is, for people's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from penstock.errors import LeaseLost
from penstock.handlers import Held, Registry, Spec
from penstock.model import Claim, Outcome, Task
from penstock.queue import Queue
from penstock.worker.execution import DROPPED, UNKNOWN_KIND
from penstock.worker.performing import perform

BATCH = 100


def drain(registry: Registry, queues: list[Queue], most: int | None) -> Counter[str]:
    """Runs what is due, queue by queue and again, until nothing is, or `most` tasks were run. Answers how many of them
    ended in which state."""
    for queue in queues:
        queue.set_kinds(registry.stored(queue.name))
    states: Counter[str] = Counter()
    before = -1
    while states.total() > before:
        before = states.total()
        for queue in queues:
            while most is None or states.total() < most:
                claim = queue.claim(BATCH if most is None else min(most - states.total(), BATCH), worker="inline")
                if not claim:
                    break
                states.update(worked_off(registry, queue, claim))
    return states


def worked_off(registry: Registry, queue: Queue, claim: Claim) -> Counter[str]:
    held = Held(claim)
    outcomes: dict[int, Outcome] = {}
    for spec, tasks in by_handler(registry, claim):
        if spec is None:
            outcomes.update((task.id, UNKNOWN_KIND) for task in tasks)
        else:
            outcomes.update(perform(spec, tasks, held, queue))
    told = {id_: outcome for id_, outcome in outcomes.items() if outcome is not DROPPED}
    states = Counter({"done": len(outcomes) - len(told)})
    try:
        states.update((queue.settle(claim, told)).values())
    except LeaseLost as error:
        states["lost"] += len(error.refused) + len(error.revoked)
    return states


def by_handler(registry: Registry, claim: Claim) -> Iterator[tuple[Spec | None, list[Task]]]:
    """The tasks of a claim in their order, together as far as one handler takes them together."""
    for kind, tasks in groupby(claim.tasks, lambda task: task.kind):
        spec = registry.find(claim.queue, kind)
        found = [*tasks]
        size = (spec.batch or 1) if spec else len(found)
        for first in range(0, len(found), size):
            yield spec, found[first : first + size]
