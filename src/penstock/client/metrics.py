# Made from src/penstock/client/metrics_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Metrics: what a monitoring system reads about a database."""

from __future__ import annotations

from penstock.client.database import Database
from penstock.client.statements import metrics as sql
from penstock.model import MetricsSnapshot


def metrics(database: Database) -> MetricsSnapshot:
    """Returns the state of the database for metrics, in one snapshot and one round trip."""
    return sql.read_metrics(database.value(sql.METRICS))
