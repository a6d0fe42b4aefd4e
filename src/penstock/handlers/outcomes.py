"""Makes an outcome of what a handler returned: None, an Outcome, or a value that must be valid JSON.

For a batch it makes outcomes by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock import validate
from penstock.errors import PayloadError, ValidationError, shown
from penstock.handlers.context import AnyContext, outcome_too_late
from penstock.model import DONE, Outcome, Task

SETTLED = Outcome("settled")  # the handler settled the task in transaction(), so there is nothing to report
LOST = Outcome("lost")  # the lease is no longer ours: an outcome would be refused
WORDS = ("done", "again", "failed", "dead", "release")


def judged(result: object, context: AnyContext | None) -> Outcome:
    """Returns the outcome for what a handler returned: None, an Outcome, or a value that must be valid JSON."""
    if context is not None and context.decided:
        if type(result) is Outcome and result != context.outcome:
            raise outcome_too_late(context, result)
        return stands(context)
    if type(result) is Outcome:
        return result if result is DONE else check_outcome(result)
    if result is not None:
        unserialisable = not_json(result)
        if unserialisable is not None:
            return unserialisable
    return DONE if context is None else context.outcome


def check_outcome(outcome: Outcome) -> Outcome:
    """Returns an outcome that PostgreSQL accepts, or raises. One invalid outcome would make the whole settle fail."""
    if outcome.word not in WORDS:
        raise ValidationError(f"outcome: {shown(outcome.word)} is not one of {', '.join(WORDS)}", field="outcome")
    if outcome.due is not None:
        validate.moment(outcome.due)
    if outcome.payload is not None:
        validate.payload(outcome.payload, validate.MAX_PAYLOAD)
    validate.delay(outcome.delay)
    return outcome


def not_json(result: object) -> Outcome | None:
    """Returns a failure if the result of a handler is not valid JSON."""
    try:
        validate.payload({"result": result}, validate.MAX_PAYLOAD)
    except PayloadError as error:
        return Outcome.failed(f"the handler's result: {error.message}", error_class="UnserialisableResult")
    return None


def shared(result: object, tasks: Sequence[Task]) -> dict[int, Outcome]:
    """Returns the outcomes of a batch from its handler's answer: None, or outcomes by id.

    A task that the answer does not name is done.
    """
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
    return {task.id: check_outcome(result.get(task.id, DONE)) for task in tasks}


def stands(context: AnyContext) -> Outcome:
    """Returns the outcome after a transaction() block.

    The task is settled, or still has to be settled if the block was rolled back.
    """
    return SETTLED if context.settled else context.outcome
