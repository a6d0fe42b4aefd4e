"""One task, step by step: its handler is called with what its payload says, and what it does becomes an outcome.
Whatever a handler does, an outcome comes of it: no task is ever stuck."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from penstock import validate
from penstock.errors import LeaseLost, PayloadError, ValidationError, shown
from penstock.handlers import Spec
from penstock.handlers.context import AnyContext
from penstock.model import DONE, Outcome, Task

UNKNOWN_KIND = Outcome.release(delay="60s", error_class="UnknownKind")
EXITS = ("SystemExit", "KeyboardInterrupt")  # a handler that ends its process: put back, and the process is replaced
SETTLED = Outcome("settled")  # by the handler itself, in transaction(): nothing to say
LOST = Outcome("lost")  # no longer ours: nobody would listen
WORDS = ("done", "again", "failed", "dead", "release")
FRAMES = 12
LONGEST_ERROR = 6000


def run(spec: Spec, task: Task, context: AnyContext | None) -> Outcome:
    """A sync handler, in whatever thread or process this is."""
    try:
        assert spec.arguments is not None
        return judged(spec.function(**spec.arguments.call(task, context)), context)
    except BaseException as error:  # noqa: BLE001 - an outcome comes of it
        return failed(spec, task, context, error)


def run_quickly(spec: Spec, task: Task) -> Outcome:
    """The same for a handler that asks for nothing: half the cost, which is all of a small task's."""
    try:
        assert spec.arguments is not None
        result = spec.function(**spec.arguments.checked(task.payload))
        return DONE if result is None else judged(result, None)
    except BaseException as error:  # noqa: BLE001 - an outcome comes of it
        return failed(spec, task, None, error)


async def run_async(spec: Spec, task: Task, context: AnyContext | None) -> Outcome:
    """An async handler. A cancellation of whoever runs it is his own affair."""
    try:
        assert spec.arguments is not None
        return judged(await spec.function(**spec.arguments.call(task, context)), context)
    except BaseException as error:
        if cancelled(error):
            raise
        return failed(spec, task, context, error)


async def run_quickly_async(spec: Spec, task: Task) -> Outcome:
    try:
        assert spec.arguments is not None
        result = await spec.function(**spec.arguments.checked(task.payload))
        return DONE if result is None else judged(result, None)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - an outcome comes of it
        return failed(spec, task, None, error)


def run_batch(spec: Spec, tasks: Sequence[Task]) -> dict[int, Outcome]:
    """A handler that takes many: what it answers is for each, what it raises for all."""
    try:
        return shared(spec.function([*tasks]), tasks)
    except BaseException as error:  # noqa: BLE001 - an outcome comes of it
        return {task.id: failed(spec, task, None, error) for task in tasks}


async def run_batch_async(spec: Spec, tasks: Sequence[Task]) -> dict[int, Outcome]:
    try:
        return shared(await cast("Callable[..., Awaitable[Any]]", spec.function)([*tasks]), tasks)
    except BaseException as error:
        if cancelled(error):
            raise
        return {task.id: failed(spec, task, None, error) for task in tasks}


def cancelled(error: BaseException) -> bool:
    """Whoever runs the handler is cancelled, or thrown away. The cancellation of something that a handler waits for is
    an error like any other."""
    me = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    return isinstance(error, GeneratorExit) or (me is not None and me.cancelling() > 0)


# --- what came of it --------------------------------------------------------------------------------------------------


def judged(result: object, context: AnyContext | None) -> Outcome:
    """What a handler returned: nothing, an outcome, or something that is at least JSON."""
    if context is not None and context.settled:
        return SETTLED
    if type(result) is Outcome:
        return checked(result)
    if result is not None:
        unserialisable = not_json(result)
        if unserialisable is not None:
            return unserialisable
    return DONE if context is None else context.outcome


def checked(outcome: Outcome) -> Outcome:
    """An outcome that PostgreSQL will take: else the whole settle would be refused because of one."""
    if outcome.word not in WORDS:
        raise ValidationError(f"outcome: {shown(outcome.word)} is not one of {', '.join(WORDS)}", field="outcome")
    if outcome.due is not None:
        validate.moment(outcome.due)
    if outcome.payload is not None:
        validate.payload(outcome.payload, validate.LARGEST_EVER)
    validate.delay(outcome.delay)
    return outcome


def not_json(result: object) -> Outcome | None:
    try:
        validate.payload({"result": result}, validate.LARGEST_EVER)
    except PayloadError as error:
        return Outcome.failed(f"the handler's result: {error.message}", error_class="UnserialisableResult")
    return None


def shared(result: object, tasks: Sequence[Task]) -> dict[int, Outcome]:
    """What a batch handler answered: nothing, or outcomes by id; what it does not name is done."""
    if result is None:
        return {task.id: DONE for task in tasks}
    if not isinstance(result, Mapping):
        raise ValidationError(f"the handler's result: {shown(result)} is neither None nor outcomes by id")
    unknown = result.keys() - {task.id for task in tasks}
    if unknown:
        raise ValidationError(f"the handler's result: {shown(next(iter(unknown)))} is no task of the batch")
    wrong = next((one for one in result.values() if type(one) is not Outcome), None)
    if wrong is not None:
        raise ValidationError(f"the handler's result: {shown(wrong)} is not an Outcome")
    return {task.id: checked(result.get(task.id, DONE)) for task in tasks}


def failed(spec: Spec, task: Task, context: AnyContext | None, error: BaseException) -> Outcome:
    """What an error makes of a task."""
    if context is not None and context.settled:
        return SETTLED  # what comes after transaction() changes nothing
    name = type(error).__name__
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return Outcome.release(error_class=name)
    if isinstance(error, LeaseLost) and task.id in (*error.refused, *error.revoked):
        return LOST
    text = error_text(error)
    if spec.policy is None:
        return Outcome.failed(text, error_class=name)
    return by_policy(spec, task, error, text)


def by_policy(spec: Spec, task: Task, error: BaseException, text: str) -> Outcome:
    """The application's own strategy. One that answers nonsense is told of in the error; the stored one is followed."""
    assert spec.policy is not None
    name = type(error).__name__
    try:
        asked = spec.policy(error, task.attempt, age(task))
        wait = validate.delay(asked)
    except BaseException as wrong:  # noqa: BLE001 - somebody else's function
        said = wrong.bare if isinstance(wrong, ValidationError) else f"{type(wrong).__name__}: {first_line(wrong)}"
        return Outcome.failed(f"{text}\n(retry policy: {said}; the stored strategy is followed)", error_class=name)
    if wait is None:
        return Outcome.dead(f"the retry policy ended: {text}", error_class=name)
    return Outcome.failed(text, delay=wait, error_class=name)


def age(task: Task) -> timedelta:
    return max(datetime.now(task.since.tzinfo) - task.since, timedelta())


def timed_out(spec: Spec, task: Task) -> Outcome:
    error = TimeoutError(f"timeout: it took longer than {spec.timeout:g} s")
    outcome = failed(spec, task, None, error)
    return outcome._replace(error_class="Timeout")


def error_text(error: BaseException) -> str:
    """The message first, then where it happened: the frames of the handler, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if one.filename != __file__][-FRAMES:]
    where = "".join(f"\n  {one.filename}:{one.lineno} in {one.name}" for one in ours)
    return f"{first_line(error)}{where}"[:LONGEST_ERROR]


def first_line(error: BaseException) -> str:
    """Somebody's error may not even be able to say what it is."""
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001
        return f"<{type(error).__name__}>"
