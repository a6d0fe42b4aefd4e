"""Plays windows on executors: each run is one Spark task. The heaviest runs begin first."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from penstock.pipeline.backtest.question import Question
from penstock.pipeline.backtest.stratified import PlayedWindow, Recording, WindowSample
from penstock.pipeline.work import sparks_errors
from penstock.scaler.judge.bound import bound
from penstock.scaler.judge.simulate import Result, simulate
from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.signals import Limits

Watch = Callable[[int, int], None]  # runs done, of how many

MAX_STEPS = 20_000  # of the optimal bound's linear program; a longer recording gets longer steps
POINTS = 200  # of the distribution of waits that each window sends back
GROUP = "spark.jobGroup.id"
LOOK_SECONDS = 0.5  # between two looks at Spark's progress


@dataclass(frozen=True, slots=True)
class PlayedPart:
    """The tasks of a window. They are sent to executors once, for all policies."""

    trace: Trace
    window: PlayedWindow


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """A policy on a recording under a promise."""

    recording: int
    limits: Limits
    policy: Policy


@dataclass(frozen=True, slots=True)
class LeastCost:
    """The least cost of each window, if all arrivals were known in advance."""

    worker_seconds: tuple[float, ...]
    late_shares: tuple[float, ...]
    peak: float


def cut_parts(recording: Recording, sample: WindowSample) -> list[PlayedPart]:
    return [PlayedPart(recording.cut(one.begin, one.end), one) for one in sample.windows]


def solve_bounds(
    spark: SparkSession, question: Question, sent: Any
) -> tuple[dict[tuple[int, float], LeastCost], tuple[str, ...]]:
    """Solves the optimal bound of each recording and promise on executors. Also returns warnings."""
    if not question.solve:
        return {}, ()
    try:
        import scipy  # noqa: F401, PLC0415 - an extra, which executors need too
    except ImportError:
        return {}, ("no cost ratio: scipy is not installed",)
    asked = [*itertools.product(range(len(question.recordings)), question.slas)]
    base, most = question.limits, question.max_workers
    schema = "run long, worker_seconds array<double>, late_shares array<double>, peak double"

    def solve(n: int) -> Iterator[dict[str, Any]]:
        recording, sla = asked[n]
        found = [solve_bound(part, replace(base, sla=sla), most) for part in sent.value[recording]]
        yield {
            "run": n,
            "worker_seconds": [one[0] for one in found],
            "late_shares": [one[1] for one in found],
            "peak": max(one[2] for one in found),
        }

    rows = run_tasks(spark, len(asked), solve, schema, order=range(len(asked)))
    least = {
        asked[row["run"]]: LeastCost(tuple(row["worker_seconds"]), tuple(row["late_shares"]), row["peak"])
        for row in rows
    }
    return least, ()


def solve_bound(part: PlayedPart, limits: Limits, max_workers: int | None) -> tuple[float, float, float]:
    """Returns the worker-seconds, the share of late work and the peak of the optimal fleet within the window. The
    warm-up is solved too; otherwise the window would begin without workers."""
    until = part.window.until - part.window.begin
    steps = until / limits.interval
    step = limits.interval * max(1, math.ceil(steps / MAX_STEPS))
    trace = cut_trace(part.trace, until)
    if not trace.due:
        return limits.min_workers * (until - part.window.judged[0]), 0.0, float(limits.min_workers)
    found = bound(
        trace,
        limits.sla,
        limits.start_latency,
        step=step,
        min_workers=limits.min_workers,
        slots=limits.slots,
        max_workers=max_workers,
    )
    if part.window.begin == part.window.since:
        return found.worker_seconds, found.late_share, found.peak
    first, last = round(part.window.judged[0] / step), round(until / step)
    capacity = np.asarray(found.capacity[max(0, first - 1) : last])
    starts = float(np.maximum(np.diff(capacity), 0.0).sum())
    return step * float(capacity[1:].sum()) + limits.start_latency * starts, found.late_share, found.peak


def cut_trace(trace: Trace, until: float) -> Trace:
    count = int(np.searchsorted(np.asarray(trace.due), until))
    return replace(
        trace, due=trace.due[:count], service=trace.service[:count], known=trace.known[:count], duration=until
    )


MEASURED = (
    "run long, window int, tasks long, played long, breaches long, worker_seconds double, busy_seconds double, "
    "starts long, flips long, hours double, peak_workers long, max_wait double, waits array<double>"
)


def play_runs(
    spark: SparkSession,
    runs: Sequence[PlayedRun],
    sent: Any,
    *,
    weight: Callable[[PlayedRun], float],
    watch: Watch | None,
) -> list[list[Row]]:
    """Plays the runs, and returns the rows of each run's windows, in their order."""
    order = sorted(range(len(runs)), key=lambda n: -weight(runs[n]))
    played = [*runs]

    def play(n: int) -> Iterator[dict[str, Any]]:
        run = played[n]
        for number, part in enumerate(sent.value[run.recording]):
            yield {"run": n, "window": number, **measure(part, run)}

    rows = run_tasks(spark, len(runs), play, MEASURED, order=order, watch=watch)
    found: list[list[Row]] = [[] for _ in runs]
    for row in sorted(rows, key=lambda row: (row["run"], row["window"])):
        found[row["run"]].append(row)
    return found


