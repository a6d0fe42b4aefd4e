"""Penstock drains backlogs on time: a durable task queue inside PostgreSQL."""

from penstock.aio.queue import AsyncQueue
from penstock.app import Penstock
from penstock.async_app import AsyncPenstock
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
from penstock.model import (
    Claim,
    Extended,
    Listed,
    NewTask,
    Outcome,
    Pushed,
    PushReport,
    QueueSettings,
    QueueStatus,
    Repair,
    Task,
    Verification,
)
from penstock.queue import Queue
from penstock.retry import Exponential, Fibonacci, Fixed, Progressive, Schedule

__all__ = [
    "AsyncPenstock",
    "AsyncQueue",
    "AuthError",
    "Claim",
    "CommitUnknown",
    "ConfigError",
    "Conflict",
    "Exponential",
    "Extended",
    "Fibonacci",
    "Fixed",
    "LeaseLost",
    "Listed",
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
    "QueueSettings",
    "QueueStatus",
    "Repair",
    "Schedule",
    "SchemaVersionError",
    "Task",
    "Unavailable",
    "ValidationError",
    "Verification",
]
__version__ = "0.1.0.dev0"
