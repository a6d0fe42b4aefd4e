"""Starts `penstock work`: waits for PostgreSQL if asked to, and runs the supervisor until it ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from penstock.errors import Unavailable
from penstock.handlers import Registry
from penstock.service_manager import ServiceManager
from penstock.worker import waiting
from penstock.worker.plan import Plan, WorkerReport
from penstock.worker.progress import Progress
from penstock.worker.supervisor import Supervisor


def work(
    plan: Plan,
    registry: Registry,
    *,
    patience: float | None = None,
    progress: Progress | None = None,
    begun: Callable[[], None] = lambda: None,
    manager: ServiceManager | None = None,
) -> WorkerReport:
    """Runs workers until they are told to stop, and returns what they did.

    `patience` says how many seconds to wait until PostgreSQL accepts writes; None means that its absence at the start
    is an error. `begun` is called when the checks have passed and the work begins. `manager` is told how it goes on.
    """
    until = None if patience is None else time.monotonic() + patience
    manager = manager or ServiceManager()
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True
        begun()

    while True:
        ended = None if until is None else wait_for_primary(plan.dsn, until - time.monotonic(), plan.health, manager)
        if ended is not None:
            return WorkerReport(Counter(), 0.0, signal=ended)
        try:
            return asyncio.run(supervise(plan, registry, progress, begin, manager))
        except Unavailable:
            if has_begun or until is None or time.monotonic() > until:
                raise


async def supervise(
    plan: Plan, registry: Registry, progress: Progress | None, begun: Callable[[], None], manager: ServiceManager
) -> WorkerReport:
    """Runs a supervisor, which belongs to the event loop that it is made in."""
    return await Supervisor(plan, registry, progress, manager=manager).run(begun)


def wait_for_primary(
    dsn: str, at_most: float, health: str | None = None, manager: ServiceManager | None = None
) -> int | None:
    """Waits until PostgreSQL accepts writes. Returns the signal that ended the wait, or None."""
    return asyncio.run(waiting.wait_for_primary(dsn, at_most=max(0.0, at_most), probe_at=health, manager=manager))
