"""What a policy is shown: made of one look at all queues, and of what was seen before.

How long a task takes is Little's law on what we count anyway: seconds that slots were busy, by attempts that ended.
Nobody has to read history for it, and what was claimed ahead of its slot does not count as work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from penstock.model import Asked, CronSchedule, Look, SeenQueue, SeenWorker, StoredProfile
from penstock.scaler.decision import Memory
from penstock.scaler.forecast import Profile
from penstock.scaler.signals import LONGEST, SAMPLES, Fleet, Limits, Sample, Signals
from penstock.schedule import cron_of

BINS = 40  # of the age histogram, to one promise
SPACING = 5.0  # seconds between two samples that are kept: as many as a policy may see are five minutes then
HALF_LIFE = 600.0  # seconds after which what was learned of service times counts half
SHORTEST = 1e-4  # seconds: a look now and then can not tell a shorter task from none
LOOKED_AT = 5000  # waiting tasks in one look at all queues, and of each queue
FEWEST_LOOKED_AT = 50
SHARES = 10  # into which those behind them are cut
MOST_RUNNING = 1000
MOST_TICKS = 1000  # of one schedule
STARTS = 50  # that start latency is measured by
SILENT = 15.0  # seconds without a beat after which a worker is not counted on


@dataclass(slots=True)
class Service:
    """Seconds of work and attempts that ended, the recent ones counting more."""

    busy: float = 0.0
    ended: float = 0.0

    def note(self, busy: float, ended: int, seconds: float) -> None:
        kept = 0.5 ** (seconds / HALF_LIFE)
        self.busy, self.ended = self.busy * kept + busy, self.ended * kept + ended

    @property
    def seconds(self) -> float | None:
        """That a task takes; None: none has ended, or so long ago that it says nothing."""
        return min(LONGEST, max(SHORTEST, self.busy / self.ended)) if self.ended >= 0.5 else None


class Track:
    """One queue, from look to look."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.seen: SeenQueue | None = None
        self.service = Service()
        self._at = 0.0
        self.profile: Profile | None = None
        self._samples: list[Sample] = []
        self._slots = 0
        self._ahead: dict[int, int] = {}
        self._ticks: list[float] = []

    def take(self, at: float, seen: SeenQueue, *, slots: int, workers: int, ticks: Sequence[float]) -> None:
        """`slots` are those of all who serve the queue now; ticks: when schedules will push to it."""
        if seen.paused:  # nothing of it may start, whoever is there
            seen = replace(seen, pending=0, waiting=(), newest=None, ahead=())
        if seen.sla is not None and seen.sla != self.limits.sla:
            self.limits = replace(self.limits, sla=seen.sla)
        last = self._samples[-1] if self._samples else Sample(at, 0)
        before, self.seen = self.seen or seen, seen
        passed = max(0.0, at - self._at) if self._at else 0.0
        slots_then, self._slots, self._at = self._slots or slots, slots, at
        arrived = max(0, through(seen) - through(before))
        ended = max(0, seen.ended - before.ended)
        busy = passed * (occupied(before, slots_then) + occupied(seen, slots)) / 2
        self.service.note(busy, ended, passed)
        fell = self._fell(at, seen, ticks)
        self._keep(
            Sample(
                at=at,
                pending=seen.pending,
                active=seen.active,
                oldest_age=max(0.0, seen.waiting[0][0]) if seen.waiting else 0.0,
                arrived=last.arrived + arrived,
                finished=last.finished + ended,
                busy_seconds=last.busy_seconds + busy,
                workers=workers,
                announced=last.announced + min(arrived, fell),
            )
        )

    def _fell(self, at: float, seen: SeenQueue, ticks: Sequence[float]) -> int:
        """Tasks that were known to come, and came. Of a second that is not over, those that are planned no more."""
        now = dict(seen.ahead)
        fell = sum(max(0, count - now.get(second, 0)) for second, count in self._ahead.items() if second <= at)
        fell += sum(moment <= at for moment in self._ticks)
        self._ahead, self._ticks = now, [moment for moment in ticks if moment > at]
        return fell

    def _keep(self, sample: Sample) -> None:
        if len(self._samples) > 1 and self._samples[-1].at - self._samples[-2].at < SPACING:
            self._samples[-1] = sample
        else:
            self._samples = [*self._samples[1 - SAMPLES :], sample]

    def signals(self, now: float, fleet: Fleet, latency: float | None) -> Signals:
        seen = self.seen
        assert seen is not None, "nobody has looked yet"
        ahead = sorted([*seen.ahead, *((moment, 1) for moment in self._ticks)])
        return Signals(
            now=now,
            limits=self.limits,
            samples=tuple(self._samples),
            fleet=fleet,
            waiting=tuple(all_waiting(seen)),
            running=tuple(running(seen, self.limits.slots)),
            planned=tuple((max(0.0, moment - now), count) for moment, count in ahead),
            service=self.service.seconds if seen.rate is None else self.limits.slots / seen.rate,
            start_latency=latency,
            profile=self.profile,
        )

    def asked(self, queue: str, latency: float, most: int) -> Asked:
        """Not more of the oldest than could change the answer: whoever has more than all slots can start needs all."""
        limits = self.limits
        horizon = min(LONGEST / 10, latency + limits.interval + 2 * limits.sla)
        able = limits.max_workers * limits.slots * (1 + horizon / (self.service.seconds or 1.0))
        rows = int(min(max(able, FEWEST_LOOKED_AT), most))
        return Asked(queue, horizon, rows, max(0.001, limits.sla / BINS))


