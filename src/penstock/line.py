"""A connection that listens. When it has heard of something it is awake, and so are we: whatever is to be done about it
is quickest by the same one; and it may be prepared, since who hears has a session of his own."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from psycopg import sql
from psycopg.rows import TupleRow

from penstock.database import Connection, Database, fetch_raw
from penstock.wire import translated


@contextmanager
def listening(database: Database, channels: Iterable[str]) -> Iterator[Line]:
    """Behind a pooler by transactions nothing is ever heard."""
    with database.session() as connection:
        row = connection.execute("show default_transaction_isolation").fetchone()
        for channel in channels:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        connection.prepare_threshold = 0
        bell, rope = socket.socketpair()
        with bell, rope:
            yield Line(connection, bell, rope, may_speak=row == ("read committed",))


class Line:
    """For one thread; only `ring` is for others."""

    def __init__(self, connection: Connection, bell: socket.socket, rope: socket.socket, *, may_speak: bool) -> None:
        self._connection = connection
        self._bell = bell
        self._rope = rope
        self.may_speak = may_speak  # what is said by it is a transaction by itself, which begins as the session's do
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(bell, select.POLLIN)

    def heard(self) -> set[str]:
        """The channels on which somebody notified since this was last asked. Waits until there is one, or somebody
        rings."""
        while True:
            found = {notice.channel for notice in self._connection.notifies(timeout=0)}
            if found:
                return found
            if any(end == self._bell.fileno() for end, _ in self._poll.poll()):
                return set()

    def once(self, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
        """One statement that is a transaction by itself; see `Database.once`."""
        with translated():
            return fetch_raw(self._connection, query, parameters)

    def ring(self) -> None:
        """From any thread: there is something else to do."""
        with suppress(OSError):  # it is closed
            self._rope.send(b"!")
