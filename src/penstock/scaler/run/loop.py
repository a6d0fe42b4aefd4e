"""The loop of the scaler: it collects signals, decides and acts, once per second.

One scaler holds a queue at a time, by an epoch in PostgreSQL. A decision is written there before the scaler acts on it,
and is refused if another scaler has taken over. While PostgreSQL does not answer, the fleet stays as it is.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

from penstock.client import scaling
from penstock.client.database import Database
from penstock.errors import Conflict, NotFound, PenstockError, Unavailable
from penstock.model import ScalerSnapshot
from penstock.scaler.policy.decision import Decision
from penstock.scaler.policy.signals import Fleet, Signals
from penstock.scaler.run.background import ANSWER_TIMEOUT, BackgroundCall
from penstock.scaler.run.collect import Collector, excuse_silence, ticks_ahead
from penstock.scaler.run.fleet import LocalWorkers, Workers
from penstock.scaler.run.hold import Hold
from penstock.scaler.run.plan import Backlogs, Note, QueueDecision, Say, ScalingPlan, Summary, Tell
from penstock.scaler.run.record import Recorder
from penstock.scaler.run.sharing import BudgetSharing
from penstock.scaler.run.shutdown import finish_commands, inherited_names, local_children, wait_for_children
from penstock.scaler.run.upkeep import ScalerUpkeep
from penstock.service_manager import ServiceManager

LOG = logging.getLogger("penstock.scaler")
HUNG_AFTER = 60.0  # seconds: longer than all calls of a tick may take together
EXCUSED = 5.0  # seconds after an outage in which workers that are silent still count
Fleets = dict[str, Fleet]


class Scaler:
    """Keeps the promises of queues: it looks, decides, and starts and stops workers."""

    def __init__(
        self,
        plan: ScalingPlan,
        database: Database,
        workers: Mapping[str, Workers],
        *,
        holder: str,
        say: Say,
        tell: Tell,
        backlogs: Backlogs = tuple,
        note: Note | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        self._plan, self._database, self._workers = plan, database, workers
        self._holder, self._say, self._tell, self._note = holder, say, tell, note
        self._background = BackgroundCall()
        self._hold = Hold(plan, database, holder, self._background)
        self._recorder = Recorder(plan, database, self._hold, holder, self._background)
        self._upkeep = ScalerUpkeep(plan, database, backlogs)
        self._sharing = BudgetSharing(plan.budget, workers)
        self.collector = Collector(plan.limits)
        self._reported: dict[str, Summary] = {}
        self._away = False
        self._looked_at: float | None = None
        self._gap = 0.0  # seconds for which PostgreSQL, or this process, was away
        self._back_at: float | None = None
        self._reported_errors: set[str] = set()
        self._manager = manager or ServiceManager()
        self._seen_at = time.monotonic()  # when the loop last came round
        self._stop = threading.Event()
        self._signals: list[int] = []

    # --- from the start to the end ----------------------------------------------------------------------------------

    def run(self) -> int | None:
        """Scales until it is told to stop. Returns the signal that stopped it."""
        with self._handle_signals():
            self._manager.watch(self._is_well)
            try:
                if self.take():
                    self._run_ticks()
            finally:
                self.stop()
        return self._signals[0] if self._signals else None

    def _run_ticks(self) -> None:
        """Runs a tick per interval. An error of a tick leaves the fleet as it is, unless the scaler runs only once."""
        while not self._stop.is_set():
            began = self._seen_at = time.monotonic()
            try:
                self.tick()
            except Unavailable as error:
                if self._plan.once:
                    raise
                self._report_outage(error)
            except Conflict as error:
                if not self._recover_hold(error):
                    return
            except (NotFound, BrokenPipeError):
                raise
            except Exception as error:
                if self._plan.once:
                    raise
                self._report_error(error)
            if self._plan.once:
                return
            self._stop.wait(max(0.0, began + self._plan.interval - time.monotonic()))

    def _report_error(self, error: Exception) -> None:
        """Reports an unexpected error, such as a revoked right, once for each kind. The workers stay."""
        kind = type(error).__name__
        if kind not in self._reported_errors:
            self._reported_errors.add(kind)
            self._tell(f"held: no decision could be made ({kind}: {error}); everything stays as it is")
        LOG.error("no decision", extra={"error_class": kind})

    def take(self) -> bool:
        """Takes all queues; as a standby, as soon as no other scaler holds them. False: it was told to stop
        meanwhile."""
        if self._plan.dry_run:
            return True
        waiting = False
        while not self._stop.is_set():
            self._seen_at = time.monotonic()
            try:
                self._begin()
            except Conflict as error:
                if not self._plan.standby:
                    raise
                if not waiting:
                    self._tell(f"standing by: {error.message}")
                waiting = True
                self._manager.ready()  # a standby does its work while it waits
            except Unavailable as error:
                if not waiting:
                    raise
                self._reconnect(error)
            else:
                self._manager.ready()
                if waiting:
                    self._tell("took over")
                return True
            self._stop.wait(min(1.0, self._plan.lease / 5))
        return False

    def _is_well(self) -> bool:
        """Whether the loop goes round. While PostgreSQL is away it does, and a new process could do no more."""
        return self._stop.is_set() or time.monotonic() - self._seen_at < self._plan.interval + HUNG_AFTER

    def _begin(self) -> None:
        held = self._hold.take(4 * ANSWER_TIMEOUT)
        self.collector = Collector(self._plan.limits)
        self._recorder.begin(held, self.collector)
        self._looked_at = None

    def _recover_hold(self, error: Conflict) -> bool:
        """Takes the queues again if no other scaler holds them. Otherwise the workers belong to the other scaler; a
        standby waits for its turn, and any other scaler ends. True: this scaler holds the queues."""
        if self._take_again():
            return True
        LOG.error("another scaler took over", extra={"holder": self._holder})
        for workers in self._workers.values():
            if isinstance(workers, LocalWorkers):
                workers.forget()
        if not self._plan.standby:
            raise error
        return self.take()

    def _take_again(self) -> bool:
        """Takes the queues if no other scaler holds them: a failover loses a hold that the standby had not received."""
        try:
            self._hold.take(ANSWER_TIMEOUT)
        except Conflict:
            return False
        except Unavailable:
            return True  # the next tick tries again
        self._recorder.forget_notes()
        LOG.warning("hold taken again", extra={"holder": self._holder})
        return True

    def _report_outage(self, error: Unavailable) -> None:
        if not self._away:
            self._tell(f"held: {error.message}; everything stays as it is")
            LOG.warning("postgresql is away", extra={"reason": error.reason})
        self._away = True
        for workers in self._workers.values():
            if isinstance(workers, LocalWorkers):
                workers.reap()
        self._reconnect(error)

    def _reconnect(self, error: Unavailable) -> None:
        """Connects again, unless PostgreSQL answers. A call without an answer ends by the deadline of its connection,
        and the next one reports that."""
        if error.reason in ("retry", "pool", "silent"):
            return
        if error.reason == "deadline":
            LOG.warning("a connection hung, connecting again", extra={"error": error.message})
        with suppress(Unavailable):
            self._background.call(self._database.reconnect, ANSWER_TIMEOUT)

    # --- collect → decide → act ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Collects signals, decides for every queue, writes the decisions, and acts on them."""
        snapshot, fleets = self._collect()
        decided = self._decide(snapshot, fleets)
        began = time.monotonic()
        self._recorder.record(decided, self.collector)
        self._alert(decided, snapshot.at)
        self._act(decided, until=began + self._plan.lease / 2)

    def _collect(self) -> tuple[ScalerSnapshot, Fleets]:
        self._upkeep.run_if_due(self.collector)
        snapshot = self._excuse_outage(self._snapshot())
        if snapshot.schedule is not None and snapshot.schedule <= 0 and not self._plan.dry_run:
            self._upkeep.fire_schedules()
        snapshot = replace(snapshot, queues=(*snapshot.queues, *self._upkeep.adopted))
        missing = {*self._plan.limits} - {one.queue for one in snapshot.queues} - self._plan.adopted
        if missing:
            raise NotFound(f"queue {min(missing)!r} was dropped", hint="Start the scaler without it.")
        ticks = self._ticks(snapshot)
        fleets = {
            queue: workers.current(snapshot, self.collector.latency_of(queue))
            for queue, workers in self._workers.items()
        }
        self.collector.take(snapshot, ticks, {queue: fleet.workers for queue, fleet in fleets.items()})
        return snapshot, fleets

    def _snapshot(self) -> ScalerSnapshot:
        requests = [one for one in self.collector.requests() if one.queue not in self._plan.adopted]
        return self._background.call(lambda: scaling.scaler_snapshot(self._database, requests), ANSWER_TIMEOUT)

    def _excuse_outage(self, snapshot: ScalerSnapshot) -> ScalerSnapshot:
        """Lets silent workers count for a moment longer after an outage or a pause of this process: they could not
        report."""
        now, before = time.monotonic(), self._looked_at
        paused = before is not None and now - before > ANSWER_TIMEOUT + 2 * self._plan.interval
        if self._away or paused:
            self._gap, self._back_at = math.inf if before is None else now - before, now
            self.collector.skip_gap()
            if self._away:
                self._tell("PostgreSQL is back")
        self._away, self._looked_at = False, now
        if self._back_at is not None and now < self._back_at + EXCUSED:
            return excuse_silence(snapshot, self._gap + now - self._back_at)
        return snapshot

    def _ticks(self, snapshot: ScalerSnapshot) -> dict[str, list[float]]:
        known = [one for one in self._upkeep.schedules if one.queue in self._plan.limits]
        ahead = max((one.horizon for one in self.collector.requests()), default=0.0) if known else 0.0
        return ticks_ahead(known, snapshot.at, ahead)

    def _decide(self, snapshot: ScalerSnapshot, fleets: Fleets) -> list[QueueDecision]:
        found: dict[str, tuple[Signals, Decision]] = {}
        for queue, fleet in fleets.items():
            track = self.collector.tracks[queue]
            if track.seen is None:  # an adopted table that has not been counted yet
                continue
            signals = track.signals(snapshot.at, fleet, self.collector.latency)
            found[queue] = signals, self._plan.policy.decide(signals, self._recorder.memory.get(queue))
        return [
            QueueDecision(queue, decision, self._reported.get(queue, (None,))[0], found[queue][0])
            for queue, decision in self._sharing.share(snapshot, found)
        ]

    def _alert(self, decided: Sequence[QueueDecision], now: float) -> None:
        """Passes on decisions that PostgreSQL has accepted: a scaler that lost its queues raises no alerts."""
        if self._note is None or self._plan.dry_run:
            return
        for one in decided:
            self._note(one, now, self.collector.tracks[one.queue].limits.sla)

    def _act(self, decided: Sequence[QueueDecision], *, until: float) -> None:
        """Resizes the fleets, those that shrink first, so that others can use the room. It stops at `until`: after a
        long pause of this process another scaler may have taken over since the decisions were accepted."""
        for one in sorted(decided, key=lambda one: one.decision.workers - one.fleet.workers):
            if time.monotonic() > until:
                return
            found = one.decision
            self._workers[one.queue].resize(found.workers, found.reason)
            if self._reported.get(one.queue) != one.summary:
                self._reported[one.queue] = one.summary
                self._say(one)

    # --- the end ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Stops at these signals while the block runs."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # nohup: no SIGHUP
        for number in handled:
            signal.signal(number, self._receive_signal)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, before[number] or signal.SIG_DFL)

    def _receive_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)
        self._stop.set()

    def stop(self) -> None:
        """Stops all workers. They finish their tasks within the grace; tasks that still run then go back without a used
        attempt."""
        self._manager.stopping()
        children = local_children(self._workers)
        for child in children:
            if not child.stopping:  # a second signal would mean: at once
                child.send_away()
        if children:
            with suppress(BrokenPipeError):  # which may be the reason why it stops
                self._tell(f"stopping {len(children)} workers")
        inherited = inherited_names(self._workers)
        if not self._plan.dry_run:
            self._background.take_error()
            with suppress(PenstockError):
                self._background.call(lambda: self._release(inherited), ANSWER_TIMEOUT)
        wait_for_children(children, self._plan.grace, self._is_hurried)
        finish_commands(self._workers, self._plan.grace, self._is_hurried)

    def _is_hurried(self) -> bool:
        return len(self._signals) >= 2

    def _release(self, inherited: Sequence[str]) -> None:
        scaling.leave_scaling(self._database, self._holder)
        if inherited:
            scaling.dismiss(self._database, inherited)
