"""The policies of other tools, as their documentation describes them, for comparison.

Each policy sees only what its tool sees, and keeps the cadence of the tool: when it is too early for a new decision, it
repeats the last one, and so it does without new metrics. Where a tool needs a service time that is not known yet, it
assumes one second. Where a tool counts workers that run one task, slots are counted here and divided by the slots of a
worker.
"""

from __future__ import annotations

from penstock.errors import ConfigError, shown
from penstock.scaler.policy.decision import Policy
from penstock.scaler.policy.other_tools.article import SeedText
from penstock.scaler.policy.other_tools.cboxdk import Cboxdk
from penstock.scaler.policy.other_tools.flink import Flink
from penstock.scaler.policy.other_tools.kubernetes import NEEDS, HpaBusy, HpaRules, Keda
from penstock.scaler.policy.other_tools.static import Static
from penstock.scaler.policy.other_tools.steps import AwsBacklog, Judoscale, LaravelHorizon

__all__ = [
    "GRIDS",
    "OTHER_TOOLS",
    "AwsBacklog",
    "Cboxdk",
    "Flink",
    "HpaBusy",
    "HpaRules",
    "Judoscale",
    "Keda",
    "LaravelHorizon",
    "SeedText",
    "Static",
    "grid",
]

HOLDS = (HpaRules(), HpaRules(hold=60.0))
GRIDS: dict[str, list[Policy]] = {
    "seed-text": [SeedText(warning=warning, ahead=ahead) for warning in (0.8, 0.65, 0.5) for ahead in (6.0, 12.0)],
    "cboxdk": [
        *(Cboxdk(cooldown=cooldown, threshold=threshold) for cooldown in (60.0, 20.0) for threshold in (0.5, 0.3)),
        *(Cboxdk(cooldown=cooldown, forecast=False) for cooldown in (60.0, 20.0)),
        Cboxdk(hold_up=False),
        Cboxdk(hold_up=False, cooldown=20.0, threshold=0.3),
    ],
    **{name: [Keda(name, target, rules) for target in (1.0, 0.5, 2.0) for rules in HOLDS] for name in NEEDS},
    "hpa-busy": [
        *(HpaBusy(target=target, rules=rules) for target in (0.7, 0.5, 0.85) for rules in HOLDS),
        *(HpaBusy(idle_starts=True, rules=rules) for rules in HOLDS),
    ],
    "aws-backlog": [
        *(AwsBacklog(out_after=above, in_after=below) for above in (3, 1) for below in (15, 5)),
        *(AwsBacklog(target=0.5, out_after=above) for above in (3, 1)),
        *(AwsBacklog(most_in=share) for share in (0.0, 1.0)),  # one at a time; all at once
    ],
    "horizon": [LaravelHorizon(shift=shift, balance=balance) for balance in (False, True) for shift in (1, 2, 5, 10)],
    "judoscale": [
        *(Judoscale(jump=jump, down_after=after) for jump in (2, 5, 10) for after in (600.0, 120.0)),
        *(Judoscale(jump=jump, upper=0.2, lower=0.1, down_after=120.0) for jump in (2, 10)),
    ],
    "flink": [Flink(utilisation=share, hold=hold) for share in (0.7, 0.6, 0.9) for hold in (60.0, 300.0)],
    "static": [Static(workers) for workers in (10, 1, 2, 5, 20, 50, 100, 200)],
}
OTHER_TOOLS: dict[str, Policy] = {name: settings[0] for name, settings in GRIDS.items()}  # as documented


def grid(name: str) -> list[Policy]:
    """Returns the settings with which a policy is compared, its documented ones first."""
    if name not in GRIDS:
        raise ConfigError(f"policy: {shown(name)} is not one of {', '.join(GRIDS)}")
    return list(GRIDS[name])
