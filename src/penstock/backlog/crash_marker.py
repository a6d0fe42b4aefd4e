"""Markers of passes, which tell whether a pass ended. If a pass did not end, perhaps because a record killed its
process, its marker remains. The next pass then handles the first records one by one and notes each before it is
handled. If that pass does not end either, the record is known: it has failed, as if its handler had raised, and the
others go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psycopg

from penstock.backlog.claim import Key
from penstock.client.connections import Connection
from penstock.errors import Unavailable

LOCK_CLASS = 0x50454E48  # "PENH": the class of the advisory locks of passes
MAX_NUMBERS = 1000  # that a pass tries
CAREFUL_RECORDS = 1000  # handled one by one after a pass that did not end: its records are among the first


class EndedItsProcess(Exception):
    """The handler of a record ended its process."""


@dataclass(slots=True)
class CrashMarker:
    """The marker of a pass, as the next pass would find it."""

    id: int
    lost: dict[int, Key | None]  # passes that did not end, and the records that they handled, if noted
    mine: set[int] = field(default_factory=set)  # passes of this process, which has not ended

    @property
    def careful(self) -> bool:
        return bool(self.lost)

    @property
    def blamed(self) -> dict[int, Key]:
        return {number: key for number, key in self.lost.items() if key is not None and number not in self.mine}


@contextmanager
def mark_pass(keeper: Connection, connection: Connection, adopted: int, mine: set[int]) -> Iterator[CrashMarker]:
    """Marks a pass while it runs. The keeper's transaction holds a lock, which ends with the process, while the marker
    remains. The transaction holds nothing else, no snapshot and no transaction id: the other connection draws the
    numbers."""
    keeper.execute("begin isolation level read committed")
    keeper.execute("set local idle_in_transaction_session_timeout = 0")
    try:
        number = lock_number(keeper, connection)
        try:
            rows = connection.execute("select * from penstock.begin_pass(%s, %s)", (adopted, number)).fetchall()
            mine.add(number)
            yield CrashMarker(number, {lost: None if key is None else tuple(key) for lost, key in rows}, mine)
        except SystemExit:
            raise  # the handler ended the process: the marker remains
        except BaseException:
            remove_markers(connection, number)
            raise
        else:
            remove_markers(connection, number)
    finally:
        with suppress(psycopg.Error):  # the connection is broken, and its lock is gone
            keeper.execute("rollback")


def lock_number(keeper: Connection, connection: Connection) -> int:
    """Returns a new number and locks it. A number whose lock another session holds is skipped."""
    for _ in range(MAX_NUMBERS):
        row = connection.execute("select penstock.next_pass()").fetchone()
        assert row is not None
        if keeper.execute("select pg_catalog.pg_try_advisory_xact_lock(%s, %s)", (LOCK_CLASS, row[0])).fetchone() == (
            True,
        ):
            return int(row[0])
    raise Unavailable(
        f"other sessions hold the advisory locks ({LOCK_CLASS}, …) of the next {MAX_NUMBERS} passes",
        hint="pg_locks says which; end them with pg_terminate_backend.",
        reason="retry",
    )


def remove_markers(connection: Connection, *numbers: int) -> None:
    with suppress(psycopg.Error):  # the next pass finds the marker, and that it is of this process
        connection.execute("select penstock.end_passes(%s)", (list(numbers),))


def note_record(connection: Connection, number: int, key: Key) -> None:
    """Notes a record before it is handled, in a transaction of its own."""
    connection.execute("select penstock.note_pass_record(%s, %s)", (number, list(key)))
