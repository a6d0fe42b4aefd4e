"""Renews what this process holds in PostgreSQL, such as a lease or a group, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RenewalThread:
    """Calls `renew` after so many seconds, and again after the seconds that each call returns, until it returns None or
    the thread is stopped."""

    def __init__(self, name: str, renew: Callable[[], float | None], seconds: float) -> None:
        self._renew = renew
        self._due = time.monotonic() + seconds
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still renews."""
        return self._thread.is_alive()

    def set_next(self, seconds: float) -> None:
        """Makes the next call due in so many seconds."""
        with self._changed:
            self._due = time.monotonic() + seconds
            self._changed.notify()

    def stop(self, patience: float | None = None) -> None:
        """Stops the thread, and waits for it; at most so many seconds, if they are given."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(patience)

    def _run(self) -> None:
        while self._wait():
            due = self._due
            seconds = self._renew()
            if seconds is None:
                return
            with self._changed:
                if self._due == due:  # set_next, called meanwhile, knows better
                    self._due = time.monotonic() + seconds

    def _wait(self) -> bool:
        """Waits until a call is due. Returns False when the thread is stopped."""
        with self._changed:
            while not self._over and (left := self._due - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._over
