"""The methods of AsyncPenstock for those who operate it: status, verification, upkeep and schedules."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.client import history_async, queues_async, scaling_async, schedules_async, upkeep_async, workers_async
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements.schedules import ScheduleRun
from penstock.client.statements.upkeep import Upkeep
from penstock.model import (
    Backfill,
    Board,
    Duration,
    Json,
    NewSchedule,
    QueueStatus,
    Repair,
    Schedule,
    StoredDecision,
    Verification,
)
from penstock.schedule import check_schedule, schedule_name


class AsyncAdminMethods:
    """The part of AsyncPenstock that is about all queues of a database."""

    _database: AsyncDatabase

    async def status(self) -> list[QueueStatus]:
        """Returns the counts of all queues in one snapshot."""
        return await queues_async.status(self._database)

    async def board(self, queue_name: str | None = None, *, decisions: int = 10, samples: int = 0) -> Board:
        """Returns queues, workers and decisions at one moment, for display."""
        return await scaling_async.board(self._database, queue_name, decisions=decisions, samples=samples)

    async def decisions(self, name: str, *, at: datetime | None = None, limit: int = 20) -> list[StoredDecision]:
        """Returns the decisions of scalers for a queue up to a moment, newest first."""
        return await scaling_async.list_decisions(self._database, name, at=at, limit=limit)

    async def verify(self) -> Verification:
        """Recounts everything and compares it with the counters."""
        return await queues_async.verify(self._database)

    async def repair(self, name: str | None = None) -> list[Repair]:
        """Repairs what `verify` finds, and returns what it changed."""
        return await queues_async.repair(self._database, name)

    async def forget_reader(self, name: str) -> None:
        """Stops keeping history for a reader that will not return, such as a lake; `penstock doctor` shows its name."""
        await history_async.forget_reader(self._database, name)

    async def rebase_history(self) -> int:
        """Makes history readable after a restore into another cluster, and returns how many rows were changed."""
        return await history_async.rebase_history(self._database)

    async def upkeep(self) -> Upkeep:
        """Runs all upkeep that is due: it expires leases, promotes tasks, folds counters, takes samples, creates and
        drops days of history, removes old tasks, and runs schedules. Each part is a transaction of its own. Returns the
        rows of each part; `failed` contains the parts that failed, and why."""
        report = await upkeep_async.upkeep(self._database)
        fired = await self.run_schedules()
        report.update({"scheduled": fired.pushed, "schedules failed": len(fired.failed)})
        return report

    async def retentions(self) -> dict[str, timedelta | None]:
        """Returns how long upkeep keeps history, samples, decisions, ledger, rejects and audit; None means for ever."""
        return await upkeep_async.retentions(self._database)

    async def set_retention(self, what: str, keep: Duration | None) -> None:
        """Sets how long upkeep keeps one of them: at least a day, or None for ever. All upkeep uses the new value from
        now on, including that of workers."""
        await upkeep_async.set_retention(self._database, what, keep)

    async def beat(
        self, worker: str, queues: list[str], *, slots: int = 1, busy: int = 0, host: str = "", pid: int | None = None
    ) -> dict[str, str]:
        """Records that a worker is alive, and returns a channel for each queue, which is the same for all of them.
        While the worker is idle, pushes wake it on that channel: LISTEN on it; a notification contains the name of the
        queue."""
        found = await workers_async.beat(self._database, worker, queues, slots=slots, busy=busy, host=host, pid=pid)
        return {name: standing.channel for name, standing in found.items()}

    # --- schedules --------------------------------------------------------------------------------------------------

    async def schedules(self) -> list[Schedule]:
        """Returns all schedules."""
        return await schedules_async.list_schedules(self._database)

    async def set_schedule(
        self,
        name: str,
        cron: str,
        *,
        queue: str,
        kind: str = "default",
        payload: Json | None = None,
        tz: str = "UTC",
        backfill: Backfill = "last",
        priority: int = 5,
        key: str | None = None,
        expires: Duration | None = None,
    ) -> Schedule:
        """Creates or changes a schedule, which pushes a task like this at every tick of a cron expression. A changed
        expression or time zone counts from now; a paused schedule stays paused. A task that has not started `expires`
        after its tick, or at the `"next tick"`, is cancelled."""
        new = check_schedule(NewSchedule(name, queue, cron, tz, kind, payload, priority, backfill, key, expires))
        return await schedules_async.set_schedule(self._database, new)

    async def drop_schedule(self, name: str) -> None:
        """Removes a schedule; the tasks that it pushed stay."""
        await schedules_async.drop_schedule(self._database, schedule_name(name))

    async def pause_schedule(self, name: str) -> Schedule:
        """Pauses a schedule until `resume_schedule`; ticks that pass meanwhile are not made up for."""
        return await schedules_async.pause_schedule(self._database, schedule_name(name))

    async def resume_schedule(self, name: str) -> Schedule:
        """Resumes a schedule from now on."""
        return await schedules_async.resume_schedule(self._database, schedule_name(name))

    async def run_schedules(self) -> ScheduleRun:
        """Pushes the tasks of all schedules that are due. Workers and `upkeep` do this by themselves; if several
        processes do it at once, exactly one task is pushed per tick. One call pushes at most 1,000 tasks of one
        schedule; the rest is due again at once."""
        return await schedules_async.run_schedules(self._database)
