"""What to do about an error, where Spark's users see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def explained() -> Iterator[None]:
    """What Spark shows of an error is its traceback: the hint is written below it."""
    try:
        yield
    except PenstockError as error:
        if error.hint and error.hint not in getattr(error, "__notes__", ()):
            error.add_note(error.hint)
        raise
