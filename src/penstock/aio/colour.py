"""What asyncio does its own way. The same names for threads are in `penstock.colour`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import ParamSpec, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

Items = Iterable[T] | AsyncIterable[T]
Place = tuple[int, asyncio.AbstractEventLoop]
Lock = asyncio.Lock
sleep = asyncio.sleep


def here() -> Place:
    """A pool belongs to one process and one event loop: the loop itself, as the next one may well get its id."""
    return os.getpid(), asyncio.get_running_loop()


def deserted(place: Place) -> bool:
    """Its event loop is closed: nobody will ever be there again."""
    process, loop = place
    return process == os.getpid() and loop.is_closed()


async def to_the_end(work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
    """Goes on even if whoever waits for it is cancelled."""
    return await asyncio.shield(work(*arguments, **named))


Guard = asyncio.Task[None]


def guard(pool: str) -> Guard:
    """A loop that ends cancels what is left. Tasks of a pool that speak with the server at that moment take it for one
    more error, and wait for work again: `asyncio.run` would never return. They are told until they hear."""
    return asyncio.create_task(insist(f"{pool}-"), name=f"guard of {pool}")


async def insist(names: str) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        while left := [task for task in asyncio.all_tasks() if task.get_name().startswith(names)]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.01)
        raise


async def batches(items: Items[T], size: int) -> AsyncIterator[list[T]]:
    """Lists of so many; the loop gets a turn between them."""
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


async def each(items: Items[T], change: Callable[[int, T], R]) -> AsyncIterator[R]:
    """Items changed one by one, with their numbers."""
    n = 0
    async for some in batches(items, 1000):
        for item in some:
            yield change(n, item)
            n += 1


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """For what is only there in sync: init, the embedded server."""
    return await asyncio.to_thread(work, *arguments, **named)
