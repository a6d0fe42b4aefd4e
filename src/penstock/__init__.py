"""Penstock drains backlogs on time: a durable task queue inside PostgreSQL."""

from penstock.app import Penstock
from penstock.errors import (
    AuthError,
    CommitUnknown,
    ConfigError,
    Conflict,
    LeaseLost,
    NotFound,
    PartialPush,
    PayloadError,
    PayloadTooLarge,
    PenstockError,
    SchemaVersionError,
    Unavailable,
    ValidationError,
)
from penstock.model import Claim, NewTask, Outcome, Pushed, PushReport, QueueStatus, Task
from penstock.queue import Queue
from penstock.retry import Exponential, Fibonacci, Fixed, Progressive, Schedule

__all__ = [
    "AuthError",
    "Claim",
    "CommitUnknown",
    "ConfigError",
    "Conflict",
    "Exponential",
    "Fibonacci",
    "Fixed",
    "LeaseLost",
    "NewTask",
    "NotFound",
    "Outcome",
    "PartialPush",
    "PayloadError",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Progressive",
    "PushReport",
    "Pushed",
    "Queue",
    "QueueStatus",
    "Schedule",
    "SchemaVersionError",
    "Task",
    "Unavailable",
    "ValidationError",
]
__version__ = "0.1.0.dev0"
