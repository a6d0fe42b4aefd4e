"""The policies of Kubernetes: KEDA, and the horizontal pod autoscaler."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from penstock.scaler.policy.decision import Decision, Memory
from penstock.scaler.policy.other_tools.common import (
    MAX_VALUE,
    Notes,
    busy_share,
    highest_of_window,
    make_decision,
    recall,
    repeat,
    repeat_if_early,
    round_up,
    service_time,
)
from penstock.scaler.policy.signals import Signals


@dataclass(frozen=True, slots=True)
class HpaRules:
    """The rules of the horizontal pod autoscaler, with its defaults. The current number includes starting workers."""

    sync: float = 15.0
    tolerance: float = 0.1
    hold: float = 300.0  # seconds: it goes down only to the highest recommendation of this window
    most_added: int = 4  # it goes up at most by this many or by that share, whichever is more
    most_share: float = 1.0

    def conclude(self, signals: Signals, notes: Notes, need: float, rule: str, text: str) -> Decision:
        """Makes a decision of the needed workers, which need not be a whole number."""
        current, need = signals.fleet.workers, min(need, MAX_VALUE)
        near = abs(need - current) <= self.tolerance * current + 1e-9
        wanted = current if near else round_up(need)
        peak = highest_of_window(notes, signals.now, wanted, self.hold)
        limit = max(current + self.most_added, math.floor(current * (1 + self.most_share)))
        target = min(wanted, limit) if wanted > current else min(current, peak)
        bound_by = "tolerance" if near else rule
        if target != wanted:
            bound_by = "step" if target < wanted else "hold"
        return make_decision(signals, target, bound_by, {rule: need, "highest": peak}, text, notes=notes)


def pending_only(signals: Signals, target: float) -> float:
    """Returns the slots of which each has at most as many waiting tasks as it can run within the SLA."""
    return signals.pending * service_time(signals) / (signals.limits.sla * target)


def pending_and_running(signals: Signals, target: float) -> float:
    return pending_only(signals, target) + signals.active


def all_per_slot(signals: Signals, target: float) -> float:
    return (signals.pending + signals.active) / target


NEEDS: dict[str, Callable[[Signals, float], float]] = {
    "keda-pending": pending_only,
    "keda-pending-running": pending_and_running,
    "keda-slots": all_per_slot,
}


@dataclass(frozen=True, slots=True)
class Keda:
    """KEDA: the value of a query divided by a target, by the rules of the pod autoscaler. The name selects the
    query. The target is a multiple of the tasks that a slot runs within the SLA, or of one task per slot."""

    name: str = "keda-pending"
    target: float = 1.0
    rules: HpaRules = HpaRules()

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes, self.rules.sync)) is not None:
            return held
        need = NEEDS[self.name](signals, self.target) / signals.limits.slots
        text = f"{signals.pending} pending and {signals.active} running need {need:.1f}"
        return self.rules.conclude(signals, notes, need, self.name.removeprefix("keda-"), text)


@dataclass(frozen=True, slots=True)
class HpaBusy:
    """The pod autoscaler on the busy share: workers × share / target. The share is that of the ready workers. With
    `idle_starts`, starting workers count as idle and are not multiplied, as in the real one when it scales up."""

    name: str = "hpa-busy"
    target: float = 0.7
    idle_starts: bool = False
    rules: HpaRules = HpaRules()

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes, self.rules.sync)) is not None:
            return held
        share = busy_share(signals)
        if share is None:
            return repeat(signals, notes, "because no worker is ready, so none is busy")
        current = signals.fleet.ready if self.idle_starts else signals.fleet.workers
        need = current * share / self.target
        return self.rules.conclude(signals, notes, need, "busy", f"{current} workers {share:.0%} busy need {need:.1f}")
