"""The rivals: how others decide, each as its documents say, so that ours is measured against something.

A rival sees only what its tool sees, and keeps its own time: when it is not its turn it repeats itself. Three things
hold for all. Where the tool needs a service time that nobody knows yet, it assumes a second. Where a tool counts
workers that run one task, slots are counted here and divided by those of a worker. Without new metrics it repeats
itself too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.errors import ConfigError, shown
from penstock.scaler.decision import Decision, Memory, Policy, ceiling, conclude, within
from penstock.scaler.signals import Sample, Signals, rate_between

ASSUMED_SERVICE = 1.0  # seconds, until somebody knows; the seed's own default of one task a second
MOST = 1e9  # workers or tasks a second that anybody asks for: no number here becomes infinite
INSTANT = 0.001  # two looks closer together than this say nothing about a rate
HAIR = 1e-6  # seconds that a clock may be early and still be on time

Kept = dict[str, Any]

# -- What all of them do -----------------------------------------------------------------------------------------------


def service(signals: Signals) -> float:
    return signals.service or ASSUMED_SERVICE


def whole(value: float) -> int:
    return ceiling(min(value, MOST))


def busy(signals: Signals) -> float | None:
    """The share of slots that run something; None: there are none. Tasks of workers on their way out count too."""
    slots = signals.fleet.ready * signals.limits.slots
    return min(1.0, signals.active / slots) if slots else None


def pace(signals: Signals, counted: str, seconds: float) -> float:
    """Per second; 0 when there is nothing to tell it from."""
    rate = rate_between(signals.samples, counted, seconds)
    return min(rate, MOST) if rate is not None and rate > 0 else 0.0


def recall(memory: Memory, name: str) -> Kept:
    """A copy, to write in. What another policy remembered means nothing here."""
    return dict(memory) if isinstance(memory, dict) and memory.get("by") == name else {"by": name}


def say(signals: Signals, wanted: int, bound_by: str, rules: Mapping[str, float], said: str, *, kept: Kept) -> Decision:
    decision = conclude(signals, wanted, bound_by, rules, said, memory=kept)
    kept["target"] = decision.workers
    return decision


def repeat(signals: Signals, kept: Kept, why: str) -> Decision:
    target = kept.get("target", signals.fleet.workers)
    return say(signals, target, "held", {"held": target}, f"as before, {why}", kept=kept)


def passed(kept: Kept, key: str, now: float, seconds: float) -> bool:
    """Whether so long ago, or never. A clock that was set back does not make anybody wait."""
    return key not in kept or not 0 <= now - kept[key] < seconds - HAIR


def not_yet(signals: Signals, kept: Kept, every: float = 0.0) -> Decision | None:
    """What it says when it has nothing new to say; None: it is its turn."""
    if signals.stale:
        return repeat(signals, kept, "for want of new metrics")
    if not passed(kept, "at", signals.now, every):
        return repeat(signals, kept, f"it decides every {every:g} s")
    kept["at"] = signals.now
    return None


def highest(kept: Kept, now: float, wanted: int, seconds: float) -> int:
    """The highest recommendation of a window, this one included. Those that a later one topped are forgotten, so the
    first of what is kept is the highest."""
    window = [one for one in kept.get("window", ()) if 0 <= now - one[0] < seconds - HAIR and one[1] > wanted]
    window.append([now, wanted])
    kept["window"] = window
    return int(window[0][1])


# -- The text we began with --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeedText:
    """The hybrid of the page, faults included. Rising: more pending than four samples ago; the trend looks six more
    samples ahead."""

    name: str = "seed-text"
    warning: float = 0.8
    margin: float = 2.0
    samples: int = 5
    ahead: float = 6.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept)) is not None:
            return held
        rule, wanted, said = self._rule(signals)
        return say(signals, wanted, rule, {rule: wanted}, said, kept=kept)

    def _rule(self, signals: Signals) -> tuple[str, int, str]:
        limits, pending, each = signals.limits, signals.pending, service(signals) / signals.limits.slots
        left = limits.sla - signals.oldest_age
        usage = signals.oldest_age / limits.sla
        if not pending:
            return "empty", limits.min_workers, "nothing is pending"
        if usage >= 1 or left <= 0:
            return "breach", limits.max_workers, f"the oldest is {-left:.1f} s late"
        if usage >= self.warning:
            base, margin = whole(pending / left * each), 1 + self.margin * (usage - self.warning)
            return "drain", whole(base * margin), f"{pending} pending / {left:.1f} s left = {base}, × {margin:.2f}"
        slope = self._slope(signals)
        if slope > 0:
            expected = pending + slope * self.ahead
            return "trend", whole(expected / limits.sla * each), f"{pending} pending, {expected:.0f} soon"
        return "little", whole(pending / limits.sla * each), f"{pending} pending / {limits.sla:g} s"

    def _slope(self, signals: Signals) -> float:
        """Tasks a sample."""
        recent = signals.samples[-self.samples :]
        return 0.0 if len(recent) < self.samples else (recent[-1].pending - recent[0].pending) / (self.samples - 1)


# -- The code that its page describes ----------------------------------------------------------------------------------

LOOKS, OLDEST_LOOK = 30, 300.0
FITTED = 5  # rates that a line needs
PACES = 10  # readings of the throughput whose spread says whether it is steady


def line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """By least squares: height at the last point, slope, R²."""
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
    """cboxdk's queue autoscaler, version 3, hybrid. It does not count arrivals: it adds the growth of the backlog to
    what was finished in the last minute. It tells ages in whole seconds and takes 0 for unknown, so that it acts at
    once on what has just come. Active workers are those that are ready; both limits of a way down count from the fleet
    there is."""

    name: str = "cboxdk"
    every: float = 5.0
    cooldown: float = 60.0
    threshold: float = 0.5  # share of the promise where draining begins
    forecast: bool = True
    hold_up: bool = True  # a way up after a way down waits too; releases after ours hold only the way down
    horizon: float = 60.0
    least_fit: float = 0.6
    weight: float = 0.5  # of the forecast
    spawn: float = 2.0  # seconds a start takes, until it was measured
    saturated: float = 0.9
    most_down: float = 0.25
    steady: float = 0.05

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept, self.every)) is not None:
            return held
        finishing = pace(signals, "finished", 60.0)
        arriving = self._arriving(self._looks(signals.samples[-1], kept), finishing)
        little, drain = min(MOST, arriving * service(signals)), min(MOST, self._drain(signals))
        wanted = whole(max(little, drain) / signals.limits.slots)
        rules = {"little": little, "drain": drain}
        said = f"{arriving:.2f} a second want {little:.1f} slots, the backlog {drain:.1f}"
        share, ready = busy(signals), signals.fleet.ready
        if share is not None and share >= self.saturated and wanted <= ready:
            wanted, rules["busy"], said = ready + 1, ready + 1, f"{said}; {share:.0%} busy"
        target, bound_by = self._damped(signals, kept, wanted, finishing)
        if not bound_by:
            bound_by = "busy" if "busy" in rules else "drain" if drain > little else "little"
        return say(signals, target, bound_by, rules, said, kept=kept)

    def _looks(self, latest: Sample, kept: Kept) -> list[list[float]]:
        looks = [one for one in kept.get("looks", ()) if INSTANT <= latest.at - one[0] <= OLDEST_LOOK]
        looks = kept["looks"] = [*looks, [latest.at, latest.pending]][-LOOKS:]
        return looks

    def _arriving(self, looks: list[list[float]], finishing: float) -> float:
        points: list[tuple[float, float]] = []
        total, weights, weight = 0.0, 0.0, 1.0
        for (before, had), (at, has) in pairwise(looks):
            growth, weight = (has - had) / (at - before), weight * 2
            total, weights = total + weight * growth, weights + weight
            points.append((at, max(0.0, finishing + growth)))
        observed = max(0.0, finishing + total / weights) if weights else finishing
        if not self.forecast or len(points) < FITTED:
            return observed
        height, slope, fit = line(points)
        ahead = max(0.0, height + slope * self.horizon)
        return self.weight * ahead + (1 - self.weight) * observed if fit >= self.least_fit else observed

    def _drain(self, signals: Signals) -> float:
        """Slots that would clear the backlog before its oldest is late, more of them the later it is."""
        pending, age, seconds = signals.pending, signals.oldest_age, service(signals)
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

    def _damped(self, signals: Signals, kept: Kept, wanted: int, finishing: float) -> tuple[int, str]:
        """What is left of it after the limits on its way, and which of them it was."""
        current, now = signals.fleet.workers, signals.now
        paces = kept["paces"] = [*kept.get("paces", ()), finishing][-PACES:]
        way = "up" if within(signals, wanted) > current else "down" if within(signals, wanted) < current else ""
        if way and self._blocked(signals, kept, way):
            return current, "cooldown"
        target = wanted
        if way == "down":
            most = 1 if spread(paces) < self.steady else max(1, ceiling(current * self.most_down))
            target = max(wanted, current - most)
        if way:
            kept["moved"], kept["way"] = now, way
        return target, "" if target == wanted else "step"

    def _blocked(self, signals: Signals, kept: Kept, way: str) -> bool:
        if kept.get("way", way) == way or passed(kept, "moved", signals.now, self.cooldown):
            return False
        return way == "down" or (self.hold_up and signals.oldest_age < signals.limits.sla)


def spread(paces: list[float]) -> float:
    """Standard deviation / mean; infinite where three readings of anything are missing."""
    mean = sum(paces) / len(paces)
    if len(paces) < 3 or mean <= 0:
        return math.inf
    return math.sqrt(sum((one - mean) ** 2 for one in paces) / len(paces)) / mean


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HpaRules:
    """The horizontal pod autoscaler's defaults. Current is what was asked for, started or not."""

    sync: float = 15.0
    tolerance: float = 0.1
    hold: float = 300.0  # down only to the highest recommendation of so long
    most_added: int = 4  # up at most by this or that share, whichever is more
    most_share: float = 1.0

    def settle(self, signals: Signals, kept: Kept, need: float, rule: str, said: str) -> Decision:
        """The decision of so many workers needed, not rounded."""
        current, need = signals.fleet.workers, min(need, MOST)
        near = abs(need - current) <= self.tolerance * current + 1e-9
        wanted = current if near else whole(need)
        peak = highest(kept, signals.now, wanted, self.hold)
        limit = max(current + self.most_added, math.floor(current * (1 + self.most_share)))
        target = min(wanted, limit) if wanted > current else min(current, peak)
        bound_by = "tolerance" if near else rule
        if target != wanted:
            bound_by = "step" if target < wanted else "hold"
        return say(signals, target, bound_by, {rule: need, "highest": peak}, said, kept=kept)


