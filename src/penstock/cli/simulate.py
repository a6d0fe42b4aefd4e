"""`penstock simulate`: what a policy would have done, and what it would have cost."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from penstock import validate
from penstock.cli.options import AsJson, Debug, Options, sharing
from penstock.cli.output import age, emit, harmless, many, progress_bar, say, span, table
from penstock.cli.scale import catalogue, seconds
from penstock.errors import ConfigError, ValidationError, shown
from penstock.scaler import chart, judge, policies, traces
from penstock.scaler.decision import Policy
from penstock.scaler.judge import Case, Score
from penstock.scaler.signals import MOST_WORKERS, Limits
from penstock.scaler.simulate import Result
from penstock.scaler.simulate import simulate as run
from penstock.scaler.traces import Trace

P = ParamSpec("P")
Watch = Callable[[float], None]

app = typer.Typer(invoke_without_command=True)

HINDSIGHT = "best-static"  # the smallest fixed fleet that would have done: found for each trace
SPARE = 3  # times the mean load that may be used, when nobody knows what the peak needs
MOST_SEEDS = 1000


# --- what both commands are told --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The options that are the same for one policy and for many, checked."""

    limits: Limits
    max_workers: int | None
    made: dict[str, Any]  # how traces are made: service, cv, start, duration, tasks
    seeds: int
    solve: bool
    plot: Path | None
    json: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> Setup:
        most, least = given["max_workers"], given["min_workers"]
        limits = Limits(
            sla=seconds(given["sla"], "sla"),
            min_workers=least,
            max_workers=max(1, least) if most is None else most,
            slots=given["slots"],
            interval=seconds(given["interval"], "interval"),
            start_latency=seconds(given["start_latency"], "start_latency"),
        )
        made = {
            "service": seconds(given["service"], "service"),
            "cv": given["cv"],
            "start": beginning(given["start"]),
            "duration": None if given["duration"] is None else seconds(given["duration"], "duration"),
            "tasks": given["tasks"],
        }
        seeds = validate.whole(given["seeds"], "seeds", 1, MOST_SEEDS)
        plot = None if given["plot"] is None else writable(given["plot"])
        return cls(limits, most, made, seeds, not given["no_bound"], plot, given["json"])

    def inputs(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "sla": limits.sla,
            "start_latency": limits.start_latency,
            "interval": limits.interval,
            "slots": limits.slots,
            "min_workers": limits.min_workers,
            "max_workers": self.max_workers,
            "seeds": self.seeds,
            **self.made,
        }


def beginning(text: str | None) -> float | str | None:
    """Seconds into a recording, or the timestamp that was written, which only a trace can read."""
    if text is None:
        return None
    try:
        return seconds(text, "start")
    except ValidationError:
        return text


def writable(text: str) -> Path:
    """Told before minutes are spent. What is there stays there until the new picture is."""
    path, existed = Path(text), os.path.lexists(text)
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "Name a file in a directory that is there and may be written to."
        raise ValidationError(f"plot: {shown(text)}: {why}", hint=hint, field="plot") from None
    if not existed:
        path.unlink()
    return path


COMMON: Options = (
    ("sla", Annotated[str, typer.Option(help="How long a task may wait.")], "30s"),
    ("start_latency", Annotated[str, typer.Option(help="From asking for a worker to its first task.")], "20s"),
    ("service", Annotated[str, typer.Option(help="How long a task takes, if the trace does not say.")], "2s"),
    ("cv", Annotated[float, typer.Option(help="How much that varies: standard deviation / mean.")], 1.0),
    ("interval", Annotated[str, typer.Option(help="Between two decisions.")], "5s"),
    ("min_workers", Annotated[int, typer.Option(help="Never fewer.")], 1),
    (
        "max_workers",
        Annotated[
            int | None,
            typer.Option(help="Never more; default: 1.5 × what a clairvoyant would use at most.", show_default=False),
        ],
        None,
    ),
    ("slots", Annotated[int, typer.Option(help="Tasks that one worker runs at a time.")], 1),
    ("seeds", Annotated[int, typer.Option(help="So many traces, each with other random numbers; means are told.")], 1),
    (
        "duration",
        Annotated[
            str | None,
            typer.Option(
                help="How much of the trace; default: all of a file, 6h of a made-up one.", show_default=False
            ),
        ],
        None,
    ),
    (
        "start",
        Annotated[str | None, typer.Option(help="Where in a file to begin: 2h, or a timestamp.", show_default=False)],
        None,
    ),
    (
        "tasks",
        Annotated[
            int | None,
            typer.Option(help="Scale it to so many; default: as in the file, 100000 if made up.", show_default=False),
        ],
        None,
    ),
    ("plot", Annotated[str | None, typer.Option(help="Draw it into this SVG file.", show_default=False)], None),
    ("no_bound", Annotated[bool, typer.Option("--no-bound", help="Do not work out the least possible cost.")], False),
    ("json", AsJson, False),
)


