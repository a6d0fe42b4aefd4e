"""The scaler's bars: every policy on every trace, side by side: python bench/scaler.py [policies|loop|backtest]

Synthetic traces and three windows of a recorded one have a promise of 30 s, a start latency of 20 s, a decision every
5 s, tasks of 2 s, and a maximum of 1.5 times the clairvoyant's peak. One trace has a promise shorter than a start.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

from bench.support.harness import judged, report
from penstock.scaler.judge import chart, traces
from penstock.scaler.judge.judge import Case, Score, best_static, case, judge, merge_scores
from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.other_tools import OTHER_TOOLS, grid
from penstock.scaler.policy.policies import DEFAULT, POLICIES
from penstock.scaler.policy.signals import Limits

RECORDED = Path(__file__).parent.parent.parent / "shared" / "traces" / "worldcup98_requests_per_minute.csv"
WINDOWS = {
    "worldcup quiet": "1998-05-04 06:00:00",
    "worldcup evening": "1998-05-27 14:00:00",
    "worldcup match": "1998-06-10 12:00:00",
}
LIMITS = Limits(sla=30.0, min_workers=1, start_latency=20.0, interval=5.0)
HASTY = replace(LIMITS, sla=10.0)
OTHER_TOOL = "cboxdk"


def trace(name: str, seed: int) -> Trace:
    if name in WINDOWS:
        found = traces.load(RECORDED, seed=seed, start=WINDOWS[name], duration=6 * 3600.0, tasks=100_000)
        return replace(found, name=name)
    return traces.named(name, seed=seed)


def cases(name: str, limits: Limits, seeds: int) -> list[Case]:
    return [case(trace(name, seed), limits) for seed in range(1, seeds + 1)]


# --- one trace, in a process of its own -------------------------------------------------------------------------------


def compared(name: str, limits: Limits, seeds: int, *, with_grid: bool) -> list[Score]:
    found = cases(name, limits, seeds)
    scores = [judge(policy, found) for policy in POLICIES.values() if policy.name != "static"]
    scores.append(replace(judge(best_static(found), found), policy="static in hindsight"))
    if with_grid:
        tools = [tool for tool in OTHER_TOOLS if tool != "static"]
        scores += [replace(best(grid(tool), found), policy=f"{tool}, best knobs") for tool in tools]
    return [replace(score, trace=name) for score in scores]


def best(policies: Iterable[Policy], found: Sequence[Case]) -> Score:
    """Returns the best settings of a policy, for a fair comparison: the cheapest that keep the promise on this very
    trace, or those that come nearest."""
    scores = [judge(policy, found) for policy in policies]
    return min(scores, key=lambda one: (max(one.excess_breach_rate, 0.005), one.cost_ratio or 0.0))


# --- all of them ------------------------------------------------------------------------------------------------------


def suite(seeds: int, *, with_grid: bool) -> list[Score]:
    # Imported here, because bench/queue.py hides the library's `queue` until the path is set.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    names = [*traces.SYNTHETIC, *(WINDOWS if RECORDED.exists() else ())]
    if not RECORDED.exists():
        print("the recorded trace is not here: only the made-up ones", flush=True)
    scores: list[Score] = []
    work = partial(compared, limits=LIMITS, seeds=seeds, with_grid=with_grid)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for name, found in zip(names, pool.map(work, names), strict=True):
            print(f"{name:<18} {len(found)} policies", flush=True)
            scores += found
    return scores


def of(scores: Iterable[Score], policy: str) -> list[Score]:
    return [one for one in scores if one.policy == policy]


def cost(one: Score) -> float:
    return one.cost_ratio or 0.0


def lines(scores: Sequence[Score]) -> list[list[str]]:
    """Returns a line for each policy, with median and worst over the traces."""
    names = dict.fromkeys(one.policy for one in scores)
    rows = []
    for name in sorted(names, key=lambda name: max(one.excess_breach_rate for one in of(scores, name))):
        mine = of(scores, name)
        cells = [name]
        for figures in ([100 * one.excess_breach_rate for one in mine], [cost(one) for one in mine]):
            cells += [f"{statistics.median(figures):.2f}", f"{max(figures):.2f}"]
        flips = [one.flips_per_hour for one in mine]
        starts = statistics.fmean(one.starts for one in mine)
        cells += [f"{statistics.median(flips):.0f}", f"{max(flips):.0f}", f"{starts:.0f}"]
        rows.append(cells)
    return rows


HEAD = ["policy", "late %", "worst", "cost", "worst", "flips/h", "worst", "starts"]


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    for first, *others in [head, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))


def by_trace(scores: Sequence[Score], policies: Sequence[str]) -> list[list[str]]:
    names = dict.fromkeys(one.trace for one in scores)
    rows = []
    for name in names:
        here = {one.policy: one for one in scores if one.trace == name}
        chosen = [here[policy] for policy in policies]
        rows.append([name, *(f"{100 * one.excess_breach_rate:.2f} / {cost(one):.2f}" for one in chosen)])
    return rows


# --- the bars ---------------------------------------------------------------------------------------------------------


def bars(scores: Sequence[Score], hasty: Score) -> bool:
    ours, theirs = of(scores, DEFAULT), of(scores, OTHER_TOOL)
    pairs = [*zip(ours, theirs, strict=True)]
    known = next(one for one in ours if one.trace == "batches-known")
    worst_gap = max(100 * (a.excess_breach_rate - b.excess_breach_rate) for a, b in pairs)
    against = [cost(a) / cost(b) for a, b in pairs]
    flips = [one.flips_per_hour for one in ours]
    costs = [cost(one) for one in ours]
    late = max(100 * one.excess_breach_rate for one in ours)
    at_most = partial(judged, at_least=False)
    return all(
        [
            at_most("late tasks on the worst trace, %", late, 0.5),
            at_most("cost / bound, median of the traces", statistics.median(costs), 1.35),
            at_most("cost / bound, worst trace", max(costs), 1.95),
            at_most(f"late tasks beyond those of {OTHER_TOOL}, worst trace, points", worst_gap, 0.1),
            at_most(f"cost / {OTHER_TOOL}'s, median", statistics.median(against), 0.9),
            at_most(f"cost / {OTHER_TOOL}'s, worst trace", max(against), 1.0),
            at_most("known batches: late tasks, %", 100 * known.breach_rate, 0.0),
            at_most("known batches: cost / bound", cost(known), 1.7),
            at_most("direction changes an hour, median", statistics.median(flips), 12),
            at_most("direction changes an hour, worst", max(flips), 24),
            at_most("promise 10 s, on-off: late tasks, %", 100 * hasty.excess_breach_rate, 1.0),
            at_most("promise 10 s, on-off: cost / bound", cost(hasty), 2.0),
        ]
    )


def speed() -> float:
    """Returns the tasks a second of the simulator with the default policy."""
    one = cases("diurnal", LIMITS, 1)
    began = time.perf_counter()
    judge(POLICIES[DEFAULT], one)
    return len(one[0].trace.due) / (time.perf_counter() - began)


def write(directory: Path, scores: Sequence[Score], hasty: Score) -> None:
    """Writes the table and the picture for the docs."""
    means = [merge_scores("all", of(scores, name)) for name in dict.fromkeys(one.policy for one in scores)]
    (directory / "scaler-frontier.svg").write_text(
        chart.draw_frontier(means, "Late tasks and cost, mean of all traces"), "utf-8"
    )
    names = [DEFAULT, OTHER_TOOL, "flink", "keda-pending-running", "static in hindsight"]
    page = PAGE.format(
        table=markdown(HEAD, lines(scores)),
        each=markdown(["trace", *names], by_trace(scores, names)),
        late=100 * hasty.breach_rate,
        cost=cost(hasty),
    )
    (directory / "scaler-results.md").write_text(page, "utf-8")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


PAGE = """# The policies, side by side

