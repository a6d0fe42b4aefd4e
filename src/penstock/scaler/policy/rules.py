"""The common rules for scaling queues: Little's law, trend, drain, and policies that combine them.

The rules and their numbers come from one article about another scaler. Where the article contradicts itself, this
module follows its formulas and not its prose:

- its comments claim a margin of 1.4 at 90 % of the SLA and 1.8 at 95 %; the formula beside them gives 1.2 and 1.3;
- its third example rounds 13 × 1.23 down to 16; its code rounds up, to 17;
- it divides what n samples show by n intervals; they span n - 1;
- it compares a float with the integer 0 by identity, so that a cold queue divides by zero;
- when no task waits it asks for the minimum. Then tasks pile up until it asks for the maximum, which empties the queue,
  and so on for ever. Here busy workers stay when no task waits: see `keep_busy` and `apply_littles_law`.

Two faults are kept, because they are the rule. The drain wants to start the whole backlog before the deadline of the
oldest task: where ages are spread, that takes 1 / (1 - usage) times too many workers, five times at 80 %. And to wait
for 80 % is too late wherever a decision and the start of a worker take longer than a fifth of the SLA.

Each rule jumps where it switches its formula, at 80 % or when a queue begins to grow. Between jumps it never wants
fewer workers for more tasks, older tasks, longer tasks or a shorter SLA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.scaler.policy.decision import (
    Decision,
    Memory,
    Policy,
    ceiling,
    conclude,
    drain_rate,
    predicted_breach,
    urgency,
)
from penstock.scaler.policy.signals import Signals, rate_between

MAX_RATE = 1e18  # tasks per second: larger rates count as this


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that the rules share."""

    arrivals: bool = True  # False: Little's law as in the article, from the backlog only
    window: float = 60.0  # seconds over which arrivals are counted
    samples: int = 5  # from which a trend is computed
    horizon: float = 6.0  # intervals for which a trend is assumed to continue
    warning: float = 0.8  # share of the SLA from which the backlog is drained
    steepness: float = 2.0  # of the margin above the warning: 1.0 at 80 %, 1.2 at 90 %, 1.3 at 95 %
    unknown: float = 0.8  # share of the maximum while the service time is unknown


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule: how many workers, and the text that explains it."""

    rule: str
    workers: int
    why: str


# -- Parts of the rules -----------------------------------------------------------------------------------------------


def brief(value: float) -> str:
    """Formats a number with three digits, or as a whole number."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def usage(signals: Signals) -> float:
    """Returns the share of the SLA that the oldest waiting task has used."""
    return signals.oldest_age / signals.limits.sla


def arrival_rate(signals: Signals, numbers: Numbers) -> float | None:
    """Returns the arrivals per second; None: not known, or not to be used."""
    rate = rate_between(signals.samples, "arrived", numbers.window) if numbers.arrivals else None
    return None if rate is None else min(max(rate, 0.0), MAX_RATE)


def guess_without_rate(signals: Signals, numbers: Numbers) -> RuleResult:
    """Wants most of the allowed workers while a task waits. This is a guess, so it gets no margin."""
    if not signals.pending:
        return RuleResult("unknown-rate", 0, "no task waits, and the service time is not known yet")
    most = signals.limits.max_workers
    why = f"{signals.pending} pending and the service time is not known yet: {brief(numbers.unknown)} of max {most}"
    return RuleResult("unknown-rate", ceiling(most * numbers.unknown), why)


def keep_busy(signals: Signals) -> RuleResult:
    """Wants the workers that are busy now: Little's L, counted instead of computed. It keeps workers and never
    starts any, because a running task already has one. To stop a busy worker saves nothing: another one must start
    in its place."""
    busy, workers = ceiling(signals.active / signals.limits.slots), signals.fleet.workers
    why = f"{signals.active} running, {signals.limits.slots} to a worker, of {workers} workers: busy workers stay"
    return RuleResult("running", min(busy, workers), why)


# -- Three rules ------------------------------------------------------------------------------------------------------


