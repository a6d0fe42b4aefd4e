"""The policy of the Flink operator."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.scaler.policy.decision import Decision, Memory
from penstock.scaler.policy.other_tools.common import (
    growth_rate,
    highest_of_window,
    make_decision,
    recall,
    repeat_if_early,
    round_up,
    service_time,
)
from penstock.scaler.policy.signals import Signals


@dataclass(frozen=True, slots=True)
class Flink:
    """The autoscaler of the Flink operator: capacity for the arrivals, for the backlog and for tasks that arrive
    during a restart, caught up within the SLA. Rates are those of the last minute; until a task has finished, the
    service time is used. It goes down to the highest number of the last minute: the tool takes an hour, which would
    only cost more here."""

    name: str = "flink"
    utilisation: float = 0.7
    hold: float = 60.0
    window: float = 60.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes)) is not None:
            return held
        arriving = growth_rate(signals, "arrived", self.window)
        finished, spent = (
            growth_rate(signals, "finished", self.window),
            growth_rate(signals, "busy_seconds", self.window),
        )
        each = spent / finished if finished and spent else service_time(signals)
        catch_up = (signals.pending + arriving * signals.latency) / signals.limits.sla
        wanted = round_up((catch_up + arriving / self.utilisation) * each / signals.limits.slots)
        peak = highest_of_window(notes, signals.now, wanted, self.hold)
        text = f"{arriving:.2f} per s at {self.utilisation:.0%} and {catch_up:.2f} to catch up, {each:.2f} s each"
        rules = {"flink": wanted, "highest": peak}
        return make_decision(signals, peak, "flink" if peak == wanted else "hold", rules, text, notes=notes)