def pending_only(signals: Signals, target: float) -> float:
    """Slots such that each has no more waiting for it than it can do within the promise."""
    return signals.pending * service(signals) / (signals.limits.sla * target)


def pending_and_running(signals: Signals, target: float) -> float:
    return pending_only(signals, target) + signals.active


def per_slot(signals: Signals, target: float) -> float:
    return (signals.pending + signals.active) / target


NEEDS: dict[str, Callable[[Signals, float], float]] = {
    "keda-pending": pending_only,
    "keda-pending-running": pending_and_running,
    "keda-slots": per_slot,
}


@dataclass(frozen=True, slots=True)
class Keda:
    """KEDA: a query's value over a target, by the pod autoscaler's rules. The name says which query; the target is a
    multiple of what the row says: the tasks a slot does within the promise, or one task a slot."""

    name: str = "keda-pending"
    target: float = 1.0
    rules: HpaRules = HpaRules()

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept, self.rules.sync)) is not None:
            return held
        need = NEEDS[self.name](signals, self.target) / signals.limits.slots
        said = f"{signals.pending} pending and {signals.active} running need {need:.1f}"
        return self.rules.settle(signals, kept, need, self.name.removeprefix("keda-"), said)


@dataclass(frozen=True, slots=True)
class HpaBusy:
    """The pod autoscaler on a busy share: workers × share / target. The share is that of the workers that are ready;
    with `idle_starts` those that are starting count as idle ones, as the real one does on its way up, and are not
    multiplied."""

    name: str = "hpa-busy"
    target: float = 0.7
    idle_starts: bool = False
    rules: HpaRules = HpaRules()

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept, self.rules.sync)) is not None:
            return held
        share = busy(signals)
        if share is None:
            return repeat(signals, kept, "no worker is ready, so none is busy")
        current = signals.fleet.ready if self.idle_starts else signals.fleet.workers
        need = current * share / self.target
        return self.rules.settle(signals, kept, need, "busy", f"{current} workers {share:.0%} busy need {need:.1f}")


