# Made from src/penstock/app_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Penstock is the entry point of the library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock import backlog, migrate
from penstock.app_admin import AdminMethods
from penstock.app_tasks import TaskMethods
from penstock.backlog import Backlog
from penstock.client import progress, queues, tasks
from penstock.client.concurrency import in_thread
from penstock.client.database import Database
from penstock.client.queue import Queue
from penstock.client.statements.tasks import MAX_TASKS
from penstock.dsn import find_dsn
from penstock.handlers import Registry
from penstock.model import (
    Attempt,
    Duration,
    QueueSettings,
    TaskDetails,
    TaskProgress,
)
from penstock.retry import Strategy


class Penstock(TaskMethods, AdminMethods):
    """A database with queues in it. It is thread-safe and fork-safe, and connects when it is first used.

    The DSN comes from the argument, PENSTOCK_DSN, DATABASE_URL, libpq's PG* variables, or the running embedded server
    of this directory. Only `dsn="embedded"` starts a new server.

    With `rehearse=True` every verb does its work, returns its answer, and is rolled back. With `tracebacks=False` only
    the class and the message of a handler's error are stored.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        max_connections: int = 8,
        timeout: float = 10.0,
        rehearse: bool = False,
        tracebacks: bool = True,
    ) -> None:
        found, source = find_dsn(dsn, os.environ)
        self._database = Database(
            found, source=source, max_connections=max_connections, timeout=timeout, rehearse=rehearse
        )
        self._queues: dict[str, Queue] = {}
        self.registry = Registry()
        self._tracebacks = tracebacks

    def __repr__(self) -> str:
        return f"<Penstock {self._database!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._database.close()

    def init(self, *, roles: bool = True) -> list[str]:
        """Brings the schema up to date and returns the names of the applied steps. `roles=False` creates no roles, for
        database users without that right."""
        return in_thread(migrate.init, self.dsn, self.dsn_source, roles=roles)

    def plan(self, *, roles: bool = True) -> list[str]:
        """Returns the names of the steps that `init` would apply."""
        return in_thread(migrate.plan, self.dsn, self.dsn_source, roles=roles)

    def create_queue(
        self,
        name: str,
        *,
        lease: Duration = "30s",
        max_attempts: int | None = 20,
        retry: Strategy | str = "exponential:5s,factor=2,cap=1h,jitter=0.1",
        sla: Duration | None = None,
        keep_done: Duration | None = None,
        keep_dead: Duration | None = None,
        keep_cancelled: Duration | None = None,
        priority_step: Duration | None = None,
        max_payload: int = 1 << 20,
        max_crashes: int = 20,
        exist_ok: bool = False,
    ) -> Queue:
        """Creates a queue and returns it. With `exist_ok=True` an existing queue is left as it is.

        A task of a smaller priority runs first, however long others wait. With a `priority_step`, tasks run in the
        order of due + priority × step instead, so that each is overtaken only for a bounded time."""
        queues.create(
            self._database,
            name,
            exist_ok=exist_ok,
            lease=lease,
            max_attempts=max_attempts,
            retry=retry,
            sla=sla,
            keep_done=keep_done,
            keep_dead=keep_dead,
            keep_cancelled=keep_cancelled,
            priority_step=priority_step,
            max_payload=max_payload,
            max_crashes=max_crashes,
        )
        return self.queue(name)

    # --- adopted tables ---------------------------------------------------------------------------------------------

    def adopt(
        self,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        status: str = "status",
        inserted: str = "date_inserted",
        ready: Sequence[str | int | None] | str | int = ("NEW",),
        retry: Sequence[str | int] | str | int = (),
        done: str | int = "SUCCESS",
        failed: str | int | None = None,
        dead: str | int | None = None,
        strategy: Strategy | str = "progressive",
        failures: str | None = None,
        last_failure: str | None = None,
        max_attempts: int | None = None,
        mode: str | None = None,
        sla: Duration | None = None,
        name: str | None = None,
        tz: str | None = None,
        count_key: bool = False,
    ) -> Backlog:
        """Adopts an existing table, to drain it where it is. The arguments say which column is which, what its statuses
        mean, and when failed records are tried again. They are stored in one row of Penstock's own; the table itself is
        not changed.

        If `failures` and `last_failure` name columns of the table, failures are counted there. Without them, failures
        are counted beside the table, or not at all if the strategy is Progressive. `mode="observe"` only reads the
        table.

        Moments without a time zone are read in `tz`. The default is the zone of the session at the first call; later
        calls without `tz` keep the stored zone. If all moments have a zone, `tz` is not used, and a warning says so.

        `inserted` is a column of type timestamptz, timestamp or date, or an index of the table whose first key is an
        expression of such a type.

        With `ready=[None]`, records without a status (NULL) are ready.

        `key` names columns with a unique index; the default is the primary key. With `count_key=True` a count of all
        records may prove uniqueness instead.
        """
        self._database.refuse_rehearsal("adopt")
        return in_thread(
            backlog.adopt,
            self.dsn,
            self.dsn_source,
            table,
            key=key,
            status=status,
            inserted=inserted,
            ready=ready,
            retry=retry,
            done=done,
            failed=failed,
            dead=dead,
            strategy=strategy,
            failures=failures,
            last_failure=last_failure,
            max_attempts=max_attempts,
            mode=mode,
            sla=sla,
            name=name,
            tz=tz,
            count_key=count_key,
            tracebacks=self._tracebacks,
        )

    def backlog(self, name: str) -> Backlog:
        """Returns a table that was adopted before, by its name."""
        return in_thread(backlog.load, self.dsn, self.dsn_source, name, tracebacks=self._tracebacks)

    def backlogs(self) -> list[Backlog]:
        """Returns all adopted tables."""
        return in_thread(backlog.every, self.dsn, self.dsn_source, tracebacks=self._tracebacks)

    # --- all queues -------------------------------------------------------------------------------------------------

    def find_task(self, id: int) -> TaskDetails:  # noqa: A002 - the parameter has this name everywhere
        """Returns one task of any queue, with everything that is known of it: its state, or, if it is done and removed,
        when it ended. A removed task is found as long as history is kept (30 days by default)."""
        return queues.find_task(self._database, id)

    def attempts(self, id: int, *, limit: int = MAX_TASKS) -> list[Attempt]:  # noqa: A002 - the parameter has this name everywhere
        """Returns the attempts of one task of any queue, as `Queue.attempts` does, also of a task that is removed."""
        return tasks.list_attempts(self._database, id, limit=limit)

    def progress(self, id: int) -> TaskProgress | None:  # noqa: A002 - the parameter has this name everywhere
        """Returns what the handler of a task of any queue said, as `Queue.progress` does."""
        return progress.find_progress(self._database, id)

    def queues(self) -> list[QueueSettings]:
        """Returns the settings of all queues."""
        return queues.settings(self._database)
