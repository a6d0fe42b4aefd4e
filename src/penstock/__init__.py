"""Penstock drains backlogs on time: a durable task queue inside PostgreSQL."""

from penstock.aio.queue import AsyncQueue
from penstock.app import Handler, Penstock
from penstock.async_app import AsyncHandler, AsyncPenstock
from penstock.backlog import Backlog, BacklogStatus, PassReport
from penstock.errors import (
    AuthError,
    CommitUnknown,
    ConfigError,
    Conflict,
    HandlerMisuse,
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
from penstock.handlers import AsyncContext, Context
from penstock.model import (
    Claim,
    CronSchedule,
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
from penstock.retry import Custom, Exponential, Fibonacci, Fixed, Progressive, Schedule

__all__ = [
    "AsyncContext",
    "AsyncHandler",
    "AsyncPenstock",
    "AsyncQueue",
    "AuthError",
    "Backlog",
    "BacklogStatus",
    "Claim",
    "CommitUnknown",
    "ConfigError",
    "Conflict",
    "Context",
    "CronSchedule",
    "Custom",
    "Exponential",
    "Extended",
    "Fibonacci",
    "Fixed",
    "Handler",
    "HandlerMisuse",
    "LeaseLost",
    "Listed",
    "NewTask",
    "NotFound",
    "Outcome",
    "PartialPush",
    "PassReport",
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
