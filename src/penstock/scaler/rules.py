"""The rules that people write for queues, complete and right: Little's law, trend, drain, and what is made of them.

They come from one page of another scaler, its numbers too. Where that page contradicts itself, ours is what its formula
says and its prose does not:

- its comments claim a margin of 1.4 at 90 % of the SLA and 1.8 at 95 %; the formula beside them gives 1.2 and 1.3;
- its third example rounds 13 × 1.23 down to 16; its code rounds up, to 17;
- it divides what n samples show by n intervals; they span n - 1;
- it asks whether a float is the integer 0, which it never is, so that a cold queue divides by zero;
- it answers nothing waiting with the least number of workers. Then tasks pile up until it asks for all, which empty the
  queue, and so on for ever. Here nothing waiting is no reason to send home who works: see `running` and `law`.

Two faults are kept, because they are the rule. The drain wants the whole backlog started before the oldest one's
deadline: where ages are spread that is 1 / (1 - usage) times too many, five times at 80 %. And waiting for 80 % is too
late wherever a worker with its decision takes longer to start than a fifth of the SLA.

Each rule jumps where it changes its mind, at 80 % or when a queue begins to grow. Between jumps it never wants fewer
workers for more tasks, older ones, longer ones or a shorter SLA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.scaler.decision import (
    Decision,
    Memory,
    Policy,
    ceiling,
    conclude,
    drain_rate,
    predicted_breach,
    urgency,
)
from penstock.scaler.signals import Signals, rate_between

LARGE = 1e18  # more of anything a second is as much


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the rules share."""

    arrivals: bool = True  # False: Little's law as the page has it, from the backlog only
    window: float = 60.0  # seconds over which arrivals are counted
    samples: int = 5  # that show a trend
    horizon: float = 6.0  # intervals that a trend is thought to go on
    warning: float = 0.8  # share of the SLA from which the backlog is drained
    steepness: float = 2.0  # of the margin above it: 1.0 at 80 %, 1.2 at 90 %, 1.3 at 95 %
    unknown: float = 0.8  # share of max while nobody knows how long a task takes


@dataclass(frozen=True, slots=True)
class Said:
    """What one rule said: how many workers, and the words for it."""

    rule: str
    workers: int
    why: str


# -- What the rules are made of ---------------------------------------------------------------------------------------


def plain(value: float) -> str:
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def usage(signals: Signals) -> float:
    """How much of the SLA the oldest waiting task has used up: 1 is all of it."""
    return signals.oldest_age / signals.limits.sla


def arriving(signals: Signals, numbers: Numbers) -> float | None:
    rate = rate_between(signals.samples, "arrived", numbers.window) if numbers.arrivals else None
    return None if rate is None else min(max(rate, 0.0), LARGE)


def unknown(signals: Signals, numbers: Numbers) -> Said:
    """Most of what is allowed, as long as anything waits. A guess: no margin is put on it."""
    if not signals.pending:
        return Said("unknown-rate", 0, "nothing waits, and nobody knows yet how long a task takes")
    most = signals.limits.max_workers
    why = (
        f"{signals.pending} pending and nobody knows yet how long a task takes: {plain(numbers.unknown)} of max {most}"
    )
    return Said("unknown-rate", ceiling(most * numbers.unknown), why)


def running(signals: Signals) -> Said:
    """Those that are needed for what runs now: Little's L, counted instead of computed. It keeps workers and never
    starts any, because what runs has one, perhaps one that was told to go. A worker that is sent home while it is
    busy saves nothing: somebody has to be started in its place."""
    busy, workers = ceiling(signals.active / signals.limits.slots), signals.fleet.workers
    why = f"{signals.active} running, {signals.limits.slots} to a worker, of {workers} workers: who is busy stays"
    return Said("running", min(busy, workers), why)


# -- Three rules ------------------------------------------------------------------------------------------------------


