# Made from src/penstock/client/upkeep_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Upkeep and retentions."""

from __future__ import annotations

import time
from datetime import timedelta

from penstock import validate
from penstock.client.database import Database
from penstock.client.statements import upkeep as sql
from penstock.errors import PenstockError, Unavailable
from penstock.model import Duration


def upkeep(database: Database, *, due_only: bool = False, seconds: float = sql.UPKEEP_SECONDS) -> sql.Upkeep:
    """Runs the parts of upkeep, each in a transaction of its own. A part that fails does not stop the others; the
    report's `failed` names it.

    `due_only` leaves out the parts that another process ran a few seconds ago. A part that has more to do than fits in
    one transaction is repeated until `seconds` have passed.
    """
    ends = time.monotonic() + seconds
    report = sql.Upkeep()
    for (part,) in database.once(sql.UPKEEP_PARTS, (due_only,)):
        try:
            report[part] = upkeep_part(database, part, due_only=due_only, ends=ends)
        except Unavailable as error:
            if error.reason != "retry":
                raise
            report.failed[part] = error
        except PenstockError as error:
            report.failed[part] = error
    return report


def upkeep_part(database: Database, part: str, *, due_only: bool, ends: float) -> int:
    """Runs one part until nothing is left to do or the time is up. Each statement is a transaction, so a frozen client
    holds no locks."""
    total, more = 0, True
    while more:
        ((rows, more),) = database.once(sql.UPKEEP_PART, (part, due_only))
        total += rows or 0
        if database.rehearses or time.monotonic() > ends:
            break
    return total


def retentions(database: Database) -> dict[str, timedelta | None]:
    """Returns how long upkeep keeps things; None means for ever."""
    return dict(database.rows(sql.RETENTIONS))


def set_retention(database: Database, what: str, keep: Duration | None) -> None:
    """Sets how long upkeep keeps something."""
    length = None if keep is None else validate.positive(keep, what)
    database.run(sql.SET_RETENTION, (what, length))
