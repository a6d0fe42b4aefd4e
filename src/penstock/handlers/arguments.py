"""What a handler may be given: JSON, as its annotations say. Checked at push, where the mistake is made, and again when
run, because anybody may push by SQL."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from penstock.errors import ConfigError, ValidationError, shown
from penstock.handlers.context import AsyncContext, Context
from penstock.model import Json, Task

# What a push says of the task itself; a handler's own argument of that name could never be told apart.
RESERVED = frozenset({"subject", "due", "priority", "kind", "connection", "on_conflict"})
PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
ANYTHING = (Any, object, inspect.Parameter.empty)
WHOLE = "payload"  # a handler's only argument of this name is the payload as it is
Fits = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters of a handler: those from the payload, and its task and context if it asks for them."""

    signature: inspect.Signature
    types: Mapping[str, Any]
    fits: Mapping[str, Fits]
    required: frozenset[str]
    task: str | None
    context: str | None
    open: bool  # it takes **anything
    whole: bool  # it takes the payload as it is

    @classmethod
    def of(cls, function: Callable[..., Any], *, wanted: type = Context) -> Arguments:
        hints = hints_of(function)
        given = inspect.signature(function).parameters.values()
        task, context = (named_by(kind, hints) for kind in (Task, wanted))
        own = [one for one in given if one.name not in (task, context)]
        whole = [one.name for one in own] == [WHOLE]
        for one in own:
            check_parameter(function, one, hints.get(one.name, Any), wanted)
        named = [one for one in own if one.kind is not one.VAR_KEYWORD]
        return cls(
            signature=inspect.Signature(named),
            types={one.name: hints.get(one.name, Any) for one in named},
            fits={one.name: fitting(hints.get(one.name, Any)) for one in named},
            required=frozenset(one.name for one in named if one.default is one.empty),
            task=task,
            context=context,
            open=len(named) < len(own),
            whole=whole,
        )

    def payload(self, given: Sequence[Any], named: Json) -> Json:
        """The payload of a call. What is left out stays out: a default is the handler's of the day it runs."""
        extra = {name: value for name, value in named.items() if self.open and name not in self.types}
        try:
            bound = self.signature.bind(*given, **{name: value for name, value in named.items() if name not in extra})
        except TypeError as error:
            raise ValidationError(
                f"arguments: {error}", hint=f"It takes {self.signature}.", field="arguments"
            ) from None
        if self.whole:
            payload: Json = bound.arguments.get(WHOLE, {})
            return self.checked(payload)
        return self.checked({**bound.arguments, **extra})

    def checked(self, payload: Json) -> Json:
        """A payload that fits, or the first thing wrong with it."""
        if self.whole:
            wrong = None if type(payload) is dict else f"payload: {shown(payload)} is not an object"
            wrong = wrong or mismatch(payload, self.types[WHOLE], WHOLE)
            if wrong:
                raise ValidationError(wrong, field=WHOLE)
        elif not self.suits(payload):
            self.refuse(payload)
        return payload

    def suits(self, payload: Json) -> bool:
        """The quick answer; `refuse` has the words."""
        if not self.required <= payload.keys():
            return False
        fits = self.fits
        for name, value in payload.items():
            one = fits.get(name)
            if not (self.open if one is None else one(value)):
                return False
        return True

    def refuse(self, payload: Json) -> None:
        for name in self.signature.parameters:
            if name in self.required and name not in payload:
                raise ValidationError(f"{name}: it is missing", hint=f"It takes {self.signature}.", field=name)
        for name, value in payload.items():
            if name not in self.types:
                if self.open:
                    continue
                hint = f"It takes {self.signature}."
                raise ValidationError(f"{shown(name)}: the handler takes no such argument", hint=hint, field=name)
            wrong = mismatch(value, self.types[name], name)
            if wrong:
                raise ValidationError(wrong, field=name)

    def call(self, task: Task, context: object) -> Json:
        """The named arguments of one run."""
        payload = self.checked(task.payload)
        named: dict[str, Any] = {WHOLE: payload} if self.whole else payload
        if self.task is not None or self.context is not None:
            named = dict(named)
            if self.task is not None:
                named[self.task] = task
            if self.context is not None:
                named[self.context] = context
        return named


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) or not callable(function) else type(function).__call__
    try:
        return get_type_hints(target)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"{name}: its annotations can not be read: {error}",
            hint="Import what they name at the top of the module, not below `if TYPE_CHECKING`.",
        ) from error


