"""The scaler at work: collect → decide → act, once a second.

One scaler holds a queue at a time, by an epoch in PostgreSQL; what it decides is written there before it acts, and is
refused when another one has taken over. While PostgreSQL does not answer, everything stays as it is.
"""

from __future__ import annotations

import logging
import os
import queue as queues
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from types import FrameType
from typing import Any, TypeVar

from penstock import queue as seam
from penstock.database import Database
from penstock.errors import ConfigError, Conflict, NotFound, PenstockError, Unavailable
from penstock.model import CronSchedule, Json, Look, ScalingHold, SeenQueue
from penstock.scaler.budget import Budget, bytes_of
from penstock.scaler.collect import Collector, profile_of, ticks_ahead
from penstock.scaler.decision import Decision, Memory, Policy
from penstock.scaler.fleet import CommandedWorkers, LocalWorkers, Workers
from penstock.scaler.forecast import forecast
from penstock.scaler.outlook import Outlook
from penstock.scaler.share import Want, share
from penstock.scaler.signals import Fleet, Limits, Signals, rate_between
from penstock.schedule import decide as decide_ticks

LOG = logging.getLogger("penstock.scaler")
T = TypeVar("T")
UPKEEP = 10.0  # seconds
REMEMBER = 10.0  # seconds between two times that memory is written
NOTED = 55.0  # seconds for which a decision that does not change need not be noted again
PATIENCE = 3.0  # seconds without an answer after which PostgreSQL counts as away
SETTLE = 5.0  # seconds after that in which workers say that they live; until then nothing is decided
SLICE = 0.2  # seconds
MEASURE = 5.0  # seconds between two looks at memory
NEVER = 1e9  # seconds
DEAL = 20.0  # seconds between two times that workers are dealt out anew, where there are too few for all


@dataclass(frozen=True, slots=True)
class Plan:
    """What one `penstock scale` shall do."""

    limits: Mapping[str, Limits]  # of each queue
    policy: Policy
    budget: Budget
    interval: float = 1.0
    grace: float = 30.0
    standby: bool = False
    dry_run: bool = False
    once: bool = False
    adopted: frozenset[str] = frozenset()  # of the queues, those that are somebody's tables

    @property
    def lease(self) -> float:
        """How long a scaler may be silent before another one takes over."""
        return max(10.0, 5 * self.interval)


Said = tuple[int, str, str]  # target, urgency, bound: what is worth telling if it is another


@dataclass(frozen=True, slots=True)
class Decided:
    """What is told of a queue when its decision changes."""

    queue: str
    decision: Decision
    before: int | None  # the target until now
    signals: Signals

    @property
    def fleet(self) -> Fleet:
        return self.signals.fleet

    @property
    def inputs(self) -> Json:
        return inputs(self.signals)

    @property
    def said(self) -> Said:
        return self.decision.workers, self.decision.urgency, self.decision.bound_by


Say = Callable[[Decided], None]
Tell = Callable[[str], None]
Backlogs = Callable[[], Sequence[SeenQueue]]
Note = Callable[[Decided, float, float], None]  # with PostgreSQL's moment and the promise; it never waits


class Aside:
    """Calls that may never be answered, made by a thread of their own: whoever waits can stop waiting."""

    def __init__(self) -> None:
        self._calls: queues.SimpleQueue[tuple[Callable[[], Any], queues.SimpleQueue[Any]]] = queues.SimpleQueue()
        self._pending: queues.SimpleQueue[Any] | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            call, answers = self._calls.get()
            try:
                answers.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                answers.put((None, error))

    @property
    def busy(self) -> bool:
        return self._pending is not None and self._pending.empty()

    def begin(self, call: Callable[[], Any]) -> None:
        if not self.busy:
            self._pending = queues.SimpleQueue()
            self._calls.put((call, self._pending))

    def ended(self) -> BaseException | None:
        """The error of the last call, once, if it has ended with one."""
        if self._pending is None or self._pending.empty():
            return None
        _, error = self._pending.get()
        self._pending = None
        return error if isinstance(error, BaseException) else None

    def call(self, call: Callable[[], T], patience: float) -> T:
        """Unavailable: it is not answered yet, or the one before is not."""
        if self.busy:
            raise silent(patience)
        answers: queues.SimpleQueue[Any] = queues.SimpleQueue()
        self._pending = answers
        self._calls.put((call, answers))
        try:
            value, error = answers.get(timeout=patience)
        except queues.Empty:
            raise silent(patience) from None
        self._pending = None
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]


