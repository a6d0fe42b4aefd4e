"""The calls that claim tasks for a runner. Any thread can make them."""

from __future__ import annotations

import time

from penstock.client.claims import Claimer
from penstock.client.database import Database
from penstock.client.listener import Listener
from penstock.client.queue import Queue
from penstock.handlers import Registry
from penstock.model import Claim
from penstock.validate import MAX_CLAIM
from penstock.worker.config import RunnerConfig
from penstock.worker.in_flight import InFlight


class ClaimCalls:
    """Claims tasks of the queues that a runner serves, with the lease and the largest batch of each queue."""

    def __init__(self, config: RunnerConfig, registry: Registry, database: Database) -> None:
        self._worker = config.name
        self.queues = {name: Queue(database, name) for name in config.queues}
        self._claimers = {name: Claimer(database, name) for name in config.queues}
        self._batches = {name: largest_batch(registry, name) for name in config.queues}
        self.leases = dict(config.leases)
        # This process must run alone a task that killed its worker before: it finishes everything else first.
        self.quarantine = False

    def most(self, name: str, room: int) -> int:
        """Returns how many tasks of a queue fill so many slots."""
        return min(room * self._batches[name], MAX_CLAIM)

    def claim(self, queue: Queue, limit: int, *, idle: bool) -> InFlight:
        """Claims tasks. Only an idle runner gets quarantined tasks."""
        asked_at, lease, claimer = time.monotonic(), self.leases[queue.name], self._claimers[queue.name]
        if self.quarantine:
            claimer.start_over()
        claim = claimer.claim(limit, lease=lease, worker=self._worker, quarantined=idle)
        return self._flight(claim, asked_at, lease)

    def claim_notified(self, queue: Queue, listener: Listener, limit: int, *, idle: bool) -> InFlight:
        """Claims tasks over the connection that has just received the notification of a push."""
        asked_at, lease, claimer = time.monotonic(), self.leases[queue.name], self._claimers[queue.name]
        claim = claimer.claim_notified(listener.once, limit, lease=lease, worker=self._worker, quarantined=idle)
        return self._flight(claim, asked_at, lease)

    def _flight(self, claim: Claim, asked_at: float, lease: float) -> InFlight:
        return InFlight(claim, self.queues[claim.queue], asked_at, lease, 1 / self._batches[claim.queue])


def largest_batch(registry: Registry, queue: str) -> int:
    """Returns the largest batch size among the handlers of a queue."""
    return max((spec.batch or 1 for spec in registry.of(queue)), default=1)