# -- Alarms, steps and bands -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AwsBacklog:
    """AWS: backlog per instance, target tracking. A metric a minute, as it stands then. Out as fast as it can: an alarm
    that is on acts every minute. In "more gradually", as documented without a number: here by a tenth, and then its
    alarms are counted anew; an empty queue would otherwise send everybody home (`most_in` 1 does)."""

    name: str = "aws-backlog"
    target: float = 1.0  # × the tasks a slot does within the promise
    period: float = 60.0
    out_after: int = 3
    in_after: int = 15
    most_in: float = 0.1

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept, self.period)) is not None:
            return held
        target = current = signals.fleet.workers
        wanted = whole(pending_only(signals, self.target) / signals.limits.slots)
        high = kept["high"] = min(kept.get("high", 0) + 1, self.out_after) if wanted > current else 0
        low = kept["low"] = kept.get("low", 0) + 1 if wanted < current else 0
        said = f"{signals.pending} pending want {wanted}, above for {high} min, below for {low} min"
        if high >= self.out_after:
            target = wanted
        elif low >= self.in_after:
            target, kept["low"] = max(wanted, current - max(1, ceiling(current * self.most_in))), 0
        bound_by = "backlog" if target == wanted else "alarm" if target == current else "step"
        return say(signals, target, bound_by, {"backlog": wanted}, said, kept=kept)