def silent(seconds: float) -> Unavailable:
    return Unavailable(f"PostgreSQL has not answered for {seconds:g} s", reason="silent")


class Scaler:
    def __init__(
        self,
        plan: Plan,
        database: Database,
        workers: Mapping[str, Workers],
        *,
        holder: str,
        say: Say,
        tell: Tell,
        backlogs: Backlogs = tuple,
        note: Note | None = None,
    ) -> None:
        self._plan, self._database, self._workers = plan, database, workers
        self._holder, self._say, self._tell, self._backlogs = holder, say, tell, backlogs
        self._note = note
        self._aside, self._upkeep = Aside(), Aside()
        self.collector = Collector(plan.limits)
        self._epochs: dict[str, int] = {}
        self._memory: dict[str, Memory] = {}
        self._told: dict[str, Said] = {}
        self._noted: dict[str, tuple[float, Said]] = {}  # in PostgreSQL: when, by our clock, and what
        self._schedules: list[CronSchedule] = []
        self._adopted: list[SeenQueue] = []
        self._unread: set[str] = set()
        self._upkept = self._remembered = self._measured = self._dealt = self._looked = -2 * NEVER
        self._bytes_each: float | None = None
        self._away = False
        self._settle_until = 0.0
        self._stumbled: set[str] = set()
        self._stop = threading.Event()
        self._signals: list[int] = []

    # --- from beginning to end --------------------------------------------------------------------------------------

    def run(self) -> int | None:
        """Until it is told to stop; answers by which signal."""
        self._heed_signals()
        try:
            if self.take():
                self._go_on()
        finally:
            self.let_all_go()
        return self._signals[0] if self._signals else None

    def _go_on(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.tick()
            except Unavailable as error:
                if self._plan.once:
                    raise
                self._outage(error)
            except Conflict as error:
                if not self._lost(error):
                    return
            except (NotFound, BrokenPipeError):
                raise
            except Exception as error:
                if self._plan.once:
                    raise
                self._stumble(error)
            if self._plan.once:
                return
            self._stop.wait(max(0.0, began + self._plan.interval - time.monotonic()))

    def _stumble(self, error: Exception) -> None:
        """A fault of ours, or rights that were taken from us: no reason to let workers go. Said once for each kind."""
        kind = type(error).__name__
        if kind not in self._stumbled:
            self._stumbled.add(kind)
            self._tell(f"held: no decision could be made ({kind}: {error}); everything stays as it is")
        LOG.error("no decision", extra={"error_class": kind})

    def take(self) -> bool:
        """Holds all queues; as a stand-by, as soon as nobody else does. False: it was told to stop meanwhile."""
        if self._plan.dry_run:
            return True
        waiting = False
        while not self._stop.is_set():
            try:
                self._begin(self._aside.call(self._hold, 4 * PATIENCE))
            except Conflict as error:
                if not self._plan.standby:
                    raise
                if not waiting:
                    self._tell(f"standing by: {error.message}")
                waiting = True
            except Unavailable:
                if not waiting:
                    raise
            else:
                if waiting:
                    self._tell("took over")
                return True
            self._stop.wait(min(1.0, self._plan.lease / 5))
        return False

    def _hold(self) -> dict[str, ScalingHold]:
        """One that was killed on this machine is not waited for."""
        wanted = [*self._plan.limits]
        held = {one.holder for one in seam.scalers(self._database, wanted)}
        dead = sorted(one for one in held if is_dead(one))
        if dead:
            LOG.warning("scaler is dead", extra={"holder": ",".join(dead)})
        return seam.hold_scaling(
            self._database,
            wanted,
            holder=self._holder,
            policy=self._plan.policy.name,
            lease=self._plan.lease,
            instead_of=dead,
        )

    def _begin(self, held: Mapping[str, ScalingHold]) -> None:
        self.collector = Collector(self._plan.limits)
        for queue, hold in held.items():
            self._epochs[queue] = hold.epoch
            self._memory[queue] = self.collector.recall(queue, self._plan.policy.name, hold.memory)
        self._noted = {}
        self._looked = -2 * NEVER

    def _lost(self, error: Conflict) -> bool:
        """Somebody else scales now, and our workers are theirs. True: we stand by, and got it back."""
        LOG.error("another scaler took over", extra={"holder": self._holder})
        for workers in self._workers.values():
            if isinstance(workers, LocalWorkers):
                workers.forget()
        if not self._plan.standby:
            raise error
        return self.take()

    def _outage(self, error: Unavailable) -> None:
        if not self._away:
            self._tell(f"held: {error.message}; everything stays as it is")
            LOG.warning("postgresql is away", extra={"reason": error.reason})
        self._away = True
        for workers in self._workers.values():
            if isinstance(workers, LocalWorkers):
                workers.reap()
        if error.reason not in ("retry", "pool", "silent"):
            with suppress(Unavailable):
                self._aside.call(self._database.reconnect, PATIENCE)

    # --- collect → decide → act ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        look = self._collect()
        if look is None:
            return
        decided = self._decide(look)
        began = time.monotonic()
        self._record(decided)
        self._alert(decided, look.at)
        self._act(decided, until=began + self._plan.lease / 2)

    def _collect(self) -> Look | None:
        """None: PostgreSQL, or we, were away, and nobody has had time yet to say that he lives."""
        self._keep_up()
        asked = [one for one in self.collector.asked() if one.queue not in self._plan.adopted]
        look = self._aside.call(lambda: seam.look(self._database, asked), PATIENCE)
        now = time.monotonic()
        if self._away or PATIENCE + 2 * self._plan.interval < now - self._looked < NEVER:
            self._settle_until = now + SETTLE
            if self._away:
                self._tell("PostgreSQL is back")
        self._away, self._looked = False, now
        if look.schedule is not None and look.schedule <= 0 and not self._plan.dry_run:
            self._upkeep.begin(self._fire)
        look = replace(look, queues=(*look.queues, *self._adopted))
        missing = {*self._plan.limits} - {one.queue for one in look.queues} - self._plan.adopted
        if missing:
            raise NotFound(f"queue {min(missing)!r} was dropped", hint="Start the scaler without it.")
        ticks = self._ticks(look)
        fleets = self._fleets(look)
        self.collector.take(look, ticks, {queue: fleet.workers for queue, fleet in fleets.items()})
        return None if now < self._settle_until else look

    def _keep_up(self) -> None:
        """All that nobody else does while there is no worker, by another thread: it may take its time."""
        error = self._upkeep.ended()
        if error is not None:
            LOG.warning("upkeep failed", extra={"error_class": type(error).__name__})
        if self._plan.once:
            self._upkeep.call(self._upkeep_round, 10 * PATIENCE)
        elif time.monotonic() - self._upkept >= UPKEEP and not self._upkeep.busy:
            self._upkept = time.monotonic()
            self._upkeep.begin(self._upkeep_round)

    def _upkeep_round(self) -> None:
        if not self._plan.dry_run:
            seam.upkeep(self._database)
            self._fire()
        self._schedules = seam.schedules(self._database)
        self._adopted = [*self._backlogs()]
        self._learn()

    def _learn(self) -> None:
        """What the pipeline knows of our queues. One that can not be read is said once, and does without."""
        for stored in seam.profiles(self._database):
            track = self.collector.tracks.get(stored.queue)
            if track is not None:
                try:
                    track.profile = profile_of(stored)
                except ConfigError as error:
                    track.profile = None
                    if stored.queue not in self._unread:
                        self._unread.add(stored.queue)
                        LOG.warning(error.message, extra={"queue": stored.queue})

    def _fire(self) -> None:
        for name, error in seam.run_schedules(self._database, decide_ticks).failed.items():
            LOG.warning("schedule not fired", extra={"schedule": name, "code": error.code})

    def _ticks(self, look: Look) -> dict[str, list[float]]:
        known = [one for one in self._schedules if one.queue in self._plan.limits]
        ahead = max((one.horizon for one in self.collector.asked()), default=0.0) if known else 0.0
        return ticks_ahead(known, look.at, ahead)

    def _fleets(self, look: Look) -> dict[str, Fleet]:
        return {
            queue: workers.current(look, self.collector.latency_of(queue)) for queue, workers in self._workers.items()
        }

    def _decide(self, look: Look) -> list[Decided]:
        found: dict[str, tuple[Signals, Decision]] = {}
        for queue, fleet in self._fleets(look).items():
            track = self.collector.tracks[queue]
            if track.seen is None:  # an adopted table that nobody has counted yet
                continue
            signals = track.signals(look.at, fleet, self.collector.latency)
            found[queue] = signals, self._plan.policy.decide(signals, self._memory.get(queue))
        return [
            Decided(queue, decision, self._told.get(queue, (None,))[0], found[queue][0])
            for queue, decision in self._shared(look, found)
        ]

    def _shared(self, look: Look, found: Mapping[str, tuple[Signals, Decision]]) -> Iterator[tuple[str, Decision]]:
        """All of them together within the budget: where it is short, who gets the next worker."""
        ready = sum(signals.fleet.ready for signals, _ in found.values())
        allowed, limit = self._plan.budget.allowed(look, ready, self._memory_each())
        if sum(decision.workers for _, decision in found.values()) <= allowed:
            yield from ((queue, decision) for queue, (_, decision) in found.items())
            return
        anew = time.monotonic() - self._dealt >= DEAL
        if anew:
            self._dealt = time.monotonic()
        wants = [want(queue, *one, keep=not anew) for queue, one in found.items()]
        given = share(wants, allowed).given
        for queue, (signals, decision) in found.items():
            yield queue, limited(decision, given[queue], signals, allowed, limit)

    def _memory_each(self) -> float | None:
        if self._plan.budget.max_memory is not None and time.monotonic() - self._measured > MEASURE:
            self._measured = time.monotonic()
            self._bytes_each = bytes_of(self._pids()) or self._bytes_each
        return self._bytes_each

    def _pids(self) -> list[int]:
        local = [one for one in self._workers.values() if isinstance(one, LocalWorkers)]
        return [child.process.pid for one in local for child in one.children if child.registered]

    def _record(self, decided: Sequence[Decided]) -> None:
        for one in decided:
            self._memory[one.queue] = one.decision.memory
        if self._plan.dry_run:
            return
        due = time.monotonic() - self._remembered >= REMEMBER
        if due:
            self._remembered = time.monotonic()
        rows = [self._row(one, remember=due or one.before != one.decision.workers) for one in decided]
        noted = self._aside.call(
            lambda: seam.decide(self._database, rows, holder=self._holder, lease=self._plan.lease), PATIENCE
        )
        said = {one.queue: one.said for one in decided}
        self._noted.update((queue, (time.monotonic(), said[queue])) for queue in noted)

    def _row(self, one: Decided, *, remember: bool) -> Json:
        found, policy = one.decision, self._plan.policy.name
        row: Json = {"queue": one.queue, "epoch": self._epochs[one.queue], "policy": policy, "workers": found.workers}
        if remember:
            row["memory"] = self.collector.remembered(one.queue, policy, found.memory)
        if self._is_noted(one):
            return row
        return {**row, "actual": one.fleet.workers, "inputs": one.inputs, **found.to_json()}

    def _is_noted(self, one: Decided) -> bool:
        """PostgreSQL notes what is another, and all once a minute by its own clock: shortly before we begin to send all
        of it. Until then only its target is said, once a second."""
        at, said = self._noted.get(one.queue, (-NEVER, None))
        return said == one.said and time.monotonic() - at < NOTED

    def _alert(self, decided: Sequence[Decided], now: float) -> None:
        """What was accepted, and only that: who was taken over from tells nobody anything."""
        if self._note is None or self._plan.dry_run:
            return
        for one in decided:
            self._note(one, now, self.collector.tracks[one.queue].limits.sla)

    def _act(self, decided: Sequence[Decided], *, until: float) -> None:
        """Those that get fewer first: what they leave, others may take. Not when so much time has passed (who is frozen
        does not notice) that somebody may have taken over since it was accepted."""
        for one in sorted(decided, key=lambda one: one.decision.workers - one.fleet.workers):
            if time.monotonic() > until:
                return
            found = one.decision
            self._workers[one.queue].resize(found.workers, found.reason)
            if self._told.get(one.queue) != one.said:
                self._told[one.queue] = one.said
                self._say(one)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._signalled)

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)
        self._stop.set()

    def let_all_go(self) -> None:
        """All workers finish what they have, within the grace; what runs then goes back, no attempt burned."""
        local = [one for one in self._workers.values() if isinstance(one, LocalWorkers)]
        children = [child for one in local for child in one.children]
        for child in children:
            if not child.told:  # a second time would be: at once
                child.send_away()
        if children:
            with suppress(BrokenPipeError):  # perhaps that is why we stop
                self._tell(f"stopping {len(children)} workers")
        inherited = [name for one in local for name in one.inherited]
        if not self._plan.dry_run:
            with suppress(PenstockError):
                self._aside.call(lambda: self._leave(inherited), PATIENCE)
        until = time.monotonic() + self._plan.grace
        while alive(children) and time.monotonic() < until and len(self._signals) < 2:
            time.sleep(SLICE)
        for child in alive(children):
            child.send_away()  # for the second time
        until = time.monotonic() + 10.0
        while alive(children) and time.monotonic() < until:
            time.sleep(SLICE / 4)
        for child in alive(children):
            child.process.kill()
        self._finish_commands()

    def _leave(self, inherited: Sequence[str]) -> None:
        seam.leave_scaling(self._database, self._holder)
        if inherited:
            seam.dismiss(self._database, inherited)

    def _finish_commands(self) -> None:
        commanded = [one for one in self._workers.values() if isinstance(one, CommandedWorkers)]
        until = time.monotonic() + self._plan.grace
        while any(one.running for one in commanded) and time.monotonic() < until and len(self._signals) < 2:
            for one in commanded:
                one.look_after()
            time.sleep(SLICE / 4)


