"""The outcomes of tasks, for a settle."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from typing import NamedTuple

from penstock.model.basics import Duration, Json

# The outcomes that a handler makes inside its transaction() block, where it may not return one. None means that there
# is no such block.
made_inside: ContextVar[list[Outcome] | None] = ContextVar("made_inside", default=None)


class Outcome(NamedTuple):
    """The outcome of one task, for a settle. Use its five class methods to make one."""

    word: str
    due: datetime | None = None
    delay: Duration | None = None
    payload: Json | None = None
    error: str | None = None
    error_class: str | None = None

    @classmethod
    def done(cls) -> Outcome:
        """The task succeeded."""
        return DONE

    @classmethod
    def again(
        cls, due: datetime | None = None, *, delay: Duration | None = None, payload: Json | None = None
    ) -> Outcome:
        """The task succeeded and should run again: at `due`, after `delay`, or at once."""
        return note_made(cls("again", due=due, delay=delay, payload=payload))

    @classmethod
    def failed(
        cls, error: str | BaseException, *, delay: Duration | None = None, error_class: str | None = None
    ) -> Outcome:
        """The task failed. Without a delay, the retry strategy of its kind or queue decides when it is tried again."""
        if isinstance(error, BaseException):
            error, error_class = str(error), error_class or type(error).__name__
        return note_made(cls("failed", delay=delay, error=error, error_class=error_class))

    @classmethod
    def dead(cls, reason: str, *, error_class: str | None = None) -> Outcome:
        """The task failed for good, and is not tried again."""
        return note_made(cls("dead", error=reason, error_class=error_class))

    @classmethod
    def release(cls, *, delay: Duration | None = None, error_class: str | None = None) -> Outcome:
        """The task goes back as it was, without counting an attempt, and waits for `delay` if one is given."""
        return note_made(cls("release", delay=delay, error_class=error_class))


DONE = Outcome("done")


def note_made(outcome: Outcome) -> Outcome:
    """Tells the transaction() block in which an outcome is made about it."""
    made = made_inside.get()
    if made is not None:
        made.append(outcome)
    return outcome
