"""Reads annotations: those of functions, of TypedDicts and of dataclasses, and how they are written."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from penstock.errors import ConfigError


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function, of a callable object, of a TypedDict, of a dataclass, or of a named tuple,
    in their simple form."""
    if isinstance(function, functools.partial):
        return hints_of(function.func)
    has_own = inspect.isroutine(function) or is_typeddict(function) or is_dataclass(function) or is_namedtuple(function)
    target = function if has_own else type(function).__call__
    try:
        return {name: simplify(hint) for name, hint in get_type_hints(target).items()}
    except Exception as error:
        raise ConfigError(
            f"{name_of(function)}: its annotations cannot be read: {error}",
            hint="Import what they name at the top of the module, not below `if TYPE_CHECKING`.",
        ) from error


ABSTRACT: dict[Any, Any] = {
    **dict.fromkeys((collections.abc.Sequence, collections.abc.MutableSequence), list),
    **dict.fromkeys((collections.abc.Collection, collections.abc.Iterable), list),
    **dict.fromkeys((collections.abc.Mapping, collections.abc.MutableMapping), dict),
    **dict.fromkeys((collections.abc.Set, collections.abc.MutableSet), set),
}


def simplify(annotation: Any) -> Any:
    """Returns the type that an annotation stands for: what a NewType or an alias is made of, and list, dict or set for
    the abstract types that these implement."""
    if hasattr(annotation, "__supertype__"):
        return simplify(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return simplify(annotation.__value__)
    origin, inner = get_origin(annotation), get_args(annotation)
    if not inner:
        return ABSTRACT.get(annotation, annotation) if isinstance(annotation, type) else annotation
    simple = tuple(one if one is ... else simplify(one) for one in inner)
    if origin in (Union, types.UnionType):
        return annotation if simple == inner else functools.reduce(operator.or_, simple)
    if origin in ABSTRACT or (simple != inner and origin in (list, dict, tuple, set, frozenset)):
        return ABSTRACT.get(origin, origin)[simple]
    return annotation


def is_namedtuple(annotation: Any) -> bool:
    """Returns whether an annotation is a named tuple. Those of Penstock, such as Task, are no values of a payload."""
    named = isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    return named and not annotation.__module__.startswith("penstock.")


def is_dataclass(annotation: Any) -> bool:
    """Returns whether an annotation is a dataclass, and not an instance of one."""
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function, or the name of its class for a callable object, which has no name of its own."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_async(function: Callable[..., Any]) -> bool:
    """Returns whether a function, or a callable object, is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Returns whether two functions have the same name and module.

    A module that is imported twice decorates its functions twice.
    """
    return getattr(one, "__qualname__", one) == getattr(other, "__qualname__", other) and getattr(
        one, "__module__", one
    ) == getattr(other, "__module__", other)


@functools.cache
def keys_of(typed: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns the annotations of a TypedDict by key, and the keys that are required.

    The class itself does not know the required keys where annotations are strings (`from __future__ import
    annotations`).
    """
    said = {key: get_origin(hint) for key, hint in get_type_hints(typed, include_extras=True).items()}
    required = {key for key, word in said.items() if word is Required or key in typed.__required_keys__}
    return hints_of(typed), frozenset(key for key in required if said[key] is not NotRequired)


def spelt(annotation: Any) -> str:
    """Returns an annotation as text."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
