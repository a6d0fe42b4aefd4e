"""Keeps the decisions for all queues together within the budget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.model import ScalerSnapshot
from penstock.scaler.policy.decision import Decision
from penstock.scaler.policy.forecast import forecast
from penstock.scaler.policy.outlook import Outlook
from penstock.scaler.policy.share import Want, share
from penstock.scaler.policy.signals import Signals
from penstock.scaler.run.budget import Budget, bytes_of
from penstock.scaler.run.fleet import LocalWorkers, Workers

MEASURE_INTERVAL = 5.0  # seconds between two measurements of memory
DEAL_INTERVAL = 20.0  # seconds between two distributions of workers, where there are too few for all


class BudgetSharing:
    """Distributes the workers of the budget among queues that want more of them together."""

    def __init__(self, budget: Budget, workers: Mapping[str, Workers]) -> None:
        self._budget, self._workers = budget, workers
        self._dealt_at: float | None = None
        self._measured_at: float | None = None
        self._bytes_each: float | None = None

    def share(
        self, snapshot: ScalerSnapshot, found: Mapping[str, tuple[Signals, Decision]]
    ) -> Iterator[tuple[str, Decision]]:
        """Yields the decision of each queue, reduced where the budget is short."""
        ready = sum(signals.fleet.ready for signals, _ in found.values())
        allowed, limit = self._budget.allowed(snapshot, ready, self._memory_each())
        if sum(decision.workers for _, decision in found.values()) <= allowed:
            yield from ((queue, decision) for queue, (_, decision) in found.items())
            return
        deal = self._dealt_at is None or time.monotonic() - self._dealt_at >= DEAL_INTERVAL
        if deal:
            self._dealt_at = time.monotonic()
        wants = [make_want(queue, *one, keep=not deal) for queue, one in found.items()]
        given = share(wants, allowed).given
        for queue, (signals, decision) in found.items():
            yield queue, reduce_decision(decision, given[queue], signals, allowed, limit)

    def _memory_each(self) -> float | None:
        """Returns the bytes that a worker holds on average; None: the budget has no memory limit, or not known yet."""
        due = self._measured_at is None or time.monotonic() - self._measured_at > MEASURE_INTERVAL
        if self._budget.max_memory is not None and due:
            self._measured_at = time.monotonic()
            self._bytes_each = bytes_of(self._pids()) or self._bytes_each
        return self._bytes_each

    def _pids(self) -> list[int]:
        local = [one for one in self._workers.values() if isinstance(one, LocalWorkers)]
        return [child.process.pid for one in local for child in one.children if child.registered]


def make_want(queue: str, signals: Signals, decision: Decision, *, keep: bool) -> Want:
    """Returns what a queue wants, and what it loses with fewer. With `keep` it keeps its present workers: the queue
    that gains most may change every second, and a worker that moves between queues does nothing meanwhile."""
    least = min(max(signals.limits.min_workers, signals.fleet.workers if keep else 0), decision.workers)
    if signals.service is None:
        return Want(queue, decision.workers, least)
    outlook: list[Outlook] = []

    def late(workers: int) -> float:
        if not outlook:  # it is made only if there are too few workers for all queues
            outlook.append(Outlook(signals, forecast(signals.samples), z=1.0, z_service=2.0, recovery=0.5))
        return outlook[0].late(workers)

    return Want(queue, decision.workers, least, late)


def reduce_decision(decision: Decision, given: int, signals: Signals, allowed: int, limit: str) -> Decision:
    """Reduces a decision to the given workers. Only the limit `max` stops workers: the present ones need no more
    room."""
    given = max(given, min(decision.workers, signals.fleet.workers)) if limit != "max" else given
    if given >= decision.workers:
        return decision
    text = decision.reason.partition(": ")[2] or decision.reason
    return replace(
        decision,
        workers=given,
        bound_by=limit,
        reason=f"{given}: {text}; {given} of {decision.workers}, because all queues share {allowed} ({limit})",
    )
