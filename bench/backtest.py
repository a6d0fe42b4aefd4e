"""The bar of the backtest: python bench/backtest.py [--days 30] [--rate 10] [--knobs 50]

A month of ten tasks a second is made, sampled, played and judged against fifty sets of knobs, on all cores. Prints how
long each step took and how much of the month was played. With --check it also prints how far the sample is from the
whole on the first day."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    # If this runs as a script, bench/queue.py would hide the standard library's `queue`.
    sys.path[0] = str(Path(__file__).parent.parent)

import numpy as np

from bench.support.harness import judged, report
from penstock.pipeline.backtest import Answer, Contender, Question, backtest, contenders
from penstock.pipeline.backtest.stratified import Recording
from penstock.scaler.policy.signals import Limits
from penstock.spark import session

DAY = 86_400.0
BAR = 600.0  # seconds
SLA = 30.0
MEAN = 2.0  # seconds that a task takes


def month(days: float, rate: float, seed: int = 0) -> Recording:
    """Makes days with a night and two peaks, and now and then a burst: a Poisson process by the second."""
    random = np.random.default_rng(seed)
    second = np.arange(int(days * DAY))
    day = 2 * np.pi * second / DAY
    busy = 1 - 0.5 * np.cos(day - np.pi / 3) - 0.15 * np.cos(2 * day - np.pi / 3)
    for begin in random.uniform(0, days * DAY, int(6 * days)):
        lasts, height = random.uniform(60, 180), random.uniform(3, 6)
        busy[(second >= begin) & (second < begin + lasts)] *= height
    counts = random.poisson(busy * rate / busy.mean())
    due = np.sort(np.repeat(second, counts) + random.random(int(counts.sum())))
    sigma = np.sqrt(np.log(2.0))
    service = random.lognormal(np.log(MEAN) - sigma * sigma / 2, sigma, len(due))
    return Recording("a month", due, service, due, days * DAY)


def knob_sets(count: int) -> list[Contender]:
    """Makes sets of knobs of the default policy, which is the slowest to simulate."""
    grid = [f"deadline:z={','.join(f'{0.25 * n:g}' for n in range(-(-count // 5)))}", "deadline:patience=5,10,20,40,80"]
    return contenders(["deadline"], grid)[:count]


def played(recording: Recording, chosen: list[Contender], most: int | None = None) -> tuple[Answer, float]:
    question = Question((recording,), tuple(chosen), (SLA,), Limits(SLA))
    if most is not None:
        question = replace(question, most_tasks=most)
    quiet = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.log.level": "OFF"}
    spark = session("bench", master=f"local[{os.cpu_count()}]", **quiet)
    began = time.perf_counter()
    answer = backtest(spark, question)
    return answer, time.perf_counter() - began


def measured(days: float, rate: float, knobs: int, *, check: bool) -> dict[str, float]:
    began = time.perf_counter()
    recording = month(days, rate)
    made = time.perf_counter() - began
    chosen = knob_sets(knobs)
    answer, took = played(recording, chosen)
    (cover,), (promise,) = answer.coverage, answer.promises
    print(f"{cover.tasks:,} arrivals in {days:g} days, {len(chosen)} sets of knobs, {os.cpu_count()} cores")
    print(f"  made in {made:.1f} s; backtest {took:.1f} s; {cover.windows} of {cover.of_windows} half hours played")
    print(f"  {cover.played * len(chosen) / took:,.0f} tasks simulated a second; {promise.sentence}")
    found = {"seconds": took, "made_seconds": made, "played_share": cover.played / cover.tasks}
    if check:
        found |= compared(recording, chosen[:1])
    return found


def compared(recording: Recording, chosen: list[Contender]) -> dict[str, float]:
    """Compares the whole first day with a sample of the same share as in the month."""
    last = int(np.searchsorted(recording.due, DAY))
    day = Recording("a day", recording.due[:last], recording.service[:last], recording.known[:last], DAY)
    (whole,) = played(day, chosen, most=last)[0].verdicts
    (part,) = played(day, chosen, most=last // 6)[0].verdicts
    cost = part.workers / whole.workers - 1
    late = part.score.breach_rate - whole.score.breach_rate
    print(f"  a day, sampled against whole: cost {100 * cost:+.1f} %, late {100 * late:+.2f} points")
    return {"cost_difference": cost, "late_difference": late}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--days", type=float, default=30.0)
    arguments.add_argument("--rate", type=float, default=10.0)
    arguments.add_argument("--knobs", type=int, default=50)
    arguments.add_argument("--check", action="store_true")
    given = arguments.parse_args()
    found = measured(given.days, given.rate, given.knobs, check=given.check)
    report("backtest", {"days": given.days, "rate": given.rate, "knobs": given.knobs, **found})
    label = f"{given.days:g} days × {given.rate:g} tasks/s × {given.knobs} sets of knobs, s"
    return 0 if judged(label, found["seconds"], BAR, at_least=False) else 1


if __name__ == "__main__":
    sys.exit(main())
