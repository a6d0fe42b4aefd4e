"""A custom scaling policy, compared with the default one. A policy turns signals into a decision with its reason.
`conclude` applies the limits, and the guards that every policy obeys.

python examples/policy.py         # needs no database
"""

import math
from dataclasses import dataclass

from penstock.scaler import Decision, Limits, Memory, Policy, Signals, conclude, policies, simulate, traces


@dataclass(frozen=True)
class HalfTheTime:
    """Wants enough workers to start all waiting tasks within half the SLA, plus those that are busy now."""

    share: float = 0.5
    name: str = "half-the-time"

    def decide(self, signals: Signals, memory: Memory = None) -> Decision:
        service = signals.service or 1.0  # the service time is not known yet
        within = self.share * signals.limits.sla
        drain = math.ceil(signals.pending * service / within / signals.limits.slots)
        busy = math.ceil(signals.active / signals.limits.slots)
        text = f"{signals.pending} pending of {service:.1f} s each within {within:g} s, and {busy} are busy"
        return conclude(signals, drain + busy, "half-the-time", {"drain": drain, "busy": busy}, text, memory=memory)


def main() -> None:
    limits = Limits(sla=30, min_workers=1, max_workers=60, start_latency=20)
    trace = traces.find("spikes", duration=2 * 3600, tasks=10_000)
    contenders: list[Policy] = [HalfTheTime(), HalfTheTime(share=0.2, name="a-fifth"), policies.find("deadline")]
    print(f"{'policy':<15} {'late':>7} {'worker-hours':>13} {'starts':>7} {'turns/h':>8}")
    for policy in contenders:
        result = simulate(trace, policy, limits)
        print(
            f"{policy.name:<15} {result.breach_rate:>7.2%} {result.worker_seconds / 3600:>13.1f}"
            f" {result.starts:>7} {result.flips_per_hour:>8.1f}"
        )


if __name__ == "__main__":
    main()
