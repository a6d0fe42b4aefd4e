"""Runs sync handlers that must be able to end: each slot is its own process, which is killed when its time is up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress

from penstock.child_process import start_child
from penstock.handlers import Spec
from penstock.handlers.outcomes import LOST
from penstock.model import Outcome, Task
from penstock.worker import execution
from penstock.worker.child import job_to_json, outcome_from_json
from penstock.worker.config import RunnerConfig
from penstock.worker.executors.base import Job, SlotExecutor, add_all, drop_unwanted, fail_all, ids_of
from penstock.worker.in_flight import InFlight
from penstock.worker.pipe import Pipe, close_when_over
from penstock.worker.settling import Settler

FAREWELL = 2.0  # seconds for on_stop in a process
STARTING = 60.0  # seconds in which a process must import the application


class ProcessExecutor(SlotExecutor):
    """A number of slots. Each slot has a process from its first task on, and a new one after a process was ended."""

    def __init__(self, slots: int, settler: Settler, config: RunnerConfig) -> None:
        super().__init__(slots, settler)
        self._config = config
        self._running: dict[SlotProcess, Job] = {}
        self._children: set[SlotProcess] = set()

    def put(self, jobs: Iterable[Job], *, tiny: bool = False) -> None:  # noqa: ARG002 - no job is small here
        """Queues jobs and wakes the slots."""
        self._jobs.extend(jobs)
        self.nudge()

    def nudge(self) -> None:
        """Wakes as many slots as there are jobs."""
        for _ in range(min(len(self._jobs), self.slots)):
            self._wake()

    def cancel(self, flight: InFlight, ids: set[int] | None) -> None:
        """Kills the processes that run these tasks."""
        for child, (of, _, work) in self._running.items():
            if of is flight and (ids is None or ids_of(work) <= ids):
                child.unwanted = True
                child.kill()

    async def stop(self) -> None:
        """Lets idle processes call their stop hooks and exit, and kills the processes that run a handler."""
        resting = [child.dismiss() for child in self._children if child not in self._running]
        if resting:
            await asyncio.wait([asyncio.ensure_future(one) for one in resting], timeout=FAREWELL)
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def _work(self) -> None:
        """Runs jobs in a process of its own, one after the other, until it is cancelled."""
        child = SlotProcess(self._config)
        self._children.add(child)
        try:
            while True:
                if not self._jobs:
                    await self._rest()
                    continue
                job = self._jobs.popleft()
                self._running[child] = job
                try:
                    await self._run(child, *job)
                except Exception as error:  # noqa: BLE001 - no task is ever stuck
                    fail_all(self._settler, job, error)
                finally:
                    del self._running[child]
        finally:
            self._children.discard(child)
            child.kill()

    async def _run(self, child: SlotProcess, flight: InFlight, spec: Spec, work: Task | list[Task]) -> None:
        began = time.perf_counter()
        if flight.lost or flight.revoked:
            work = drop_unwanted(self._settler, flight, work)
            if not work:
                return
        tasks = work if isinstance(work, list) else [work]
        child.unwanted = False
        try:
            outcomes = await child.run(flight, spec, work)
        except TimeoutError:
            outcomes = {task.id: execution.timed_out(spec, task) for task in tasks}
        except (HandlerCrashed, OSError) as error:  # OSError: the system cannot start a process
            outcomes = {
                task.id: LOST if child.unwanted else execution.failed(spec, task, None, error) for task in tasks
            }
        add_all(self._settler, flight, tasks, outcomes, time.perf_counter() - began)


class HandlerCrashed(Exception):
    """The process of a handler ended before the handler did."""


class SlotProcess:
    """The process of a slot. It runs one job at a time."""

    def __init__(self, config: RunnerConfig) -> None:
        self.unwanted = False
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._watching: asyncio.Task[None] | None = None

    def kill(self) -> None:
        """Kills the process and the processes that its handler started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._pipe is not None:
            self._pipe.close()

    async def dismiss(self) -> None:
        """Lets the process call its stop hooks and exit, and waits for it."""
        if self._pipe is not None:
            self._pipe.close()
        while self._process is not None and self._process.poll() is None:
            await asyncio.sleep(0.01)

    async def run(self, flight: InFlight, spec: Spec, work: Task | list[Task]) -> dict[int, Outcome]:
        """Runs a job and returns its outcomes.

        Raises TimeoutError if it took too long and was killed, or HandlerCrashed if the process ended by itself or was
        killed from outside.
        """
        pipe = await self._ready()
        pipe.send(job=job_to_json(flight.claim, work))
        try:
            async with asyncio.timeout(spec.timeout) as limit:
                while (answer := await pipe.receive()) is not None:
                    if answer.get("notes"):
                        flight.open_notes().merge(answer["notes"])
                    if "postpone" in answer:
                        later = asyncio.get_running_loop().time() + answer["postpone"]
                        limit.reschedule(max(later, limit.when() or later))
                        continue
                    if "outcomes" in answer:
                        return {int(id_): outcome_from_json(outcome) for id_, outcome in answer["outcomes"].items()}
        except TimeoutError:
            await self._end(hurry=True)
            raise
        raise HandlerCrashed(await self._end())

    async def _ready(self) -> Pipe:
        if self._process is not None and self._process.poll() is not None:
            await self._end()  # it died while it was idle, which is not the fault of the next task
        if self._pipe is None:
            await self._start()
        assert self._pipe is not None
        return self._pipe

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = start_child("penstock.worker.child", theirs, self._config.target, process_group=0)
        self._pipe = await Pipe.over(ours)
        self._watching = asyncio.create_task(close_when_over(self._pipe, self._process))
        self._pipe.send(config=self._config.to_json())
        try:
            async with asyncio.timeout(STARTING):
                ready = await self._pipe.receive()
        except TimeoutError:
            ready = None
        if ready is None:
            raise HandlerCrashed(f"it could not start: {await self._end()}")

    async def _end(self, *, hurry: bool = False) -> str:
        """Kills what is left of the process, and returns how it ended."""
        assert self._process is not None
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        for _ in range(20):  # the process may be about to exit by itself
            if process.poll() is not None or hurry:
                break
            await asyncio.sleep(0.01)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        while (code := process.poll()) is None:
            await asyncio.sleep(0.005)
        return f"the handler's process ended by signal {-code}" if code < 0 else f"the handler's process exited: {code}"
