"""A fixed number of workers."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.scaler.policy.decision import Decision, Memory
from penstock.scaler.policy.other_tools.common import make_decision, recall
from penstock.scaler.policy.signals import Signals


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same number of workers. The simulator finds the best one in hindsight."""

    workers: int = 10
    name: str = "static"

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        return make_decision(signals, self.workers, "static", {"static": self.workers}, "a fixed fleet", notes=notes)
