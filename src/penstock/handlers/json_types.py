"""The types that arguments can have: which of them JSON can carry, their JSON form, and what is wrong with a value.

JSON carries int, float, str, bool, None, list, dict, Literal and TypedDict as they are. All other types are converted,
wherever they stand: to their JSON form at push, and back when the task runs. They are those with a form as text, enums,
tuples, sets, dicts with other keys than text, dataclasses, named tuples and Pydantic models.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from datetime import date, datetime
from enum import Enum, Flag
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

from penstock.errors import shown
from penstock.handlers.annotations import hints_of, is_dataclass, is_namedtuple, keys_of, spelt
from penstock.handlers.text_forms import TEXTS
from penstock.validate import shown_path

PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
ANYTHING = (Any, object)
GROUPS = (tuple, set, frozenset)  # a list in JSON
Leaf = Callable[[Any, Any, str], Any]  # converts a value of an annotation; the path says where it stands


class Unfit(Exception):
    """A value does not fit its annotation. The message says why, and where in the payload it stands."""


# --- which types a payload can carry ----------------------------------------------------------------------------------


def travels(annotation: Any, above: tuple[Any, ...] = ()) -> bool:
    """Returns whether a payload can carry a value of this type.

    `above` holds the enclosing classes: a TypedDict or a dataclass may contain itself.
    """
    if annotation in (*ANYTHING, *PLAIN, None, list, dict, *GROUPS, *TEXTS, *above) or is_model(annotation):
        return True
    if is_enum(annotation):
        return not issubclass(annotation, Flag) and all(type(member.value) in PLAIN for member in annotation)
    if is_typeddict(annotation) or is_dataclass(annotation) or is_namedtuple(annotation):
        return all(travels(one, (*above, annotation)) for one in hints_of(annotation).values())
    return parts_travel(get_origin(annotation), get_args(annotation), above)


def parts_travel(origin: Any, inner: tuple[Any, ...], above: tuple[Any, ...]) -> bool:
    """Returns whether a payload can carry a type that is made of others."""
    if origin is Literal:
        return all(type(one) in PLAIN for one in inner)
    if origin is dict:
        return is_key(inner[0]) and travels(inner[1], above)
    if origin in (set, frozenset) and not can_be_member(inner[0]):
        return False
    made = origin in (Union, types.UnionType, list, *GROUPS)
    return made and all(travels(one, above) for one in inner if one is not ...)


def is_key(annotation: Any) -> bool:
    """Returns whether a dict with keys of this type can be a JSON object, whose keys are text."""
    if is_enum(annotation):
        return travels(annotation) and {type(member.value) for member in annotation} in ({str}, {int})
    return annotation in (str, int, *TEXTS)


def can_be_member(annotation: Any) -> bool:
    """Returns whether all values of this type can be members of a set."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType, tuple):
        return all(can_be_member(one) for one in inner if one is not ...)
    return annotation in (*PLAIN, None, *TEXTS) or is_enum(annotation) or origin is Literal


