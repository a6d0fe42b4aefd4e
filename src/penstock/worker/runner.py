"""One worker process: it claims, runs, settles. The supervisor keeps its leases alive, which no handler can stop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from penstock.aio.database import AsyncDatabase
from penstock.aio.queue import AsyncQueue
from penstock.database import Database
from penstock.errors import ConfigError, PenstockError, Unavailable
from penstock.handlers import Registry, Spec
from penstock.handlers.registry import Hook
from penstock.line import Line
from penstock.model import Claim, Outcome, Task
from penstock.queue import Queue
from penstock.validate import LARGEST_CLAIM
from penstock.worker.coroutines import Coroutines
from penstock.worker.crew import Crew, Job, called
from penstock.worker.ear import Ear
from penstock.worker.execution import EXITS, SETTLED, UNKNOWN_KIND
from penstock.worker.flights import AT_ONCE, Desk, Entry, Flight, Tray
from penstock.worker.link import Link, Message
from penstock.worker.orders import Orders
from penstock.worker.pace import Pace, Turns
from penstock.worker.processes import Processes
from penstock.worker.threads import Threads

LOG = logging.getLogger("penstock.worker")
TICK = 0.25
STRETCH = 0.2  # seconds that a thread goes on by itself
LOITERING = 0.5  # seconds after which a batch of tiny tasks should long be over
STALLED = 1.0  # seconds that a claimed task may wait for a slot before it is given back
FAREWELL = 5.0  # seconds that hooks for the dead may take when the process is about to end
RELEASED = Outcome.release()
REPLACED = ("recycled", "left")
FIRST = asyncio.FIRST_COMPLETED


class Rest:
    """While there is nothing to do: whoever hears of something may claim so much, and hands it over."""

    def __init__(self, room: int, idle: bool) -> None:
        self.room = room
        self.idle = idle
        self.over = asyncio.Event()
        self.found: list[Flight] = []  # on its way from one thread to another: who takes it out has it
        self.taken = threading.Event()


class Runner:
    def __init__(self, orders: Orders, registry: Registry, link: Link) -> None:
        self._orders = orders
        self._registry = registry
        self._link = link
        slots = orders.concurrency
        self._database = Database(orders.dsn, max_connections=slots + AT_ONCE + 2, timeout=2.0)
        self._for_coroutines = AsyncDatabase(orders.dsn, max_connections=2 * slots)  # extend() inside transaction()
        self._queues = {name: Queue(self._database, name) for name in orders.queues}
        self._specs: dict[tuple[str, str], Spec | None] = {}
        # Claims and settles are the sync client's, in threads of their own: asyncio would cost a third of a small task.
        self._pool = ThreadPoolExecutor(AT_ONCE + 2, "penstock-database")
        self._leases = dict(orders.leases)
        self._turns = Turns(orders.queues)
        self._pace = Pace(slots)
        self._desk = Desk(asyncio.get_running_loop(), self)
        self._threads = Threads(slots, self._desk)
        self._crews: dict[str, Crew] = self._hired(slots)
        self._flights: dict[str, Flight] = {}
        self._in_hand = 0  # tasks taken and not finished
        self._load = 0.0  # the slots they take
        self._batches = {name: largest_batch(registry, name) for name in orders.queues}
        self._gone: list[str] = []  # leases that ended, and the supervisor does not know
        self._finished = 0
        self._counts: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._impatient = asyncio.Event()
        self._grace = orders.grace
        self._why = "stopped"
        self._asked_at: float | None = None  # to stop: the grace period begins
        self._beside = False  # one of the tiny ones is not: the others need not wait for it
        self._errand: asyncio.Future[int] | None = None  # a thread claims, runs and settles by itself
        self._tray = Tray()
        self._rests: list[Rest] = []  # the one that nobody has taken, if we rest
        self._told: set[str] = set()  # queues of which the loop will hear that something came
        self._ear = Ear(self._database, self)
        self._loop = asyncio.get_running_loop()
        self._alone = False  # somebody has to run alone what killed its worker before: let go of everything first
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

    # --- from start to stop -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until somebody says stop, there is nobody left to say it, or it is time for a new process."""
        self._heed_signals()
        await called(self._registry.starting)
        self._link.send(ready=True)
        duties = [asyncio.create_task(duty()) for duty in (self._claim, self._listen, self._tick)]
        for duty in duties:
            duty.add_done_callback(self._ended)
        await self._over.wait()
        await self._wind_up(duties[0])
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        if self._chores:
            await asyncio.wait(self._chores, timeout=FAREWELL)
        self._report()  # the hooks are somebody else's
        await called(self._registry.stopping)
        await self._for_coroutines.close()
        self._report(bye=self._why)
        for duty in duties:
            if not duty.cancelled() and (error := duty.exception()) is not None:
                raise error

    @property
    def stuck(self) -> bool:
        """Threads are left that nobody can end: in a handler, or waiting for PostgreSQL."""
        return bool(self._in_hand or self._flights or self._reconnecting)

    def _heed_signals(self) -> None:
        """A service manager may signal every process of a group, not only the first. Ctrl-C is the supervisor's affair;
        it is not ignored, because programs that handlers start would inherit that."""
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
            self._asked_at = (
                time.monotonic()
            )  # who is only replaced may finish whatever it has, however long that takes
        if not self._over.is_set():
            self._why = why
            self._over.set()
            self._changed.set()
            for flight in self._flights.values():
                flight.stopping = True

    async def _wind_up(self, claiming: asyncio.Task[None]) -> None:
        """What has not begun goes back at once; what runs may finish within the grace period, then it goes back too."""
        if self._reconnecting is not None:
            claiming.cancel()  # it waits for PostgreSQL, nobody knows how long
        await asyncio.wait([claiming, asyncio.create_task(self._impatient.wait())], timeout=10, return_when=FIRST)
        self._give_back(self._withdrawn())
        while self._in_hand > 0 and not self._impatient.is_set():
            if self._asked_at is not None and time.monotonic() > self._asked_at + self._grace:
                break
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._changed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._desk.empty()
                await self._abandon()
        for crew in self._crews.values():
            await crew.stop()

    async def _abandon(self) -> None:
        """What still runs is put back, no attempt burned; whatever comes of it is refused."""
        await asyncio.gather(*(self._let_go(flight) for flight in [*self._flights.values()]))

    async def _let_go(self, flight: Flight) -> None:
        flight.lost = True
        with suppress(PenstockError):
            await self.apart(flight.queue.release, flight.claim)
            self._counts["release"] += flight.left
        self._gone.append(flight.token)

    # --- claiming ---------------------------------------------------------------------------------------------------

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
        if any(flight.claim.alone for flight in self._flights.values()) or (self._alone and self._flights):
            return 0
        if self._in_turn and self._flights:
            return 0
        return self._pace.room(self._load)

    @property
    def _in_turn(self) -> bool:
        """Claim, run, settle, then claim; not beside each other."""
        return self._pace.tiny and not self._orders.overlap and not self._beside

    async def _rest(self, room: int) -> None:
        rest = Rest(room, not self._flights)
        self._rests.append(rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._turns.rest()):
                await self._changed.wait()
        try:
            self._rests.pop()
        except IndexError:  # the ear was quicker
            await self._end(rest)

    async def _end(self, rest: Rest) -> None:
        await rest.over.wait()
        rest.taken.set()
        try:
            flight = rest.found.pop()
        except IndexError:  # it failed, and we shall see for ourselves why; or it was late, and went back
            self._turns.wake()
        else:
            self._took(flight, self._most(flight.claim.queue, rest.room))

    def heard(self, name: str, line: Line) -> None:
        """By the ear's thread, which claims by itself while we rest: each hand-over would wait until somebody wakes."""
        if self._over.is_set():
            return
        try:
            rest = self._rests.pop() if line.may_speak and not self._alone else None
        except IndexError:
            rest = None
        if rest is not None:
            self._claim_heard(self._queues[name], line, rest)
        elif name not in self._told:
            self._told.add(name)
            self._soon(self._wake, name)

    def _claim_heard(self, queue: Queue, line: Line, rest: Rest) -> None:
        asked_at, lease, most = time.monotonic(), self._leases[queue.name], self._most(queue.name, rest.room)
        try:
            claim = queue.claim_heard(line.once, most, lease=lease, worker=self._orders.name, may_alone=rest.idle)
            rest.found.append(self._flight(claim, asked_at, lease))
        finally:
            self._soon(self._wake_from, rest)
        if not rest.taken.wait(min(STALLED, lease / 3)):
            with suppress(IndexError, PenstockError):  # a handler holds the loop: others may run these
                flight = rest.found.pop()
                flight.queue.release(flight.claim)

    def _wake_from(self, rest: Rest) -> None:
        rest.over.set()
        self._changed.set()

    def _soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: it took so long that nobody waits for it
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _wake(self, name: str) -> None:
        self._told.discard(name)
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
                self._took(await self.apart(self._ask, queue, room, idle), room)
        except Unavailable as error:
            if not self._over.is_set():
                await self.reconnected(error)
            return
        except ConfigError:
            raise
        except PenstockError as error:  # the queue was dropped, for one: it may come back
            if self._turns.put_aside(name):
                LOG.warning("claim refused", extra={"queue": name, "code": error.code})
            return
        if idle:
            self._alone = False  # if one waited here, it has it now

    def _ask(self, queue: Queue, room: int, idle: bool) -> Flight:
        asked_at, lease = time.monotonic(), self._leases[queue.name]
        if self._alone:
            queue.look_afresh()
        claim = queue.claim(room, lease=lease, worker=self._orders.name, may_alone=idle)
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
        flight.lost = age > flight.lease  # an async handler held the loop: somebody else has them by now

    def _sorted(self, flight: Flight) -> dict[str, list[Job]]:
        """Who runs what. A kind that nobody knows is put back for later, and shown."""
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

    # --- tiny tasks -------------------------------------------------------------------------------------------------

    async def _send(self, queue: Queue, room: int) -> int:
        """One thread does it all, from claim to settle, batch after batch: where processes fill the cores, every
        hand-over waits for one of them, and that takes longer than the tasks. How many its last claim brought."""
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._errand = told
        self._threads.send(partial(self._go, queue, room, told))
        return await told

    def _go(self, queue: Queue, room: int, told: asyncio.Future[int]) -> None:
        """By a thread of the crew. It is back when it got less than it asked for, or there is something else to do."""
        soon = told.get_loop().call_soon_threadsafe
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
        except BaseException as error:  # noqa: BLE001 - whoever sent it shall know
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
        """How all of it is run, if that is the same quick way for all."""
        if claim.alone or self._over.is_set():
            return None
        specs = [self._spec(claim.queue, kind) for kind in {task.kind for task in claim.tasks}]
        modes = {spec.mode if spec is not None and spec.quick else None for spec in specs}
        return modes.pop() if len(modes) == 1 else None

    @staticmethod
    def _back(told: asyncio.Future[int], got: int | BaseException) -> None:
        if told.done():  # nobody could wait any longer
            return
        if isinstance(got, BaseException):
            told.set_exception(got)
        else:
            told.set_result(got)

    # --- what comes of it -------------------------------------------------------------------------------------------

    def finished(self, tasks: int, load: float, seconds: float, others: list[Entry]) -> None:
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
            LOG.warning("put back" if outcome.word == "release" else outcome.word, extra=facts)
        if outcome.word == "release" and outcome.error_class in EXITS:
            self._stop("left")

    def settled(self, flight: Flight, done: int, others: dict[int, Outcome], dead: set[int]) -> None:
        self._counts["done"] += done
        self._counts.update(outcome.word for outcome in others.values())
        self._counts["died"] += len(dead)
        for id_ in dead:
            for hook in self._registry.dying:
                self._do(mourn(hook, flight.task(id_), others[id_].error or ""))

    def landed(self, flight: Flight) -> None:
        self._flights.pop(flight.token, None)
        self._gone.append(flight.token)
        self._changed.set()

    def _report(self, **news: Any) -> None:
        """Leases that ended are told of with the next: each message wakes the supervisor, which needs a core for it."""
        self._link.send(**news, gone=self._gone, counts=self._counts)
        self._gone = []

    def _do(self, chore: Any) -> None:
        task = asyncio.get_running_loop().create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def reconnected(self, error: Unavailable) -> None:
        """PostgreSQL is back. All who need it wait for the same one. Where it answers, and only can not do it now, a
        moment is enough."""
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
                self._turns.wake()

    async def _reconnect(self) -> None:
        """Not more than once a second: it may be a server that can be reached, and can not write."""
        await asyncio.sleep(max(0.0, self._reconnected_at + 1.0 - time.monotonic()))
        await self.apart(self._database.reconnect)
        self._reconnected_at = time.monotonic()

    async def apart(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What waits for PostgreSQL, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def _withdrawn(self) -> list[tuple[Flight, Task]]:
        """What was taken and has not begun."""
        found = []
        for crew in self._crews.values():
            for flight, _, work in crew.withdraw():
                found += [(flight, task) for task in (work if isinstance(work, list) else [work])]
        return found

    def _give_back(self, waiting: Iterable[tuple[Flight, Task]]) -> None:
        for flight, task in waiting:
            self._desk.hand_in(flight, task, RELEASED, 0.0)

    # --- beside it --------------------------------------------------------------------------------------------------

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
        elif "channels" in message:
            self._ear.listen(message["channels"])
        elif "alone" in message:
            self._alone = message["alone"]
            self._changed.set()
        elif "leases" in message:
            self._leases.update(message["leases"])

    def _cancel(self, flight: Flight, ids: set[int] | None) -> None:
        for crew in self._crews.values():
            crew.cancel(flight, ids)

    async def _tick(self) -> None:
        """Signs of life; and what was taken too early goes back, so that somebody else may run it."""
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
                self._stop("recycled")  # not before it did anything: the limit may be less than anybody needs
            busy = max(0, min(self._in_hand, self._orders.concurrency))
            self._report(busy=busy)
            await asyncio.sleep(TICK)


def largest_batch(registry: Registry, queue: str) -> int:
    return max((spec.batch or 1 for spec in registry.of(queue)), default=1)


async def mourn(hook: Hook, task: Task, error: str) -> None:
    """A hook for the dead must not harm the living."""
    try:
        if inspect.iscoroutinefunction(hook):
            await hook(task, error)
        else:
            await asyncio.to_thread(hook, task, error)
    except (Exception, SystemExit, KeyboardInterrupt) as wrong:  # noqa: BLE001 - somebody else's function
        LOG.warning("on_dead hook failed", extra={"task": task.id, "error_class": type(wrong).__name__})


def memory() -> int:
    """Bytes of memory that this process holds now; where the system does not tell, the most it ever held."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
