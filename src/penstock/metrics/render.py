"""Renders the metrics of a database as the text of Prometheus. Pure.

Labels are the names of queues, readers and tables, and words of ours: never a subject, a key or the text of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.client.statements.reasons import SILENT_AFTER
from penstock.model import GAUGES, Board, BoardWorker, MetricsSnapshot, QueueStatus
from penstock.prometheus_text import Labels, format_family
from penstock.scaler.standing import RecentBoards, SlaStanding

Sample = tuple[Labels, float | None]


def render_metrics(snapshot: MetricsSnapshot | None, version: str) -> str:
    """Returns the metrics of a snapshot. Without one, PostgreSQL has not answered, and `penstock_up` is zero."""
    up = format_family("penstock_up", "gauge", "Whether PostgreSQL answered.", [({}, int(snapshot is not None))])
    if snapshot is None:
        return up
    standings = RecentBoards().see(snapshot.board)
    families = (*task_families(standings), *scaling_families(snapshot.board), *other_families(snapshot, version))
    return "".join([up, *families])


def task_families(standings: Sequence[SlaStanding]) -> Iterator[str]:
    """Yields the metrics of tasks and SLAs."""
    queues = [one.status for one in standings]
    yield format_family("penstock_tasks", "gauge", "Tasks by state.", count_states(queues))
    yield format_family("penstock_tasks_total", "counter", "What has ever happened to tasks.", count_events(queues))
    yield format_family(
        "penstock_oldest_age_seconds",
        "gauge",
        "How long the oldest waiting task has been due.",
        ((label(one), one.oldest_pending_age) for one in queues),
    )
    yield format_family(
        "penstock_sla_seconds", "gauge", "How long a task may wait.", ((label(one), one.sla) for one in queues)
    )
    yield format_family(
        "penstock_time_to_breach_seconds",
        "gauge",
        "The time until the oldest waiting task is late. Negative: it is late.",
        ((label(one.status), one.time_to_breach) for one in standings),
    )
    yield format_family(
        "penstock_predicted_breach_seconds",
        "gauge",
        "The time until a task will be late at the present pace.",
        ((label(one.status), one.predicted_breach) for one in standings),
    )
    yield format_family(
        "penstock_paused", "gauge", "Whether the queue is paused.", ((label(one), int(one.paused)) for one in queues)
    )


def label(one: QueueStatus) -> Labels:
    """Returns the label of a queue."""
    return {"queue": one.queue}


def count_states(queues: Iterable[QueueStatus]) -> Iterator[Sample]:
    """Yields the number of tasks in each state of each queue."""
    return (({**label(one), "state": state}, getattr(one, state)) for one in queues for state in GAUGES)


def count_events(queues: Iterable[QueueStatus]) -> Iterator[Sample]:
    """Yields the counts of all time."""
    return (({**label(one), "event": event}, count) for one in queues for event, count in one.totals.items())


def scaling_families(board: Board) -> Iterator[str]:
    """Yields the metrics of workers and decisions."""
    serving = serving_workers(board)
    yield format_family(
        "penstock_workers",
        "gauge",
        "Worker processes that serve the queue: present, silent for ten seconds, and wanted by the scaler.",
        count_workers(board, serving),
    )
    yield format_family(
        "penstock_slots",
        "gauge",
        "Tasks that the present workers of the queue can run at once. A worker counts for each of its queues.",
        (({"queue": queue}, sum(one.slots for one in some)) for queue, some in serving.items()),
    )
    yield format_family(
        "penstock_slots_busy",
        "gauge",
        "Tasks that these workers run now, of all their queues.",
        (({"queue": queue}, sum(one.busy for one in some)) for queue, some in serving.items()),
    )
    yield format_family(
        "penstock_decision_age_seconds",
        "gauge",
        "How long ago a scaler last decided for the queue.",
        (({"queue": queue}, one.decided) for queue, one in board.scaling.items()),
    )


def serving_workers(board: Board) -> dict[str, list[BoardWorker]]:
    """Returns the workers of each queue that are not about to stop and have reported lately."""
    found: dict[str, list[BoardWorker]] = {one.queue: [] for one in board.queues}
    for worker in board.workers:
        if not worker.leaving and worker.silent <= SILENT_AFTER:
            for queue in worker.queues:
                found.setdefault(queue, []).append(worker)
    return found


def count_workers(board: Board, serving: dict[str, list[BoardWorker]]) -> Iterator[Sample]:
    """Yields how many workers there are, and how many are wanted."""
    for queue, some in serving.items():
        yield {"queue": queue, "what": "present"}, len(some)
    for queue in serving:
        silent = (one for one in board.workers if not one.leaving and one.silent > SILENT_AFTER)
        yield {"queue": queue, "what": "silent"}, sum(queue in one.queues for one in silent)
    for queue, scaled in board.scaling.items():
        yield {"queue": queue, "what": "wanted"}, scaled.target


def other_families(snapshot: MetricsSnapshot, version: str) -> Iterator[str]:
    """Yields the metrics of the database as a whole."""
    yield format_family(
        "penstock_schedule_overdue_seconds",
        "gauge",
        "How long the most overdue schedule is overdue.",
        [({}, snapshot.schedule_overdue)],
    )
    yield format_family(
        "penstock_history_reader_lag_seconds",
        "gauge",
        "How long ago a reader of history last came. History is kept until it has read it.",
        (({"reader": name}, seconds) for name, seconds in snapshot.readers.items()),
    )
    yield format_family(
        "penstock_oldest_snapshot_seconds",
        "gauge",
        "How long a transaction has kept vacuum from removing rows.",
        [({}, snapshot.oldest_snapshot)],
    )
    yield format_family(
        "penstock_dead_rows",
        "gauge",
        "Rows that vacuum has not removed yet, as counted by PostgreSQL.",
        (({"table": name}, count) for name, count in snapshot.dead_rows.items()),
    )
    yield format_family(
        "penstock_info",
        "gauge",
        "The version of Penstock that reads, and the contract of the schema.",
        [({"version": version, "contract": str(snapshot.contract)}, 1)],
    )
