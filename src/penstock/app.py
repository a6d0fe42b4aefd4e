"""Penstock: the way in. Environment and files are read here (and in the shell), nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from penstock import embedded, migrate, queue
from penstock.database import Database
from penstock.errors import ConfigError
from penstock.model import Duration, QueueSettings, QueueStatus, Verification
from penstock.queue import Queue
from penstock.retry import Strategy
from penstock.validate import queue_name

LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


class Penstock:
    """A database with queues in it. Thread-safe and fork-safe; connects when first used.

    The DSN comes from the argument, PENSTOCK_DSN, DATABASE_URL, libpq's PG* variables, or the running embedded server
    of this directory. A new server is started only by `dsn="embedded"`.
    """

    def __init__(self, dsn: str | None = None, *, max_connections: int = 8, timeout: float = 10.0) -> None:
        found, source = find_dsn(dsn, os.environ)
        self._database = Database(found, source=source, max_connections=max_connections, timeout=timeout)
        self._queues: dict[str, Queue] = {}

    def __repr__(self) -> str:
        return f"<Penstock {self._database!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def dsn(self) -> str:
        return self._database.dsn

    @property
    def dsn_source(self) -> str:
        return self._database.source

    def close(self) -> None:
        self._database.close()

    def init(self) -> list[str]:
        """Brings the schema up to date; answers the names of what was applied."""
        return [step.name for step in migrate.init(self._database)]

    def plan(self) -> list[str]:
        """What `init` would apply."""
        return [step.name for step in migrate.plan(self._database)]

    def create_queue(
        self,
        name: str,
        *,
        lease: Duration = "30s",
        max_attempts: int | None = 20,
        retry: Strategy | str | None = None,
        sla: Duration | None = None,
        keep_done: Duration | None = None,
        exist_ok: bool = False,
    ) -> Queue:
        queue.create(
            self._database,
            name,
            lease=lease,
            max_attempts=max_attempts,
            retry=retry,
            sla=sla,
            keep_done=keep_done,
            exist_ok=exist_ok,
        )
        return self.queue(name)

    def queue(self, name: str) -> Queue:
        """A queue by name. It is looked up when used."""
        known = self._queues.get(queue_name(name))
        if known is None:
            known = self._queues.setdefault(name, Queue(self._database, name))
        return known

    def queues(self) -> list[QueueSettings]:
        return queue.settings(self._database)

    def status(self) -> list[QueueStatus]:
        """All queues in one snapshot."""
        return queue.status(self._database)

    def verify(self) -> Verification:
        """Recounts everything and compares it with the books."""
        return queue.verify(self._database)

    def upkeep(self) -> dict[str, int]:
        """What anybody may do at any time: expire, promote, squeeze, sample, history partitions, retention."""
        return queue.upkeep(self._database)


def find_dsn(given: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """The DSN and where it came from."""
    if given == "embedded":
        server = embedded.Server.start(embedded.home(environ), environ=environ)
        return server.dsn, "the embedded server"
    if given:
        return given, "the dsn given"
    for name in ("PENSTOCK_DSN", "DATABASE_URL"):
        if environ.get(name):
            return find_dsn(environ[name], environ)[0], name
    named = [name for name in LIBPQ if environ.get(name)]
    if named:
        return "", f"libpq's {', '.join(named)}"
    running = embedded.Server.running(embedded.home(environ))
    if running is not None:
        return running.dsn, f"the embedded server in {running.home}"
    raise ConfigError(
        "no database is named, and no embedded server runs in this directory",
        hint="Give --dsn, set PENSTOCK_DSN, DATABASE_URL or PGHOST, or start a server with `penstock up`.",
    )
