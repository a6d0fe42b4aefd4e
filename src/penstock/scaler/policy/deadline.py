"""The default policy: the fewest workers that can still start every task in time.

The policy compares the deadlines of waiting, planned and expected tasks with the starts that a fleet can make, in which
new workers count only after they are up (`outlook`). It scales down only after fewer workers would have been enough for
a while, and waits longer the less that saves. There are two minimums: what a steady stream needs, and, where a worker
takes longer to start than tasks may wait, what the last bursts needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.scaler.policy.decision import Decision, Memory, ceiling, conclude
from penstock.scaler.policy.forecast import SLOW, Forecast, forecast, raise_forecast, slots_for
from penstock.scaler.policy.outlook import Outlook
from penstock.scaler.policy.signals import LONGEST, Signals
from penstock.scaler.policy.trial import ScaleUpTrial

BUCKET = 300.0  # seconds for which one peak is remembered
DEFAULT_SERVICE = 0.1  # seconds that a task takes, as long as nothing is known

REASONS = {"steady": "a steady stream", "warm": "bursts as before", "profile": "what this hour usually brings"}

Needs = list[list[float]]  # [moment, workers]: the last moment at which that many were needed, the largest first


@dataclass(frozen=True, slots=True)
class Deadline:
    """Asks for the fewest workers that can still start every task in time. No setting is in tasks or workers, so
    they mean the same for a queue of any size."""

    z: float = 1.0  # standard deviations of arrivals that are covered
    z_service: float = 2.0  # standard deviations of service times that are covered
    rest: float = 1.0  # start latencies for which an unneeded worker stays in any case
    patience: float = 20.0  # seconds for which the whole fleet would be kept to avoid a change of direction
    longest_hold: float = 300.0  # seconds
    recovery: float = 0.5  # share of the SLA within which tasks that cannot be saved are started
    late_share: float = 0.005  # share of a steady stream that may wait longer than the SLA
    remembered: float = 3600.0  # seconds for which a burst raises the minimum
    least_gain: float = 0.1  # share of the expected gain below which more workers are not worth their cost

    @property
    def name(self) -> str:
        """The name of the policy, as `--policy` takes it."""
        return "deadline"

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        """Returns the smallest number of workers that keeps the promise."""
        memory = memory or {}
        if signals.service is None:
            return self._decide_without_service_time(signals, memory)
        coming = forecast(signals.samples)
        usual, doubt = apply_profile(signals, coming)
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
        rules["hold"] = wanted = self._lowest_allowed(signals, needs)
        text = explain(signals, outlook, usual, rules, rule) + doubt
        if wanted > needed:
            rule, text = "hold", f"{text}; {wanted} stay until fewer have been enough for longer"
        trial = ScaleUpTrial.after(signals, memory.get("trial"), wanted, self.least_gain)
        if trial.useless and wanted > signals.fleet.workers:
            wanted, rule, text = signals.fleet.workers, "no gain", f"{text}; {trial.finding}"
        memory = {"needs": needs, "peaks": peaks, "trial": trial.memory}
        return conclude(signals, wanted, rule, rules, text, memory=memory)

    def _steady(self, signals: Signals, coming: Forecast) -> int:
        """Returns the workers that a steady stream of this rate needs."""
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
        """Returns, for every five minutes of the last hour, the most workers that a burst would have needed in
        advance."""
        kept = [[at, need] for at, need in memory.get("peaks", []) if at > signals.now - self.remembered]
        bucket = signals.now // BUCKET * BUCKET
        if kept and kept[-1][0] == bucket:
            kept[-1][1] = max(kept[-1][1], warm)
        elif warm > 0:
            kept.append([bucket, warm])
        return kept

    def _warm(self, signals: Signals, steady: int) -> float:
        """Returns how many workers must be up before such a burst, where a new worker is up only after tasks are late.
        They start what would be late before new workers are up. Tasks that arrive meanwhile may wait for one SLA more,
        so these are fewer than the stream needs."""
        limits, late = signals.limits, signals.latency + signals.limits.interval
        if late < limits.sla or signals.stale or signals.now - signals.samples[0].at < SLOW:
            return 0.0  # a short measurement would be remembered for an hour
        return steady * late / (late + limits.sla)

    def _lowest_allowed(self, signals: Signals, needs: Needs) -> int:
        """Returns the fewest workers to which it may scale down now. They must have been enough for a time that is
        shorter the more they save: a worker that is stopped and wanted again costs a start."""
        fleet, newest = signals.fleet.workers, len(needs) - 1
        for index in range(newest, 0, -1):
            fewer, last_time = int(needs[index][1]), needs[index - 1][0]
            if fewer >= fleet or signals.now - last_time >= self._hold(signals, fleet, fewer):
                return fewer
        return int(needs[0][1])

    def _hold(self, signals: Signals, fleet: int, fewer: int) -> float:
        """Returns the seconds for which `fewer` workers must have been enough."""
        return min(self.longest_hold, self.rest * signals.latency + self.patience * fleet / (fleet - fewer))

    def _decide_without_service_time(self, signals: Signals, memory: Memory) -> Decision:
        """Decides while the service time is unknown. It assumes that tasks take as long as the running ones have
        run. The fleet at most doubles at a time, up to four times within one start latency."""
        fleet, since = signals.fleet.workers, memory.get("doubled", -1e18)
        ready = signals.now - since >= signals.latency / 4 - 1e-9
        most = max(1, 2 * fleet) if ready else fleet
        least = max(1, fleet) if signals.pending + signals.active else 0
        # Between two doublings, and for the first one, the outlook makes no difference.
        wanted = most if least >= most else max(least, self._assumed_outlook(signals).fewest_of(most))
        since = signals.now if wanted > fleet else since
        waits = f"{signals.pending} waiting, {signals.active} running"
        text = f"{waits}, {explain_missing_run_time(signals)}: at most twice as many"
        return conclude(signals, wanted, "unknown", {"unknown": wanted}, text, memory={**memory, "doubled": since})

    def _assumed_outlook(self, signals: Signals) -> Outlook:
        guess = replace(signals, service=min(LONGEST, max(DEFAULT_SERVICE, self._seconds_so_far(signals))))
        return Outlook(guess, forecast(signals.samples), z=0.0, z_service=0.0, recovery=self.recovery)

    @staticmethod
    def _seconds_so_far(signals: Signals) -> float:
        """Returns the seconds that slots have worked without a result. If the run times of tasks are not known, the
        age of the oldest waiting task is taken instead."""
        busy = signals.active >= signals.fleet.ready * signals.limits.slots
        return sum(signals.running) or (signals.oldest_age if signals.active and busy else 0.0)


def explain_missing_run_time(signals: Signals) -> str:
    """Explains that no run time is known, and how many attempts have ended nevertheless."""
    if not signals.ended:
        return "no run time measured yet"
    seen = signals.latest is not None and signals.latest.finished > 0
    return f"{signals.ended:,} finished, none {'lately' if seen else 'since this scaler started'}"


def apply_profile(signals: Signals, coming: Forecast) -> tuple[Forecast, str]:
    """Raises the forecast to what the profile expects of this hour. If the profile is not used, the text says why."""
    profile = signals.profile
    if profile is None:
        return coming, ""
    if not profile.fresh(signals.now):
        return coming, f"; the profile is {profile.age(signals.now) / 86_400:.0f} days old and was not used"
    usual = raise_forecast(coming, profile, signals.samples, signals.latency + signals.limits.interval)
    return (coming, "; the profile does not know this hour") if usual is None else (usual, "")


def remember(needs: Needs, now: float, needed: int, longest: float) -> Needs:
    """Adds the present need, and drops earlier ones that are not larger."""
    return [*([at, most] for at, most in needs if at >= now - longest and most > needed), [now, float(needed)]]


def explain(signals: Signals, outlook: Outlook, coming: Forecast, rules: dict[str, int], rule: str) -> str:
    """Returns the reason of a decision, as a sentence."""
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
        parts.append(f"the present {signals.fleet.workers} can {able}")
    parts.append(f"{rules['deadlines']} keep every deadline")
    if rule != "deadlines":
        parts.append(f"{rules[rule]} for {REASONS[rule]}")
    return "; ".join(parts)
