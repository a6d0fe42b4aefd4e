"""`penstock work`: starts runners, keeps their leases alive, replaces them, and stops them when asked."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from penstock.aio import queue as seam
from penstock.aio.database import AsyncDatabase
from penstock.aio.queue import AsyncQueue
from penstock.errors import Conflict, NotFound, PenstockError, Unavailable
from penstock.handlers import Registry
from penstock.model import QueueStatus
from penstock.schedule import decide, next_run
from penstock.worker import health
from penstock.worker.keepalive import Lease, Leases, frozen, until
from penstock.worker.link import Link, Message, close_when_over
from penstock.worker.orders import Orders, Weights

LOG = logging.getLogger("penstock.worker")
BEAT, UPKEEP, LOOK = 2.0, 10.0, 1.0  # seconds
REST = 0.05  # seconds between two looks at what a busy runner says
SILENCE = 60.0  # seconds without a word from a runner after which the probe fails
STILLBORN = 5
CRASHED = (None, "failed", "left")  # ends without a word, with an error, or by a handler that exits
SETTLED_DOWN = 10.0  # seconds after which a start counts as a success
Progress = Callable[[list[QueueStatus], "Report"], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one `penstock work` shall do."""

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
    started_by: str | None = None  # the scaler that may send it away
    handler_of: str | None = None
    log_format: str = "text"
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    counts: Counter[str]
    seconds: float
    planned: int = 0
    signal: int | None = None

    @property
    def done(self) -> int:
        return self.counts["done"] + self.counts["again"]


class Member:
    """One runner, seen from here."""

    def __init__(self, supervisor: Supervisor, process: subprocess.Popen[bytes], link: Link) -> None:
        self.process = process
        self.name = f"{socket.gethostname()}:{token_hex(2)}:{process.pid}"  # containers may share names and ids
        self.link = link
        self.leases = Leases(process.pid, self._lost, self._revoked)
        self.requested_at = datetime.now(UTC)
        self.began = time.monotonic()
        self.heard = time.monotonic()
        self.ready = False
        self.busy = 0
        self.counts: Counter[str] = Counter()
        self.bye: str | None = None
        self.end = ""
        self._channels: dict[str, str] = {}
        self._supervisor = supervisor

    def _lost(self, lease: Lease) -> None:
        self.link.send(lost=True, token=lease.token)

    def _revoked(self, lease: Lease, ids: tuple[int, ...]) -> None:
        self.link.send(revoked=list(ids), token=lease.token)

    def hear(self, channels: dict[str, str]) -> None:
        """Where pushes are told of."""
        if channels != self._channels:
            self._channels = channels
            self.link.send(channels=channels)

    async def listen(self) -> None:
        """Until it is gone."""
        async for heap in self.link.heaps():
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
        self.bye = message.get("bye", self.bye)


