"""History: how far it can be read, its windows and its readers."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime

from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import history as sql
from penstock.errors import Unavailable
from penstock.model import Horizon, Span, Window


async def read_horizon(database: AsyncDatabase) -> Horizon:
    """Returns how far history can be read now. Raises Conflict if history was restored from another cluster."""
    return Horizon(*await database.row(sql.HORIZON))


async def note_horizon(database: AsyncDatabase) -> Horizon:
    """Returns the horizon for a reader that keeps it. PostgreSQL commits a note of it first; after a failover or a
    restore, the note tells whether everything below the horizon survived."""
    return Horizon(*await database.row(sql.NOTE_HORIZON))


async def check_mark(database: AsyncDatabase, mark: Horizon) -> None:
    """Checks a horizon that a reader kept. Raises Conflict if the horizon is not in the past of this database."""
    await database.run(sql.CHECK_MARK, mark[:4])


async def was_written(database: AsyncDatabase, start: Horizon, end: Horizon) -> bool:
    """Returns whether any history was written between the two horizons. Raises Conflict if the start is of another
    cluster or branch, or ahead of this database."""
    await check_window(database, Window(start, start))
    return bool(await database.value(sql.BETWEEN, (start.xid, end.xid)))


async def read_spans(database: AsyncDatabase, window: Window) -> list[Span]:
    """Returns where the rows of a window are. Raises Conflict if some of them can no longer be read."""
    await check_window(database, window)
    if window.start.xid:
        with suppress(Unavailable):  # there are so many rows that finding them takes too long
            return await find_spans(database, window, roughly=False)
    return await find_spans(database, window, roughly=True)


async def check_window(database: AsyncDatabase, window: Window) -> None:
    """Checks a window. Raises Conflict if one of its ends is not in the past of this database, or if some of its rows
    were dropped."""
    async with database.transaction() as connection:
        for mark in dict.fromkeys((window.start[:4], window.end[:4])):
            await connection.execute(sql.CHECK_MARK, mark)
        await connection.execute(sql.CHECK_WINDOW, sql.window_parameters(window))


async def find_spans(database: AsyncDatabase, window: Window, *, roughly: bool) -> list[Span]:
    """Returns, by day, the pages from the first to the last one that has a row of the window, or with `roughly` all
    pages of each day."""
    parameters = (window.start.xid, window.end.xid, window.since, window.until, roughly)
    async with database.transaction() as connection:
        await connection.execute(sql.SHORTLY)
        return [Span(*row) for row in await (await connection.execute(sql.SPANS, parameters)).fetchall()]


async def queue_names(database: AsyncDatabase) -> dict[int, str]:
    """Returns the names of all present and former queues, by their id in history."""
    return {int(id_): str(name) for id_, name in await database.rows(sql.QUEUE_NAMES)}


async def queues_named(database: AsyncDatabase, name: str) -> list[int]:
    """Returns the ids of the queues that have or had this name. Raises NotFound if there are none."""
    return list(await database.value(sql.QUEUES_NAMED, (name,)))


async def note_reader(database: AsyncDatabase, name: str, passed: Horizon) -> None:
    """Records that a returning reader has read everything up to a horizon: history that it has not read is kept for
    it."""
    await database.run(sql.NOTE_READER, (name, *passed[:4]))


async def find_reader(database: AsyncDatabase, name: str) -> tuple[int, datetime] | None:
    """Returns how far a reader has read and when it was last here, as this database remembers it, or None if the
    database does not know the reader."""
    rows = await database.rows(sql.FIND_READER, (name,))
    return (int(rows[0][0]), rows[0][1]) if rows else None


async def forget_reader(database: AsyncDatabase, name: str) -> None:
    """Forgets a reader. Raises NotFound if there is no reader of that name."""
    await database.run(sql.FORGET_READER, (name,))


async def history_sums(
    database: AsyncDatabase, span: Span, *, below: int, thorough: bool = False
) -> list[tuple[int, str, int, int]]:
    """Counts the rows in some pages of a day that are below a transaction, by queue and outcome. With `thorough` it
    also returns a checksum of their contents."""
    parameters = (span.day, span.first_page, span.pages, below, thorough)
    rows = await database.rows(sql.HISTORY_SUMS, parameters)
    return [(int(queue), str(outcome), int(count), int(checksum)) for queue, outcome, count, checksum in rows]


async def history_gone(database: AsyncDatabase, after: int) -> dict[tuple[date, int], int]:
    """Returns the rows that were dropped after a known drop, by day and queue."""
    rows = await database.rows(sql.HISTORY_GONE, (after,))
    return {(day, int(queue)): int(count) for day, queue, count in rows}


async def release_day(database: AsyncDatabase, day: date, *, rows: int, below: int) -> bool:
    """Drops a day of history that has been copied elsewhere. Returns False if another transaction uses the day. Raises
    Conflict if the day has other rows than the copy."""
    return bool(await database.value(sql.RELEASE_DAY, (day, rows, below)))


async def rebase_history(database: AsyncDatabase) -> int:
    """Makes history readable after a restore into another cluster: its rows become the oldest ones."""
    return int(await database.value(sql.REBASE_HISTORY))


async def today(database: AsyncDatabase) -> date:
    """Returns the day of history that is being written: the current date in UTC by the database's clock."""
    found: date = await database.value(sql.TODAY)
    return found


async def sample_days(database: AsyncDatabase, window: Window) -> list[date]:
    """Returns the days for which samples were written in a window."""
    rows = await database.rows(sql.SAMPLE_DAYS, (window.start.xid, window.end.xid))
    return [day for (day,) in rows]
