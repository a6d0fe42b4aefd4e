"""Runs async handlers, all on one loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import timedelta

from penstock.client.queue_async import AsyncQueue
from penstock.handlers import AsyncContext, Spec
from penstock.handlers.outcomes import LOST, stands
from penstock.model import Outcome, Task
from penstock.worker import execution
from penstock.worker.executors.base import Job, SlotExecutor, add_all, drop_unwanted, fail_all, ids_of
from penstock.worker.in_flight import InFlight
from penstock.worker.settling import Settler

TURN = 0.005  # seconds after which handlers that never wait yield the loop to others
FAREWELL = 1.0  # seconds in which a handler must react to its cancellation when the process is about to end


class CoroutineExecutor(SlotExecutor):
    """A fixed number of slots.

    Each is a coroutine that lives as long as the runner and takes one task after the other; an asyncio task per job
    would cost more than most handlers do.
    """

    def __init__(self, slots: int, settler: Settler, queues: dict[str, AsyncQueue]) -> None:
        super().__init__(slots, settler)
        self._queues = queues
        self._running: dict[asyncio.Task[None], Job] = {}
        self._unwanted: set[asyncio.Task[None]] = set()
        self._turn_ends = 0.0
        self._over = False
        self._spread = True  # a slot that takes a task wakes another slot for the next task

    def put(self, jobs: Iterable[Job], *, tiny: bool = False) -> None:
        """Queues jobs and wakes a slot."""
        self._spread = not tiny
        self._jobs.extend(jobs)
        self._wake()

    def nudge(self) -> None:
        """Wakes a slot if jobs are waiting."""
        self._spread = True
        if self._jobs:
            self._wake()

    def cancel(self, flight: InFlight, ids: set[int] | None) -> None:
        """Cancels the running handlers of these tasks."""
        for slot, (of, _, work) in self._running.items():
            if of is flight and (ids is None or ids_of(work) <= ids) and slot not in self._unwanted:
                self._unwanted.add(slot)
                slot.cancel()

    async def stop(self) -> None:
        """Cancels all slots. A handler that does not react is abandoned; its task has been put back."""
        self._over = True
        for slot in self._slots:
            slot.cancel()
        if self._slots:
            await asyncio.wait(self._slots, timeout=FAREWELL)

    async def _work(self) -> None:
        """Runs jobs in this slot, one after the other, until the executor ends."""
        me = asyncio.current_task()
        assert me is not None
        while not self._over:
            try:
                if not self._jobs:
                    await self._rest()
                elif time.perf_counter() > self._turn_ends:
                    await asyncio.sleep(0)
                    self._turn_ends = time.perf_counter() + TURN
                else:
                    await self._run_next(me)
            except asyncio.CancelledError:
                if self._over:
                    raise
            finally:
                # The cancellation was meant for a handler that has ended, whether or not it reacted.
                while me.cancelling():
                    me.uncancel()

    async def _run_next(self, me: asyncio.Task[None]) -> None:
        """Runs the next job and hands in its outcomes, whatever its handler does."""
        job = self._jobs.popleft()
        if self._spread and self._jobs and (self._idle or len(self._slots) < self.slots):
            self._wake()
        flight, spec, work = job
        if flight.lost or flight.revoked:
            work = drop_unwanted(self._settler, flight, work)
            if not work:
                return
            job = (flight, spec, work)
        self._running[me] = job
        try:
            began = time.perf_counter()
            if spec.quick and not isinstance(work, list):
                outcome = await execution.run_quickly_async(spec, work)
                self._settler.add(flight, work, outcome, time.perf_counter() - began)
            else:
                await self._run(flight, spec, work)
        except asyncio.CancelledError as error:
            if self._over:
                raise
            self._call_off(job, None if me in self._unwanted else error)
        except BaseException as error:  # noqa: BLE001 - no task is ever stuck
            fail_all(self._settler, job, error)
        finally:
            del self._running[me]
            self._unwanted.discard(me)

    async def _run(self, flight: InFlight, spec: Spec, work: Task | list[Task]) -> None:
        began = time.perf_counter()
        if isinstance(work, list):
            outcomes = await self._run_batch(spec, work)
            add_all(self._settler, flight, work, outcomes, time.perf_counter() - began)
            return
        if spec.timeout is None:
            outcome = await execution.run_async(spec, work, self._context(flight, spec, work))
        else:
            outcome = await self._run_timed(flight, spec, work)
        self._settler.add(flight, work, outcome, time.perf_counter() - began)

    async def _run_timed(self, flight: InFlight, spec: Spec, task: Task) -> Outcome:
        context = None
        try:
            async with asyncio.timeout(spec.timeout) as limit:
                context = self._context(flight, spec, task, limit)
                return await execution.run_async(spec, task, context)
        except TimeoutError:
            if context is not None and context.decided:
                return stands(context)
            return execution.timed_out(spec, task)

    async def _run_batch(self, spec: Spec, tasks: list[Task]) -> dict[int, Outcome]:
        try:
            async with asyncio.timeout(spec.timeout):
                return await execution.run_batch_async(spec, tasks)
        except TimeoutError:
            return {task.id: execution.timed_out(spec, task) for task in tasks}

    def _context(
        self, flight: InFlight, spec: Spec, task: Task, limit: asyncio.Timeout | None = None
    ) -> AsyncContext | None:
        if spec.arguments is None or spec.arguments.context is None:
            return None

        def postpone(length: timedelta) -> None:
            if limit is not None:
                later = asyncio.get_running_loop().time() + length.total_seconds()
                limit.reschedule(max(later, limit.when() or later))

        return AsyncContext(task, flight, self._queues[flight.claim.queue], postpone)

    def _call_off(self, job: Job, error: asyncio.CancelledError | None) -> None:
        """Hands in the outcome of a cancelled job.

        Without an error, the result is no longer needed; with an error, the handler cancelled itself or something that
        it waited for.
        """
        flight, spec, work = job
        for task in work if isinstance(work, list) else (work,):
            outcome = LOST if error is None else execution.failed(spec, task, None, error)
            self._settler.add(flight, task, outcome, 0.0)
