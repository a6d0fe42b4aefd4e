"""How the queues stand, compared with their SLAs: rates, urgency and the time to a breach, derived from boards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.model import Board, QueueStatus, Sampled, Scaled, StoredDecision
from penstock.scaler.policy import decision as said
from penstock.scaler.policy.signals import Limits, Sample, Signals, rate_over

SAMPLES = 7  # ten seconds apart, with idle periods filled in: the last minute, for rates before the second look
MEMORY_SECONDS = 60.0  # seconds
MIN_OWN_SECONDS = 20.0  # seconds; from then on our own looks are better than samples, taken up to ten seconds before
ENDED_TOTALS = ("done", "again", "failed", "dead")
GONE_TOTALS = (*ENDED_TOTALS, "cancelled")  # removed tasks are left out: nearly all of them are counted as done


@dataclass(frozen=True, slots=True)
class SlaStanding:
    """The state of a queue at one moment, compared with its SLA."""

    status: QueueStatus
    urgency: str | None  # None: the queue has no SLA
    usage: float | None  # share of the SLA that the oldest waiting task has used up
    time_to_breach: float | None
    predicted_breach: float | None
    arriving: float | None  # tasks that fall due, a second
    leaving: float | None  # tasks that end, a second
    workers: int  # workers that serve the queue and are not about to stop
    scaled: Scaled | None
    decision: StoredDecision | None

    @property
    def eta(self) -> float | None:
        """Seconds until nothing waits, at the present pace. None if the backlog does not shrink or is empty."""
        waiting = self.status.pending + self.status.active
        pace = (self.leaving or 0.0) - (self.arriving or 0.0)
        return waiting / pace if waiting and pace > 1e-9 else None

    @property
    def target(self) -> int | None:
        """How many workers the scaler wants. None: no scaler ever held the queue."""
        return None if self.scaled is None else self.scaled.target

    @property
    def why(self) -> str | None:
        """The reason of the last decision, without the number at its beginning."""
        if self.decision is None:
            return None
        return self.decision.reason.removeprefix(f"{self.decision.workers}: ")

    def to_json(self) -> dict[str, Any]:
        """Returns what is derived from the status as JSON."""
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


class RecentBoards:
    """Remembers the boards of the last minute, to compute rates."""

    def __init__(self) -> None:
        self._looks: deque[Board] = deque()

    def see(self, board: Board) -> list[SlaStanding]:
        """Remembers a board, and returns how each of its queues stands."""
        if self._looks and board.at < self._looks[-1].at:
            self._looks.clear()  # it is another server, or its clock was set back
        self._looks.append(board)
        while board.at - self._looks[0].at > MEMORY_SECONDS:
            self._looks.popleft()
        return [self._make_standing(board, one) for one in board.queues]

    def _make_standing(self, board: Board, one: QueueStatus) -> SlaStanding:
        points = self.points(board, one.queue)
        signals = None if one.sla is None else make_signals(points, board.at, Limits(one.sla))
        return SlaStanding(
            status=one,
            urgency=None if signals is None else said.urgency(signals),
            usage=None if one.sla is None or one.oldest_pending_age is None else one.oldest_pending_age / one.sla,
            time_to_breach=None if signals is None else said.time_to_breach(signals),
            predicted_breach=None if signals is None else said.predicted_breach(signals, len(signals.samples)),
            arriving=measure_rate(points, count_arrived),
            leaving=measure_rate(points, count_ended),
            workers=count_serving(board, one.queue),
            scaled=board.scaling.get(one.queue),
            decision=board.latest.get(one.queue),
        )

    def points(self, board: Board, queue: str) -> list[Sampled]:
        """Returns a point for each remembered board, preceded by samples while there are too few boards."""
        own = [make_sample(look, one) for look in self._looks for one in look.queues if one.queue == queue]
        if own[-1].at - own[0].at >= MIN_OWN_SECONDS:
            return own
        return [*(one for one in board.samples.get(queue, ()) if one.at < own[0].at - 1), *own]


def make_sample(board: Board, one: QueueStatus) -> Sampled:
    """Makes a sample of a queue on a board."""
    return Sampled(
        board.at, count_due(one), one.active, one.oldest_pending_age or 0.0, count_serving(board, one.queue), one.totals
    )


def count_due(one: QueueStatus) -> int:
    """Counts the waiting tasks: at least one if a task is overdue, even if it is not promoted yet."""
    return max(one.pending, int(one.oldest_pending_age is not None))


def count_serving(board: Board, queue: str) -> int:
    """Counts the workers that serve a queue and are not about to stop."""
    return sum(queue in worker.queues and not worker.leaving for worker in board.workers)


def count_ended(one: Sampled) -> int:
    """Counts the attempts that have ever ended."""
    return sum(one.totals.get(name, 0) for name in ENDED_TOTALS)


def count_arrived(one: Sampled) -> int:
    """Counts the tasks that have ever fallen due."""
    return one.pending + one.active + sum(one.totals.get(name, 0) for name in GONE_TOTALS)


def measure_rate(points: Sequence[Sampled], counted: Callable[[Sampled], float]) -> float | None:
    """Returns by how much a count grows per second. None: there are too few samples."""
    found = rate_over([(one.at, counted(one)) for one in points], MEMORY_SECONDS + 10)
    return None if found is None else max(0.0, found)


def make_signals(points: Sequence[Sampled], now: float, limits: Limits, **more: Any) -> Signals:
    """Builds the signals that a policy would receive."""
    samples = tuple(
        Sample(
            at=one.at,
            pending=one.pending,
            active=one.active,
            oldest_age=one.oldest_age if one.pending else 0.0,
            arrived=max(0, count_arrived(one)),
            finished=count_ended(one),
            workers=one.workers,
        )
        for one in points
    )
    return Signals(now=now, limits=limits, samples=samples, **more)
