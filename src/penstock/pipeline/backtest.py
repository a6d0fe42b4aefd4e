"""What a promise would have cost: recordings × promises × policies × knobs, each one Spark task.

Every policy meets the same tasks, sent to executors once. What does not fit is sampled (`sampling`), and said. First
the clairvoyants, one task for each recording and promise: how many workers a policy may use comes from them. Then
everybody, the longest first, so that no core waits at the end for one that began late.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import ValidationError, shown
from penstock.pipeline.sampling import CONFIDENT, LONG_WARM_UP, WARM_UP, Recording, Sample, Window, quantile, sampled
from penstock.pipeline.work import sparks_errors
from penstock.scaler import judge, policies
from penstock.scaler.bound import bound
from penstock.scaler.decision import Policy
from penstock.scaler.judge import Score
from penstock.scaler.signals import MOST_WORKERS, Limits
from penstock.scaler.simulate import Result, simulate
from penstock.scaler.traces import Trace

Watch = Callable[[int, int], None]  # runs done, of how many

MOST_TASKS = 1_200_000  # played in one run; more are sampled
KEPT = 0.005  # late tasks with which a promise still counts as kept
SPARE = 3  # times the mean load that may be used, when nobody knows what the peak needs
MOST_STEPS = 20_000  # of a clairvoyant's program; a longer recording gets longer steps
MOST_RUNS = 100_000
POINTS = 200  # of the distribution of waits that each window sends back
SLOW = {"deadline": 4.0}  # what a decision costs, times that of others: who begins first
GROUP = "spark.jobGroup.id"
LOOK = 0.5  # seconds between two looks at how far Spark is


# --- what is played ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, perhaps with knobs of its own."""

    policy: Policy
    label: str
    knobs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be found out. `recordings` with the same name are seeds of one."""

    recordings: tuple[Recording, ...]
    contenders: tuple[Contender, ...]
    slas: tuple[float, ...]
    limits: Limits  # their SLA and maximum do not count
    max_workers: int | None = None
    solve: bool = True
    most_tasks: int = MOST_TASKS
    seed: int = 0

    @property
    def runs(self) -> int:
        return len(self.recordings) * len(self.slas) * len(self.contenders)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One contender on one recording under one promise: means over the seeds. Margins are of 95 %; 0: nothing was
    sampled, so what remains is what the seeds differ in."""

    score: Score
    sla: float
    policy: str
    knobs: Mapping[str, Any]
    workers: float  # on average
    workers_margin: float
    late_margin: float

    @property
    def kept(self) -> bool:
        return self.score.excess_breach_rate <= KEPT

    def to_json(self) -> dict[str, Any]:
        told = {"sla": self.sla, **self.score.to_json(), "label": self.score.policy, "policy": self.policy}
        return {
            **told,
            "knobs": dict(self.knobs),
            "workers": self.workers,
            "workers_margin": self.workers_margin,
            "breach_rate_margin": self.late_margin,
            "kept": self.kept,
        }


@dataclass(frozen=True, slots=True)
class Promise:
    """The cheapest that kept a promise; None: nobody did, and `best` came nearest."""

    trace: str
    sla: float
    cheapest: Verdict | None
    best: Verdict
    contenders: int

    @property
    def sentence(self) -> str:
        one = self.cheapest
        if one is None:
            return (
                f"a {self.sla:g} s promise would have been kept by none of {self.contenders}; "
                f"{self.best.score.policy} came nearest, {late(self.best)} late with {cost(self.best)} workers"
            )
        return f"a {self.sla:g} s promise would have cost {cost(one)} workers ({one.score.policy}, {late(one)} late)"


def cost(one: Verdict) -> str:
    return f"{one.workers:.1f}" + (f" ± {one.workers_margin:.1f}" if one.workers_margin >= 0.05 else "")


