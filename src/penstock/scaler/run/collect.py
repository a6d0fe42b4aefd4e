"""Makes the signals of a policy from one snapshot of all queues and from earlier ones.

The service time is computed by Little's law from counters: the seconds for which slots were busy, divided by the
attempts that ended. This needs no history, and tasks that were claimed ahead of a free slot do not count as work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from penstock.model import QueueQuestion, ScalerSnapshot, Schedule, SeenQueue, SeenWorker, StoredProfile
from penstock.scaler.policy.decision import Memory
from penstock.scaler.policy.forecast import Profile
from penstock.scaler.policy.signals import LONGEST, SAMPLES, Fleet, Limits, Sample, Signals
from penstock.schedule import cron_of

BINS = 40  # of the age histogram, per SLA
SPACING = 5.0  # seconds between two samples that are kept, so that SAMPLES span five minutes
HALF_LIFE = 600.0  # seconds after which a service time counts half
MIN_SERVICE = 1e-4  # seconds: looks cannot tell a shorter task from none
MAX_WAITING = 5000  # waiting tasks that one snapshot reads, of all queues together
MIN_WAITING = 50  # waiting tasks that one snapshot reads of each queue, at least
SHARES = 10  # into which the tasks behind them are divided
MAX_RUNNING = 1000  # running tasks whose run times a policy sees
MAX_TICKS = 1000  # of one schedule
STARTS = 50  # from which the start latency is computed
SILENT = 15.0  # seconds without a beat after which a worker does not count


@dataclass(slots=True)
class ServiceTime:
    """The service time of a queue, in which recent attempts count more."""

    busy: float = 0.0
    ended: float = 0.0

    def add(self, busy: float, ended: int, seconds: float) -> None:
        """Adds the busy seconds and the ended attempts of the last seconds."""
        kept = 0.5 ** (seconds / HALF_LIFE)
        self.busy, self.ended = self.busy * kept + busy, self.ended * kept + ended

    @property
    def seconds(self) -> float | None:
        """The seconds that a task takes; None: no attempt has ended recently."""
        return min(LONGEST, max(MIN_SERVICE, self.busy / self.ended)) if self.ended >= 0.5 else None


class QueueTrack:
    """The state of one queue over time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.seen: SeenQueue | None = None
        self.service = ServiceTime()
        self._at = 0.0
        self.profile: Profile | None = None
        self._samples: list[Sample] = []
        self._slots = 0
        self._ahead: dict[int, int] = {}
        self._ticks: list[float] = []

    def take(self, at: float, seen: SeenQueue, *, slots: int, workers: int, ticks: Sequence[float]) -> None:
        """Adds a snapshot. `slots` are those of all workers that serve the queue; `ticks` are the moments of its
        schedules."""
        if seen.paused:  # no task may start, whatever the fleet
            seen = replace(seen, pending=0, waiting=(), newest=None, ahead=())
        if seen.sla is not None and seen.sla != self.limits.sla:
            self.limits = replace(self.limits, sla=seen.sla)
        last = self._samples[-1] if self._samples else Sample(at, 0)
        before, self.seen = self.seen or seen, seen
        passed = max(0.0, at - self._at) if self._at else 0.0
        slots_then, self._slots, self._at = self._slots or slots, slots, at
        arrived = max(0, count_arrived(seen) - count_arrived(before))
        ended = max(0, seen.ended - before.ended)
        busy = passed * (count_busy(before, slots_then) + count_busy(seen, slots)) / 2
        self.service.add(busy, ended, passed)
        announced = self._count_announced(at, seen, ticks)
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
                announced=last.announced + min(arrived, announced),
            )
        )

    def skip_gap(self) -> None:
        """Leaves out the time since the last snapshot: no task could finish in it, so it was not work."""
        self._at = 0.0

    def _count_announced(self, at: float, seen: SeenQueue, ticks: Sequence[float]) -> int:
        """Counts planned tasks and ticks that have fallen due. Of the present second, it counts tasks that are no
        longer planned."""
        now = dict(seen.ahead)
        count_due = sum(max(0, count - now.get(second, 0)) for second, count in self._ahead.items() if second <= at)
        count_due += sum(moment <= at for moment in self._ticks)
        self._ahead, self._ticks = now, [moment for moment in ticks if moment > at]
        return count_due

    def _keep(self, sample: Sample) -> None:
        if len(self._samples) > 1 and self._samples[-1].at - self._samples[-2].at < SPACING:
            self._samples[-1] = sample
        else:
            self._samples = [*self._samples[1 - SAMPLES :], sample]

    def signals(self, now: float, fleet: Fleet, latency: float | None) -> Signals:
        """Returns the signals of the queue for a policy."""
        seen = self.seen
        assert seen is not None, "there was no snapshot yet"
        ahead = sorted([*seen.ahead, *((moment, 1) for moment in self._ticks)])
        return Signals(
            now=now,
            limits=self.limits,
            samples=tuple(self._samples),
            fleet=fleet,
            waiting=tuple(estimate_waiting(seen)),
            running=tuple(run_times(seen, self.limits.slots)),
            planned=tuple((max(0.0, moment - now), count) for moment, count in ahead),
            service=self.service.seconds if seen.rate is None else self.limits.slots / seen.rate,
            start_latency=latency,
            profile=self.profile,
            ended=seen.ended,
        )

    def request(self, queue: str, latency: float, most: int) -> QueueQuestion:
        """Returns what the next snapshot reads. It reads no more of the oldest tasks than all slots could start: more
        would not change the decision."""
        limits = self.limits
        horizon = min(LONGEST / 10, latency + limits.interval + 2 * limits.sla)
        able = limits.max_workers * limits.slots * (1 + horizon / (self.service.seconds or 1.0))
        rows = int(min(max(able, MIN_WAITING), most))
        return QueueQuestion(queue, horizon, rows, max(0.001, limits.sla / BINS))


