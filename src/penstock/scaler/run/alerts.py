"""Decides when a promise is worth an alert: not every second, not twice, and not before it is certain.

A queue has no trouble, or a breach is foreseen, or near (the oldest task has used most of its SLA), or there. A worse
level raises an alert at once, and the same level again only after a while. A recovery is reported after some calm, and
only if the trouble was. `judge_promise` is pure: it turns a state and a decision into a new state and perhaps an alert.
`Alerts` keeps the states and passes alerts to the `channels`, which never block the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import ConfigError, shown
from penstock.scaler.policy.decision import Decision

LEVELS = ("recovered", "foreseen", "near", "breach")  # each worse than the one before
NO_TROUBLE = 0


@dataclass(frozen=True, slots=True)
class AlertTerms:
    """When an alert is raised."""

    at: float = 0.9  # share of the SLA from which a breach is near
    every: float = 300.0  # seconds before the same level of a queue is reported again
    calm: float = 60.0  # seconds without trouble after which a recovery is reported
    sure: float = 10.0  # seconds for which a breach must be foreseen, because one look may be chance
    ahead: float = 120.0  # seconds; a breach that is foreseen later than this, and than one SLA, is not reported yet

    def __post_init__(self) -> None:
        if not (isinstance(self.at, (int, float)) and 0.1 <= self.at <= 1.0):
            raise ConfigError(f"alert_at: {shown(self.at)} is not a share of the SLA between 0.1 and 1")
        for name in ("every", "calm", "sure", "ahead"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ConfigError(f"{name}: {shown(value)} is not a number of seconds of at least 0")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `at` is a moment of PostgreSQL's clock, in seconds since 1970."""

    queue: str
    level: str
    at: float
    sla: float
    usage: float | None  # share of the SLA that the oldest task has used; None: no task waits
    workers: int
    reason: str
    time_to_breach: float | None
    predicted_breach: float | None
    began: float  # when the trouble began
    dropped: int = 0  # alerts that were dropped since the last one

    @property
    def sentence(self) -> str:
        """The alert as a sentence."""
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
class AlertState:
    """What was reported of one queue."""

    reported: int = NO_TROUBLE  # the worst level that was reported since the trouble began
    reported_at: tuple[float, ...] = (-math.inf,) * len(LEVELS)  # when each level was last reported
    began: float = 0.0  # when the trouble began
    troubled_at: float = -math.inf  # when there was trouble last
    since: float | None = None  # when the present trouble began


def used_share(decision: Decision, sla: float) -> float | None:
    """Returns the share of the SLA that the oldest task has used; None: no task waits."""
    left = decision.time_to_breach
    return None if left is None else (sla - left) / sla


def trouble(decision: Decision, sla: float, terms: AlertTerms) -> int:
    """Returns the level of the present trouble. A foreseen breach is not certain yet."""
    used = used_share(decision, sla) or 0.0
    if used >= 1.0:
        return LEVELS.index("breach")
    if used >= terms.at:
        return LEVELS.index("near")
    soon = decision.predicted_breach is not None and decision.predicted_breach <= max(terms.ahead, sla)
    return LEVELS.index("foreseen") if soon else NO_TROUBLE


def judge_promise(
    state: AlertState, queue: str, decision: Decision, now: float, *, sla: float, terms: AlertTerms
) -> tuple[AlertState, Alert | None]:
    """Returns the new state of a queue, and the alert to send, if any."""
    level = trouble(decision, sla, terms)
    since = None if level == NO_TROUBLE else now if state.since is None else state.since
    state = replace(state, since=since)
    if level == LEVELS.index("foreseen") and since is not None and now - since < terms.sure and not state.reported:
        return state, None
    if level == NO_TROUBLE:
        over = state.reported and now - state.troubled_at >= terms.calm
        return make_alert(state, queue, NO_TROUBLE, decision, now=now, sla=sla) if over else (state, None)
    begins = state.reported == NO_TROUBLE
    state = replace(state, troubled_at=now, began=(since or now) if begins else state.began)
    # A level that was reported recently is not reported again, even if the queue recovered in between. A level that is
    # worse than all reported ones passes, unless the same level was reported recently.
    latest = max(state.reported_at)
    if now - state.reported_at[level] < terms.every or (level < state.reported and now - latest < terms.every):
        return state if begins else replace(state, reported=max(state.reported, level)), None
    return make_alert(state, queue, level, decision, now=now, sla=sla)


def make_alert(
    state: AlertState, queue: str, level: int, decision: Decision, *, now: float, sla: float
) -> tuple[AlertState, Alert | None]:
    """Returns an alert of the level, and the state that remembers it."""
    alert = Alert(
        queue=queue,
        level=LEVELS[level],
        at=now,
        sla=sla,
        usage=used_share(decision, sla),
        workers=decision.workers,
        reason=decision.reason,
        time_to_breach=decision.time_to_breach,
        predicted_breach=decision.predicted_breach,
        began=state.began,
    )
    times = tuple(now if n == level else at for n, at in enumerate(state.reported_at))
    return replace(state, reported=max(state.reported, level) if level else NO_TROUBLE, reported_at=times), alert


@dataclass(slots=True)
class Alerts:
    """The alerts of a scaler. `send` takes an alert and returns whether it accepted it; it must not wait."""

    send: Callable[[Alert], bool]
    terms: AlertTerms = field(default_factory=AlertTerms)
    states: dict[str, AlertState] = field(default_factory=dict)
    dropped: int = 0

    def note(self, queue: str, decision: Decision, now: float, *, sla: float | None) -> Alert | None:
        """Judges a decision and sends the alert that follows, if any. A queue without an SLA has no alerts."""
        if sla is None:
            self.states.pop(queue, None)
            return None
        state = self.states.get(queue, AlertState())
        self.states[queue], alert = judge_promise(state, queue, decision, now, sla=sla, terms=self.terms)
        if alert is not None:
            alert = replace(alert, dropped=self.dropped)
            self.dropped = 0 if self.send(alert) else self.dropped + 1
        return alert
