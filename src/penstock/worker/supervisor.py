"""`penstock work`: starts runners, keeps their leases alive, replaces them, and stops them when asked."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_urlsafe
from typing import Any

from penstock.client import queues_async, schedules_async, upkeep_async, workers_async
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements.upkeep import FailureLog
from penstock.client.statements.workers import FoundWork
from penstock.errors import Conflict, NotFound, PenstockError, Unavailable
from penstock.handlers import Registry
from penstock.model import QueueStatus
from penstock.worker import health
from penstock.worker.config import RunnerConfig, Weights
from penstock.worker.keepalive import Lease, Leases, frozen, until
from penstock.worker.pipe import Message, Pipe, Process, close_when_over
from penstock.worker.reloading import INTERVAL, Files

LOG = logging.getLogger("penstock.worker")
BEAT, UPKEEP = 2.0, 10.0  # seconds
LOOK = 1.0  # seconds between two searches for work
DEAF_LOOK = 0.5  # seconds, if a process receives no notifications of pushes
SOONEST_LOOK = 0.1  # seconds: tasks that become due one after the other are found together
LONGEST_TITLE = 1000  # letters of queue names in the process list
REST = 0.05  # seconds between two reads of the messages of a busy runner
# Seconds without a message from a runner, or without a successful claim or settle, after which the probe fails.
SILENCE = 60.0
DEADLINE = 30.0  # seconds in which PostgreSQL must answer
STILLBORN = 5
UNSETTLED = 4  # exit code: PostgreSQL did not take the outcomes of some tasks
CRASHED = (None, "failed", "left")  # the process ended without a message, with an error, or because a handler exits
SETTLED_DOWN = 10.0  # seconds after which a start counts as a success
Progress = Callable[[list[QueueStatus], "WorkerReport"], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one `penstock work`."""

    target: str
    dsn: str
    queues: Weights
    concurrency: int = 10
    processes: int = 1
    grace: float = 30.0
    until_empty: bool = False
    max_tasks: int | None = None
    max_rss: int | None = None
    health: str | None = None
    requested_at: datetime | None = None
    started_by: str | None = None  # the scaler that may dismiss it
    handler_of: str | None = None
    tracebacks: bool = True  # of `drain`: stored with errors
    log_format: str = "text"
    quiet: bool = False
    dev: bool = False
    silence: float = SILENCE


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The result of a run: counts of tasks, duration and signal."""

    counts: Counter[str]
    seconds: float
    planned: int = 0
    signal: int | None = None

    @property
    def done(self) -> int:
        """Tasks that succeeded."""
        return self.counts["done"] + self.counts["again"]

    @property
    def dead(self) -> int:
        """Tasks that died."""
        return self.counts["died"]

    @property
    def unknown(self) -> int:
        """Tasks that were put back because no handler here is for their kind."""
        return self.counts["unknown"]

    @property
    def failed(self) -> int:
        """Failed attempts of tasks that are tried again; a task that ended its process failed too.

        The last attempt of a dead task is not counted here.
        """
        return self.counts["failed"] + self.counts["dead"] - self.counts["died"]


class Member:
    """One runner, as the supervisor sees it."""

    def __init__(self, supervisor: Supervisor, database: AsyncDatabase, process: Process, pipe: Pipe) -> None:
        self.process = process
        # The name has a random part, because containers may share host names and process ids. It is eight bytes,
        # written as eleven letters, because history repeats the name.
        self.name = f"{socket.gethostname()}:{token_urlsafe(8)}:{process.pid}"
        self.pipe = pipe
        self.leases = Leases(database, process.pid, self._lost, self._revoked)
        self.requested_at = datetime.now(UTC)
        self.began = time.monotonic()
        self.heard = time.monotonic()
        self.ready = False
        self.busy = 0
        self.claims = True  # it claims tasks when it has a free slot
        self.told_busy = 0  # the number that PostgreSQL knows
        self.hears = False  # whether notifications of pushes arrive there
        self.stalled = 0.0  # seconds for which no claim, or no settle, has succeeded
        self.counts: Counter[str] = Counter()
        self.bye: str | None = None
        self.end = ""
        self._channel: str | None = None
        # Files of an application that does not load (`--dev`): one of them must change.
        self.files: dict[str, list[int] | None] = {}
        self._supervisor = supervisor

    def _lost(self, lease: Lease) -> None:
        self.pipe.send(lost=True, token=lease.token)

    def _revoked(self, lease: Lease, ids: tuple[int, ...]) -> None:
        self.pipe.send(revoked=list(ids), token=lease.token)

    @property
    def deaf(self) -> bool:
        """Whether it should listen but notifications do not arrive, as behind a pooler in transaction mode."""
        return self._channel is not None and not self.hears

    def hear(self, channel: str | None) -> None:
        """Sets the channel on which the runner listens for pushes.

        None means that other workers of the fleet listen.
        """
        if channel != self._channel:
            self._channel = channel
            self.pipe.send(channel=channel)

    def beat(self, slots: int) -> dict[str, Any]:
        """Returns what PostgreSQL stores about this runner."""
        self.told_busy = min(self.busy, slots)
        return {
            "name": self.name,
            "pid": self.process.pid,
            "busy": self.told_busy,
            "requested_at": self.requested_at,
            "listens": self.hears,
        }

    async def listen(self) -> None:
        """Reads the messages of the runner until it is gone."""
        async for heap in self.pipe.heaps():
            self.heard = time.monotonic()
            for message in heap:
                self._note(message)
            leases = [message["seconds"] for message in heap if "held" in message]
            if leases:
                await asyncio.sleep(min(REST, min(leases) / 20))

    def _note(self, message: Message) -> None:
        for token in message.get("gone", ()):
            self.leases.let_go(token)
        if "held" in message:
            self._supervisor.hold(self, message)
        elif "ready" in message:
            self.ready = True
            self._supervisor.beat_now()
        elif "failed" in message:
            self._supervisor.failed(self, message)
        if "counts" in message:
            self.counts = Counter(message["counts"])
        if "busy" in message:
            self._supervisor.rested(self, message["busy"])
        if "hears" in message:
            self.hears = message["hears"]
            self._supervisor.beat_now()
        if "full" in message:
            self._supervisor.pass_on(self, message["full"])
        self.stalled = message.get("stalled", self.stalled)
        self.claims = message.get("claims", self.claims)
        self.bye = message.get("bye", self.bye)


class Supervisor:
    """Runs and replaces the runners of one `penstock work`, and keeps their leases alive."""

    def __init__(self, plan: Plan, registry: Registry, progress: Progress | None = None) -> None:
        self._plan = plan
        self._registry = registry
        self._progress = progress
        self._database = AsyncDatabase(plan.dsn, max_connections=4, timeout=2.0, deadline=DEADLINE)
        self._queues = [*plan.queues]
        self._leases: dict[str, float] = {}
        self._members: list[Member] = []
        self._leaving = 0  # processes that ended and whose leases are ending at this moment
        self._began = time.monotonic()
        self._past: Counter[str] = Counter()
        self._crashes = 0
        self._stopping = False
        self._signal: int | None = None
        self._done = asyncio.Event()
        self._held = asyncio.Event()  # set when a lease has to be extended earlier than all others
        self._wakes_at = 0.0
        self._beat_now = asyncio.Event()
        self._beating = asyncio.Lock()
        self._beaten_at = 0.0  # when PostgreSQL last accepted a beat
        # By queue: the member that empties itself for a task that must run alone.
        self._quarantine: dict[str, Member] = {}
        self._known: int | None = None  # a number for what the last beat said of the queues
        self._passing_on: asyncio.Task[None] | None = None
        self._upkeep_due = asyncio.Event()
        self._fires_at = math.inf  # when a schedule is due, on the monotonic clock
        self._fires_sooner = asyncio.Event()
        self._error: PenstockError | None = None
        self._planned = 0
        self._complaints: set[tuple[str, str]] = set()
        self._upkeep_failures = FailureLog()

    async def run(self, begun: Callable[[], None]) -> WorkerReport:
        """Runs until it is told to stop, or until everything is drained if that was requested."""
        await self._prepare()
        begun()
        self._handle_signals()
        duties = [
            self._supervise(),
            self._keep_alive(),
            self._attend(),
            self._keep_up(),
            self._keep_time(),
        ]
        if self._plan.until_empty:
            duties.append(self._watch())
        if self._plan.health is not None:
            duties.append(health.serve(self._plan.health, self.probe))
        running = [asyncio.create_task(self._watched(duty)) for duty in duties]
        try:
            await self._done.wait()
            if self._progress is not None and self._error is None:
                await self._show_last(self._progress)
        finally:
            for member in self._members:
                member.process.kill()
            for duty in running:
                duty.cancel()
            await within(2.0, *running, asyncio.create_task(self._database.close()))
        if self._error is not None:
            raise self._error
        return self.report

    @property
    def report(self) -> WorkerReport:
        """The result so far."""
        return WorkerReport(self.counts, time.monotonic() - self._began, self._planned, self._signal)

    async def _prepare(self) -> None:
        """Checks the plan before anything runs, and stores the kinds and schedules of the code in PostgreSQL.

        The runs that schedules missed are pushed before the queues are checked for being drained.
        """
        for name in self._plan.queues:
            self._registry.check_served(name)
        kinds = {name: stored for name in self._plan.queues if (stored := self._registry.stored(name))}
        found = await workers_async.prepare_work(
            self._database, [*self._plan.queues], kinds
        )  # NotFound, with the nearest name
        for name, (lease, is_paused) in found.items():
            if is_paused and self._plan.until_empty:
                raise paused(name)
            self._leases[name] = lease
        for name in self._plan.queues:
            for new in self._registry.schedules_of(name):
                await schedules_async.set_schedule(self._database, new)
        await self._fire()

    async def _watched(self, duty: Coroutine[Any, Any, None]) -> None:
        """Runs a duty. If it fails, the supervisor stops with its error."""
        try:
            await duty
        except PenstockError as error:
            await self._give_up(error)
        except Exception as error:  # noqa: BLE001 - one block handles every error
            failure = PenstockError(f"{type(error).__name__}: {error}", hint="This is a bug in Penstock.")
            failure.__cause__ = error
            await self._give_up(failure)

    async def _give_up(self, error: PenstockError) -> None:
        self._error = self._error or error
        self.stop()

    @property
    def counts(self) -> Counter[str]:
        """The counts of all runners, including those that ended."""
        total = Counter(self._past)
        for member in self._members:
            total.update(member.counts)
        return total

    # --- runners ------------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Keeps all runners. If one cannot be kept, the others may finish their tasks."""
        await asyncio.gather(*(self._watched(self._keep_one(n)) for n in range(self._plan.processes)))
        self._done.set()

    async def _keep_one(self, number: int) -> None:
        """Starts one runner after the other, until it is time to stop."""
        requested = self._plan.requested_at
        stillborn = 0
        while not self._stopping:
            try:
                member = await self._start(number)
            except OSError as error:  # no memory, no more processes, or Python itself is just being replaced
                LOG.error("process not started", extra={"errno": error.errno})  # noqa: TRY400
                self._crashes += 1
                await self._pause()
                continue
            member.requested_at = requested or member.requested_at
            requested = None
            self._members.append(member)
            self._stop_late(member)
            watching = asyncio.create_task(close_when_over(member.pipe, member.process))
            await member.listen()
            watching.cancel()
            await self._remove(member)
            if member.files:
                await self._wait_for_change(Files(member.files))
                continue
            stillborn = 0 if member.ready else stillborn + 1
            if stillborn >= STILLBORN and not self._stopping:
                raise PenstockError(
                    f"{STILLBORN} processes in a row ended before they were ready, the last by {member.end}",
                    hint="What they said is above; does on_start work, and the import of the application?",
                )
            if not self._stopping and member.bye in CRASHED:
                await self._pause()

    async def _wait_for_change(self, files: Files) -> None:
        """Waits until a file of the application changes, because it cannot be loaded as it is (`--dev`)."""
        while not self._stopping and files.changed() is None:
            await asyncio.sleep(INTERVAL)

    def _stop_late(self, member: Member) -> None:
        """Stops a runner that was starting when the supervisor was told to stop."""
        if self._stopping:
            self._stop_one(member)

    async def _start(self, number: int) -> Member:
        ours, theirs = socket.socketpair()
        queues = ",".join(f"{name}:{weight}" if weight > 1 else name for name, weight in self._plan.queues.items())
        if len(queues) > LONGEST_TITLE:
            queues = f"{len(self._plan.queues)} queues"
        title = [self._plan.target, queues, f"{number + 1}/{self._plan.processes}"]
        with theirs:
            process = self._spawn(theirs, title)
        member = Member(self, self._database, process, await Pipe.over(ours))
        member.pipe.send(config=self._config(member.name).to_json())
        return member

    def _spawn(self, end: socket.socket, title: list[str]) -> Process:
        """Starts a process for a runner, which gets its config over this end of a pair of sockets."""
        return subprocess.Popen(  # noqa: S603 - Penstock itself
            [sys.executable, "-P", "-m", "penstock.worker", str(end.fileno()), *title],
            pass_fds=[end.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,
        )

    def _config(self, name: str) -> RunnerConfig:
        plan = self._plan
        return RunnerConfig(
            name=name,
            target=plan.target,
            dsn=plan.dsn,
            queues=plan.queues,
            leases=self._leases,
            concurrency=plan.concurrency,
            grace=plan.grace,
            overlap=plan.processes < (os.cpu_count() or 1),
            max_tasks=plan.max_tasks,
            max_rss=plan.max_rss,
            handler_of=plan.handler_of,
            tracebacks=plan.tracebacks,
            log_format=plan.log_format,
            quiet=plan.quiet,
            dev=plan.dev,
        )

    async def _remove(self, member: Member) -> None:
        """Removes a runner that is gone or about to end.

        Its counts are kept; the tasks that it held soon wait again.
        """
        patience = time.monotonic() + 10
        while (code := member.process.poll()) is None:
            if time.monotonic() > patience:
                member.process.kill()
            await asyncio.sleep(0.01)
        member.end = member.bye or ended_by(code)
        member.pipe.close()
        self._members.remove(member)
        self._past.update(member.counts)
        facts = {"worker": member.name, "why": member.end, "held": len(member.leases)}
        LOG.log(logging.INFO if member.bye else logging.ERROR, "process ended", extra=facts)
        if time.monotonic() - member.began > SETTLED_DOWN or member.bye not in CRASHED:
            self._crashes = 0
        else:
            self._crashes += 1
        self._leaving += 1
        await within(2.0, asyncio.create_task(self._leave_registry(member)))
        self._leaving -= 1

    async def _leave_registry(self, member: Member) -> None:
        held = member.leases.take_all()
        if held:
            await self._end_leases(member.leases, held)
        with suppress(PenstockError):
            async with self._beating:  # a beat that is running would record it again
                await workers_async.leave(self._database, member.name)

    async def _end_leases(self, leases: Leases, held: list[Lease]) -> None:
        """Ends the leases of a dead process, so that its tasks wait again at once.

        A task that killed the process has failed, or is dead.
        """
        with suppress(PenstockError):
            failed, dead = await workers_async.end_leases(self._database, [lease.token for lease in held])
            self._past.update(failed=failed, dead=dead, died=dead)
        with suppress(PenstockError):
            await leases.end_soon(held)

    async def _pause(self) -> None:
        """Pauses before a crashed runner is replaced; the pause grows each time."""
        wait = time.monotonic() + min(0.05 * 2 ** min(self._crashes, 7), 5.0)
        while not self._stopping and time.monotonic() < wait:
            await asyncio.sleep(0.05)

    def failed(self, member: Member, message: Message) -> None:
        """Reacts to a runner that failed.

        If it cannot even begin, the supervisor stops, because the next one would fail too.
        """
        error = PenstockError(f"a worker process failed: {message['failed']}", hint=message["hint"])
        error.exit_code = message["exit_code"]  # type: ignore[misc]
        member.files = message.get("files", {})
        if member.files and not member.ready:
            member.bye = "failed"
            LOG.error(
                "the application cannot be loaded, and is tried again when a file of it changes",
                extra={"error": error.message},
            )
        elif not member.ready or message["exit_code"] == 3:
            self._error = self._error or error
            member.bye = "failed"
            self.stop()
        else:
            LOG.error("process failed", extra={"worker": member.name, "error_class": message["failed"].split(":")[0]})

    # --- signals and stops --------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        again = self._signal is not None
        self._signal = self._signal or number
        LOG.info("stopping", extra={"signal": signal.Signals(number).name, "grace": 0 if again else self._plan.grace})
        self.stop(0.0 if again else None)

    def stop(self, grace: float | None = None) -> None:
        """Stops all runners; running tasks may finish within the grace period."""
        if not self._stopping or grace is not None:
            self._exit_late((self._plan.grace if grace is None else grace) + 25)
        self._stopping = True
        self.beat_now()  # so that this worker is no longer counted
        for member in self._members:
            self._stop_one(member, grace)
        if not self._members and not self._leaving:
            self._done.set()

    def _exit_late(self, seconds: float) -> None:
        """Ends this process later even if something hangs, such as a server that does not answer."""
        asyncio.get_running_loop().call_later(seconds, lambda: os._exit(self.late_code))

    @property
    def late_code(self) -> int:
        """The exit code when there is no time for a report.

        Tasks of leases that are still held may have been done, and run again.
        """
        if self.counts["unsettled"] or any(len(member.leases) for member in self._members):
            return UNSETTLED
        return 128 + signal.SIGINT if self._signal == signal.SIGINT else int(self._error is not None)

    def _stop_one(self, member: Member, grace: float | None = None) -> None:
        allowed = self._plan.grace if grace is None else grace
        member.pipe.send(stop=allowed)
        asyncio.get_running_loop().call_later(allowed + 20, member.process.kill)

    # --- leases and beats ---------------------------------------------------------------------------------------------

    def hold(self, member: Member, message: Message) -> None:
        """Records a lease of a runner, to extend it in time."""
        member.leases.hold(message["held"], message["seconds"], message["age"])
        if member.leases.next_due < self._wakes_at:
            self._held.set()

    async def _keep_alive(self) -> None:
        while True:
            self._held.clear()
            self._wakes_at = min((member.leases.next_due for member in self._members), default=float("inf"))
            await until(self._wakes_at, self._held)
            try:
                for member in [*self._members]:
                    await member.leases.extend()
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("leases not extended", error)
                await asyncio.sleep(0.1)

    async def _reconnected(self, error: Unavailable) -> None:
        """Waits a moment, and if PostgreSQL is gone, until it can be reached again. It never retries at once."""
        await asyncio.sleep(random.uniform(0.05, 0.5))  # noqa: S311
        if error.reason not in ("retry", "pool"):
            await self._database.reconnect()

    def _complain(self, what: str, error: PenstockError) -> None:
        """Logs a problem beside the work once; it is no reason to stop."""
        if (what, error.code) not in self._complaints:
            self._complaints.add((what, error.code))
            LOG.warning(what, extra={"code": error.code})

    def rested(self, member: Member, busy: int) -> None:
        """Records how busy a runner is.

        Pushes wake only workers that PostgreSQL knows to be idle, so a runner that has just become idle is reported at
        once.
        """
        member.busy = busy
        if member.told_busy >= self._plan.concurrency > busy:
            self.beat_now()

    def beat_now(self) -> None:
        """Makes the next beat happen at once."""
        self._beat_now.set()

    async def _attend(self) -> None:
        """Sends beats, and looks for work in all queues, also between two beats.

        Each time one statement does everything.
        """
        beats_at = 0.0
        while True:
            rest = LOOK
            try:
                if self._beat_now.is_set() or time.monotonic() >= beats_at:
                    self._beat_now.clear()
                    async with self._beating:
                        found = await self._beat_for_all()
                    beats_at = time.monotonic() + BEAT
                else:
                    found = await workers_async.find_work(self._database, self._queues)
                rest = await self._act_on(found)
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("no beat", error)
            await until(time.monotonic() + rest, self._beat_now)

    async def _act_on(self, found: FoundWork) -> float:
        """Reacts to what a look for work found. Returns the seconds until the next look."""
        self._expect_schedule(found.next_schedule)
        if found.upkeep:
            self._upkeep_due.set()
        if found.waiting:
            for member in self._idle:
                member.pipe.send(look=found.waiting)
        if found.waiting and self._members and not self._free:
            # No process claims now, and normally the claims expire leases.
            await workers_async.expire_leases(self._database, found.waiting)
        # The pause is never exact, so that the workers of a fleet do not all look at the same moment.
        rest = DEAF_LOOK if any(member.deaf for member in self._members) else LOOK
        if found.next_due is not None:
            rest = min(rest, max(found.next_due, SOONEST_LOOK))
        return rest + random.uniform(0.0, 0.1)  # noqa: S311

    @property
    def _idle(self) -> list[Member]:
        """The runners that have a free slot."""
        return [member for member in self._members if member.ready and member.busy < self._plan.concurrency]

    @property
    def _free(self) -> list[Member]:
        """The runners that have a free slot and claim."""
        return [member for member in self._idle if member.claims]

    def pass_on(self, member: Member, queue: str) -> None:
        """Passes on a task for which a runner without a free slot was woken.

        Another process of this worker takes it, or PostgreSQL wakes another worker. If that fails too, the next look
        finds the task.
        """
        others = [one for one in self._free if one is not member]
        if others and not self._stopping:
            random.choice(others).pipe.send(look=[queue])  # noqa: S311
        else:
            self._passing_on = asyncio.create_task(self._wake_another(member.name, queue))

    async def _wake_another(self, worker: str, queue: str) -> None:
        with suppress(PenstockError):
            await workers_async.pass_on(self._database, worker, queue)

    async def _beat_for_all(self) -> FoundWork:
        living = [member for member in self._members if member.ready and not frozen(member.process.pid)]
        told, found = await workers_async.beat_all(
            self._database,
            [member.beat(self._plan.concurrency) for member in living],
            self._queues,
            slots=self._plan.concurrency,
            host=socket.gethostname(),
            started_by=self._plan.started_by,
            leaving=self._stopping,
            known=self._known,
        )
        self._beaten_at = time.monotonic()
        self._known = told.known
        if told.leases is not None:
            self._learn_leases(told.leases)
        for member in living:
            member.hear(told.channels.get(member.name))
        if told.dismissed and not self._stopping:
            LOG.info("dismissed", extra={"worker": told.dismissed[0]})
            self.stop()
        self._quarantine = await self._choose_for_quarantine(living, told.alone)
        for member in living:
            member.pipe.send(quarantine=member in self._quarantine.values())
        return found

    def _learn_leases(self, leases: dict[str, float]) -> None:
        """Updates the leases of the queues, which may change, and reports queues that were dropped."""
        for name in {*self._queues} - leases.keys():
            self._complain(f"queue {name} was dropped", NotFound(f"queue {name!r} does not exist"))
        changed = {name: lease for name, lease in leases.items() if lease != self._leases[name]}
        if changed:
            self._leases.update(changed)
            for member in self._members:
                member.pipe.send(leases=changed)

    async def _choose_for_quarantine(self, living: list[Member], queues: Iterable[str]) -> dict[str, Member]:
        """Chooses the processes that run alone the tasks that killed their worker before.

        The least busy process empties itself for it, if PostgreSQL chooses it: one of the whole fleet for each queue,
        for a limited time.
        """
        chosen: dict[str, Member] = {}
        for queue in queues if living else ():
            member = self._quarantine.get(queue)
            if member not in living:
                member = min(living, key=lambda one: one.busy)
            if await workers_async.take_quarantine(self._database, queue, member.name):
                chosen[queue] = member
        return chosen

    async def _keep_up(self) -> None:
        """Does the upkeep, which any process may do at any time, if no other process did it lately."""
        while True:
            await self._upkeep_due.wait()
            self._upkeep_due.clear()
            try:
                done = await upkeep_async.upkeep(self._database, due_only=True)
                for facts in self._upkeep_failures.note(done):
                    LOG.warning("upkeep part failed", extra=facts)
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("upkeep failed", error)
            await asyncio.sleep(UPKEEP)

    def _expect_schedule(self, ahead: float | None) -> None:
        """Sets the time at which a schedule is due.

        Each look reports it, because a schedule may be added at any time.
        """
        sooner = self._fires_at
        self._fires_at = math.inf if ahead is None else time.monotonic() + ahead
        if self._fires_at < sooner:
            self._fires_sooner.set()

    async def _keep_time(self) -> None:
        """Fires schedules when they are due."""
        while True:
            await until(self._fires_at, self._fires_sooner)
            self._fires_sooner.clear()
            if time.monotonic() < self._fires_at:
                continue
            try:
                await asyncio.sleep(await self._fire())
                self._expect_schedule(await schedules_async.next_schedule(self._database))
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("schedules not run", error)
                await asyncio.sleep(LOOK)

    async def _fire(self) -> float:
        """Fires the schedules that are due, and returns how long to rest.

        A schedule that cannot be fired is not tried again at once.
        """
        fired = await schedules_async.run_schedules(self._database)
        for name, error in fired.failed.items():
            self._complain(f"schedule {name} not fired", error)
        return LOOK if fired.failed and not fired.pushed else 0.05

    # --- progress and health ------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Waits until all is drained: no task that is due waits, and no task is running."""
        while not self._stopping:
            try:
                found = await queues_async.statuses(self._database, self._queues)
                for name in {*self._queues} - {one.queue for one in found}:
                    await queues_async.status(self._database, name)  # raises NotFound
            except Unavailable as error:
                await self._reconnected(error)
                continue
            if self._progress is not None:
                self._progress(found, WorkerReport(self.counts, time.monotonic() - self._began))
            stuck = next((one.queue for one in found if one.paused), None)
            if stuck is not None:
                raise paused(stuck)
            if all(drained(one) for one in found):
                self._planned = sum(one.planned for one in found)
                self.stop()
                return
            await asyncio.sleep(0.1)

    async def _show_last(self, progress: Progress) -> None:
        """Shows the progress at the end, also after a signal."""
        found: list[QueueStatus] = []
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(1.0):
                found = await queues_async.statuses(self._database, self._queues)
        progress(found, self.report)

    def probe(self) -> dict[str, Any]:
        """Returns the answer of the liveness probe, which is ok if work flows.

        Work flows if all processes without a running handler answer, none is frozen, and claims and settles succeed
        while PostgreSQL answers the supervisor. The absence of PostgreSQL is no reason for a restart.
        """
        idle = [member for member in self._members if member.ready and not member.busy]
        silent = [member.name for member in idle if time.monotonic() - member.heard > self._plan.silence]
        silent += [member.name for member in self._members if frozen(member.process.pid)]
        reachable = time.monotonic() - self._beaten_at < 5 * BEAT
        stalled = [member.name for member in self._members if reachable and member.stalled > self._plan.silence]
        return {
            "ok": not silent and not stalled and self._error is None,
            "pid": os.getpid(),
            "processes": len(self._members),
            "busy": sum(member.busy for member in self._members),
            "silent": sorted({*silent}),
            "stalled": sorted(stalled),
            "database": reachable,
            "stopping": self._stopping,
        }


async def within(seconds: float, *tasks: asyncio.Task[Any]) -> None:
    """Waits for these asyncio tasks for at most `seconds`. A server that does not answer must not hold the process."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def drained(status: QueueStatus) -> bool:
    """Returns whether no task of a queue waits or runs."""
    return status.pending == 0 and status.active == 0 and status.oldest_pending_age is None


def paused(name: str) -> Conflict:
    """Returns the error for a paused queue, which would never be empty."""
    return Conflict(f"queue {name!r} is paused: it would never be empty", hint=f"penstock queues resume {name}")


def ended_by(code: int) -> str:
    """Returns how a process ended, as text."""
    return f"signal {-code}" if code < 0 else f"exit {code}"


def work(
    plan: Plan, registry: Registry, progress: Progress | None = None, begun: Callable[[], None] = lambda: None
) -> WorkerReport:
    """Runs `penstock work`. It calls `begun` when the checks have passed and the work begins."""

    async def together() -> WorkerReport:
        return await Supervisor(plan, registry, progress).run(begun)

    return asyncio.run(together())
