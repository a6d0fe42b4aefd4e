"""Running a handler where the caller is, whatever its colour is: for `drain_inline`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.aio.database import AsyncDatabase
from penstock.aio.queue import AsyncQueue
from penstock.database import Database
from penstock.handlers import AsyncContext, Context, Held, Spec
from penstock.model import Outcome, Task
from penstock.queue import Queue
from penstock.worker import execution

T = TypeVar("T")


def perform(spec: Spec, tasks: list[Task], held: Held, queue: Queue) -> dict[int, Outcome]:
    """In this thread; an async handler on a loop of its own."""
    if spec.mode == "async":
        return on_own_loop(on_new_loop(spec, tasks, held, queue))
    if spec.batch is not None:
        return execution.run_batch(spec, tasks)
    return {task.id: execution.run(spec, task, Context(task, held, queue)) for task in tasks}


async def perform_async(spec: Spec, tasks: list[Task], held: Held, queue: AsyncQueue) -> dict[int, Outcome]:
    """On this loop; a sync handler in a thread."""
    if spec.mode != "async":
        return await asyncio.to_thread(in_new_thread, spec, tasks, held, queue)
    if spec.batch is not None:
        return await performed_together(spec, tasks)
    return {task.id: await performed_async(spec, task, AsyncContext(task, held, queue)) for task in tasks}


async def performed_async(spec: Spec, task: Task, context: AsyncContext) -> Outcome:
    try:
        async with asyncio.timeout(spec.timeout):
            return await execution.run_async(spec, task, context)
    except TimeoutError:
        return execution.SETTLED if context.settled else execution.timed_out(spec, task)


async def performed_together(spec: Spec, tasks: list[Task]) -> dict[int, Outcome]:
    try:
        async with asyncio.timeout(spec.timeout):
            return await execution.run_batch_async(spec, tasks)
    except TimeoutError:
        return {task.id: execution.timed_out(spec, task) for task in tasks}


def on_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Where a loop runs already (a notebook, an async test) there can be no second one: another thread has it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def on_new_loop(spec: Spec, tasks: list[Task], held: Held, queue: Queue) -> dict[int, Outcome]:
    database = AsyncDatabase(queue.dsn)
    try:
        return await perform_async(spec, tasks, held, AsyncQueue(database, queue.name))
    finally:
        await database.close()


def in_new_thread(spec: Spec, tasks: list[Task], held: Held, queue: AsyncQueue) -> dict[int, Outcome]:
    database = Database(queue.dsn)
    try:
        return perform(spec, tasks, held, Queue(database, queue.name))
    finally:
        database.close()