def late(one: Verdict) -> str:
    margin = f" ± {100 * one.late_margin:.2f}" if one.late_margin >= 0.00005 else ""
    return f"{100 * one.score.breach_rate:.2f}{margin} %"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a recording was played."""

    trace: str
    tasks: int
    duration: float
    played: int  # tasks, those of warm-ups included
    windows: int
    of_windows: int
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return self.of_windows == 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "whole": self.whole, "notes": [*self.notes]}


@dataclass(frozen=True, slots=True)
class Answer:
    verdicts: tuple[Verdict, ...]
    promises: tuple[Promise, ...]
    coverage: tuple[Coverage, ...]
    warnings: tuple[str, ...] = ()


# --- contenders and their knobs ---------------------------------------------------------------------------------------


def contenders(
    names: Sequence[str], grid: Sequence[str] = (), sets: Sequence[Mapping[str, Any]] = ()
) -> list[Contender]:
    """The policies of these names, with every combination of the grid's values (`z=0.5,1` or `deadline:z=0.5,1`) that
    they have; and the sets of knobs that were given whole, `{"policy": "deadline", "z": 1.5}`."""
    chosen = {name: policies.find(name) for name in names}
    axes = [axis(text, chosen) for text in grid]
    found = [one for name, policy in chosen.items() for one in combined(name, policy, axes)]
    for n, given in enumerate(sets):
        found.append(from_set(given, n))
    return [*{one.label: one for one in found}.values()]


Axis = tuple[set[str], str, list[str]]  # of which policies, knob, values


def axis(text: str, chosen: Mapping[str, Policy]) -> Axis:
    name, equals, values = text.partition("=")
    policy, colon, knob = name.strip().rpartition(":")
    if not equals or not knob or not all(value.strip() for value in values.split(",")):
        hint = "Write z=0.5,1,2 or deadline:z=0.5,1,2."
        raise ValidationError(f"grid: {shown(text)} is not a knob and its values", hint=hint, field="grid")
    if colon and policy not in chosen:
        raise ValidationError(f"grid: {shown(text)}: {policy} is not among the policies", field="grid")
    having = {one for one, its in chosen.items() if knob in knobs_of(its) and (not colon or one == policy)}
    if not having:
        all_knobs = sorted({one for its in chosen.values() for one in knobs_of(its)})
        near = get_close_matches(knob, all_knobs, 1, cutoff=0.4)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(all_knobs)}."
        raise ValidationError(f"grid: {shown(knob)} is a knob of none of them", hint=hint, field="grid")
    return having, knob, [value.strip() for value in values.split(",")]


def knobs_of(policy: object, prefix: str = "") -> dict[str, Any]:
    """Numbers and switches, those inside others as `numbers.window`."""
    found: dict[str, Any] = {}
    for one in fields(policy) if is_dataclass(policy) else ():
        value = getattr(policy, one.name)
        if isinstance(value, (bool, int, float)):
            found[prefix + one.name] = value
        elif is_dataclass(value):
            found |= knobs_of(value, f"{prefix}{one.name}.")
    return found


def combined(name: str, policy: Policy, axes: Sequence[Axis]) -> Iterator[Contender]:
    own = [(knob, values) for having, knob, values in axes if name in having]
    for values in itertools.product(*(values for _, values in own)):
        yield turned(name, policy, dict(zip((knob for knob, _ in own), values, strict=True)))


def from_set(given: Mapping[str, Any], n: int) -> Contender:
    if not isinstance(given, dict) or not isinstance(given.get("policy"), str):
        hint = 'Write [{"policy": "deadline", "z": 1.5}, …].'
        raise ValidationError(f"knobs[{n}]: {shown(given)} does not name a policy", hint=hint, field="knobs")
    values = {knob: value for knob, value in given.items() if knob != "policy"}
    return turned(given["policy"], policies.find(given["policy"]), values)


def turned(name: str, policy: Policy, values: Mapping[str, Any]) -> Contender:
    """A policy with other values of some of its knobs."""
    there, made, knobs = knobs_of(policy), policy, dict[str, Any]()
    for knob, value in values.items():
        if knob not in there:
            near = get_close_matches(knob, there, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(there) or 'none'}."
            raise ValidationError(f"knobs: {shown(knob)} is no knob of {name}", hint=hint, field="knobs")
        knobs[knob] = typed(knob, value, there[knob])
        made = with_knob(made, knob.split("."), knobs[knob])
    said = " ".join(
        f"{knob}={value:g}" if isinstance(value, float) else f"{knob}={value}" for knob, value in knobs.items()
    )
    return Contender(made, f"{name} {said}".strip(), knobs)


def typed(knob: str, value: Any, usual: Any) -> Any:
    words = {"true": True, "false": False}
    try:
        if isinstance(usual, bool):
            return value if isinstance(value, bool) else words[str(value).lower()]
        found = float(value)
    except (KeyError, TypeError, ValueError):
        found = math.nan
    whole = isinstance(usual, int)
    if isinstance(value, bool) or not math.isfinite(found) or (whole and found != int(found)):
        kind = "true or false" if isinstance(usual, bool) else "a whole number" if whole else "a number"
        raise ValidationError(f"knobs: {knob}: {shown(value)} is not {kind}", field="knobs")
    return int(found) if whole else found


def with_knob(made: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    return replace(made, **{first: with_knob(getattr(made, first), rest, value) if rest else value})


# --- in the driver ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """What an executor plays: a window's tasks. Sent once, whoever plays it."""

    trace: Trace
    window: Window