def law(
    signals: Signals, numbers: Numbers, *, more: float = 0.0, factor: float = 1.0, rule: str = "littles-law"
) -> Said:
    """L = λ·W: what arrives in a second, times how long a task takes, is how many are being worked on. That much keeps
    pace; the backlog comes on top of it, spread over one SLA: pending / SLA × service. The page has only the second
    half, and so has this while arrivals are unknown. `more` are tasks foreseen to wait beside those that do."""
    rate = signals.rate
    if rate is None:
        return unknown(signals, numbers)
    arrivals, sla = arriving(signals, numbers), signals.limits.sla
    workers = ceiling(((arrivals or 0.0) / rate + (signals.pending + more) / sla / rate) * factor)
    backlog = f"({signals.pending} + {plain(more)} foreseen)" if more else f"{signals.pending} pending"
    arrived = f" + {plain(arrivals)} arriving per s" if arrivals is not None else ""
    by = "the trend" if rule == "trend" else "Little's law"
    times = f", × {plain(factor)} at {percent(signals)}" if factor != 1 else ""
    return Said(rule, workers, f"({backlog} / {plain(sla)} s{arrived}) / {plain(rate)} per s by {by}{times}")


def trend(signals: Signals, numbers: Numbers) -> Said | None:
    """Little's law on the backlog of a while ahead, if it grew over the last samples; None: it did not, or there are
    fewer. What counts is how far the newest is above the oldest of them: one step down between is no end of a trend."""
    if len(signals.samples) < numbers.samples:
        return None
    growth = -(drain_rate(signals, numbers.samples) or 0.0)
    ahead = min(growth * numbers.horizon * signals.limits.interval, LARGE)
    return law(signals, numbers, more=ahead, rule="trend") if ahead > 0 else None


def drain(
    signals: Signals, numbers: Numbers, *, factor: float | None = None, rule: str = "backlog-drain", note: str = ""
) -> Said:
    """pending / time left / rate, rounded up, × the margin, rounded up; too late: all. The margin is `factor`, or
    1 + (usage - 0.8) × 2 above 80 % of the SLA: 1.2 at 90 %, 1.3 at 95 %, whatever the page's comments say."""
    left = signals.limits.sla - signals.oldest_age
    if left <= 0:
        most = signals.limits.max_workers
        return Said("breach", most, f"{signals.pending} pending, the oldest {plain(-left)} s late: all {most}")
    rate = signals.rate
    if rate is None:
        return unknown(signals, numbers)
    base = ceiling(signals.pending / left / rate)
    margin = 1 + max(0.0, usage(signals) - numbers.warning) * numbers.steepness if factor is None else factor
    times = f", × {plain(margin)} {note or f'at {percent(signals)}'}" if margin != 1 else f" at {percent(signals)}"
    why = f"{signals.pending} pending / {plain(left)} s left / {plain(rate)} per s = {base}{times}"
    return Said(rule, ceiling(base * margin), why)


def percent(signals: Signals) -> str:
    return f"{100 * usage(signals):.0f} % of the SLA"


# -- Of many, one -----------------------------------------------------------------------------------------------------


def settled(signals: Signals, numbers: Numbers, *apply: Said) -> Decision:
    """The largest of the rules that apply decides, the first of equals; who is busy stays. The others are mentioned."""
    kept = running(signals)
    chosen = max((*apply, kept), key=lambda one: one.workers)
    foreseen = trend(signals, numbers)
    asked = [law(signals, numbers), *([foreseen] if foreseen else []), drain(signals, numbers)]
    rules: dict[str, float] = {one.rule: one.workers for one in (*asked, *apply, kept)}
    parts = [chosen.why, others(chosen, rules)]
    if signals.limits.min_workers <= chosen.workers < signals.limits.max_workers:
        parts.append(f"max {signals.limits.max_workers} not reached")
    return conclude(signals, chosen.workers, chosen.rule, rules, "; ".join(filter(None, parts)))


SPOKEN = {"littles-law": "Little's law", "trend": "trend", "backlog-drain": "backlog drain"}


