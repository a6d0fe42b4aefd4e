"""This module has the primitives that differ in asyncio. `concurrency` has the same names for threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

from penstock.client.concurrency import AllFailed, Starts

__all__ = ["AllFailed"]

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

AsyncItems = Iterable[T] | AsyncIterable[T]
"""The items of a bulk push, from an iterable or an async one."""
PoolKey = tuple[int, asyncio.AbstractEventLoop]
Lock = asyncio.Lock
sleep = asyncio.sleep


def pool_key() -> PoolKey:
    """Returns the process and the event loop that a pool belongs to. It is the loop itself and not its id, which the
    next loop may get again."""
    return os.getpid(), asyncio.get_running_loop()


def is_deserted(key: PoolKey) -> bool:
    """Returns whether the event loop of a pool is closed, so that it will never be used again."""
    process, loop = key
    return process == os.getpid() and loop.is_closed()


async def to_the_end(work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
    """Finishes the work even if the caller that waits for it is cancelled."""
    return await asyncio.shield(work(*arguments, **named))


Guard = asyncio.Task[None]


def guard(pool: str) -> Guard:
    """Starts a task that cancels the tasks of a pool until they end. A loop that ends cancels all tasks once. Tasks of
    a pool that are talking to the server at that moment treat this as one more error and wait for work again, and
    `asyncio.run` would never return."""
    return asyncio.create_task(insist(f"{pool}-"), name=f"guard of {pool}")


async def insist(names: str) -> None:
    """Waits until it is cancelled, and then cancels all tasks with this name prefix until none is left."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        while left := [task for task in asyncio.all_tasks() if task.get_name().startswith(names)]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.01)
        raise


class Watchdog:
    """Ends work that takes too long."""

    @contextmanager
    def watch(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Calls `end` when the block is not left within so many seconds."""
        timer = asyncio.get_running_loop().call_later(seconds, end)
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Does nothing: there is no thread to end."""


def repeat(work: Callable[[], Awaitable[None]], every: float) -> Guard:
    """Calls a method again and again, with a pause between the calls, until it is cancelled or its object is gone."""
    return asyncio.create_task(repeat_while_alive(WeakMethod(work), every))


async def repeat_while_alive(method: WeakMethod[Callable[[], Awaitable[None]]], every: float) -> None:
    """Calls the method until its object is gone."""
    while (work := method()) is not None:
        with suppress(Exception):  # after any error (such as no file descriptor left) the call is repeated
            await work()
        del work
        await asyncio.sleep(every)


async def race(
    attempts: Sequence[Callable[[], Awaitable[T]]], *, stagger: float, again: float, discard: Callable[[T], None]
) -> T:
    """Returns the first result of several attempts, and raises `AllFailed` when every attempt has failed and none is
    under way.

    An attempt begins when the one before it fails or has taken `stagger` seconds. A failed attempt begins again after
    `again` seconds, as long as another one is under way. Results that come too late are discarded.
    """
    starts = Starts(len(attempts), stagger, again)
    running: dict[asyncio.Future[T], int] = {}
    try:
        while True:
            for number in starts.due():
                running[asyncio.ensure_future(attempts[number]())] = number
            done, _ = await asyncio.wait(running, timeout=starts.rest(), return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                number = running.pop(one)
                error = one.exception()
                if error is None:
                    return one.result()
                starts.failed(number, error)
            starts.check(under_way=len(running))
    finally:
        for one in running:
            one.add_done_callback(lambda late: None if late.cancelled() or late.exception() else discard(late.result()))
            one.cancel()


async def batches(items: AsyncItems[T], size: int) -> AsyncIterator[list[T]]:
    """Yields the items in lists of `size`; the event loop gets a turn between two lists."""
    if isinstance(items, AsyncIterable):
        batch: list[T] = []
        async for item in items:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch
        return
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
        await asyncio.sleep(0)


async def each(items: AsyncItems[T], change: Callable[[int, T], R]) -> AsyncIterator[R]:
    """Yields every item changed by `change`, which also gets the item's number."""
    n = 0
    async for some in batches(items, 1000):
        for item in some:
            yield change(n, item)
            n += 1


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Runs sync work in a thread: init and the embedded server exist only in sync."""
    return await asyncio.to_thread(work, *arguments, **named)
