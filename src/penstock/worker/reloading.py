"""`penstock work --dev`: which files of the application are loaded, and whether one of them has changed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

INTERVAL = 0.5  # seconds between two checks
Stamp = tuple[int, ...]  # time of the last change, in nanoseconds, and size


class Files:
    """Some files, with their state when they were first seen."""

    def __init__(self, stamps: Mapping[str, Sequence[int] | None] | None = None) -> None:
        self.stamps = {path: None if known is None else (*known,) for path, known in (stamps or {}).items()}

    def add(self, paths: Iterable[str]) -> None:
        """Adds files with their present state."""
        for path in paths:
            if path not in self.stamps:
                self.stamps[path] = stamp(path)

    def find_changed(self) -> str | None:
        """Returns a file that has changed, or None."""
        return next((path for path, known in self.stamps.items() if stamp(path) != known), None)


def stamp(path: str) -> Stamp | None:
    """Returns the state of a file, or None if it does not exist, which may mean that an editor is replacing it."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def loaded_files() -> list[str]:
    """Returns the imported .py files below the working directory, except those of installed packages."""
    found = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return [path for path in found if path and is_applications(path)]


def files_in(error: BaseException | None) -> list[str]:
    """Returns the files that a failed import went through, including the one that could not be read."""
    found: list[str] = []
    while error is not None:
        found += [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        found += [error.filename] if isinstance(error, SyntaxError) and error.filename else []
        error = error.__cause__ or error.__context__
    return [path for path in dict.fromkeys(found) if is_applications(path)]


def is_applications(path: str) -> bool:
    """Returns whether a file belongs to the application and not to an installed package."""
    file, home = Path(path), Path.cwd()
    if file.suffix != ".py" or not file.is_absolute() or not file.is_relative_to(home):
        return False
    return not any(part == "site-packages" or part.startswith(".") for part in file.relative_to(home).parts)
