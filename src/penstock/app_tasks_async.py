"""The methods of AsyncPenstock about handlers: the decorators, and the ways to run tasks and scalers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, Unpack, overload

from penstock import inline_async, validate
from penstock.backlog import AdoptedTables
from penstock.client.concurrency_async import in_thread
from penstock.client.database_async import AsyncDatabase
from penstock.client.queue_async import AsyncQueue
from penstock.errors import ConfigError, PenstockError
from penstock.handler_async import AsyncHandler
from penstock.handlers import Registry
from penstock.handlers.follow_ups import find_target as find_follow_up
from penstock.handlers.middleware import middleware_of
from penstock.handlers.registry import Hook, Mode, ScheduleOptions, spec_of
from penstock.model import Backfill, Duration, Json
from penstock.retry import CustomRetry, RetryPolicy, Strategy
from penstock.scaler.run.options import ScalerOptions
from penstock.scaler.run.plan import QueueDecision
from penstock.validate import queue_name
from penstock.worker import logs
from penstock.worker.in_process import InProcessWorker
from penstock.worker.loading import find_target, refuse_while_importing
from penstock.worker.plan import Plan, WorkerOptions, WorkerReport, check_log_format, parse_weights
from penstock.worker.start import work

LOG = logging.getLogger("penstock.scaler")
H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Callable[..., Any])


def in_event_loop() -> bool:
    """Returns whether an event loop runs in this thread."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


