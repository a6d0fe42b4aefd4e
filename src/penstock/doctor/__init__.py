"""The doctor: it checks the connection, the schema, the server, the tables, the queues and the counters of a database.

It changes nothing and does not wait for long: every check is a READ ONLY transaction with a timeout. A check that fails
is itself a finding and does not stop the others.
"""

from __future__ import annotations

from penstock.doctor.checks import CHECKS, examine
from penstock.doctor.connection import judge_version
from penstock.doctor.inspection import DEFAULT_THRESHOLDS, Check, Finding, Inspection, Level, Thresholds
from penstock.doctor.server import DANGERS

__all__ = [
    "CHECKS",
    "DANGERS",
    "DEFAULT_THRESHOLDS",
    "Check",
    "Finding",
    "Inspection",
    "Level",
    "Thresholds",
    "examine",
    "judge_version",
]
