"""The arguments of a handler: values that match its annotations, in JSON between push and run.

A payload is checked at push, where the mistake is made, and again when the task runs, because SQL can push any payload.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError, ValidationError, shown
from penstock.handlers.annotations import hints_of, name_of, spelt
from penstock.handlers.context import AsyncContext, Context
from penstock.handlers.json_types import (
    ANYTHING,
    Unfit,
    converts,
    fitted,
    from_json,
    mismatch,
    takes_object,
    to_json,
    travels,
    unlike,
)
from penstock.model import Json, Task

# These names are options of a push. A handler argument with one of these names would be ambiguous.
RESERVED = frozenset(
    {"subject", "due", "delay", "priority", "kind", "connection", "on_conflict", "key", "meta", "expires"}
    | {"debounce", "at_most", "throttle"}
)
WHOLE = "payload"  # if this is the only argument of a handler, it receives the whole payload
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
Fits = Callable[[object], bool]
Convert = Callable[[Any, Any, str], Any]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters of a handler: those from the payload, and its task and context if it asks for them."""

    signature: inspect.Signature
    types: Mapping[str, Any]
    fits: Mapping[str, Fits]
    required: frozenset[str]
    task: str | None
    context: str | None
    plain: tuple[tuple[str, type], ...] | None  # set if each parameter is an int, str or bool, which is the common case
    open: bool  # the handler takes **kwargs
    rest: Any  # the annotation of **kwargs
    converted: bool  # an annotation, or a type in it, is not a JSON type
    whole: bool  # the handler takes the whole payload as one argument

    @classmethod
    def of(cls, function: Callable[..., Any], *, wanted: type = Context) -> Arguments:
        """Reads the parameters of a handler, and refuses one that cannot be called with a payload."""
        hints = hints_of(function)
        given = [*inspect.signature(function).parameters.values()]
        task, context = (named_by(kind, given, hints) for kind in (Task, wanted))
        own = [one for one in given if one.name not in (task, context)]
        for one in own:
            check_parameter(function, one, hints.get(one.name, Any), wanted)
        named = [one.replace(annotation=hints.get(one.name, one.empty)) for one in own if one.kind in BY_NAME]
        rest = next((hints.get(one.name, Any) for one in own if one.kind not in BY_NAME), None)
        whole = len(own) == 1 and [one.name for one in named] == [WHOLE]
        if whole and not takes_object(hints.get(WHOLE, Any)):
            raise ConfigError(
                f"{name_of(function)}({WHOLE}): alone it is the whole payload, and {spelt(hints[WHOLE])} is no object",
                hint="Call it something else, or write payload: dict[str, Any].",
            )
        return cls(
            signature=inspect.Signature(named),
            types={one.name: hints.get(one.name, Any) for one in named},
            fits={one.name: fitting(hints.get(one.name, Any)) for one in named},
            required=frozenset(one.name for one in named if one.default is one.empty),
            task=task,
            context=context,
            plain=all_plain(named, hints) if len(named) == len(own) else None,
            open=len(named) < len(own),
            rest=rest,
            converted=any(converts(hints.get(one.name, Any)) for one in own),
            whole=whole,
        )

    def payload(self, given: Sequence[Any], named: Json) -> Json:
        """Returns the checked payload of a call.

        An omitted argument stays omitted, so that its default is the one that the handler has when the task runs.
        """
        known = {name: value for name, value in named.items() if name in self.types}
        try:
            found = self.signature.bind_partial(*given, **known).arguments | named
        except TypeError as error:
            raise ValidationError(
                f"arguments: {error}", hint=f"It takes {self.signature}.", field="arguments"
            ) from None
        if self.whole:
            self.refuse_names(found)
            return self.encoded(found.get(WHOLE, {}))
        return self.encoded(found)

    def encoded(self, payload: Any) -> Json:
        """Returns the checked payload in its JSON form. Values that are in their JSON form already stay as they are."""
        return self.check(self._convert(payload, to_json) if self.converted else payload)

    def check(self, payload: Json) -> Json:
        """Returns the payload if it fits, or raises an error that names the first mismatch."""
        if self.whole:
            wrong = None if type(payload) is dict else unlike(payload, "an object", WHOLE)
            wrong = wrong or mismatch(payload, self.types[WHOLE], WHOLE)
            if wrong:
                raise ValidationError(wrong, field=WHOLE)
        elif not self.suits(payload):
            self.refuse(payload)
        return payload

    def _convert(self, payload: Any, convert: Convert) -> Any:
        """Returns a payload with each value converted. Names that are missing or unknown are refused."""
        if self.whole:
            return convert_argument(payload, self.types[WHOLE], WHOLE, convert)
        self.refuse_names(payload)
        types, rest = self.types, self.rest
        return {name: convert_argument(value, types.get(name, rest), name, convert) for name, value in payload.items()}

    def suits(self, payload: Json) -> bool:
        """Returns whether a payload fits. This check is fast; `refuse` produces the error message."""
        if self.plain is not None and len(payload) == len(self.plain):
            for name, kind in self.plain:  # noqa: SIM110 - the loop takes half the time of all()
                if type(payload.get(name)) is not kind:
                    return False
            return True
        if not self.required <= payload.keys():
            return False
        fits = self.fits
        for name, value in payload.items():
            one = fits.get(name)
            if not (self._suits_rest(name, value) if one is None else one(value)):
                return False
        return True

    def _suits_rest(self, name: str, value: object) -> bool:
        return self._is_rest(name) and fitted(value, self.rest)

    def _is_rest(self, name: str) -> bool:
        """Returns whether a name belongs to **kwargs. A payload cannot provide the handler's task or context."""
        return self.open and name not in (self.task, self.context)

    def refuse(self, payload: Json) -> None:
        """Raises an error for the first argument that is missing, unknown or of the wrong type."""
        self.refuse_names(payload)
        for name, value in payload.items():
            wrong = mismatch(value, self.types.get(name, self.rest), name)
            if wrong:
                raise ValidationError(wrong, field=name)

    def refuse_names(self, payload: Json) -> None:
        """Raises an error for the first argument that is missing or unknown."""
        for name in self.signature.parameters:
            if name in self.required and name not in payload:
                raise ValidationError(f"{name}: it is missing", hint=f"It takes {self.signature}.", field=name)
        for name in payload:
            if name not in self.types and not self._is_rest(name):
                hint = f"It takes {self.signature}."
                raise ValidationError(f"{shown(name)}: the handler takes no such argument", hint=hint, field=name)

    def call(self, task: Task, context: object) -> Json:
        """Returns the keyword arguments of one run."""
        payload = self._convert(task.payload, from_json) if self.converted else self.check(task.payload)
        named: dict[str, Any] = {WHOLE: payload} if self.whole else payload
        if self.task is not None or self.context is not None:
            named = dict(named)
            if self.task is not None:
                named[self.task] = task
            if self.context is not None:
                named[self.context] = context
        return named


