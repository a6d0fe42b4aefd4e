"""The three executors of a runner, addressed as one."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.queue_async import AsyncQueue
from penstock.model import Task
from penstock.worker.config import RunnerConfig
from penstock.worker.executors.base import Executor, Job
from penstock.worker.executors.coroutines import CoroutineExecutor
from penstock.worker.executors.processes import ProcessExecutor
from penstock.worker.executors.threads import ThreadExecutor
from penstock.worker.in_flight import InFlight
from penstock.worker.settling import Settler


class Executors:
    """Runs each job in the way that its handler asks for: in a thread, as a coroutine or in a process."""

    def __init__(self, config: RunnerConfig, settler: Settler, queues: dict[str, AsyncQueue]) -> None:
        slots = config.concurrency
        self.threads = ThreadExecutor(slots, settler)
        self._by_mode: dict[str, Executor] = {
            "thread": self.threads,
            "async": CoroutineExecutor(slots, settler, queues),
            "process": ProcessExecutor(slots, settler, config),
        }

    @property
    def oldest(self) -> list[InFlight]:
        """The flights whose tasks have waited longest for a slot, one of each executor that has any."""
        return [flight for one in self._by_mode.values() if (flight := one.oldest) is not None]

    def put(self, mode: str, jobs: Iterable[Job], *, tiny: bool) -> None:
        """Queues jobs for the executor of this mode; see `Executor.put`."""
        self._by_mode[mode].put(jobs, tiny=tiny)

    def nudge(self) -> None:
        """Wakes slots if jobs are still waiting."""
        for one in self._by_mode.values():
            one.nudge()

    def withdraw(self) -> list[tuple[InFlight, Task]]:
        """Removes and returns the tasks that were claimed and have not begun."""
        found = []
        for one in self._by_mode.values():
            for flight, _, work in one.withdraw():
                found += [(flight, task) for task in (work if isinstance(work, list) else [work])]
        return found

    def cancel(self, flight: InFlight, ids: set[int] | None) -> None:
        """Stops the handlers of these tasks, whose results are no longer needed. None means all tasks of the flight."""
        for one in self._by_mode.values():
            one.cancel(flight, ids)

    async def stop(self) -> None:
        """Ends all slots."""
        for one in self._by_mode.values():
            await one.stop()