@dataclass(frozen=True, slots=True)
class Horizon:
    """Laravel Horizon, one queue: a worker for each task that waits, a step every three seconds. Called less often, it
    makes the steps that it would have made; what is left of three seconds counts next time. With `balance` it shares
    its most by time to clear, and the share of the only queue is all of it as long as anything waits."""

    name: str = "horizon"
    shift: int = 1
    every: float = 3.0
    balance: bool = False

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept, now = recall(memory, self.name), signals.now
        if signals.stale:
            kept["at"] = now  # no steps to make up for afterwards
            return repeat(signals, kept, "for want of new metrics")
        if passed(kept, "at", now, self.every):
            return self._step(signals, kept)
        return repeat(signals, kept, f"it steps every {self.every:g} s")

    def _step(self, signals: Signals, kept: Kept) -> Decision:
        now, current, limits = signals.now, signals.fleet.workers, signals.limits
        since = now - kept.get("at", now - self.every)
        steps = max(1, int((since + HAIR) // self.every))
        kept["at"] = now - max(0.0, since - steps * self.every)
        size = whole(signals.pending / limits.slots)
        desired = within(signals, limits.max_workers if self.balance and size else size)
        most = steps * self.shift
        target = max(current - most, min(current + most, desired))
        said = f"{signals.pending} pending want {desired}, from {current} at most {most} at a time"
        return say(signals, target, "size" if target == desired else "step", {"size": desired}, said, kept=kept)


@dataclass(frozen=True, slots=True)
class Judoscale:
    """As Judoscale does: a band of queue times. The tool's is in seconds; somebody who promised so many puts it inside
    the promise: here up above half of it, down below a quarter. The way down waits again after each step, as
    documented."""

    name: str = "judoscale"
    jump: int = 2
    drop: int = 1
    upper: float = 0.5  # shares of the promise
    lower: float = 0.25
    up_every: float = 60.0
    down_after: float = 600.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept)) is not None:
            return held
        now, current, usage = signals.now, signals.fleet.workers, signals.oldest_age / signals.limits.sla
        target, bound_by = current, "band"
        if usage >= self.lower:
            kept.pop("quiet", None)
        else:
            kept["quiet"] = min(now, kept.get("quiet", now))
        if usage > self.upper and passed(kept, "up", now, self.up_every):
            target, bound_by, kept["up"] = current + self.jump, "above", now
        elif "quiet" in kept and passed(kept, "quiet", now, self.down_after):
            target, bound_by, kept["quiet"] = current - self.drop, "below", now
        said = f"queue time at {usage:.0%} of the promise, band {self.lower:.0%} to {self.upper:.0%}"
        return say(signals, max(0, target), bound_by, {bound_by: target}, said, kept=kept)


