"""What the three ways to run handlers have in common: threads, coroutines, processes."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from penstock.handlers import Spec
from penstock.handlers.registry import Hook
from penstock.model import Outcome, Task
from penstock.worker.execution import LOST
from penstock.worker.flights import Desk, Flight

Job = tuple[Flight, Spec, Task | list[Task]]


class Crew(Protocol):
    slots: int

    @property
    def oldest(self) -> Flight | None:
        """Whose tasks have waited longest for a slot."""

    def put(self, jobs: Iterable[Job], *, alone: bool = False) -> None:
        """Work. `alone`: it is so small that one slot does it sooner than many could be woken."""

    def nudge(self) -> None:
        """It was not, if something still waits."""

    def withdraw(self) -> list[Job]:
        """What has not begun; it will not."""

    def cancel(self, flight: Flight, ids: set[int] | None) -> None:
        """Nobody waits for these tasks any more (None: for none of the flight); their handlers shall stop."""

    async def stop(self) -> None: ...


class Slots:
    """So many coroutines on one loop, each started when it is needed, taking one job after the other."""

    def __init__(self, slots: int, desk: Desk) -> None:
        self.slots = slots
        self._desk = desk
        self._jobs: deque[Job] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._slots: list[asyncio.Task[None]] = []

    @property
    def oldest(self) -> Flight | None:
        return self._jobs[0][0] if self._jobs else None

    def withdraw(self) -> list[Job]:
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
    return {task.id for task in work} if isinstance(work, list) else {work.id}


def hand_in_all(desk: Desk, flight: Flight, tasks: list[Task], outcomes: dict[int, Outcome], seconds: float) -> None:
    for task in tasks:
        desk.hand_in(flight, task, outcomes[task.id], seconds / len(tasks))


def still_wanted(desk: Desk, flight: Flight, work: Task | list[Task]) -> Task | list[Task]:
    """What of a job somebody still waits for: nothing when the lease is lost, not what was cancelled."""
    tasks = work if isinstance(work, list) else [work]
    dropped = [task for task in tasks if flight.lost or task.id in flight.revoked]
    for task in dropped:
        desk.hand_in(flight, task, LOST, 0.0)
    left = [task for task in tasks if task not in dropped]
    return left if isinstance(work, list) or not left else left[0]


async def called(hooks: list[Hook]) -> None:
    for hook in hooks:
        result = hook()
        if inspect.isawaitable(result):
            await result


def last_resort(desk: Desk, job: Job, error: BaseException) -> None:
    """A bug of ours, or a machine without memory: whatever it is, the task has failed and is not stuck."""
    flight, _, work = job
    name = type(error).__name__
    for task in work if isinstance(work, list) else (work,):
        desk.hand_in(flight, task, Outcome.failed(f"the worker could not run it: {name}", error_class=name), 0.0)