def with_setup(command: Callable[Concatenate[Setup, P], None]) -> Callable[..., None]:
    """Gives a command the options that both have. It gets them, checked, as its first argument."""
    return sharing(COMMON, Setup.of, command)


# --- the commands -----------------------------------------------------------------------------------------------------


@app.callback()
@with_setup
def one_policy(
    setup: Setup,
    context: typer.Context,
    *,
    trace: Annotated[
        str, typer.Option(help="A made-up trace (`penstock simulate traces`), or a CSV file.")
    ] = "diurnal",
    policy: Annotated[str, typer.Option(help="Who decides; `penstock scale policies` lists them.")] = policies.DEFAULT,
) -> None:
    """Play a trace against a policy: how many tasks would have been late, and for how many workers.

    A file has a header and rows: period,count or arrival,service or arrival,service,known. The cost is compared with
    the least that somebody would have paid who knew everything in advance.

    Example: penstock simulate --trace spikes --policy backlog-drain --sla 30s --plot spikes.svg
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    chosen = policies.find(policy)
    cases = cases_of(setup, trace)
    began = time.perf_counter()
    results = simulated(setup, chosen, cases)
    took = time.perf_counter() - began
    score = judge.score(chosen.name, cases, results)
    if setup.plot is not None:
        setup.plot.write_text(chart.timeline(results[0], cases[0].limits, heading(score)), encoding="utf-8")
    speed = sum(result.tasks for result in results) / max(took, 1e-9)
    if setup.json:
        emit({**score.to_json(), "tasks_per_second": round(speed), "bound": least(cases), "inputs": setup.inputs()})
    else:
        tell(setup, score, cases, results, speed)


def refuse_options(context: typer.Context) -> None:
    """They would be read by nobody."""
    given = [name for name in context.params if source(context, name) == "COMMANDLINE"]
    if given:
        option, command = f"--{given[0].replace('_', '-')}", context.invoked_subcommand
        hint = f"Write `penstock simulate {command} {option} …`."
        raise ValidationError(f"{given[0]}: {option} belongs behind {command}", hint=hint, field=given[0])


def source(context: typer.Context, name: str) -> str:
    return getattr(context.get_parameter_source(name), "name", "")


@app.command("compare")
@with_setup
def compare(
    setup: Setup,
    *,
    trace: Annotated[
        list[str] | None,
        typer.Option(help="A made-up trace or a file; may be repeated; default: all made-up ones.", show_default=False),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"May be repeated; default: all, and {HINDSIGHT}, the fixed fleet one would choose in hindsight.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Play traces against policies, the same for all, and print them side by side.

    Fewest late tasks first, then the cheapest. A star: nobody is cheaper with as few late tasks.

    Example: penstock simulate compare --trace spikes --trace on-off --seeds 3 --plot frontier.svg
    """
    chosen = [*dict.fromkeys(policy or [*policies.POLICIES, HINDSIGHT])]
    for name in chosen:
        if name != HINDSIGHT:
            policies.find(name)
    texts = [*dict.fromkeys(trace or traces.SYNTHETIC)]
    for text in texts[1:]:
        found(setup, text, seed=0)  # what is wrong with the last one is told before the first is played
    blocks = compared(setup, texts, chosen)
    together = overall(blocks) if len(blocks) > 1 else None
    drawn = together or blocks[0]
    if setup.plot is not None:
        said = f"{drawn.trace}: late tasks and cost, {age(setup.limits.sla)} promised"
        setup.plot.write_text(chart.frontier(drawn.scores, said), encoding="utf-8")
    if setup.json:
        each = [block.to_json() for block in blocks]
        emit({"inputs": setup.inputs(), "traces": each, "overall": together and together.to_json()})
    else:
        tell_all(setup, [*blocks, *([together] if together else [])])


