"""Draining in the caller's process, for tests of applications."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from penstock.client import progress_async, workers_async
from penstock.client.database_async import AsyncDatabase
from penstock.client.queue_async import AsyncQueue
from penstock.client.statements.claims import failure_of_settle
from penstock.errors import LeaseLost, NotFound, ValidationError
from penstock.handlers import Held, Registry, Spec
from penstock.handlers.notes import to_stored
from penstock.handlers.outcomes import LOST, SETTLED
from penstock.model import DONE, Claim, Outcome, Task
from penstock.worker.execution import UNKNOWN_KIND, wants_exit
from penstock.worker.performing import call_hook_async, perform_async

LOG = logging.getLogger("penstock.worker")
BATCH = 100


class Errors:
    """Collects the errors of handlers and hooks. With `stops`, no task is begun after the first error."""

    def __init__(self, *, stops: bool) -> None:
        self._stops = stops
        self._first: BaseException | None = None

    @property
    def stop(self) -> bool:
        """Whether no further task may begin."""
        return self._stops and self._first is not None

    def note(self, task: Task, error: BaseException) -> None:
        """Keeps the first error, with a note of the task that raised it."""
        if self._first is None:
            self._first = error
            if self._stops:
                error.add_note(f"Raised by the handler of task {task.id}, kind {task.kind!r}.")

    def raise_first(self) -> None:
        """Raises the first error, if errors stop the drain."""
        if self._stops and self._first is not None:
            raise self._first


async def drain(
    database: AsyncDatabase,
    registry: Registry,
    queues: list[AsyncQueue],
    limit: int | None,
    *,
    raise_errors: bool = True,
) -> Counter[str]:
    """Runs due tasks, queue by queue and in rounds, until none is due, `limit` tasks were run, or a handler wanted to
    end the process. Returns how many tasks ended in each state; `lost` counts those whose lease was lost."""
    leases: dict[str, float] = {}
    for queue in queues:
        await workers_async.set_kinds(database, queue.name, registry.stored(queue.name))
        leases[queue.name] = await workers_async.find_lease(database, queue.name)
    states: Counter[str] = Counter()
    errors = Errors(stops=raise_errors)
    before = -1
    while states.total() > before:
        before = states.total()
        for queue in queues:
            while limit is None or states.total() < limit:
                claim = await queue.claim(
                    BATCH if limit is None else min(limit - states.total(), BATCH), worker="inline"
                )
                if not claim:
                    break
                held = Held(claim, leases[queue.name])
                states.update(await work_off(database, registry, queue, held, errors))
                errors.raise_first()
                if held.stopping:
                    return states
    return states


async def work_off(
    database: AsyncDatabase, registry: Registry, queue: AsyncQueue, held: Held, errors: Errors
) -> Counter[str]:
    """Runs the tasks of one claim, settles them and calls the `on_settled_dead` hooks. Returns how many tasks ended in
    each state."""
    outcomes: dict[int, Outcome] = {}
    for spec, tasks in by_handler(registry, held.claim):
        if held.stopping or errors.stop:
            found = {task.id: Outcome.release() for task in tasks}
        elif spec is None:
            found = {task.id: UNKNOWN_KIND for task in tasks}
        else:
            found = await perform_async(spec, tasks, held, queue, errors.note)
            held.stopping = any(map(wants_exit, found.values()))
        outcomes.update(found)
    settled = {id_: outcome for id_, outcome in outcomes.items() if outcome not in (LOST, SETTLED)}
    await store_notes(database, held, settled)
    now = await settle_claim(queue, held.claim, settled)
    states = Counter(now.values())
    for id_ in outcomes.keys() - settled.keys():
        states["lost" if outcomes[id_] is LOST else await state_now(queue, id_)] += 1
    for task in held.claim.tasks:
        if now.get(task.id) == "dead":
            await call_dead_hooks(registry, task, settled[task.id].error or "", errors)
    return states


async def store_notes(database: AsyncDatabase, held: Held, outcomes: dict[int, Outcome]) -> None:
    """Stores what handlers said of tasks that are not done, as a worker does."""
    unfinished = {id_ for id_, outcome in outcomes.items() if outcome is not DONE}
    if held.notes is not None and (collected := held.notes.collect(unfinished)):
        await progress_async.note_progress(database, str(held.claim.token), to_stored(collected))


async def call_dead_hooks(registry: Registry, task: Task, error: str, errors: Errors) -> None:
    """Calls the `on_settled_dead` hooks as a worker does, and notes the errors that they raise."""
    for hook in registry.dying:
        try:
            await call_hook_async(hook, task, error)
        except Exception as wrong:  # noqa: BLE001 - a hook may raise anything
            LOG.warning("on_settled_dead hook failed", extra={"task": task.id, "error_class": type(wrong).__name__})
            errors.note(task, wrong)


async def settle_claim(queue: AsyncQueue, claim: Claim, outcomes: dict[int, Outcome]) -> dict[int, str]:
    """Settles tasks and returns the new state of each. As in a worker, an outcome that PostgreSQL refuses becomes a
    failure."""
    try:
        return await queue.settle(claim, outcomes)
    except LeaseLost as error:
        lost = {*error.refused, *error.revoked}
        return {id_: "lost" if id_ in lost else await state_now(queue, id_) for id_ in outcomes}
    except ValidationError as error:
        if len(outcomes) == 1:
            return await queue.settle(claim, dict.fromkeys(outcomes, failure_of_settle(error)))
        states: dict[int, str] = {}
        for id_, outcome in outcomes.items():
            states |= await settle_claim(queue, claim, {id_: outcome})
        return states


async def state_now(queue: AsyncQueue, id_: int) -> str:
    """Returns the present state of a task."""
    try:
        return (await queue.task(id_)).state
    except NotFound:
        return "done"  # done tasks are not kept


def by_handler(registry: Registry, claim: Claim) -> Iterator[tuple[Spec | None, list[Task]]]:
    """Yields the tasks of a claim in their order, grouped as far as one handler takes them together."""
    for kind, tasks in groupby(claim.tasks, lambda task: task.kind):
        spec = registry.find(claim.queue, kind)
        found = [*tasks]
        size = (spec.batch or 1) if spec else len(found)
        for first in range(0, len(found), size):
            yield spec, found[first : first + size]
