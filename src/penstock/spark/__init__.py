"""Spark on both ends: DataFrames into queues, queues as streams, drains on executors, history as DataFrames."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.model import Duration, Horizon, OnConflict
    from penstock.spark.api import SparkReport, push
    from penstock.spark.drain import SparkHandler, drain, drain_backlog
    from penstock.spark.history import read_history
    from penstock.spark.options import Pace
    from penstock.spark.outcomes import note_outcomes
    from penstock.spark.session import session

__all__ = [
    "Duration",
    "Horizon",
    "OnConflict",
    "Pace",
    "SparkHandler",
    "SparkReport",
    "drain",
    "drain_backlog",
    "note_outcomes",
    "push",
    "read_history",
    "session",
]

# The module of each name. It is imported on first use: Spark is an extra, and takes long to import.
HOMES = {
    "Duration": "penstock.model",
    "Horizon": "penstock.model",
    "OnConflict": "penstock.model",
    "SparkReport": "penstock.spark.api",
    "push": "penstock.spark.api",
    "SparkHandler": "penstock.spark.drain",
    "drain": "penstock.spark.drain",
    "drain_backlog": "penstock.spark.drain",
    "read_history": "penstock.spark.history",
    "Pace": "penstock.spark.options",
    "note_outcomes": "penstock.spark.outcomes",
    "session": "penstock.spark.session",
}


class Package(ModuleType):
    """This package. Some of its names are modules too: importing such a module must not hide the function of that
    name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package


def installed() -> bool:
    """Returns whether PySpark is installed."""
    return find_spec("pyspark") is not None


def require_pyspark() -> None:
    """Raises ConfigError if PySpark is not installed."""
    if not installed():
        raise ConfigError("PySpark is not installed", hint="pip install 'penstock[spark]'")


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_pyspark()
    return getattr(import_module(HOMES[name]), name)
