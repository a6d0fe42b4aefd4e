"""`penstock pipeline backtest`: what a promise would have cost, by what really happened."""

from __future__ import annotations

import json as plain_json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import validate
from penstock.cli.options import AsJson, Debug, flowing, moment
from penstock.cli.output import age, emit, harmless, many, progress_bar, say, span, table
from penstock.cli.scale import seconds
from penstock.cli.simulate import MOST_SEEDS, beginning, percent, writable
from penstock.errors import ValidationError, shown
from penstock.scaler import chart, judge, policies, traces
from penstock.scaler.signals import MOST_WORKERS, Limits
from penstock.spark import needed as spark_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.backtest import Answer, Contender, Question, Verdict
    from penstock.pipeline.lake import Lake
    from penstock.pipeline.sampling import Recording

USUAL = "deadline,backlog-drain,hybrid,cboxdk,keda-pending,static"
ALL = "all"


def backtest(
    *,
    lake: Annotated[
        str | None, typer.Option(metavar="DIR", help="A lake, as `penstock pipeline run` fills it.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="Which queue of the lake; default: its only one.", show_default=False)
    ] = None,
    since: Annotated[str | None, typer.Option(help="From when: 2030-01-31T06:00:00Z.", show_default=False)] = None,
    until: Annotated[str | None, typer.Option(help="To when.", show_default=False)] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(help="Instead of a lake: a CSV file or a made-up trace; may be repeated.", show_default=False),
    ] = None,
    names: Annotated[str, typer.Option("--policies", help="Who is tried, or all.")] = USUAL,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="A knob and its values, deadline:z=0.5,1,2; may be repeated.", show_default=False),
    ] = None,
    knobs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help='JSON: [{"policy": "deadline", "z": 1.5}, …].', show_default=False),
    ] = None,
    sla: Annotated[str, typer.Option(help="The promises that are tried: 10s,30s,60s.")] = "30s",
    seeds: Annotated[int, typer.Option(help="So many times with other random numbers; means are told.")] = 1,
    start_latency: Annotated[str, typer.Option(help="From asking for a worker to its first task.")] = "20s",
    interval: Annotated[str, typer.Option(help="Between two decisions.")] = "5s",
    min_workers: Annotated[int, typer.Option(help="Never fewer.")] = 1,
    max_workers: Annotated[
        int | None,
        typer.Option(help="Never more; default: 1.5 × what a clairvoyant would use at most.", show_default=False),
    ] = None,
    slots: Annotated[int, typer.Option(help="Tasks that one worker runs at a time.")] = 1,
    service: Annotated[str, typer.Option(help="How long a task takes, if the trace does not say.")] = "2s",
    cv: Annotated[float, typer.Option(help="How much that varies: standard deviation / mean.")] = 1.0,
    duration: Annotated[str | None, typer.Option(help="How much of the trace.", show_default=False)] = None,
    start: Annotated[str | None, typer.Option(help="Where in a file to begin.", show_default=False)] = None,
    tasks: Annotated[int | None, typer.Option(help="Scale the trace to so many.", show_default=False)] = None,
    most_tasks: Annotated[
        int, typer.Option(help="Played in one run; of a longer recording a sample is, and it is said.")
    ] = 1_200_000,
    plot: Annotated[str | None, typer.Option(help="Draw breaches against cost here, SVG.", show_default=False)] = None,
    no_bound: Annotated[bool, typer.Option("--no-bound", help="Do not work out the least possible cost.")] = False,
    master: Annotated[str | None, typer.Option(help="Where Spark runs; default: here.", show_default=False)] = None,
    json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    chosen = policy_names(names)
    limits = Limits(
        sla=min(promised := slas(sla)),
        min_workers=min_workers,
        max_workers=max(1, min_workers) if max_workers is None else max_workers,
        slots=slots,
        interval=seconds(interval, "interval"),
        start_latency=seconds(start_latency, "start_latency"),
    )
    given = Given(
        slas=promised,
        limits=limits,
        seeds=validate.whole(seeds, "seeds", 1, MOST_SEEDS),
        max_workers=max_workers,
        most_tasks=validate.whole(most_tasks, "most_tasks", 1, 10**9),
        solve=not no_bound,
    )
    made = {
        "service": seconds(service, "service"),
        "cv": cv,
        "start": beginning(start),
        "duration": None if duration is None else seconds(duration, "duration"),
        "tasks": tasks,
    }
    bounds = (moment(since, "since"), moment(until, "until"))
    check_source(lake, trace, queue, bounds)
    sets, drawing = knob_sets(knobs), None if plot is None else writable(plot)
    contenders = made_contenders(chosen, grid or (), sets)
    # Spark takes a while to start: what is wrong is told before.
    recordings = [] if lake is not None else from_traces(trace or (), made, given.seeds)
    place = None if lake is None else existing(lake)
    with spark_of(master) as spark:
        from penstock.pipeline import backtest as pipeline  # noqa: PLC0415 - it brings Spark

        if place is not None:
            recordings = from_lake(spark, place, queue, bounds, given.seeds)
        question = given.question(recordings, contenders)
        with progress_bar("backtest", question.runs, quiet=json) as bar:
            answer = pipeline.backtest(spark, question, watch=bar)
    pictures = [] if drawing is None else draw(answer, drawing)
    if json:
        emit(as_json(answer, given, pictures))
    else:
        tell(answer, pictures)