def apply_littles_law(
    signals: Signals, numbers: Numbers, *, more: float = 0.0, factor: float = 1.0, rule: str = "littles-law"
) -> RuleResult:
    """Applies L = λ·W: the arrivals per second times the service time are the tasks in work. That keeps pace with
    arrivals. The backlog is added, spread over one SLA: pending / SLA × service. The article has only the second
    half, and so has this rule while arrivals are unknown. `more` are waiting tasks that are foreseen."""
    rate = signals.rate
    if rate is None:
        return guess_without_rate(signals, numbers)
    arrivals, sla = arrival_rate(signals, numbers), signals.limits.sla
    workers = ceiling(((arrivals or 0.0) / rate + (signals.pending + more) / sla / rate) * factor)
    backlog = f"({signals.pending} + {brief(more)} foreseen)" if more else f"{signals.pending} pending"
    arrived = f" + {brief(arrivals)} arriving per s" if arrivals is not None else ""
    by = "the trend" if rule == "trend" else "Little's law"
    times = f", × {brief(factor)} at {format_usage(signals)}" if factor != 1 else ""
    return RuleResult(rule, workers, f"({backlog} / {brief(sla)} s{arrived}) / {brief(rate)} per s by {by}{times}")


def apply_trend(signals: Signals, numbers: Numbers) -> RuleResult | None:
    """Applies Little's law to the backlog that is foreseen, if it grew over the last samples; None: it did not, or
    there are too few samples. The newest sample is compared with the oldest, so a dip in between does not end a
    trend."""
    if len(signals.samples) < numbers.samples:
        return None
    growth = -(drain_rate(signals, numbers.samples) or 0.0)
    ahead = min(growth * numbers.horizon * signals.limits.interval, MAX_RATE)
    return apply_littles_law(signals, numbers, more=ahead, rule="trend") if ahead > 0 else None


def apply_drain(
    signals: Signals, numbers: Numbers, *, factor: float | None = None, rule: str = "backlog-drain", note: str = ""
) -> RuleResult:
    """Computes pending / time left / rate, rounded up, × the margin, rounded up; if the oldest task is late, the
    maximum. The margin is `factor`, or 1 + (usage - 0.8) × 2 above 80 % of the SLA: 1.2 at 90 %, 1.3 at 95 %."""
    left = signals.limits.sla - signals.oldest_age
    if left <= 0:
        most = signals.limits.max_workers
        return RuleResult("breach", most, f"{signals.pending} pending, the oldest {brief(-left)} s late: all {most}")
    rate = signals.rate
    if rate is None:
        return guess_without_rate(signals, numbers)
    base = ceiling(signals.pending / left / rate)
    margin = 1 + max(0.0, usage(signals) - numbers.warning) * numbers.steepness if factor is None else factor
    times = (
        f", × {brief(margin)} {note or f'at {format_usage(signals)}'}"
        if margin != 1
        else f" at {format_usage(signals)}"
    )
    why = f"{signals.pending} pending / {brief(left)} s left / {brief(rate)} per s = {base}{times}"
    return RuleResult(rule, ceiling(base * margin), why)


def format_usage(signals: Signals) -> str:
    return f"{100 * usage(signals):.0f} % of the SLA"


# -- The largest result decides ---------------------------------------------------------------------------------------


def decide_by_largest(signals: Signals, numbers: Numbers, *apply: RuleResult) -> Decision:
    """Decides by the largest result of the rules that apply, the first among equals. Busy workers stay. The reason
    mentions the results of the other rules."""
    kept = keep_busy(signals)
    chosen = max((*apply, kept), key=lambda one: one.workers)
    foreseen = apply_trend(signals, numbers)
    computed = [apply_littles_law(signals, numbers), *([foreseen] if foreseen else []), apply_drain(signals, numbers)]
    rules: dict[str, float] = {one.rule: one.workers for one in (*computed, *apply, kept)}
    parts = [chosen.why, describe_others(chosen, rules)]
    if signals.limits.min_workers <= chosen.workers < signals.limits.max_workers:
        parts.append(f"max {signals.limits.max_workers} not reached")
    return conclude(signals, chosen.workers, chosen.rule, rules, "; ".join(filter(None, parts)))


RULE_NAMES = {"littles-law": "Little's law", "trend": "trend", "backlog-drain": "backlog drain"}


def describe_others(chosen: RuleResult, rules: dict[str, float]) -> str:
    """Returns the results of the rules that did not decide, as a text."""
    known = [
        (words, f"{rules[rule]:.0f}") for rule, words in RULE_NAMES.items() if rule in rules and rule != chosen.rule
    ]
    if not known:
        return ""
    if "trend" not in rules:
        known.insert(1, ("trend", "nothing"))
    (words, first), *rest = known
    return ", ".join([f"{words} gives {first}", *(f"{word} {number}" for word, number in rest)])