def alive(children: Sequence[Any]) -> list[Any]:
    return [child for child in children if child.process.poll() is None]


def want(queue: str, signals: Signals, decision: Decision, *, keep: bool) -> Want:
    """What a queue asks for, and what it would lose; `keep`: it has those that are there. Who gains most may be another
    one every second, and a worker that goes from queue to queue does nothing meanwhile."""
    least = min(max(signals.limits.min_workers, signals.fleet.workers if keep else 0), decision.workers)
    if signals.service is None:
        return Want(queue, decision.workers, least)
    outlook: list[Outlook] = []

    def late(workers: int) -> float:
        if not outlook:  # only when there is not enough for all
            outlook.append(Outlook(signals, forecast(signals.samples), z=1.0, z_service=2.0, recovery=0.5))
        return outlook[0].late(workers)

    return Want(queue, decision.workers, least, late)


def limited(decision: Decision, given: int, signals: Signals, allowed: int, limit: str) -> Decision:
    """Never fewer than there are for want of room: who is there needs none."""
    given = max(given, min(decision.workers, signals.fleet.workers)) if limit != "max" else given
    if given >= decision.workers:
        return decision
    said = decision.reason.partition(": ")[2] or decision.reason
    return replace(
        decision,
        workers=given,
        bound_by=limit,
        reason=f"{given}: {said}; {given} of {decision.workers}, because all queues share {allowed} ({limit})",
    )


