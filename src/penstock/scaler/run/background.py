"""Calls in a background thread, for answers that may never come."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import Unavailable

ANSWER_TIMEOUT = 3.0  # seconds without an answer after which PostgreSQL counts as away
DEADLINE = 10.0  # seconds without an answer after which a connection is closed, so that its call ends
T = TypeVar("T")


class BackgroundCall:
    """A thread that makes one call at a time, so that the caller can stop waiting for it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._pending: queue.SimpleQueue[Any] | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            call, answers = self._calls.get()
            try:
                answers.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread of the caller
                answers.put((None, error))

    @property
    def busy(self) -> bool:
        """Whether a call has not ended yet."""
        return self._pending is not None and self._pending.empty()

    def begin(self, call: Callable[[], Any]) -> None:
        """Begins a call and does not wait for it. While another call runs, this one is dropped."""
        if not self.busy:
            self._pending = queue.SimpleQueue()
            self._calls.put((call, self._pending))

    def take_error(self) -> BaseException | None:
        """Returns the error of the last call, once, if it has ended with one."""
        if self._pending is None or self._pending.empty():
            return None
        _, error = self._pending.get()
        self._pending = None
        return error if isinstance(error, BaseException) else None

    def call(self, call: Callable[[], T], timeout: float) -> T:
        """Makes a call and waits for its answer. Raises Unavailable if it, or the call before it, does not end in
        time.

        If the call before it ended too late, and only because PostgreSQL could not be reached, it raises that error.
        """
        if self.busy:
            raise make_silence_error(timeout)
        late = self.take_error()
        if isinstance(late, Unavailable):
            raise late
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending = answers
        self._calls.put((call, answers))
        try:
            value, error = answers.get(timeout=timeout)
        except queue.Empty:
            raise make_silence_error(timeout) from None
        self._pending = None
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]


def make_silence_error(seconds: float) -> Unavailable:
    return Unavailable(f"PostgreSQL has not answered for {seconds:g} s", reason="silent")