@app.command("traces")
def names(json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """List the traces that can be made up.

    Example: penstock simulate traces
    """
    catalogue([(name, maker.__doc__) for name, maker in traces.SYNTHETIC.items()], "trace", json=json)


# --- traces and what they may use -------------------------------------------------------------------------------------


def found(setup: Setup, text: str, *, seed: int) -> Trace:
    return traces.find(text, seed=seed, **setup.made)


def cases_of(setup: Setup, text: str) -> list[Case]:
    return [bounded(setup, found(setup, text, seed=seed)) for seed in range(setup.seeds)]


def bounded(setup: Setup, trace: Trace) -> Case:
    """With what a clairvoyant would have paid. Without a solver, or with too much for it, all else can be told."""
    if setup.solve:
        try:
            return judge.case(trace, setup.limits, max_workers=setup.max_workers)
        except ConfigError as error:
            tell_once(f"no cost ratio: {error.message}. {error.hint or ''}".strip())
    most = setup.max_workers or roomy(setup.limits, trace)
    return judge.case(trace, setup.limits, max_workers=most, solve=False)


TOLD: set[str] = set()


def tell_once(text: str) -> None:
    """On standard error: it is not part of the answer."""
    if text not in TOLD:
        TOLD.add(text)
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def roomy(limits: Limits, trace: Trace) -> int:
    load = sum(trace.service) / trace.duration / limits.slots
    return min(MOST_WORKERS, max(1, math.ceil(SPARE * load)))


def least(cases: Sequence[Case]) -> dict[str, Any] | None:
    """What a clairvoyant would have paid, on average over the seeds, and used at most."""
    known = [one.bound for one in cases if one.bound is not None]
    if not known:
        return None
    return {
        "worker_seconds": statistics.fmean(one.worker_seconds for one in known),
        "peak": max(one.peak for one in known),
        "late_share": statistics.fmean(one.late_share for one in known),
        "feasible": all(one.feasible for one in known),
    }


# --- one policy -------------------------------------------------------------------------------------------------------


def simulated(setup: Setup, policy: Policy, cases: Sequence[Case]) -> list[Result]:
    total, done, results = sum(len(one.trace.due) for one in cases), 0, []
    with progress_bar(f"simulate {policy.name}", total, quiet=setup.json) as bar:
        for one in cases:
            tasks = len(one.trace.due)
            results.append(run(one.trace, policy, one.limits, watch=watching(bar, done, tasks, total)))
            done += tasks
            bar(done, total)
    return results


def watching(bar: Callable[[int, int], None], done: int, tasks: int, total: int) -> Watch:
    return lambda share: bar(done + int(share * tasks), total)


def tell(setup: Setup, score: Score, cases: Sequence[Case], results: Sequence[Result], speed: float) -> None:
    sla, hours = setup.limits.sla, statistics.fmean(result.hours for result in results)
    average = score.worker_seconds / 3600 / hours if hours else 0.0
    seeds = f", mean of {many(score.seeds, 'seed')}" if score.seeds > 1 else ""
    say(f"{score.policy} on {harmless(score.trace)}, {length(cases)}{seeds}")
    lines = [
        ("late", f"{percent(score.breach_rate)} of {many(score.tasks)} waited longer than {sla:g} s{whoever(cases)}"),
        ("waits", f"p50 {score.p50_wait:.1f} s, p99 {score.p99_wait:.1f} s, longest {score.max_wait:.1f} s"),
        ("workers", f"{average:.1f} on average{ratio(score)}; {score.peak_workers} of {score.max_workers} at most"),
        ("changes", f"{score.starts:,.0f} starts, {score.flips_per_hour:.1f} changes of direction an hour"),
        ("speed", f"{speed:,.0f} tasks simulated a second"),
        *([("chart", harmless(str(setup.plot)))] if setup.plot is not None else []),
    ]
    for label, text in lines:
        say(f"  {label:<8} {text}")


def heading(score: Score) -> str:
    return f"{score.policy} on {score.trace}: {percent(score.breach_rate)} late{ratio(score)}"


def ratio(score: Score) -> str:
    return "" if score.cost_ratio is None else f", {score.cost_ratio:.2f} × the least possible"


def length(cases: Sequence[Case]) -> str:
    return span(timedelta(seconds=round(cases[0].trace.duration)))


def percent(share: float) -> str:
    """One late task among millions is not none."""
    return "< 0.01 %" if 0 < share < 0.00005 else f"{100 * share:.2f} %"


def whoever(cases: Sequence[Case]) -> str:
    known = least(cases)
    return "" if known is None or known["feasible"] else f"; {percent(known['late_share'])} would, whoever decides"


# --- many policies ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A trace and everybody on it, the best first."""

    trace: str
    about: str
    scores: list[Score]
    bound: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        best = judge.frontier(self.scores)
        scores = [{**one.to_json(), "frontier": one in best} for one in self.scores]
        return {"trace": self.trace, "bound": self.bound, "scores": scores}


def compared(setup: Setup, texts: Sequence[str], chosen: Sequence[str]) -> list[Block]:
    blocks, total = [], len(texts) * len(chosen) * setup.seeds
    with progress_bar("compare", total, quiet=setup.json) as bar:
        for n, text in enumerate(texts):
            cases, scores = cases_of(setup, text), []
            for m, name in enumerate(chosen):
                done = (n * len(chosen) + m) * setup.seeds
                scores.append(judged(name, cases, watching(bar, done, setup.seeds, total)))
                bar(done + setup.seeds, total)
            blocks.append(Block(scores[0].trace, about(setup, scores[0], cases), ranked(scores), least(cases)))
    return blocks


def judged(name: str, cases: Sequence[Case], watch: Watch) -> Score:
    if name == HINDSIGHT:
        return replace(judge.judge(judge.best_static(cases), cases, watch=watch), policy=HINDSIGHT)
    return judge.judge(policies.find(name), cases, watch=watch)


def ranked(scores: Iterable[Score]) -> list[Score]:
    return sorted(scores, key=lambda one: (one.breach_rate, one.cost_ratio or math.inf, one.worker_seconds))


def about(setup: Setup, score: Score, cases: Sequence[Case]) -> str:
    seeds = f", {many(setup.seeds, 'seed')}" if setup.seeds > 1 else ""
    parts = [
        f"{many(score.tasks)} in {length(cases)}{seeds}",
        f"{setup.limits.sla:g} s promised",
        f"at most {many(score.max_workers, 'worker')}",
    ]
    known = least(cases)
    if known is not None:
        parts.append(f"the least possible is {known['worker_seconds'] / 3600:,.1f} worker-hours")
        if not known["feasible"]:
            parts.append(f"{percent(known['late_share'])} late, whoever decides")
    return "; ".join(parts)


def overall(blocks: Sequence[Block]) -> Block:
    """Means over the traces; of waits and fleets, the worst and the largest."""
    by_policy: dict[str, list[Score]] = {}
    for block in blocks:
        for one in block.scores:
            by_policy.setdefault(one.policy, []).append(one)
    name = f"all {len(blocks)} traces"
    return Block(
        name, "means; the longest waits", ranked(judge.merged(name, each) for each in by_policy.values()), None
    )


COLUMNS = ("", "policy", "late", "cost", "worker-h", "peak", "starts", "turns/h", "p50", "p99", "longest")


def tell_all(setup: Setup, blocks: Sequence[Block]) -> None:
    for block in blocks:
        say(f"{harmless(block.trace)}: {block.about}")
        table(COLUMNS, [*rows(block.scores)], words=("policy",))
        say("")
    say("* nobody is cheaper with as few late tasks; cost: times the least possible; turns: changes of direction")
    if setup.plot is not None:
        say(f"chart of {harmless(blocks[-1].trace)}: {harmless(str(setup.plot))}")


def rows(scores: Sequence[Score]) -> Iterator[tuple[str, ...]]:
    best = judge.frontier(scores)
    for one in scores:
        yield (
            "*" if one in best else "",
            one.policy,
            percent(one.breach_rate),
            "–" if one.cost_ratio is None else f"{one.cost_ratio:.2f}",
            f"{one.worker_seconds / 3600:,.1f}",
            str(one.peak_workers),
            f"{one.starts:,.0f}",
            f"{one.flips_per_hour:.1f}",
            f"{one.p50_wait:.1f} s",
            f"{one.p99_wait:.1f} s",
            f"{one.max_wait:.1f} s",
        )
