"""What a policy says: how many workers, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.scaler.signals import LONGEST, Signals

MOST = 2**31 - 1
Memory = Any  # what a policy wants to be told next time: plain JSON, so that another process can go on with it
URGENCIES = ("NORMAL", "ELEVATED", "WARNING", "CRITICAL", "BREACH")
THRESHOLDS = (0.6, 0.8, 0.9, 1.0)  # shares of the SLA where one ends and the next begins


@dataclass(frozen=True, slots=True)
class Decision:
    workers: int
    urgency: str
    reason: str  # a sentence of computed numbers
    bound_by: str  # the rule, limit or guard that made the number what it is
    rules: Mapping[str, float]  # what each rule said, before limits
    time_to_breach: float | None  # seconds that the oldest task has left; negative: it is late; None: nothing waits
    predicted_breach: float | None  # seconds until a task will be late at the present pace; None: none foreseen
    wanted: int  # before limits
    memory: Memory = field(default=None, compare=False, repr=False)

    @property
    def capacity_short(self) -> int:
        """Workers that were wanted and are not allowed."""
        return max(0, self.wanted - self.workers) if self.bound_by == "max" else 0

    def to_json(self) -> dict[str, Any]:
        """All but what the policy remembers."""
        return {
            "workers": self.workers,
            "urgency": self.urgency,
            "reason": self.reason,
            "bound_by": self.bound_by,
            "time_to_breach": self.time_to_breach,
            "predicted_breach": self.predicted_breach,
            "rules": dict(self.rules),
            "wanted": self.wanted,
            "capacity_short": self.capacity_short,
        }


class Policy(Protocol):
    """A policy is a value: the same signals and memory make the same decision."""

    @property
    def name(self) -> str: ...

    def decide(self, signals: Signals, memory: Memory = None) -> Decision: ...


def urgency(signals: Signals) -> str:
    """How much of the promise the oldest waiting task has used up."""
    usage = signals.oldest_age / signals.limits.sla
    return URGENCIES[sum(usage >= least for least in THRESHOLDS)] if signals.pending else URGENCIES[0]


def time_to_breach(signals: Signals) -> float | None:
    return signals.limits.sla - signals.oldest_age if signals.pending else None


def drain_rate(signals: Signals, samples: int = 5) -> float | None:
    """How fast the backlog shrinks, tasks a second; negative: it grows. n samples span n - 1 intervals."""
    recent = signals.samples[-samples:]
    span = recent[-1].at - recent[0].at if len(recent) > 1 else 0.0
    return (recent[0].pending - recent[-1].pending) / span if span > 0 else None


def predicted_breach(signals: Signals, samples: int = 5) -> float | None:
    """Seconds until somebody waits too long at the present pace; 0: somebody does. A queue that grows is predicted too,
    if its oldest task is older than the oldest was before."""
    left = time_to_breach(signals)
    if left is None or left <= 0:
        return None if left is None else 0.0
    recent, pace = signals.samples[-samples:], drain_rate(signals, samples)
    if pace is None or (pace > 0 and signals.pending / pace < left):
        return None
    ageing = (recent[-1].oldest_age - recent[0].oldest_age) / (recent[-1].at - recent[0].at)
    return None if ageing * LONGEST <= left else left / min(1.0, ageing)


def ceiling(value: float) -> int:
    """The next whole number, not one more for what floating point adds in the last digit; never more than a column
    of a decision can hold."""
    return math.ceil(min(value, MOST) - 1e-9)


def within(signals: Signals, wanted: int) -> int:
    return max(signals.limits.min_workers, min(signals.limits.max_workers, wanted))


def conclude(
    signals: Signals, wanted: int, bound_by: str, rules: Mapping[str, float], said: str, *, memory: Memory = None
) -> Decision:
    """A decision of what a rule wants: within the limits, and with the guards that hold for every rule. `said` is the
    rule's part of the sentence; what limits and guards did is added."""
    workers, fleet = within(signals, wanted), signals.fleet.workers
    if workers != wanted:
        bound_by = "max" if workers < wanted else "min"
        said += f"; {bound_by} {workers}" + (f" of {wanted} wanted" if workers < wanted else "")
    if workers == 0 and (signals.pending or signals.active):
        workers, bound_by, said = 1, "not to zero", f"{said}; one stays while anything waits or runs"
    if signals.stale and workers < fleet:
        workers, bound_by = within(signals, fleet), "stale"
        latest = signals.latest
        since = "there are none" if latest is None else f"the last are {signals.now - latest.at:.0f} s old"
        said = f"{said}; held, because no new metrics came ({since})"
    return Decision(
        workers=workers,
        urgency=urgency(signals),
        reason=f"{workers}: {said}",
        bound_by=bound_by,
        rules=rules,
        time_to_breach=time_to_breach(signals),
        predicted_breach=predicted_breach(signals),
        wanted=wanted,
        memory=memory,
    )
