"""Restores our errors from Spark's text. Spark keeps only the text of a traceback; the hint is part of that text."""

from __future__ import annotations

import re

from penstock import errors

ERROR_LINE = re.compile(r"penstock\.errors\.(\w+): (.*)(?:\n\s*Hint: (.*))?")


def parse_error(said: str) -> errors.PenstockError | None:
    """Returns the PenstockError that a task or the planner raised, from the text of Spark's error. None: there is
    none."""
    for name, message, hint in reversed(ERROR_LINE.findall(said)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError) and name != "PartialPush":
            return kind(message, hint=hint or None)
    return None