class AsyncTaskMethods:
    """The part of AsyncPenstock that makes handlers and runs their tasks."""

    registry: Registry
    _database: AsyncDatabase
    _tracebacks: bool
    _queues: dict[str, AsyncQueue]

    @property
    def dsn(self) -> str:
        """The DSN of the database."""
        return self._database.dsn

    @property
    def dsn_source(self) -> str:
        """Where the DSN came from, such as the name of an environment variable."""
        return self._database.source

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
        retry: Strategy | RetryPolicy | CustomRetry | str | None = ...,
        max_attempts: int | None = ...,
        timeout: Duration | None = ...,
        priority: int = ...,
        batch: int | None = ...,
        run: Mode | None = ...,
        key: str | None = ...,
        expires: Duration | None = ...,
        on_dead: AsyncHandler | str | None = ...,
        on_done: AsyncHandler | str | None = ...,
    ) -> Callable[[Callable[..., Any]], AsyncHandler]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        kind: str | None = None,
        retry: Strategy | RetryPolicy | CustomRetry | str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        priority: int = 5,
        batch: int | None = None,
        run: Mode | None = None,
        key: str | None = None,
        expires: Duration | None = None,
        on_dead: AsyncHandler | str | None = None,
        on_done: AsyncHandler | str | None = None,
    ) -> AsyncHandler | Callable[[Callable[..., Any]], AsyncHandler]:
        """Makes a function the handler of a kind of task: a sync or async function, or, with `batch=n`, a function of
        up to n tasks at once.

        `kind` is the function's name by default. `retry`, `max_attempts` and `timeout` override the queue's own
        settings. A sync handler runs in a thread, or, if it has a timeout, in a process that can be ended; `run`
        chooses between them. `key` names the argument that says whose a task is; it becomes the key of each task that
        is pushed with the handler. A task that has not started `expires` after its due is cancelled.

        `on_dead` and `on_done` name a follow-up: a handler of this application, or "queue:kind" as text. PostgreSQL
        pushes a task for it, with an `EndedTask` as payload, in the transaction that ends a task of this kind.
        """
        dead_to = find_follow_up("on_dead", on_dead, self.registry)
        done_to = find_follow_up("on_done", on_done, self.registry)

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
                key=key,
                expires=expires,
                tracebacks=self._tracebacks,
                on_dead=dead_to,
                on_done=done_to,
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
        expires: Duration | None = None,
    ) -> Callable[[F], F]:
        """Pushes a task for the handler at every tick of a cron expression. The decorator can be above or below
        `@app.task`.

        Workers store the schedule when they start. Its name is queue/kind by default. `backfill` says which ticks are
        made up for after a time in which nothing ran: none, last (the most recent one) or all. A task that has not
        started `expires` after its tick, or at the `"next tick"`, is cancelled.
        """
        asked = ScheduleOptions(cron, tz, name, backfill, payload, priority, expires)

        def decorate(given: F) -> F:
            if not isinstance(given, AsyncHandler):
                self.registry.early.append((given, asked))
            elif given.app is not self:
                raise ConfigError(f"schedule: {given.spec.name} is a handler of another application")
            else:
                self.registry.schedule(given.spec, asked)
            return given

        return decorate

    @overload
    def middleware(
        self,
        function: F,
        /,
        *,
        queue: str | Sequence[str] | None = ...,
        kind: str | Sequence[str] | None = ...,
        order: int = ...,
        batch: bool = ...,
        form_of: Callable[..., Any] | None = ...,
    ) -> F: ...

    @overload
    def middleware(
        self,
        function: None = None,
        /,
        *,
        queue: str | Sequence[str] | None = ...,
        kind: str | Sequence[str] | None = ...,
        order: int = ...,
        batch: bool = ...,
        form_of: Callable[..., Any] | None = ...,
    ) -> Callable[[F], F]: ...

    def middleware(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str | Sequence[str] | None = None,
        kind: str | Sequence[str] | None = None,
        order: int = 0,
        batch: bool = False,
        form_of: Callable[..., Any] | None = None,
    ) -> Any:
        """Runs a function around each task, where its handler runs. The function is called with the task and `run`: it
        calls `run()`, which returns the outcome or raises what the handler raises, and returns this outcome or another
        one. If its first parameter is annotated `Context`, it gets the context instead of the task.

        It wraps all handlers, or those of the given queues and kinds. Of several, that with the smallest `order` is the
        outermost; with the same order, the first. A sync function wraps sync handlers, and an async one async handlers.
        With `batch=True` it wraps handlers of many tasks: it gets their list, and `run()` returns outcomes by id.
        `form_of` names a middleware of which this function is the form for other handlers. A worker does not start if
        a middleware has no form for a handler that it wraps.
        """

        def decorate(given: Callable[..., Any]) -> Callable[..., Any]:
            if form_of is None:
                self.registry.add_middleware(middleware_of(given, queue=queue, kind=kind, order=order, batch=batch))
            elif (queue, kind, order) != (None, None, 0):
                raise ConfigError("form_of: the middleware has queue, kind and order already", hint="Leave them out.")
            else:
                self.registry.add_form(given, form_of, batch=batch)
            return given

        return decorate if function is None else decorate(function)

    def on_start(self, hook: H) -> H:
        """Registers a hook that is called in each worker process before its first task."""
        self.registry.starting.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Registers a hook that is called in each worker process after its last task."""
        self.registry.stopping.append(hook)
        return hook

    def on_settled_dead(self, hook: H) -> H:
        """Registers a hook that is called as hook(task, error) in the worker whose settle made a task dead. This is
        best effort: if a task dies because it killed its workers, no worker is left to call the hook. A task that must
        follow each death is a follow-up: `@app.task(on_dead=…)`."""
        self.registry.add_dead_hook(hook)
        return hook

    # --- ways to run tasks ------------------------------------------------------------------------------------------

    async def drain_inline(self, *queues: str, limit: int | None = None, raise_errors: bool = True) -> dict[str, int]:
        """Runs the tasks that are due now in this process, without a worker, for your tests. It drains the given
        queues, or all queues with handlers, at most `limit` tasks, and returns how many tasks ended in each state.

        An error of a handler or an `on_settled_dead` hook is raised here, after its task was settled as in a worker;
        tasks that were not begun go back. With `raise_errors=False` the call goes on after an error, so that tests can
        look at the failed task.
        """
        self._database.refuse_rehearsal("drain_inline")
        names = queues or tuple(self.registry.queues())
        for name in names:
            self.registry.check(name)
        served = [self.queue(name) for name in names]
        return dict(await inline_async.drain(self._database, self.registry, served, limit, raise_errors=raise_errors))

    @asynccontextmanager
    async def run_worker(
        self, *queues: str, concurrency: int = 10, grace: Duration = "30s"
    ) -> AsyncIterator[InProcessWorker]:
        """Runs tasks in threads of this process while the block runs, for scripts and notebooks. It serves the given
        queues, or all that have handlers. At the end of the block it starts no more tasks, waits for running ones as
        long as `grace` allows, and puts the others back. If the program sets up no logging, failed tasks are shown on
        standard error, with their messages.

        Use `penstock work` in production: it replaces processes that crash or hang, which a thread cannot do.
        """
        self._database.refuse_rehearsal("run_worker")
        chosen = dict.fromkeys(queues or self.registry.queues(), 1)
        plan = Plan.of("", self.dsn, chosen, {"concurrency": concurrency, "grace": grace})
        logs.set_up_by_default("text", in_process=True)
        worker = InProcessWorker(self.registry, plan)
        await in_thread(worker.start)
        try:
            yield worker
        except BaseException:
            with suppress(PenstockError):
                await in_thread(worker.stop)
            raise
        await in_thread(worker.stop)

    def work(
        self,
        *queues: str,
        target: str | None = None,
        max_wait: Duration | None = None,
        **options: Unpack[WorkerOptions],
    ) -> WorkerReport:
        """Runs worker processes until SIGTERM or Ctrl-C, or, with `until_empty=True`, until no task is due any more,
        and returns what they did. It serves the given queues, such as `"mail"` and `"invoices:3"` with a weight, or all
        that have handlers; the options are those of `penstock work`. With `max_wait` it waits so long for PostgreSQL at
        the start.

        Each process imports the application, so call it below `if __name__ == "__main__":`. `target` names the
        application, as "myproject.tasks:app", where it cannot be found. The call needs the main thread, and no running
        event loop.
        """
        self._refuse_to_block("work")
        chosen = parse_weights(queues or self.registry.queues())
        plan = Plan.of(target or find_target(self, self.registry), self.dsn, chosen, options)
        patience = None if max_wait is None else validate.duration(max_wait, "max_wait").total_seconds()
        logs.set_up_by_default(plan.log_format)
        return work(plan, self.registry, patience=patience)

    def scale(
        self,
        *queues: str,
        target: str | None = None,
        on_decision: Callable[[QueueDecision], None] | None = None,
        log_format: str | None = None,
        **options: Unpack[ScalerOptions],
    ) -> int | None:
        """Keeps the promises of queues with as few workers as possible until SIGTERM or Ctrl-C, and returns the number
        of that signal. It scales the given queues, or all that have handlers and an SLA; the options are those of
        `penstock scale`, and `policy` may be a policy of your own. `on_decision` is called with each decision that
        changes something.

        The workers are processes that import the application: see `work` about `target` and the main module.
        """
        # Most programs run no scaler, and need not import one.
        from penstock.scaler.run import fleet, settings, start  # noqa: PLC0415

        self._refuse_to_block("scale")
        checked = settings.ScalerSettings.of(**options)
        log = check_log_format(log_format)
        recipe = fleet.Recipe(target or find_target(self, self.registry), self.dsn, checked.concurrency, log)
        logs.set_up_by_default(log)

        def report(decided: QueueDecision) -> None:
            LOG.info("%s: %s", decided.queue, decided.decision.reason, extra={"urgency": decided.decision.urgency})
            try:
                if on_decision is not None:
                    on_decision(decided)
            except Exception as error:  # noqa: BLE001 - the scaler goes on without it
                LOG.error("on_decision failed", extra={"error_class": type(error).__name__})  # noqa: TRY400

        return start.scale(
            checked,
            recipe,
            self.registry,
            AdoptedTables(self.dsn, self.dsn_source),
            queues=queues or None,
            say=report,
            tell=LOG.info,
        )

    def _refuse_to_block(self, verb: str) -> None:
        """Refuses to run until a signal comes where no signal can be received."""
        refuse_while_importing()
        self._database.refuse_rehearsal(verb)
        if threading.current_thread() is not threading.main_thread() or in_event_loop():
            raise ConfigError(
                f"{verb}: it handles signals, so it needs the main thread and no running event loop",
                hint=f"Run `penstock {verb}`, or use run_worker() beside other code.",
            )
