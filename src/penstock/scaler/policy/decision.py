"""The output of a policy: how many workers, and why; and the guards that every policy obeys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.scaler.policy.signals import LONGEST, Signals

MAX_WANTED = 2**31 - 1  # what the column of a decision holds
Memory = Any
"""What a policy gets back at its next decision. It is plain JSON, so that another process can continue."""
URGENCIES = ("NORMAL", "ELEVATED", "WARNING", "CRITICAL", "BREACH")
THRESHOLDS = (0.6, 0.8, 0.9, 1.0)  # shares of the SLA at which the next urgency begins


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers a queue needs, and why."""

    workers: int
    urgency: str
    reason: str  # a sentence with the numbers that the decision was computed from
    bound_by: str  # the rule, limit or guard that determined the number
    rules: Mapping[str, float]  # the result of each rule, before limits
    time_to_breach: float | None  # seconds until the oldest task is late; negative: it is late; None: no task waits
    predicted_breach: float | None  # seconds until a task is late at the present pace; None: not foreseen
    wanted: int  # workers before limits
    memory: Memory = field(default=None, compare=False, repr=False)

    @property
    def capacity_short(self) -> int:
        """Workers that are wanted but exceed the maximum."""
        return max(0, self.wanted - self.workers) if self.bound_by == "max" else 0

    def to_json(self) -> dict[str, Any]:
        """Returns all fields except the memory of the policy."""
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
    """Decides how many workers a queue needs. The same signals and memory always give the same decision."""

    @property
    def name(self) -> str:
        """The name of the policy."""
        ...

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        """Returns the decision for these signals. `memory` is that of the last decision."""
        ...


def urgency(signals: Signals) -> str:
    """Returns the urgency: the share of the SLA that the oldest waiting task has used, as a word."""
    usage = signals.oldest_age / signals.limits.sla
    return URGENCIES[sum(usage >= least for least in THRESHOLDS)] if signals.pending else URGENCIES[0]


def time_to_breach(signals: Signals) -> float | None:
    """Returns the seconds until the oldest task is late; None: no task waits."""
    return signals.limits.sla - signals.oldest_age if signals.pending else None


def drain_rate(signals: Signals, samples: int = 5) -> float | None:
    """Returns how many tasks per second the backlog shrinks by; negative: it grows. n samples span n - 1 intervals."""
    recent = signals.samples[-samples:]
    span = recent[-1].at - recent[0].at if len(recent) > 1 else 0.0
    return (recent[0].pending - recent[-1].pending) / span if span > 0 else None


def predicted_breach(signals: Signals, samples: int = 5) -> float | None:
    """Returns the seconds until a task is late at the present pace; 0: one is late now. A breach is also predicted
    for a queue that grows while its oldest task gets older."""
    left = time_to_breach(signals)
    if left is None or left <= 0:
        return None if left is None else 0.0
    recent, pace = signals.samples[-samples:], drain_rate(signals, samples)
    if pace is None or (pace > 0 and signals.pending / pace < left):
        return None
    ageing = (recent[-1].oldest_age - recent[0].oldest_age) / (recent[-1].at - recent[0].at)
    return None if ageing * LONGEST <= left else left / min(1.0, ageing)


def ceiling(value: float) -> int:
    """Rounds up, but ignores rounding errors in the last digit. The result fits into the column of a decision."""
    return math.ceil(min(value, MAX_WANTED) - 1e-9)


def clamp(signals: Signals, wanted: int) -> int:
    """Limits a number of workers to the minimum and the maximum of the queue."""
    return max(signals.limits.min_workers, min(signals.limits.max_workers, wanted))


def conclude(
    signals: Signals, wanted: int, bound_by: str, rules: Mapping[str, float], text: str, *, memory: Memory = None
) -> Decision:
    """Makes a decision of what a rule wants, within the limits and by the guards that hold for every policy. `text`
    is the part of the reason that the rule gives; the effect of limits and guards is appended to it."""
    workers, fleet = clamp(signals, wanted), signals.fleet.workers
    if workers != wanted:
        bound_by = "max" if workers < wanted else "min"
        text += f"; {bound_by} {workers}" + (f" of {wanted} wanted" if workers < wanted else "")
    if workers == 0 and (signals.pending or signals.active):
        workers, bound_by, text = 1, "not to zero", f"{text}; one stays while a task waits or runs"
    if signals.stale and workers < fleet:
        workers, bound_by = clamp(signals, fleet), "stale"
        latest = signals.latest
        since = "there are none" if latest is None else f"the last are {signals.now - latest.at:.0f} s old"
        text = f"{text}; held, because there are no new metrics ({since})"
    return Decision(
        workers=workers,
        urgency=urgency(signals),
        reason=f"{workers}: {text}",
        bound_by=bound_by,
        rules=rules,
        time_to_breach=time_to_breach(signals),
        predicted_breach=predicted_breach(signals),
        wanted=wanted,
        memory=memory,
    )