class Supervisor:
    def __init__(self, plan: Plan, registry: Registry, progress: Progress | None = None) -> None:
        self._plan = plan
        self._registry = registry
        self._progress = progress
        self._database = AsyncDatabase(plan.dsn, max_connections=4, timeout=2.0)
        self._queues = {name: AsyncQueue(self._database, name) for name in plan.queues}
        self._leases: dict[str, float] = {}
        self._members: list[Member] = []
        self._began = time.monotonic()
        self._past: Counter[str] = Counter()
        self._crashes = 0
        self._stopping = False
        self._signal: int | None = None
        self._done = asyncio.Event()
        self._held = asyncio.Event()  # a lease that has to be extended earlier than all others
        self._wakes_at = 0.0
        self._beat_now = asyncio.Event()
        self._dropped: set[str] = set()  # queues, since we began
        self._error: PenstockError | None = None
        self._planned = 0
        self._complaints: set[tuple[str, str]] = set()

    async def run(self, begun: Callable[[], None]) -> Report:
        """Until everything is drained, if that was asked for, or somebody says stop."""
        await self._prepare()
        begun()
        self._heed_signals()
        duties = [
            self._supervise(),
            self._keep_alive(),
            self._beat(),
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
        finally:
            for member in self._members:
                member.process.kill()
            for duty in running:
                duty.cancel()
            await within(2.0, *running, asyncio.create_task(self._database.close()))
        if self._error is not None:
            raise self._error
        return Report(self.counts, time.monotonic() - self._began, self._planned, self._signal)

    async def _prepare(self) -> None:
        """What is wrong is said before anything runs; then PostgreSQL is told what the code knows of its kinds, and of
        schedules; what those missed is there before anybody asks whether all is drained."""
        for name in self._plan.queues:
            self._registry.check_served(name)
            status = await self._queues[name].status()  # NotFound, with the nearest name
            if status.paused and self._plan.until_empty:
                raise paused(name)
            self._leases[name] = await self._queues[name].lease()
            await self._queues[name].set_kinds(self._registry.stored(name))
            for new in self._registry.schedules_of(name):
                await seam.set_schedule(self._database, new, next_run)
        await self._fire()

    async def _watched(self, duty: Coroutine[Any, Any, None]) -> None:
        """A duty that fails ends the whole, with its error."""
        try:
            await duty
        except PenstockError as error:
            await self._give_up(error)
        except Exception as error:  # noqa: BLE001 - one block, whatever it is
            failure = PenstockError(f"{type(error).__name__}: {error}", hint="This is a bug in Penstock.")
            failure.__cause__ = error
            await self._give_up(failure)

    async def _give_up(self, error: PenstockError) -> None:
        self._error = self._error or error
        self.stop()

    @property
    def counts(self) -> Counter[str]:
        total = Counter(self._past)
        for member in self._members:
            total.update(member.counts)
        return total

    # --- runners ----------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """When one can not be kept, the others may finish what they have."""
        await asyncio.gather(*(self._watched(self._keep_one(n)) for n in range(self._plan.processes)))
        self._done.set()

    async def _keep_one(self, number: int) -> None:
        """One runner after the other, until it is time to stop."""
        requested = self._plan.requested_at
        stillborn = 0
        while not self._stopping:
            try:
                member = await self._start(number)
            except OSError as error:  # no memory, no more processes, Python itself just being replaced
                LOG.error("process not started", extra={"errno": error.errno})  # noqa: TRY400
                self._crashes += 1
                await self._pause()
                continue
            member.requested_at = requested or member.requested_at
            requested = None
            self._members.append(member)
            self._stop_late(member)
            watching = asyncio.create_task(close_when_over(member.link, member.process))
            await member.listen()
            watching.cancel()
            await self._bury(member)
            stillborn = 0 if member.ready else stillborn + 1
            if stillborn >= STILLBORN and not self._stopping:
                raise PenstockError(
                    f"{STILLBORN} processes in a row ended before they were ready, the last by {member.end}",
                    hint="What they said is above; does on_start work, and the import of the application?",
                )
            if not self._stopping and member.bye in CRASHED:
                await self._pause()

    def _stop_late(self, member: Member) -> None:
        """Somebody said stop while it started."""
        if self._stopping:
            self._stop_one(member)

    async def _start(self, number: int) -> Member:
        ours, theirs = socket.socketpair()
        queues = ",".join(f"{name}:{weight}" if weight > 1 else name for name, weight in self._plan.queues.items())
        title = [self._plan.target, queues, f"{number + 1}/{self._plan.processes}"]
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-P", "-m", "penstock.worker", str(theirs.fileno()), *title],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        member = Member(self, process, await Link.over(ours))
        member.link.send(orders=self._orders(member.name).to_json())
        return member

    def _orders(self, name: str) -> Orders:
        plan = self._plan
        return Orders(
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
            log_format=plan.log_format,
            quiet=plan.quiet,
        )

    async def _bury(self, member: Member) -> None:
        """It is gone, or about to be. What it counted stays; what it held comes back soon."""
        patience = time.monotonic() + 10
        while (code := member.process.poll()) is None:
            if time.monotonic() > patience:
                member.process.kill()
            await asyncio.sleep(0.01)
        member.end = member.bye or ended_by(code)
        member.link.close()
        self._members.remove(member)
        self._past.update(member.counts)
        facts = {"worker": member.name, "why": member.end, "held": len(member.leases)}
        LOG.log(logging.INFO if member.bye else logging.ERROR, "process ended", extra=facts)
        if time.monotonic() - member.began > SETTLED_DOWN or member.bye not in CRASHED:
            self._crashes = 0
        else:
            self._crashes += 1
        await within(2.0, asyncio.create_task(self._say_goodbye(member)))

    async def _say_goodbye(self, member: Member) -> None:
        with suppress(PenstockError):
            await member.leases.end_soon()
            await seam.leave(self._database, member.name)

    async def _pause(self) -> None:
        """Before one that crashed is replaced: longer each time."""
        wait = time.monotonic() + min(0.05 * 2 ** min(self._crashes, 7), 5.0)
        while not self._stopping and time.monotonic() < wait:
            await asyncio.sleep(0.05)

    def failed(self, member: Member, message: Message) -> None:
        """A runner that can not even begin will not the next time either."""
        error = PenstockError(f"a worker process failed: {message['failed']}", hint=message["hint"])
        error.exit_code = message["exit_code"]  # type: ignore[misc]
        if not member.ready or message["exit_code"] == 3:
            self._error = self._error or error
            member.bye = "failed"
            self.stop()
        else:
            LOG.error("process failed", extra={"worker": member.name, "error_class": message["failed"].split(":")[0]})

    # --- signals and stops ------------------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        again = self._signal is not None
        self._signal = self._signal or number
        LOG.info("stopping", extra={"signal": signal.Signals(number).name, "grace": 0 if again else self._plan.grace})
        self.stop(0.0 if again else None)

    def stop(self, grace: float | None = None) -> None:
        if not self._stopping or grace is not None:
            # Whatever hangs, a server that answers nothing for one: it ends.
            late = (self._plan.grace if grace is None else grace) + 25
            code = 128 + signal.SIGINT if self._signal == signal.SIGINT else int(self._error is not None)
            asyncio.get_running_loop().call_later(late, os._exit, code)
        self._stopping = True
        self.beat_now()  # whoever counts workers shall not count on us
        for member in self._members:
            self._stop_one(member, grace)
        if not self._members:
            self._done.set()

    def _stop_one(self, member: Member, grace: float | None = None) -> None:
        allowed = self._plan.grace if grace is None else grace
        member.link.send(stop=allowed)
        asyncio.get_running_loop().call_later(allowed + 20, member.process.kill)

    # --- leases and beats -------------------------------------------------------------------------------------------

    def hold(self, member: Member, message: Message) -> None:
        member.leases.hold(self._queues[message["queue"]], message["held"], message["seconds"], message["age"])
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
        """A moment later, or, if it is gone, when PostgreSQL can be reached again; never in a hurry."""
        await asyncio.sleep(random.uniform(0.05, 0.5))  # noqa: S311
        if error.reason not in ("retry", "pool"):
            await self._database.reconnect()

    def _complain(self, what: str, error: PenstockError) -> None:
        """Of what is wrong beside the work, once: it is no reason to stop."""
        if (what, error.code) not in self._complaints:
            self._complaints.add((what, error.code))
            LOG.warning(what, extra={"code": error.code})

    def rested(self, member: Member, busy: int) -> None:
        """Pushes wake only workers that PostgreSQL knows to be idle: one that has just become so says it at once."""
        if member.busy >= self._plan.concurrency > busy:
            self.beat_now()
        member.busy = busy

    def beat_now(self) -> None:
        self._beat_now.set()

    async def _beat(self) -> None:
        while True:
            self._beat_now.clear()
            try:
                await self._refresh_leases()
                await self._beat_for_all()
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("no beat", error)
            await until(time.monotonic() + BEAT, self._beat_now)

    async def _beat_for_all(self) -> None:
        living = [member for member in self._members if member.ready and not frozen(member.process.pid)]
        alone = [await self._beat_for(member) for member in living]
        # Somebody has to run alone what killed its worker before: whoever has the least to lose lets go of it first.
        chosen = min(living, key=lambda member: member.busy, default=None) if any(alone) else None
        for member in living:
            member.link.send(alone=member is chosen)

    async def _beat_for(self, member: Member) -> bool:
        found = await seam.beat(
            self._database,
            member.name,
            [name for name in self._plan.queues if name not in self._dropped],
            slots=self._plan.concurrency,
            busy=min(member.busy, self._plan.concurrency),
            host=socket.gethostname(),
            pid=member.process.pid,
            requested_at=member.requested_at,
            started_by=self._plan.started_by,
            leaving=self._stopping,
        )
        member.hear({standing.channel: name for name, standing in found.items()})
        if not self._stopping and any(standing.dismissed for standing in found.values()):
            LOG.info("dismissed", extra={"worker": member.name})
            self.stop()
        return any(standing.alone for standing in found.values())

    async def _refresh_leases(self) -> None:
        """Somebody may have changed a queue's lease."""
        now: dict[str, float] = {}
        for name, queue in self._queues.items():
            try:
                now[name] = await queue.lease()
                self._dropped.discard(name)
            except NotFound as error:
                self._complain(f"queue {name} was dropped", error)
                self._dropped.add(name)
        changed = {name: lease for name, lease in now.items() if lease != self._leases[name]}
        if changed:
            self._leases.update(changed)
            for member in self._members:
                member.link.send(leases=changed)

    async def _keep_up(self) -> None:
        """What anybody may do at any time, done by us in our spare time."""
        while True:
            try:
                await seam.upkeep(self._database)
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("upkeep failed", error)
            await asyncio.sleep(UPKEEP)

    async def _keep_time(self) -> None:
        """Fires schedules when they are due; somebody may add one at any time, so a second is the longest rest."""
        while True:
            rest = LOOK
            try:
                ahead = await seam.next_schedule(self._database)
                if ahead is not None:
                    rest = min(max(ahead, 0.001), LOOK) if ahead > 0 else await self._fire()
            except Unavailable as error:
                await self._reconnected(error)
            except PenstockError as error:
                self._complain("schedules not run", error)
            await asyncio.sleep(rest)

    async def _fire(self) -> float:
        """Answers how long to rest: what can not be fired is not tried in a hurry."""
        fired = await seam.run_schedules(self._database, decide)
        for name, error in fired.failed.items():
            self._complain(f"schedule {name} not fired", error)
        return LOOK if fired.failed and not fired.pushed else 0.05

    # --- how it stands ----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Until all is drained: nothing waits that is due, and nobody works on anything."""
        while not self._stopping:
            try:
                found = [await queue.status() for queue in self._queues.values()]
            except Unavailable as error:
                await self._reconnected(error)
                continue
            if self._progress is not None:
                self._progress(found, Report(self.counts, time.monotonic() - self._began))
            stuck = next((one.queue for one in found if one.paused), None)
            if stuck is not None:
                raise paused(stuck)
            if all(drained(one) for one in found):
                self._planned = sum(one.planned for one in found)
                self.stop()
                return
            await asyncio.sleep(0.1)

    def probe(self) -> dict[str, Any]:
        """Whether all processes answer that have no handler to wait for, and none is frozen. PostgreSQL's absence is no
        reason to be restarted."""
        idle = [member for member in self._members if member.ready and not member.busy]
        silent = [member.name for member in idle if time.monotonic() - member.heard > SILENCE]
        silent += [member.name for member in self._members if frozen(member.process.pid)]
        return {
            "ok": not silent and self._error is None,
            "pid": os.getpid(),
            "processes": len(self._members),
            "busy": sum(member.busy for member in self._members),
            "silent": sorted({*silent}),
            "stopping": self._stopping,
        }


async def within(seconds: float, *tasks: asyncio.Task[Any]) -> None:
    """They may end until then; a server that answers nothing must not hold us."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def drained(status: QueueStatus) -> bool:
    return status.pending == 0 and status.active == 0 and status.oldest_pending_age is None


def paused(name: str) -> Conflict:
    return Conflict(f"queue {name!r} is paused: it would never be empty", hint=f"penstock queues resume {name}")


def ended_by(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"


def work(
    plan: Plan, registry: Registry, progress: Progress | None = None, begun: Callable[[], None] = lambda: None
) -> Report:
    """`penstock work`, all of it. `begun` is called when nothing speaks against it any more."""

    async def together() -> Report:
        return await Supervisor(plan, registry, progress).run(begun)

    return asyncio.run(together())