def profile_of(stored: StoredProfile) -> Profile | None:
    """None: the pipeline has learnt nothing of the queue. ConfigError: what it has is not for us."""
    if stored.made is None or stored.version is None or stored.data is None:
        return None
    return Profile.from_json(stored.data, version=stored.version, made=stored.made.timestamp())


class Collector:
    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self.tracks = {queue: Track(one) for queue, one in limits.items()}
        self._latencies: deque[float] = deque(maxlen=STARTS)
        self._known: set[str] = set()
        self.latency: float | None = None  # from asking for a worker until it serves; None: none was started yet

    def latency_of(self, queue: str) -> float:
        return self.tracks[queue].limits.start_latency if self.latency is None else self.latency

    def asked(self) -> list[Asked]:
        waiting = sum(track.seen is None or track.seen.pending > 0 for track in self.tracks.values())
        most = max(FEWEST_LOOKED_AT, LOOKED_AT // max(1, waiting))
        return [track.asked(queue, self.latency_of(queue), most) for queue, track in self.tracks.items()]

    def take(self, look: Look, ticks: Mapping[str, Sequence[float]], workers: Mapping[str, int]) -> None:
        self._note_starts(look.workers)
        for seen in look.queues:
            track = self.tracks.get(seen.queue)
            if track is not None:
                slots = round(slots_of(look.workers, seen.queue))
                track.take(
                    look.at,
                    seen,
                    slots=slots,
                    workers=workers.get(seen.queue, 0),
                    ticks=ticks.get(seen.queue, ()),
                )

    def _note_starts(self, workers: Sequence[SeenWorker]) -> None:
        new = [one for one in workers if one.started_by is not None and one.name not in self._known]
        self._latencies.extend(max(0.0, one.latency) for one in sorted(new, key=lambda one: one.began))
        self._known = {one.name for one in workers}
        if new:
            found = sorted(self._latencies)
            self.latency = found[math.ceil(0.9 * len(found)) - 1]  # nine times of ten

    # --- for whoever goes on -----------------------------------------------------------------------------------------

    def remembered(self, queue: str, policy: str, memory: Memory) -> dict[str, Any]:
        service = self.tracks[queue].service
        return {"policy": policy, "memory": memory, "busy": service.busy, "ended": service.ended}

    def recall(self, queue: str, policy: str, told: Mapping[str, Any] | None) -> Memory:
        """What the scaler before knew of service times; what its policy remembered, if it is the same one."""
        if not told:
            return None
        self.tracks[queue].service = Service(float(told.get("busy", 0.0)), float(told.get("ended", 0.0)))
        return told.get("memory") if told.get("policy") == policy else None


def through(seen: SeenQueue) -> int:
    """Tasks that have ever fallen due, as far as they can still be counted: cancelled ones can not."""
    return seen.pending + seen.active + seen.ended + seen.left


def occupied(seen: SeenQueue, slots: int) -> int:
    """Slots that work. Workers claim ahead: what has no slot yet is not being worked on."""
    return min(seen.active, slots) if slots else seen.active


def all_waiting(seen: SeenQueue) -> Iterator[tuple[float, int]]:
    """(age, tasks), oldest first: those that were looked at, and those behind them as if evenly spread."""
    yield from seen.waiting
    behind = seen.pending - sum(count for _, count in seen.waiting)
    if behind <= 0 or not seen.waiting:
        return
    oldest = seen.waiting[-1][0]
    newest = min(oldest, max(0.0, oldest if seen.newest is None else seen.newest))
    shares = min(SHARES, behind)
    each, odd = divmod(behind, shares)
    for n in range(shares):
        yield oldest - (oldest - newest) * n / shares, each + (n < odd)


def running(seen: SeenQueue, slots: int) -> Iterator[float]:
    """How long tasks have been running: of one lease not more than fit into a worker."""
    left = MOST_RUNNING
    for age, tasks in seen.running:
        some = min(tasks, slots, left)
        left -= some
        yield from (max(0.0, age) for _ in range(some))


def counted_on(worker: SeenWorker) -> bool:
    return not worker.leaving and worker.silent < SILENT


def slots_of(workers: Sequence[SeenWorker], queue: str) -> float:
    """Of all who take tasks of a queue. Who serves several gives each of them its part."""
    return sum(one.slots / len(one.queues) for one in workers if queue in one.queues and counted_on(one))


def ticks_ahead(schedules: Sequence[CronSchedule], now: float, horizon: float) -> dict[str, list[float]]:
    """When cron lines will push to each queue, seconds since 1970."""
    found: dict[str, list[float]] = {}
    begin = datetime.fromtimestamp(now, UTC)
    end = begin + timedelta(seconds=min(horizon, 366 * 86_400.0))
    for one in schedules:
        if one.paused or one.next_at > end:
            continue
        ticks = cron_of(one.cron, one.tz).ticks(max(begin, one.mark))
        some = found.setdefault(one.queue, [])
        for number, tick in enumerate(takewhile(lambda tick: tick <= end, ticks)):
            if number == MOST_TICKS:
                break
            some.append(tick.timestamp())
    return {queue: sorted(ticks) for queue, ticks in found.items()}
