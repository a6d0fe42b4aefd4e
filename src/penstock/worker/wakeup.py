"""Listens for notifications of pushes, in a thread with its own connection.

They are only hints: the supervisor looks for work too.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Protocol

from penstock.client.database import Database
from penstock.client.listener import ECHO, Listener, open_listener
from penstock.errors import PenstockError

LOG = logging.getLogger("penstock.worker")
ECHO_EVERY = 30.0  # seconds between two notifications that it sends to itself
ECHO_PATIENCE = 5.0  # seconds in which such a notification must arrive


class ListenerOwner(Protocol):
    """The runner that a PushListener serves."""

    def notice_push(self, queue: str, listener: Listener) -> None:
        """Reports that a task was pushed. The thread of the PushListener calls it."""

    def report_listening(self, listening: bool) -> None:
        """Reports that notifications arrive here, or no longer arrive. The thread of the PushListener calls it."""


class PushListener:
    """A thread that listens on a channel, and checks with its own notifications that they arrive."""

    def __init__(
        self, database: Database, owner: ListenerOwner, *, every: float = ECHO_EVERY, patience: float = ECHO_PATIENCE
    ) -> None:
        self._database = database
        self._owner = owner
        self._every = every
        self._patience = patience
        self._notified = False
        self._channel: str | None = None
        self._wanted = threading.Event()  # set while there is a channel
        self._listener: Listener | None = None
        self._lives = False
        self._over = threading.Event()

    def listen(self, channel: str | None) -> None:
        """Listens on this channel from now on. None stops listening and closes the connection."""
        self._channel = channel
        if channel is None:
            self._wanted.clear()
            listener = self._listener
            if listener is not None:
                listener.interrupt()
            return
        self._wanted.set()
        if not self._lives:
            self._lives = True
            threading.Thread(target=self._live, name="penstock-push-listener", daemon=True).start()

    def close(self) -> None:
        """Ends the thread."""
        self._over.set()
        self.listen(None)
        self._wanted.set()

    def _live(self) -> None:
        while True:
            self._wanted.wait()
            if self._over.is_set():
                return
            try:
                self._receive()
            except PenstockError:
                pass  # claims have the same problem, and report it
            except Exception as error:  # noqa: BLE001 - it retries after any error (no file descriptor left)
                LOG.warning("not listening", extra={"error_class": type(error).__name__})
            self._listener = None
            self._tell(False)
            self._over.wait(random.uniform(0.05, 1.0))  # noqa: S311 - a server that comes back must not be flooded

    def _receive(self) -> None:
        """Listens until a notification of its own does not arrive, and then returns: a new connection may work better.

        Behind a pooler in transaction mode no notification ever arrives, and behind a proxy that hangs none arrives any
        more. Pushes wake only workers that receive notifications. So the first notification is sent by this process,
        over another connection, and more follow.
        """
        channel = self._channel
        if channel is None:
            return
        with open_listener(self._database, [channel]) as listener:
            self._listener = listener
            while channel == self._channel and self._echoes(channel, listener):
                pass

    def _echoes(self, channel: str, listener: Listener) -> bool:
        """Sends one notification and listens for pushes until the next is due.

        Returns whether any notification arrived.
        """
        self._database.once(ECHO, (channel,))
        sent_at, arrived = time.monotonic(), False
        while channel == self._channel:
            # If no notification has ever arrived, as behind a pooler, there is no hurry to try another connection.
            until = sent_at + (self._patience if self._notified and not arrived else self._every)
            found = listener.wait(max(0.0, until - time.monotonic()))
            if not found and time.monotonic() >= until:
                return arrived
            arrived = arrived or bool(found)
            if "" in found:
                self._tell(True)
            for queue in found - {""}:
                self._owner.notice_push(queue, listener)
        return True

    def _tell(self, notified: bool) -> None:
        if notified != self._notified:
            self._notified = notified
            self._owner.report_listening(notified)
