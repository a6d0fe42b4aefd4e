"""Penstock drains backlogs on time: a durable task queue inside PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.app_async import AsyncPenstock
    from penstock.backlog import (
        Backlog,
        BacklogStatus,
        PassCounts,
        PassProgress,
        PassReport,
        RecordFailure,
        RecordHandler,
    )
    from penstock.client.bulk import Progress
    from penstock.client.concurrency import Items
    from penstock.client.concurrency_async import AsyncItems
    from penstock.client.queue import Queue
    from penstock.client.queue_async import AsyncQueue
    from penstock.client.statements.queues import QueueChanges
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
    from penstock.handler import Handler
    from penstock.handler_async import AsyncHandler
    from penstock.handlers import AsyncContext, AsyncRunHandler, Context, Mode, RunHandler
    from penstock.model import (
        Attempt,
        Backfill,
        Board,
        BoardWorker,
        Claim,
        Duration,
        EndedTask,
        Explanation,
        Extended,
        Json,
        LogLine,
        Mismatch,
        NewTask,
        OnConflict,
        Outcome,
        Pushed,
        PushReport,
        QueueSettings,
        QueueStatus,
        Repair,
        Sampled,
        Scaled,
        Schedule,
        State,
        StoredDecision,
        Task,
        TaskDetails,
        TaskInfo,
        TaskProgress,
        Verification,
    )
    from penstock.retry import CustomRetry, Delays, Exponential, Fibonacci, Fixed, Progressive, RetryPolicy, Strategy
    from penstock.worker.in_process import InProcessWorker
    from penstock.worker.plan import WorkerOptions, WorkerReport

__all__ = [
    "AsyncContext",
    "AsyncHandler",
    "AsyncItems",
    "AsyncPenstock",
    "AsyncQueue",
    "AsyncRunHandler",
    "Attempt",
    "AuthError",
    "Backfill",
    "Backlog",
    "BacklogStatus",
    "Board",
    "BoardWorker",
    "Claim",
    "CommitUnknown",
    "ConfigError",
    "Conflict",
    "Context",
    "CustomRetry",
    "Delays",
    "Duration",
    "EndedTask",
    "Explanation",
    "Exponential",
    "Extended",
    "Fibonacci",
    "Fixed",
    "Handler",
    "HandlerMisuse",
    "InProcessWorker",
    "Items",
    "Json",
    "LeaseLost",
    "LogLine",
    "Mismatch",
    "Mode",
    "NewTask",
    "NotFound",
    "OnConflict",
    "Outcome",
    "PartialPush",
    "PassCounts",
    "PassProgress",
    "PassReport",
    "PayloadError",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Progress",
    "Progressive",
    "PushReport",
    "Pushed",
    "Queue",
    "QueueChanges",
    "QueueSettings",
    "QueueStatus",
    "RecordFailure",
    "RecordHandler",
    "Repair",
    "RetryPolicy",
    "RunHandler",
    "Sampled",
    "Scaled",
    "Schedule",
    "ScheduleRun",
    "SchemaVersionError",
    "State",
    "StoredDecision",
    "Strategy",
    "Task",
    "TaskDetails",
    "TaskInfo",
    "TaskProgress",
    "Unavailable",
    "Upkeep",
    "ValidationError",
    "Verification",
    "WorkerOptions",
    "WorkerReport",
]
__version__ = "0.1.0.dev0"

# A name is imported at its first use, so that `penstock --version` does not have to import PostgreSQL's client.
HOMES = {
    "penstock.client.concurrency_async": ("AsyncItems",),
    "penstock.client.concurrency": ("Items",),
    "penstock.client.bulk": ("Progress",),
    "penstock.app": ("Penstock",),
    "penstock.app_async": ("AsyncPenstock",),
    "penstock.backlog": (
        "Backlog",
        "BacklogStatus",
        "PassCounts",
        "PassProgress",
        "PassReport",
        "RecordFailure",
        "RecordHandler",
    ),
    "penstock.client.queue": ("Queue",),
    "penstock.client.queue_async": ("AsyncQueue",),
    "penstock.client.statements.queues": ("QueueChanges",),
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
    "penstock.handler": ("Handler",),
    "penstock.handler_async": ("AsyncHandler",),
    "penstock.handlers": (
        "AsyncContext",
        "AsyncRunHandler",
        "Context",
        "Mode",
        "RunHandler",
    ),
    "penstock.model": (
        "Attempt",
        "Backfill",
        "Board",
        "BoardWorker",
        "Claim",
        "Duration",
        "EndedTask",
        "Explanation",
        "Extended",
        "Json",
        "LogLine",
        "Mismatch",
        "NewTask",
        "OnConflict",
        "Outcome",
        "PushReport",
        "Pushed",
        "QueueSettings",
        "QueueStatus",
        "Repair",
        "Sampled",
        "Scaled",
        "Schedule",
        "State",
        "StoredDecision",
        "Task",
        "TaskDetails",
        "TaskInfo",
        "TaskProgress",
        "Verification",
    ),
    "penstock.retry": (
        "CustomRetry",
        "Delays",
        "Exponential",
        "Fibonacci",
        "Fixed",
        "Progressive",
        "RetryPolicy",
        "Strategy",
    ),
    "penstock.worker.in_process": ("InProcessWorker",),
    "penstock.worker.plan": ("WorkerOptions", "WorkerReport"),
}


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
