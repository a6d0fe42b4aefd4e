"""The options of a scaler, as a user gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from penstock.model import Duration
from penstock.scaler.policy.decision import Policy


class ScalerOptions(TypedDict, total=False):
    """The options of a scaler; `penstock scale run --help` describes each of them."""

    policy: Policy | str
    interval: Duration
    min_workers: int
    max_workers: int
    concurrency: int
    sla: Duration | None
    start_latency: Duration
    max_memory: int | str | None
    max_connections: int | None
    command: str | None
    advise: bool
    standby: bool
    once: bool
    dry_run: bool
    alert_webhook: Sequence[str]
    alert_command: Sequence[str]
    alert_at: float
    grace: Duration
