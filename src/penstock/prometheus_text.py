"""The text format of Prometheus, in which metrics are served. Pure.

A value that is not known has no line: a query then finds nothing, while a NaN would make every sum a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float | None]]
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Histogram(NamedTuple):
    """The counts of a histogram: `counts` has one number for each edge, and one for all that is above the last."""

    labels: Labels
    edges: Sequence[float]
    counts: Sequence[int]
    total: float  # the sum of all values


def format_family(name: str, kind: Literal["counter", "gauge"], about: str, samples: Samples) -> str:
    """Formats a metric with its samples. Without a known value there is no line at all."""
    lines = [f"{name}{format_labels(labels)} {format_value(value)}" for labels, value in samples if value is not None]
    return "\n".join([*head(name, kind, about), *lines, ""]) if lines else ""


def format_histograms(name: str, about: str, histograms: Iterable[Histogram]) -> str:
    """Formats a metric that consists of histograms."""
    lines = [line for one in histograms for line in histogram_lines(name, one)]
    return "\n".join([*head(name, "histogram", about), *lines, ""]) if lines else ""


def histogram_lines(name: str, one: Histogram) -> Iterable[str]:
    """Yields the lines of one histogram, in which each bucket contains the smaller ones."""
    below = 0
    for edge, count in zip([*one.edges, math.inf], one.counts, strict=True):
        below += count
        yield f"{name}_bucket{format_labels({**one.labels, 'le': format_value(edge)})} {below}"
    labels = format_labels(one.labels)
    yield f"{name}_sum{labels} {format_value(one.total)}"
    yield f"{name}_count{labels} {below}"


def head(name: str, kind: str, about: str) -> list[str]:
    """Returns the lines that describe a metric."""
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def format_labels(labels: Labels) -> str:
    """Formats labels: `{queue="mail",kind="welcome"}`."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items()) + "}"


def format_value(value: float) -> str:
    """Formats a number. Whole numbers have no fraction."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) else repr(round(value, 9))
