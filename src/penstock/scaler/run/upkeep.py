"""The upkeep that a scaler does in the background, because a queue without workers has no other process for it."""

from __future__ import annotations

import logging
import time

from penstock.client import profiles, schedules, upkeep
from penstock.client.database import Database
from penstock.client.statements.upkeep import FailureLog
from penstock.errors import ConfigError
from penstock.model import Schedule, SeenQueue
from penstock.scaler.run.background import ANSWER_TIMEOUT, BackgroundCall
from penstock.scaler.run.collect import Collector, profile_of
from penstock.scaler.run.plan import Backlogs, ScalingPlan

LOG = logging.getLogger("penstock.scaler")
UPKEEP_INTERVAL = 10.0  # seconds


class ScalerUpkeep:
    """Runs upkeep, fires schedules, and reads schedules, adopted tables and profiles every ten seconds."""

    def __init__(self, plan: ScalingPlan, database: Database, backlogs: Backlogs) -> None:
        self._plan, self._database, self._backlogs = plan, database, backlogs
        self._background = BackgroundCall()
        self._failures = FailureLog()
        self._unreadable: set[str] = set()  # queues whose profile was reported as unreadable
        self._began: float | None = None
        self.schedules: list[Schedule] = []
        self.adopted: list[SeenQueue] = []

    def run_if_due(self, collector: Collector) -> None:
        """Begins the next round if it is due; with `once` it waits for the round."""
        error = self._background.take_error()
        if error is not None:
            LOG.warning("upkeep failed", extra={"error_class": type(error).__name__})
        if self._plan.once:
            self._background.call(lambda: self._run(collector), 10 * ANSWER_TIMEOUT)
        elif self._is_due() and not self._background.busy:
            self._began = time.monotonic()
            self._background.begin(lambda: self._run(collector))

    def _is_due(self) -> bool:
        return self._began is None or time.monotonic() - self._began >= UPKEEP_INTERVAL

    def fire_schedules(self) -> None:
        """Fires the schedules that are due, in the background."""
        self._background.begin(self._fire)

    def _run(self, collector: Collector) -> None:
        if not self._plan.dry_run:
            for facts in self._failures.note(upkeep.upkeep(self._database, due_only=True)):
                LOG.warning("upkeep part failed", extra=facts)
            self._fire()
        self.schedules = schedules.list_schedules(self._database)
        self.adopted = [*self._backlogs()]
        self._read_profiles(collector)

    def _read_profiles(self, collector: Collector) -> None:
        """Reads the profiles of the queues. An unreadable profile is reported once and not used."""
        for stored in profiles.find_profiles(self._database):
            track = collector.tracks.get(stored.queue)
            if track is None:
                continue
            try:
                track.profile = profile_of(stored)
            except ConfigError as error:
                track.profile = None
                if stored.queue not in self._unreadable:
                    self._unreadable.add(stored.queue)
                    LOG.warning(error.message, extra={"queue": stored.queue})

    def _fire(self) -> None:
        for name, error in schedules.run_schedules(self._database).failed.items():
            LOG.warning("schedule not fired", extra={"schedule": name, "code": error.code})
