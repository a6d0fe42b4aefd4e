"""One worker process: it claims, runs and settles tasks.

The supervisor keeps its leases alive, so that no handler can prevent that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from penstock.client.claims import Claimer
from penstock.client.database import Database
from penstock.client.database_async import AsyncDatabase
from penstock.client.listener import Line
from penstock.client.queue import Queue
from penstock.client.queue_async import AsyncQueue
from penstock.client.workers import set_kinds
from penstock.errors import ConfigError, PenstockError, Unavailable
from penstock.handlers import Registry, Spec
from penstock.handlers.registry import Hook
from penstock.model import Claim, Outcome, Task, split_error
from penstock.validate import LARGEST_CLAIM
from penstock.worker.coroutines import Coroutines
from penstock.worker.crew import Crew, Job, called
from penstock.worker.ear import Ear
from penstock.worker.execution import EXITS, SETTLED, UNKNOWN_KIND, in_one_line
from penstock.worker.flights import AT_ONCE, Desk, Entry, Flight, Tray
from penstock.worker.link import Link, Message
from penstock.worker.logs import DETAILS, SUMMARY
from penstock.worker.orders import DEADLINE, Orders
from penstock.worker.pace import LARGEST_BATCH, Pace, Turns
from penstock.worker.performing import tell_hook_async
from penstock.worker.processes import Processes
from penstock.worker.reloading import INTERVAL, Files, loaded_files
from penstock.worker.threads import Threads

LOG = logging.getLogger("penstock.worker")
TICK = 0.25
STRETCH = 0.2  # seconds for which a thread works by itself
LOITERING = 0.5  # seconds after which a batch of tiny tasks should have ended long ago
STALLED = 1.0  # seconds that a claimed task may wait for a slot before it is given back
FAREWELL = 5.0  # seconds for the last settles, releases and hooks when the process is about to end
MAX_UNSETTLED = 2 * LARGEST_BATCH  # outcomes that PostgreSQL does not know yet; with more, nothing is claimed
UNSETTLED_PATIENCE = 3.0  # seconds that an outcome may wait for PostgreSQL before claiming stops
RELEASED = Outcome.release()
REPLACED = ("recycled", "left")
FIRST = asyncio.FIRST_COMPLETED


class Rest:
    """An offer to claim while the runner has nothing to do.

    The thread that is notified of a push may claim `room` tasks and hands them over.
    """

    def __init__(self, room: int, idle: bool) -> None:
        self.room = room
        self.idle = idle
        self.queue = ""  # the queue of the notification
        self.over = asyncio.Event()
        self.found: list[Flight] = []  # passes from one thread to the other: the thread that removes it owns it
        self.taken = threading.Event()


class Runner:
    """Claims tasks, runs their handlers and settles them, until it is stopped."""

    def __init__(self, orders: Orders, registry: Registry, link: Link) -> None:
        self._orders = orders
        self._registry = registry
        self._link = link
        slots = orders.concurrency
        self._database = Database(orders.dsn, max_connections=slots + AT_ONCE + 2, timeout=2.0, deadline=DEADLINE)
        # There are twice as many connections as slots, because extend() can be called inside transaction().
        self._for_coroutines = AsyncDatabase(orders.dsn, max_connections=2 * slots, deadline=DEADLINE)
        self._queues = {name: Queue(self._database, name) for name in orders.queues}
        self._claimers = {name: Claimer(self._database, name) for name in orders.queues}
        self._specs: dict[tuple[str, str], Spec | None] = {}
        # Claims and settles use the sync client in threads of their own; asyncio would cost a third of a small task.
        self._pool = ThreadPoolExecutor(AT_ONCE + 2, "penstock-database")
        self._leases = dict(orders.leases)
        self._turns = Turns(orders.queues)
        self._pace = Pace(slots)
        self._desk = Desk(asyncio.get_running_loop(), self)
        self._threads = Threads(slots, self._desk)
        self._crews: dict[str, Crew] = self._hired(slots)
        self._flights: dict[str, Flight] = {}
        self._claiming_since: float | None = None  # since when a claim waits for PostgreSQL
        self._claims_fail_since: float | None = None
        self._in_hand = 0  # tasks claimed and not finished
        self._load = 0.0  # the slots that they take
        self._batches = {name: largest_batch(registry, name) for name in orders.queues}
        self._gone: list[str] = []  # leases that ended and that the supervisor does not know of
        self._finished = 0
        self._counts: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._impatient = asyncio.Event()
        self._grace = orders.grace
        self._why = "stopped"
        self._asked_at: float | None = None  # when it was told to stop: the grace period begins
        self._beside = False  # one of the tiny tasks takes long: the others need not wait for it
        self._errand: asyncio.Future[int] | None = None  # a thread claims, runs and settles by itself
        self._tray = Tray()
        self._rests: list[Rest] = []  # the offer that no thread has taken, if the runner rests
        self._told: set[str] = set()  # queues for which the loop will be told that a task arrived
        self._ear = Ear(self._database, self)
        self._loop = asyncio.get_running_loop()
        # This process must run alone a task that killed its worker before: it finishes everything else first.
        self._alone = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._reconnected_at = 0.0
        self._chores: set[asyncio.Task[Any]] = set()

    def _hired(self, slots: int) -> dict[str, Crew]:
        queues = {name: AsyncQueue(self._for_coroutines, name) for name in self._orders.queues}
        return {
            "thread": self._threads,
            "async": Coroutines(slots, self._desk, queues),
            "process": Processes(slots, self._desk, self._orders),
        }

    # --- from start to stop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until it is told to stop, its supervisor is gone, or a new process should replace it."""
        self._heed_signals()
        if self._orders.dev:  # the supervisor knows only the kinds of the code with which it was started
            for name in self._queues:
                await self.apart(set_kinds, self._database, name, self._registry.stored(name))
        await called(self._registry.starting)
        self._link.send(ready=True)
        duties = [
            asyncio.create_task(duty()) for duty in (self._claim, self._listen, self._tick, *self._for_developers())
        ]
        for duty in duties:
            duty.add_done_callback(self._ended)
        await self._over.wait()
        await self._wind_up(duties[0])
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        if self._chores:
            await asyncio.wait(self._chores, timeout=FAREWELL)
        self._report()  # before the hooks, which are the user's code
        await called(self._registry.stopping)
        await self._for_coroutines.close()
        self._report(bye=self._why)
        for duty in duties:
            if not duty.cancelled() and (error := duty.exception()) is not None:
                raise error

    async def close(self) -> None:
        """Ends the threads and connections, which otherwise end with the process."""
        self._ear.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._database.close)

    def _for_developers(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [self._watch_files] if self._orders.dev else []

    async def _watch_files(self) -> None:
        """Ends this process when a file of the application changes; the supervisor starts another with the new code."""
        files = Files()
        files.add(loaded_files())
        while (changed := files.changed()) is None:
            await asyncio.sleep(INTERVAL)
            files.add(loaded_files())
        LOG.info("reloading", extra={"file": str(Path(changed).relative_to(Path.cwd()))})
        self._stop("reloaded")

    @property
    def stuck(self) -> bool:
        """Whether threads are left that cannot be ended: in a handler, or waiting for PostgreSQL."""
        return bool(self._in_hand or self._flights or self._reconnecting)

    def _heed_signals(self) -> None:
        """Handles SIGTERM, because a service manager may signal every process of a group and not only the first.

        Ctrl-C is handled by the supervisor. Here it has an empty handler; it is not ignored, because programs that
        handlers start would inherit that. In a thread of another program, signals are left to that program.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    def _terminated(self) -> None:
        if self._over.is_set():
            self._impatient.set()
        self._stop("stopped")

    def _ended(self, duty: asyncio.Task[None]) -> None:
        if not duty.cancelled() and duty.exception() is not None:
            self._stop("failed")

    def _stop(self, why: str) -> None:
        if self._asked_at is None and why not in REPLACED:
            # A process that is only replaced may finish its tasks, however long that takes.
            self._asked_at = time.monotonic()
        if not self._over.is_set():
            self._why = why
            self._over.set()
            self._changed.set()
            for flight in self._flights.values():
                flight.stopping = True

    async def _wind_up(self, claiming: asyncio.Task[None]) -> None:
        """Ends the work.

        Tasks that have not begun go back at once; running tasks may finish within the grace period, and then they go
        back too.
        """
        if self._reconnecting is not None:
            claiming.cancel()  # it waits for PostgreSQL for an unknown time
        await asyncio.wait([claiming, asyncio.create_task(self._impatient.wait())], timeout=10, return_when=FIRST)
        self._give_back(self._withdrawn())
        while self._in_hand > 0 and not self._impatient.is_set():
            if self._asked_at is not None and time.monotonic() > self._asked_at + self._grace:
                break
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._changed.wait()
        await self._settle_the_rest()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._abandon()
        for crew in self._crews.values():
            await crew.stop()

    async def _settle_the_rest(self) -> None:
        """Settles the known outcomes, and counts those that remain.

        It takes at most the rest of the grace period, or five seconds if that is longer.
        """
        left = 0.0
        if self._asked_at is not None and not self._impatient.is_set():
            left = self._asked_at + self._grace - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(FAREWELL, left)):
                await self._desk.empty()
        unsettled = sum(flight.unsettled for flight in self._flights.values())
        if unsettled:
            self._counts["unsettled"] += unsettled
            LOG.error("outcomes not settled: these tasks run again", extra={"tasks": unsettled})

    async def _abandon(self) -> None:
        """Puts the running tasks back without using up an attempt. Their outcomes are refused from now on."""
        await asyncio.gather(*(self._let_go(flight) for flight in [*self._flights.values()]))

    async def _let_go(self, flight: Flight) -> None:
        flight.lost = True
        with suppress(PenstockError):
            await self.apart(partial(flight.queue.release, flight.claim, wait=False))
            self._counts["release"] += flight.left - flight.unsettled
        self._gone.append(flight.token)

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        while not self._over.is_set():
            self._changed.clear()
            room = self._room()
            name = self._turns.next() if room else None
            if not room:
                await self._changed.wait()
            elif name is None:
                await self._rest(room)
            else:
                await self._claim_from(name, self._most(name, room))

    def _most(self, name: str, room: int) -> int:
        return min(room * self._batches[name], LARGEST_CLAIM)

    def _room(self) -> int:
        if (self._in_turn and self._flights) or self._abstains:
            return 0
        return self._pace.room(self._load)

    @property
    def _abstains(self) -> bool:
        """Whether it claims nothing, even if slots are free."""
        if any(flight.claim.alone for flight in self._flights.values()) or (self._alone and self._flights):
            return True
        return self._settles_lag

    @property
    def _settles_lag(self) -> bool:
        """Whether PostgreSQL takes outcomes so slowly that tasks claimed now would only be lost and repeated."""
        unsettled = sum(flight.unsettled for flight in self._flights.values())
        return unsettled >= max(MAX_UNSETTLED, self._orders.concurrency) or self._oldest_unsettled > UNSETTLED_PATIENCE

    @property
    def _oldest_unsettled(self) -> float:
        """Seconds that the oldest outcome has waited for PostgreSQL.

        Outcomes of tasks that another transaction holds do not count.
        """
        since = [flight.known_since for flight in self._flights.values() if flight.known_since is not None]
        return time.monotonic() - min(since) if since else 0.0

    @property
    def _in_turn(self) -> bool:
        """Whether it claims, runs and settles one batch after the other, and not at the same time."""
        return self._pace.tiny and not self._orders.overlap and not self._beside

    async def _rest(self, room: int) -> None:
        rest = Rest(room, not self._flights)
        self._rests.append(rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._turns.rest()):
                await self._changed.wait()
        try:
            self._rests.pop()
        except IndexError:  # the thread of the Ear took it first
            await self._end(rest)

    async def _end(self, rest: Rest) -> None:
        await rest.over.wait()
        rest.taken.set()
        try:
            flight = rest.found.pop()
        except IndexError:  # the claim failed, and the next one shows why; or it was late, and the tasks went back
            self._turns.wake(rest.queue)
        else:
            self._took(flight, self._most(flight.claim.queue, rest.room))

    def heard(self, name: str, line: Line) -> None:
        """Reacts to a notification of a push.

        The thread of the Ear calls it, and claims by itself while the runner rests: each hand-over would have to wait
        until a thread wakes up.
        """
        if name not in self._queues:
            return
        try:
            rest = self._rests.pop() if line.may_speak and not (self._alone or self._over.is_set()) else None
        except IndexError:
            rest = None
        if rest is not None:
            rest.queue = name
            self._claim_heard(self._queues[name], line, rest)
        elif name not in self._told:
            self._told.add(name)
            self._soon(self._wake, name)

    def _claim_heard(self, queue: Queue, line: Line, rest: Rest) -> None:
        asked_at, lease, most = time.monotonic(), self._leases[queue.name], self._most(queue.name, rest.room)
        claimer = self._claimers[queue.name]
        try:
            claim = claimer.claim_notified(line.once, most, lease=lease, worker=self._orders.name, may_alone=rest.idle)
            rest.found.append(self._flight(claim, asked_at, lease))
        finally:
            self._soon(self._wake_from, rest)
        if not rest.taken.wait(min(STALLED, lease / 3)):
            with suppress(IndexError, PenstockError):  # a handler holds the loop: other workers may run these tasks
                flight = rest.found.pop()
                flight.queue.release(flight.claim, wait=False)

    def _wake_from(self, rest: Rest) -> None:
        rest.over.set()
        self._changed.set()

    def _soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: this took so long that it is no longer needed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def hears(self, does: bool) -> None:
        """Tells the supervisor whether notifications arrive here."""
        self._soon(partial(self._link.send, hears=does))

    def _wake(self, name: str) -> None:
        self._told.discard(name)
        if self._over.is_set() or not self._room():
            self._link.send(full=name)  # the supervisor and PostgreSQL believe that this process is idle
        self._look_at([name])

    def _look_at(self, names: Iterable[str]) -> None:
        for name in names:
            self._turns.wake(name)
        self._changed.set()

    def _flight(self, claim: Claim, asked_at: float, lease: float) -> Flight:
        return Flight(claim, self._queues[claim.queue], asked_at, lease, 1 / self._batches[claim.queue])

    def _took(self, flight: Flight, asked: int) -> None:
        if flight.claim:
            self._take(flight)
        self._turns.note(flight.claim.queue, len(flight.claim), asked)

    async def _claim_from(self, name: str, room: int) -> None:
        queue, idle = self._queues[name], not self._flights
        try:
            if self._in_turn and idle:
                self._turns.note(name, await self._send(queue, room), room)
            else:
                self._claiming_since = time.monotonic()
                self._took(await self.apart(self._ask, queue, room, idle), room)
        except Unavailable as error:
            self._claims_fail_since = self._claims_fail_since or self._claiming_since or time.monotonic()
            if not self._over.is_set():
                await self.reconnected(error)
            return
        except ConfigError:
            raise
        except PenstockError as error:  # the queue was dropped, for example: it may come back
            if self._turns.put_aside(name):
                LOG.warning("claim refused", extra={"queue": name, "code": error.code})
            return
        finally:
            self._claiming_since = None
        self._claims_fail_since = None
        if idle:
            self._alone = False  # if a task for quarantine waited here, this process has it now

    def _ask(self, queue: Queue, room: int, idle: bool) -> Flight:
        asked_at, lease, claimer = time.monotonic(), self._leases[queue.name], self._claimers[queue.name]
        if self._alone:
            claimer.start_over()
        claim = claimer.claim(room, lease=lease, worker=self._orders.name, may_alone=idle)
        return self._flight(claim, asked_at, lease)

    def _take(self, flight: Flight) -> None:
        self._hold(flight)
        if self._over.is_set():
            self._give_back((flight, task) for task in flight.claim.tasks)
            return
        for mode, jobs in self._sorted(flight).items():
            self._crews[mode].put(jobs, alone=self._pace.tiny)

    def _hold(self, flight: Flight) -> None:
        claim = flight.claim
        flight.stopping = self._over.is_set()
        self._flights[flight.token] = flight
        age = time.monotonic() - flight.taken_at
        self._report(held=flight.token, queue=claim.queue, seconds=flight.lease, age=age)
        self._in_hand += len(claim)
        self._load += len(claim) * flight.unit
        flight.lost = age > flight.lease  # an async handler held the loop: another worker may have these tasks by now

    def _sorted(self, flight: Flight) -> dict[str, list[Job]]:
        """Sorts the tasks of a flight by the way they are run.

        A task of an unknown kind is put back for later and logged.
        """
        claim = flight.claim
        found: dict[str, list[Job]] = {}
        together: dict[str, tuple[Spec, list[Task]]] = {}
        for task in claim.tasks:
            spec = self._spec(claim.queue, task.kind)
            if spec is None:
                self._desk.hand_in(flight, task, UNKNOWN_KIND, 0.0)
            elif spec.batch is None:
                found.setdefault(spec.mode, []).append((flight, spec, task))
            else:
                together.setdefault(task.kind, (spec, []))[1].append(task)
        for spec, tasks in together.values():
            size = spec.batch or 1
            jobs = found.setdefault(spec.mode, [])
            jobs += [(flight, spec, tasks[n : n + size]) for n in range(0, len(tasks), size)]
        return found

    def _spec(self, queue: str, kind: str) -> Spec | None:
        try:
            return self._specs[queue, kind]
        except KeyError:
            found = self._specs[queue, kind] = self._registry.find(queue, kind)
            return found

    # --- tiny tasks ---------------------------------------------------------------------------------------------------

    async def _send(self, queue: Queue, room: int) -> int:
        """Lets one thread do everything from claim to settle, batch by batch, and returns the size of its last claim.

        Where processes fill the cores, every hand-over to another thread waits for a core, and that takes longer than
        the tasks.
        """
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._errand = told
        self._threads.send(partial(self._go, queue, room, told))
        return await told

    def _go(self, queue: Queue, room: int, told: asyncio.Future[int]) -> None:
        """Claims, runs and settles in a thread.

        It returns when a claim gets fewer tasks than asked for, or when there is something else to do.
        """
        soon = self._soon
        until = time.monotonic() + STRETCH
        try:
            while True:
                room = max(room, self._most(queue.name, self._pace.target))
                flight = self._ask(queue, room, idle=True)
                if not self._done_in_one_go(flight, soon):
                    break
                short = len(flight.claim) < room
                if short or flight.taken_at > until or told.done() or self._alone or self._over.is_set():
                    break
            soon(self._back, told, len(flight.claim))
        except BaseException as error:  # noqa: BLE001 - the sender gets the error
            soon(self._back, told, error)

    def _done_in_one_go(self, flight: Flight, soon: Callable[..., object]) -> bool:
        mode = self._quick_mode(flight.claim)
        if mode == "thread":
            soon(self._hold, flight)
            self._tray = tray = Tray()
            self._threads.work_off(self._sorted(flight)[mode], tray)
            return self._desk.settle_here(flight, tray.close())
        if mode == "async":
            complete = flight.waiter = SimpleQueue()
            soon(self._take, flight)
            return self._desk.settle_when_complete(flight, complete)
        if flight.claim:
            soon(self._take, flight)
        return False

    def _quick_mode(self, claim: Claim) -> str | None:
        """Returns how the tasks of a claim are run, if it is the same quick way for all of them, or else None."""
        if claim.alone or self._over.is_set():
            return None
        specs = [self._spec(claim.queue, kind) for kind in {task.kind for task in claim.tasks}]
        modes = {spec.mode if spec is not None and spec.quick else None for spec in specs}
        return modes.pop() if len(modes) == 1 else None

    @staticmethod
    def _back(told: asyncio.Future[int], got: int | BaseException) -> None:
        if told.done():  # the caller no longer waits
            return
        if isinstance(got, BaseException):
            told.set_exception(got)
        else:
            told.set_result(got)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def finished(self, tasks: int, load: float, seconds: float, others: list[Entry]) -> None:
        """Records finished tasks, and logs those that are not simply done."""
        self._in_hand -= tasks
        self._load = self._load - load if self._in_hand else 0.0
        self._finished += tasks
        if seconds:
            self._pace.note(load, seconds)
        for entry in others:
            self._tell(*entry)
        if self._orders.max_tasks is not None and self._finished >= self._orders.max_tasks:
            self._stop("recycled")
        self._changed.set()

    def _tell(self, flight: Flight, task: Task, outcome: Outcome, seconds: float) -> None:
        if outcome is SETTLED:
            self._counts["done"] += 1
        if outcome.word in ("failed", "dead") or outcome.error_class:
            facts = {"task": task.id, "queue": flight.claim.queue, "kind": task.kind, "attempt": task.attempt}
            facts |= {"error_class": outcome.error_class, "seconds": round(seconds, 3)}
            facts[SUMMARY] = in_one_line(outcome)
            if self._orders.dev:
                facts[DETAILS] = split_error(outcome.error)[1]
            LOG.warning("put back" if outcome.word == "release" else outcome.word, extra=facts)
        if outcome.word == "release" and outcome.error_class in EXITS:
            self._stop("left")

    def settled(self, flight: Flight, done: int, others: dict[int, Outcome], dead: set[int]) -> None:
        """Counts settled outcomes, and calls the on_dead hooks for dead tasks."""
        self._counts["done"] += done
        self._counts.update(outcome.word for outcome in others.values())
        self._counts["died"] += len(dead)
        self._counts["unknown"] += sum(outcome is UNKNOWN_KIND for outcome in others.values())
        if others:
            self._turns.wake(flight.claim.queue)  # some may already wait again, and no notification says so
        for id_ in dead:
            for hook in self._registry.dying:
                self._do(mourn(hook, flight.task(id_), others[id_].error or ""))
        self._changed.set()

    def landed(self, flight: Flight) -> None:
        """Removes a flight whose tasks are all settled."""
        self._flights.pop(flight.token, None)
        self._gone.append(flight.token)
        self._changed.set()

    def _report(self, **news: Any) -> None:
        """Sends news to the supervisor.

        Ended leases go with the next message, because each message wakes the supervisor, which needs a core for it.
        """
        self._link.send(**news, gone=self._gone, counts=self._counts)
        self._gone = []

    def _do(self, chore: Any) -> None:
        task = asyncio.get_running_loop().create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def reconnected(self, error: Unavailable) -> None:
        """Waits until PostgreSQL is back; all callers wait for the same reconnection.

        If PostgreSQL answers but cannot do the work now, a short pause is enough.
        """
        if error.reason in ("retry", "pool"):
            await asyncio.sleep(random.uniform(0.05, 0.5))  # noqa: S311
            return
        if self._reconnecting is None:
            LOG.warning("database lost", extra={"reason": error.reason})
            self._reconnecting = asyncio.create_task(self._reconnect())
        try:
            await asyncio.shield(self._reconnecting)
        finally:
            if self._reconnecting is not None and self._reconnecting.done():
                self._reconnecting = None

    async def _reconnect(self) -> None:
        """Reconnects at most once a second, because the server may be reachable but unable to write."""
        await asyncio.sleep(max(0.0, self._reconnected_at + 1.0 - time.monotonic()))
        await self.apart(self._database.reconnect)
        self._reconnected_at = time.monotonic()

    async def apart(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a call that waits for PostgreSQL in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def _withdrawn(self) -> list[tuple[Flight, Task]]:
        """Removes and returns the tasks that were claimed and have not begun."""
        found = []
        for crew in self._crews.values():
            for flight, _, work in crew.withdraw():
                found += [(flight, task) for task in (work if isinstance(work, list) else [work])]
        return found

    def _give_back(self, waiting: Iterable[tuple[Flight, Task]]) -> None:
        for flight, task in waiting:
            self._desk.hand_in(flight, task, RELEASED, 0.0)

    # --- messages and ticks -------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        async for message in self._link:
            self._obey(message)
        self._stop("orphaned")

    def _obey(self, message: Message) -> None:
        flight = self._flights.get(message.get("token", ""))
        if "stop" in message:
            self._grace = message["stop"]
            if self._over.is_set() and not self._grace:
                self._impatient.set()
            self._stop("stopped")
        elif "lost" in message and flight is not None:
            flight.lost = True
            LOG.warning("lease lost", extra={"queue": flight.claim.queue, "tasks": flight.left})
            self._cancel(flight, None)
        elif "revoked" in message and flight is not None:
            flight.revoked.update(message["revoked"])
            self._cancel(flight, flight.revoked)
        elif "channel" in message:
            self._ear.listen(message["channel"])
        elif "look" in message:
            self._look_at(message["look"])
        elif "alone" in message:
            self._alone = message["alone"]
            self._changed.set()
        elif "leases" in message:
            self._leases.update(message["leases"])

    def _cancel(self, flight: Flight, ids: set[int] | None) -> None:
        for crew in self._crews.values():
            crew.cancel(flight, ids)

    async def _tick(self) -> None:
        """Sends signs of life, and gives back tasks that were claimed too early. Another worker may run them."""
        while True:
            self._desk.collect()
            oldest = [flight for crew in self._crews.values() if (flight := crew.oldest) is not None]
            for crew in self._crews.values():
                crew.nudge()
            since = time.monotonic() - LOITERING
            self._beside = any(flight.taken_at < since for flight in self._flights.values())
            if self._beside and self._errand is not None:
                self._back(self._errand, 0)
                self._desk.lay_down(*self._tray.take())
            if any(time.monotonic() - flight.taken_at > STALLED for flight in oldest):
                self._pace.stalled()
                self._give_back(self._withdrawn())
            if self._orders.max_rss is not None and self._finished and memory() > self._orders.max_rss:
                # This happens only after it has finished a task: the limit may be lower than any process needs.
                self._stop("recycled")
            busy = max(0, min(self._in_hand, self._orders.concurrency))
            claims = not self._abstains and self._claims_fail_since is None
            self._report(busy=busy, stalled=round(self._stalled, 3), claims=claims)
            if self._settles_lag:
                self._changed.set()  # settles may no longer lag, and no event says so
            await asyncio.sleep(TICK)

    @property
    def _stalled(self) -> float:
        """Seconds for which no claim has succeeded, or no settle, or no settle of some task."""
        now = time.monotonic()
        since = [self._claims_fail_since, self._claiming_since]
        since += [flight.given_up_since for flight in self._flights.values()]
        return max(self._oldest_unsettled, *(now - one for one in since if one is not None), 0.0)


def largest_batch(registry: Registry, queue: str) -> int:
    """Returns the largest batch size among the handlers of a queue."""
    return max((spec.batch or 1 for spec in registry.of(queue)), default=1)


async def mourn(hook: Hook, task: Task, error: str) -> None:
    """Calls an on_dead hook; its errors are logged and do not stop the worker."""
    try:
        await tell_hook_async(hook, task, error)
    except (Exception, SystemExit, KeyboardInterrupt) as wrong:  # noqa: BLE001 - the hook is the user's code
        LOG.warning("on_dead hook failed", extra={"task": task.id, "error_class": type(wrong).__name__})


def memory() -> int:
    """Returns the bytes of memory that this process holds now, or the most it ever held if the system does not tell."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
