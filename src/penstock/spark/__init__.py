"""Spark on both ends: DataFrames into queues, queues as streams, heavy drains on executors, history as DataFrames."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.spark.api import SparkReport, push
    from penstock.spark.drain import drain, drain_backlog
    from penstock.spark.history import read_history
    from penstock.spark.outcomes import note_outcomes
    from penstock.spark.session import session

__all__ = ["SparkReport", "drain", "drain_backlog", "note_outcomes", "push", "read_history", "session"]

# Where each name is. Loaded when somebody asks: Spark is an extra, and heavy.
HOMES = {
    "SparkReport": "api",
    "push": "api",
    "drain": "drain",
    "drain_backlog": "drain",
    "note_outcomes": "outcomes",
    "read_history": "history",
    "session": "session",
}


class Package(ModuleType):
    """Some of these names are modules too: imported, they would stand before what they are for."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package


def installed() -> bool:
    return find_spec("pyspark") is not None


def needed() -> None:
    if not installed():
        raise ConfigError("PySpark is not installed", hint="pip install 'penstock[spark]'")


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    needed()
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
