"""Penstock drains backlogs on time: a durable task queue inside PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import Handler, Penstock
    from penstock.app_async import AsyncHandler, AsyncPenstock
    from penstock.backlog import Backlog, BacklogStatus, PassReport, RecordFailure
    from penstock.client.queue import Queue
    from penstock.client.queue_async import AsyncQueue
    from penstock.client.statements.schedules import ScheduleRun
    from penstock.client.statements.upkeep import Upkeep
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
        Board,
        Claim,
        Extended,
        NewTask,
        Outcome,
        Pushed,
        PushReport,
        QueueSettings,
        QueueStatus,
        Repair,
        Schedule,
        StoredDecision,
        Task,
        TaskDetails,
        TaskInfo,
        Verification,
    )
    from penstock.retry import CustomRetry, Delays, Exponential, Fibonacci, Fixed, Progressive, Strategy
    from penstock.worker.in_process import InProcessWorker
    from penstock.worker.supervisor import WorkerReport

__all__ = [
    "AsyncContext",
    "AsyncHandler",
    "AsyncPenstock",
    "AsyncQueue",
    "AuthError",
    "Backlog",
    "BacklogStatus",
    "Board",
    "Claim",
    "CommitUnknown",
    "ConfigError",
    "Conflict",
    "Context",
    "CustomRetry",
    "Delays",
    "Exponential",
    "Extended",
    "Fibonacci",
    "Fixed",
    "Handler",
    "HandlerMisuse",
    "InProcessWorker",
    "LeaseLost",
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
    "RecordFailure",
    "Repair",
    "Schedule",
    "ScheduleRun",
    "SchemaVersionError",
    "StoredDecision",
    "Strategy",
    "Task",
    "TaskDetails",
    "TaskInfo",
    "Unavailable",
    "Upkeep",
    "ValidationError",
    "Verification",
    "WorkerReport",
]
__version__ = "0.1.0.dev0"

# A name is imported at its first use, so that `penstock --version` does not have to import PostgreSQL's client.
HOMES = {
    "penstock.app": ("Handler", "Penstock"),
    "penstock.app_async": ("AsyncHandler", "AsyncPenstock"),
    "penstock.backlog": ("Backlog", "BacklogStatus", "PassReport", "RecordFailure"),
    "penstock.client.queue": ("Queue",),
    "penstock.client.queue_async": ("AsyncQueue",),
    "penstock.client.statements.schedules": ("ScheduleRun",),
    "penstock.client.statements.upkeep": ("Upkeep",),
    "penstock.errors": (
        "AuthError",
        "CommitUnknown",
        "ConfigError",
        "Conflict",
        "HandlerMisuse",
        "LeaseLost",
        "NotFound",
        "PartialPush",
        "PayloadError",
        "PayloadTooLarge",
        "PenstockError",
        "SchemaVersionError",
        "Unavailable",
        "ValidationError",
    ),
    "penstock.handlers": ("AsyncContext", "Context"),
    "penstock.model": (
        "Board",
        "Claim",
        "Extended",
        "NewTask",
        "Outcome",
        "PushReport",
        "Pushed",
        "QueueSettings",
        "QueueStatus",
        "Repair",
        "Schedule",
        "StoredDecision",
        "Task",
        "TaskDetails",
        "TaskInfo",
        "Verification",
    ),
    "penstock.retry": ("CustomRetry", "Delays", "Exponential", "Fibonacci", "Fixed", "Progressive", "Strategy"),
    "penstock.worker.in_process": ("InProcessWorker",),
    "penstock.worker.supervisor": ("WorkerReport",),
}


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
