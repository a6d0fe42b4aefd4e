"""What `status --watch`, `top` and `why` make of what they see: rates, urgency, when a promise will be broken."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cli.output import age, iso
from penstock.model import GAUGES, Board, NotedDecision, QueueStatus, Sampled, Scaled
from penstock.scaler import decision as said
from penstock.scaler.signals import Limits, Sample, Signals, rate_over

SAMPLES = 7  # of PostgreSQL's own, ten seconds apart: the last minute, before we have looked ourselves
REMEMBERED = 60.0  # seconds
ENOUGH = 20.0  # seconds of our own looks: better than samples, which may be of any moment in their ten seconds
ENDED = ("done", "again", "failed", "dead")
GONE = (*ENDED, "cancelled")  # not what was removed: nearly all of that was done, and is counted


@dataclass(frozen=True, slots=True)
class Standing:
    """A queue at one moment, against its promise."""

    status: QueueStatus
    urgency: str | None  # None: nothing was promised
    usage: float | None  # share of the SLA that the oldest has used up
    time_to_breach: float | None
    predicted_breach: float | None
    arriving: float | None  # tasks a second that fell due
    leaving: float | None  # tasks a second that ended
    workers: int  # that serve it, and are not about to go
    scaled: Scaled | None
    decision: NotedDecision | None

    @property
    def eta(self) -> float | None:
        """Seconds until nothing waits, at the present pace; None: it does not get less, or nothing waits."""
        waiting = self.status.pending + self.status.active
        pace = (self.leaving or 0.0) - (self.arriving or 0.0)
        return waiting / pace if waiting and pace > 1e-9 else None

    @property
    def target(self) -> int | None:
        return None if self.scaled is None else self.scaled.target

    @property
    def why(self) -> str | None:
        """The sentence of the last decision, without its number."""
        if self.decision is None:
            return None
        return self.decision.reason.removeprefix(f"{self.decision.workers}: ")

    def to_json(self) -> dict[str, Any]:
        scaled = self.scaled
        return {
            "urgency": self.urgency,
            "time_to_breach": self.time_to_breach,
            "predicted_breach": self.predicted_breach,
            "arriving": self.arriving,
            "leaving": self.leaving,
            "eta": self.eta,
            "workers": self.workers,
            "target": self.target,
            "scaler": None if scaled is None else {"holder": scaled.holder, "alive": scaled.alive},
            "why": self.why,
        }


class Memory:
    """The looks of the last minute."""

    def __init__(self) -> None:
        self._looks: deque[Board] = deque()

    def see(self, board: Board) -> list[Standing]:
        if self._looks and board.at < self._looks[-1].at:
            self._looks.clear()  # another server, or its clock was set back
        self._looks.append(board)
        while board.at - self._looks[0].at > REMEMBERED:
            self._looks.popleft()
        return [self._standing(board, one) for one in board.queues]

    def _standing(self, board: Board, one: QueueStatus) -> Standing:
        points = self.points(board, one.queue)
        signals = None if one.sla is None else signals_of(points, board.at, Limits(one.sla))
        return Standing(
            status=one,
            urgency=None if signals is None else said.urgency(signals),
            usage=None if one.sla is None or one.oldest_pending_age is None else one.oldest_pending_age / one.sla,
            time_to_breach=None if signals is None else said.time_to_breach(signals),
            predicted_breach=None if signals is None else said.predicted_breach(signals, len(signals.samples)),
            arriving=rate(points, arrived),
            leaving=rate(points, ended),
            workers=serving(board, one.queue),
            scaled=board.scaling.get(one.queue),
            decision=board.latest.get(one.queue),
        )

    def points(self, board: Board, queue: str) -> list[Sampled]:
        """Our own looks, or samples before them while those are too few."""
        own = [point(look, one) for look in self._looks for one in look.queues if one.queue == queue]
        if own[-1].at - own[0].at >= ENOUGH:
            return own
        return [*(one for one in board.samples.get(queue, ()) if one.at < own[0].at - 1), *own]


def point(board: Board, one: QueueStatus) -> Sampled:
    return Sampled(board.at, due(one), one.active, one.oldest_pending_age or 0.0, serving(board, one.queue), one.totals)


def due(one: QueueStatus) -> int:
    """What is overdue waits, even if nobody has promoted it yet."""
    return max(one.pending, int(one.oldest_pending_age is not None))


def serving(board: Board, queue: str) -> int:
    return sum(queue in worker.queues and not worker.leaving for worker in board.workers)


def ended(one: Sampled) -> int:
    return sum(one.totals.get(name, 0) for name in ENDED)


def arrived(one: Sampled) -> int:
    return one.pending + one.active + sum(one.totals.get(name, 0) for name in GONE)


def rate(points: Sequence[Sampled], counted: Any) -> float | None:
    found = rate_over([(one.at, counted(one)) for one in points], REMEMBERED + 10)
    return None if found is None else max(0.0, found)


def signals_of(points: Sequence[Sampled], now: float, limits: Limits, **more: Any) -> Signals:
    """What a policy would be shown."""
    samples = tuple(
        Sample(
            at=one.at,
            pending=one.pending,
            active=one.active,
            oldest_age=one.oldest_age if one.pending else 0.0,
            arrived=max(0, arrived(one)),
            finished=ended(one),
            workers=one.workers,
        )
        for one in points
    )
    return Signals(now=now, limits=limits, samples=samples, **more)


def breach_words(one: Standing) -> str:
    """`late by 5s`, `in 12s`, `in 40s, foreseen`, or nothing to say."""
    left = one.time_to_breach
    if left is None:
        return "–"
    if left <= 0:
        return f"late by {age(-left)}"
    return f"in {age(left)}"


def foreseen_words(one: Standing) -> str:
    found = one.predicted_breach
    return "–" if found is None else "now" if found <= 0 else f"in {age(found)}"


def fleet_words(one: Standing) -> str:
    """`3`, `3 of 5`: those there are, of those wanted."""
    if one.target is None or one.scaled is None:
        return str(one.workers)
    return f"{one.workers} of {one.target}" + ("" if one.scaled.alive else "?")


def rate_words(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def status_json(one: QueueStatus) -> dict[str, Any]:
    return {
        "queue": one.queue,
        **{gauge: getattr(one, gauge) for gauge in GAUGES},
        "oldest_pending_age": one.oldest_pending_age,
        "sla": one.sla,
        "paused": one.paused,
        "totals": dict(one.totals),
        "at": iso(one.at),
    }
