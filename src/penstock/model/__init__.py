"""The values that the parts of Penstock exchange, in one file per topic. They are frozen, and this package does no I/O.

Values that are made once per task are named tuples: a frozen dataclass costs seven times as much to build (decision
0004).
"""

from __future__ import annotations

from penstock.model.basics import GAUGES, Backfill, Duration, Json, OnConflict, State
from penstock.model.board import Board, BoardWorker, Sampled, Scaled
from penstock.model.claims import Claim, Extended, Kept, Standing
from penstock.model.history import Horizon, Span, StoredProfile, Window
from penstock.model.metrics import MetricsSnapshot
from penstock.model.outcomes import DONE, Outcome, made_inside, note_made
from penstock.model.queues import Mismatch, QueueSettings, QueueStatus, Repair, Verification
from penstock.model.scaling import (
    Latency,
    QueueQuestion,
    QueueScaler,
    RunningTasks,
    ScalerSnapshot,
    ScalingHold,
    SeenQueue,
    SeenWorker,
    StoredDecision,
)
from penstock.model.schedules import Firing, NewSchedule, Schedule
from penstock.model.streams import Batch, GroupHold
from penstock.model.tasks import (
    EPOCH,
    PUSH_RESULTS,
    TRACEBACK,
    Attempt,
    EndedTask,
    Explanation,
    LogLine,
    NewTask,
    Pushed,
    PushReport,
    Task,
    TaskDetails,
    TaskInfo,
    TaskProgress,
    from_micros,
    split_error,
)

__all__ = [
    "DONE",
    "EPOCH",
    "GAUGES",
    "PUSH_RESULTS",
    "TRACEBACK",
    "Attempt",
    "Backfill",
    "Batch",
    "Board",
    "BoardWorker",
    "Claim",
    "Duration",
    "EndedTask",
    "Explanation",
    "Extended",
    "Firing",
    "GroupHold",
    "Horizon",
    "Json",
    "Kept",
    "Latency",
    "LogLine",
    "MetricsSnapshot",
    "Mismatch",
    "NewSchedule",
    "NewTask",
    "OnConflict",
    "Outcome",
    "PushReport",
    "Pushed",
    "QueueQuestion",
    "QueueScaler",
    "QueueSettings",
    "QueueStatus",
    "Repair",
    "RunningTasks",
    "Sampled",
    "Scaled",
    "ScalerSnapshot",
    "ScalingHold",
    "Schedule",
    "SeenQueue",
    "SeenWorker",
    "Span",
    "Standing",
    "State",
    "StoredDecision",
    "StoredProfile",
    "Task",
    "TaskDetails",
    "TaskInfo",
    "TaskProgress",
    "Verification",
    "Window",
    "from_micros",
    "made_inside",
    "note_made",
    "split_error",
]
