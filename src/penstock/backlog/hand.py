"""Whether a pass came to its end. One that did not, since its process was killed by a record perhaps, leaves its note
behind; the next one then handles the first records one by one and notes each before it does. If that ends too, the
record is known: it failed, like one whose handler raised, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psycopg

from penstock.backlog.claim import Key
from penstock.database import Connection

HAND = 0x50454E48  # "PENH": the advisory locks of those who handle records
CAREFUL = 1000  # records handled one by one after a pass that did not end: what it held is among the first


class EndedItsProcess(Exception):
    """Its handler did not come back."""


@dataclass(slots=True)
class Hand:
    """A pass, as the next one would find it."""

    id: int
    lost: dict[int, Key | None]  # passes that did not end, and the records they had in hand, where that was noted
    mine: set[int] = field(default_factory=set)  # passes of this very process: it is there, so nothing ended it

    @property
    def careful(self) -> bool:
        return bool(self.lost)

    @property
    def blamed(self) -> dict[int, Key]:
        return {hand: key for hand, key in self.lost.items() if key is not None and hand not in self.mine}


@contextmanager
def in_hand(keeper: Connection, connection: Connection, adopted: int, mine: set[int]) -> Iterator[Hand]:
    """While it lasts, the keeper's transaction holds a lock: it goes with the process, the note does not."""
    keeper.execute("begin isolation level read committed")
    keeper.execute("set local idle_in_transaction_session_timeout = 0")
    try:
        row = keeper.execute(
            "select h, pg_advisory_xact_lock(%s, h) from penstock.next_hand() as h", (HAND,)
        ).fetchone()
        assert row is not None
        hand: int = row[0]
        rows = connection.execute("select * from penstock.begin_hand(%s, %s)", (adopted, hand)).fetchall()
        mine.add(hand)
        yield Hand(hand, {lost: None if key is None else tuple(key) for lost, key in rows}, mine)
    except SystemExit:
        raise  # the handler left: as good as killed
    except BaseException:
        end(connection, hand)
        raise
    else:
        end(connection, hand)
    finally:
        with suppress(psycopg.Error):  # it broke: the lock is gone with it
            keeper.execute("rollback")


def end(connection: Connection, *hands: int) -> None:
    with suppress(psycopg.Error):  # the next pass finds the note, and that it was ours
        connection.execute("select penstock.end_hands(%s)", (list(hands),))


def note(connection: Connection, hand: int, key: Key) -> None:
    """Before the record is handled, in a transaction of its own."""
    connection.execute("select penstock.note_hand(%s, %s)", (hand, list(key)))
