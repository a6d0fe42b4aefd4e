"""A LISTEN connection that can also run statements. The connection and its thread are awake when a notification
arrives, so running the resulting statement on the same connection is fastest. Its statements can be prepared, because a
listener has a session of its own."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from psycopg import sql
from psycopg.rows import TupleRow

from penstock.client.connections import fetch_raw
from penstock.client.database import Database
from penstock.client.hosts import HostConnection
from penstock.client.session import PROBE, Session
from penstock.client.sqlstate import translate_errors

ECHO = "select pg_catalog.pg_notify(%s, '')"


@contextmanager
def open_listener(database: Database, channels: Iterable[str]) -> Iterator[Listener]:
    """Opens a connection that listens on channels. Behind a pooler in transaction mode it never receives a
    notification."""
    with database.session() as connection:
        with database.answering(connection), translate_errors():
            row = connection.execute(PROBE).fetchone()
            assert row is not None
            for channel in channels:
                connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        connection.prepare_threshold = 0
        wake_reader, wake_writer = socket.socketpair()
        with wake_reader, wake_writer:
            yield Listener(database, connection, wake_reader, wake_writer, can_claim=Session(*row).plain)


class Listener:
    """A connection that listens, for one thread; only `interrupt` may be called from others."""

    def __init__(
        self,
        database: Database,
        connection: HostConnection,
        wake_reader: socket.socket,
        wake_writer: socket.socket,
        *,
        can_claim: bool,
    ) -> None:
        self._database = database
        self._connection = connection
        self._wake_reader = wake_reader
        self._wake_writer = wake_writer
        self.can_claim = can_claim  # whether a statement alone is a transaction with the settings that we need
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(wake_reader, select.POLLIN)

    def wait(self, seconds: float) -> set[str]:
        """Returns the payloads of the notifications since the last call. It waits for one for at most so many seconds,
        or until `interrupt` is called."""
        until = monotonic() + seconds
        while True:
            found = {notice.payload for notice in self._connection.notifies(timeout=0)}
            if found:
                return found
            ready = self._poll.poll(1000 * max(0.0, until - monotonic()))
            if any(end == self._wake_reader.fileno() for end, _ in ready):
                self._wake_reader.recv(64)
                return set()
            if not ready:
                return set()

    def once(self, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
        """Runs one statement that is a transaction by itself; see `Database.once`."""
        self._connection.asked_at = monotonic()
        with self._database.answering(self._connection), translate_errors():
            return fetch_raw(self._connection, query, parameters)

    def interrupt(self) -> None:
        """Wakes the thread that waits in `wait`; any thread may call this."""
        with suppress(OSError):  # the socket is closed
            self._wake_writer.send(b"!")
