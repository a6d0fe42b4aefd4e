"""The policy of cboxdk, the code that the article describes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from penstock.scaler.policy.decision import Decision, Memory, ceiling, clamp
from penstock.scaler.policy.other_tools.common import (
    MAX_VALUE,
    Notes,
    busy_share,
    growth_rate,
    has_passed,
    make_decision,
    recall,
    repeat_if_early,
    round_up,
    service_time,
)
from penstock.scaler.policy.signals import INSTANT, Sample, Signals

MAX_LOOKS, MAX_LOOK_AGE = 30, 300.0  # samples in the memory, and their age in seconds
MIN_POINTS = 5  # rates that a line needs
MAX_PACES = 10  # values of the throughput whose spread says whether it is steady


def fit_line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Fits a line by least squares. Returns its value at the last point, its slope, and R²."""
    count = len(points)
    x, y = sum(at for at, _ in points) / count, sum(rate for _, rate in points) / count
    across = sum((at - x) ** 2 for at, _ in points)
    along = sum((at - x) * (rate - y) for at, rate in points)
    total = sum((rate - y) ** 2 for _, rate in points)
    slope = along / across
    fit = 1.0 if total < 1e-12 else min(1.0, slope * along / total)
    return y + slope * (points[-1][0] - x), slope, fit


@dataclass(frozen=True, slots=True)
class Cboxdk:
    """The queue autoscaler of cboxdk, version 3, hybrid. It does not count arrivals: it adds the growth of the
    backlog to the tasks finished in the last minute. It measures ages in whole seconds and treats 0 as unknown, so
    that it acts at once on new tasks. Active workers are those that are ready; both limits of a step down refer to
    the present fleet."""

    name: str = "cboxdk"
    every: float = 5.0
    cooldown: float = 60.0
    threshold: float = 0.5  # share of the SLA at which draining begins
    forecast: bool = True
    hold_up: bool = True  # a step up after a step down waits too; later releases hold only steps down
    horizon: float = 60.0
    least_fit: float = 0.6
    weight: float = 0.5  # of the forecast
    spawn: float = 2.0  # seconds that a start takes, until it is measured
    saturated: float = 0.9
    most_down: float = 0.25
    steady: float = 0.05

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        notes = recall(memory, self.name)
        if (held := repeat_if_early(signals, notes, self.every)) is not None:
            return held
        finishing = growth_rate(signals, "finished", 60.0)
        arriving = self._arrival_rate(self._looks(signals.samples[-1], notes), finishing)
        little, drain = min(MAX_VALUE, arriving * service_time(signals)), min(MAX_VALUE, self._drain(signals))
        wanted = round_up(max(little, drain) / signals.limits.slots)
        rules = {"little": little, "drain": drain}
        text = f"{arriving:.2f} per s need {little:.1f} slots, the backlog {drain:.1f}"
        share, ready = busy_share(signals), signals.fleet.ready
        if share is not None and share >= self.saturated and wanted <= ready:
            wanted, rules["busy"], text = ready + 1, ready + 1, f"{text}; {share:.0%} busy"
        target, bound_by = self._limit_step(signals, notes, wanted, finishing)
        if not bound_by:
            bound_by = "busy" if "busy" in rules else "drain" if drain > little else "little"
        return make_decision(signals, target, bound_by, rules, text, notes=notes)

    def _looks(self, latest: Sample, notes: Notes) -> list[list[float]]:
        looks = [one for one in notes.get("looks", ()) if INSTANT <= latest.at - one[0] <= MAX_LOOK_AGE]
        looks = notes["looks"] = [*looks, [latest.at, latest.pending]][-MAX_LOOKS:]
        return looks

    def _arrival_rate(self, looks: list[list[float]], finishing: float) -> float:
        points: list[tuple[float, float]] = []
        total, weights, weight = 0.0, 0.0, 1.0
        for (before, had), (at, has) in pairwise(looks):
            growth, weight = (has - had) / (at - before), weight * 2
            total, weights = total + weight * growth, weights + weight
            points.append((at, max(0.0, finishing + growth)))
        observed = max(0.0, finishing + total / weights) if weights else finishing
        if not self.forecast or len(points) < MIN_POINTS:
            return observed
        height, slope, fit = fit_line(points)
        ahead = max(0.0, height + slope * self.horizon)
        return self.weight * ahead + (1 - self.weight) * observed if fit >= self.least_fit else observed

    def _drain(self, signals: Signals) -> float:
        """Returns the slots that clear the backlog before its oldest task is late; the margin grows with its age."""
        pending, age, seconds = signals.pending, signals.oldest_age, service_time(signals)
        spawn = self.spawn if signals.start_latency is None else signals.start_latency
        promise = max(1.0, signals.limits.sla - spawn)
        if age < 1:
            return pending / max(promise / seconds, 1.0)
        pressure = min(age / promise, 1.5)
        if pressure < self.threshold:
            return 0.0
        left = promise - age
        base = pending / (max(left / seconds, 1.0) if left > 0 else max(seconds, 0.1))
        return base * min(1 + 8 * (pressure - self.threshold) ** 2, 5.0)

    def _limit_step(self, signals: Signals, notes: Notes, wanted: int, finishing: float) -> tuple[int, str]:
        """Limits the step to the wanted number. Returns the target, and the limit that applied."""
        current, now = signals.fleet.workers, signals.now
        paces = notes["paces"] = [*notes.get("paces", ()), finishing][-MAX_PACES:]
        direction = "up" if clamp(signals, wanted) > current else "down" if clamp(signals, wanted) < current else ""
        if direction and self._is_blocked(signals, notes, direction):
            return current, "cooldown"
        target = wanted
        if direction == "down":
            most = 1 if relative_spread(paces) < self.steady else max(1, ceiling(current * self.most_down))
            target = max(wanted, current - most)
        if direction:
            notes["moved"], notes["way"] = now, direction
        return target, "" if target == wanted else "step"

    def _is_blocked(self, signals: Signals, notes: Notes, direction: str) -> bool:
        if notes.get("way", direction) == direction or has_passed(notes, "moved", signals.now, self.cooldown):
            return False
        return direction == "down" or (self.hold_up and signals.oldest_age < signals.limits.sla)


def relative_spread(paces: list[float]) -> float:
    """Returns standard deviation / mean; infinite if there are fewer than three values."""
    mean = sum(paces) / len(paces)
    if len(paces) < 3 or mean <= 0:
        return math.inf
    return math.sqrt(sum((one - mean) ** 2 for one in paces) / len(paces)) / mean
