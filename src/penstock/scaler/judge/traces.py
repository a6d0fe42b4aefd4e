"""Traces of arrivals: recorded ones, and synthetic ones that are made from a seed."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import ValidationError
from penstock.scaler.judge.recorded import load
from penstock.scaler.judge.synthetic import SYNTHETIC, named, unknown_trace
from penstock.scaler.judge.trace import HOUR, Trace

__all__ = ["SYNTHETIC", "Trace", "find", "load", "named"]

NAME_LIKE = re.compile(r"[\w-]{1,40}")


def find(
    text: str,
    *,
    seed: int = 0,
    service: float = 2.0,
    cv: float = 1.0,
    start: float | str | None = None,
    duration: float | None = None,
    tasks: int | None = None,
    speed: float = 1.0,
) -> Trace:
    """Returns a trace by the name of a synthetic one, or by the path of a file."""
    if text not in SYNTHETIC:
        if NAME_LIKE.fullmatch(text) and not Path(text).exists():
            raise unknown_trace(text)
        return load(text, seed=seed, service=service, cv=cv, start=start, duration=duration, tasks=tasks, speed=speed)
    for field, value, usual in (("start", start, None), ("speed", speed, 1.0)):
        if value != usual:
            raise ValidationError(f"{field}: {text} is synthetic; only a recording has a {field}", field=field)
    hours = 6 * HOUR if duration is None else duration
    return named(text, seed=seed, service=service, cv=cv, duration=hours, tasks=100_000 if tasks is None else tasks)
