"""Checks whether more workers finish more tasks. If something else is the limit, such as a database or a remote
service, each additional worker makes all of them slower, and then a policy wants even more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from penstock.scaler.policy.signals import Signals, index_since, rate_between

WINDOW = 30.0  # seconds over which a rate is measured, at least
MAX_WINDOW = 240.0  # seconds: the samples do not reach back further
PAUSE = 300.0  # seconds until more workers are tried again
SURE = 3.0  # standard deviations: a smaller difference may be chance


@dataclass(frozen=True, slots=True)
class ScaleUpTrial:
    """One increase of the fleet, from its request until it is judged."""

    memory: dict[str, float] | None = None
    useless: bool = False
    finding: str = ""

    @staticmethod
    def after(signals: Signals, memory: dict[str, Any] | None, wanted: int, least: float) -> ScaleUpTrial:
        """Begins, continues or judges the trial that the memory holds."""
        now, fleet = signals.now, signals.fleet.workers
        if memory is not None and "until" in memory:
            if now < memory["until"]:
                return ScaleUpTrial(memory, useless=True, finding=explain(memory))
            memory = None
        window = max(WINDOW, 3 * (signals.service or 0.0))
        rate = rate_between(signals.samples, "finished", window)
        if rate is None or window > MAX_WINDOW or not saturated(signals, window):
            return ScaleUpTrial()
        if memory is None:
            begun = {"at": now, "workers": max(workers_since(signals, now - window)), "rate": rate}
            return ScaleUpTrial(begun if wanted > fleet > 0 and rate > 0 else None)
        if now < memory["at"] + signals.latency + window:
            return ScaleUpTrial(memory)
        return judge_trial(signals, memory, rate, window, least)


def judge_trial(signals: Signals, memory: dict[str, Any], rate: float, window: float, least: float) -> ScaleUpTrial:
    """Compares the gain with the workers that were up for the whole window: those requested a start latency before
    it."""
    up = min(workers_since(signals, signals.now - window - signals.latency))
    expected, gain = up / memory["workers"] - 1, rate / memory["rate"] - 1
    if expected <= 0 or gain >= least * expected:
        return ScaleUpTrial()
    if expected - gain < SURE * noise(signals, rate * window, memory["rate"] * WINDOW):
        return ScaleUpTrial(memory)
    found = {"until": signals.now + PAUSE, "more": up - memory["workers"], "gain": gain}
    return ScaleUpTrial(found, useless=True, finding=explain(found))


def noise(signals: Signals, *finished: float) -> float:
    """Returns the standard deviation of a gain between two counts of tasks that differ by chance only."""
    return max(1.0, signals.dispersion) * math.sqrt(sum(1 / max(1.0, tasks) for tasks in finished))


def workers_since(signals: Signals, moment: float) -> list[int]:
    """Returns the workers at each sample after the moment, and now."""
    return [*(one.workers for one in signals.samples if one.at > moment), signals.fleet.workers]


def saturated(signals: Signals, window: float) -> bool:
    """Whether tasks waited during the whole window: then the rate is what the workers can do."""
    samples, begun = signals.samples, signals.now - window
    if not (samples[0].at <= begun < samples[-1].at and signals.fleet.ready > 0):
        return False
    return all(one.pending > 0 and one.finished > 0 for one in samples[index_since(samples, begun) :])


def explain(memory: dict[str, float]) -> str:
    return f"no more, because the last {memory['more']:.0f} workers brought {100 * memory['gain']:.0f} % more"