@dataclass(frozen=True, slots=True)
class Run:
    recording: int
    limits: Limits
    policy: Policy


@dataclass(frozen=True, slots=True)
class Least:
    """What a clairvoyant would have paid, window by window."""

    worker_seconds: tuple[float, ...]
    late_shares: tuple[float, ...]
    peak: float


def backtest(spark: SparkSession, question: Question, *, watch: Watch | None = None) -> Answer:
    check(question)
    slow = question.limits.start_latency + question.limits.interval
    ahead, warm_up = slow + 2 * max(question.slas), LONG_WARM_UP if slow >= min(question.slas) else WARM_UP
    samples = [
        sampled(one, question.most_tasks, ahead=ahead, warm_up=warm_up, seed=question.seed)
        for one in question.recordings
    ]
    sent = spark.sparkContext.broadcast(
        [parts_of(one, sample) for one, sample in zip(question.recordings, samples, strict=True)]
    )
    try:
        least, warnings = clairvoyants(spark, question, sent)
        places = [*itertools.product(range(len(question.recordings)), question.slas)]
        runs = [
            Run(n, limits_of(question, n, sla, least.get((n, sla))), one.policy)
            for n, sla in places
            for one in question.contenders
        ]
        played = perform(spark, runs, sent, weight=lambda run: run_weight(run, question, samples), watch=watch)
    finally:
        sent.destroy()
    return replace(concluded(question, samples, least, runs, played), warnings=warnings)


def check(question: Question) -> None:
    if not question.recordings or not all(len(one) for one in question.recordings):
        raise ValidationError("trace: nothing arrives in it", field="trace")
    if not question.contenders:
        raise ValidationError("policies: none was named", field="policies")
    if not 1 <= question.runs <= MOST_RUNS:
        raise ValidationError(
            f"{question.runs:,} runs are more than {MOST_RUNS:,}", hint="Sweep fewer knobs.", field="grid"
        )


def parts_of(recording: Recording, sample: Sample) -> list[Part]:
    return [Part(recording.cut(one.begin, one.end), one) for one in sample.windows]


def limits_of(question: Question, n: int, sla: float, least: Least | None) -> Limits:
    most, recording = question.max_workers, question.recordings[n]
    if most is None and least is not None:
        most = math.ceil(judge.HEADROOM * least.peak)
    elif most is None:
        most = math.ceil(SPARE * float(recording.service.sum()) / recording.duration / question.limits.slots)
    most = min(MOST_WORKERS, max(1, question.limits.min_workers, most))
    return replace(question.limits, sla=sla, max_workers=most)


def run_weight(run: Run, question: Question, samples: Sequence[Sample]) -> float:
    recording, sample = question.recordings[run.recording], samples[run.recording]
    seconds = sum(one.until - one.begin for one in sample.windows)
    tasks = len(recording) / recording.duration * seconds
    return tasks + 15 * SLOW.get(run.policy.name, 1.0) * seconds / run.limits.interval