`python bench/scaler.py --grid --write docs` writes this page; [the scaler](scaler.md) describes the policies. Late
tasks are those that waited longer than promised, beyond those that no fleet could have saved. Cost is the
worker-seconds of a policy divided by those of a clairvoyant. A flip is a change of direction. Of each pair of
columns the first is the median over the traces and the second the worst trace; starts are the mean.

![late tasks against cost](scaler-frontier.svg)

{table}

This table has late % / cost on each trace:

{each}

With a promise of 10 s, half of the time that a worker takes to start, `deadline` has {late:.2f} % late tasks at a cost
of {cost:.2f} on the trace on-off.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["policies", "loop", "backtest"], default="policies")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--grid", action="store_true", help="also each other tool with its best knobs, trace by trace")
    parser.add_argument("--write", type=Path, help="a directory for the table and the picture")
    asked = parser.parse_args()
    if asked.what != "policies":
        script = Path(__file__).parent / {"loop": "scaler_loop.py", "backtest": "backtest.py"}[asked.what]
        sys.exit(subprocess.run([sys.executable, script], check=False).returncode)
    scores = suite(asked.seeds, with_grid=asked.grid)
    hasty = judge(POLICIES[DEFAULT], cases("on-off", HASTY, asked.seeds))
    show(HEAD, lines(scores))
    show(["late % / cost", DEFAULT, OTHER_TOOL, "flink"], by_trace(scores, [DEFAULT, OTHER_TOOL, "flink"]))
    rate = speed()
    print(f"simulated {rate:,.0f} tasks/s")
    figures = {"seeds": asked.seeds, "scores": [one.to_json() for one in scores], "hasty": hasty.to_json()}
    report("scaler", {**figures, "tasks_per_second": rate})
    if asked.write is not None:
        write(asked.write, scores, hasty)
    sys.exit(0 if bars(scores, hasty) else 1)


if __name__ == "__main__":
    main()
