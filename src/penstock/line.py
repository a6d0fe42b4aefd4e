"""A connection that listens. When it has heard of something it is awake, and so are we: whatever is to be done about it
is quickest by the same one; and it may be prepared, since who hears has a session of his own."""

from __future__ import annotations

import os
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
        with socket.socket(fileno=os.dup(connection.fileno())) as end:
            yield Line(connection, end, may_speak=row == ("read committed",))


class Line:
    """For one thread; only `cut` is for others."""

    def __init__(self, connection: Connection, end: socket.socket, *, may_speak: bool) -> None:
        self._connection = connection
        self._end = end
        self.may_speak = may_speak  # what is said by it is a transaction by itself, which begins as the session's do

    def heard(self) -> set[str]:
        """The channels on which somebody notified since this was last asked; waits until there is one."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        while True:
            found = {notice.channel for notice in self._connection.notifies(timeout=0)}
            if found:
                return found
            poll.poll()

    def once(self, query: str, parameters: Sequence[Any]) -> list[TupleRow]:
        """One statement that is a transaction by itself; see `Database.once`."""
        with translated():
            return fetch_raw(self._connection, query, parameters)

    def cut(self) -> None:
        """From any thread: whoever waits for it learns that it is gone."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
