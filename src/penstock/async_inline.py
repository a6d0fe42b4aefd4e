"""Draining where the caller is, for people's tests. `penstock.inline` is made from this file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from penstock.aio.queue import AsyncQueue
from penstock.errors import LeaseLost
from penstock.handlers import Held, Registry, Spec
from penstock.model import Claim, Outcome, Task
from penstock.worker.execution import DROPPED, UNKNOWN_KIND
from penstock.worker.performing import perform_async

BATCH = 100


async def drain(registry: Registry, queues: list[AsyncQueue], most: int | None) -> Counter[str]:
    """Runs what is due, queue by queue and again, until nothing is, or `most` tasks were run. Answers how many of them
    ended in which state."""
    for queue in queues:
        await queue.set_kinds(registry.stored(queue.name))
    states: Counter[str] = Counter()
    before = -1
    while states.total() > before:
        before = states.total()
        for queue in queues:
            while most is None or states.total() < most:
                claim = await queue.claim(BATCH if most is None else min(most - states.total(), BATCH), worker="inline")
                if not claim:
                    break
                states.update(await worked_off(registry, queue, claim))
    return states


async def worked_off(registry: Registry, queue: AsyncQueue, claim: Claim) -> Counter[str]:
    held = Held(claim)
    outcomes: dict[int, Outcome] = {}
    for spec, tasks in by_handler(registry, claim):
        if spec is None:
            outcomes.update((task.id, UNKNOWN_KIND) for task in tasks)
        else:
            outcomes.update(await perform_async(spec, tasks, held, queue))
    told = {id_: outcome for id_, outcome in outcomes.items() if outcome is not DROPPED}
    states = Counter({"done": len(outcomes) - len(told)})
    try:
        states.update((await queue.settle(claim, told)).values())
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
