"""The policy of the article that Penstock grew from, as its text says."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.scaler.policy.decision import Decision, Memory
from penstock.scaler.policy.other_tools.common import make_decision, recall, repeat_if_early, round_up, service_time
from penstock.scaler.policy.signals import Signals


@dataclass(frozen=True, slots=True)
class SeedText:
    """The hybrid policy of the article, with its faults. A queue grows if it has more pending tasks than four
    samples ago; the trend looks six samples ahead."""

    name: str = "seed-text"
    warning: float = 0.8
    margin: float = 2.0
    samples: int = 5
    ahead: float = 6.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes)) is not None:
            return held
        rule, wanted, text = self._rule(signals)
        return make_decision(signals, wanted, rule, {rule: wanted}, text, notes=notes)

    def _rule(self, signals: Signals) -> tuple[str, int, str]:
        limits, pending, each = signals.limits, signals.pending, service_time(signals) / signals.limits.slots
        left = limits.sla - signals.oldest_age
        usage = signals.oldest_age / limits.sla
        if not pending:
            return "empty", limits.min_workers, "nothing is pending"
        if usage >= 1 or left <= 0:
            return "breach", limits.max_workers, f"the oldest is {-left:.1f} s late"
        if usage >= self.warning:
            base, margin = round_up(pending / left * each), 1 + self.margin * (usage - self.warning)
            return "drain", round_up(base * margin), f"{pending} pending / {left:.1f} s left = {base}, × {margin:.2f}"
        slope = self._slope(signals)
        if slope > 0:
            expected = pending + slope * self.ahead
            return "trend", round_up(expected / limits.sla * each), f"{pending} pending, {expected:.0f} soon"
        return "little", round_up(pending / limits.sla * each), f"{pending} pending / {limits.sla:g} s"

    def _slope(self, signals: Signals) -> float:
        """Returns the growth in tasks per sample."""
        recent = signals.samples[-self.samples :]
        return 0.0 if len(recent) < self.samples else (recent[-1].pending - recent[0].pending) / (self.samples - 1)