def convert_argument(value: Any, annotation: Any, name: str, convert: Convert) -> Any:
    """Converts the value of one argument."""
    try:
        return convert(value, annotation, name)
    except Unfit as wrong:
        raise ValidationError(str(wrong), field=name) from None


def all_plain(named: list[inspect.Parameter], hints: Mapping[str, Any]) -> tuple[tuple[str, type], ...] | None:
    """Returns the names and types of the parameters if each one is an int, str or bool, or else None."""
    found = tuple((one.name, hints.get(one.name, Any)) for one in named)
    return found if {kind for _, kind in found} <= {int, str, bool} else None


def named_by(kind: type, given: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> str | None:
    """Returns the name of the parameter with this annotation, or None."""
    return next((one.name for one in given if hints.get(one.name) is kind and one.kind in BY_NAME), None)


def check_parameter(function: Callable[..., Any], one: inspect.Parameter, annotation: Any, wanted: type) -> None:
    """Refuses, at decoration, a parameter with which the handler could not be called."""
    where = f"{name_of(function)}({one.name})"
    if annotation in (Context, AsyncContext) and one.kind in BY_NAME:
        rule = "an async handler gets AsyncContext" if wanted is AsyncContext else "a sync handler gets Context"
        raise ConfigError(f"{where}: {rule}, and one is enough", hint=f"Write {one.name}: {wanted.__name__}.")
    if one.name in RESERVED:
        raise ConfigError(f"{where}: a push has an argument of that name", hint="Call it something else.")
    if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
        raise ConfigError(f"{where}: payloads have names", hint="Leave out the / or *.")
    if not travels(annotation):
        raise ConfigError(
            f"{where}: {spelt(annotation)} does not travel as JSON",
            hint="Use int, float, str, bool, None, list, dict, tuple, set, Literal, TypedDict, datetime, date, time, "
            "timedelta, UUID, Decimal, bytes, Enum, dataclasses, NamedTuple, Pydantic models, unions of them, or Any.",
        )


def fitting(annotation: Any) -> Fits:
    """Returns a function that tells whether a value fits. It is optimised for speed, because it runs once per task."""
    if annotation in ANYTHING:
        return lambda _: True
    if annotation in (int, str, bool):
        return lambda value: type(value) is annotation
    return lambda value: fitted(value, annotation)
