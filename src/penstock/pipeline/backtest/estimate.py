"""Estimates the results of whole recordings from the windows that were played."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql import Row

from penstock.pipeline.backtest.play import LeastCost, PlayedRun
from penstock.pipeline.backtest.question import Answer, Contender, Coverage, Promise, Question, Verdict
from penstock.pipeline.backtest.stratified import Z_95, Recording, WindowSample, weighted_quantile
from penstock.scaler.judge import judge
from penstock.scaler.judge.judge import Score


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the windows of one run say about the whole recording."""

    score: Score
    workers: float
    workers_error: float
    late_error: float


def conclude(
    question: Question,
    samples: Sequence[WindowSample],
    least: Mapping[tuple[int, float], LeastCost],
    runs: Sequence[PlayedRun],
    played: Sequence[list[Row]],
) -> Answer:
    """Returns the answer from the rows of all runs."""
    grouped: dict[tuple[str, float, str], list[Estimate]] = {}
    known = {one.label: one for one in question.contenders}
    labels = itertools.cycle(known)
    for run, rows in zip(runs, played, strict=True):
        label, recording, sla = next(labels), question.recordings[run.recording], run.limits.sla
        found = estimate(recording, samples[run.recording], least.get((run.recording, sla)), run, rows)
        found = replace(found, score=replace(found.score, policy=label))
        grouped.setdefault((recording.name, sla, label), []).append(found)
    verdicts = [make_verdict(found, sla, known[label]) for (_, sla, label), found in grouped.items()]
    return Answer(tuple(verdicts), tuple(make_promises(verdicts)), tuple(measure_coverage(question, samples)))


def estimate(
    recording: Recording, sample: WindowSample, least: LeastCost | None, run: PlayedRun, rows: Sequence[Row]
) -> Estimate:
    """Estimates the score of a run from its windows."""

    def total(name: str) -> tuple[float, float]:
        return sample.total([float(row[name]) for row in rows])

    def total_by_work(values: Sequence[float]) -> tuple[float, float]:
        if sample.whole:
            return values[0], 0.0
        work = [recording.work(one.since, one.until) for one in sample.windows]
        return sample.total_by(values, work, float(recording.service.sum()))

    tasks = len(recording)
    paid, paid_error = total_by_work([row["worker_seconds"] for row in rows])
    late_tasks, late_error = total("breaches")
    hours, _ = total("hours")
    floor = None if least is None else total_by_work(least.worker_seconds)[0]
    unavoidable = 0.0 if least is None else estimate_unavoidable(sample, least, rows)
    p50, p99 = estimate_waits(sample, rows)
    score = Score(
        trace=recording.name,
        policy=run.policy.name,
        seeds=1,
        tasks=tasks,
        breach_rate=min(1.0, late_tasks / tasks),
        excess_breach_rate=max(0.0, min(1.0, late_tasks / tasks) - unavoidable),
        cost_ratio=paid / floor if floor else None,
        worker_seconds=paid,
        utilization=total("busy_seconds")[0] / paid / run.limits.slots if paid else 0.0,
        starts=total("starts")[0],
        flips_per_hour=total("flips")[0] / hours if hours else 0.0,
        p50_wait=p50,
        p99_wait=p99,
        max_wait=max(row["max_wait"] for row in rows),
        peak_workers=max(row["peak_workers"] for row in rows),
        max_workers=run.limits.max_workers,
    )
    length = recording.duration
    return Estimate(score, paid / length, paid_error / length, late_error / tasks)


def estimate_waits(sample: WindowSample, rows: Sequence[Row]) -> tuple[float, float]:
    """Returns the median and the 99th percentile of the waits."""
    if not any(row["waits"] for row in rows):
        return 0.0, 0.0
    waits = np.concatenate([np.asarray(row["waits"], dtype=float) for row in rows])
    weights = zip(rows, sample.weights(), strict=True)
    shares = np.concatenate([np.full(len(row["waits"]), weight * row["tasks"]) for row, weight in weights])
    return weighted_quantile(waits, shares, 0.5), weighted_quantile(waits, shares, 0.99)


def estimate_unavoidable(sample: WindowSample, least: LeastCost, rows: Sequence[Row]) -> float:
    """Returns the share of tasks that are late under any policy."""
    late_tasks = [share * row["tasks"] for share, row in zip(least.late_shares, rows, strict=True)]
    tasks, _ = sample.total([float(row["tasks"]) for row in rows])
    return sample.total(late_tasks)[0] / tasks if tasks else 0.0


def make_verdict(found: Sequence[Estimate], sla: float, one: Contender) -> Verdict:
    mean, scores = statistics.fmean, [each.score for each in found]
    merged = replace(judge.merge_scores(scores[0].trace, scores), seeds=len(found))
    return Verdict(
        score=merged,
        sla=sla,
        policy=one.policy.name,
        knobs=one.knobs,
        workers=mean(each.workers for each in found),
        workers_margin=Z_95 * math.hypot(*(each.workers_error for each in found)) / len(found),
        late_margin=Z_95 * math.hypot(*(each.late_error for each in found)) / len(found),
    )


def make_promises(verdicts: Sequence[Verdict]) -> Iterator[Promise]:
    """Yields the cheapest contender of each recording and promise, the shortest promise first."""
    pairs = dict.fromkeys((one.score.trace, one.sla) for one in verdicts)
    for trace, sla in sorted(pairs, key=lambda pair: pair[1]):
        own = [one for one in verdicts if (one.score.trace, one.sla) == (trace, sla)]
        keeping = [one for one in own if one.kept]
        cheapest = min(keeping, key=lambda one: one.workers, default=None)
        yield Promise(trace, sla, cheapest, min(own, key=lambda one: one.score.breach_rate), len(own))


def measure_coverage(question: Question, samples: Sequence[WindowSample]) -> Iterator[Coverage]:
    """Yields the coverage of each recording once: its seeds are alike."""
    reported = set[str]()
    for recording, sample in zip(question.recordings, samples, strict=True):
        if recording.name in reported:
            continue
        reported.add(recording.name)
        cuts = [np.searchsorted(recording.due, [one.begin, one.end]) for one in sample.windows]
        yield Coverage(
            trace=recording.name,
            tasks=len(recording),
            duration=recording.duration,
            played=int(sum(last - first for first, last in cuts)),
            windows=len(sample.windows),
            of_windows=sum(sample.strata),
            notes=recording.notes,
        )
