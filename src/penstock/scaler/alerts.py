"""What to tell people about a promise, and when: not every second, not twice, and not before it is sure.

A queue is well, or a breach is foreseen, or it is near (the oldest task has used up most of its SLA), or it is there.
Worse is told at once; the same again only after a while; that it is over only after some calm, and only to those who
were told that it began. Deciding is pure: `judged` makes a state and perhaps an alert of a state and a decision.
`Alerts` remembers, and hands over to whoever sends (`channels`), who never holds up the loop that calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import ConfigError, shown
from penstock.scaler.decision import Decision

LEVELS = ("recovered", "foreseen", "near", "breach")  # each worse than the one before
WELL = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """When somebody is told."""

    at: float = 0.9  # share of the SLA from which a breach is near
    every: float = 300.0  # seconds before the same is said again of the same queue
    calm: float = 60.0  # seconds without trouble after which it is over
    sure: float = 10.0  # seconds for which a breach must be foreseen: one look may be an accident
    ahead: float = 120.0  # seconds; what is foreseen later than this, and than one SLA from now, is not yet news

    def __post_init__(self) -> None:
        if not (isinstance(self.at, (int, float)) and 0.1 <= self.at <= 1.0):
            raise ConfigError(f"alert_at: {shown(self.at)} is not a share of the SLA between 0.1 and 1")
        for name in ("every", "calm", "sure", "ahead"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ConfigError(f"{name}: {shown(value)} is not a number of seconds of at least 0")


@dataclass(frozen=True, slots=True)
class Alert:
    """What is told. `at` is a moment of PostgreSQL's clock, in seconds since 1970."""

    queue: str
    level: str
    at: float
    sla: float
    usage: float | None  # share of the SLA that the oldest task has used up; None: nothing waits
    workers: int
    reason: str
    time_to_breach: float | None
    predicted_breach: float | None
    began: float  # when the trouble did
    dropped: int = 0  # alerts that could not be handed over since the last one

    @property
    def sentence(self) -> str:
        name, share = self.queue, "" if self.usage is None else f"{100 * self.usage:.0f} % of its {self.sla:g} s"
        if self.level == "recovered":
            return f"{name} keeps its promise again, after {self.at - self.began:.0f} s"
        if self.level == "breach":
            return f"{name} breaks its promise: the oldest task waits for {share}; {self.workers} workers wanted"
        if self.level == "near":
            return (
                f"{name} is about to break its promise: the oldest task has used {share}; {self.workers} workers wanted"
            )
        return f"{name} will break its promise in {self.predicted_breach or 0:.0f} s; {self.workers} workers wanted"

    def to_json(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "level": self.level,
            "at": stamp(self.at),
            "began": stamp(self.began),
            "sla": self.sla,
            "usage": self.usage,
            "time_to_breach": self.time_to_breach,
            "predicted_breach": self.predicted_breach,
            "workers": self.workers,
            "reason": self.reason,
            "text": self.sentence,
            "dropped": self.dropped,
        }


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered of one queue."""

    told: int = WELL  # the worst that was told since it was last well
    told_at: tuple[float, ...] = (-math.inf,) * len(LEVELS)  # when each level was told last, ever
    began: float = 0.0  # when the trouble did
    troubled_at: float = -math.inf  # when there last was any
    since: float | None = None  # when the trouble of this moment began


def usage(decision: Decision, sla: float) -> float | None:
    left = decision.time_to_breach
    return None if left is None else (sla - left) / sla


def trouble(decision: Decision, sla: float, terms: Terms) -> int:
    """How bad it looks at this moment; foreseen is not yet sure."""
    used = usage(decision, sla) or 0.0
    if used >= 1.0:
        return LEVELS.index("breach")
    if used >= terms.at:
        return LEVELS.index("near")
    soon = decision.predicted_breach is not None and decision.predicted_breach <= max(terms.ahead, sla)
    return LEVELS.index("foreseen") if soon else WELL


def judged(
    state: State, queue: str, decision: Decision, now: float, *, sla: float, terms: Terms
) -> tuple[State, Alert | None]:
    """What becomes of the state, and what is to be told."""
    looks = trouble(decision, sla, terms)
    since = None if looks == WELL else now if state.since is None else state.since
    state = replace(state, since=since)
    if looks == LEVELS.index("foreseen") and since is not None and now - since < terms.sure and not state.told:
        return state, None
    if looks == WELL:
        over = state.told and now - state.troubled_at >= terms.calm
        return told(state, queue, WELL, decision, now=now, sla=sla) if over else (state, None)
    begins = state.told == WELL
    state = replace(state, troubled_at=now, began=(since or now) if begins else state.began)
    # A level that was told lately is not told again, not even by a queue that was well in between; what is worse than
    # all that was told since it began passes, unless the very same was.
    if now - state.told_at[looks] < terms.every or (looks < state.told and now - max(state.told_at) < terms.every):
        return state if begins else replace(state, told=max(state.told, looks)), None
    return told(state, queue, looks, decision, now=now, sla=sla)


def told(
    state: State, queue: str, level: int, decision: Decision, *, now: float, sla: float
) -> tuple[State, Alert | None]:
    alert = Alert(
        queue=queue,
        level=LEVELS[level],
        at=now,
        sla=sla,
        usage=usage(decision, sla),
        workers=decision.workers,
        reason=decision.reason,
        time_to_breach=decision.time_to_breach,
        predicted_breach=decision.predicted_breach,
        began=state.began,
    )
    times = tuple(now if n == level else at for n, at in enumerate(state.told_at))
    return replace(state, told=max(state.told, level) if level else WELL, told_at=times), alert


@dataclass(slots=True)
class Alerts:
    """One for a loop, whatever its queues. `send` takes an alert and answers whether it could: it never waits."""

    send: Callable[[Alert], bool]
    terms: Terms = field(default_factory=Terms)
    states: dict[str, State] = field(default_factory=dict)
    dropped: int = 0

    def note(self, queue: str, decision: Decision, now: float, *, sla: float | None) -> Alert | None:
        """Called with each decision. Without a promise there is nothing to break."""
        if sla is None:
            self.states.pop(queue, None)
            return None
        state = self.states.get(queue, State())
        self.states[queue], alert = judged(state, queue, decision, now, sla=sla, terms=self.terms)
        if alert is not None:
            alert = replace(alert, dropped=self.dropped)
            self.dropped = 0 if self.send(alert) else self.dropped + 1
        return alert
