"""Checks the arguments of a handler: JSON values that match its annotations.

A payload is checked at push, where the mistake is made, and again when the task runs, because SQL can push any payload.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from penstock.errors import ConfigError, ValidationError, shown
from penstock.handlers.context import AsyncContext, Context
from penstock.model import Json, Task
from penstock.validate import shown_path

# These names are options of a push. A handler argument with one of these names would be ambiguous.
RESERVED = frozenset({"subject", "due", "delay", "priority", "kind", "connection", "on_conflict"})
PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
ANYTHING = (Any, object, inspect.Parameter.empty)
WHOLE = "payload"  # if this is the only argument of a handler, it receives the whole payload
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
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
    plain: tuple[tuple[str, type], ...] | None  # set if each parameter is an int, str or bool, which is the common case
    open: bool  # the handler takes **kwargs
    rest: Any  # the annotation of **kwargs
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
            self.refuse(found)
            return self.checked(found.get(WHOLE, {}))
        return self.checked(found)

    def checked(self, payload: Json) -> Json:
        """Returns the payload if it fits, or raises an error that names the first mismatch."""
        if self.whole:
            wrong = None if type(payload) is dict else unlike(payload, "an object", WHOLE)
            wrong = wrong or mismatch(payload, self.types[WHOLE], WHOLE)
            if wrong:
                raise ValidationError(wrong, field=WHOLE)
        elif not self.suits(payload):
            self.refuse(payload)
        return payload

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
        for name in self.signature.parameters:
            if name in self.required and name not in payload:
                raise ValidationError(f"{name}: it is missing", hint=f"It takes {self.signature}.", field=name)
        for name, value in payload.items():
            if name not in self.types and not self._is_rest(name):
                hint = f"It takes {self.signature}."
                raise ValidationError(f"{shown(name)}: the handler takes no such argument", hint=hint, field=name)
            wrong = mismatch(value, self.types.get(name, self.rest), name)
            if wrong:
                raise ValidationError(wrong, field=name)

    def call(self, task: Task, context: object) -> Json:
        """Returns the keyword arguments of one run."""
        payload = self.checked(task.payload)
        named: dict[str, Any] = {WHOLE: payload} if self.whole else payload
        if self.task is not None or self.context is not None:
            named = dict(named)
            if self.task is not None:
                named[self.task] = task
            if self.context is not None:
                named[self.context] = context
        return named


def all_plain(named: list[inspect.Parameter], hints: Mapping[str, Any]) -> tuple[tuple[str, type], ...] | None:
    """Returns the names and types of the parameters if each one is an int, str or bool, or else None."""
    found = tuple((one.name, hints.get(one.name, Any)) for one in named)
    return found if {kind for _, kind in found} <= {int, str, bool} else None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function, of a callable object, or of a TypedDict."""
    if isinstance(function, functools.partial):
        return hints_of(function.func)
    target = function if inspect.isroutine(function) or is_typeddict(function) else type(function).__call__
    try:
        return get_type_hints(target)
    except Exception as error:
        raise ConfigError(
            f"{name_of(function)}: its annotations cannot be read: {error}",
            hint="Import what they name at the top of the module, not below `if TYPE_CHECKING`.",
        ) from error


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function, or the name of its class for a callable object, which has no name of its own."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def named_by(kind: type, given: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> str | None:
    """Returns the name of the parameter with this annotation, or None."""
    return next((one.name for one in given if hints.get(one.name) is kind and one.kind in BY_NAME), None)


def check_parameter(function: Callable[..., Any], one: inspect.Parameter, annotation: Any, wanted: type) -> None:
    """Refuses, at decoration, a parameter with which the handler could not be called."""
    where = f"{name_of(function)}({one.name})"
    if annotation in (Context, AsyncContext) and one.kind in BY_NAME:
        colour = "an async handler gets AsyncContext" if wanted is AsyncContext else "a sync handler gets Context"
        raise ConfigError(f"{where}: {colour}, and one is enough", hint=f"Write {one.name}: {wanted.__name__}.")
    if one.name in RESERVED:
        raise ConfigError(f"{where}: a push has an argument of that name", hint="Call it something else.")
    if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
        raise ConfigError(f"{where}: payloads have names", hint="Leave out the / or *.")
    if not travels(annotation):
        raise ConfigError(
            f"{where}: {spelt(annotation)} does not travel as JSON",
            hint="Use int, float, str, bool, None, list, dict, Literal, TypedDict, unions of them, or Any.",
        )