def takes_object(annotation: Any) -> bool:
    """Returns whether the annotation accepts a JSON object."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(map(takes_object, inner))
    if is_typeddict(annotation) or is_dataclass(annotation) or is_namedtuple(annotation) or is_model(annotation):
        return True
    return annotation in (*ANYTHING, dict) or origin is dict


def is_enum(annotation: Any) -> bool:
    """Returns whether an annotation is an enum."""
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def is_model(annotation: Any) -> bool:
    """Returns whether an annotation is a Pydantic model. Penstock itself does not need Pydantic."""
    named = ("model_validate", "model_dump")
    return isinstance(annotation, type) and all(callable(getattr(annotation, name, None)) for name in named)


@functools.cache
def converts(annotation: Any) -> bool:
    """Returns whether values of this type are not JSON values, or contain some that are not."""
    return contains_converted(annotation, ())


def contains_converted(annotation: Any, above: tuple[Any, ...]) -> bool:
    """Returns whether this type, or a type in it, is converted. `above` holds the enclosing TypedDicts."""
    if is_leaf(annotation):
        return True
    if is_typeddict(annotation):
        hints = hints_of(annotation)
        return annotation not in above and any(contains_converted(one, (*above, annotation)) for one in hints.values())
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return False
    if origin in GROUPS or (origin is dict and get_args(annotation) and get_args(annotation)[0] is not str):
        return True
    return any(contains_converted(one, above) for one in get_args(annotation))


def is_leaf(annotation: Any) -> bool:
    """Returns whether values of this type are converted as a whole."""
    if not isinstance(annotation, type):
        return False
    if annotation in TEXTS or is_enum(annotation) or is_model(annotation):
        return True
    return is_dataclass(annotation) or is_namedtuple(annotation)


# --- to JSON and back -------------------------------------------------------------------------------------------------


def to_json(value: Any, annotation: Any, path: str) -> Any:
    """Returns the JSON form of a value. A value that is in its JSON form already is taken as it is."""
    return convert(value, annotation, path, write_leaf)


def from_json(value: Any, annotation: Any, path: str) -> Any:
    """Returns the value that a handler gets for a JSON form."""
    return convert(value, annotation, path, read_leaf)


def convert(value: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a value, part by part; `leaf` converts the parts that are converted as a whole."""
    if not converts(annotation):
        refuse_if(mismatch(value, annotation, path))
        return value
    if is_leaf(annotation):
        return leaf(value, annotation, path)
    by_type = convert_keys if is_typeddict(annotation) else CONTAINERS.get(get_origin(annotation) or annotation)
    return (by_type or convert_by_first)(value, annotation, path, leaf)


