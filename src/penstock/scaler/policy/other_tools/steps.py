"""The policies of AWS, Laravel Horizon and Judoscale, which move in steps."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.scaler.policy.decision import Decision, Memory, ceiling, clamp
from penstock.scaler.policy.other_tools.common import (
    MARGIN,
    Notes,
    has_passed,
    make_decision,
    recall,
    repeat,
    repeat_if_early,
    round_up,
)
from penstock.scaler.policy.other_tools.kubernetes import pending_only
from penstock.scaler.policy.signals import Signals


@dataclass(frozen=True, slots=True)
class AwsBacklog:
    """AWS: target tracking on the backlog per instance, with one metric per minute. It scales out as fast as it can:
    an active alarm acts every minute. It scales in "more gradually", which the documentation does not quantify: here
    by a tenth, after which its alarms are counted again. Otherwise an empty queue would stop all workers (`most_in`
    1 does)."""

    name: str = "aws-backlog"
    target: float = 1.0  # × the tasks that a slot runs within the SLA
    period: float = 60.0
    out_after: int = 3
    in_after: int = 15
    most_in: float = 0.1

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes, self.period)) is not None:
            return held
        target = current = signals.fleet.workers
        wanted = round_up(pending_only(signals, self.target) / signals.limits.slots)
        high = notes["high"] = min(notes.get("high", 0) + 1, self.out_after) if wanted > current else 0
        low = notes["low"] = notes.get("low", 0) + 1 if wanted < current else 0
        text = f"{signals.pending} pending need {wanted}, above for {high} min, below for {low} min"
        if high >= self.out_after:
            target = wanted
        elif low >= self.in_after:
            target, notes["low"] = max(wanted, current - max(1, ceiling(current * self.most_in))), 0
        bound_by = "backlog" if target == wanted else "alarm" if target == current else "step"
        return make_decision(signals, target, bound_by, {"backlog": wanted}, text, notes=notes)


@dataclass(frozen=True, slots=True)
class LaravelHorizon:
    """Laravel Horizon with one queue: a worker for each waiting task, and a step every three seconds. If it is
    called less often, it makes all steps that are due; the remainder counts next time. With `balance` it distributes
    its maximum by time to clear, and a single queue gets all of it while a task waits."""

    name: str = "horizon"
    shift: int = 1
    every: float = 3.0
    balance: bool = False

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes, now = recall(memory, self.name), signals.now
        if signals.stale:
            notes["at"] = now  # so that no steps are due afterwards
            return repeat(signals, notes, "because there are no new metrics")
        if has_passed(notes, "at", now, self.every):
            return self._step(signals, notes)
        return repeat(signals, notes, f"because it steps every {self.every:g} s")

    def _step(self, signals: Signals, notes: Notes) -> Decision:
        now, current, limits = signals.now, signals.fleet.workers, signals.limits
        since = now - notes.get("at", now - self.every)
        steps = max(1, int((since + MARGIN) // self.every))
        notes["at"] = now - max(0.0, since - steps * self.every)
        size = round_up(signals.pending / limits.slots)
        desired = clamp(signals, limits.max_workers if self.balance and size else size)
        most = steps * self.shift
        target = max(current - most, min(current + most, desired))
        text = f"{signals.pending} pending need {desired}, from {current} at most {most} at a time"
        return make_decision(
            signals, target, "size" if target == desired else "step", {"size": desired}, text, notes=notes
        )


@dataclass(frozen=True, slots=True)
class Judoscale:
    """Judoscale: a band of queue times. The tool has it in seconds; here it is a part of the SLA: up above a half of
    it, down below a quarter. The next step down waits again after each step, as documented."""

    name: str = "judoscale"
    jump: int = 2
    drop: int = 1
    upper: float = 0.5  # shares of the SLA
    lower: float = 0.25
    up_every: float = 60.0
    down_after: float = 600.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes)) is not None:
            return held
        now, current, usage = signals.now, signals.fleet.workers, signals.oldest_age / signals.limits.sla
        target, bound_by = current, "band"
        if usage >= self.lower:
            notes.pop("quiet", None)
        else:
            notes["quiet"] = min(now, notes.get("quiet", now))
        if usage > self.upper and has_passed(notes, "up", now, self.up_every):
            target, bound_by, notes["up"] = current + self.jump, "above", now
        elif "quiet" in notes and has_passed(notes, "quiet", now, self.down_after):
            target, bound_by, notes["quiet"] = current - self.drop, "below", now
        text = f"queue time at {usage:.0%} of the SLA, band {self.lower:.0%} to {self.upper:.0%}"
        return make_decision(signals, max(0, target), bound_by, {bound_by: target}, text, notes=notes)
