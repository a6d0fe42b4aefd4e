"""Hides values of payloads before they leave the server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from penstock.errors import ValidationError, shown

HIDDEN = "hidden"
Hide = Mapping[str, Sequence[str]]
"""The paths to hide by kind; the kind `*` stands for all kinds."""


class Hidden(str):
    """Stands for a value that is not shown."""

    __slots__ = ()


def check_hide(hide: Hide) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Splits paths such as `card.number` and `*.token` into their steps."""
    for kind, paths in hide.items():
        for path in [paths] if isinstance(paths, str) else paths:
            if isinstance(paths, str) or not isinstance(path, str) or not all(path.split(".")):
                said = f"hide: {shown(paths)} of kind {shown(kind)} is not a list of paths such as card.number"
                raise ValidationError(said, field="hide")
    return {kind: tuple(tuple(path.split(".")) for path in paths) for kind, paths in hide.items()}


class Redactor:
    """Knows which values of which kinds are hidden."""

    def __init__(self, hide: Hide | None = None) -> None:
        self._hide = check_hide(hide or {})

    def redact(self, kind: str, payload: Any) -> Any:
        """Returns the payload of a task of this kind with its hidden values replaced."""
        patterns = (*self._hide.get("*", ()), *(self._hide.get(kind, ()) if kind != "*" else ()))
        try:
            return hide_values(payload, (), patterns) if patterns else payload
        except RecursionError:  # it is nested too deep to look into
            return Hidden(HIDDEN)


def hide_values(value: Any, path: tuple[str, ...], patterns: tuple[tuple[str, ...], ...]) -> Any:
    """Replaces every value whose path matches a pattern. Elements of a list have the path of the list."""
    if isinstance(value, dict):
        return {
            key: Hidden(HIDDEN)
            if any(matches((*path, key), one) for one in patterns)
            else hide_values(inner, (*path, key), patterns)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [hide_values(inner, path, patterns) for inner in value]
    return value


@lru_cache(maxsize=4096)
def matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Returns whether a path matches: `*` stands for any number of steps, also none."""
    if not pattern:
        return not path
    if pattern[0] == "*":
        return matches(path, pattern[1:]) or bool(path and matches(path[1:], pattern))
    return bool(path) and path[0] == pattern[0] and matches(path[1:], pattern[1:])