def clairvoyants(
    spark: SparkSession, question: Question, sent: Any
) -> tuple[dict[tuple[int, float], Least], tuple[str, ...]]:
    if not question.solve:
        return {}, ()
    try:
        import scipy  # noqa: F401, PLC0415 - an extra, asked for before executors are
    except ImportError:
        return {}, ("no cost ratio: scipy is not installed",)
    asked = [*itertools.product(range(len(question.recordings)), question.slas)]
    base, most = question.limits, question.max_workers
    schema = "run long, worker_seconds array<double>, late_shares array<double>, peak double"

    def solve(n: int) -> Iterator[dict[str, Any]]:
        recording, sla = asked[n]
        found = [least_of(part, replace(base, sla=sla), most) for part in sent.value[recording]]
        yield {
            "run": n,
            "worker_seconds": [one[0] for one in found],
            "late_shares": [one[1] for one in found],
            "peak": max(one[2] for one in found),
        }

    rows = spread(spark, len(asked), solve, schema, order=range(len(asked)))
    least = {
        asked[row["run"]]: Least(tuple(row["worker_seconds"]), tuple(row["late_shares"]), row["peak"]) for row in rows
    }
    return least, ()


def least_of(part: Part, limits: Limits, max_workers: int | None) -> tuple[float, float, float]:
    """(worker-seconds, share of late work, peak) of a clairvoyant within the window. He plans its warm-up too, else he
    would begin it with nobody there."""
    until = part.window.until - part.window.begin
    steps = until / limits.interval
    step = limits.interval * max(1, math.ceil(steps / MOST_STEPS))
    trace = cut_off(part.trace, until)
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


def cut_off(trace: Trace, until: float) -> Trace:
    count = int(np.searchsorted(np.asarray(trace.due), until))
    return replace(
        trace, due=trace.due[:count], service=trace.service[:count], known=trace.known[:count], duration=until
    )


MEASURED = (
    "run long, window int, tasks long, played long, breaches long, worker_seconds double, busy_seconds double, "
    "starts long, flips long, hours double, peak_workers long, max_wait double, waits array<double>"
)


def perform(
    spark: SparkSession, runs: Sequence[Run], sent: Any, *, weight: Callable[[Run], float], watch: Watch | None
) -> list[list[Row]]:
    """Each run's windows, in their order."""
    order = sorted(range(len(runs)), key=lambda n: -weight(runs[n]))
    told = [*runs]

    def play(n: int) -> Iterator[dict[str, Any]]:
        run = told[n]
        for place, part in enumerate(sent.value[run.recording]):
            yield {"run": n, "window": place, **measured(part, run)}

    rows = spread(spark, len(runs), play, MEASURED, order=order, watch=watch)
    found: list[list[Row]] = [[] for _ in runs]
    for row in sorted(rows, key=lambda row: (row["run"], row["window"])):
        found[row["run"]].append(row)
    return found


def measured(part: Part, run: Run) -> dict[str, Any]:
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
        "waits": waits_of(result),
    }


def waits_of(result: Result) -> list[float]:
    return [result.wait((n + 1) / POINTS) for n in range(POINTS)] if result.waits else []


def spread(
    spark: SparkSession,
    count: int,
    work: Callable[[int], Iterator[dict[str, Any]]],
    schema: str,
    *,
    order: Sequence[int],
    watch: Watch | None = None,
) -> list[Row]:
    """A Spark task for each number, begun in this order."""
    turn = [*order]

    def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch["id"].to_pylist():
                yield pa.RecordBatch.from_pylist([*work(turn[place])], schema=arrow)

    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - it brings pandas

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    arrow = to_arrow_schema(columns)
    with sparks_errors(), watched(spark, count, watch):
        return spark.range(0, count, 1, count).mapInArrow(do, columns).collect()


@contextmanager
def watched(spark: SparkSession, count: int, watch: Watch | None) -> Iterator[None]:
    """Tells how many tasks are done, while the caller waits for all of them. Whoever is interrupted leaves no task
    running."""
    context, group, over = spark.sparkContext, f"penstock-backtest-{uuid4().hex[:8]}", threading.Event()
    before = context.getLocalProperty(GROUP)
    context.setJobGroup(group, "backtest", interruptOnCancel=True)

    def look() -> None:
        with suppress(Exception):  # Spark is gone: whoever waits for the answer hears of that
            while not over.wait(LOOK):
                if watch is not None:
                    watch(min(count, completed(context, group)), count)

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
            context.setLocalProperty(GROUP, before)  # type: ignore[arg-type]  # None is Java's null: as it was
    if watch is not None:
        watch(count, count)


