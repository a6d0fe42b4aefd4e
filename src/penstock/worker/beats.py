"""The beats of a worker, and what PostgreSQL answers: work that waits, and requests to the worker."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Iterable
from contextlib import suppress

from penstock.client import workers_async
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements.workers import FoundWork
from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.worker.duties import Problems, wait_until
from penstock.worker.housekeeping import ScheduleDuty, UpkeepDuty
from penstock.worker.leases import is_frozen
from penstock.worker.member import Member, Members
from penstock.worker.plan import Plan
from penstock.worker.shutdown import Shutdown

LOG = logging.getLogger("penstock.worker")
BEAT = 2.0  # seconds
LOOK = 1.0  # seconds between two searches for work
BEATING, LOOKING = "beat", "look for work"  # these duties, as the log and the probe name them
UNNOTIFIED_LOOK = 0.5  # seconds, if a process receives no notifications of pushes
SOONEST_LOOK = 0.1  # seconds: tasks that become due one after the other are found together


class Beats:
    """The duty to send beats for all runners, and to look for work in all queues."""

    def __init__(
        self,
        plan: Plan,
        leases: dict[str, float],
        database: AsyncDatabase,
        members: Members,
        *,
        shutdown: Shutdown,
        upkeep: UpkeepDuty,
        schedules: ScheduleDuty,
        problems: Problems,
    ) -> None:
        self._plan = plan
        self._queues = [*plan.queues]
        self._leases = leases
        self._database = database
        self._members = members
        self._shutdown = shutdown
        self._upkeep = upkeep
        self._schedules = schedules
        self._problems = problems
        self._beating = asyncio.Lock()
        self._beaten_at = 0.0  # when PostgreSQL last accepted a beat
        # By queue: the member that empties itself for a task that must run alone.
        self._quarantine: dict[str, Member] = {}
        self._primary = database.hosts.primary
        self._known: int | None = None  # a number for what the last beat said of the queues
        self._passing_on: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Sends beats, and looks for work in all queues, also between two beats.

        Each time one statement does everything.
        """
        beats_at = 0.0
        beat_now = self._members.beat_now
        while True:
            rest, duty = LOOK, LOOKING
            try:
                if beat_now.is_set() or time.monotonic() >= beats_at:
                    duty = BEATING
                    beat_now.clear()
                    async with self._beating:
                        found = await self._beat_for_all()
                    beats_at = time.monotonic() + BEAT
                else:
                    found = await workers_async.find_work(self._database, self._queues)
                self._tell_primary()
                rest = await self._act_on(found)
                self._problems.note_success(duty)
            except Unavailable as error:
                await self._problems.wait_for_database(error, duty)
            except PenstockError as error:
                self._problems.log_once("no beat", error)
            await wait_until(time.monotonic() + rest, beat_now)

    @property
    def accepted_lately(self) -> bool:
        """Whether PostgreSQL accepted a beat in the last seconds."""
        return time.monotonic() - self._beaten_at < 5 * BEAT

    def note(self, member: Member) -> None:
        """Reports a runner at once if it has just become idle.

        Pushes wake only workers that PostgreSQL knows to be idle.
        """
        if member.told_busy >= self._plan.concurrency > member.busy:
            self._members.beat_now.set()

    def pass_on(self, member: Member, queue: str) -> None:
        """Passes on a task for which a runner without a free slot was woken.

        Another process of this worker takes it, or PostgreSQL wakes another worker. If that fails too, the next look
        finds the task.
        """
        others = [one for one in self._members.free if one is not member]
        if others and not self._shutdown.stopping:
            random.choice(others).pipe.send(look=[queue])  # noqa: S311
        else:
            self._passing_on = asyncio.create_task(self._wake_another(member.name, queue))

    async def _wake_another(self, worker: str, queue: str) -> None:
        with suppress(PenstockError):
            await workers_async.pass_on(self._database, worker, queue)

    async def leave(self, member: Member) -> None:
        """Removes a runner that ended from the workers that PostgreSQL knows."""
        with suppress(PenstockError):
            async with self._beating:  # a beat that is running would record it again
                await workers_async.leave(self._database, member.name)

    def _tell_primary(self) -> None:
        """Tells the runners when another host has become the primary.

        Idle connections of a runner may lead to a frozen host, and it would take the runner seconds to find that out.
        """
        primary = self._database.hosts.primary
        if primary != self._primary:
            self._primary = primary
            for member in self._members.present:
                member.pipe.send(primary=primary)

    # --- what PostgreSQL answers --------------------------------------------------------------------------------------

    async def _act_on(self, found: FoundWork) -> float:
        """Reacts to what a look for work found. Returns the seconds until the next look."""
        self._schedules.expect(found.next_schedule)
        if found.upkeep:
            self._upkeep.due.set()
        if found.waiting:
            for member in self._members.idle:
                member.pipe.send(look=found.waiting)
        if found.waiting and self._members.present and not self._members.free:
            # No process claims now, and normally the claims expire leases.
            await workers_async.expire_leases(self._database, found.waiting)
        # The pause is never exact, so that the workers of a fleet do not all look at the same moment.
        rest = UNNOTIFIED_LOOK if any(member.unnotified for member in self._members.present) else LOOK
        if found.next_due is not None:
            rest = min(rest, max(found.next_due, SOONEST_LOOK))
        return rest + random.uniform(0.0, 0.1)  # noqa: S311

    async def _beat_for_all(self) -> FoundWork:
        """Sends the beats of all runners in one call, which also looks for work, and applies the answer."""
        living = [member for member in self._members.present if member.ready and not is_frozen(member.process.pid)]
        beaten, found = await workers_async.beat_all(
            self._database,
            [member.beat(self._plan.concurrency) for member in living],
            self._queues,
            slots=self._plan.concurrency,
            host=socket.gethostname(),
            started_by=self._plan.started_by,
            leaving=self._shutdown.stopping,
            known=self._known,
        )
        self._beaten_at = time.monotonic()
        self._known = beaten.known
        if beaten.leases is not None:
            self._learn_leases(beaten.leases)
        for member in living:
            member.listen(beaten.channels.get(member.name))
        if beaten.dismissed and not self._shutdown.stopping:
            LOG.info("dismissed", extra={"worker": beaten.dismissed[0]})
            self._shutdown.stop()
        self._quarantine = await self._choose_for_quarantine(living, beaten.quarantined)
        for member in living:
            member.pipe.send(quarantine=member in self._quarantine.values())
        return found

    def _learn_leases(self, leases: dict[str, float]) -> None:
        """Updates the leases of the queues, which may change, and reports queues that were dropped."""
        for name in {*self._queues} - leases.keys():
            self._problems.log_once(f"queue {name} was dropped", NotFound(f"queue {name!r} does not exist"))
        changed = {name: lease for name, lease in leases.items() if lease != self._leases[name]}
        if changed:
            self._leases.update(changed)
            for member in self._members.present:
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