backtest.__doc__ = flowing(
    """Play what really happened against other promises, policies and knobs: one Spark task for each, on all cores.

    Says for each promise what the cheapest that keeps it (at most 0.5 % late) would have cost. From a lake every
    attempt is played, when it was due and as long as it ran. A long recording is sampled: half hours, those that look
    hardest all of them; ± is what that leaves uncertain, 95 %.

    Example: penstock pipeline backtest --lake lake --queue mail --sla 10s,30s,60s --grid deadline:z=0.5,1,2
    """
)


# --- what was asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """The options, checked."""

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


def policy_names(text: str) -> list[str]:
    if text.strip() == ALL:
        return [*policies.POLICIES]
    found = [*dict.fromkeys(name.strip() for name in text.split(",") if name.strip())]
    if not found:
        raise ValidationError("policies: none is named", hint="Write deadline,hybrid, or all.", field="policies")
    for name in found:
        policies.find(name)
    return found


def slas(text: str) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(seconds(one.strip(), "sla") for one in text.split(",")))
    for one in found:
        Limits(one)  # its own words for what is no promise
    return tuple(sorted(found))


def check_source(lake: str | None, trace: Sequence[str] | None, queue: str | None, bounds: tuple[Any, Any]) -> None:
    if (lake is None) == (not trace):
        raise ValidationError("lake, trace: give one of them", hint="--lake DIR, or --trace FILE.", field="lake")
    if lake is None and (queue is not None or any(bounds)):
        raise ValidationError("queue, since, until: they are of a lake", hint="--trace has --start.", field="queue")


def knob_sets(path: str | None) -> list[dict[str, Any]]:
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


def made_contenders(names: Sequence[str], grid: Sequence[str], sets: Sequence[dict[str, Any]]) -> list[Contender]:
    spark_needed()
    from penstock.pipeline.backtest import contenders  # noqa: PLC0415 - it brings Spark

    return contenders(names, grid, sets)


def existing(lake: str) -> Lake:
    from penstock.pipeline.lake import Lake  # noqa: PLC0415 - it brings Spark

    found = Lake(lake)
    _ = found.state  # an error, if there is none
    return found


def from_traces(names: Sequence[str], made: dict[str, Any], seeds: int) -> list[Recording]:
    from penstock.pipeline.sampling import Recording  # noqa: PLC0415 - it brings numpy

    found = [traces.find(name, seed=seed, **made) for name in dict.fromkeys(names) for seed in range(seeds)]
    return [Recording.of(one) for one in found]


