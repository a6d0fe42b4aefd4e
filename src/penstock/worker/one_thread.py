"""Tiny tasks: one thread does everything from claim to settle, batch by batch.

Where processes fill the cores, every hand-over to another thread waits for a core, and that takes longer than the
tasks.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from queue import SimpleQueue

from penstock.client.queue import Queue
from penstock.worker.claim_calls import ClaimCalls
from penstock.worker.dispatch import Dispatcher
from penstock.worker.executors.threads import ThreadExecutor
from penstock.worker.in_flight import InFlight
from penstock.worker.loop_calls import call_in_loop
from penstock.worker.pace import Pace
from penstock.worker.settling import OutcomeBuffer, Settler
from penstock.worker.workload import Workload

STRETCH = 0.2  # seconds for which a thread works by itself


class OneThread:
    """Lets one thread claim, run and settle tiny tasks by itself."""

    def __init__(
        self,
        claims: ClaimCalls,
        dispatcher: Dispatcher,
        workload: Workload,
        *,
        settler: Settler,
        threads: ThreadExecutor,
        pace: Pace,
    ) -> None:
        self._claims = claims
        self._dispatcher = dispatcher
        self._workload = workload
        self._settler = settler
        self._threads = threads
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[int] | None = None  # the answer of the thread that works, or worked last
        self._buffer = OutcomeBuffer()

    async def work(self, queue: Queue, room: int) -> int:
        """Lets a thread work on a queue for a short time, and returns the size of its last claim."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._answer = answer
        self._threads.send(partial(self._claim_run_settle, queue, room, answer))
        return await answer

    def stop_waiting(self) -> None:
        """Lets `work` return at once, because a task takes long, and settles the tasks that the thread has finished."""
        if self._answer is not None:
            set_answer(self._answer, 0)
            self._settler.add_quietly(*self._buffer.take())

    def _claim_run_settle(self, queue: Queue, room: int, answer: asyncio.Future[int]) -> None:
        """Claims, runs and settles in a thread.

        It returns when a claim gets fewer tasks than asked for, or when there is something else to do.
        """
        until = time.monotonic() + STRETCH
        try:
            while True:
                room = max(room, self._claims.most(queue.name, self._pace.target))
                flight = self._claims.claim(queue, room, idle=True)
                if not self._run_and_settle(flight):
                    break
                short = len(flight.claim) < room
                if short or flight.taken_at > until or answer.done() or self._interrupted:
                    break
            call_in_loop(self._loop, set_answer, answer, len(flight.claim))
        except BaseException as error:  # noqa: BLE001 - the sender gets the error
            call_in_loop(self._loop, set_answer, answer, error)

    @property
    def _interrupted(self) -> bool:
        return self._claims.quarantine or self._workload.stopping

    def _run_and_settle(self, flight: InFlight) -> bool:
        mode = self._dispatcher.quick_mode(flight.claim)
        if mode == "thread":
            call_in_loop(self._loop, self._workload.add, flight)
            self._buffer = buffer = OutcomeBuffer()
            self._threads.run_here(self._dispatcher.sort(flight)[mode], buffer)
            return self._settler.settle_here(flight, buffer.close())
        if mode == "async":
            complete = flight.waiter = SimpleQueue()
            call_in_loop(self._loop, self._dispatcher.take, flight)
            return self._settler.settle_when_complete(flight, complete)
        if flight.claim:
            call_in_loop(self._loop, self._dispatcher.take, flight)
        return False


def set_answer(future: asyncio.Future[int], got: int | BaseException) -> None:
    """Sets the result or the error of a future, unless its caller no longer waits."""
    if future.done():
        return
    if isinstance(got, BaseException):
        future.set_exception(got)
    else:
        future.set_result(got)
