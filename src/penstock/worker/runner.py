"""One worker process, from its start to its end: it claims, runs and settles tasks.

The supervisor keeps its leases alive, so that no handler can prevent that.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from penstock.client.database import Database
from penstock.client.database_async import AsyncDatabase
from penstock.client.queue_async import AsyncQueue
from penstock.client.workers import set_kinds
from penstock.errors import PenstockError
from penstock.handlers import Registry
from penstock.worker.claim_calls import ClaimCalls
from penstock.worker.claiming import Claiming
from penstock.worker.config import DEADLINE, RunnerConfig
from penstock.worker.database_calls import AT_ONCE, DatabaseCalls
from penstock.worker.dispatch import Dispatcher
from penstock.worker.executors.base import call_hooks
from penstock.worker.executors.team import Executors
from penstock.worker.in_flight import InFlight
from penstock.worker.measures import Measures
from penstock.worker.noting import NoteKeeper
from penstock.worker.one_thread import OneThread
from penstock.worker.pace import Pace, Turns
from penstock.worker.pipe import Message, Pipe
from penstock.worker.reloading import INTERVAL, Files, loaded_files
from penstock.worker.settling import Settler
from penstock.worker.wakeup import PushListener
from penstock.worker.workload import Workload

LOG = logging.getLogger("penstock.worker")
TICK = 0.25
TICKS_PER_REPORT = 4  # what was measured is sent once a second
FAREWELL = 5.0  # seconds for the last settles, releases and hooks when the process is about to end
FIRST = asyncio.FIRST_COMPLETED


class Runner:
    """Claims tasks, runs their handlers and settles them, until it is stopped."""

    def __init__(self, config: RunnerConfig, registry: Registry, pipe: Pipe) -> None:
        self._config = config
        self._registry = registry
        self._pipe = pipe
        slots = config.concurrency
        self._database = Database(config.dsn, max_connections=slots + AT_ONCE + 2, timeout=2.0, deadline=DEADLINE)
        # There are twice as many connections as slots, because extend() can be called inside transaction().
        self._async_database = AsyncDatabase(config.dsn, max_connections=2 * slots, deadline=DEADLINE)
        self._calls = DatabaseCalls(self._database)
        pace, turns = Pace(slots), Turns(config.queues)
        self._workload = Workload(config, registry, pipe, pace, turns)
        self._notes = NoteKeeper(self._database, self._calls)
        self._measures = None if config.slas is None else Measures(config.slas)
        self._settler = Settler(asyncio.get_running_loop(), self._workload, self._calls, self._notes, self._measures)
        queues = {name: AsyncQueue(self._async_database, name) for name in config.queues}
        self._executors = Executors(config, self._settler, queues)
        self._claims = ClaimCalls(config, registry, self._database)
        self._dispatcher = Dispatcher(registry, self._workload, self._settler, self._executors, pace)
        threads = self._executors.threads
        one_thread = OneThread(
            self._claims, self._dispatcher, self._workload, settler=self._settler, threads=threads, pace=pace
        )
        self._claiming = Claiming(
            config,
            self._workload,
            self._claims,
            self._dispatcher,
            one_thread,
            executors=self._executors,
            pace=pace,
            turns=turns,
            calls=self._calls,
        )
        self._push_listener = PushListener(self._database, self._claiming)

    # --- from start to stop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until it is told to stop, its supervisor is gone, or a new process should replace it."""
        self._handle_signals()
        if self._config.dev:  # the supervisor knows only the kinds of the code with which it was started
            for name in self._config.queues:
                await self._calls.run(set_kinds, self._database, name, self._registry.stored(name))
        await call_hooks(self._registry.starting)
        self._pipe.send(ready=True)
        duties = [
            asyncio.create_task(duty())
            for duty in (self._claiming.run, self._listen, self._tick, *self._for_developers())
        ]
        for duty in duties:
            duty.add_done_callback(self._stop_on_error)
        await self._workload.stop_request.made.wait()
        await self._shut_down(duties[0])
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        if self._workload.hooks:
            await asyncio.wait(self._workload.hooks, timeout=FAREWELL)
        self._workload.report()  # before the hooks, which are the user's code
        await call_hooks(self._registry.stopping)
        await self._async_database.close()
        self._report_measures()
        self._workload.report(bye=self._workload.stop_request.why)
        for duty in duties:
            if not duty.cancelled() and (error := duty.exception()) is not None:
                raise error

    async def close(self) -> None:
        """Ends the threads and connections, which otherwise end with the process."""
        self._push_listener.close()
        await self._calls.close()

    def _for_developers(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [self._watch_files] if self._config.dev else []

    async def _watch_files(self) -> None:
        """Ends this process when a file of the application changes; the supervisor starts another with the new code."""
        files = Files()
        files.add(loaded_files())
        while (changed := files.find_changed()) is None:
            await asyncio.sleep(INTERVAL)
            files.add(loaded_files())
        LOG.info("reloading", extra={"file": str(Path(changed).relative_to(Path.cwd()))})
        self._workload.stop("reloaded")

    @property
    def stuck(self) -> bool:
        """Whether threads are left that cannot be ended: in a handler, or waiting for PostgreSQL."""
        return bool(self._workload.unfinished or self._workload.flights or self._calls.reconnecting)

    def _handle_signals(self) -> None:
        """Handles SIGTERM, because a service manager may signal every process of a group and not only the first.

        Ctrl-C is handled by the supervisor. Here it has an empty handler; it is not ignored, because programs that
        handlers start would inherit that. In a thread of another program, signals are left to that program.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    def _terminate(self) -> None:
        if self._workload.stopping:
            self._workload.stop_request.in_hurry.set()
        self._workload.stop("stopped")

    def _stop_on_error(self, duty: asyncio.Task[None]) -> None:
        if not duty.cancelled() and duty.exception() is not None:
            self._workload.stop("failed")

    async def _shut_down(self, claiming: asyncio.Task[None]) -> None:
        """Ends the work.

        Tasks that have not begun go back at once; running tasks may finish within the grace period, and then they go
        back too.
        """
        request = self._workload.stop_request
        if self._calls.reconnecting:
            claiming.cancel()  # it waits for PostgreSQL for an unknown time
        await asyncio.wait([claiming, asyncio.create_task(request.in_hurry.wait())], timeout=10, return_when=FIRST)
        self._dispatcher.give_back_waiting()
        while self._workload.unfinished > 0 and not request.in_hurry.is_set():
            left = request.seconds_left
            if left is not None and left < 0:
                break
            self._workload.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._workload.changed.wait()
        await self._settle_the_rest()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._abandon()
        await self._executors.stop()

    async def _settle_the_rest(self) -> None:
        """Settles the known outcomes, and counts those that remain.

        It takes at most the rest of the grace period, or five seconds if that is longer.
        """
        request = self._workload.stop_request
        left = 0.0 if request.in_hurry.is_set() else request.seconds_left or 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(max(FAREWELL, left)):
                await self._settler.wait_until_empty()
        unsettled = self._workload.unsettled
        if unsettled:
            self._workload.counts["unsettled"] += unsettled
            queues = sorted({flight.claim.queue for flight in self._workload.flights.values() if flight.unsettled})
            LOG.error("outcomes not settled: these tasks run again", extra={"tasks": unsettled, "queues": queues})

    async def _abandon(self) -> None:
        """Puts the running tasks back without using up an attempt. Their outcomes are refused from now on."""
        await asyncio.gather(*(self._release(flight) for flight in [*self._workload.flights.values()]))

    async def _release(self, flight: InFlight) -> None:
        await self._notes.store(flight)
        flight.lost = flight.released = True
        with suppress(PenstockError):
            states = await self._calls.run(partial(flight.queue.release, flight.claim, wait=False))
            put_back = sum(state != "busy" for state in states.values())
            self._workload.counts["release"] += max(0, put_back - flight.unsettled)
        self._workload.ended_leases.append(flight.token)

    # --- messages and ticks -------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        async for message in self._pipe:
            self._handle(message)
        self._workload.stop("orphaned")

    def _handle(self, message: Message) -> None:
        """Handles a message of the supervisor."""
        flight = self._workload.flights.get(message.get("token", ""))
        if "stop" in message:
            self._handle_stop(message["stop"])
        elif "lost" in message and flight is not None and not flight.released:
            flight.lost = True
            self._settler.log_loss(flight, {"tasks": flight.left})
            self._executors.cancel(flight, None)
        elif "revoked" in message and flight is not None:
            flight.revoked.update(message["revoked"])
            self._executors.cancel(flight, flight.revoked)
        elif "channel" in message:
            self._push_listener.listen(message["channel"])
        elif "look" in message:
            self._claiming.look_at(message["look"])
        elif "quarantine" in message:
            self._claiming.set_quarantine(message["quarantine"])
        elif "leases" in message:
            self._claims.leases.update(message["leases"])
        elif "primary" in message:
            self._database.hosts.follow(message["primary"])
            self._async_database.hosts.follow(message["primary"])

    def _handle_stop(self, grace: float) -> None:
        request = self._workload.stop_request
        request.grace = grace
        if self._workload.stopping and not grace:
            request.in_hurry.set()
        self._workload.stop("stopped")

    async def _tick(self) -> None:
        """Sends signs of life, and looks after what takes too long."""
        for ticks in count():
            self._settler.collect()
            self._claiming.check_progress()
            self._notes.store_due(self._workload.flights.values())
            limit = self._config.max_rss
            if limit is not None and self._workload.finished and memory() > limit:
                # This happens only after it has finished a task: the limit may be lower than any process needs.
                self._workload.stop("recycled")
            busy = max(0, min(self._workload.unfinished, self._config.concurrency))
            self._workload.report(busy=busy, stalled=round(self._stalled, 3), claims=self._claiming.active)
            if ticks % TICKS_PER_REPORT == 0:
                self._report_measures()
            if self._workload.settles_lag:
                self._workload.changed.set()  # settles may no longer lag, and no event says so
            await asyncio.sleep(TICK)

    def _report_measures(self) -> None:
        news = None if self._measures is None else self._measures.take_news(self._calls.reconnects)
        if news is not None:
            self._workload.send(measured=news)

    @property
    def _stalled(self) -> float:
        """Seconds for which no claim has succeeded, or no settle, or no settle of some task."""
        return max(self._claiming.stalled, self._workload.oldest_unsettled, self._workload.longest_given_up)


def memory() -> int:
    """Returns the bytes of memory that this process holds now, or the most it ever held if the system does not tell."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
