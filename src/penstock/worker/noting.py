"""Stores what handlers say of their tasks: at the pace at which leases are extended, and before a task that is not done
is settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from penstock.client.database import Database
from penstock.client.progress import note_progress
from penstock.handlers.notes import to_stored
from penstock.worker.database_calls import DatabaseCalls
from penstock.worker.in_flight import InFlight

LOG = logging.getLogger("penstock.worker")


class NoteKeeper:
    """Stores the notes of the claims of a runner. Notes never keep a task from being settled: a failure is logged, and
    what was not stored is tried again with the next notes."""

    def __init__(self, database: Database, calls: DatabaseCalls) -> None:
        self._database = database
        self._calls = calls
        self._storing: set[asyncio.Task[None]] = set()

    def store_due(self, flights: Collection[InFlight]) -> None:
        """Stores the notes of claims for which that is due, one claim after the other."""
        if self._storing:
            return
        now = time.monotonic()
        due = [flight for flight in flights if flight.notes is not None and now >= flight.note_at]
        due = [flight for flight in due if not flight.lost and flight.notes is not None and flight.notes.fresh]
        if due:
            task = asyncio.get_running_loop().create_task(self._store_all(due))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _store_all(self, flights: list[InFlight]) -> None:
        for flight in flights:
            flight.note_at = time.monotonic() + flight.lease / 3
            await self.store(flight)

    async def store(self, flight: InFlight, ids: Collection[int] | None = None) -> None:
        """Stores what is not stored of these tasks of a claim, or of all."""
        if flight.notes is not None and not flight.lost:
            await self._calls.run(self._store, flight, ids)

    def _store(self, flight: InFlight, ids: Collection[int] | None) -> None:
        assert flight.notes is not None
        collected = flight.notes.collect(ids)
        if not collected:
            return
        try:
            note_progress(self._database, flight.token, to_stored(collected))
        except Exception as error:  # noqa: BLE001 - see above
            facts = {"queue": flight.claim.queue, "tasks": len(collected), "error_class": type(error).__name__}
            LOG.warning("progress not stored", extra=facts)
        else:
            flight.notes.note_stored(collected)