def measure(part: PlayedPart, run: PlayedRun) -> dict[str, Any]:
    whole = part.window.begin == part.window.since and part.window.until == part.window.end
    result = simulate(part.trace, run.policy, run.limits, judged=None if whole else part.window.judged)
    return {
        "tasks": result.tasks,
        "played": len(part.trace.due),
        "breaches": result.breaches,
        "worker_seconds": result.worker_seconds,
        "busy_seconds": result.busy_seconds,
        "starts": result.starts,
        "flips": result.flips,
        "hours": result.hours,
        "peak_workers": result.peak_workers,
        "max_wait": result.wait(1.0),
        "waits": list_waits(result),
    }


def list_waits(result: Result) -> list[float]:
    return [result.wait((n + 1) / POINTS) for n in range(POINTS)] if result.waits else []


def run_tasks(
    spark: SparkSession,
    count: int,
    work: Callable[[int], Iterator[dict[str, Any]]],
    schema: str,
    *,
    order: Sequence[int],
    watch: Watch | None = None,
) -> list[Row]:
    """Runs one Spark task for each number, in the given order, and returns their rows."""
    turn = [*order]

    def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield pa.RecordBatch.from_pylist([*work(turn[number])], schema=arrow)

    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - it brings pandas

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    arrow = to_arrow_schema(columns)
    with sparks_errors(), watch_job(spark, count, watch):
        return spark.range(0, count, 1, count).mapInArrow(do, columns).collect()


@contextmanager
def watch_job(spark: SparkSession, count: int, watch: Watch | None) -> Iterator[None]:
    """Reports how many tasks are done while the caller waits for all of them. If the caller is interrupted, it cancels
    the tasks."""
    context, group, over = spark.sparkContext, f"penstock-backtest-{uuid4().hex[:8]}", threading.Event()
    before = context.getLocalProperty(GROUP)
    context.setJobGroup(group, "backtest", interruptOnCancel=True)

    def look() -> None:
        with suppress(Exception):  # Spark is gone: the caller, which waits for the rows, gets the error
            while not over.wait(LOOK_SECONDS):
                if watch is not None:
                    watch(min(count, count_completed(context, group)), count)

    watcher = threading.Thread(target=look, name="penstock-backtest", daemon=True)
    if watch is not None:
        watch(0, count)
        watcher.start()
    try:
        yield
    except BaseException:
        with suppress(Exception):
            context.cancelJobGroup(group)
        raise
    finally:
        over.set()
        if watch is not None:
            watcher.join()
        with suppress(Exception):
            context.setLocalProperty(GROUP, before)  # type: ignore[arg-type]  # None is Java's null
    if watch is not None:
        watch(count, count)


def count_completed(context: SparkContext, group: str) -> int:
    """Returns the number of completed tasks of a job group."""
    tracker = context.statusTracker()
    jobs = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job)) is not None]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
