"""Runs one task: calls its handler with the arguments from the payload, and turns the result into an outcome.

Whatever a handler does, there is an outcome: no task is ever stuck.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from penstock import validate
from penstock.errors import HandlerMisuse, LeaseLost, ValidationError
from penstock.handlers import Spec
from penstock.handlers.context import AnyContext
from penstock.handlers.outcomes import LOST, judged, shared, stands
from penstock.handlers.tracebacks import SUMMARY, error_text, message_of
from penstock.model import DONE, Outcome, Task
from penstock.worker.logs import facts_of
from penstock.worker.task_log import note_running, note_running_async

LOG = logging.getLogger("penstock.worker")

UNKNOWN_KIND = Outcome.release(delay="60s", error_class="UnknownKind")
EXITS = (SystemExit, KeyboardInterrupt)  # the handler wants to end its process: the attempt has failed
EXIT_CLASSES = tuple(one.__name__ for one in EXITS)
Caught = Callable[[Task, BaseException], None]  # it is told of every error, for `drain_inline`


def run(spec: Spec, task: Task, context: AnyContext | None, caught: Caught | None = None) -> Outcome:
    """Runs a sync handler in the current thread or process."""
    note_running(spec.queue, task)
    try:
        assert spec.arguments is not None
        if context is not None:
            context.keep_traceback = spec.tracebacks
        return judged(spec.function(**spec.arguments.call(task, context)), context)
    except BaseException as error:  # noqa: BLE001 - every error becomes an outcome
        return failed(spec, task, context, error, caught)


def run_quickly(spec: Spec, task: Task) -> Outcome:
    """Runs a sync handler that takes no task or context.

    It costs half as much as `run`, and this cost dominates small tasks.
    """
    note_running(spec.queue, task)
    try:
        assert spec.arguments is not None
        result = spec.function(**spec.arguments.check(task.payload))
        return DONE if result is None else judged(result, None)
    except BaseException as error:  # noqa: BLE001 - every error becomes an outcome
        return failed(spec, task, None, error)


def run_inside(spec: Spec, task: Task) -> Outcome:
    """Runs a quick sync handler inside its middleware."""
    note_running(spec.queue, task)
    try:
        result = spec.function(task, None)
        return DONE if result is DONE else judged(result, None)
    except BaseException as error:  # noqa: BLE001 - every error becomes an outcome
        return failed(spec, task, None, error)


async def run_async(spec: Spec, task: Task, context: AnyContext | None, caught: Caught | None = None) -> Outcome:
    """Runs an async handler. A cancellation of the asyncio task that runs it is raised to the caller."""
    note_running_async(spec.queue, task)
    try:
        assert spec.arguments is not None
        if context is not None:
            context.keep_traceback = spec.tracebacks
        return judged(await spec.function(**spec.arguments.call(task, context)), context)
    except BaseException as error:
        if cancelled(error):
            raise
        return failed(spec, task, context, error, caught)


async def run_quickly_async(spec: Spec, task: Task) -> Outcome:
    """Runs an async handler that takes no task or context."""
    note_running_async(spec.queue, task)
    try:
        assert spec.arguments is not None
        result = await spec.function(**spec.arguments.check(task.payload))
        return DONE if result is None else judged(result, None)
    except (Exception, *EXITS) as error:  # noqa: BLE001 - every error becomes an outcome
        return failed(spec, task, None, error)


def run_batch(spec: Spec, tasks: Sequence[Task], caught: Caught | None = None) -> dict[int, Outcome]:
    """Runs a handler that takes many tasks.

    Its answer has an outcome for each task; its error applies to all of them.
    """
    note_running(spec.queue, tasks)
    try:
        return shared(spec.function([*tasks]), tasks)
    except BaseException as error:  # noqa: BLE001 - every error becomes an outcome
        return {task.id: failed(spec, task, None, error, caught) for task in tasks}


async def run_batch_async(spec: Spec, tasks: Sequence[Task], caught: Caught | None = None) -> dict[int, Outcome]:
    """Runs an async handler that takes many tasks."""
    note_running_async(spec.queue, tasks)
    try:
        return shared(await cast("Callable[..., Awaitable[Any]]", spec.function)([*tasks]), tasks)
    except BaseException as error:
        if cancelled(error):
            raise
        return {task.id: failed(spec, task, None, error, caught) for task in tasks}


def cancelled(error: BaseException) -> bool:
    """Returns whether the asyncio task that runs the handler is cancelled or discarded.

    The cancellation of something that a handler awaits is an ordinary error.
    """
    me = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    return isinstance(error, GeneratorExit) or (me is not None and me.cancelling() > 0)


# --- outcomes ---------------------------------------------------------------------------------------------------------


def failed(
    spec: Spec, task: Task, context: AnyContext | None, error: BaseException, caught: Caught | None = None
) -> Outcome:
    """Returns the outcome of a task whose handler raised an error.

    A handler that raises SystemExit has failed, and its process is replaced. `caught` and the application's own retry
    policy are not told of it.
    """
    if context is not None and context.decided:
        report_late(spec, task, error, caught)
        return stands(context)
    name = type(error).__name__
    if isinstance(error, LeaseLost) and task.id in (*error.refused, *error.revoked):
        return LOST
    exits = isinstance(error, EXITS)
    if caught is not None and not exits:
        caught(task, error)
    text = error_text(error, keep_traceback=spec.tracebacks)
    if spec.policy is None or exits:
        return Outcome.failed(text, error_class=name)
    return by_policy(spec, task, error, text)


def wants_exit(outcome: Outcome) -> bool:
    """Returns whether a handler wanted to end its process."""
    return outcome.error_class in EXIT_CLASSES and outcome.word == "failed"


def report_late(spec: Spec, task: Task, error: BaseException, caught: Caught | None) -> None:
    """Logs an error after transaction(), which can no longer change the outcome."""
    facts = {"task": task.id, "queue": spec.queue, "kind": task.kind, **facts_of(error)}
    if isinstance(error, HandlerMisuse):  # its message is ours, and contains no values
        facts |= {"error": error.message, "hint": error.hint, SUMMARY: None}
    LOG.error("error after the end of the task", extra=facts)
    if caught is not None:
        caught(task, error)


def by_policy(spec: Spec, task: Task, error: BaseException, text: str) -> Outcome:
    """Asks the application's own retry policy.

    An invalid answer is recorded in the error, and the stored strategy is followed.
    """
    assert spec.policy is not None
    name = type(error).__name__
    try:
        asked = spec.policy(error, task.attempt, age(task))
        wait = validate.delay(asked)
    except BaseException as wrong:  # noqa: BLE001 - the policy is the user's code
        said = wrong.bare if isinstance(wrong, ValidationError) else f"{type(wrong).__name__}: {message_of(wrong)}"
        return Outcome.failed(f"{text}\n(retry policy: {said}; the stored strategy is followed)", error_class=name)
    if wait is None:
        return Outcome.dead(f"the retry policy ended: {text}", error_class=name)
    return Outcome.failed(text, delay=wait, error_class=name)


def age(task: Task) -> timedelta:
    """Returns the time that has passed since `task.since`; it is never negative."""
    return max(datetime.now(task.since.tzinfo) - task.since, timedelta())


def timed_out(spec: Spec, task: Task, caught: Caught | None = None) -> Outcome:
    """Returns the outcome of a task that took longer than its timeout."""
    error = TimeoutError(f"timeout: it took longer than {spec.timeout:g} s")
    outcome = failed(spec, task, None, error, caught)
    return outcome._replace(error_class="Timeout")
