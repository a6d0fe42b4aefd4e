"""Adopting a table that is not ours: found, agreed on, drained where it is."""

from penstock.backlog.backlog import Backlog, PassReport, adopt, every, load
from penstock.backlog.status import BacklogStatus

__all__ = ["Backlog", "BacklogStatus", "PassReport", "adopt", "every", "load"]
