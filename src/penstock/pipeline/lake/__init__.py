"""The lake: its log, its files and its tables."""

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.schemas import LakeTable
from penstock.pipeline.lake.state import File, Files, LakeState, Scope

__all__ = ["File", "Files", "Lake", "LakeState", "LakeTable", "Scope"]
