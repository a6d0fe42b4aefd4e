"""`penstock simulate` plays traces against policies, and prints late tasks and cost."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from penstock.cli.commands.scale import print_catalogue
from penstock.cli.commands.simulate_options import SimulationOptions, with_setup
from penstock.cli.terminal.formatting import escape, format_seconds
from penstock.cli.terminal.options import AsJson, Debug
from penstock.cli.terminal.output import print_json, print_line, print_table, progress_bar
from penstock.errors import ConfigError, ValidationError
from penstock.formatting import format_age, format_count, format_percent
from penstock.scaler.judge import chart, judge, traces
from penstock.scaler.judge.judge import Case, Score
from penstock.scaler.judge.simulate import Result
from penstock.scaler.judge.simulate import simulate as run
from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy import policies
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.signals import MAX_WORKERS, Limits

Watch = Callable[[float], None]

app = typer.Typer(invoke_without_command=True)

HINDSIGHT = "best-static"  # the smallest fixed fleet that keeps the promise, found for each trace
SPARE_FACTOR = 3  # times the mean load: the default of --max-workers without a bound


# --- the commands -----------------------------------------------------------------------------------------------------


@app.callback()
@with_setup
def one_policy(
    setup: SimulationOptions,
    context: typer.Context,
    *,
    trace: Annotated[
        str, typer.Option(help="A synthetic trace (`penstock simulate traces` lists them), or a CSV file.")
    ] = "diurnal",
    policy: Annotated[str, typer.Option(help="The policy; `penstock scale policies` lists them.")] = policies.DEFAULT,
) -> None:
    """Play a trace against a policy, and print how many tasks are late and how many workers it uses.

    A file has a header and rows: period,count or arrival,service or arrival,service,known. The cost is compared with
    the least possible cost, with all arrivals and run times known in advance.

    Example: penstock simulate --trace spikes --policy backlog-drain --sla 30s --plot spikes.svg
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    chosen = policies.find(policy)
    cases = make_cases(setup, trace)
    began = time.perf_counter()
    results = run_simulations(setup, chosen, cases)
    took = time.perf_counter() - began
    score = judge.score(chosen.name, cases, results)
    if setup.plot is not None:
        setup.plot.write_text(chart.draw_timeline(results[0], cases[0].limits, format_heading(score)), encoding="utf-8")
    speed = sum(result.tasks for result in results) / max(took, 1e-9)
    if setup.json:
        print_json(
            {
                **score.to_json(),
                "tasks_per_second": round(speed),
                "bound": summarise_bound(cases),
                "inputs": setup.inputs(),
            }
        )
    else:
        print_score(setup, score, cases, results, speed)


def refuse_options(context: typer.Context) -> None:
    """Refuses options before a subcommand, which would have no effect."""
    given = [name for name in context.params if find_source(context, name) == "COMMANDLINE"]
    if given:
        option, command = f"--{given[0].replace('_', '-')}", context.invoked_subcommand
        hint = f"Write `penstock simulate {command} {option} …`."
        raise ValidationError(f"{given[0]}: {option} belongs after {command}", hint=hint, field=given[0])


def find_source(context: typer.Context, name: str) -> str:
    return getattr(context.get_parameter_source(name), "name", "")


