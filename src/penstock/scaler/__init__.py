"""The scaler: it decides how many workers keep the promises of queues, and starts and stops them.

A policy decides from signals. It does no I/O, so the simulator runs the same policies as production.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.scaler.judge import traces
    from penstock.scaler.judge.bound import Bound, bound
    from penstock.scaler.judge.judge import Case, Score
    from penstock.scaler.judge.simulate import Moment, Result, simulate
    from penstock.scaler.judge.trace import Trace
    from penstock.scaler.policy import policies
    from penstock.scaler.policy.deadline import Deadline
    from penstock.scaler.policy.decision import (
        Decision,
        Memory,
        Policy,
        conclude,
        drain_rate,
        predicted_breach,
        time_to_breach,
        urgency,
    )
    from penstock.scaler.policy.forecast import Profile
    from penstock.scaler.policy.share import Shares, Want, share
    from penstock.scaler.policy.signals import Fleet, Limits, Sample, Signals
    from penstock.scaler.run.options import ScalerOptions
    from penstock.scaler.run.plan import QueueDecision

__all__ = [
    "Bound",
    "Case",
    "Deadline",
    "Decision",
    "Fleet",
    "Limits",
    "Memory",
    "Moment",
    "Policy",
    "Profile",
    "QueueDecision",
    "Result",
    "Sample",
    "ScalerOptions",
    "Score",
    "Shares",
    "Signals",
    "Trace",
    "Want",
    "bound",
    "conclude",
    "drain_rate",
    "policies",
    "predicted_breach",
    "share",
    "simulate",
    "time_to_breach",
    "traces",
    "urgency",
]

_MODULES = {
    "judge": ("traces",),
    "judge.bound": ("Bound", "bound"),
    "judge.judge": ("Case", "Score"),
    "judge.simulate": ("Moment", "Result", "simulate"),
    "judge.trace": ("Trace",),
    "policy": ("policies",),
    "policy.deadline": ("Deadline",),
    "policy.decision": (
        "Decision",
        "Memory",
        "Policy",
        "conclude",
        "drain_rate",
        "predicted_breach",
        "time_to_breach",
        "urgency",
    ),
    "policy.forecast": ("Profile",),
    "policy.share": ("Shares", "Want", "share"),
    "policy.signals": ("Fleet", "Limits", "Sample", "Signals"),
    "run.plan": ("QueueDecision",),
    "run.options": ("ScalerOptions",),
}
_HOMES = {name: f"penstock.scaler.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: a program that runs a scaler does not need the judge."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"{home}.{name}") if name in ("policies", "traces") else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "judge", "policy", "run"]
