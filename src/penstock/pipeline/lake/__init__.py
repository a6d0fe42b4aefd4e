"""The lake: its log, its files and its tables."""

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.state import File, Scope, State

__all__ = ["File", "Lake", "Scope", "State"]
