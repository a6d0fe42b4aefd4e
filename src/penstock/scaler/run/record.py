"""Writes decisions to PostgreSQL before the scaler acts on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from penstock.client import scaling
from penstock.client.database import Database
from penstock.model import Json, ScalingHold
from penstock.scaler.policy.decision import Memory
from penstock.scaler.run.background import ANSWER_TIMEOUT, BackgroundCall
from penstock.scaler.run.collect import Collector
from penstock.scaler.run.hold import Hold
from penstock.scaler.run.plan import QueueDecision, ScalingPlan, Summary

MEMORY_INTERVAL = 10.0  # seconds between two times that memory is written
NOTE_INTERVAL = 55.0  # seconds for which an unchanged decision is not written in full again


class Recorder:
    """Writes decisions, and the memory of the policy, which it keeps from tick to tick."""

    def __init__(
        self, plan: ScalingPlan, database: Database, hold: Hold, holder: str, background: BackgroundCall
    ) -> None:
        self._plan, self._database, self._hold = plan, database, hold
        self._holder, self._background = holder, background
        self.memory: dict[str, Memory] = {}
        self._noted: dict[str, tuple[float, Summary]] = {}  # when, by our clock, and what was written in full
        self._memory_written_at: float | None = None

    def begin(self, held: Mapping[str, ScalingHold], collector: Collector) -> None:
        """Continues with the memory of the scaler that held the queues before."""
        for queue, hold in held.items():
            self.memory[queue] = collector.recall(queue, self._plan.policy.name, hold.memory)
        self.forget_notes()

    def forget_notes(self) -> None:
        """Makes the next decisions be written in full."""
        self._noted = {}

    def record(self, decided: Sequence[QueueDecision], collector: Collector) -> None:
        """Writes the decisions. PostgreSQL raises Conflict if another scaler has taken over."""
        for one in decided:
            self.memory[one.queue] = one.decision.memory
        if self._plan.dry_run:
            return
        now = time.monotonic()
        due = self._memory_written_at is None or now - self._memory_written_at >= MEMORY_INTERVAL
        if due:
            self._memory_written_at = now
        rows = [self._row(one, collector if due or one.before != one.decision.workers else None) for one in decided]
        noted = self._background.call(
            lambda: scaling.decide(self._database, rows, holder=self._holder, lease=self._plan.lease), ANSWER_TIMEOUT
        )
        summaries = {one.queue: one.summary for one in decided}
        self._noted.update((queue, (time.monotonic(), summaries[queue])) for queue in noted)

    def _row(self, one: QueueDecision, collector: Collector | None) -> Json:
        """Returns the row of a decision; with a collector it contains the memory too."""
        found, policy = one.decision, self._plan.policy.name
        row: Json = {
            "queue": one.queue,
            "epoch": self._hold.epochs[one.queue],
            "policy": policy,
            "workers": found.workers,
        }
        if collector is not None:
            row["memory"] = collector.remember(one.queue, policy, found.memory)
        if self._is_noted(one):
            return row
        return {**row, "actual": one.fleet.workers, "inputs": one.inputs, **found.to_json()}

    def _is_noted(self, one: QueueDecision) -> bool:
        """Whether the decision needs no full row. PostgreSQL keeps each change, and every decision once a minute by its
        own clock, so a full row is sent again shortly before; until then only the target is sent."""
        if one.queue not in self._noted:
            return False
        at, summary = self._noted[one.queue]
        return summary == one.summary and time.monotonic() - at < NOTE_INTERVAL
