"""AsyncPenstock: the way in. `penstock.app` is made from this file (see `penstock.aio`)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import UUID

from penstock import async_inline, backlog, migrate
from penstock.aio import queue
from penstock.aio.colour import Items, each, in_thread
from penstock.aio.database import AsyncDatabase
from penstock.aio.queue import AsyncQueue
from penstock.aio.queue import set_schedule as store_schedule
from penstock.backlog import Backlog
from penstock.dsn import find_dsn
from penstock.errors import ConfigError, ValidationError, shown
from penstock.handlers import Registry, Spec
from penstock.handlers.registry import Asked, Hook, Mode, spec_of
from penstock.model import (
    Backfill,
    CronSchedule,
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
    Verification,
)
from penstock.retry import Custom, Policy, Strategy
from penstock.schedule import checked, decide, next_run, schedule_name
from penstock.statements import Round
from penstock.validate import at, queue_name

H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Callable[..., Any])


class AsyncPenstock:
    """A database with queues in it. Thread-safe and fork-safe; connects when first used.

    The DSN comes from the argument, PENSTOCK_DSN, DATABASE_URL, libpq's PG* variables, or the running embedded server
    of this directory. A new server is started only by `dsn="embedded"`.

    `rehearse=True`: every verb does all it does, answers, and is rolled back.
    """

    def __init__(
        self, dsn: str | None = None, *, max_connections: int = 8, timeout: float = 10.0, rehearse: bool = False
    ) -> None:
        found, source = find_dsn(dsn, os.environ)
        self._database = AsyncDatabase(
            found, source=source, max_connections=max_connections, timeout=timeout, rehearse=rehearse
        )
        self._queues: dict[str, AsyncQueue] = {}
        self.registry = Registry()

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
        return self._database.dsn

    @property
    def dsn_source(self) -> str:
        return self._database.source

    async def close(self) -> None:
        await self._database.close()

    async def init(self, *, roles: bool = True) -> list[str]:
        """Brings the schema up to date; answers the names of what was applied. `roles=False` creates no roles, for
        those who may not."""
        return await in_thread(migrate.init, self.dsn, self.dsn_source, roles=roles)

    async def plan(self, *, roles: bool = True) -> list[str]:
        """What `init` would apply."""
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
        await queue.create(
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
        """A queue by name. It is looked up when used."""
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
        retry: Strategy | Policy | Custom | str | None = ...,
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
        retry: Strategy | Policy | Custom | str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        priority: int = 5,
        batch: int | None = None,
        run: Mode | None = None,
    ) -> AsyncHandler | Callable[[Callable[..., Any]], AsyncHandler]:
        """Makes a function the handler of a kind of tasks: sync, async, or, with `batch=n`, of up to n tasks at once.

        `kind` is by default the function's name. `retry`, `max_attempts` and `timeout` stand above the queue's own.
        A sync handler runs in a thread, or, when it has a timeout, in a process that can be ended (`run=` says which).
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
        """Pushes a task for the handler at every tick of a cron line; above or below `@app.task`.

        Workers store it at their start. Its name is by default queue/kind. `backfill` says what becomes of ticks that
        passed while nothing ran: none, last (the most recent one) or all.
        """
        asked = Asked(cron, tz, name, backfill, payload, priority)

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
        """Called in each worker process before its first task."""
        self.registry.starting.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Called in each worker process after its last task."""
        self.registry.stopping.append(hook)
        return hook

    def on_dead(self, hook: H) -> H:
        """Called as hook(task, error) in the worker that settled a task when that made it dead. Best effort: of a task
        that dies because it killed its workers, nobody is left to tell."""
        self.registry.dying.append(hook)
        return hook

    async def drain_inline(self, *queues: str, most: int | None = None) -> dict[str, int]:
        """Runs what is due now, here, without a worker: for your tests. All queues with handlers, or these. Answers how
        many tasks ended in which state."""
        self._database.refuse_rehearsal("drain_inline")
        names = queues or tuple(self.registry.queues())
        for name in names:
            self.registry.check_served(name)
        return dict(await async_inline.drain(self.registry, [self.queue(name) for name in names], most))

    # --- tables that are not ours -----------------------------------------------------------------------------------

    async def adopt(
        self,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        status: str = "status",
        inserted: str = "date_inserted",
        ready: Sequence[str | int] | str | int = ("NEW",),
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
    ) -> Backlog:
        """A table that somebody has already, to be drained where it is. Which column is which, what its statuses mean,
        and when what failed is tried again; noted in one row of ours, and nothing in the table is changed.

        With `failures` and `last_failure`, columns of the table, failures are counted there; without them beside it, or
        not at all if the strategy is Progressive. `mode="observe"` only looks. Moments without a zone are read in `tz`.
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
        )

    async def backlog(self, name: str) -> Backlog:
        """A table that was adopted before, by its name."""
        return await in_thread(backlog.load, self.dsn, self.dsn_source, name)

    async def backlogs(self) -> list[Backlog]:
        """All adopted tables."""
        return await in_thread(backlog.every, self.dsn, self.dsn_source)

    # --- all queues -------------------------------------------------------------------------------------------------

    async def queues(self) -> list[QueueSettings]:
        return await queue.settings(self._database)

    async def status(self) -> list[QueueStatus]:
        """All queues in one snapshot."""
        return await queue.status(self._database)

    async def verify(self) -> Verification:
        """Recounts everything and compares it with the books."""
        return await queue.verify(self._database)

    async def repair(self, name: str | None = None) -> list[Repair]:
        """Puts right what verify finds, and says what it did."""
        return await queue.repair(self._database, name)

    async def forget_reader(self, name: str) -> None:
        """Keeps no history for a reader that will not come again: a lake, by the name that doctor gives it."""
        await queue.forget_reader(self._database, name)

    async def rebase_history(self) -> int:
        """After a restore into another cluster: history can be read again. Answers how many rows were changed."""
        return await queue.rebase_history(self._database)

    async def upkeep(self) -> dict[str, int]:
        """What anybody may do at any time: expire, promote, squeeze, sample, history's days, retention, schedules."""
        parts = await queue.upkeep(self._database)
        fired = await self.run_schedules()
        return parts | {"scheduled": fired.pushed, "schedules failed": len(fired.failed)}

    async def beat(
        self, worker: str, queues: list[str], *, slots: int = 1, busy: int = 0, host: str = "", pid: int | None = None
    ) -> dict[str, str]:
        """A worker lives: idle ones are woken by pushes. Answers the channel of each queue, to LISTEN on."""
        found = await queue.beat(self._database, worker, queues, slots=slots, busy=busy, host=host, pid=pid)
        return {name: standing.channel for name, standing in found.items()}

    # --- schedules --------------------------------------------------------------------------------------------------

    async def schedules(self) -> list[CronSchedule]:
        return await queue.schedules(self._database)

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
    ) -> CronSchedule:
        """A task like this at every tick of a cron line: a new schedule, or this one changed. Another line or time zone
        counts from now; a paused one stays paused."""
        new = checked(NewSchedule(name, queue, cron, tz, kind, payload, priority, backfill))
        return await store_schedule(self._database, new, next_run)

    async def drop_schedule(self, name: str) -> None:
        """It pushes nothing any more; what it pushed stays."""
        await queue.drop_schedule(self._database, schedule_name(name))

    async def pause_schedule(self, name: str) -> CronSchedule:
        """No ticks until `resume_schedule`; those that pass meanwhile are not made up for."""
        return await queue.pause_schedule(self._database, schedule_name(name))

    async def resume_schedule(self, name: str) -> CronSchedule:
        """It goes on from now."""
        return await queue.resume_schedule(self._database, schedule_name(name), next_run)

    async def run_schedules(self) -> Round:
        """Pushes the tasks of all schedules that are due. Workers do it by themselves, and so does `upkeep`; any number
        at once push one task per tick. Of one schedule at most 1,000 a call: the rest is due again at once."""
        return await queue.run_schedules(self._database, decide)


class AsyncHandler:
    """A decorated function: called, it runs here and now; pushed, it is a task for a worker."""

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
        priority: int | None = None,
        on_conflict: OnConflict = "skip",
        connection: object | None = None,
        **named: Any,
    ) -> Pushed:
        """One task, with the arguments of a call: those it would not take are refused here."""
        return await self.app.queue(self.spec.queue).push(
            self.spec.payload(arguments, named),
            subject=subject,
            kind=self.spec.kind,
            due=due,
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
        """Many: each a dict of arguments, or a NewTask with them as its payload. One that the handler would not take
        refuses the whole call."""
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
