"""The state of a lake, as its log says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import Conflict, SchemaVersionError
from penstock.model import Horizon

FORMAT = 2  # 1 had horizons without a branch
RESTORE = "Restore it from a backup, or begin a new lake in another directory."


@dataclass(frozen=True, slots=True)
class File:
    """A file of a table. `path` is relative to the lake's directory."""

    path: str
    rows: int
    bytes: int
    digest: str


Files = Mapping[str, tuple[File, ...]]
"""The files of a table by day, as 2026-11-15."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the lake contains, from its beginning on: these queues (none: all), finished at or after `since`."""

    queues: tuple[str, ...] = ()
    since: str | None = None


@dataclass(frozen=True, slots=True)
class LakeState:
    """The state of a lake.

    `passed`: the lake has history and samples up to that horizon. `began`: the horizon when the lake began. `made`: the
    signature of what each day of a layer was made of, so that we know when it must be made again. `reach`: for each day
    of silver, the days that its attempts concern.
    """

    id: str
    system: str
    database: int
    scope: Scope = Scope()
    number: int = 0
    began: Horizon | None = None
    passed: Horizon | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, Files] = field(default_factory=dict)
    made: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reach: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def files(self, table: str, days: Collection[str] | None = None) -> list[File]:
        """Returns the files of a table, of all days or of some."""
        there = self.tables.get(table, {})
        return [file for day in sorted(there) if days is None or day in days for file in there[day]]

    def days(self, table: str) -> list[str]:
        """Returns the days of a table that have rows."""
        return sorted(day for day, files in self.tables.get(table, {}).items() if files)

    def rows(self, table: str, days: Collection[str] | None = None) -> int:
        """Returns the number of rows of a table, of all days or of some."""
        return sum(file.rows for file in self.files(table, days))

    @property
    def reader(self) -> str:
        """The name of the lake among the readers of history."""
        return f"lake {self.id}"


def parse_state(found: Any, path: Path) -> LakeState:
    """Returns the state that was read from a log. Raises an error if the log is damaged or of another format."""
    try:
        form = found.pop("format")
        if form > FORMAT:
            raise make_newer_error(f"{path} is of format {form}, this Penstock knows {FORMAT}")
        if form < FORMAT:
            hint = "Begin a new lake in another directory."
            raise SchemaVersionError(f"lake: {path} is of format {form}, this Penstock reads {FORMAT}", hint=hint)
        state = LakeState(**found)
        tables = {
            name: {day: tuple(File(**file) for file in files) for day, files in days.items()}
            for name, days in found["tables"].items()
        }
        return replace(
            state,
            scope=Scope(tuple(found["scope"]["queues"]), found["scope"]["since"]),
            began=parse_horizon(state.began),
            passed=parse_horizon(state.passed),
            tables=tables,
            reach={day: tuple(days) for day, days in state.reach.items()},
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise Conflict(f"lake: {path} is damaged: {type(error).__name__}: {error}", hint=RESTORE) from None


def make_newer_error(said: str) -> SchemaVersionError:
    return SchemaVersionError(f"lake: {said}", hint="Upgrade Penstock.")


def parse_horizon(found: Any) -> Horizon | None:
    return None if found is None else Horizon(*found)