# -- Those that know the rate ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flink:
    """Flink's operator: room for the arrivals, for the backlog and for what comes during a restart, caught up within
    the promise. Rates are of the last minute; before anything was finished, the service time tells them. Down to the
    highest of the last minute: the tool's own hour would only cost it more here."""

    name: str = "flink"
    utilisation: float = 0.7
    hold: float = 60.0
    window: float = 60.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        if (held := not_yet(signals, kept)) is not None:
            return held
        arriving = pace(signals, "arrived", self.window)
        finished, spent = pace(signals, "finished", self.window), pace(signals, "busy_seconds", self.window)
        each = spent / finished if finished and spent else service(signals)
        catch_up = (signals.pending + arriving * signals.latency) / signals.limits.sla
        wanted = whole((catch_up + arriving / self.utilisation) * each / signals.limits.slots)
        peak = highest(kept, signals.now, wanted, self.hold)
        said = f"{arriving:.2f} a second at {self.utilisation:.0%} and {catch_up:.2f} to catch up, {each:.2f} s each"
        rules = {"flink": wanted, "highest": peak}
        return say(signals, peak, "flink" if peak == wanted else "hold", rules, said, kept=kept)


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same. The best one in hindsight is found by whoever simulates."""

    workers: int = 10
    name: str = "static"

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        kept = recall(memory, self.name)
        return say(signals, self.workers, "static", {"static": self.workers}, "a fixed fleet", kept=kept)


# -- All of them, and their knobs --------------------------------------------------------------------------------------

HOLDS = (HpaRules(), HpaRules(hold=60.0))
GRIDS: dict[str, list[Policy]] = {
    "seed-text": [SeedText(warning=warning, ahead=ahead) for warning in (0.8, 0.65, 0.5) for ahead in (6.0, 12.0)],
    "cboxdk": [
        *(Cboxdk(cooldown=cooldown, threshold=threshold) for cooldown in (60.0, 20.0) for threshold in (0.5, 0.3)),
        *(Cboxdk(cooldown=cooldown, forecast=False) for cooldown in (60.0, 20.0)),
        Cboxdk(hold_up=False),
        Cboxdk(hold_up=False, cooldown=20.0, threshold=0.3),
    ],
    **{name: [Keda(name, target, rules) for target in (1.0, 0.5, 2.0) for rules in HOLDS] for name in NEEDS},
    "hpa-busy": [
        *(HpaBusy(target=target, rules=rules) for target in (0.7, 0.5, 0.85) for rules in HOLDS),
        *(HpaBusy(idle_starts=True, rules=rules) for rules in HOLDS),
    ],
    "aws-backlog": [
        *(AwsBacklog(out_after=above, in_after=below) for above in (3, 1) for below in (15, 5)),
        *(AwsBacklog(target=0.5, out_after=above) for above in (3, 1)),
        *(AwsBacklog(most_in=share) for share in (0.0, 1.0)),  # one at a time, all at once
    ],
    "horizon": [Horizon(shift=shift, balance=balance) for balance in (False, True) for shift in (1, 2, 5, 10)],
    "judoscale": [
        *(Judoscale(jump=jump, down_after=after) for jump in (2, 5, 10) for after in (600.0, 120.0)),
        *(Judoscale(jump=jump, upper=0.2, lower=0.1, down_after=120.0) for jump in (2, 10)),
    ],
    "flink": [Flink(utilisation=share, hold=hold) for share in (0.7, 0.6, 0.9) for hold in (60.0, 300.0)],
    "static": [Static(workers) for workers in (10, 1, 2, 5, 20, 50, 100, 200)],
}
RIVALS: dict[str, Policy] = {name: settings[0] for name, settings in GRIDS.items()}  # as documented


def grid(name: str) -> list[Policy]:
    """The settings that a rival is tried with, its documented ones first."""
    if name not in GRIDS:
        raise ConfigError(f"rival: {shown(name)} is not one of {', '.join(GRIDS)}")
    return list(GRIDS[name])
