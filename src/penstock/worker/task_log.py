"""What the records say that handlers log: which task they belong to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.model import Task

NAMES = ("queue", "kind", "task", "attempt")


class Running:
    """The queue, and the task or tasks, whose handler runs."""

    __slots__ = ("queue", "work")

    def __init__(self, queue: str, work: Task | Sequence[Task]) -> None:
        self.queue, self.work = queue, work


# What runs here. A thread and a coroutine has a value of its own, and what a handler starts by asyncio inherits it.
RUNNING: ContextVar[Running | None] = ContextVar("penstock_task", default=None)


def note_running(queue: str, work: Task | Sequence[Task]) -> None:
    """Notes what a handler in this thread runs. It changes what was noted before: to set a context variable for each
    task would take a twelfth of the time of a drain."""
    running = RUNNING.get()
    if running is None:
        RUNNING.set(Running(queue, work))
    else:
        running.queue, running.work = queue, work


def note_running_async(queue: str, work: Task | Sequence[Task]) -> None:
    """Notes what this coroutine runs. It changes nothing that other coroutines have inherited."""
    RUNNING.set(Running(queue, work))


@contextmanager
def restored() -> Iterator[None]:
    """Lets the records of the caller belong to the same task after the block as before it."""
    token = RUNNING.set(None)
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
    work = running.work
    if isinstance(work, Task):
        return running.queue, work.kind, work.id, work.attempt
    return running.queue, work[0].kind, None, None


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
