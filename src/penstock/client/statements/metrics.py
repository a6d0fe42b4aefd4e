"""Metrics: the statement, and how its answer is read."""

from __future__ import annotations

import orjson

from penstock.client.statements.scaling import board_of
from penstock.model import MetricsSnapshot

METRICS = "select penstock.metrics()::text"


def read_metrics(raw: str) -> MetricsSnapshot:
    """Reads the answer of METRICS."""
    found = orjson.loads(raw)
    return MetricsSnapshot(**{**found, "board": board_of(found["board"])})
