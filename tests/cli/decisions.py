"""Decisions of a scaler that the tests store themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock import Penstock
from penstock.client import scaling

LEASE = "30s"


def store_decision(app: Penstock, queue: str = "work", holder: str = "a scaler", **more: Any) -> None:
    """Stores a decision, as the loop of the scaler does."""
    held = scaling.hold_scaling(app._database, [queue], holder=holder, policy="deadline", lease=LEASE)
    usual = {
        "queue": queue,
        "epoch": held[queue].epoch,
        "policy": "deadline",
        "workers": 3,
        "actual": 1,
        "wanted": 3,
        "urgency": "WARNING",
        "bound_by": "deadlines",
        "reason": "3: 500 waiting, the oldest for 50 of 60 s; 3 keep every deadline",
        "time_to_breach": 10.0,
        "predicted_breach": 12.5,
        "inputs": {"pending": 500, "service": 0.25, "odd": "\x1b[31mred"},
        "rules": {"deadlines": 3, "steady": 1.5},
        "memory": {"needs": []},
    }
    scaling.decide(app._database, [usual | more], holder=holder, lease=LEASE)


@contextmanager
def as_reader(sql: psycopg.Connection) -> Iterator[None]:
    """Runs the block as the role penstock_reader."""
    sql.execute("set role penstock_reader")
    try:
        yield
    finally:
        sql.execute("reset role")
