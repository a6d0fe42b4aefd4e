"""Runs sync handlers that must be able to end: each slot is its own process, which is killed when its time is up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from penstock.handlers import Spec
from penstock.model import Outcome, Task
from penstock.worker import execution
from penstock.worker.cell import job_to_json, outcome_from_json
from penstock.worker.crew import Job, Slots, hand_in_all, ids_of, last_resort, still_wanted
from penstock.worker.execution import LOST
from penstock.worker.flights import Desk, Flight
from penstock.worker.link import Link, close_when_over
from penstock.worker.orders import Orders

FAREWELL = 2.0  # seconds for on_stop in a process
STARTING = 60.0  # seconds in which a process must import the application


class Processes(Slots):
    """A number of slots. Each slot has a process from its first task on, and a new one after a process was ended."""

    def __init__(self, slots: int, desk: Desk, orders: Orders) -> None:
        super().__init__(slots, desk)
        self._orders = orders
        self._running: dict[ChildProcess, Job] = {}
        self._cells: set[ChildProcess] = set()

    def put(self, jobs: Iterable[Job], *, alone: bool = False) -> None:  # noqa: ARG002 - no job is small here
        """Queues jobs and wakes the slots."""
        self._jobs.extend(jobs)
        self.nudge()

    def nudge(self) -> None:
        """Wakes as many slots as there are jobs."""
        for _ in range(min(len(self._jobs), self.slots)):
            self._wake()

    def cancel(self, flight: Flight, ids: set[int] | None) -> None:
        """Kills the processes that run these tasks."""
        for cell, (of, _, work) in self._running.items():
            if of is flight and (ids is None or ids_of(work) <= ids):
                cell.unwanted = True
                cell.kill()

    async def stop(self) -> None:
        """Lets idle processes call their stop hooks and exit, and kills the processes that run a handler."""
        resting = [cell.dismiss() for cell in self._cells if cell not in self._running]
        if resting:
            await asyncio.wait([asyncio.ensure_future(one) for one in resting], timeout=FAREWELL)
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def _work(self) -> None:
        cell = ChildProcess(self._orders)
        self._cells.add(cell)
        try:
            while True:
                if not self._jobs:
                    await self._rest()
                    continue
                job = self._jobs.popleft()
                self._running[cell] = job
                try:
                    await self._run(cell, *job)
                except Exception as error:  # noqa: BLE001 - no task is ever stuck
                    last_resort(self._desk, job, error)
                finally:
                    del self._running[cell]
        finally:
            self._cells.discard(cell)
            cell.kill()

    async def _run(self, cell: ChildProcess, flight: Flight, spec: Spec, work: Task | list[Task]) -> None:
        began = time.perf_counter()
        if flight.lost or flight.revoked:
            work = still_wanted(self._desk, flight, work)
            if not work:
                return
        tasks = work if isinstance(work, list) else [work]
        cell.unwanted = False
        try:
            outcomes = await cell.run(flight, spec, work)
        except TimeoutError:
            outcomes = {task.id: execution.timed_out(spec, task) for task in tasks}
        except (HandlerCrashed, OSError) as error:  # OSError: the system cannot start a process
            outcomes = {task.id: LOST if cell.unwanted else execution.failed(spec, task, None, error) for task in tasks}
        hand_in_all(self._desk, flight, tasks, outcomes, time.perf_counter() - began)


class HandlerCrashed(Exception):
    """The process of a handler ended before the handler did."""


class ChildProcess:
    """A process that runs one task at a time."""

    def __init__(self, orders: Orders) -> None:
        self.unwanted = False
        self._orders = orders
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._watching: asyncio.Task[None] | None = None

    def kill(self) -> None:
        """Kills the process and the processes that its handler started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._link is not None:
            self._link.close()

    async def dismiss(self) -> None:
        """Lets the process call its stop hooks and exit, and waits for it."""
        if self._link is not None:
            self._link.close()
        while self._process is not None and self._process.poll() is None:
            await asyncio.sleep(0.01)

    async def run(self, flight: Flight, spec: Spec, work: Task | list[Task]) -> dict[int, Outcome]:
        """Runs a job and returns its outcomes.

        Raises TimeoutError if it took too long and was killed, or HandlerCrashed if the process ended by itself or was
        killed from outside.
        """
        link = await self._ready()
        link.send(job=job_to_json(flight.claim, spec, work))
        try:
            async with asyncio.timeout(spec.timeout) as limit:
                while (answer := await link.receive()) is not None:
                    if "postpone" in answer:
                        later = asyncio.get_running_loop().time() + answer["postpone"]
                        limit.reschedule(max(later, limit.when() or later))
                        continue
                    return {int(id_): outcome_from_json(told) for id_, told in answer["outcomes"].items()}
        except TimeoutError:
            await self._end(hurry=True)
            raise
        raise HandlerCrashed(await self._end())

    async def _ready(self) -> Link:
        if self._process is not None and self._process.poll() is not None:
            await self._end()  # it died while it was idle, which is not the fault of the next task
        if self._link is None:
            await self._start()
        assert self._link is not None
        return self._link

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - Penstock itself
                [sys.executable, "-P", "-m", "penstock.worker.cell", str(theirs.fileno()), self._orders.target],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self._link = await Link.over(ours)
        self._watching = asyncio.create_task(close_when_over(self._link, self._process))
        self._link.send(orders=self._orders.to_json())
        try:
            async with asyncio.timeout(STARTING):
                ready = await self._link.receive()
        except TimeoutError:
            ready = None
        if ready is None:
            raise HandlerCrashed(f"it could not start: {await self._end()}")

    async def _end(self, *, hurry: bool = False) -> str:
        """Kills what is left of the process, and returns how it ended."""
        assert self._process is not None
        process, self._process = self._process, None
        if self._link is not None:
            self._link.close()
            self._link = None
        for _ in range(20):  # the process may be about to exit by itself
            if process.poll() is not None or hurry:
                break
            await asyncio.sleep(0.01)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        while (code := process.poll()) is None:
            await asyncio.sleep(0.005)
        return f"the handler's process ended by signal {-code}" if code < 0 else f"the handler's process exited: {code}"
