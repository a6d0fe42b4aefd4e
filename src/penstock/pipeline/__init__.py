"""The pipeline: it writes history to a lake and renders a report.

Bronze has the rows as in PostgreSQL, silver has one row per attempt, gold has what reports and profiles need.
`penstock.pipeline.run.run` runs the stages; `penstock.pipeline.backtest.backtest` runs a backtest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.spark import require_pyspark

if TYPE_CHECKING:
    from penstock.pipeline.backtest import (
        Answer,
        Contender,
        Coverage,
        Promise,
        Question,
        Recording,
        Verdict,
        contenders,
    )
    from penstock.pipeline.lake import File, Files, Lake, LakeState, LakeTable, Scope
    from penstock.pipeline.learn.arrivals import from_lake
    from penstock.pipeline.learn.evidence import Cell, Evidence, Fingerprint, Plans, find_evidence
    from penstock.pipeline.learn.retry_advice import Advice, Chance, Prospect, RetryPlan
    from penstock.pipeline.report import Report, make_report
    from penstock.pipeline.report.figures import (
        Breach,
        ErrorFigures,
        Figures,
        KindFigures,
        PointFigures,
        QueueFigures,
        QueueSummary,
        TryFigures,
    )
    from penstock.pipeline.run import Stage, StageOutcome
    from penstock.pipeline.stages.rebase import rebase
    from penstock.pipeline.stages.reconcile import Difference, Reconciled, reconcile
    from penstock.pipeline.stages.release import Released, release
    from penstock.pipeline.work import Work, working

__all__ = [
    "Advice",
    "Answer",
    "Breach",
    "Cell",
    "Chance",
    "Contender",
    "Coverage",
    "Difference",
    "ErrorFigures",
    "Evidence",
    "Figures",
    "File",
    "Files",
    "Fingerprint",
    "KindFigures",
    "Lake",
    "LakeState",
    "LakeTable",
    "Plans",
    "PointFigures",
    "Promise",
    "Prospect",
    "Question",
    "QueueFigures",
    "QueueSummary",
    "Reconciled",
    "Recording",
    "Released",
    "Report",
    "RetryPlan",
    "Scope",
    "Stage",
    "StageOutcome",
    "TryFigures",
    "Verdict",
    "Work",
    "contenders",
    "find_evidence",
    "from_lake",
    "make_report",
    "rebase",
    "reconcile",
    "release",
    "working",
]

# The module of each name. It is imported on first use: Spark is an extra, and takes long to import.
HOMES = {
    "penstock.pipeline.backtest": (
        "Answer",
        "Contender",
        "Coverage",
        "Promise",
        "Question",
        "Recording",
        "Verdict",
        "contenders",
    ),
    "penstock.pipeline.lake": (
        "File",
        "Files",
        "Lake",
        "LakeState",
        "LakeTable",
        "Scope",
    ),
    "penstock.pipeline.learn.arrivals": ("from_lake",),
    "penstock.pipeline.learn.evidence": (
        "Cell",
        "Evidence",
        "Fingerprint",
        "Plans",
        "find_evidence",
    ),
    "penstock.pipeline.learn.retry_advice": (
        "Advice",
        "Chance",
        "Prospect",
        "RetryPlan",
    ),
    "penstock.pipeline.report": (
        "Report",
        "make_report",
    ),
    "penstock.pipeline.report.figures": (
        "Breach",
        "ErrorFigures",
        "Figures",
        "KindFigures",
        "PointFigures",
        "QueueFigures",
        "QueueSummary",
        "TryFigures",
    ),
    "penstock.pipeline.run": (
        "StageOutcome",
        "Stage",
    ),
    "penstock.pipeline.stages.rebase": ("rebase",),
    "penstock.pipeline.stages.reconcile": (
        "Difference",
        "Reconciled",
        "reconcile",
    ),
    "penstock.pipeline.stages.release": (
        "Released",
        "release",
    ),
    "penstock.pipeline.work": (
        "Work",
        "working",
    ),
}
MODULES = {name: module for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_pyspark()
    return getattr(import_module(MODULES[name]), name)