# -- Policies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """Keeps pace with arrivals and clears the backlog within one SLA. With `Numbers(arrivals=False)` it is the form
    of the article, pending / SLA × service, which wants no workers for a queue that keeps pace."""

    name: ClassVar[str] = "littles-law"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it keeps no memory
        return decide_by_largest(signals, self.numbers, apply_littles_law(signals, self.numbers))


@dataclass(frozen=True, slots=True)
class BacklogDrain:
    """Applies Little's law until the oldest task has used 80 % of the SLA. From then on it wants to start the whole
    backlog before that task is late, with a margin. If the task is late it wants the maximum; if the service time is
    unknown, 80 % of the maximum.

    It never wants fewer workers than Little's law, not even above 80 %: the drain sees only the waiting tasks, and
    would stop the workers that keep pace with arrivals. When no task waits, Little's law on arrivals applies and
    busy workers stay; the minimum, which the article takes, makes a limit cycle."""

    name: ClassVar[str] = "backlog-drain"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it keeps no memory
        return decide_by_largest(signals, self.numbers, *apply_warning_rules(signals, self.numbers))


def apply_warning_rules(signals: Signals, numbers: Numbers) -> Iterable[RuleResult]:
    """Returns Little's law, and above the warning also the drain."""
    steady = apply_littles_law(signals, numbers)
    return (apply_drain(signals, numbers), steady) if usage(signals) >= numbers.warning else (steady,)


@dataclass(frozen=True, slots=True)
class Trend:
    """Applies Little's law to the backlog foreseen in six intervals if it grew over five samples, else to the
    present one. It wants as many workers for a queue that shrinks as for one that does not change."""

    name: ClassVar[str] = "trend"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it keeps no memory
        foreseen = apply_trend(signals, self.numbers)
        return decide_by_largest(signals, self.numbers, foreseen or apply_littles_law(signals, self.numbers))


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Drains the backlog from 80 % of the SLA on; below that it follows a trend, or else Little's law."""

    name: ClassVar[str] = "hybrid"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        if usage(signals) < self.numbers.warning:
            return Trend(self.numbers).decide(signals, memory)
        return BacklogDrain(self.numbers).decide(signals, memory)


@dataclass(frozen=True, slots=True)
class Tiered:
    """Drains with a margin in steps: 1.2 from 80 % of the SLA, 1.3 from 90 %, 1.5 from 95 %; the maximum when late."""

    name: ClassVar[str] = "tiered"
    tiers: tuple[tuple[float, float], ...] = ((0.8, 1.2), (0.9, 1.3), (0.95, 1.5))  # (from this usage, margin)
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it keeps no memory
        steady, used = apply_littles_law(signals, self.numbers), usage(signals)
        margin = max((margin for least, margin in self.tiers if used >= least), default=None)
        if margin is None:
            return decide_by_largest(signals, self.numbers, steady)
        return decide_by_largest(
            signals, self.numbers, apply_drain(signals, self.numbers, factor=margin, rule=self.name), steady
        )


@dataclass(frozen=True, slots=True)
class Cascade:
    """Wants 1.5 times the drain without its margin as soon as a breach is foreseen within two minutes, because late
    tasks come in groups. It also foresees the breach of a growing queue, which the article does not. With an SLA
    below two minutes, a breach is foreseen for every queue that does not shrink, so it gets the drain × 1.5 at any
    age."""

    name: ClassVar[str] = "cascade"
    soon: float = 120.0  # seconds
    factor: float = 1.5
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it keeps no memory
        steady, breach = apply_littles_law(signals, self.numbers), predicted_breach(signals)
        if breach is None or breach > self.soon:
            return decide_by_largest(signals, self.numbers, steady)
        note = f"because a breach is foreseen in {brief(breach)} s"
        found = apply_drain(signals, self.numbers, factor=self.factor, rule=self.name, note=note)
        return decide_by_largest(signals, self.numbers, found, steady)