def profile_of(stored: StoredProfile) -> Profile | None:
    """Reads a stored profile; None: the pipeline has not learned one. Raises ConfigError if it is of another
    version."""
    if stored.made is None or stored.version is None or stored.data is None:
        return None
    return Profile.from_json(stored.data, version=stored.version, made=stored.made.timestamp())


class Collector:
    """Collects the signals of all queues of a scaler."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self.tracks = {queue: QueueTrack(one) for queue, one in limits.items()}
        self._latencies: deque[float] = deque(maxlen=STARTS)
        self._known: set[str] = set()
        self.latency: float | None = (
            None  # seconds from the request of a worker until it serves; None: not measured yet
        )

    def latency_of(self, queue: str) -> float:
        return self.tracks[queue].limits.start_latency if self.latency is None else self.latency

    def requests(self) -> list[QueueQuestion]:
        """Returns what the next snapshot reads of each queue."""
        waiting = sum(track.seen is None or track.seen.pending > 0 for track in self.tracks.values())
        most = max(MIN_WAITING, MAX_WAITING // max(1, waiting))
        return [track.request(queue, self.latency_of(queue), most) for queue, track in self.tracks.items()]

    def take(self, snapshot: ScalerSnapshot, ticks: Mapping[str, Sequence[float]], workers: Mapping[str, int]) -> None:
        """Adds a snapshot to all queues."""
        self._measure_starts(snapshot.workers)
        for seen in snapshot.queues:
            track = self.tracks.get(seen.queue)
            if track is not None:
                slots = round(slots_of(snapshot.workers, seen.queue))
                track.take(
                    snapshot.at,
                    seen,
                    slots=slots,
                    workers=workers.get(seen.queue, 0),
                    ticks=ticks.get(seen.queue, ()),
                )

    def skip_gap(self) -> None:
        """Leaves out the time since the last snapshot, because PostgreSQL was away."""
        for track in self.tracks.values():
            track.skip_gap()

    def _measure_starts(self, workers: Sequence[SeenWorker]) -> None:
        """Measures the start latency: nine of ten starts are not slower."""
        new = [one for one in workers if one.started_by is not None and one.name not in self._known]
        self._latencies.extend(max(0.0, one.latency) for one in sorted(new, key=lambda one: one.began))
        self._known = {one.name for one in workers}
        if new:
            found = sorted(self._latencies)
            self.latency = found[math.ceil(0.9 * len(found)) - 1]

    # --- for the next scaler -----------------------------------------------------------------------------------------

    def remember(self, queue: str, policy: str, memory: Memory) -> dict[str, Any]:
        """Returns what the next scaler needs to continue."""
        service = self.tracks[queue].service
        return {"policy": policy, "memory": memory, "busy": service.busy, "ended": service.ended}

    def recall(self, queue: str, policy: str, stored: Mapping[str, Any] | None) -> Memory:
        """Reads what the scaler before knew: the service time, and the memory of its policy if it is the same one."""
        if not stored:
            return None
        self.tracks[queue].service = ServiceTime(float(stored.get("busy", 0.0)), float(stored.get("ended", 0.0)))
        return stored.get("memory") if stored.get("policy") == policy else None


def count_arrived(seen: SeenQueue) -> int:
    """Returns the tasks that have ever fallen due, except cancelled ones, which are not counted."""
    return seen.pending + seen.active + seen.ended + seen.left


def count_busy(seen: SeenQueue, slots: int) -> int:
    """Returns the busy slots. Workers claim ahead, and a task without a slot is not in work yet."""
    return min(seen.active, slots) if slots else seen.active


def estimate_waiting(seen: SeenQueue) -> Iterator[tuple[float, int]]:
    """Yields (age, tasks), oldest first: the tasks that the snapshot has, and those behind as if evenly spread."""
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


def run_times(seen: SeenQueue, slots: int) -> Iterator[float]:
    """Yields how long tasks have run, for each lease at most as many as a worker has slots."""
    left = MAX_RUNNING
    for age, tasks in seen.running:
        some = min(tasks, slots, left)
        left -= some
        yield from (max(0.0, age) for _ in range(some))


def is_present(worker: SeenWorker) -> bool:
    """Whether a worker counts: it is not stopping and not silent."""
    return not worker.leaving and worker.silent < SILENT


def excuse_silence(snapshot: ScalerSnapshot, seconds: float) -> ScalerSnapshot:
    """Subtracts the seconds for which workers could not report from the time for which they are silent."""
    return replace(
        snapshot, workers=tuple(replace(one, silent=max(0.0, one.silent - seconds)) for one in snapshot.workers)
    )


def slots_of(workers: Sequence[SeenWorker], queue: str) -> float:
    """Returns the slots of all workers that serve a queue. A worker that serves several queues gives each an equal
    part."""
    return sum(one.slots / len(one.queues) for one in workers if queue in one.queues and is_present(one))


def ticks_ahead(schedules: Sequence[Schedule], now: float, horizon: float) -> dict[str, list[float]]:
    """Returns the moments, in seconds since 1970, at which cron schedules will push to each queue."""
    found: dict[str, list[float]] = {}
    begin = datetime.fromtimestamp(now, UTC)
    end = begin + timedelta(seconds=min(horizon, 366 * 86_400.0))
    for one in schedules:
        if one.paused or one.next_at > end:
            continue
        ticks = cron_of(one.cron, one.tz).ticks(max(begin, one.mark))
        some = found.setdefault(one.queue, [])
        for number, tick in enumerate(takewhile(lambda tick: tick <= end, ticks)):
            if number == MAX_TICKS:
                break
            some.append(tick.timestamp())
    return {queue: sorted(ticks) for queue, ticks in found.items()}
