"""Sync handlers, in threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue

from penstock.handlers import Context, Spec
from penstock.model import Task
from penstock.worker import execution
from penstock.worker.crew import Job, hand_in_all, last_resort, still_wanted
from penstock.worker.execution import SETTLED
from penstock.worker.flights import Desk, Flight

RING = 0.001  # seconds between two calls to the loop while tasks are tiny: it would take the interpreter from them


class Threads:
    """So many threads, started when they are needed. One that is awake goes on as long as there is work: waking another
    for each task would cost more than most tasks do."""

    def __init__(self, slots: int, desk: Desk) -> None:
        self.slots = slots
        self._desk = desk
        self._jobs: deque[Job] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._idle = 0
        self._spread = True  # who takes a task wakes another thread for the next
        self._started = 0
        self._lock = threading.Lock()

    @property
    def oldest(self) -> Flight | None:
        try:
            return self._jobs[0][0]
        except IndexError:
            return None

    def put(self, jobs: Iterable[Job], *, alone: bool = False) -> None:
        self._spread = not alone
        self._jobs.extend(jobs)
        self._wake()

    def nudge(self) -> None:
        self._spread = True
        if self._jobs:
            self._wake()

    def withdraw(self) -> list[Job]:
        """What has not begun."""
        found = []
        while True:
            try:
                found.append(self._jobs.pop())
            except IndexError:
                return found

    def cancel(self, flight: Flight, ids: set[int] | None) -> None:
        """Nobody can end a thread: its handler sees it in `context.cancelled`."""

    async def stop(self) -> None:
        """They end with the process."""

    def _wake(self) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._bell.put(None)
                return
            if self._started >= self.slots:
                return
            self._started += 1
        try:
            threading.Thread(target=self._work, name=f"penstock-{self._started}", daemon=True).start()
        except RuntimeError:  # the system has none to give: those that there are go on
            with self._lock:
                self._started -= 1

    def _work(self) -> None:
        jobs, rung = self._jobs, 0.0
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                self._rest()
                continue
            try:
                flight, spec, work = job
                if self._spread and jobs and (self._idle or self._started < self.slots):
                    self._wake()
                if not spec.quick or flight.lost or flight.revoked:
                    self._run(flight, spec, work)
                    continue
                began = time.perf_counter()
                outcome = execution.run_quickly(spec, work)  # type: ignore[arg-type]
            except BaseException as error:  # noqa: BLE001 - no task is ever stuck
                last_resort(self._desk, job, error)
                continue
            now = time.perf_counter()
            self._desk.lay_down(flight, work, outcome, now - began)  # type: ignore[arg-type]
            if self._spread or not jobs or now - rung > RING:
                rung = now
                self._desk.ring()

    def _rest(self) -> None:
        with self._lock:
            self._idle += 1
        if self._jobs:  # came between the look and the note; whoever notices takes the place back
            self._wake()
        self._bell.get()

    def _run(self, flight: Flight, spec: Spec, work: Task | list[Task]) -> None:
        if flight.lost or flight.revoked:
            work = still_wanted(self._desk, flight, work)
            if not work:
                return
        began = time.perf_counter()
        if isinstance(work, list):
            outcomes = execution.run_batch(spec, work)
            took = time.perf_counter() - began
            if spec.timeout is not None and took > spec.timeout:
                outcomes = {task.id: execution.timed_out(spec, task) for task in work}
            hand_in_all(self._desk, flight, work, outcomes, took)
            return
        context = Context(work, flight, flight.queue)
        context.deadline = None if spec.timeout is None else time.monotonic() + spec.timeout
        outcome = execution.run(spec, work, context)
        if context.late and outcome is not SETTLED:
            outcome = execution.timed_out(spec, work)
        self._desk.hand_in(flight, work, outcome, time.perf_counter() - began)
