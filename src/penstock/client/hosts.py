# Made from src/penstock/client/hosts_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Connections to a database that several hosts may serve, of which one at a time is the primary."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Self
from weakref import WeakSet

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow

from penstock.client.concurrency import AllFailed, race
from penstock.client.conninfo import each_host, settings_for
from penstock.client.session import hang_up
from penstock.client.sqlstate import first_line, to_penstock_error
from penstock.errors import Unavailable

NEXT_HOST = 0.25  # seconds that a host may take to answer before the next one is tried beside it
TRY_AGAIN = 0.2  # seconds until a host that refused is tried again, while another one has not answered yet
WATCH_EVERY = 0.25  # seconds between two looks for statements that get no answer
SUSPICIOUS = 0.5  # seconds without an answer after which the watch asks whether another host is the primary
HEAD_START = 1.0  # seconds in which the host of such a statement may show that it lives


class HostConnection(psycopg.Connection[TupleRow]):
    """A connection that knows which host it leads to, and since when it is in use."""

    host_index = 0
    made_at = 0.0
    asked_at: float | None = None  # since when a caller has it; None means that it is idle in a pool

    @classmethod
    def connect(cls, *_: str, hosts: Hosts, **__: Any) -> Self:  # type: ignore[override]  # the pool calls it so
        """Connects to the primary among these hosts."""
        return hosts.connect()  # type: ignore[return-value]  # it has no subclass

    @classmethod
    def connect_to(cls, dsn: str) -> Self:
        """Connects to one host."""
        return super().connect(dsn, **settings_for(dsn))


class Hosts:
    """The hosts of one DSN, as one process (and in asyncio one event loop) sees them.

    With one host, or if the DSN does not ask for a primary, psycopg connects as usual. With several hosts, the last
    known primary is tried first; the others are tried beside it when it takes long. `watch` cuts connections to a host
    that no longer answers while another one is the primary: the kernel of a frozen host acknowledges everything, so no
    TCP time-out ends such a wait.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._dsns: list[str] = []
        self.primary = 0  # the index of the host that was last found to be the primary
        self.last_error: psycopg.Error | None = None  # why the last attempt to connect failed, or None
        self._connections: WeakSet[HostConnection] = WeakSet()
        self._lock = threading.Lock()  # it guards the set

    @property
    def several(self) -> bool:
        """Whether more than one host can be the primary."""
        if not self._dsns:
            self._dsns = each_host(spell_out_service(self._dsn))
        return len(self._dsns) > 1

    def connect(self) -> HostConnection:
        """Connects to the primary. Errors are psycopg's own."""
        try:
            connection = self._connect_to_primary()
        except psycopg.Error as error:
            self.last_error = error
            raise
        self.last_error = None
        return connection

    def _connect_to_primary(self) -> HostConnection:
        if not self.several:
            return self._connect_to(0)
        others = [n for n in range(len(self._dsns)) if n != self.primary]
        connection = self._race([self.primary, *others], NEXT_HOST)
        self.primary = connection.host_index
        return connection

    def _race(self, order: Sequence[int], stagger: float) -> HostConnection:
        attempts = [partial(self._connect_to, n) for n in order]
        try:
            return race(attempts, stagger=stagger, again=TRY_AGAIN, discard=drop)
        except AllFailed as failed:
            raise combine_errors(failed.errors) from failed.errors[-1]

    def _connect_to(self, index: int) -> HostConnection:
        connection = HostConnection.connect_to(self._dsns[index])
        connection.host_index = index
        connection.made_at = monotonic()
        with self._lock:
            self._connections.add(connection)
        return connection

    def watch(self) -> None:
        """Looks once for a statement that gets no answer. If its host does not accept connections either, and another
        host is the primary, all connections to the silent host are cut: callers that wait on them get an error and can
        go on."""
        silent = self._silent_host()
        if silent is None:
            return
        others = [n for n in range(len(self._dsns)) if n != silent]
        try:
            connection = self._race([silent, *others], HEAD_START)
        except psycopg.Error:
            return
        found = connection.host_index
        connection.close()
        if found != silent:
            self.follow(found)

    def follow(self, primary: int) -> None:
        """Uses the host that was found to be the primary, perhaps by another process with the same DSN, and cuts all
        connections to the others."""
        self.primary = primary
        for one in self._list_connections():
            if one.host_index != primary:
                hang_up(one)

    def _silent_host(self) -> int | None:
        since = monotonic() - SUSPICIOUS
        for one in self._list_connections():
            asked_at = one.asked_at
            waits = asked_at is not None and asked_at < since
            if waits and one.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                return one.host_index
        return None

    def _list_connections(self) -> list[HostConnection]:
        with self._lock:
            return [*self._connections]


def drop(connection: HostConnection) -> None:
    """Closes a connection that came too late to be used."""
    connection.pgconn.finish()


def combine_errors(errors: Sequence[Exception]) -> psycopg.Error:
    """Combines the errors of all hosts into one. It is a wrong password, or another permanent mistake, only if no host
    failed for a temporary reason: while one host is down, the mistake of another host is not reported as an error of
    the caller."""
    found = [error if isinstance(error, psycopg.Error) else psycopg.OperationalError(str(error)) for error in errors]
    passing = [error for error in found if isinstance(to_penstock_error(error), Unavailable)]
    return psycopg.OperationalError("; ".join(map(first_line, passing))) if passing else found[-1]


def spell_out_service(dsn: str) -> str:
    """Returns the DSN with the hosts of its service file in it. Only libpq reads that file, when a connection
    begins."""
    if "service" not in psycopg.conninfo.conninfo_to_dict(dsn):
        return dsn
    begun = pq.PGconn.connect_start(dsn.encode())
    try:
        found = {one.keyword.decode(): one.val.decode() for one in begun.info if one.val}
    except psycopg.Error:
        return dsn  # there is no such service, and connecting will report that
    finally:
        begun.finish()
    named = {name: found[name] for name in ("host", "hostaddr", "port") if name in found}
    return psycopg.conninfo.make_conninfo(dsn, **named)