@app.command("compare")
@with_setup
def compare(
    setup: SimulationOptions,
    *,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            help="A synthetic trace or a file; you can repeat the option; default: all synthetic traces.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A policy; you can repeat the option; default: all, and {HINDSIGHT}, the best fixed fleet.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Play the same traces against several policies, and compare them.

    The policies with the fewest late tasks come first, then the cheapest. A star marks a policy if no other is cheaper
    with as few late tasks.

    Example: penstock simulate compare --trace spikes --trace on-off --seeds 3 --plot frontier.svg
    """
    chosen = [*dict.fromkeys(policy or [*policies.POLICIES, HINDSIGHT])]
    for name in chosen:
        if name != HINDSIGHT:
            policies.find(name)
    texts = [*dict.fromkeys(trace or traces.SYNTHETIC)]
    for text in texts[1:]:
        find_trace(setup, text, seed=0)  # an error in the last trace is raised before the first is played
    blocks = compare_all(setup, texts, chosen)
    together = merge_traces(blocks) if len(blocks) > 1 else None
    drawn = together or blocks[0]
    if setup.plot is not None:
        said = f"{drawn.trace}: late tasks and cost, {format_age(setup.limits.sla)} promised"
        setup.plot.write_text(chart.draw_frontier(drawn.scores, said), encoding="utf-8")
    if setup.json:
        each = [block.to_json() for block in blocks]
        print_json({"inputs": setup.inputs(), "traces": each, "overall": together and together.to_json()})
    else:
        print_scores(setup, [*blocks, *([together] if together else [])])


@app.command("traces")
def list_traces(json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """List the synthetic traces.

    Example: penstock simulate traces
    """
    print_catalogue([(name, maker.__doc__) for name, maker in traces.SYNTHETIC.items()], "trace", json=json)


# --- traces and their limits ------------------------------------------------------------------------------------------


def find_trace(setup: SimulationOptions, text: str, *, seed: int) -> Trace:
    return traces.find(text, seed=seed, **setup.made)


def make_cases(setup: SimulationOptions, text: str) -> list[Case]:
    return [make_case(setup, find_trace(setup, text, seed=seed)) for seed in range(setup.seeds)]


def make_case(setup: SimulationOptions, trace: Trace) -> Case:
    """Makes a case of a trace, with the cost of a clairvoyant, unless the solver is missing or the trace too large."""
    if setup.solve:
        try:
            return judge.case(trace, setup.limits, max_workers=setup.max_workers)
        except ConfigError as error:
            warn_once(f"no cost ratio: {error.message}. {error.hint or ''}".strip())
    most = setup.max_workers or estimate_max_workers(setup.limits, trace)
    return judge.case(trace, setup.limits, max_workers=most, solve=False)


WARNED: set[str] = set()


def warn_once(text: str) -> None:
    """Prints a warning on standard error, once."""
    if text not in WARNED:
        WARNED.add(text)
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def estimate_max_workers(limits: Limits, trace: Trace) -> int:
    load = sum(trace.service) / trace.duration / limits.slots
    return min(MAX_WORKERS, max(1, math.ceil(SPARE_FACTOR * load)))


def summarise_bound(cases: Sequence[Case]) -> dict[str, Any] | None:
    """Returns the mean cost of a clairvoyant over the seeds, and the most workers that it uses."""
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


def run_simulations(setup: SimulationOptions, policy: Policy, cases: Sequence[Case]) -> list[Result]:
    total, done, results = sum(len(one.trace.due) for one in cases), 0, []
    with progress_bar(f"simulate {policy.name}", total, quiet=setup.json) as bar:
        for one in cases:
            tasks = len(one.trace.due)
            results.append(run(one.trace, policy, one.limits, watch=make_progress(bar, done, tasks, total)))
            done += tasks
            bar(done, total)
    return results


def make_progress(bar: Callable[[int, int], None], done: int, tasks: int, total: int) -> Watch:
    return lambda share: bar(done + int(share * tasks), total)


def print_score(
    setup: SimulationOptions, score: Score, cases: Sequence[Case], results: Sequence[Result], speed: float
) -> None:
    sla, hours = setup.limits.sla, statistics.fmean(result.hours for result in results)
    average = score.worker_seconds / 3600 / hours if hours else 0.0
    seeds = f", mean of {format_count(score.seeds, 'seed')}" if score.seeds > 1 else ""
    print_line(f"{score.policy} on {escape(score.trace)}, {format_length(cases)}{seeds}")
    late = format_percent(score.breach_rate)
    lines = [
        ("late", f"{late} of {format_count(score.tasks)} waited longer than {sla:g} s{format_unavoidable(cases)}"),
        ("waits", f"p50 {score.p50_wait:.1f} s, p99 {score.p99_wait:.1f} s, longest {score.max_wait:.1f} s"),
        (
            "workers",
            f"{average:.1f} on average{format_ratio(score)}; {score.peak_workers} of {score.max_workers} at most",
        ),
        ("changes", f"{score.starts:,.0f} starts, {score.flips_per_hour:.1f} changes of direction an hour"),
        ("speed", f"{speed:,.0f} tasks simulated a second"),
        *([("chart", escape(str(setup.plot)))] if setup.plot is not None else []),
    ]
    for label, text in lines:
        print_line(f"  {label:<8} {text}")


def format_heading(score: Score) -> str:
    return f"{score.policy} on {score.trace}: {format_percent(score.breach_rate)} late{format_ratio(score)}"


def format_ratio(score: Score) -> str:
    return "" if score.cost_ratio is None else f", {score.cost_ratio:.2f} × the least possible"


def format_length(cases: Sequence[Case]) -> str:
    return format_seconds(round(cases[0].trace.duration))


def format_unavoidable(cases: Sequence[Case]) -> str:
    known = summarise_bound(cases)
    return "" if known is None or known["feasible"] else f"; {format_percent(known['late_share'])} with any policy"


# --- many policies ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceScores:
    """The scores of all policies on one trace, the best first."""

    trace: str
    about: str
    scores: list[Score]
    bound: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        best = judge.find_frontier(self.scores)
        scores = [{**one.to_json(), "frontier": one in best} for one in self.scores]
        return {"trace": self.trace, "bound": self.bound, "scores": scores}


def compare_all(setup: SimulationOptions, texts: Sequence[str], chosen: Sequence[str]) -> list[TraceScores]:
    blocks, total = [], len(texts) * len(chosen) * setup.seeds
    with progress_bar("compare", total, quiet=setup.json) as bar:
        for n, text in enumerate(texts):
            cases, scores = make_cases(setup, text), []
            for m, name in enumerate(chosen):
                done = (n * len(chosen) + m) * setup.seeds
                scores.append(judge_policy(name, cases, make_progress(bar, done, setup.seeds, total)))
                bar(done + setup.seeds, total)
            blocks.append(
                TraceScores(
                    scores[0].trace,
                    describe_trace(setup, scores[0], cases),
                    rank_scores(scores),
                    summarise_bound(cases),
                )
            )
    return blocks


def judge_policy(name: str, cases: Sequence[Case], watch: Watch) -> Score:
    if name == HINDSIGHT:
        return replace(judge.judge(judge.best_static(cases), cases, watch=watch), policy=HINDSIGHT)
    return judge.judge(policies.find(name), cases, watch=watch)


def rank_scores(scores: Iterable[Score]) -> list[Score]:
    return sorted(scores, key=lambda one: (one.breach_rate, one.cost_ratio or math.inf, one.worker_seconds))


def describe_trace(setup: SimulationOptions, score: Score, cases: Sequence[Case]) -> str:
    seeds = f", {format_count(setup.seeds, 'seed')}" if setup.seeds > 1 else ""
    parts = [
        f"{format_count(score.tasks)} in {format_length(cases)}{seeds}",
        f"{setup.limits.sla:g} s promised",
        f"at most {format_count(score.max_workers, 'worker')}",
    ]
    known = summarise_bound(cases)
    if known is not None:
        parts.append(f"the least possible is {known['worker_seconds'] / 3600:,.1f} worker-hours")
        if not known["feasible"]:
            parts.append(f"{format_percent(known['late_share'])} late with any policy")
    return "; ".join(parts)


def merge_traces(blocks: Sequence[TraceScores]) -> TraceScores:
    """Merges the scores of all traces: means, and the longest waits and largest fleets."""
    by_policy: dict[str, list[Score]] = {}
    for block in blocks:
        for one in block.scores:
            by_policy.setdefault(one.policy, []).append(one)
    name = f"all {len(blocks)} traces"
    return TraceScores(
        name,
        "means; the longest waits",
        rank_scores(judge.merge_scores(name, each) for each in by_policy.values()),
        None,
    )


LEGEND = "* no other is cheaper with as few late tasks; cost: times the least possible; turns: changes of direction"
COLUMNS = ("", "policy", "late", "cost", "worker-h", "peak", "starts", "turns/h", "p50", "p99", "longest")


def print_scores(setup: SimulationOptions, blocks: Sequence[TraceScores]) -> None:
    for block in blocks:
        print_line(f"{escape(block.trace)}: {block.about}")
        print_table(COLUMNS, [*format_rows(block.scores)], words=("policy",))
        print_line("")
    print_line(LEGEND)
    if setup.plot is not None:
        print_line(f"chart of {escape(blocks[-1].trace)}: {escape(str(setup.plot))}")


def format_rows(scores: Sequence[Score]) -> Iterator[tuple[str, ...]]:
    best = judge.find_frontier(scores)
    for one in scores:
        yield (
            "*" if one in best else "",
            one.policy,
            format_percent(one.breach_rate),
            "–" if one.cost_ratio is None else f"{one.cost_ratio:.2f}",
            f"{one.worker_seconds / 3600:,.1f}",
            str(one.peak_workers),
            f"{one.starts:,.0f}",
            f"{one.flips_per_hour:.1f}",
            f"{one.p50_wait:.1f} s",
            f"{one.p99_wait:.1f} s",
            f"{one.max_wait:.1f} s",
        )
