"""Metrics of a database for monitoring systems: as text for Prometheus, over HTTP, with alerts and a dashboard."""

from __future__ import annotations

from penstock.metrics.render import render_metrics
from penstock.metrics.source import MetricsSource

__all__ = ["MetricsSource", "render_metrics"]
