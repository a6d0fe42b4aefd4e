# Made from src/penstock/app_admin_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""The methods of Penstock for those who operate it: status, verification, upkeep and schedules."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.client import history, queues, scaling, schedules, upkeep, workers
from penstock.client.database import Database
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


class AdminMethods:
    """The part of Penstock that is about all queues of a database."""

    _database: Database

    def status(self) -> list[QueueStatus]:
        """Returns the counts of all queues in one snapshot."""
        return queues.status(self._database)

    def board(self, queue_name: str | None = None, *, decisions: int = 10, samples: int = 0) -> Board:
        """Returns queues, workers and decisions at one moment, for display."""
        return scaling.board(self._database, queue_name, decisions=decisions, samples=samples)

    def decisions(self, name: str, *, at: datetime | None = None, limit: int = 20) -> list[StoredDecision]:
        """Returns the decisions of scalers for a queue up to a moment, newest first."""
        return scaling.list_decisions(self._database, name, at=at, limit=limit)

    def verify(self) -> Verification:
        """Recounts everything and compares it with the counters."""
        return queues.verify(self._database)

    def repair(self, name: str | None = None) -> list[Repair]:
        """Repairs what `verify` finds, and returns what it changed."""
        return queues.repair(self._database, name)

    def forget_reader(self, name: str) -> None:
        """Stops keeping history for a reader that will not return, such as a lake; `penstock doctor` shows its name."""
        history.forget_reader(self._database, name)

    def rebase_history(self) -> int:
        """Makes history readable after a restore into another cluster, and returns how many rows were changed."""
        return history.rebase_history(self._database)

    def upkeep(self) -> Upkeep:
        """Runs all upkeep that is due: it expires leases, promotes tasks, folds counters, takes samples, creates and
        drops days of history, removes old tasks, and runs schedules. Each part is a transaction of its own. Returns the
        rows of each part; `failed` contains the parts that failed, and why."""
        report = upkeep.upkeep(self._database)
        fired = self.run_schedules()
        report.update({"scheduled": fired.pushed, "schedules failed": len(fired.failed)})
        return report

    def retentions(self) -> dict[str, timedelta | None]:
        """Returns how long upkeep keeps history, samples, decisions, ledger, rejects and audit; None means for ever."""
        return upkeep.retentions(self._database)

    def set_retention(self, what: str, keep: Duration | None) -> None:
        """Sets how long upkeep keeps one of them: at least a day, or None for ever. All upkeep uses the new value from
        now on, including that of workers."""
        upkeep.set_retention(self._database, what, keep)

    def beat(
        self, worker: str, queues: list[str], *, slots: int = 1, busy: int = 0, host: str = "", pid: int | None = None
    ) -> dict[str, str]:
        """Records that a worker is alive, and returns a channel for each queue, which is the same for all of them.
        While the worker is idle, pushes wake it on that channel: LISTEN on it; a notification contains the name of the
        queue."""
        found = workers.beat(self._database, worker, queues, slots=slots, busy=busy, host=host, pid=pid)
        return {name: standing.channel for name, standing in found.items()}

    # --- schedules --------------------------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """Returns all schedules."""
        return schedules.list_schedules(self._database)

    def set_schedule(
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
        return schedules.set_schedule(self._database, new)

    def drop_schedule(self, name: str) -> None:
        """Removes a schedule; the tasks that it pushed stay."""
        schedules.drop_schedule(self._database, schedule_name(name))

    def pause_schedule(self, name: str) -> Schedule:
        """Pauses a schedule until `resume_schedule`; ticks that pass meanwhile are not made up for."""
        return schedules.pause_schedule(self._database, schedule_name(name))

    def resume_schedule(self, name: str) -> Schedule:
        """Resumes a schedule from now on."""
        return schedules.resume_schedule(self._database, schedule_name(name))

    def run_schedules(self) -> ScheduleRun:
        """Pushes the tasks of all schedules that are due. Workers and `upkeep` do this by themselves; if several
        processes do it at once, exactly one task is pushed per tick. One call pushes at most 1,000 tasks of one
        schedule; the rest is due again at once."""
        return schedules.run_schedules(self._database)
