"""Hears of pushes, in a thread with a line of its own. A hint, never a duty: runners look by themselves too."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Protocol

from penstock.database import Database
from penstock.errors import PenstockError
from penstock.line import Line, listening

LOG = logging.getLogger("penstock.worker")


class Owner(Protocol):
    def heard(self, queue: str, line: Line) -> None:
        """In the ear's thread: something was pushed."""


class Ear:
    def __init__(self, database: Database, owner: Owner) -> None:
        self._database = database
        self._owner = owner
        self._queues: dict[str, str] = {}  # by channel
        self._line: Line | None = None
        self._lives = False

    def listen(self, queues: dict[str, str]) -> None:
        """On these channels from now on."""
        if queues == self._queues:
            return
        self._queues = queues
        line = self._line
        if line is not None:
            line.ring()
        if not self._lives:
            self._lives = True
            threading.Thread(target=self._live, name="penstock-ear", daemon=True).start()

    def _live(self) -> None:
        while True:
            try:
                self._hear(self._queues)
            except PenstockError:
                pass  # who claims has the same trouble, and says so
            except Exception as error:  # noqa: BLE001 - whatever it is (no file descriptor left), it tries again
                LOG.warning("not listening", extra={"error_class": type(error).__name__})
            self._line = None
            time.sleep(random.uniform(0.05, 1.0))  # noqa: S311 - a server that was away must not be stormed

    def _hear(self, queues: dict[str, str]) -> None:
        with listening(self._database, queues) as line:
            self._line = line
            while queues is self._queues:
                for channel in line.heard():
                    self._owner.heard(queues[channel], line)
