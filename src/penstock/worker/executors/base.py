"""The parts that the three ways to run handlers share: threads, coroutines and processes."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from penstock.handlers import Spec
from penstock.handlers.outcomes import LOST
from penstock.handlers.registry import Hook
from penstock.model import Outcome, Task
from penstock.worker.in_flight import InFlight
from penstock.worker.settling import Settler

Job = tuple[InFlight, Spec, Task | list[Task]]


class Executor(Protocol):
    """One way to run handlers: a number of slots, and the jobs that wait for them."""

    slots: int

    @property
    def oldest(self) -> InFlight | None:
        """The flight whose tasks have waited longest for a slot."""

    def put(self, jobs: Iterable[Job], *, tiny: bool = False) -> None:
        """Queues jobs.

        With `tiny`, the work is so small that one slot finishes it sooner than other slots could be woken.
        """

    def nudge(self) -> None:
        """Wakes a slot if jobs are still waiting: a job that was put with `tiny` was not small."""

    def withdraw(self) -> list[Job]:
        """Removes and returns the jobs that have not begun."""

    def cancel(self, flight: InFlight, ids: set[int] | None) -> None:
        """Stops the handlers of these tasks, whose results are no longer needed. None means all tasks of the flight."""

    async def stop(self) -> None: ...


class SlotExecutor:
    """A number of coroutines on one loop. Each is started when it is needed, and takes one job after the other."""

    def __init__(self, slots: int, settler: Settler) -> None:
        self.slots = slots
        self._settler = settler
        self._jobs: deque[Job] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._slots: list[asyncio.Task[None]] = []

    @property
    def oldest(self) -> InFlight | None:
        """The flight whose tasks have waited longest for a slot."""
        return self._jobs[0][0] if self._jobs else None

    def withdraw(self) -> list[Job]:
        """Removes and returns the jobs that have not begun."""
        found = [*self._jobs]
        self._jobs.clear()
        return found

    def _wake(self) -> None:
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        self._slots = [slot for slot in self._slots if not slot.done()]
        if len(self._slots) < self.slots:
            self._slots.append(asyncio.get_running_loop().create_task(self._work()))

    async def _rest(self) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self._idle.append(sleeper)
        await sleeper

    async def _work(self) -> None:
        raise NotImplementedError


def ids_of(work: Task | list[Task]) -> set[int]:
    """Returns the ids of the tasks of a job."""
    return {task.id for task in work} if isinstance(work, list) else {work.id}


def add_all(
    settler: Settler, flight: InFlight, tasks: list[Task], outcomes: dict[int, Outcome], seconds: float
) -> None:
    """Hands in the outcomes of a batch; the time is divided equally among its tasks."""
    for task in tasks:
        settler.add(flight, task, outcomes[task.id], seconds / len(tasks))


def drop_unwanted(settler: Settler, flight: InFlight, work: Task | list[Task]) -> Task | list[Task]:
    """Returns the part of a job whose result is still needed: nothing if the lease is lost, and no cancelled tasks."""
    tasks = work if isinstance(work, list) else [work]
    dropped = [task for task in tasks if flight.lost or task.id in flight.revoked]
    for task in dropped:
        settler.add(flight, task, LOST, 0.0)
    left = [task for task in tasks if task not in dropped]
    return left if isinstance(work, list) or not left else left[0]


async def call_hooks(hooks: list[Hook]) -> None:
    """Calls hooks one after the other, and awaits the async ones."""
    for hook in hooks:
        result = hook()
        if inspect.isawaitable(result):
            await result


def fail_all(settler: Settler, job: Job, error: BaseException) -> None:
    """Marks the tasks of a job as failed after a bug in Penstock or a lack of memory, so that they are never stuck."""
    flight, _, work = job
    name = type(error).__name__
    for task in work if isinstance(work, list) else (work,):
        settler.add(flight, task, Outcome.failed(f"the worker could not run it: {name}", error_class=name), 0.0)