def others(chosen: Said, rules: dict[str, float]) -> str:
    """What the rules said that did not decide; a trend that is none said nothing."""
    known = [(words, f"{rules[rule]:.0f}") for rule, words in SPOKEN.items() if rule in rules and rule != chosen.rule]
    if not known:
        return ""
    if "trend" not in rules:
        known.insert(1, ("trend", "nothing"))
    (words, first), *rest = known
    return ", ".join([f"{words} said {first}", *(f"{word} {number}" for word, number in rest)])


# -- Policies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """What keeps pace with arrivals, and clears the backlog within one SLA. `Numbers(arrivals=False)` makes it the
    page's form, pending / SLA × service, to which a queue that keeps pace looks like one that needs nobody."""

    name: ClassVar[str] = "littles-law"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it needs none
        return settled(signals, self.numbers, law(signals, self.numbers))


@dataclass(frozen=True, slots=True)
class BacklogDrain:
    """Little's law until the oldest task has used up 80 % of the SLA; then whatever starts the whole backlog before
    that task is late, with a margin. Late: max. Nobody knows how long a task takes: 80 % of max.

    It never wants fewer than Little's law, not even above 80 %: the drain sees only what waits, and would send home
    those who keep pace with arrivals when they are needed most. Nothing waiting is Little's law on arrivals, and who is
    busy stays: min workers, the page's answer, makes a limit cycle."""

    name: ClassVar[str] = "backlog-drain"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it needs none
        return settled(signals, self.numbers, *draining(signals, self.numbers))


def draining(signals: Signals, numbers: Numbers) -> Iterable[Said]:
    """Above the warning the drain, but never fewer than Little's law."""
    steady = law(signals, numbers)
    return (drain(signals, numbers), steady) if usage(signals) >= numbers.warning else (steady,)


@dataclass(frozen=True, slots=True)
class Trend:
    """Little's law on the backlog that there will be in six intervals, if it grew over five samples; else on today's.
    It wants as many for a queue that shrinks as for one that stands."""

    name: ClassVar[str] = "trend"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it needs none
        foreseen = trend(signals, self.numbers)
        return settled(signals, self.numbers, foreseen or law(signals, self.numbers))


@dataclass(frozen=True, slots=True)
class Hybrid:
    """From 80 % of the SLA the backlog is drained; else a trend is followed; else Little's law."""

    name: ClassVar[str] = "hybrid"
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        if usage(signals) < self.numbers.warning:
            return Trend(self.numbers).decide(signals, memory)
        return BacklogDrain(self.numbers).decide(signals, memory)


@dataclass(frozen=True, slots=True)
class Tiered:
    """The drain with a margin in steps: 1.2 from 80 % of the SLA, 1.3 from 90 %, 1.5 from 95 %; late: max."""

    name: ClassVar[str] = "tiered"
    tiers: tuple[tuple[float, float], ...] = ((0.8, 1.2), (0.9, 1.3), (0.95, 1.5))  # (from this usage, margin)
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it needs none
        steady, used = law(signals, self.numbers), usage(signals)
        margin = max((margin for least, margin in self.tiers if used >= least), default=None)
        if margin is None:
            return settled(signals, self.numbers, steady)
        return settled(signals, self.numbers, drain(signals, self.numbers, factor=margin, rule=self.name), steady)


@dataclass(frozen=True, slots=True)
class Cascade:
    """Half as many again as the drain wants without its margin, as soon as a breach is foreseen within two minutes:
    one late task is seldom alone. A queue that grows is foreseen too; the page knows nothing just then. With an SLA of
    less than two minutes every queue that does not shrink is foreseen to breach: it gets the drain × 1.5 at any age."""

    name: ClassVar[str] = "cascade"
    soon: float = 120.0  # seconds
    factor: float = 1.5
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it needs none
        steady, breach = law(signals, self.numbers), predicted_breach(signals)
        if breach is None or breach > self.soon:
            return settled(signals, self.numbers, steady)
        note = f"because a breach is foreseen in {plain(breach)} s"
        found = drain(signals, self.numbers, factor=self.factor, rule=self.name, note=note)
        return settled(signals, self.numbers, found, steady)


