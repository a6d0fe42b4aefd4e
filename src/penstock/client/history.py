# Made from src/penstock/client/history_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""History: how far it can be read, its windows and its readers."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime

from penstock.client.database import Database
from penstock.client.statements import history as sql
from penstock.errors import Unavailable
from penstock.model import Horizon, Span, Window


def read_horizon(database: Database) -> Horizon:
    """Returns how far history can be read now. Raises Conflict if history was restored from another cluster."""
    return Horizon(*database.row(sql.HORIZON))


def note_horizon(database: Database) -> Horizon:
    """Returns the horizon for a reader that keeps it. PostgreSQL commits a note of it first; after a failover or a
    restore, the note tells whether everything below the horizon survived."""
    return Horizon(*database.row(sql.NOTE_HORIZON))


def check_mark(database: Database, mark: Horizon) -> None:
    """Checks a horizon that a reader kept. Raises Conflict if the horizon is not in the past of this database."""
    database.run(sql.CHECK_MARK, mark[:4])


def was_written(database: Database, start: Horizon, end: Horizon) -> bool:
    """Returns whether any history was written between the two horizons. Raises Conflict if the start is of another
    cluster or branch, or ahead of this database."""
    check_window(database, Window(start, start))
    return bool(database.value(sql.BETWEEN, (start.xid, end.xid)))


def read_spans(database: Database, window: Window) -> list[Span]:
    """Returns where the rows of a window are. Raises Conflict if some of them can no longer be read."""
    check_window(database, window)
    if window.start.xid:
        with suppress(Unavailable):  # there are so many rows that finding them takes too long
            return find_spans(database, window, roughly=False)
    return find_spans(database, window, roughly=True)


def check_window(database: Database, window: Window) -> None:
    """Checks a window. Raises Conflict if one of its ends is not in the past of this database, or if some of its rows
    were dropped."""
    with database.transaction() as connection:
        for mark in dict.fromkeys((window.start[:4], window.end[:4])):
            connection.execute(sql.CHECK_MARK, mark)
        connection.execute(sql.CHECK_WINDOW, sql.window_parameters(window))


def find_spans(database: Database, window: Window, *, roughly: bool) -> list[Span]:
    """Returns, by day, the pages from the first to the last one that has a row of the window, or with `roughly` all
    pages of each day."""
    parameters = (window.start.xid, window.end.xid, window.since, window.until, roughly)
    with database.transaction() as connection:
        connection.execute(sql.SHORTLY)
        return [Span(*row) for row in connection.execute(sql.SPANS, parameters).fetchall()]


def queue_names(database: Database) -> dict[int, str]:
    """Returns the names of all present and former queues, by their id in history."""
    return {int(id_): str(name) for id_, name in database.rows(sql.QUEUE_NAMES)}


def queues_named(database: Database, name: str) -> list[int]:
    """Returns the ids of the queues that have or had this name. Raises NotFound if there are none."""
    return list(database.value(sql.QUEUES_NAMED, (name,)))


def note_reader(database: Database, name: str, passed: Horizon) -> None:
    """Records that a returning reader has read everything up to a horizon: history that it has not read is kept for
    it."""
    database.run(sql.NOTE_READER, (name, *passed[:4]))


def find_reader(database: Database, name: str) -> tuple[int, datetime] | None:
    """Returns how far a reader has read and when it was last here, as this database remembers it, or None if the
    database does not know the reader."""
    rows = database.rows(sql.FIND_READER, (name,))
    return (int(rows[0][0]), rows[0][1]) if rows else None


def forget_reader(database: Database, name: str) -> None:
    """Forgets a reader. Raises NotFound if there is no reader of that name."""
    database.run(sql.FORGET_READER, (name,))


def history_sums(
    database: Database, span: Span, *, below: int, thorough: bool = False
) -> list[tuple[int, str, int, int]]:
    """Counts the rows in some pages of a day that are below a transaction, by queue and outcome. With `thorough` it
    also returns a checksum of their contents."""
    parameters = (span.day, span.first_page, span.pages, below, thorough)
    rows = database.rows(sql.HISTORY_SUMS, parameters)
    return [(int(queue), str(outcome), int(count), int(checksum)) for queue, outcome, count, checksum in rows]


def history_gone(database: Database, after: int) -> dict[tuple[date, int], int]:
    """Returns the rows that were dropped after a known drop, by day and queue."""
    rows = database.rows(sql.HISTORY_GONE, (after,))
    return {(day, int(queue)): int(count) for day, queue, count in rows}


def release_day(database: Database, day: date, *, rows: int, below: int) -> bool:
    """Drops a day of history that has been copied elsewhere. Returns False if another transaction uses the day. Raises
    Conflict if the day has other rows than the copy."""
    return bool(database.value(sql.RELEASE_DAY, (day, rows, below)))


def rebase_history(database: Database) -> int:
    """Makes history readable after a restore into another cluster: its rows become the oldest ones."""
    return int(database.value(sql.REBASE_HISTORY))


def today(database: Database) -> date:
    """Returns the day of history that is being written: the current date in UTC by the database's clock."""
    found: date = database.value(sql.TODAY)
    return found


def sample_days(database: Database, window: Window) -> list[date]:
    """Returns the days for which samples were written in a window."""
    rows = database.rows(sql.SAMPLE_DAYS, (window.start.xid, window.end.xid))
    return [day for (day,) in rows]
