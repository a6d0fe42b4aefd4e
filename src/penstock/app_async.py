"""AsyncPenstock is the entry point of the library."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import UUID

from penstock import backlog, inline_async, migrate, validate
from penstock.backlog import Backlog
from penstock.client import history_async, queues_async, scaling_async, schedules_async, upkeep_async, workers_async
from penstock.client.concurrency_async import Items, each, in_thread
from penstock.client.database_async import AsyncDatabase
from penstock.client.queue_async import AsyncQueue
from penstock.client.statements.schedules import ScheduleRun
from penstock.client.statements.upkeep import Upkeep
from penstock.dsn import find_dsn
from penstock.errors import ConfigError, PenstockError, ValidationError, shown
from penstock.handlers import Registry, Spec
from penstock.handlers.registry import Hook, Mode, ScheduleOptions, spec_of
from penstock.model import (
    Backfill,
    Board,
    Duration,
    Json,
    NewSchedule,
    NewTask,
    OnConflict,
    Pushed,
    PushReport,
    QueueSettings,
    QueueStatus,
    Repair,
    Schedule,
    StoredDecision,
    TaskDetails,
    Verification,
)
from penstock.retry import CustomRetry, Policy, Strategy
from penstock.schedule import checked, schedule_name
from penstock.validate import at, queue_name
from penstock.worker.in_process import InProcessWorker
from penstock.worker.supervisor import Plan

H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Callable[..., Any])


class AsyncPenstock:
    """A database with queues in it. It is thread-safe and fork-safe, and connects when it is first used.

    The DSN comes from the argument, PENSTOCK_DSN, DATABASE_URL, libpq's PG* variables, or the running embedded server
    of this directory. Only `dsn="embedded"` starts a new server.

    With `rehearse=True` every verb does its work, returns its answer, and is rolled back. With `tracebacks=False` only
    the class and the message of a handler's error are stored.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        max_connections: int = 8,
        timeout: float = 10.0,
        rehearse: bool = False,
        tracebacks: bool = True,
    ) -> None:
        found, source = find_dsn(dsn, os.environ)
        self._database = AsyncDatabase(
            found, source=source, max_connections=max_connections, timeout=timeout, rehearse=rehearse
        )
        self._queues: dict[str, AsyncQueue] = {}
        self.registry = Registry()
        self._tracebacks = tracebacks

    def __repr__(self) -> str:
        return f"<AsyncPenstock {self._database!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def dsn(self) -> str:
        """The DSN of the database."""
        return self._database.dsn

    @property
    def dsn_source(self) -> str:
        """Where the DSN came from, such as the name of an environment variable."""
        return self._database.source

    async def close(self) -> None:
        """Closes the connections."""
        await self._database.close()

    async def init(self, *, roles: bool = True) -> list[str]:
        """Brings the schema up to date and returns the names of the applied steps. `roles=False` creates no roles, for
        database users without that right."""
        return await in_thread(migrate.init, self.dsn, self.dsn_source, roles=roles)

    async def plan(self, *, roles: bool = True) -> list[str]:
        """Returns the names of the steps that `init` would apply."""
        return await in_thread(migrate.plan, self.dsn, self.dsn_source, roles=roles)

    async def create_queue(
        self,
        name: str,
        *,
        lease: Duration = "30s",
        max_attempts: int | None = 20,
        retry: Strategy | str = "exponential:5s,factor=2,cap=1h,jitter=0.1",
        sla: Duration | None = None,
        keep_done: Duration | None = None,
        keep_dead: Duration | None = None,
        keep_cancelled: Duration | None = None,
        max_payload: int = 1 << 20,
        exist_ok: bool = False,
    ) -> AsyncQueue:
        """Creates a queue and returns it. With `exist_ok=True` an existing queue is left as it is."""
        await queues_async.create(
            self._database,
            name,
            exist_ok=exist_ok,
            lease=lease,
            max_attempts=max_attempts,
            retry=retry,
            sla=sla,
            keep_done=keep_done,
            keep_dead=keep_dead,
            keep_cancelled=keep_cancelled,
            max_payload=max_payload,
        )
        return self.queue(name)

    def queue(self, name: str) -> AsyncQueue:
        """Returns a queue by name. The name is looked up when the queue is used."""
        known = self._queues.get(queue_name(name))
        if known is None:
            known = self._queues.setdefault(name, AsyncQueue(self._database, name))
        return known

    # --- handlers ---------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[..., Any], /) -> AsyncHandler: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        queue: str = ...,
        kind: str | None = ...,
        retry: Strategy | Policy | CustomRetry | str | None = ...,
        max_attempts: int | None = ...,
        timeout: Duration | None = ...,
        priority: int = ...,
        batch: int | None = ...,
        run: Mode | None = ...,
    ) -> Callable[[Callable[..., Any]], AsyncHandler]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        kind: str | None = None,
        retry: Strategy | Policy | CustomRetry | str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        priority: int = 5,
        batch: int | None = None,
        run: Mode | None = None,
    ) -> AsyncHandler | Callable[[Callable[..., Any]], AsyncHandler]:
        """Makes a function the handler of a kind of task: a sync or async function, or, with `batch=n`, a function of
        up to n tasks at once.

        `kind` is the function's name by default. `retry`, `max_attempts` and `timeout` override the queue's own
        settings. A sync handler runs in a thread, or, if it has a timeout, in a process that can be ended; `run`
        chooses between them.
        """

        def decorate(given: Callable[..., Any]) -> AsyncHandler:
            spec = spec_of(
                given.spec.function if isinstance(given, AsyncHandler) else given,
                queue=queue,
                kind=kind,
                retry=retry,
                max_attempts=max_attempts,
                timeout=timeout,
                priority=priority,
                batch=batch,
                run=run,
                tracebacks=self._tracebacks,
            )
            return AsyncHandler(self, self.registry.add(spec))

        return decorate if function is None else decorate(function)

    def schedule(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        backfill: Backfill = "last",
        payload: Json | None = None,
        priority: int | None = None,
    ) -> Callable[[F], F]:
        """Pushes a task for the handler at every tick of a cron line. The decorator works above or below `@app.task`.

        Workers store the schedule when they start. Its name is queue/kind by default. `backfill` says which ticks are
        made up for after a time in which nothing ran: none, last (the most recent one) or all.
        """
        asked = ScheduleOptions(cron, tz, name, backfill, payload, priority)

        def decorate(given: F) -> F:
            if not isinstance(given, AsyncHandler):
                self.registry.early.append((given, asked))
            elif given.app is not self:
                raise ConfigError(f"schedule: {given.spec.name} is a handler of another application")
            else:
                self.registry.schedule(given.spec, asked)
            return given

        return decorate

    def on_start(self, hook: H) -> H:
        """Registers a hook that is called in each worker process before its first task."""
        self.registry.starting.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Registers a hook that is called in each worker process after its last task."""
        self.registry.stopping.append(hook)
        return hook

    def on_dead(self, hook: H) -> H:
        """Registers a hook that is called as hook(task, error) in the worker whose settle made a task dead. This is
        best effort: if a task dies because it killed its workers, no worker is left to call the hook."""
        self.registry.dying.append(hook)
        return hook

    async def drain_inline(self, *queues: str, most: int | None = None, raise_errors: bool = True) -> dict[str, int]:
        """Runs the tasks that are due now in this process, without a worker, for your tests. It drains the given
        queues, or all queues with handlers, and returns how many tasks ended in each state.

        An error of a handler or an `on_dead` hook is raised here, after its task was settled as in a worker; tasks that
        were not begun go back. With `raise_errors=False` the call goes on after an error, so that tests can look at the
        failed task.
        """
        self._database.refuse_rehearsal("drain_inline")
        names = queues or tuple(self.registry.queues())
        for name in names:
            self.registry.check_served(name)
        served = [self.queue(name) for name in names]
        return dict(await inline_async.drain(self._database, self.registry, served, most, raise_errors=raise_errors))

    @asynccontextmanager
    async def run_worker(
        self, *queues: str, concurrency: int = 10, grace: Duration = "30s"
    ) -> AsyncIterator[InProcessWorker]:
        """Runs tasks in threads of this process while the block runs, for scripts and notebooks. It serves the given
        queues, or all that have handlers. At the end of the block it starts no more tasks, waits for running ones as
        long as `grace` allows, and puts the others back.

        Use `penstock work` in production: it replaces processes that crash or hang, which a thread cannot do.
        """
        self._database.refuse_rehearsal("run_worker")
        plan = Plan(
            target="",
            dsn=self.dsn,
            queues=dict.fromkeys(queues or self.registry.queues(), 1),
            concurrency=validate.whole(concurrency, "concurrency", 1, validate.MOST_CONCURRENT),
            grace=validate.grace(grace),
        )
        worker = InProcessWorker(self.registry, plan)
        await in_thread(worker.start)
        try:
            yield worker
        except BaseException:
            with suppress(PenstockError):
                await in_thread(worker.stop)
            raise
        await in_thread(worker.stop)

    # --- adopted tables ---------------------------------------------------------------------------------------------

    async def adopt(
        self,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        status: str = "status",
        inserted: str = "date_inserted",
        ready: Sequence[str | int | None] | str | int = ("NEW",),
        retry: Sequence[str | int] | str | int = (),
        done: str | int = "SUCCESS",
        failed: str | int | None = None,
        dead: str | int | None = None,
        strategy: Strategy | str = "progressive",
        failures: str | None = None,
        last_failure: str | None = None,
        max_attempts: int | None = None,
        mode: str | None = None,
        sla: Duration | None = None,
        name: str | None = None,
        tz: str | None = None,
        count_key: bool = False,
    ) -> Backlog:
        """Adopts an existing table, to drain it where it is. The arguments say which column is which, what its statuses
        mean, and when failed records are tried again. They are stored in one row of Penstock's own; the table itself is
        not changed.

        If `failures` and `last_failure` name columns of the table, failures are counted there. Without them, failures
        are counted beside the table, or not at all if the strategy is Progressive. `mode="observe"` only reads the
        table. Moments without a time zone are read in `tz`.

        `inserted` is a column of type timestamptz, timestamp or date, or an index of the table whose first key is an
        expression of such a type.

        With `ready=[None]`, records without a status (NULL) are ready.

        `key` names columns with a unique index; the default is the primary key. With `count_key=True` a count of all
        records may prove uniqueness instead.
        """
        self._database.refuse_rehearsal("adopt")
        return await in_thread(
            backlog.adopt,
            self.dsn,
            self.dsn_source,
            table,
            key=key,
            status=status,
            inserted=inserted,
            ready=ready,
            retry=retry,
            done=done,
            failed=failed,
            dead=dead,
            strategy=strategy,
            failures=failures,
            last_failure=last_failure,
            max_attempts=max_attempts,
            mode=mode,
            sla=sla,
            name=name,
            tz=tz,
            count_key=count_key,
        )

    async def backlog(self, name: str) -> Backlog:
        """Returns a table that was adopted before, by its name."""
        return await in_thread(backlog.load, self.dsn, self.dsn_source, name)

    async def backlogs(self) -> list[Backlog]:
        """Returns all adopted tables."""
        return await in_thread(backlog.every, self.dsn, self.dsn_source)

    # --- all queues -------------------------------------------------------------------------------------------------

    async def find_task(self, id: int) -> TaskDetails:  # noqa: A002 - the parameter has this name everywhere
        """Returns one task of any queue, with everything that is known of it: its state, or, if it is done and removed,
        when it ended. A removed task is found as long as history is kept (30 days by default)."""
        return await queues_async.find_task(self._database, id)

    async def queues(self) -> list[QueueSettings]:
        """Returns the settings of all queues."""
        return await queues_async.settings(self._database)

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
    ) -> Schedule:
        """Creates or changes a schedule, which pushes a task like this at every tick of a cron line. A changed line or
        time zone counts from now; a paused schedule stays paused."""
        new = checked(NewSchedule(name, queue, cron, tz, kind, payload, priority, backfill))
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


class AsyncHandler:
    """A decorated function. A call runs it here and now; `push` makes a task of it for a worker."""

    def __init__(self, app: AsyncPenstock, spec: Spec) -> None:
        functools.update_wrapper(self, spec.function)
        self.spec = spec
        self.app = app

    def __repr__(self) -> str:
        return f"<AsyncHandler {self.spec.name}>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.spec.function(*arguments, **named)

    async def push(
        self,
        *arguments: Any,
        subject: str | None = None,
        due: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        on_conflict: OnConflict = "skip",
        connection: object | None = None,
        **named: Any,
    ) -> Pushed:
        """Pushes one task with the arguments of a call, and refuses arguments that the handler would not accept. The
        task may run at once, from `due` on, or after `delay`."""
        return await self.app.queue(self.spec.queue).push(
            self.spec.payload(arguments, named),
            subject=subject,
            kind=self.spec.kind,
            due=due,
            delay=delay,
            priority=self.spec.priority if priority is None else priority,
            on_conflict=on_conflict,
            connection=connection,
        )

    async def push_many(
        self,
        items: Items[Json | NewTask],
        *,
        on_conflict: OnConflict = "skip",
        batch_id: UUID | None = None,
        progress: Callable[[int], None] | None = None,
        connection: object | None = None,
    ) -> PushReport:
        """Pushes many tasks. Each item is a dict of arguments, or a NewTask with them as its payload. One item that the
        handler would not accept refuses the whole call."""
        return await self.app.queue(self.spec.queue).push_many(
            each(items, self._one),
            on_conflict=on_conflict,
            batch_id=batch_id,
            progress=progress,
            connection=connection,
        )

    def _one(self, n: int, item: Json | NewTask) -> NewTask:
        return at(n, self._new_task, item)

    def _new_task(self, item: Json | NewTask) -> NewTask:
        task = item if isinstance(item, NewTask) else NewTask(item, priority=self.spec.priority)
        payload = {} if task.payload is None else task.payload
        if type(payload) is not dict:
            raise ValidationError(f"arguments: {shown(payload)} is not a dict of arguments", field="arguments")
        if self.spec.arguments is not None:
            self.spec.arguments.checked(payload)
        return task._replace(payload=payload, kind=self.spec.kind)
