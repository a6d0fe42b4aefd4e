"""Whether more workers brought more. Where something else is the limit (a database, somebody's service), each that is
added makes all of them slower, and the slower they are the more a policy wants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from penstock.scaler.signals import Signals, rate_between, since

WINDOW = 30.0  # seconds over which a rate is measured, at least
LONGEST = 240.0  # a rate over longer can not be measured with the samples there are
PAUSE = 300.0  # seconds until it is tried again
SURE = 3.0  # standard deviations: a gain that is missed by less may have been missed by chance


@dataclass(frozen=True, slots=True)
class Trial:
    """One raise, from the moment it was asked for until it is judged."""

    memory: dict[str, float] | None = None
    useless: bool = False
    told: str = ""

    @staticmethod
    def after(signals: Signals, memory: dict[str, Any] | None, wanted: int, least: float) -> Trial:
        now, fleet = signals.now, signals.fleet.workers
        if memory is not None and "until" in memory:
            if now < memory["until"]:
                return Trial(memory, useless=True, told=told(memory))
            memory = None
        window = max(WINDOW, 3 * (signals.service or 0.0))
        rate = rate_between(signals.samples, "finished", window)
        if rate is None or window > LONGEST or not saturated(signals, window):
            return Trial()
        if memory is None:
            begun = {"at": now, "workers": max(workers_since(signals, now - window)), "rate": rate}
            return Trial(begun if wanted > fleet > 0 and rate > 0 else None)
        if now < memory["at"] + signals.latency + window:
            return Trial(memory)
        return judged(signals, memory, rate, window, least)


def judged(signals: Signals, memory: dict[str, Any], rate: float, window: float, least: float) -> Trial:
    """Against those that were up all the time: what was asked for a start latency before it began."""
    up = min(workers_since(signals, signals.now - window - signals.latency))
    expected, gain = up / memory["workers"] - 1, rate / memory["rate"] - 1
    if expected <= 0 or gain >= least * expected:
        return Trial()
    if expected - gain < SURE * noise(signals, rate * window, memory["rate"] * WINDOW):
        return Trial(memory)
    found = {"until": signals.now + PAUSE, "more": up - memory["workers"], "gain": gain}
    return Trial(found, useless=True, told=told(found))


def noise(signals: Signals, *finished: float) -> float:
    """The standard deviation of a gain between so many tasks and so many, if only chance makes it."""
    return max(1.0, signals.dispersion) * math.sqrt(sum(1 / max(1.0, tasks) for tasks in finished))


def workers_since(signals: Signals, moment: float) -> list[int]:
    """At each look after that moment, and now."""
    return [*(one.workers for one in signals.samples if one.at > moment), signals.fleet.workers]


def saturated(signals: Signals, window: float) -> bool:
    """All the time everybody was busy and somebody waited: the rate says what so many workers can do."""
    samples, begun = signals.samples, signals.now - window
    if not (samples[0].at <= begun < samples[-1].at and signals.fleet.ready > 0):
        return False
    return all(one.pending > 0 and one.finished > 0 for one in samples[since(samples, begun) :])


def told(judged: dict[str, float]) -> str:
    return f"not more, because the last {judged['more']:.0f} brought {100 * judged['gain']:.0f} % more"
