"""`penstock pipeline backtest` plays recorded history against other promises and policies."""

from __future__ import annotations

import json as plain_json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import validate
from penstock.cli.commands.simulate import LEGEND
from penstock.cli.commands.simulate_options import MAX_SEEDS, check_trace_options, check_writable
from penstock.cli.terminal.formatting import escape, format_seconds
from penstock.cli.terminal.options import AsJson, Debug, join_lines, parse_moment, parse_seconds
from penstock.cli.terminal.output import print_json, print_line, print_table, progress_bar
from penstock.errors import ValidationError, shown
from penstock.formatting import format_age, format_count, format_percent
from penstock.scaler.judge import chart, judge, traces
from penstock.scaler.policy import policies
from penstock.scaler.policy.signals import MAX_WORKERS, Limits
from penstock.spark import require_pyspark as spark_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.backtest import Answer, Contender, Question, Verdict
    from penstock.pipeline.backtest.stratified import Recording
    from penstock.pipeline.lake import Lake

DEFAULT_POLICIES = "deadline,backlog-drain,hybrid,cboxdk,keda-pending,static"
ALL_POLICIES = "all"


def backtest(
    *,
    lake: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A lake that `penstock pipeline run` has filled.", show_default=False),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="The queue of the lake; default: its only one.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="The beginning, as 2030-01-31T06:00:00Z.", show_default=False)
    ] = None,
    until: Annotated[str | None, typer.Option(help="The end.", show_default=False)] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            help="A CSV file or a synthetic trace, instead of a lake; you can repeat the option.", show_default=False
        ),
    ] = None,
    names: Annotated[str, typer.Option("--policies", help="The policies, or all.")] = DEFAULT_POLICIES,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="A knob and its values, as deadline:z=0.5,1,2; you can repeat the option.", show_default=False
        ),
    ] = None,
    knobs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help='JSON: [{"policy": "deadline", "z": 1.5}, …].', show_default=False),
    ] = None,
    sla: Annotated[str, typer.Option(help="The promises, as 10s,30s,60s.")] = "30s",
    seeds: Annotated[
        int, typer.Option(help="The number of runs, each with other random numbers; the output shows means.")
    ] = 1,
    start_latency: Annotated[str, typer.Option(help="The time from the start of a worker to its first task.")] = "20s",
    interval: Annotated[str, typer.Option(help="The time between two decisions.")] = "5s",
    min_workers: Annotated[int, typer.Option(help="The smallest number of workers.")] = 1,
    max_workers: Annotated[
        int | None,
        typer.Option(
            help="The largest number of workers; default: 1.5 × the most that a clairvoyant would use.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[int, typer.Option(help="How many tasks one worker runs at once.")] = 1,
    service: Annotated[str, typer.Option(help="The run time of a task, if the trace has none.")] = "2s",
    cv: Annotated[float, typer.Option(help="How much the run time varies: standard deviation / mean.")] = 1.0,
    duration: Annotated[str | None, typer.Option(help="The length of the trace.", show_default=False)] = None,
    start: Annotated[str | None, typer.Option(help="Where to begin in a file.", show_default=False)] = None,
    tasks: Annotated[int | None, typer.Option(help="Scale the trace to so many tasks.", show_default=False)] = None,
    most_tasks: Annotated[
        int,
        typer.Option(
            help="The largest number of tasks in one run; a longer recording is sampled, and the output says so."
        ),
    ] = 1_200_000,
    plot: Annotated[
        str | None, typer.Option(help="Draw breaches against cost into this SVG file.", show_default=False)
    ] = None,
    no_bound: Annotated[bool, typer.Option("--no-bound", help="Do not compute the least possible cost.")] = False,
    master: Annotated[
        str | None, typer.Option(help="The Spark master; default: this machine.", show_default=False)
    ] = None,
    json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    chosen = parse_policies(names)
    given = check_options(
        slas=parse_slas(sla),
        min_workers=min_workers,
        max_workers=max_workers,
        slots=slots,
        interval=interval,
        start_latency=start_latency,
        seeds=seeds,
        most_tasks=most_tasks,
        solve=not no_bound,
    )
    made = check_trace_options(service=service, cv=cv, start=start, duration=duration, tasks=tasks)
    bounds = check_source(lake, trace, queue, since, until)
    sets, drawing = read_knobs(knobs), None if plot is None else check_writable(plot)
    contenders = make_contenders(chosen, grid or (), sets)
    # Spark takes a while to start, so all errors are raised before.
    if lake is None:
        recordings = load_traces(trace or (), made, given.seeds)
        answer = play(master, given, contenders, lambda _: recordings, quiet=json)
    else:
        found = open_lake(lake)
        answer = play(
            master, given, contenders, lambda spark: load_lake(spark, found, queue, bounds, given.seeds), quiet=json
        )
    charts = [] if drawing is None else draw_charts(answer, drawing)
    if json:
        print_json(answer_json(answer, given, charts))
    else:
        print_answer(answer, charts)


backtest.__doc__ = join_lines(
    """Play recorded history against other promises, policies and knobs: one Spark task for each, on all cores.

    It prints for each promise the cost of the cheapest policy that keeps it (at most 0.5 % late). From a lake it plays
    every attempt, with its due moment and its run time. From a long recording it plays
    the half hours that look hardest and a sample of the others; ± is the 95 % interval of that sample.

    Example: penstock pipeline backtest --lake lake --queue mail --sla 10s,30s,60s --grid deadline:z=0.5,1,2
    """
)


def play(
    master: str | None,
    given: BacktestOptions,
    contenders: Sequence[Contender],
    load: Callable[[SparkSession], list[Recording]],
    *,
    quiet: bool,
) -> Answer:
    with open_spark(master) as spark:
        from penstock.pipeline import backtest as pipeline  # noqa: PLC0415 - it brings Spark

        question = given.question(load(spark), contenders)
        with progress_bar("backtest", question.runs, quiet=quiet) as bar:
            return pipeline.backtest(spark, question, watch=bar)


# --- options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BacktestOptions:
    """The options of a backtest, checked."""

    slas: tuple[float, ...]
    limits: Limits
    seeds: int
    max_workers: int | None
    most_tasks: int
    solve: bool

    def question(self, recordings: Sequence[Recording], contenders: Sequence[Contender]) -> Question:
        from penstock.pipeline.backtest import Question  # noqa: PLC0415 - it brings Spark

        return Question(
            recordings=tuple(recordings),
            contenders=tuple(contenders),
            slas=self.slas,
            limits=self.limits,
            max_workers=self.max_workers,
            solve=self.solve,
            most_tasks=self.most_tasks,
        )

    def inputs(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "slas": [*self.slas],
            "start_latency": limits.start_latency,
            "interval": limits.interval,
            "slots": limits.slots,
            "min_workers": limits.min_workers,
            "max_workers": self.max_workers,
            "seeds": self.seeds,
            "most_tasks": self.most_tasks,
        }


def check_options(
    *,
    slas: tuple[float, ...],
    min_workers: int,
    max_workers: int | None,
    slots: int,
    interval: str,
    start_latency: str,
    seeds: int,
    most_tasks: int,
    solve: bool,
) -> BacktestOptions:
    limits = Limits(
        sla=min(slas),
        min_workers=min_workers,
        max_workers=max(1, min_workers) if max_workers is None else max_workers,
        slots=slots,
        interval=parse_seconds(interval, "interval"),
        start_latency=parse_seconds(start_latency, "start_latency"),
    )
    return BacktestOptions(
        slas=slas,
        limits=limits,
        seeds=validate.whole(seeds, "seeds", 1, MAX_SEEDS),
        max_workers=max_workers,
        most_tasks=validate.whole(most_tasks, "most_tasks", 1, 10**9),
        solve=solve,
    )


def parse_policies(text: str) -> list[str]:
    if text.strip() == ALL_POLICIES:
        return [*policies.POLICIES]
    found = [*dict.fromkeys(name.strip() for name in text.split(",") if name.strip())]
    if not found:
        raise ValidationError("policies: none is named", hint="Write deadline,hybrid, or all.", field="policies")
    for name in found:
        policies.find(name)
    return found


def parse_slas(text: str) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(parse_seconds(one.strip(), "sla") for one in text.split(",")))
    for one in found:
        Limits(one)  # it raises if this is no promise
    return tuple(sorted(found))


def check_source(
    lake: str | None, trace: Sequence[str] | None, queue: str | None, since: str | None, until: str | None
) -> tuple[datetime | None, datetime | None]:
    """Requires either a lake or traces, and returns the bounds of the lake."""
    bounds = (parse_moment(since, "since"), parse_moment(until, "until"))
    if (lake is None) == (not trace):
        hint = "Write --lake DIR, or --trace FILE."
        raise ValidationError("lake, trace: give one of them", hint=hint, field="lake")
    if lake is None and (queue is not None or any(bounds)):
        raise ValidationError("queue, since, until: they need --lake", hint="Use --start with --trace.", field="queue")
    return bounds


def read_knobs(path: str | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    hint = 'Write [{"policy": "deadline", "z": 1.5}, …].'
    try:
        found = plain_json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ValidationError(f"knobs: {shown(path)}: {error.strerror}", field="knobs") from None
    except ValueError as error:
        raise ValidationError(f"knobs: {shown(path)} is not JSON: {error}", hint=hint, field="knobs") from None
    if not isinstance(found, list):
        raise ValidationError(f"knobs: {shown(path)} is not a list", hint=hint, field="knobs")
    return found


def make_contenders(names: Sequence[str], grid: Sequence[str], sets: Sequence[dict[str, Any]]) -> list[Contender]:
    spark_needed()
    from penstock.pipeline.backtest import contenders  # noqa: PLC0415 - it brings Spark

    return contenders(names, grid, sets)


def open_lake(lake: str) -> Lake:
    from penstock.pipeline.lake import Lake  # noqa: PLC0415 - it brings Spark

    found = Lake(lake)
    _ = found.state  # raises if there is no lake
    return found


def load_traces(names: Sequence[str], made: dict[str, Any], seeds: int) -> list[Recording]:
    from penstock.pipeline.backtest.stratified import Recording  # noqa: PLC0415 - it brings numpy

    found = [traces.find(name, seed=seed, **made) for name in dict.fromkeys(names) for seed in range(seeds)]
    return [Recording.of(one) for one in found]


def load_lake(
    spark: SparkSession, lake: Lake, queue: str | None, bounds: tuple[Any, Any], seeds: int
) -> list[Recording]:
    from penstock.pipeline.learn import arrivals  # noqa: PLC0415 - it brings Spark

    since, until = bounds
    return arrivals.from_lake(spark, lake, queue=queue, since=since, until=until, seeds=seeds)


@contextmanager
def open_spark(master: str | None) -> Iterator[SparkSession]:
    from penstock.cli.commands.pipeline import start_quiet_spark  # noqa: PLC0415 - it imports us

    spark = start_quiet_spark(master)
    try:
        yield spark
    finally:
        spark.stop()


# --- output -----------------------------------------------------------------------------------------------------------


def draw_charts(answer: Answer, path: Path) -> list[Path]:
    """Draws a chart for each promise, each in a file of its own if there are several."""
    several, made = len({one.sla for one in answer.verdicts}) > 1, []
    for sla in sorted({one.sla for one in answer.verdicts}):
        own = [one for one in answer.verdicts if one.sla == sla]
        by_label: dict[str, list[judge.Score]] = {}
        for one in own:
            by_label.setdefault(one.score.policy, []).append(one.score)
        file = path.with_name(f"{path.stem}-{sla:g}s{path.suffix}") if several else path
        names = [*dict.fromkeys(one.score.trace for one in own)]
        what = names[0] if len(names) == 1 else f"all {len(names)} traces"
        title = f"{what}: late tasks and cost, {format_age(sla)} promised"
        scores = [judge.merge_scores(names[0], each) for each in by_label.values()]
        file.write_text(chart.draw_frontier(scores, title), encoding="utf-8")
        made.append(file)
    return made


def answer_json(answer: Answer, given: BacktestOptions, pictures: Sequence[Path]) -> dict[str, Any]:
    return {
        "inputs": given.inputs(),
        "coverage": [one.to_json() for one in answer.coverage],
        "promises": [
            {
                "trace": one.trace,
                "sla": one.sla,
                "kept": one.cheapest is not None,
                "workers": None if one.cheapest is None else one.cheapest.workers,
                "label": None if one.cheapest is None else one.cheapest.score.policy,
                "text": one.sentence,
            }
            for one in answer.promises
        ],
        "verdicts": [one.to_json() for one in answer.verdicts],
        "warnings": [*answer.warnings],
        "plots": [str(one) for one in pictures],
    }


COLUMNS = ("", "policy", "late", "workers", "cost", "peak", "starts", "turns/h", "p50", "p99", "longest")


def print_answer(answer: Answer, pictures: Sequence[Path]) -> None:
    for warning in answer.warnings:
        sys.stderr.write(f"{warning}\n")
    for cover in answer.coverage:
        length = format_seconds(round(cover.duration))
        print_line(f"{escape(cover.trace)}: {format_count(cover.tasks)} in {length}")
        if not cover.whole:
            played = f"{cover.windows} of {cover.of_windows} half hours were played"
            print_line(f"  {played}, {format_count(cover.played)}; ± is 95 %")
        for note in cover.notes:
            print_line(f"  {note}")
        own = [one for one in answer.verdicts if one.score.trace == cover.trace]
        for sla in sorted({one.sla for one in own}):
            print_line("")
            print_line(f"{sla:g} s promised")
            print_table(COLUMNS, [*format_rows([one for one in own if one.sla == sla])], words=("policy",))
        print_line("")
        for promise in answer.promises:
            if promise.trace == cover.trace:
                print_line(promise.sentence)
        print_line("")
    print_line(LEGEND)
    for one_chart in pictures:
        print_line(f"chart: {escape(str(one_chart))}")


def format_rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    from penstock.pipeline.backtest import format_cost, format_late  # noqa: PLC0415 - it brings Spark

    best = judge.find_frontier([one.score for one in verdicts])
    for one in sorted(verdicts, key=lambda one: (one.score.breach_rate, one.workers)):
        score = one.score
        yield (
            "*" if score in best else "",
            score.policy,
            format_late(one) if one.late_margin else format_percent(score.breach_rate),
            format_cost(one),
            "–" if score.cost_ratio is None else f"{score.cost_ratio:.2f}",
            f"{score.peak_workers} of {score.max_workers}"
            if score.max_workers < MAX_WORKERS
            else str(score.peak_workers),
            f"{score.starts:,.0f}",
            f"{score.flips_per_hour:.1f}",
            f"{score.p50_wait:.1f} s",
            f"{score.p99_wait:.1f} s",
            f"{score.max_wait:.1f} s",
        )