def convert_keys(value: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a TypedDict."""
    hints, required = keys_of(annotation)
    refuse_if(mismatch_of_keys(value, hints, required, path))
    return {key: convert(item, hints[key], f"{path}.{key}", leaf) for key, item in value.items()}


def convert_list(value: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a list."""
    refuse_if(mismatch_of_items(value, (), path))
    return [convert(item, get_args(annotation)[0], f"{path}[{n}]", leaf) for n, item in enumerate(value)]


def convert_group(value: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a tuple or a set, which is a list in JSON. The members of a set are written in their order."""
    origin = get_origin(annotation) or annotation
    writes = leaf is write_leaf
    if type(value) is not list and not (writes and type(value) in GROUPS):
        raise Unfit(unlike(value, "a list", path))
    items = [*value]
    hints = hints_of_items(annotation, len(items), path)
    found = [convert(item, hint, f"{path}[{n}]", leaf) for n, (item, hint) in enumerate(zip(items, hints, strict=True))]
    if not writes:
        return make_group(found, origin, path)
    return found if origin is tuple else sorted(found, key=order_of)


def hints_of_items(annotation: Any, count: int, path: str) -> list[Any]:
    """Returns the annotations of the items of a tuple or a set. A tuple of another length is refused."""
    inner = get_args(annotation)
    if annotation in GROUPS:
        return [Any] * count
    if get_origin(annotation) is not tuple or inner[1:] == (...,):
        return [inner[0]] * count
    if count != len(inner):
        raise Unfit(f"{shown_path(path)}: {count} items are not {len(inner)}")
    return [*inner]


def make_group(items: list[Any], origin: Any, path: str) -> Any:
    """Returns a tuple or a set of these items."""
    try:
        return origin(items)
    except TypeError:  # a set without an annotation of its members
        raise Unfit(f"{shown_path(path)}: a set has no lists or objects in it") from None


def order_of(item: Any) -> tuple[str, str]:
    """Returns the place of a member among those of a set, so that equal sets have equal payloads."""
    return type(item).__name__, f"{item:030}" if type(item) is int and item >= 0 else str(item)


def convert_dict(value: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a dict: its values, and its keys if they are not text."""
    refuse_if(mismatch_of_values(value, (), path))
    of_keys, of_values = get_args(annotation)
    keys = {key: convert_key(key, of_keys, path, leaf) for key in value}
    if len({*keys.values()}) < len(keys):
        raise Unfit(f"{shown_path(path)}: two of its keys are equal in JSON")
    return {keys[key]: convert(item, of_values, f"{path}.{key}", leaf) for key, item in value.items()}


def convert_key(key: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a key of a dict, which is text in JSON."""
    if annotation is str:
        return key
    if leaf is not write_leaf:
        return read_key(key, annotation, path)
    if type(key) is not str:
        return write_key(key, annotation, path)
    read_key(key, annotation, path)
    return key


def write_key(key: Any, annotation: Any, path: str) -> str:
    """Returns the text of a key."""
    if annotation is not int:
        return str(write_leaf(key, annotation, path))
    if type(key) is not int:
        raise Unfit(unlike(key, "a whole number", path))
    return str(key)


def read_key(key: str, annotation: Any, path: str) -> Any:
    """Returns the key that a text stands for."""
    if annotation is not int and not (is_enum(annotation) and all(type(one.value) is int for one in annotation)):
        return read_leaf(key, annotation, path)
    try:
        number = int(key)
    except ValueError:
        number = None
    if number is None or str(number) != key:
        raise Unfit(unlike(key, "a whole number as text", path))
    return number if annotation is int else read_leaf(number, annotation, path)


def convert_by_first(value: Any, annotation: Any, path: str, leaf: Leaf) -> Any:
    """Converts a value by the first member of a union that it fits."""
    for member in get_args(annotation):
        try:
            return convert(value, member, path, leaf)
        except Unfit:
            continue
    raise Unfit(unlike(value, spelt(annotation), path))


CONTAINERS: dict[Any, Callable[[Any, Any, str, Leaf], Any]] = {
    list: convert_list,
    dict: convert_dict,
    **dict.fromkeys(GROUPS, convert_group),
}


def write_leaf(value: Any, annotation: Any, path: str) -> Any:
    """Returns the JSON form of a value that is converted as a whole."""
    if not isinstance(value, annotation) or (annotation is date and isinstance(value, datetime)):
        read_leaf(value, annotation, path)
        return value
    if is_enum(annotation):
        return value.value
    if is_model(annotation):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if is_dataclass(annotation) or is_namedtuple(annotation):
        hints, _ = fields_of(annotation)
        return {name: to_json(getattr(value, name), hint, f"{path}.{name}") for name, hint in hints.items()}
    form = TEXTS[annotation]
    try:
        return form.write(value)
    except ValueError:
        raise Unfit(unlike(value, form.words, path)) from None


def read_leaf(value: Any, annotation: Any, path: str) -> Any:
    """Returns a value that is converted as a whole, from its JSON form."""
    if is_enum(annotation):
        return read_member(value, annotation, path)
    if is_model(annotation):
        return read_model(value, annotation, path)
    if is_dataclass(annotation) or is_namedtuple(annotation):
        return read_fields(value, annotation, path)
    form = TEXTS[annotation]
    try:
        if type(value) is str:
            return form.read(value)
    except ValueError:
        pass
    raise Unfit(unlike(value, form.words, path))


def read_member(value: Any, annotation: Any, path: str) -> Any:
    """Returns the member of an enum that has this value."""
    for member in annotation:
        if same(value, member.value):
            return member
    raise Unfit(unlike(value, f"a value of {spelt(annotation)}", path))


def read_model(value: Any, annotation: Any, path: str) -> Any:
    """Returns a Pydantic model. The message names the first field that it refuses."""
    if type(value) is not dict:
        raise Unfit(unlike(value, "an object", path))
    try:
        return annotation.model_validate(value)
    except ValueError as error:
        first = error.errors(include_url=False, include_input=False)[0]  # type: ignore[attr-defined]
        where = ".".join([path, *map(str, first["loc"])])
        raise Unfit(f"{shown_path(where)}: {first['msg']}") from None


def read_fields(value: Any, annotation: Any, path: str) -> Any:
    """Returns a dataclass or a named tuple. A field that is not in the payload gets its default."""
    hints, required = fields_of(annotation)
    refuse_if(mismatch_of_keys(value, hints, required, path))
    fields = {name: from_json(item, hints[name], f"{path}.{name}") for name, item in value.items()}
    try:
        return annotation(**fields)
    except (TypeError, ValueError) as error:  # from its own checks
        raise Unfit(f"{shown_path(path)}: {type(error).__name__}: {error}") from None


@functools.cache
def fields_of(annotation: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns the annotations of the fields of a dataclass or a named tuple that a call of it takes, and the names of
    the required ones."""
    hints = hints_of(annotation)
    if is_namedtuple(annotation):
        found = {name: hints.get(name, Any) for name in annotation._fields}
        return found, frozenset(found.keys() - annotation._field_defaults.keys())
    fields = [field for field in dataclasses.fields(annotation) if field.init]
    optional = {
        field.name
        for field in fields
        if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    }
    found = {field.name: hints[field.name] for field in fields}
    return found, frozenset(found.keys() - optional)


# --- what is wrong with a JSON value ----------------------------------------------------------------------------------


def mismatch(value: object, annotation: Any, path: str) -> str | None:
    """Returns a message that says what is wrong with a JSON value, or None if the value fits."""
    if annotation in ANYTHING:
        return None
    if converts(annotation):
        return mismatch_of_converted(value, annotation, path)
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType, Literal):
        alike = same if origin is Literal else fitted
        return None if any(alike(value, one) for one in inner) else unlike(value, spelt(annotation), path)
    if is_typeddict(annotation):
        return mismatch_of_parts(value, annotation, path)
    if origin in (list, dict):
        return (mismatch_of_items if origin is list else mismatch_of_values)(value, inner, path)
    return mismatch_of_plain(value, annotation, path)


def fitted(value: object, annotation: Any) -> bool:
    """Returns whether a JSON value fits an annotation."""
    return mismatch(value, annotation, "") is None


def same(value: object, literal: object) -> bool:
    """Returns whether a value equals a literal and has the same type."""
    return type(value) is type(literal) and value == literal


def mismatch_of_converted(value: object, annotation: Any, path: str) -> str | None:
    """Returns a message if the value is not the JSON form of a type that is converted."""
    try:
        from_json(value, annotation, path)
    except Unfit as error:
        return str(error)
    return None


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


def mismatch_of_keys(value: object, hints: dict[str, Any], required: frozenset[str], path: str) -> str | None:
    """Returns a message if the value is not an object, or if a key of it is missing or unknown."""
    if type(value) is not dict:
        return unlike(value, "an object", path)
    missing = required - value.keys()
    unknown = value.keys() - hints.keys()
    if not missing and not unknown:
        return None
    key = shown(min(missing or unknown, key=str))
    return f"{shown_path(path)}: {key} is {'missing' if missing else 'not one of its keys'}"


def mismatch_of_parts(value: Any, annotation: Any, path: str) -> str | None:
    """Returns a message if the value does not fit a TypedDict."""
    hints, required = keys_of(annotation)
    wrong = mismatch_of_keys(value, hints, required, path)
    parts = () if wrong else value.items()
    return wrong or next((bad for key, item in parts if (bad := mismatch(item, hints[key], f"{path}.{key}"))), None)


def unlike(value: object, words: str, path: str) -> str:
    """Returns the message for a value that is not what the handler expects."""
    return f"{shown_path(path)}: {shown(value)} is not {words}"


def refuse_if(wrong: str | None) -> None:
    """Raises a message about a value, if there is one."""
    if wrong:
        raise Unfit(wrong)