def completed(context: SparkContext, group: str) -> int:
    """Tasks of a group's jobs."""
    tracker = context.statusTracker()
    jobs = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job)) is not None]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


# --- what it says -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """One run: what its windows say about all of the recording."""

    score: Score
    workers: float
    workers_error: float
    late_error: float


def concluded(
    question: Question,
    samples: Sequence[Sample],
    least: Mapping[tuple[int, float], Least],
    runs: Sequence[Run],
    played: Sequence[list[Row]],
) -> Answer:
    grouped: dict[tuple[str, float, str], list[Estimate]] = {}
    known = {one.label: one for one in question.contenders}
    labels = itertools.cycle(known)
    for run, rows in zip(runs, played, strict=True):
        label, recording, sla = next(labels), question.recordings[run.recording], run.limits.sla
        found = estimate(recording, samples[run.recording], least.get((run.recording, sla)), run, rows)
        found = replace(found, score=replace(found.score, policy=label))
        grouped.setdefault((recording.name, sla, label), []).append(found)
    verdicts = [verdict(found, sla, known[label]) for (_, sla, label), found in grouped.items()]
    return Answer(tuple(verdicts), tuple(promises(verdicts)), tuple(covered(question, samples)))


def estimate(recording: Recording, sample: Sample, least: Least | None, run: Run, rows: Sequence[Row]) -> Estimate:
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
    unavoidable = 0.0 if least is None else unavoidable_share(sample, least, rows)
    weights, p50, p99 = sample.weights(), 0.0, 0.0
    if any(row["waits"] for row in rows):
        waits = np.concatenate([np.asarray(row["waits"], dtype=float) for row in rows])
        shares = np.concatenate(
            [np.full(len(row["waits"]), weight * row["tasks"]) for row, weight in zip(rows, weights, strict=True)]
        )
        p50, p99 = quantile(waits, shares, 0.5), quantile(waits, shares, 0.99)
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


def unavoidable_share(sample: Sample, least: Least, rows: Sequence[Row]) -> float:
    """Late, whoever decides."""
    late_tasks = [share * row["tasks"] for share, row in zip(least.late_shares, rows, strict=True)]
    tasks, _ = sample.total([float(row["tasks"]) for row in rows])
    return sample.total(late_tasks)[0] / tasks if tasks else 0.0


def verdict(found: Sequence[Estimate], sla: float, one: Contender) -> Verdict:
    mean, scores = statistics.fmean, [each.score for each in found]
    merged = replace(judge.merged(scores[0].trace, scores), seeds=len(found))
    return Verdict(
        score=merged,
        sla=sla,
        policy=one.policy.name,
        knobs=one.knobs,
        workers=mean(each.workers for each in found),
        workers_margin=CONFIDENT * math.hypot(*(each.workers_error for each in found)) / len(found),
        late_margin=CONFIDENT * math.hypot(*(each.late_error for each in found)) / len(found),
    )


def promises(verdicts: Sequence[Verdict]) -> Iterator[Promise]:
    places = dict.fromkeys((one.score.trace, one.sla) for one in verdicts)
    for trace, sla in sorted(places, key=lambda place: place[1]):
        own = [one for one in verdicts if (one.score.trace, one.sla) == (trace, sla)]
        keeping = [one for one in own if one.kept]
        cheapest = min(keeping, key=lambda one: one.workers, default=None)
        yield Promise(trace, sla, cheapest, min(own, key=lambda one: one.score.breach_rate), len(own))


def covered(question: Question, samples: Sequence[Sample]) -> Iterator[Coverage]:
    """Of each recording once: its seeds are alike."""
    told = set[str]()
    for recording, sample in zip(question.recordings, samples, strict=True):
        if recording.name in told:
            continue
        told.add(recording.name)
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