def from_lake(
    spark: SparkSession, lake: Lake, queue: str | None, bounds: tuple[Any, Any], seeds: int
) -> list[Recording]:
    from penstock.pipeline import arrivals  # noqa: PLC0415 - it brings Spark

    since, until = bounds
    return arrivals.from_lake(spark, lake, queue=queue, since=since, until=until, seeds=seeds)


@contextmanager
def spark_of(master: str | None) -> Iterator[SparkSession]:
    from penstock.cli.pipeline import quiet_session  # noqa: PLC0415 - it imports us

    spark = quiet_session(master)
    try:
        yield spark
    finally:
        spark.stop()


# --- what came of it --------------------------------------------------------------------------------------------------


def draw(answer: Answer, path: Path) -> list[Path]:
    """A picture for each promise; with several, each in a file of its own."""
    several, made = len({one.sla for one in answer.verdicts}) > 1, []
    for sla in sorted({one.sla for one in answer.verdicts}):
        own = [one for one in answer.verdicts if one.sla == sla]
        by_label: dict[str, list[judge.Score]] = {}
        for one in own:
            by_label.setdefault(one.score.policy, []).append(one.score)
        place = path.with_name(f"{path.stem}-{sla:g}s{path.suffix}") if several else path
        names = [*dict.fromkeys(one.score.trace for one in own)]
        title = (
            f"{names[0] if len(names) == 1 else f'all {len(names)} traces'}: late tasks and cost, {age(sla)} promised"
        )
        scores = [judge.merged(names[0], each) for each in by_label.values()]
        place.write_text(chart.frontier(scores, title), encoding="utf-8")
        made.append(place)
    return made


def as_json(answer: Answer, given: Given, pictures: Sequence[Path]) -> dict[str, Any]:
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


def tell(answer: Answer, pictures: Sequence[Path]) -> None:
    for warning in answer.warnings:
        sys.stderr.write(f"{warning}\n")
    for cover in answer.coverage:
        length = span(timedelta(seconds=round(cover.duration)))
        say(f"{harmless(cover.trace)}: {many(cover.tasks)} in {length}")
        if not cover.whole:
            say(f"  {cover.windows} of {cover.of_windows} half hours were played, {many(cover.played)}; ± is 95 %")
        for note in cover.notes:
            say(f"  {note}")
        own = [one for one in answer.verdicts if one.score.trace == cover.trace]
        for sla in sorted({one.sla for one in own}):
            say("")
            say(f"{sla:g} s promised")
            table(COLUMNS, [*rows([one for one in own if one.sla == sla])], words=("policy",))
        say("")
        for promise in answer.promises:
            if promise.trace == cover.trace:
                say(promise.sentence)
        say("")
    say("* nobody is cheaper with as few late tasks; cost: times the least possible; turns: changes of direction")
    for picture in pictures:
        say(f"chart: {harmless(str(picture))}")


def rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    from penstock.pipeline.backtest import cost, late  # noqa: PLC0415 - it brings Spark

    best = judge.frontier([one.score for one in verdicts])
    for one in sorted(verdicts, key=lambda one: (one.score.breach_rate, one.workers)):
        score = one.score
        yield (
            "*" if score in best else "",
            score.policy,
            late(one) if one.late_margin else percent(score.breach_rate),
            cost(one),
            "–" if score.cost_ratio is None else f"{score.cost_ratio:.2f}",
            f"{score.peak_workers} of {score.max_workers}"
            if score.max_workers < MOST_WORKERS
            else str(score.peak_workers),
            f"{score.starts:,.0f}",
            f"{score.flips_per_hour:.1f}",
            f"{score.p50_wait:.1f} s",
            f"{score.p99_wait:.1f} s",
            f"{score.max_wait:.1f} s",
        )