@dataclass(frozen=True, slots=True)
class Levels:
    """An answer for each urgency. NORMAL: Little's law. ELEVATED: a little more. WARNING: the drain. CRITICAL: the
    drain, aggressively. BREACH: max. The page has no numbers for the second and fourth: they are those of its tiers."""

    name: ClassVar[str] = "levels"
    elevated: float = 1.2  # × Little's law
    critical: float = 1.5  # × the drain, instead of its margin
    numbers: Numbers = field(default_factory=Numbers)

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:  # noqa: ARG002 - it needs none
        steady = law(signals, self.numbers)
        match urgency(signals):
            case "NORMAL":
                return settled(signals, self.numbers, steady)
            case "ELEVATED":
                more = law(signals, self.numbers, factor=self.elevated, rule="elevated")
            case "CRITICAL":
                more = drain(signals, self.numbers, factor=self.critical, rule="critical")
            case _:
                more = drain(signals, self.numbers)
        return settled(signals, self.numbers, more, steady)


# -- Around any policy ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Escalating:
    """A tenth more for each look in a row that found 80 % of the SLA used up, up to twice as many: what did not help so
    far was not enough. It goes up to max and does not call the rest short: a margin is not a need."""

    name: ClassVar[str] = "escalating"
    policy: Policy = field(default_factory=BacklogDrain)
    high: float = 0.8  # share of the SLA
    step: float = 0.1
    most: float = 2.0

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        found = self.policy.decide(signals, inner(memory))
        looks, at = self.looks(signals, memory)
        remembered = {"looks": looks, "at": at, "policy": found.memory}
        factor = min(self.most, 1 + self.step * looks)
        raised = min(ceiling(found.wanted * factor), signals.limits.max_workers)
        high = f"{100 * self.high:.0f} % of the SLA"
        why = f"{found.wanted} × {plain(factor)} after {looks} {'look' if looks == 1 else 'looks in a row'} at {high}"
        return at_least(signals, self.policy, found, Said(self.name, raised, why), remembered)

    def looks(self, signals: Signals, memory: Memory) -> tuple[int, float | None]:
        """How many in a row so far, and when the last was. The same sample seen twice is one look."""
        so_far, at, latest = int(recalled(memory, "looks") or 0), recalled(memory, "at"), signals.latest
        if latest is None or (at is not None and latest.at <= at):
            return so_far, at
        return so_far + 1 if usage(signals) >= self.high else 0, latest.at


@dataclass(frozen=True, slots=True)
class Recovering:
    """At least 80 % of max while a task is late and for a while after: who has just caught up falls behind easily. The
    page gives no time; five minutes are ours."""

    name: ClassVar[str] = "recovering"
    policy: Policy = field(default_factory=BacklogDrain)
    seconds: float = 300.0
    share: float = 0.8

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        found = self.policy.decide(signals, inner(memory))
        breached = signals.now if urgency(signals) == "BREACH" else recalled(memory, "breached")
        since = math.inf if breached is None else signals.now - breached
        remembered = {"breached": breached, "policy": found.memory}
        if not 0 <= since < self.seconds:
            return replace(found, memory=remembered)
        floor, most = ceiling(signals.limits.max_workers * self.share), signals.limits.max_workers
        why = f"{plain(self.share)} of max {most} for {plain(self.seconds)} s after a breach, {plain(since)} s ago"
        return at_least(signals, self.policy, found, Said(self.name, floor, why), remembered)


def at_least(signals: Signals, policy: Policy, found: Decision, said: Said, memory: Memory) -> Decision:
    """What the policy inside decided, or what the one around it said, if that is more."""
    rules = {**found.rules, said.rule: said.workers}
    if said.workers <= found.wanted:
        return replace(found, rules=rules, memory=memory)
    why = f"{said.why} ({policy.name} said {found.reason})"
    return conclude(signals, said.workers, said.rule, rules, why, memory=memory)


def inner(memory: Memory) -> Memory:
    return memory.get("policy") if isinstance(memory, dict) else None


def recalled(memory: Any, key: str) -> float | None:
    """A number that was remembered; None: it was not, or another policy remembered something else."""
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