def travels(annotation: Any, above: tuple[Any, ...] = ()) -> bool:
    """Returns whether JSON can carry a value of this type.

    `above` holds the enclosing TypedDicts; a TypedDict may contain itself.
    """
    if annotation in (*ANYTHING, *PLAIN, None, list, dict, *above):
        return True
    if is_typeddict(annotation):
        return all(travels(one, (*above, annotation)) for one in hints_of(annotation).values())
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType, list):
        return all(travels(one, above) for one in inner)
    if origin is dict:
        return inner[0] is str and travels(inner[1], above)
    return origin is Literal and all(type(one) in PLAIN for one in inner)


def takes_object(annotation: Any) -> bool:
    """Returns whether the annotation accepts a JSON object."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(map(takes_object, inner))
    return annotation in (*ANYTHING, dict) or origin is dict or is_typeddict(annotation)


def fitting(annotation: Any) -> Fits:
    """Returns a function that tells whether a value fits. It is optimised for speed, because it runs once per task."""
    if annotation in ANYTHING:
        return lambda _: True
    if annotation in (int, str, bool):
        return lambda value: type(value) is annotation
    return lambda value: fitted(value, annotation)


def mismatch(value: object, annotation: Any, path: str) -> str | None:
    """Returns a message that says what is wrong with a value, or None if the value fits."""
    if annotation in ANYTHING:
        return None
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType, Literal):
        alike = same if origin is Literal else fitted
        return None if any(alike(value, one) for one in inner) else unlike(value, spelt(annotation), path)
    if is_typeddict(annotation):
        return mismatch_of_keys(value, annotation, path)
    if annotation is list or origin is list:
        return mismatch_of_items(value, inner, path)
    if annotation is dict or origin is dict:
        return mismatch_of_values(value, inner, path)
    return mismatch_of_plain(value, annotation, path)


def same(value: object, literal: object) -> bool:
    """Returns whether a value equals a literal and has the same type."""
    return type(value) is type(literal) and value == literal


def fitted(value: object, annotation: Any) -> bool:
    """Returns whether a value fits an annotation."""
    return mismatch(value, annotation, "") is None


def mismatch_of_plain(value: object, annotation: Any, path: str) -> str | None:
    """Returns a message if the value is not of a plain type such as int or str. A float parameter accepts an int."""
    wanted = type(None) if annotation is None else annotation
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    return None if fits else unlike(value, PLAIN[wanted], path)


def mismatch_of_items(value: object, inner: tuple[Any, ...], path: str) -> str | None:
    """Returns a message if the value is not a list, or for its first item that does not fit."""
    if type(value) not in (list, tuple):
        return unlike(value, "a list", path)
    items = enumerate(value) if inner else ()  # type: ignore[arg-type, var-annotated]
    return next((wrong for n, item in items if (wrong := mismatch(item, inner[0], f"{path}[{n}]"))), None)


def mismatch_of_values(value: object, inner: tuple[Any, ...], path: str) -> str | None:
    """Returns a message if the value is not an object, or for its first value that does not fit."""
    if type(value) is not dict:
        return unlike(value, "an object", path)
    items = value.items() if inner else ()
    return next((wrong for key, item in items if (wrong := mismatch(item, inner[1], f"{path}.{key}"))), None)


def mismatch_of_keys(value: object, annotation: Any, path: str) -> str | None:
    """Returns a message if a key of a TypedDict is missing or unknown, or if a value does not fit."""
    if type(value) is not dict:
        return unlike(value, "an object", path)
    hints, required = keys_of(annotation)
    missing = required - value.keys()
    unknown = value.keys() - hints.keys()
    if missing or unknown:
        key = shown(min(missing or unknown, key=str))
        return f"{shown_path(path)}: {key} is {'missing' if missing else 'not one of its keys'}"
    return next((wrong for key, item in value.items() if (wrong := mismatch(item, hints[key], f"{path}.{key}"))), None)


@functools.cache
def keys_of(typed: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns the annotations of a TypedDict by key, and the keys that are required.

    The class itself does not know the required keys where annotations are strings (`from __future__ import
    annotations`).
    """
    said = {key: get_origin(hint) for key, hint in get_type_hints(typed, include_extras=True).items()}
    required = {key for key, word in said.items() if word is Required or key in typed.__required_keys__}
    return get_type_hints(typed), frozenset(key for key in required if said[key] is not NotRequired)


def unlike(value: object, words: str, path: str) -> str:
    """Returns the message for a value that is not what the handler expects."""
    return f"{shown_path(path)}: {shown(value)} is not {words}"


def spelt(annotation: Any) -> str:
    """Returns an annotation as text."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
