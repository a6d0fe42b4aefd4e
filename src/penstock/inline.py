# Made from src/penstock/async_inline.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Draining where the caller is, for people's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from penstock.errors import LeaseLost, NotFound, ValidationError
from penstock.handlers import Held, Registry, Spec
from penstock.model import Claim, Outcome, Task
from penstock.queue import Queue
from penstock.worker.execution import EXITS, LOST, SETTLED, UNKNOWN_KIND
from penstock.worker.performing import perform

BATCH = 100


def drain(registry: Registry, queues: list[Queue], most: int | None) -> Counter[str]:
    """Runs what is due, queue by queue and again, until nothing is, `most` tasks were run, or a handler wanted to end
    the process. Answers how many of them ended in which state; lost: they were no longer ours."""
    leases: dict[str, float] = {}
    for queue in queues:
        queue.set_kinds(registry.stored(queue.name))
        leases[queue.name] = queue.lease()
    states: Counter[str] = Counter()
    before = -1
    while states.total() > before:
        before = states.total()
        for queue in queues:
            while most is None or states.total() < most:
                claim = queue.claim(BATCH if most is None else min(most - states.total(), BATCH), worker="inline")
                if not claim:
                    break
                held = Held(claim, leases[queue.name])
                states.update(worked_off(registry, queue, held))
                if held.stopping:
                    return states
    return states


def worked_off(registry: Registry, queue: Queue, held: Held) -> Counter[str]:
    outcomes: dict[int, Outcome] = {}
    for spec, tasks in by_handler(registry, held.claim):
        if held.stopping:
            found = {task.id: Outcome.release() for task in tasks}
        elif spec is None:
            found = {task.id: UNKNOWN_KIND for task in tasks}
        else:
            found = perform(spec, tasks, held, queue)
            held.stopping = any(one.word == "release" and one.error_class in EXITS for one in found.values())
        outcomes.update(found)
    told = {id_: outcome for id_, outcome in outcomes.items() if outcome not in (LOST, SETTLED)}
    states = Counter((settled(queue, held.claim, told)).values())
    for id_ in outcomes.keys() - told.keys():
        states["lost" if outcomes[id_] is LOST else state_now(queue, id_)] += 1
    return states


def settled(queue: Queue, claim: Claim, told: dict[int, Outcome]) -> dict[int, str]:
    """The state each is in now. As in a worker, an outcome that PostgreSQL refuses becomes a failure."""
    try:
        return queue.settle(claim, told)
    except LeaseLost as error:
        lost = {*error.refused, *error.revoked}
        return {id_: "lost" if id_ in lost else state_now(queue, id_) for id_ in told}
    except ValidationError as error:
        if len(told) == 1:
            refused = Outcome.failed(f"the outcome was refused: {error.message}", error_class=type(error).__name__)
            return queue.settle(claim, dict.fromkeys(told, refused))
        states: dict[int, str] = {}
        for id_, outcome in told.items():
            states |= settled(queue, claim, {id_: outcome})
        return states


def state_now(queue: Queue, id_: int) -> str:
    try:
        return (queue.task(id_)).state
    except NotFound:
        return "done"  # and not kept


def by_handler(registry: Registry, claim: Claim) -> Iterator[tuple[Spec | None, list[Task]]]:
    """The tasks of a claim in their order, together as far as one handler takes them together."""
    for kind, tasks in groupby(claim.tasks, lambda task: task.kind):
        spec = registry.find(claim.queue, kind)
        found = [*tasks]
        size = (spec.batch or 1) if spec else len(found)
        for first in range(0, len(found), size):
            yield spec, found[first : first + size]