def named_by(kind: type, hints: Mapping[str, Any]) -> str | None:
    """The parameter that is annotated so."""
    return next((name for name, hint in hints.items() if hint is kind and name != "return"), None)


def check_parameter(function: Callable[..., Any], one: inspect.Parameter, annotation: Any, wanted: type) -> None:
    """A handler that could not be called is refused when it is decorated."""
    where = f"{function.__qualname__}({one.name})"
    if annotation in (Context, AsyncContext):
        colour = "an async handler gets AsyncContext" if wanted is AsyncContext else "a sync handler gets Context"
        raise ConfigError(f"{where}: {colour}, and one is enough", hint=f"Write {one.name}: {wanted.__name__}.")
    if one.name in RESERVED:
        raise ConfigError(f"{where}: a push has an argument of that name", hint="Call it something else.")
    if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
        raise ConfigError(f"{where}: payloads have names", hint="Leave out the / or *.")
    if one.kind is not one.VAR_KEYWORD and not travels(annotation):
        raise ConfigError(
            f"{where}: {spelt(annotation)} does not travel as JSON",
            hint="Use int, float, str, bool, None, list, dict, Literal, TypedDict, unions of them, or Any.",
        )


def travels(annotation: Any) -> bool:
    if annotation in ANYTHING or annotation in PLAIN or annotation in (None, list, dict) or is_typeddict(annotation):
        return True
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType, list, Required, NotRequired):
        return all(map(travels, inner))
    if origin is dict:
        return inner[0] is str and travels(inner[1])
    return origin is Literal


def fitting(annotation: Any) -> Fits:
    """Whether a value fits, as quickly as can be: this runs once per task."""
    if annotation in ANYTHING:
        return lambda _: True
    if annotation in (int, str, bool):
        return lambda value: type(value) is annotation
    return lambda value: mismatch(value, annotation, "") is None


def mismatch(value: object, annotation: Any, path: str) -> str | None:
    """What is wrong with a value, in words; None: it fits."""
    if annotation in ANYTHING:
        return None
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Required, NotRequired):
        return mismatch(value, inner[0], path)
    if origin in (Union, types.UnionType):
        return None if any(mismatch(value, one, path) is None for one in inner) else unlike(value, annotation, path)
    if origin is Literal:
        fits = any(type(value) is type(one) and value == one for one in inner)
        return None if fits else unlike(value, annotation, path)
    if is_typeddict(annotation):
        return mismatch_of_keys(value, annotation, path)
    compared = {list: mismatch_of_items, dict: mismatch_of_values}.get(origin)
    return mismatch_of_plain(value, annotation, path) if compared is None else compared(value, inner, path)


def mismatch_of_plain(value: object, annotation: Any, path: str) -> str | None:
    wanted = type(None) if annotation is None else annotation
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    return None if fits else f"{path}: {shown(value)} is not {PLAIN[wanted]}"


def mismatch_of_items(value: object, inner: tuple[Any, ...], path: str) -> str | None:
    if type(value) not in (list, tuple):
        return f"{path}: {shown(value)} is not a list"
    items = enumerate(value) if inner else ()  # type: ignore[arg-type, var-annotated]
    return next((wrong for n, item in items if (wrong := mismatch(item, inner[0], f"{path}[{n}]"))), None)


def mismatch_of_values(value: object, inner: tuple[Any, ...], path: str) -> str | None:
    if type(value) is not dict:
        return f"{path}: {shown(value)} is not an object"
    items = value.items() if inner else ()
    return next((wrong for key, item in items if (wrong := mismatch(item, inner[1], f"{path}.{key}"))), None)


def mismatch_of_keys(value: object, annotation: Any, path: str) -> str | None:
    if type(value) is not dict:
        return f"{path}: {shown(value)} is not an object"
    hints = get_type_hints(annotation)
    missing = annotation.__required_keys__ - value.keys()
    unknown = value.keys() - hints.keys()
    if missing or unknown:
        return f"{path}: {shown(min(missing or unknown))} is {'missing' if missing else 'not one of its keys'}"
    return next((wrong for key, item in value.items() if (wrong := mismatch(item, hints[key], f"{path}.{key}"))), None)


def unlike(value: object, annotation: Any, path: str) -> str:
    return f"{path}: {shown(value)} is not {spelt(annotation)}"


def spelt(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