@dataclass(frozen=True, slots=True)
class Levels:
    """Has a rule for each urgency. NORMAL: Little's law. ELEVATED: Little's law × 1.2. WARNING: the drain. CRITICAL:
    the drain × 1.5. BREACH: the maximum. The article has no numbers for ELEVATED and CRITICAL; these are those of
    its tiers."""

    name: ClassVar[str] = "levels"
    elevated: float = 1.2  # × Little's law
    critical: float = 1.5  # × the drain, instead of its margin
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it keeps no memory
        steady = apply_littles_law(signals, self.numbers)
        match urgency(signals):
            case "NORMAL":
                return decide_by_largest(signals, self.numbers, steady)
            case "ELEVATED":
                more = apply_littles_law(signals, self.numbers, factor=self.elevated, rule="elevated")
            case "CRITICAL":
                more = apply_drain(signals, self.numbers, factor=self.critical, rule="critical")
            case _:
                more = apply_drain(signals, self.numbers)
        return decide_by_largest(signals, self.numbers, more, steady)


# -- Around any policy ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Escalating:
    """Adds a tenth for each sample in a row at 80 % of the SLA or above, up to twice as many workers. It stops at the
    maximum and does not report missing workers: a margin is not a need."""

    name: ClassVar[str] = "escalating"
    policy: Policy = field(default_factory=BacklogDrain)
    high: float = 0.8  # share of the SLA
    step: float = 0.1
    most: float = 2.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        found = self.policy.decide(signals, inner_memory(memory))
        looks, at = self.looks(signals, memory)
        remembered = {"looks": looks, "at": at, "policy": found.memory}
        factor = min(self.most, 1 + self.step * looks)
        raised = min(ceiling(found.wanted * factor), signals.limits.max_workers)
        high = f"{100 * self.high:.0f} % of the SLA"
        why = (
            f"{found.wanted} × {brief(factor)} after {looks} {'sample' if looks == 1 else 'samples in a row'} at {high}"
        )
        return raise_to(signals, self.policy, found, RuleResult(self.name, raised, why), remembered)

    def looks(self, signals: Signals, memory: Memory) -> tuple[int, float | None]:
        """Returns how many samples in a row were high, and the moment of the last one. A sample counts once."""
        so_far, at, latest = int(recall_number(memory, "looks") or 0), recall_number(memory, "at"), signals.latest
        if latest is None or (at is not None and latest.at <= at):
            return so_far, at
        return so_far + 1 if usage(signals) >= self.high else 0, latest.at


@dataclass(frozen=True, slots=True)
class Recovering:
    """Keeps at least 80 % of the maximum while a task is late and for five minutes after: a queue that has just
    caught up easily falls behind again. The article gives no time."""

    name: ClassVar[str] = "recovering"
    policy: Policy = field(default_factory=BacklogDrain)
    seconds: float = 300.0
    share: float = 0.8

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        found = self.policy.decide(signals, inner_memory(memory))
        breached = signals.now if urgency(signals) == "BREACH" else recall_number(memory, "breached")
        since = math.inf if breached is None else signals.now - breached
        remembered = {"breached": breached, "policy": found.memory}
        if not 0 <= since < self.seconds:
            return replace(found, memory=remembered)
        floor, most = ceiling(signals.limits.max_workers * self.share), signals.limits.max_workers
        why = f"{brief(self.share)} of max {most} for {brief(self.seconds)} s after a breach, {brief(since)} s ago"
        return raise_to(signals, self.policy, found, RuleResult(self.name, floor, why), remembered)


def raise_to(signals: Signals, policy: Policy, found: Decision, outer: RuleResult, memory: Memory) -> Decision:
    """Returns the decision of the inner policy, or one with the result of the outer policy if that is more."""
    rules = {**found.rules, outer.rule: outer.workers}
    if outer.workers <= found.wanted:
        return replace(found, rules=rules, memory=memory)
    why = f"{outer.why} ({policy.name} decided {found.reason})"
    return conclude(signals, outer.workers, outer.rule, rules, why, memory=memory)


def inner_memory(memory: Memory) -> Memory:
    return memory.get("policy") if isinstance(memory, dict) else None


def recall_number(memory: Any, key: str) -> float | None:
    """Returns a number from the memory; None: it is not there, or another policy wrote the memory."""
    value = memory.get(key) if isinstance(memory, dict) else None
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if good else None


RULES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        LittlesLaw(),
        BacklogDrain(),
        Trend(),
        Hybrid(),
        Tiered(),
        Cascade(),
        Levels(),
        Escalating(),
        Recovering(),
    )
}
