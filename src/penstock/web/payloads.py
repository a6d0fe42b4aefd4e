"""Shows a payload as a tree with exact numbers: JSON numbers of PostgreSQL have more digits than a float. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.errors import printable_lines
from penstock.web.redact import Hidden

MAX_LEAVES = 2000
MAX_TEXT = 4000  # characters of one value
MAX_DEPTH = 12  # steps of indentation; deeper values have no more


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Leaf(NamedTuple):
    """One line of a tree."""

    depth: int
    key: str
    value: str
    kind: str  # text, number, word, hidden, or open: a container whose lines follow
    cut: int = 0  # characters that are not shown


def read_payload(raw: str) -> Any:
    """Reads JSON with its numbers as they are written."""
    try:
        return json.loads(raw, parse_float=Number, parse_int=Number, parse_constant=Number)
    except RecursionError:
        return raw  # it is nested deeper than Python can read


def flatten(payload: Any) -> list[Leaf]:
    """Returns the lines of a tree, at most MAX_LEAVES of them."""
    lines: list[Leaf] = []
    rest = [iter([("", payload, 0)])]
    while rest and len(lines) <= MAX_LEAVES:
        key, value, depth = next(rest[-1], (None, None, 0))
        if key is None:
            rest.pop()
            continue
        lines.append(make_leaf(key, value, min(depth, MAX_DEPTH)))
        if isinstance(value, (dict, list)):
            rest.append(iter_children(value, depth + 1))
    return lines[1:] if isinstance(payload, dict) and payload else lines


def iter_children(value: dict[str, Any] | list[Any], depth: int) -> Iterator[tuple[str, Any, int]]:
    """Yields the values inside a container with their keys or numbers."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield str(key), inner, depth


def make_leaf(key: str, value: Any, depth: int) -> Leaf:
    """Returns the line of a value."""
    if isinstance(value, dict):
        return Leaf(depth, key, "{}" if not value else f"{len(value)} fields" if len(value) > 1 else "1 field", "open")
    if isinstance(value, list):
        return Leaf(depth, key, "[]" if not value else f"{len(value)} items" if len(value) > 1 else "1 item", "open")
    if isinstance(value, Hidden):
        return Leaf(depth, key, "hidden", "hidden")
    if isinstance(value, Number):
        return Leaf(depth, key, value[:MAX_TEXT], "number", max(0, len(value) - MAX_TEXT))
    if isinstance(value, str):
        return Leaf(depth, key, printable_lines(value[:MAX_TEXT]), "text", max(0, len(value) - MAX_TEXT))
    return Leaf(depth, key, {None: "null", True: "true", False: "false"}[value], "word")
