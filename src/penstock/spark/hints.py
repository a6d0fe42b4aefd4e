"""Errors on their way through Spark, which keeps nothing of them but the text of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import errors

SAID = re.compile(r"penstock\.errors\.(\w+): (.*)(?:\n\s*Hint: (.*))?")


@contextmanager
def hinted() -> Iterator[None]:
    """What to do next is part of that text too."""
    try:
        yield
    except errors.PenstockError as error:
        if error.hint:
            error.add_note(f"Hint: {error.hint}")
        raise


def as_ours(said: str) -> errors.PenstockError | None:
    """The error of ours that a task or the planner raised, out of what Spark made of it."""
    for name, message, hint in reversed(SAID.findall(said)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError) and name != "PartialPush":
            return kind(message, hint=hint or None)
    return None
