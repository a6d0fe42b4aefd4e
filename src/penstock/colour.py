"""What threads do their own way. The same names for asyncio are in `penstock.aio.colour`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import ParamSpec, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

Items = Iterable[T]
Place = int
Lock = threading.Lock
sleep = time.sleep


def here() -> Place:
    """A pool belongs to one process: a fork must not use its parent's connections."""
    return os.getpid()


def deserted(place: Place) -> bool:  # noqa: ARG001 - another process may still be in any of them
    return False


def to_the_end(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Nobody cancels a thread."""
    return work(*arguments, **named)


class Guard:
    """Threads of a pool end when they are told."""

    def cancel(self) -> None: ...


def guard(_pool: str) -> Guard:
    return Guard()


def batches(items: Items[T], size: int) -> Iterator[list[T]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def each(items: Items[T], change: Callable[[int, T], R]) -> Iterator[R]:
    return (change(n, item) for n, item in enumerate(items))


def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    return work(*arguments, **named)
