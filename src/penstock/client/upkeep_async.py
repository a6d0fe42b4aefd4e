"""Upkeep and retentions."""

from __future__ import annotations

import time
from datetime import timedelta

from penstock import validate
from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import upkeep as sql
from penstock.errors import PenstockError, Unavailable
from penstock.model import Duration


async def upkeep(database: AsyncDatabase, *, due_only: bool = False, seconds: float = sql.UPKEEP_SECONDS) -> sql.Upkeep:
    """Runs the parts of upkeep, each in a transaction of its own. A part that fails does not stop the others; the
    report's `failed` names it.

    `due_only` leaves out the parts that another process ran a few seconds ago. A part that has more to do than fits in
    one transaction is repeated until `seconds` have passed.
    """
    ends = time.monotonic() + seconds
    report = sql.Upkeep()
    for (part,) in await database.once(sql.UPKEEP_PARTS, (due_only,)):
        try:
            report[part] = await upkeep_part(database, part, due_only=due_only, ends=ends)
        except Unavailable as error:
            if error.reason != "retry":
                raise
            report.failed[part] = error
        except PenstockError as error:
            report.failed[part] = error
    return report


async def upkeep_part(database: AsyncDatabase, part: str, *, due_only: bool, ends: float) -> int:
    """Runs one part until nothing is left to do or the time is up. Each statement is a transaction, so a frozen client
    holds no locks."""
    total, more = 0, True
    while more:
        ((rows, more),) = await database.once(sql.UPKEEP_PART, (part, due_only))
        total += rows or 0
        if database.rehearses or time.monotonic() > ends:
            break
    return total


async def retentions(database: AsyncDatabase) -> dict[str, timedelta | None]:
    """Returns how long upkeep keeps things; None means for ever."""
    return dict(await database.rows(sql.RETENTIONS))


async def set_retention(database: AsyncDatabase, what: str, keep: Duration | None) -> None:
    """Sets how long upkeep keeps something."""
    length = None if keep is None else validate.positive(keep, what)
    await database.run(sql.SET_RETENTION, (what, length))
