"""Gives claimed tasks to the executors, each in the way that its handler asks for."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.handlers import Registry, Spec
from penstock.model import Claim, Outcome, Task
from penstock.worker.execution import UNKNOWN_KIND
from penstock.worker.executors.base import Job
from penstock.worker.executors.team import Executors
from penstock.worker.in_flight import InFlight
from penstock.worker.pace import Pace
from penstock.worker.settling import Settler
from penstock.worker.workload import Workload

RELEASED = Outcome.release()


class Dispatcher:
    """Gives claimed tasks to the executors, and puts tasks back that cannot begin."""

    def __init__(
        self, registry: Registry, workload: Workload, settler: Settler, executors: Executors, pace: Pace
    ) -> None:
        self._registry = registry
        self._workload = workload
        self._settler = settler
        self._executors = executors
        self._pace = pace
        self._specs: dict[tuple[str, str], Spec | None] = {}

    def take(self, flight: InFlight) -> None:
        """Adds a claim to the workload, and gives its tasks to the executors."""
        self._workload.add(flight)
        if self._workload.stopping:
            self._give_back((flight, task) for task in flight.claim.tasks)
            return
        for mode, jobs in self.sort(flight).items():
            self._executors.put(mode, jobs, tiny=self._pace.tiny)

    def give_back_waiting(self) -> None:
        """Puts the tasks back that were claimed and have not begun."""
        self._give_back(self._executors.withdraw())

    def _give_back(self, waiting: Iterable[tuple[InFlight, Task]]) -> None:
        for flight, task in waiting:
            self._settler.add(flight, task, RELEASED, 0.0)

    def sort(self, flight: InFlight) -> dict[str, list[Job]]:
        """Sorts the tasks of a flight by the way they are run.

        A task of an unknown kind is put back for later and logged.
        """
        claim = flight.claim
        found: dict[str, list[Job]] = {}
        together: dict[str, tuple[Spec, list[Task]]] = {}
        for task in claim.tasks:
            spec = self._spec(claim.queue, task.kind)
            if spec is None:
                self._settler.add(flight, task, UNKNOWN_KIND, 0.0)
            elif spec.batch is None:
                found.setdefault(spec.mode, []).append((flight, spec, task))
            else:
                together.setdefault(task.kind, (spec, []))[1].append(task)
        for spec, tasks in together.values():
            size = spec.batch or 1
            jobs = found.setdefault(spec.mode, [])
            jobs += [(flight, spec, tasks[n : n + size]) for n in range(0, len(tasks), size)]
        return found

    def quick_mode(self, claim: Claim) -> str | None:
        """Returns how the tasks of a claim are run, if it is the same quick way for all of them, or else None."""
        if claim.alone or self._workload.stopping:
            return None
        specs = [self._spec(claim.queue, kind) for kind in {task.kind for task in claim.tasks}]
        modes = {spec.mode if spec is not None and (spec.quick or spec.quick_inside) else None for spec in specs}
        return modes.pop() if len(modes) == 1 else None

    def _spec(self, queue: str, kind: str) -> Spec | None:
        try:
            return self._specs[queue, kind]
        except KeyError:
            found = self._specs[queue, kind] = self._registry.find(queue, kind)
            return found
