"""Middleware: functions around the run of a handler. This module checks them, and says which handlers they wrap."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import validate
from penstock.errors import ConfigError, shown
from penstock.handlers.annotations import hints_of, is_async, name_of, same_function, spelt
from penstock.handlers.context import AsyncContext, Context
from penstock.model import Outcome, Task

if TYPE_CHECKING:
    from penstock.handlers.registry import Spec

RunHandler = Callable[[], Outcome]
"""What a middleware calls to run the handler, or the next middleware. It returns the outcome, or raises what the
handler raises."""
AsyncRunHandler = Callable[[], Awaitable[Outcome]]
"""What an async middleware awaits to run the handler, or the next middleware."""

Names = str | Sequence[str] | None
MAX_ORDER = 1_000_000


class Shape(NamedTuple):
    """The sort of handlers that a function can wrap."""

    is_async: bool
    batch: bool

    def __str__(self) -> str:
        return ("async" if self.is_async else "sync") + (" batch" if self.batch else "")


class Form(NamedTuple):
    """One function of a middleware, for the handlers of one shape."""

    function: Callable[..., Any]
    takes_context: bool


@dataclass(slots=True)
class Middleware:
    """A middleware: the queues and kinds that it wraps, and its functions, one for each shape of handlers."""

    name: str
    queues: tuple[str, ...] | None  # None: all
    kinds: tuple[str, ...] | None
    order: int  # the smallest is the outermost
    forms: dict[Shape, Form] = field(default_factory=dict)

    def wraps(self, queue: str, kind: str) -> bool:
        """Returns whether the tasks of this queue and kind run inside this middleware."""
        return (self.queues is None or queue in self.queues) and (self.kinds is None or kind in self.kinds)

    def has(self, function: Callable[..., Any]) -> bool:
        """Returns whether this function is one of its forms."""
        return any(form.function is function for form in self.forms.values())

    def add(self, function: Callable[..., Any], *, batch: bool) -> None:
        """Adds the function for the handlers of one more shape."""
        shape, form = checked_form(function, batch=batch)
        if shape in self.forms:
            raise ConfigError(
                f"middleware {name_of(function)}: {self.name} has a form for {shape} handlers already",
                hint="Another form is async, or has batch=True.",
            )
        self.forms[shape] = form

    def form_for(self, spec: Spec) -> Form:
        """Returns the function that wraps a handler. Without one the handler would run outside of the middleware, so
        the application is refused."""
        shape = Shape(spec.mode == "async", spec.batch is not None)
        if shape in self.forms:
            return self.forms[shape]
        function = "async def" if shape.is_async else "def"
        short = self.name.rpartition(".")[2]
        batch = ", batch=True" if shape.batch else ""
        raise ConfigError(
            f"middleware {self.name}: it cannot wrap {spec.name}, because its form is for "
            f"{' and '.join(map(str, self.forms))} handlers, and this handler is {shape}",
            hint=f"Add the missing form: @app.middleware(form_of={short}{batch}) above another {function}. "
            f"Or name the queues and kinds that {short} wraps.",
        )

    def is_repeated_by(self, other: Middleware) -> bool:
        """Returns whether the other one is this one again, because its module is imported again, or its cell of a
        notebook run again. Functions that another function makes are different ones."""
        if (self.queues, self.kinds, self.order) != (other.queues, other.kinds, other.order):
            return False
        return all(
            shape in self.forms
            and same_function(self.forms[shape].function, form.function)
            and "<locals>" not in name_of(form.function)
            for shape, form in other.forms.items()
        )


def middleware_of(function: Callable[..., Any], *, queue: Names, kind: Names, order: int, batch: bool) -> Middleware:
    """Returns a checked middleware with one form."""
    made = Middleware(
        name=name_of(function),
        queues=checked_names(queue, "queue"),
        kinds=checked_names(kind, "kind"),
        order=validate.whole(order, "order", -MAX_ORDER, MAX_ORDER),
    )
    made.add(function, batch=batch)
    return made


def checked_names(given: Names, field: str) -> tuple[str, ...] | None:
    """Returns the names of queues or kinds that a middleware wraps, or None for all."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names:
        raise ConfigError(f"{field}: it names none, so the middleware would wrap nothing", hint="Leave it out for all.")
    if field == "queue":
        return tuple(validate.queue_name(name) for name in names)
    return tuple(validate.text(name, field, validate.MAX_KIND) for name in names)


def checked_form(function: Callable[..., Any], *, batch: bool) -> tuple[Shape, Form]:
    """Returns a function of a middleware and the shape of the handlers that it wraps. A function that cannot wrap any
    is refused when it is decorated."""
    if not callable(function):
        raise ConfigError(f"middleware: {shown(function)} cannot be called")
    shape = Shape(is_async(function), batch)
    first = "tasks" if batch else "task"
    example = f"{'async ' if shape.is_async else ''}def {getattr(function, '__name__', 'wrap')}({first}, run): …"
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError):
        raise ConfigError(f"middleware {name_of(function)}: it is called with {first} and run", hint=example) from None
    annotation = hints_of(function).get(next(iter(signature.parameters)))
    context = AsyncContext if shape.is_async else Context
    if annotation in (Context, AsyncContext) and (batch or annotation is not context):
        rule = "a batch has no context" if batch else f"{shape} handlers have {context.__name__}"
        raise ConfigError(f"middleware {name_of(function)}: it asks for {spelt(annotation)}, but {rule}", hint=example)
    if annotation == list[Task] and not batch:
        raise ConfigError(f"middleware {name_of(function)}: it takes a list of tasks", hint="Say batch=True.")
    return shape, Form(function, annotation is context)
