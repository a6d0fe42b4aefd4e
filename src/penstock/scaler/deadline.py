"""The default policy: the fewest workers with which every task can still be started in time.

What waits, what is planned and what will probably come, each with its deadline, against the starts that slots can
make, new ones only after they are up (`outlook`). Down it goes only when fewer would have done for a while: the smaller
the gain, the longer. What a steady stream needs is a floor; so is, where workers start more slowly than tasks may wait,
what the last bursts needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.scaler.decision import Decision, Memory, ceiling, conclude
from penstock.scaler.forecast import SLOW, Forecast, forecast, raised, slots_for
from penstock.scaler.outlook import Outlook
from penstock.scaler.signals import LONGEST, Signals
from penstock.scaler.trial import Trial

BUCKET = 300.0  # seconds
GUESS = 0.1  # seconds that a task takes, if nothing at all is known

REASONS = {"steady": "a steady stream", "warm": "bursts as before", "profile": "what this hour usually brings"}

Needs = list[list[float]]  # [moment, workers], each the last time that so many were needed, the most first


@dataclass(frozen=True, slots=True)
class Deadline:
    """The fewest workers with which every task can still be started in time. No knob is in tasks or workers: they mean
    the same for a queue of any size."""

    z: float = 1.0  # standard deviations of arrivals that are provided for
    z_service: float = 2.0  # and of service times
    rest: float = 1.0  # start latencies for which a worker that is not needed stays in any case
    patience: float = 20.0  # seconds for which the whole fleet would be kept to spare a change of direction
    longest_hold: float = 300.0  # seconds
    recovery: float = 0.5  # share of the SLA within which what can not be saved is to be started
    late_share: float = 0.005  # of a steady stream that may wait longer than the SLA
    remembered: float = 3600.0  # seconds for which a burst keeps the fleet warm
    least_gain: float = 0.1  # share of the expected gain below which more workers are not worth having

    @property
    def name(self) -> str:
        return "deadline"

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        memory = memory or {}
        if signals.service is None:
            return self._feel_forward(signals, memory)
        coming = forecast(signals.samples)
        usual, doubted = by_profile(signals, coming)
        outlook = Outlook(signals, usual, z=self.z, z_service=self.z_service, recovery=self.recovery)
        steady = self._steady(signals, coming)
        peaks = self._peaks(signals, self._warm(signals, steady), memory)
        rules = {
            "deadlines": outlook.fewest,
            "steady": steady,
            "warm": ceiling(max((need for _, need in peaks), default=0.0)),
        }
        if usual is not coming:
            rules["profile"] = self._steady(signals, usual)
        rule = max(rules, key=lambda name: rules[name])
        needed = rules[rule]
        needs = remember(memory.get("needs", []), signals.now, needed, self.longest_hold)
        rules["hold"] = wanted = self._held(signals, needs)
        said = sentence(signals, outlook, usual, rules, rule) + doubted
        if wanted > needed:
            rule, said = "hold", f"{said}; {wanted} stay until fewer have done for longer"
        trial = Trial.after(signals, memory.get("trial"), wanted, self.least_gain)
        if trial.useless and wanted > signals.fleet.workers:
            wanted, rule, said = signals.fleet.workers, "no gain", f"{said}; {trial.told}"
        memory = {"needs": needs, "peaks": peaks, "trial": trial.memory}
        return conclude(signals, wanted, rule, rules, said, memory=memory)

    def _steady(self, signals: Signals, coming: Forecast) -> int:
        limits = signals.limits
        slots = slots_for(
            coming.steady,
            signals.service or 1.0,
            limits.sla,
            self.late_share,
            variability=(coming.dispersion + signals.dispersion**2) / 2,
            most=limits.max_workers * limits.slots,
        )
        return ceiling(slots / limits.slots)

    def _peaks(self, signals: Signals, warm: float, memory: Memory) -> Needs:
        """The most that would have had to be there before a burst, of every five minutes of the last hour."""
        kept = [[at, need] for at, need in memory.get("peaks", []) if at > signals.now - self.remembered]
        bucket = signals.now // BUCKET * BUCKET
        if kept and kept[-1][0] == bucket:
            kept[-1][1] = max(kept[-1][1], warm)
        elif warm > 0:
            kept.append([bucket, warm])
        return kept

    def _warm(self, signals: Signals, steady: int) -> float:
        """How many have to be there before a burst such as this, where a new worker is up only after tasks are late:
        enough that nobody waits too long before the others are up. What comes until then may wait a promise longer, so
        not all that the stream needs."""
        limits, late = signals.limits, signals.latency + signals.limits.interval
        if late < limits.sla or signals.stale or signals.now - signals.samples[0].at < SLOW:
            return 0.0  # the rate of a moment would be remembered for an hour
        return steady * late / (late + limits.sla)

    def _held(self, signals: Signals, needs: Needs) -> int:
        """The fewest to which it may go now. Fewer must have been enough for a time that is the shorter the more that
        saves: a worker that is let go and wanted again costs a start, and a change of direction costs trust."""
        fleet, newest = signals.fleet.workers, len(needs) - 1
        for place in range(newest, 0, -1):
            fewer, last_time = int(needs[place][1]), needs[place - 1][0]
            if fewer >= fleet or signals.now - last_time >= self._hold(signals, fleet, fewer):
                return fewer
        return int(needs[0][1])

    def _hold(self, signals: Signals, fleet: int, fewer: int) -> float:
        return min(self.longest_hold, self.rest * signals.latency + self.patience * fleet / (fleet - fewer))

    def _feel_forward(self, signals: Signals, memory: Memory) -> Decision:
        """No task has ever finished. Those that run have taken as long as they have: what would be wanted if that were
        all, and not more than twice as many at a time, four times while a worker starts."""
        fleet, since = signals.fleet.workers, memory.get("doubled", -1e18)
        ready = signals.now - since >= signals.latency / 4 - 1e-9
        most = max(1, 2 * fleet) if ready else fleet
        least = max(1, fleet) if signals.pending + signals.active else 0
        # Between two doublings, and for the very first one, whatever is ahead makes no difference.
        wanted = most if least >= most else max(least, self._blind_outlook(signals).fewest_of(most))
        since = signals.now if wanted > fleet else since
        said = f"{signals.pending} waiting, {signals.active} running, none has ever finished: at most twice as many"
        return conclude(signals, wanted, "unknown", {"unknown": wanted}, said, memory={**memory, "doubled": since})

    def _blind_outlook(self, signals: Signals) -> Outlook:
        guess = replace(signals, service=min(LONGEST, max(GUESS, self._so_far(signals))))
        return Outlook(guess, forecast(signals.samples), z=0.0, z_service=0.0, recovery=self.recovery)

    @staticmethod
    def _so_far(signals: Signals) -> float:
        """Seconds in a slot without a result. Where nobody tells how long tasks have run: as long as others waited."""
        busy = signals.active >= signals.fleet.ready * signals.limits.slots
        return sum(signals.running) or (signals.oldest_age if signals.active and busy else 0.0)


def by_profile(signals: Signals, coming: Forecast) -> tuple[Forecast, str]:
    """The forecast with what history says of this hour, never a lower one; and why not, if that was not asked."""
    profile = signals.profile
    if profile is None:
        return coming, ""
    if not profile.fresh(signals.now):
        return coming, f"; the profile is {profile.age(signals.now) / 86_400:.0f} days old and was not asked"
    usual = raised(coming, profile, signals.samples, signals.latency + signals.limits.interval)
    return (coming, "; the profile does not know this hour") if usual is None else (usual, "")


def remember(needs: Needs, now: float, needed: int, longest: float) -> Needs:
    """Needs that are no more than the present one do not matter any longer."""
    return [*([at, most] for at, most in needs if at >= now - longest and most > needed), [now, float(needed)]]


def sentence(signals: Signals, outlook: Outlook, coming: Forecast, rules: dict[str, int], rule: str) -> str:
    expected = coming.expected(signals.latency + signals.limits.interval)
    parts = [f"{signals.pending} waiting"]
    if signals.pending:
        parts[0] += f", the oldest for {signals.oldest_age:.0f} of {signals.limits.sla:g} s"
    planned = sum(count for seconds, count in signals.planned if seconds <= signals.latency + signals.limits.interval)
    parts.append(
        f"{expected:.0f} expected" + (f" and {planned} planned" if planned else "") + " until new workers are up"
    )
    miss = outlook.shortfall
    if miss is not None:
        able = f"start {miss.started:.0f} of the {miss.due:.0f} that are due in {miss.seconds:.0f} s"
        parts.append(f"the {signals.fleet.workers} there are {able}")
    parts.append(f"{rules['deadlines']} keep every deadline")
    if rule != "deadlines":
        parts.append(f"{rules[rule]} for {REASONS[rule]}")
    return "; ".join(parts)
