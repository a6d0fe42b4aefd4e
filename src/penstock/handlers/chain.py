"""Compiles a handler and its middleware into one function, once for each handler and not for each task.

Each layer hands the next one to its middleware as `run`. Between two layers there is always an outcome.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from penstock.handlers.arguments import Arguments
from penstock.handlers.context import AnyContext
from penstock.handlers.middleware import Form, Middleware
from penstock.handlers.outcomes import judged, shared
from penstock.model import DONE, Json, Outcome, Task

if TYPE_CHECKING:
    from penstock.handlers.registry import Spec

Layer = Callable[[Task, AnyContext | None], Outcome]
AsyncLayer = Callable[[Task, AnyContext | None], Awaitable[Outcome]]
BatchLayer = Callable[[Sequence[Task]], dict[int, Outcome]]
AsyncBatchLayer = Callable[[Sequence[Task]], Awaitable[dict[int, Outcome]]]


class TaskAndContext(Arguments):
    """The arguments of a handler inside its middleware: the outermost middleware gets the task or its context, and the
    innermost layer makes the handler's arguments of them."""

    __slots__ = ()

    def call(self, task: Task, context: object) -> Json:
        """Returns the arguments of the outermost layer."""
        return {"task": task, "context": context}


def compile_chain(spec: Spec, around: Sequence[Middleware]) -> Spec:
    """Returns the handler inside its middleware, of which the first is the outermost."""
    if not around:
        return spec
    forms = [one.form_for(spec) for one in reversed(around)]
    innermost, add_layer = PARTS[spec.mode == "async", spec.batch is not None]
    chain = functools.reduce(add_layer, forms, innermost(spec))
    arguments = spec.arguments
    if arguments is not None:
        values = {one.name: getattr(arguments, one.name) for one in fields(arguments)}
        if any(form.takes_context for form in forms):
            values["context"] = "context"
        arguments = TaskAndContext(**values)
    return replace(spec, function=functools.update_wrapper(chain, spec.function), arguments=arguments, inside=spec)


def concluded(result: object, context: AnyContext | None) -> Outcome:
    """Returns the outcome for what a handler or a middleware returned, as the next middleware sees it. A task that is
    settled already has the outcome with which it was settled."""
    outcome = judged(result, context)
    return context.outcome if context is not None and context.decided else outcome


# --- one task ---------------------------------------------------------------------------------------------------------


def innermost(spec: Spec) -> Layer:
    """Returns a layer that calls the handler."""
    function, arguments = spec.function, spec.arguments
    assert arguments is not None
    call, check, quick = arguments.call, arguments.check, spec.quick

    def layer(task: Task, context: AnyContext | None) -> Outcome:
        result = function(**(check(task.payload) if quick else call(task, context)))
        return DONE if result is None and context is None else concluded(result, context)

    return layer


def add_layer(inner: Layer, form: Form) -> Layer:
    """Returns a layer that calls a middleware. If the middleware does not return an outcome, that of its last call of
    `run` stands."""
    function, takes_context = form

    def layer(task: Task, context: AnyContext | None) -> Outcome:
        outcome: Outcome | None = None

        def run() -> Outcome:
            nonlocal outcome
            outcome = None
            outcome = inner(task, context)
            return outcome

        result = function(context if takes_context else task, run)
        if outcome is not None and (result is outcome or result is None):
            return outcome
        return concluded(result, context)

    return layer


def innermost_async(spec: Spec) -> AsyncLayer:
    """Returns a layer that calls an async handler."""
    function, arguments = spec.function, spec.arguments
    assert arguments is not None
    call, check, quick = arguments.call, arguments.check, spec.quick

    async def layer(task: Task, context: AnyContext | None) -> Outcome:
        result = await function(**(check(task.payload) if quick else call(task, context)))
        return DONE if result is None and context is None else concluded(result, context)

    return layer


def add_layer_async(inner: AsyncLayer, form: Form) -> AsyncLayer:
    """Returns a layer that awaits a middleware; see `add_layer`."""
    function, takes_context = form

    async def layer(task: Task, context: AnyContext | None) -> Outcome:
        outcome: Outcome | None = None

        async def run() -> Outcome:
            nonlocal outcome
            outcome = None
            outcome = await inner(task, context)
            return outcome

        result = await function(context if takes_context else task, run)
        if outcome is not None and (result is outcome or result is None):
            return outcome
        return concluded(result, context)

    return layer


# --- a batch ----------------------------------------------------------------------------------------------------------


def innermost_batch(spec: Spec) -> BatchLayer:
    """Returns a layer that calls a handler of many tasks."""
    return lambda tasks: shared(spec.function([*tasks]), tasks)


def add_batch_layer(inner: BatchLayer, form: Form) -> BatchLayer:
    """Returns a layer that calls a middleware with the tasks of a batch."""

    def layer(tasks: Sequence[Task]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}

        def run() -> dict[int, Outcome]:
            outcomes.clear()
            outcomes.update(inner(tasks))
            return {**outcomes}

        return merged(outcomes, form.function([*tasks], run), tasks)

    return layer


def innermost_batch_async(spec: Spec) -> AsyncBatchLayer:
    """Returns a layer that calls an async handler of many tasks."""

    async def layer(tasks: Sequence[Task]) -> dict[int, Outcome]:
        return shared(await spec.function([*tasks]), tasks)

    return layer


def add_batch_layer_async(inner: AsyncBatchLayer, form: Form) -> AsyncBatchLayer:
    """Returns a layer that awaits a middleware with the tasks of a batch."""

    async def layer(tasks: Sequence[Task]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}

        async def run() -> dict[int, Outcome]:
            outcomes.clear()
            outcomes.update(await inner(tasks))
            return {**outcomes}

        return merged(outcomes, await form.function([*tasks], run), tasks)

    return layer


def merged(outcomes: dict[int, Outcome], result: object, tasks: Sequence[Task]) -> dict[int, Outcome]:
    """Returns the outcomes of a batch after a middleware: those that it returned, and for the other tasks those of
    `run`."""
    if result is not None and not isinstance(result, Mapping):
        return shared(result, tasks)  # raises
    return shared({**outcomes, **(result or {})}, tasks)


PARTS: dict[tuple[bool, bool], tuple[Callable[[Spec], Any], Callable[[Any, Form], Any]]] = {
    (False, False): (innermost, add_layer),
    (True, False): (innermost_async, add_layer_async),
    (False, True): (innermost_batch, add_batch_layer),
    (True, True): (innermost_batch_async, add_batch_layer_async),
}
