"""A consumer group in this process's hands: an epoch of its own, locked while the process lives, and a thread that says
so and keeps its leases. Whoever takes the group over has another epoch, and this one is refused from then on."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from penstock import statements as say
from penstock.database import Connection, Database
from penstock.errors import PenstockError, Unavailable
from penstock.model import Held
from penstock.queue import hold_stream, keep_stream, leave_stream, next_epoch, persistently
from penstock.wire import translated
from penstock.worker.keepalive import frozen

LONGEST_PAUSE = 20.0  # seconds between two signs of life, however long the lease: `doctor` looks for idle transactions


class Group:
    """Held from its making until `leave`, or until somebody else has it."""

    def __init__(self, database: Database, queue: str, name: str, lease: timedelta) -> None:
        self._database = database
        self._lease = lease
        self._lost: PenstockError | None = None
        self._leaving = threading.Event()
        self._epoch = persistently(lambda: next_epoch(database))
        self._keeper = self._locked()
        driver = f"{socket.gethostname()}:{os.getpid()}"
        try:
            self._held = persistently(
                lambda: hold_stream(database, queue, name, epoch=self._epoch, driver=driver, lease=lease)
            )
        except BaseException:
            self._keeper.close()
            raise
        self._beats = threading.Thread(target=self._beat, name="penstock-group", daemon=True)
        self._beats.start()

    @property
    def held(self) -> Held:
        """What every call needs; raises, if the group is somebody else's."""
        if self._lost is not None:
            raise self._lost
        return self._held

    def leave(self) -> None:
        self._leaving.set()
        self._beats.join(5)
        with suppress(PenstockError):  # the lock goes with the process in any case
            leave_stream(self._database, self._held)
        self._keeper.close()

    def _locked(self) -> Connection:
        """A transaction that stays open holds the lock, so that it is ours behind a pooler too. It holds nothing else:
        no snapshot, no transaction id."""
        keeper = self._database.connect()
        try:
            with translated():
                keeper.execute("begin isolation level read committed")
                keeper.execute("set local idle_in_transaction_session_timeout = 0")
                keeper.execute(say.LOCK_EPOCH, (say.STREAM, self._epoch))
        except BaseException:
            keeper.close()
            raise
        return keeper

    def _beat(self) -> None:
        while not self._leaving.wait(min(self._lease.total_seconds() / 3, LONGEST_PAUSE)):
            if any(map(frozen, elders())):
                continue  # who hangs shall not be kept alive by us
            try:
                self._stay_locked()
                keep_stream(self._database, self._held, lease=self._lease)
            except Unavailable:
                continue
            except PenstockError as error:
                self._lost = error
                return

    def _stay_locked(self) -> None:
        """After a restart of PostgreSQL the lock is free, and still ours to take: our epoch is nobody else's."""
        try:
            with translated():
                self._keeper.execute("select")
        except PenstockError:
            self._keeper.close()
            self._keeper = self._locked()


def elders() -> list[int]:
    """The JVM that started this process, and what started that: the driver's own program, from Python."""
    parent = os.getppid()
    try:
        status = Path(f"/proc/{parent}/stat").read_text("ascii", "replace")
    except OSError:
        return [parent]
    return [parent, int(status.rpartition(")")[2].split()[1])]