def inputs(signals: Signals) -> Json:
    """What a decision was made of, for whoever asks later."""
    limits, fleet = signals.limits, signals.fleet
    return {
        "pending": signals.pending,
        "active": signals.active,
        "oldest_age": round(signals.oldest_age, 3),
        "planned": sum(count for _, count in signals.planned),
        "arrivals": rate_between(signals.samples, "arrived", 60.0),
        "service": signals.service,
        "start_latency": round(signals.latency, 3),
        "ready": fleet.ready,
        "starting": len(fleet.starting),
        "draining": fleet.draining,
        "sla": limits.sla,
        "min_workers": limits.min_workers,
        "max_workers": limits.max_workers,
        "slots": limits.slots,
        "interval": limits.interval,
    }


def new_holder() -> str:
    """Where a scaler runs, and a word that no other has."""
    return f"{socket.gethostname()}:{namespace()}:{os.getpid()}:{token_hex(3)}"


def namespace() -> int:
    """Containers may have the same name, and processes of the same number in them."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def is_dead(holder: str) -> bool:
    """It was a process of this machine, and is no more. One that may live elsewhere has until its hold ends."""
    *place, pid, _ = holder.split(":") if holder.count(":") == 3 else ["", "", ""]
    if place != [socket.gethostname(), str(namespace())] or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
