"""Runs a sync or async handler in the caller's thread or loop, for `drain_inline`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.client.database import Database
from penstock.client.database_async import AsyncDatabase
from penstock.client.queue import Queue
from penstock.client.queue_async import AsyncQueue
from penstock.handlers import AsyncContext, Context, Held, Spec
from penstock.handlers.outcomes import stands
from penstock.handlers.registry import Hook
from penstock.model import Outcome, Task
from penstock.worker import execution
from penstock.worker.execution import Caught
from penstock.worker.task_log import restored

T = TypeVar("T")


def perform(
    spec: Spec, tasks: list[Task], held: Held, queue: Queue, caught: Caught | None = None
) -> dict[int, Outcome]:
    """Runs a handler in this thread. An async handler gets its own loop."""
    if spec.mode == "async":
        return run_on_own_loop(run_on_new_loop(spec, tasks, held, queue, caught))
    with restored():
        if spec.batch is not None:
            return execution.run_batch(spec, tasks, caught)
        return {task.id: execution.run(spec, task, Context(task, held, queue), caught) for task in tasks}


async def perform_async(
    spec: Spec, tasks: list[Task], held: Held, queue: AsyncQueue, caught: Caught | None = None
) -> dict[int, Outcome]:
    """Runs a handler on this loop. A sync handler runs in a thread."""
    if spec.mode != "async":
        return await asyncio.to_thread(run_in_new_thread, spec, tasks, held, queue, caught)
    with restored():
        if spec.batch is not None:
            return await perform_batch_async(spec, tasks, caught)
        return {task.id: await perform_one_async(spec, task, AsyncContext(task, held, queue), caught) for task in tasks}


async def perform_one_async(spec: Spec, task: Task, context: AsyncContext, caught: Caught | None) -> Outcome:
    """Runs an async handler with its timeout."""
    try:
        async with asyncio.timeout(spec.timeout):
            return await execution.run_async(spec, task, context, caught)
    except TimeoutError:
        return stands(context) if context.decided else execution.timed_out(spec, task, caught)


async def perform_batch_async(spec: Spec, tasks: list[Task], caught: Caught | None) -> dict[int, Outcome]:
    """Runs an async batch handler with its timeout."""
    try:
        async with asyncio.timeout(spec.timeout):
            return await execution.run_batch_async(spec, tasks, caught)
    except TimeoutError:
        return {task.id: execution.timed_out(spec, task, caught) for task in tasks}


def call_hook(hook: Hook, task: Task, error: str) -> None:
    """Calls an on_settled_dead hook in this thread. An async hook gets its own loop."""
    if inspect.iscoroutinefunction(hook):
        run_on_own_loop(hook(task, error))
    else:
        hook(task, error)


async def call_hook_async(hook: Hook, task: Task, error: str) -> None:
    """Calls an on_settled_dead hook on this loop. A sync hook runs in a thread."""
    if inspect.iscoroutinefunction(hook):
        await hook(task, error)
    else:
        await asyncio.to_thread(hook, task, error)


def run_on_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a loop of its own.

    If a loop already runs in this thread (a notebook, an async test), the new loop runs in another thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def run_on_new_loop(
    spec: Spec, tasks: list[Task], held: Held, queue: Queue, caught: Caught | None
) -> dict[int, Outcome]:
    """Runs an async handler with a database connection of the new loop."""
    database = AsyncDatabase(queue.dsn)
    try:
        return await perform_async(spec, tasks, held, AsyncQueue(database, queue.name), caught)
    finally:
        await database.close()


def run_in_new_thread(
    spec: Spec, tasks: list[Task], held: Held, queue: AsyncQueue, caught: Caught | None
) -> dict[int, Outcome]:
    """Runs a sync handler with a database connection of the new thread."""
    database = Database(queue.dsn)
    try:
        return perform(spec, tasks, held, Queue(database, queue.name), caught)
    finally:
        database.close()
