"""Runs sync handlers in threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import cast

from penstock.handlers import Context, Spec
from penstock.model import Task
from penstock.worker import execution
from penstock.worker.executors.base import Job, add_all, drop_unwanted, fail_all
from penstock.worker.in_flight import Entry, InFlight
from penstock.worker.settling import OutcomeBuffer, Settler

RING = 0.001  # seconds between two calls to the loop while tasks are tiny: it would take the interpreter from them


class ThreadExecutor:
    """A number of threads, started when they are needed.

    A thread that is awake continues as long as there is work; waking another one for each task would cost more than
    most tasks do.
    """

    def __init__(self, slots: int, settler: Settler) -> None:
        self.slots = slots
        self._settler = settler
        self._jobs: deque[Job] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._idle = 0
        self._spread = True  # a thread that takes a task wakes another thread for the next task
        self._started = 0
        self._over = False
        self._lock = threading.Lock()

    @property
    def oldest(self) -> InFlight | None:
        """The flight whose tasks have waited longest for a thread."""
        try:
            return self._jobs[0][0]
        except IndexError:
            return None

    def put(self, jobs: Iterable[Job], *, tiny: bool = False) -> None:
        """Queues jobs and wakes a thread."""
        self._spread = not tiny
        self._jobs.extend(jobs)
        self._wake()

    def send(self, call: Callable[[], None]) -> None:
        """Queues a call that one thread executes as a whole, before anything else."""
        self._calls.append(call)
        self._wake()

    def nudge(self) -> None:
        """Wakes a thread if jobs are waiting."""
        self._spread = True
        if self._jobs:
            self._wake()

    def withdraw(self) -> list[Job]:
        """Removes and returns the jobs that have not begun."""
        found = []
        while True:
            try:
                found.append(self._jobs.pop())
            except IndexError:
                return found

    def cancel(self, flight: InFlight, ids: set[int] | None) -> None:
        """Does nothing, because a thread cannot be ended. Its handler can read `context.cancelled`."""

    async def stop(self) -> None:
        """Ends the idle threads now. A thread inside a handler ends when the handler returns, or with the process."""
        self._over = True
        for _ in range(self._started):
            self._bell.put(None)

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
        except RuntimeError:  # the system cannot start another thread: the existing ones continue
            with self._lock:
                self._started -= 1

    def _work(self) -> None:
        """Runs jobs in this thread, one after the other, until the executor ends."""
        jobs, calls, woken_at = self._jobs, self._calls, 0.0
        while True:
            try:
                if calls:
                    calls.popleft()()
                    continue
                job = jobs.popleft()
            except IndexError:
                if self._over:
                    return
                self._rest()
                continue
            entry = self._do(job)
            if entry is None:
                continue
            self._settler.add_quietly(entry)
            now = time.perf_counter()
            if self._spread or not jobs or now - woken_at > RING:
                woken_at = now
                self._settler.wake()

    def run_here(self, jobs: Iterable[Job], buffer: OutcomeBuffer) -> None:
        """Runs these jobs in the calling thread, until none waits any more.

        Other threads may take some of them. The outcomes of this thread go to `buffer`, not to the settler.
        """
        self._spread = False
        self._jobs.extend(jobs)
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            if (entry := self._do(job)) is not None:
                buffer.entries.append(entry)

    def _do(self, job: Job) -> Entry | None:
        """Runs a job and returns its entry, or None if the settler has the outcome already."""
        flight, spec, work = job
        try:
            if self._spread and self._jobs and (self._idle or self._started < self.slots):
                self._wake()
            if not spec.quick or flight.lost or flight.revoked:
                return self._run(flight, spec, work)
            began = time.perf_counter()
            task = cast("Task", work)
            outcome = execution.run_quickly(spec, task)
        except BaseException as error:  # noqa: BLE001 - no task is ever stuck
            fail_all(self._settler, job, error)
            return None
        return flight, task, outcome, time.perf_counter() - began

    def _rest(self) -> None:
        with self._lock:
            self._idle += 1
        # It came after the check and before the note; the thread that notices undoes the note.
        if self._jobs or self._calls:
            self._wake()
        self._bell.get()

    def _run(self, flight: InFlight, spec: Spec, work: Task | list[Task]) -> Entry | None:
        if flight.lost or flight.revoked:
            work = drop_unwanted(self._settler, flight, work)
            if not work:
                return None
        began = time.perf_counter()
        if isinstance(work, list):
            outcomes = execution.run_batch(spec, work)
            took = time.perf_counter() - began
            if spec.timeout is not None and took > spec.timeout:
                outcomes = {task.id: execution.timed_out(spec, task) for task in work}
            add_all(self._settler, flight, work, outcomes, took)
            return None
        if spec.quick_inside:
            outcome = execution.run_inside(spec, work)
            return flight, work, outcome, time.perf_counter() - began
        context = Context(work, flight, flight.queue)
        context.deadline = None if spec.timeout is None else time.monotonic() + spec.timeout
        outcome = execution.run(spec, work, context)
        if context.late and not context.decided:
            outcome = execution.timed_out(spec, work)
        self._settler.add(flight, work, outcome, time.perf_counter() - began)
        return None
