"""Adopted tables: a table of another program is found, its terms are agreed on, and it is drained in place."""

from penstock.backlog.adoption import adopt, every, forget, load
from penstock.backlog.backlog import Backlog, PassReport
from penstock.backlog.drain import PassCounts, PassProgress, RecordHandler
from penstock.backlog.failures import RecordFailure
from penstock.backlog.scaled import AdoptedTables
from penstock.backlog.status import BacklogStatus

__all__ = [
    "AdoptedTables",
    "Backlog",
    "BacklogStatus",
    "PassCounts",
    "PassProgress",
    "PassReport",
    "RecordFailure",
    "RecordHandler",
    "adopt",
    "every",
    "forget",
    "load",
]
