"""Adopted tables: a table of another program is found, its terms are agreed on, and it is drained in place."""

from penstock.backlog.backlog import Backlog, PassReport, adopt, every, forget, load
from penstock.backlog.failures import RecordFailure
from penstock.backlog.status import BacklogStatus

__all__ = ["Backlog", "BacklogStatus", "PassReport", "RecordFailure", "adopt", "every", "forget", "load"]
