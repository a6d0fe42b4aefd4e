"""Writes the standing of queues for `status --watch`, `top` and `why`."""

from __future__ import annotations

from typing import Any

from penstock.cli.terminal.formatting import to_iso
from penstock.formatting import format_age
from penstock.model import GAUGES, QueueStatus
from penstock.scaler.standing import SlaStanding

NO_QUEUES = "no queues; create one: penstock queues create NAME"


def format_breach(one: SlaStanding) -> str:
    """Writes `late by 5s`, `in 12s`, or a dash."""
    left = one.time_to_breach
    if left is None:
        return "–"
    if left <= 0:
        return f"late by {format_age(-left)}"
    return f"in {format_age(left)}"


def format_foreseen(one: SlaStanding) -> str:
    found = one.predicted_breach
    return "–" if found is None else "now" if found <= 0 else f"in {format_age(found)}"


def format_fleet(one: SlaStanding) -> str:
    """Writes how many workers there are, and how many the scaler wants: `3` or `3 of 5`."""
    if one.target is None or one.scaled is None:
        return str(one.workers)
    return f"{one.workers} of {one.target}" + ("" if one.scaled.alive else "?")


def format_rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def status_json(one: QueueStatus) -> dict[str, Any]:
    return {
        "queue": one.queue,
        **{gauge: getattr(one, gauge) for gauge in GAUGES},
        "oldest_pending_age": one.oldest_pending_age,
        "sla": one.sla,
        "paused": one.paused,
        "totals": dict(one.totals),
        "at": to_iso(one.at),
    }
