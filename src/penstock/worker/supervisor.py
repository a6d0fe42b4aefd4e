"""`penstock work`: starts runners, keeps their leases alive, replaces them, and stops them when asked."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.child_process import start_child
from penstock.client import queues_async, schedules_async, workers_async
from penstock.client.database_async import AsyncDatabase
from penstock.errors import PenstockError
from penstock.handlers import Registry
from penstock.service_manager import ServiceManager
from penstock.worker import health
from penstock.worker.beats import BEATING, LOOKING, Beats
from penstock.worker.duties import Problems
from penstock.worker.housekeeping import ScheduleDuty, UpkeepDuty
from penstock.worker.keepalive import EXTENDING, KeepAlive
from penstock.worker.leases import is_frozen
from penstock.worker.member import Member, Members
from penstock.worker.pipe import Message, Pipe, Process, close_when_over
from penstock.worker.plan import Plan, WorkerReport
from penstock.worker.progress import Progress, WorkProgress, make_paused_error
from penstock.worker.reloading import INTERVAL, Files
from penstock.worker.shutdown import Shutdown

LOG = logging.getLogger("penstock.worker")
LONGEST_TITLE = 1000  # letters of queue names in the process list
REST = 0.05  # seconds between two reads of the messages of a busy runner
DEADLINE = 30.0  # seconds in which PostgreSQL must answer
STILLBORN = 5
CRASHED = (None, "failed", "left")  # the process ended without a message, with an error, or because a handler exits
SETTLED_DOWN = 10.0  # seconds after which a start counts as a success
Spawn = Callable[[socket.socket, list[str]], Process]


def spawn_process(end: socket.socket, title: list[str]) -> Process:
    """Starts a process for a runner, which gets its config over this end of a pair of sockets."""
    return start_child("penstock.worker", end, *title, process_group=0)


class Supervisor:
    """Runs and replaces the runners of one `penstock work`, and does the duties beside them."""

    def __init__(
        self,
        plan: Plan,
        registry: Registry,
        progress: Progress | None = None,
        *,
        spawn: Spawn = spawn_process,
        owns_process: bool = True,
        manager: ServiceManager | None = None,
    ) -> None:
        self._plan = plan
        self._registry = registry
        self._spawn = spawn
        self._manager = manager or ServiceManager()
        self._leases: dict[str, float] = {}  # of the queues, in seconds
        self._crashes = 0
        self._database = database = AsyncDatabase(plan.dsn, max_connections=4, timeout=2.0, deadline=DEADLINE)
        self._members = members = Members(plan.concurrency)
        self._problems = problems = Problems(database)
        self.shutdown = shutdown = Shutdown(
            plan.grace, members, owns_process=owns_process, begun=self._manager.stopping
        )
        self.progress = WorkProgress(
            [*plan.queues], database, members, shutdown=shutdown, problems=problems, show=progress
        )
        self._keepalive = KeepAlive(members, problems)
        self._upkeep = upkeep = UpkeepDuty(database, problems)
        self._schedules = schedules = ScheduleDuty(database, problems)
        self._beats = Beats(
            plan,
            self._leases,
            database,
            members,
            shutdown=shutdown,
            upkeep=upkeep,
            schedules=schedules,
            problems=problems,
        )

    async def run(self, begun: Callable[[], None]) -> WorkerReport:
        """Runs until it is told to stop, or until everything is drained if that was requested."""
        await self._prepare()
        begun()
        self.shutdown.handle_signals()
        running = [asyncio.create_task(self._run_duty(duty)) for duty in self._duties()]
        try:
            await self.shutdown.done.wait()
            if self.shutdown.error is None:
                await self.progress.show_last()
        finally:
            for member in self._members.present:
                member.process.kill()
            for duty in running:
                duty.cancel()
            await wait_within(2.0, *running, asyncio.create_task(self._database.close()))
        if self.shutdown.error is not None:
            raise self.shutdown.error
        return self.progress.report

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = [
            self._supervise(),
            self._keepalive.run(),
            self._beats.run(),
            self._upkeep.run(),
            self._schedules.run(),
        ]
        if self._plan.until_empty:
            duties.append(self.progress.watch())
        if self._manager.interval is not None:
            duties.append(self._give_signs_of_life(self._manager.interval))
        if self._plan.health is not None:
            duties.append(health.serve(self._plan.health, self._probe, self._render_metrics))
        return duties

    async def _prepare(self) -> None:
        """Checks the plan before anything runs, and stores the kinds and schedules of the code in PostgreSQL.

        The runs that schedules missed are pushed before the queues are checked for being drained.
        """
        for name in self._plan.queues:
            self._registry.check(name)
        kinds = {name: stored for name in self._plan.queues if (stored := self._registry.stored(name))}
        found = await workers_async.prepare_work(
            self._database, [*self._plan.queues], kinds
        )  # NotFound, with the nearest name
        for name, (lease, is_paused) in found.items():
            if is_paused and self._plan.until_empty:
                raise make_paused_error(name)
            self._leases[name] = lease
        for name in self._plan.queues:
            for new in self._registry.schedules_of(name):
                await schedules_async.set_schedule(self._database, new)
        if self._plan.measures:
            found_queues = await queues_async.statuses(self._database, [*self._plan.queues])
            self._members.measured.slas = {one.queue: one.sla for one in found_queues}
        await self._schedules.fire()

    async def _run_duty(self, duty: Coroutine[Any, Any, None]) -> None:
        """Runs a duty. If it fails, the supervisor stops with its error."""
        try:
            await duty
        except PenstockError as error:
            self.shutdown.fail(error)
        except Exception as error:  # noqa: BLE001 - one block handles every error
            failure = PenstockError(f"{type(error).__name__}: {error}", hint="This is a bug in Penstock.")
            failure.__cause__ = error
            self.shutdown.fail(failure)

    def _probe(self) -> dict[str, Any]:
        """Returns the answer of the liveness probe, which is ok if work flows.

        Work flows if all processes without a running handler answer, none is frozen, and claims and settles succeed
        while PostgreSQL answers the supervisor. The absence of PostgreSQL is no reason for a restart, but work does not
        flow either if PostgreSQL answers and gives up each beat, look for work or extension of leases.
        """
        members, silence = self._members.present, self._plan.silence
        idle = [member for member in members if member.ready and not member.busy]
        silent = [member.name for member in idle if time.monotonic() - member.last_message_at > silence]
        silent += [member.name for member in members if is_frozen(member.process.pid)]
        reachable = self._beats.accepted_lately
        stalled = [member.name for member in members if reachable and member.stalled > silence]
        given_up = self._problems.given_up.longer_than(silence, (BEATING, LOOKING, EXTENDING))
        return {
            "ok": not silent and not stalled and not given_up and self.shutdown.error is None,
            "pid": os.getpid(),
            "processes": len(members),
            "busy": sum(member.busy for member in members),
            "silent": sorted({*silent}),
            "stalled": sorted(stalled),
            "given_up": given_up,
            "database": reachable,
            "stopping": self.shutdown.stopping,
        }

    async def _give_signs_of_life(self, interval: float) -> None:
        """Tells the service manager that the worker lives, as long as its probe succeeds."""
        while True:
            if self._probe()["ok"]:
                self._manager.alive()
            await asyncio.sleep(interval)

    def _render_metrics(self) -> str:
        measured = [member.measures for member in self._members.present]
        return self._members.measured.render(measured, self._probe(), self._problems.reconnects)

    # --- runners ------------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Keeps all runners. If one cannot be kept, the others may finish their tasks."""
        await asyncio.gather(*(self._run_duty(self._keep_one(n)) for n in range(self._plan.processes)))
        self.shutdown.done.set()

    async def _keep_one(self, number: int) -> None:
        """Starts one runner after the other, until it is time to stop."""
        requested = self._plan.requested_at
        stillborn = 0
        while not self.shutdown.stopping:
            try:
                member = await self._start(number)
            except OSError as error:  # no memory, no more processes, or Python itself is just being replaced
                LOG.error("process not started", extra={"errno": error.errno})  # noqa: TRY400
                self._crashes += 1
                await self._pause()
                continue
            member.requested_at = requested or member.requested_at
            requested = None
            await self._look_after(member)
            if member.files:
                await self._wait_for_change(Files(member.files))
                continue
            stillborn = 0 if member.ready else stillborn + 1
            if stillborn >= STILLBORN and not self.shutdown.stopping:
                raise PenstockError(
                    f"{STILLBORN} processes in a row ended before they were ready; the last one ended by {member.end}",
                    hint="Their messages are above. Check the import of the application, and its on_start.",
                )
            if not self.shutdown.stopping and member.bye in CRASHED:
                await self._pause()
                await wait_within(2.0, asyncio.create_task(self._end_unknown_leases(member)))

    async def _start(self, number: int) -> Member:
        ours, theirs = socket.socketpair()
        queues = ",".join(f"{name}:{weight}" if weight > 1 else name for name, weight in self._plan.queues.items())
        if len(queues) > LONGEST_TITLE:
            queues = f"{len(self._plan.queues)} queues"
        title = [self._plan.target, queues, f"{number + 1}/{self._plan.processes}"]
        with theirs:
            process = self._spawn(theirs, title)
        member = Member(self._database, process, await Pipe.over(ours))
        config = self._plan.runner_config(member.name, self._leases, self._members.measured.slas)
        member.pipe.send(config=config.to_json())
        return member

    async def _look_after(self, member: Member) -> None:
        """Looks after a runner until it is gone."""
        self._members.present.append(member)
        if self.shutdown.stopping:  # the supervisor was told to stop while the runner was starting
            member.stop(self._plan.grace)
        watching = asyncio.create_task(close_when_over(member.pipe, member.process))
        await self._listen(member)
        watching.cancel()
        await self._remove(member)

    async def _wait_for_change(self, files: Files) -> None:
        """Waits until a file of the application changes, because it cannot be loaded as it is (`--dev`)."""
        while not self.shutdown.stopping and files.find_changed() is None:
            await asyncio.sleep(INTERVAL)

    async def _pause(self) -> None:
        """Pauses before a crashed runner is replaced; the pause grows each time."""
        wait = time.monotonic() + min(0.05 * 2 ** min(self._crashes, 7), 5.0)
        while not self.shutdown.stopping and time.monotonic() < wait:
            await asyncio.sleep(0.05)

    # --- messages of a runner -----------------------------------------------------------------------------------------

    async def _listen(self, member: Member) -> None:
        """Reads the messages of a runner until it is gone."""
        async for batch in member.pipe.batches():
            member.last_message_at = time.monotonic()
            for message in batch:
                member.note(message)
                self._handle(member, message)
            leases = [message["seconds"] for message in batch if "held" in message]
            if leases:
                await asyncio.sleep(min(REST, min(leases) / 20))

    def _handle(self, member: Member, message: Message) -> None:
        if "held" in message:
            self._keepalive.note(member.leases)
        elif "ready" in message or "listening" in message:
            self._members.beat_now.set()
            if "ready" in message:
                self._manager.ready()
        elif "failed" in message:
            self._handle_failure(member, message)
        elif "measured" in message:
            member.measures.note(message["measured"], self._members.measured.slas)
        if "busy" in message:
            self._beats.note(member)
        if "full" in message:
            self._beats.pass_on(member, message["full"])

    def _handle_failure(self, member: Member, message: Message) -> None:
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
            member.bye = "failed"
            self.shutdown.fail(error)
        else:
            LOG.error("process failed", extra={"worker": member.name, "error_class": message["failed"].split(":")[0]})

    # --- the end of a runner ------------------------------------------------------------------------------------------

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
        facts = {"worker": member.name, "why": member.end, "held": len(member.leases)}
        LOG.log(logging.INFO if member.bye else logging.ERROR, "process ended", extra=facts)
        if time.monotonic() - member.began > SETTLED_DOWN or member.bye not in CRASHED:
            self._crashes = 0
        else:
            self._crashes += 1
        self._members.leaving += 1
        await wait_within(2.0, asyncio.create_task(self._leave(member)))
        self._members.leaving -= 1

    async def _leave(self, member: Member) -> None:
        await self._end_leases(member)
        await self._beats.leave(member)

    async def _end_leases(self, member: Member) -> None:
        """Ends the leases of a dead process, so that its tasks wait again at once.

        A task that killed the process has failed, or is dead.
        """
        held = member.leases.take_all()
        if not held:
            return
        with suppress(PenstockError):
            failed, dead = await workers_async.end_leases(self._database, [lease.token for lease in held])
            self._members.past.update(failed=failed, dead=dead, died=dead)
        with suppress(PenstockError):
            await member.leases.end_soon(held)

    async def _end_unknown_leases(self, member: Member) -> None:
        """Ends what a crashed process claimed just before its end and did not live to report.

        Such a claim may have been committed after its process died, so this comes after the pause.
        """
        with suppress(PenstockError):
            failed, dead = await workers_async.end_leases_of(self._database, member.name, [*self._plan.queues])
            self._members.past.update(failed=failed, dead=dead, died=dead)


async def wait_within(seconds: float, *tasks: asyncio.Task[Any]) -> None:
    """Waits for these asyncio tasks for at most `seconds`. A server that does not answer must not hold the process."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def ended_by(code: int) -> str:
    """Returns how a process ended, as text."""
    return f"signal {-code}" if code < 0 else f"exit {code}"
