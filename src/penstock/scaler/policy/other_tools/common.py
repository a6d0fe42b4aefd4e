"""What the policies of other tools have in common: their memory, their cadence, and some measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.scaler.policy.decision import Decision, Memory, ceiling, conclude
from penstock.scaler.policy.signals import Signals, rate_between

ASSUMED_SERVICE = 1.0  # seconds, until it is known; the article assumes one task per second
MAX_VALUE = 1e9  # workers, or tasks per second: no number here becomes infinite
MARGIN = 1e-6  # seconds by which a moment may be early and still count

Notes = dict[str, Any]


def service_time(signals: Signals) -> float:
    return signals.service or ASSUMED_SERVICE


def round_up(value: float) -> int:
    return ceiling(min(value, MAX_VALUE))


def busy_share(signals: Signals) -> float | None:
    """Returns the share of slots that run a task; None: there are no slots. Tasks of stopping workers count too."""
    slots = signals.fleet.ready * signals.limits.slots
    return min(1.0, signals.active / slots) if slots else None


def growth_rate(signals: Signals, counted: str, seconds: float) -> float:
    """Returns the growth of a counter per second; 0 while it is not known."""
    rate = rate_between(signals.samples, counted, seconds)
    return min(rate, MAX_VALUE) if rate is not None and rate > 0 else 0.0


def recall(memory: Memory, name: str) -> Notes:
    """Returns a copy of the memory to write to. The memory of another policy is ignored."""
    return dict(memory) if isinstance(memory, dict) and memory.get("by") == name else {"by": name}


def make_decision(
    signals: Signals, wanted: int, bound_by: str, rules: Mapping[str, float], text: str, *, notes: Notes
) -> Decision:
    """Makes a decision and remembers its target."""
    decision = conclude(signals, wanted, bound_by, rules, text, memory=notes)
    notes["target"] = decision.workers
    return decision


def repeat(signals: Signals, notes: Notes, why: str) -> Decision:
    """Repeats the last decision."""
    target = notes.get("target", signals.fleet.workers)
    return make_decision(signals, target, "held", {"held": target}, f"as before, {why}", notes=notes)


def has_passed(notes: Notes, key: str, now: float, seconds: float) -> bool:
    """Whether the moment is at least this many seconds ago, or never was. A clock that was set back causes no wait."""
    return key not in notes or not 0 <= now - notes[key] < seconds - MARGIN


def repeat_if_early(signals: Signals, notes: Notes, every: float = 0.0) -> Decision | None:
    """Repeats the last decision if it is too early for a new one, or if metrics are stale; None: it is time to
    decide."""
    if signals.stale:
        return repeat(signals, notes, "because there are no new metrics")
    if not has_passed(notes, "at", signals.now, every):
        return repeat(signals, notes, f"because it decides every {every:g} s")
    notes["at"] = signals.now
    return None


def highest_of_window(notes: Notes, now: float, wanted: int, seconds: float) -> int:
    """Returns the highest recommendation of a window, including this one. Recommendations that a later one exceeds are
    dropped, so the first one is the highest."""
    window = [one for one in notes.get("window", ()) if 0 <= now - one[0] < seconds - MARGIN and one[1] > wanted]
    window.append([now, wanted])
    notes["window"] = window
    return int(window[0][1])
