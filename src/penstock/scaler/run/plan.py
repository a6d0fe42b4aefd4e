"""What a scaler is asked to do, what it decides for a queue, and the functions that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.model import Json, SeenQueue
from penstock.scaler.policy.decision import Decision, Policy
from penstock.scaler.policy.signals import Fleet, Limits, Signals, rate_between
from penstock.scaler.run.budget import Budget


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """What one `penstock scale` is to do."""

    limits: Mapping[str, Limits]  # of each queue
    policy: Policy
    budget: Budget
    interval: float = 1.0
    grace: float = 30.0
    standby: bool = False
    dry_run: bool = False
    once: bool = False
    adopted: frozenset[str] = frozenset()  # those of the queues that are adopted tables

    @property
    def lease(self) -> float:
        """Seconds for which a scaler may be silent before another one takes over."""
        return max(10.0, 5 * self.interval)


Summary = tuple[int, str, str]  # target, urgency and bound: a change of these is reported


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The decision for one queue, with the signals that it was made of."""

    queue: str
    decision: Decision
    before: int | None  # the previous target
    signals: Signals

    @property
    def fleet(self) -> Fleet:
        """The workers of the queue."""
        return self.signals.fleet

    @property
    def inputs(self) -> Json:
        """The figures that the decision was made of, as PostgreSQL keeps them."""
        return summarise_signals(self.signals)

    @property
    def summary(self) -> tuple[int, str, str]:
        """The target, the urgency and the bound: a change of these is reported."""
        return self.decision.workers, self.decision.urgency, self.decision.bound_by


Say = Callable[[QueueDecision], None]  # reports a decision that changed
Tell = Callable[[str], None]  # reports an event
Backlogs = Callable[[], Sequence[SeenQueue]]  # returns the state of the adopted tables
Note = Callable[[QueueDecision, float, float], None]  # gets PostgreSQL's time and the SLA; it must not wait


def summarise_signals(signals: Signals) -> Json:
    """Returns the signals that a stored decision names as its inputs."""
    limits, fleet = signals.limits, signals.fleet
    return {
        "pending": signals.pending,
        "active": signals.active,
        "oldest_age": round(signals.oldest_age, 3),
        "planned": sum(count for _, count in signals.planned),
        "arrivals": rate_between(signals.samples, "arrived", 60.0),
        "service": signals.service,
        "start_latency": round(signals.latency, 3),
        "ready": fleet.ready,
        "starting": len(fleet.starting),
        "draining": fleet.draining,
        "sla": limits.sla,
        "min_workers": limits.min_workers,
        "max_workers": limits.max_workers,
        "slots": limits.slots,
        "interval": limits.interval,
    }
