"""This module has the primitives that differ with threads. `concurrency_async` has the same names for asyncio."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

Items = Iterable[T]
"""The items of a bulk push."""
PoolKey = int
Lock = threading.Lock
sleep = time.sleep


def pool_key() -> PoolKey:
    """Returns the process that a pool belongs to: a fork must not use its parent's connections."""
    return os.getpid()


def is_deserted(key: PoolKey) -> bool:  # noqa: ARG001 - another process may still use any pool
    """Returns False: a pool is never known to be unused."""
    return False


def to_the_end(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Finishes the work: threads are never cancelled."""
    return work(*arguments, **named)


class Guard:
    """A handle that ends repeated work when it is cancelled. Threads of a pool need no guard: they end when they are
    told to."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        """Ends the repeated work."""
        self.cancelled.set()


def guard(_pool: str) -> Guard:
    """Returns a guard that does nothing."""
    return Guard()


class Watchdog:
    """Ends work that takes too long. Its one thread starts when it is first needed, and rests while nothing is
    watched."""

    PERIOD = 0.25  # seconds between two looks

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._watched: dict[int, tuple[float, Callable[[], None]]] = {}
        self._needed = threading.Event()
        self._started = False
        self._closing = False

    @contextmanager
    def watch(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Calls `end`, from another thread, when the block is not left within so many seconds."""
        number = next(self._numbers)
        self._watched[number] = (time.monotonic() + seconds, end)
        self._needed.set()
        if not self._started:
            self._start()
        try:
            yield
        finally:
            with self._lock:  # `end` is not called once the block is left
                del self._watched[number]

    def close(self) -> None:
        """Ends the thread, unless something is watched. Work that is watched later starts another thread."""
        self._closing = True
        self._needed.set()

    def _start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._look, name="penstock-watchdog", daemon=True).start()

    def _look(self) -> None:
        while True:
            self._needed.wait()
            self._needed.clear()
            while self._watched:
                now = time.monotonic()
                with self._lock:
                    for deadline, end in [*self._watched.values()]:
                        if deadline < now:
                            end()
                time.sleep(self.PERIOD)
            if self._closing and self._ends():
                return

    def _ends(self) -> bool:
        """Returns whether the thread ends. It clears `_started` before it looks at `_watched`; `watch` does the two in
        the opposite order, so one of them always notices the other."""
        with self._lock:
            self._started = False
            if self._watched:
                self._started = True
            self._closing = self._started
            return not self._started


def repeat(work: Callable[[], None], every: float) -> Guard:
    """Calls a method again and again in a thread, with a pause between the calls, until it is cancelled or its object
    is gone."""
    found = Guard()
    threading.Thread(target=repeat_while_alive, args=(WeakMethod(work), every, found), daemon=True).start()
    return found


def repeat_while_alive(method: WeakMethod[Callable[[], None]], every: float, until: Guard) -> None:
    """Calls the method until it is cancelled or its object is gone."""
    while (work := method()) is not None and not until.cancelled.is_set():
        with suppress(Exception):  # after any error (such as no file descriptor left) the call is repeated
            work()
        del work
        until.cancelled.wait(every)


class AllFailed(Exception):
    """Every attempt of a race has failed."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(f"all {len(errors)} attempts failed")
        self.errors = errors


class Starts:
    """Keeps when the attempts of a race begin, and the errors of those that failed."""

    def __init__(self, count: int, stagger: float, again: float) -> None:
        began = time.monotonic()
        self._again = again
        self._at = {number: began + number * stagger for number in range(count)}  # the ones not under way
        self._errors: dict[int, Exception] = {}
        self._count = count

    def due(self) -> list[int]:
        """Returns the attempts that begin now."""
        now = time.monotonic()
        found = [number for number, at in self._at.items() if at <= now]
        for number in found:
            del self._at[number]
        return found

    def rest(self) -> float | None:
        """Returns the seconds until the next attempt begins, or None if all are under way."""
        return max(0.0, min(self._at.values()) - time.monotonic()) if self._at else None

    def failed(self, number: int, error: BaseException) -> None:
        """Notes a failed attempt. The next attempt that has not begun yet may begin at once."""
        if not isinstance(error, Exception):
            raise error
        now = time.monotonic()
        untried = [one for one in self._at if one not in self._errors]
        if untried:
            self._at[min(untried)] = now
        self._errors[number] = error
        self._at[number] = now + self._again

    def check(self, *, under_way: int) -> None:
        """Raises AllFailed when every attempt has failed and none is under way."""
        if not under_way and len(self._errors) == self._count:
            raise AllFailed([self._errors[number] for number in range(self._count)])


def race(attempts: Sequence[Callable[[], T]], *, stagger: float, again: float, discard: Callable[[T], None]) -> T:
    """Returns the first result of several attempts, and raises `AllFailed` when every attempt has failed and none is
    under way.

    An attempt begins when the one before it fails or has taken `stagger` seconds. A failed attempt begins again after
    `again` seconds, as long as another one is under way. Results that come too late are discarded.
    """
    starts = Starts(len(attempts), stagger, again)
    answers: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()
    lock, over = threading.Lock(), False

    def attempt(number: int) -> None:
        try:
            result = attempts[number]()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            answers.put((number, None, error))
            return
        with lock:
            if not over:
                answers.put((number, result, None))
                return
        discard(result)

    under_way = 0
    try:
        while True:
            for number in starts.due():
                threading.Thread(target=attempt, args=(number,), daemon=True).start()
                under_way += 1
            try:
                number, result, error = answers.get(timeout=starts.rest())
            except Empty:
                continue
            under_way -= 1
            if error is None:
                return result  # type: ignore[return-value]  # without an error there is a result
            starts.failed(number, error)
            starts.check(under_way=under_way)
    finally:
        with lock:
            over = True
        while not answers.empty():
            _, late, _ = answers.get()
            if late is not None:
                discard(late)


def batches(items: Items[T], size: int) -> Iterator[list[T]]:
    """Yields the items in lists of `size`."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def each(items: Items[T], change: Callable[[int, T], R]) -> Iterator[R]:
    """Yields every item changed by `change`, which also gets the item's number."""
    return (change(n, item) for n, item in enumerate(items))


def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Runs the work in the calling thread."""
    return work(*arguments, **named)
