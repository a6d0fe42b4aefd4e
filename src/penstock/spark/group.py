"""Holds a consumer group in this process. The group has an epoch, which is locked while the process lives; a thread
renews the group and its leases. A process that takes the group over has a new epoch, and this one is refused from then
on."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from secrets import token_urlsafe

from penstock.client.connections import Connection
from penstock.client.database import Database, retry_unavailable
from penstock.client.sqlstate import translate_errors
from penstock.client.statements import streams
from penstock.client.streams import hold_stream, keep_stream, leave_stream, next_epoch
from penstock.errors import PenstockError, Unavailable
from penstock.model import GroupHold
from penstock.spark.renewal import RenewalThread
from penstock.worker.leases import is_frozen

MAX_EPOCHS = 100  # that a driver tries
LONGEST_PAUSE = 20.0  # seconds between two renewals, for any lease: `doctor` reports idle transactions


class Group:
    """A consumer group. It is held from its creation until `leave`, or until another process takes it over."""

    def __init__(self, database: Database, queue: str, name: str, lease: timedelta) -> None:
        self._database = database
        self._lease = lease
        self._lost: PenstockError | None = None
        self._epoch, self._keeper = self._locked_epoch()
        driver = f"{socket.gethostname()}:{token_urlsafe(8)}:{os.getpid()}"
        try:
            self._held = retry_unavailable(
                lambda: hold_stream(database, queue, name, epoch=self._epoch, driver=driver, lease=lease)
            )
        except BaseException:
            self._keeper.close()
            raise
        self._pause = min(lease.total_seconds() / 3, LONGEST_PAUSE)
        self._renewal = RenewalThread("penstock-group", self._renew, self._pause)
        self._renewal.start()

    @property
    def held(self) -> GroupHold:
        """The hold of the group, for every call. Raises an error if another process has taken the group over."""
        if self._lost is not None:
            raise self._lost
        return self._held

    def leave(self) -> None:
        """Gives the group up."""
        self._renewal.stop(5)
        with suppress(PenstockError):  # the lock ends with the process in any case
            leave_stream(self._database, self._held)
        self._keeper.close()

    def _locked_epoch(self) -> tuple[int, Connection]:
        """Returns a new epoch, and the connection that holds its lock. An epoch whose lock another session holds is
        skipped."""
        for _ in range(MAX_EPOCHS):
            epoch = retry_unavailable(lambda: next_epoch(self._database))
            keeper = self._lock_epoch(epoch)
            if keeper is not None:
                return epoch, keeper
        raise Unavailable(
            f"other sessions hold the advisory locks ({streams.STREAM}, …) of the next {MAX_EPOCHS} drivers",
            hint="pg_locks says which; end them with pg_terminate_backend.",
            reason="retry",
        )

    def _lock_epoch(self, epoch: int) -> Connection | None:
        """Opens a transaction that holds the lock, so that the lock works behind a pooler too. The transaction holds
        nothing else: no snapshot, no transaction id. None: another session has the lock."""
        keeper = self._database.connect()
        try:
            with translate_errors():
                keeper.execute("begin isolation level read committed")
                keeper.execute("set local idle_in_transaction_session_timeout = 0")
                row = keeper.execute(streams.LOCK_EPOCH, (streams.STREAM, epoch)).fetchone()
        except BaseException:
            keeper.close()
            raise
        if row == (True,):
            return keeper
        keeper.close()
        return None

    def _renew(self) -> float | None:
        """Renews the group and its leases. Returns the seconds until the next time, or None if the group is lost."""
        if any(map(is_frozen, find_jvms())):
            return self._pause  # a frozen driver must lose the group
        try:
            self._stay_locked()
            keep_stream(self._database, self._held, lease=self._lease)
        except Unavailable:
            return self._pause
        except PenstockError as error:
            self._lost = error
            return None
        return self._pause

    def _stay_locked(self) -> None:
        """Locks the epoch again after a restart of PostgreSQL. If another session takes the lock first, only the time
        that `keep_stream` writes holds the group, until the next attempt."""
        try:
            with translate_errors():
                self._keeper.execute("select")
        except PenstockError:
            self._keeper.close()
            self._keeper = self._lock_epoch(self._epoch) or self._keeper


def find_jvms() -> list[int]:
    """Returns the process ids of the JVM that started this process and of its parent: the driver program, if that is
    Python."""
    parent = os.getppid()
    try:
        status = Path(f"/proc/{parent}/stat").read_text("ascii", "replace")
    except OSError:
        return [parent]
    return [parent, int(status.rpartition(")")[2].split()[1])]
