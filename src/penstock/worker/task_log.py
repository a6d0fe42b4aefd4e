"""What the records say that handlers log: which task they belong to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.model import Task

NAMES = ("queue", "kind", "task", "attempt")
# The queue, and the task or tasks, whose handler runs here. A thread and a coroutine has a value of its own, and what a
# handler starts by asyncio inherits it.
RUNNING: ContextVar[tuple[str, Task | Sequence[Task]] | None] = ContextVar("penstock_task", default=None)


@contextmanager
def restored() -> Iterator[None]:
    """Lets the records of the caller belong to the same task after the block as before it."""
    token = RUNNING.set(RUNNING.get())
    try:
        yield
    finally:
        RUNNING.reset(token)


class TaskLogFilter(logging.Filter):
    """Adds `queue`, `kind`, `task` (its id) and `attempt` to every record; they are None outside of a handler. A batch
    has only the queue and the kind. What a record has already is kept."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the facts, and keeps the record."""
        for name, value in zip(NAMES, facts_of_running(), strict=True):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def facts_of_running() -> tuple[str | None, str | None, int | None, int | None]:
    """Returns queue, kind, id and attempt of the task whose handler runs here."""
    running = RUNNING.get()
    if running is None:
        return None, None, None, None
    queue, work = running
    if isinstance(work, Task):
        return queue, work.kind, work.id, work.attempt
    return queue, work[0].kind, None, None


FILTER = TaskLogFilter()


def add_to_handlers() -> None:
    """Adds the facts to the records of all handlers of logging that the application has set up by now, and of the one
    that logging uses if there is none."""
    for handler in application_handlers():
        handler.addFilter(FILTER)
    if logging.lastResort is not None:
        logging.lastResort.addFilter(FILTER)


def application_handlers() -> Iterator[logging.Handler]:
    """Yields the handlers of the root logger and of all others but ours."""
    yield from logging.root.handlers
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger) and name.partition(".")[0] != "penstock":
            yield from logger.handlers
