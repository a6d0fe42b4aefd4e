"""Metrics: what a monitoring system reads about a database."""

from __future__ import annotations

from penstock.client.database_async import AsyncDatabase
from penstock.client.statements import metrics as sql
from penstock.model import MetricsSnapshot


async def metrics(database: AsyncDatabase) -> MetricsSnapshot:
    """Returns the state of the database for metrics, in one snapshot and one round trip."""
    return sql.read_metrics(await database.value(sql.METRICS))
