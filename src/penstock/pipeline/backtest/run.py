"""Runs a backtest: recordings × promises × policies × knobs, each as one Spark task.

Every policy gets the same tasks, which are sent to executors once. A recording that is too long is sampled
(`stratified`), and the answer says so. First the optimal bounds are solved, one task for each recording and promise:
they determine how many workers a policy may use. Then all runs are played, the longest first, so that no core waits at
the end for a run that began late.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from penstock.errors import ValidationError
from penstock.pipeline.backtest.estimate import conclude
from penstock.pipeline.backtest.play import LeastCost, PlayedRun, Watch, cut_parts, play_runs, solve_bounds
from penstock.pipeline.backtest.question import Answer, Question
from penstock.pipeline.backtest.stratified import LONG_WARM_UP, WARM_UP, WindowSample, draw_sample
from penstock.scaler.judge import judge
from penstock.scaler.policy.signals import MAX_WORKERS, Limits

SPARE_FACTOR = 3  # times the mean load: the maximum of workers if the peak is unknown
MAX_RUNS = 100_000
SLOW = {"deadline": 4.0}  # what a decision costs, relative to that of other policies


def backtest(spark: SparkSession, question: Question, *, watch: Watch | None = None) -> Answer:
    """Answers a question: plays each contender on each recording under each promise."""
    check_question(question)
    slow = question.limits.start_latency + question.limits.interval
    ahead, warm_up = slow + 2 * max(question.slas), LONG_WARM_UP if slow >= min(question.slas) else WARM_UP
    samples = [
        draw_sample(one, question.most_tasks, ahead=ahead, warm_up=warm_up, seed=question.seed)
        for one in question.recordings
    ]
    sent = spark.sparkContext.broadcast(
        [cut_parts(one, sample) for one, sample in zip(question.recordings, samples, strict=True)]
    )
    try:
        least, warnings = solve_bounds(spark, question, sent)
        places = [*itertools.product(range(len(question.recordings)), question.slas)]
        runs = [
            PlayedRun(n, set_limits(question, n, sla, least.get((n, sla))), one.policy)
            for n, sla in places
            for one in question.contenders
        ]
        played = play_runs(spark, runs, sent, weight=lambda run: weigh_run(run, question, samples), watch=watch)
    finally:
        sent.destroy()
    return replace(conclude(question, samples, least, runs, played), warnings=warnings)


def check_question(question: Question) -> None:
    """Raises ValidationError if the question has no tasks, no contenders or too many runs."""
    if not question.recordings or not all(len(one) for one in question.recordings):
        raise ValidationError("trace: nothing arrives in it", field="trace")
    if not question.contenders:
        raise ValidationError("policies: none was named", field="policies")
    if not 1 <= question.runs <= MAX_RUNS:
        raise ValidationError(
            f"{question.runs:,} runs are more than {MAX_RUNS:,}", hint="Sweep fewer knobs.", field="grid"
        )


def set_limits(question: Question, n: int, sla: float, least: LeastCost | None) -> Limits:
    """Returns the limits of a run: the given maximum of workers, else the one that the bound needs, with headroom."""
    most, recording = question.max_workers, question.recordings[n]
    if most is None and least is not None:
        most = math.ceil(judge.HEADROOM * least.peak)
    elif most is None:
        most = math.ceil(SPARE_FACTOR * float(recording.service.sum()) / recording.duration / question.limits.slots)
    most = min(MAX_WORKERS, max(1, question.limits.min_workers, most))
    return replace(question.limits, sla=sla, max_workers=most)


def weigh_run(run: PlayedRun, question: Question, samples: Sequence[WindowSample]) -> float:
    """Estimates how long a run takes: the longest begin first."""
    recording, sample = question.recordings[run.recording], samples[run.recording]
    seconds = sum(one.until - one.begin for one in sample.windows)
    tasks = len(recording) / recording.duration * seconds
    return tasks + 15 * SLOW.get(run.policy.name, 1.0) * seconds / run.limits.interval
