"""Arguments of handlers: they fit the annotations, and are checked where the mistake is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import GenericAlias
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict, Union, is_typeddict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import Connection

from penstock import (
    AsyncContext,
    ConfigError,
    Context,
    Handler,
    NewTask,
    PayloadError,
    Penstock,
    Queue,
    Task,
    ValidationError,
)
from penstock.handlers.arguments import Arguments


class Line(TypedDict):
    article: str
    count: int
    gift: NotRequired[bool]


class Parcel(TypedDict, total=False):
    weight: Required[float]
    lines: list[Line]


class Node(TypedDict):
    """A type that contains itself."""

    name: str
    below: list[Node]


class Measure(TypedDict):
    took: bytearray


class Unreadable(TypedDict):
    at: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Colour(Enum):
    RED = "red"


def taking(annotation: Any) -> Arguments:
    """The arguments of a handler with one argument `x` of this annotation."""

    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    return Arguments.of(handler)


def refusal(arguments: Arguments, payload: dict[str, Any]) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        arguments.check(payload)
    return refused.value


CHOICE = Literal["a", 1, None]  # noqa: PYI061 - users write it like this
LINE = {"article": "tea", "count": 2}
FITS: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [0, -5, 2**62], [True, 1.0, "1", None, [1]]),
    (float, [1.5, -0.0, 3], [True, "1.5", None]),
    (str, ["", "ü"], [b"x", 1, None, ["a"]]),
    (bool, [True, False], [0, 1, "true", None]),
    (None, [None], [0, "", False]),
    (list, [[], [1, "a", None], (1, 2)], ["ab", {}, None, {1}]),
    (list[int], [[], [1], (1, 2)], [[1, "a"], [True], [[1]], "1"]),
    (list[list[str]], [[], [[]], [["a"], []]], [["a"], [[1]]]),
    (dict, [{}, {"a": 1}], [[], None, "a"]),
    (dict[str, int], [{}, {"a": 1}], [{"a": "1"}, {"a": True}, []]),
    (dict[str, list[int]], [{"a": [1]}], [{"a": 1}, {"a": ["1"]}]),
    (CHOICE, ["a", 1, None], ["b", True, 1.0, 2]),
    (Literal[True], [True], [1, False]),
    (int | None, [1, None], ["1", True, 1.5]),
    (Union[int, str], [1, "1"], [None, 1.5]),  # noqa: UP007 - users write it like this
    (list[int] | dict[str, str], [[1], {"a": "b"}, {}], [["1"], {"a": 1}]),
    (Line, [LINE, LINE | {"gift": True}], [{}, {"article": "tea"}, LINE | {"gift": 1}, LINE | {"size": 1}, [], None]),
    (Parcel, [{"weight": 1}, {"weight": 1.5, "lines": [LINE]}], [{}, {"lines": []}, {"weight": 1, "lines": [{}]}]),
    (Node, [{"name": "a", "below": [{"name": "b", "below": []}]}], [{"name": "a", "below": [{"name": "b"}]}]),
    (Annotated[int, "a count"], [1], ["1"]),
    (Any, [None, 1, "a", [], {"a": [1]}], []),
    (object, [None, 1, "a", [], {"a": [1]}], []),
]
TAKEN = [(annotation, value) for annotation, good, _ in FITS for value in good]
REFUSED = [(annotation, value) for annotation, _, bad in FITS for value in bad]


@pytest.mark.parametrize(("annotation", "value"), TAKEN)
def test_a_value_that_fits_its_annotation_is_taken_as_it_is(annotation: Any, value: Any) -> None:
    assert taking(annotation).check({"x": value})["x"] is value
    assert taking(annotation).payload([value], {}) == {"x": value}


@pytest.mark.parametrize(("annotation", "value"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_with_the_name_of_the_argument(annotation: Any, value: Any) -> None:
    error = refusal(taking(annotation), {"x": value})
    assert error.field == "x"
    assert error.message.startswith("x")


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "forty-two", "x: 'forty-two' is not a whole number"),
        (float, "1", "x: '1' is not a number"),
        (str, 1, "x: 1 is not text"),
        (bool, 1, "x: 1 is not true or false"),
        (None, 1, "x: 1 is not null"),
        (list[int], 1, "x: 1 is not a list"),
        (list[int], [1, "2"], "x[1]: '2' is not a whole number"),
        (dict[str, int], 1, "x: 1 is not an object"),
        (dict[str, int], {"a": None}, "x.a: None is not a whole number"),
        (dict[str, list[bool]], {"a": [True, 0]}, "x.a[1]: 0 is not true or false"),
        (Literal["a", 1], "b", "x: 'b' is not Literal['a', 1]"),
        (int | None, "1", "x: '1' is not int | None"),
        (Line, 1, "x: 1 is not an object"),
        (Line, {"count": 1}, "x: 'article' is missing"),
        (Line, LINE | {"size": 1}, "x: 'size' is not one of its keys"),
        (Line, LINE | {"size": 1, 7: 2}, "x: 7 is not one of its keys"),
        (Line, LINE | {"count": "2"}, "x.count: '2' is not a whole number"),
        (Parcel, {"weight": 1, "lines": [LINE, {"article": "tea"}]}, "x.lines[1]: 'count' is missing"),
        (int, "a" * 200, "x: '" + "a" * 78 + "… is not a whole number"),
        (dict[str, int], {"\x1b[31m": "1"}, "x.\\x1b[31m: '1' is not a whole number"),
        (dict[str, int], {"k" * 1000: "1"}, "x." + "k" * 55 + "\\u2026: '1' is not a whole number"),
    ],
)
def test_the_message_names_the_place_the_value_and_what_was_expected(annotation: Any, value: Any, message: str) -> None:
    assert refusal(taking(annotation), {"x": value}).message == message


# --- the shape of the call --------------------------------------------------------------------------------------------


def order(order_id: int, note: str = "none", *, express: bool = False) -> None: ...


def anything(n: int, **rest: Any) -> None: ...


def scores(**points: int) -> None: ...


def test_arguments_are_given_by_position_or_by_name() -> None:
    arguments = Arguments.of(order)
    assert arguments.payload([7], {}) == arguments.payload([], {"order_id": 7}) == {"order_id": 7}
    assert arguments.payload([7, "soon"], {"express": True}) == {"order_id": 7, "note": "soon", "express": True}


def test_a_default_is_left_to_the_handler_of_the_day_it_runs() -> None:
    assert Arguments.of(order).payload([7], {}) == {"order_id": 7}


@pytest.mark.parametrize(
    ("places", "names", "field", "message"),
    [
        ([], {}, "order_id", "order_id: it is missing"),
        ([], {"note": "x"}, "order_id", "order_id: it is missing"),
        ([7], {"colour": 1}, "colour", "'colour': the handler takes no such argument"),
        ([7, "x", True], {}, "arguments", "arguments: too many positional arguments"),
        ([7], {"order_id": 8}, "arguments", "arguments: multiple values for argument 'order_id'"),
        (["7"], {}, "order_id", "order_id: '7' is not a whole number"),
        ([7, None], {}, "note", "note: None is not text"),
    ],
)
def test_a_call_that_could_not_be_made_is_refused(
    places: list[Any], names: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Arguments.of(order).payload(places, names)
    assert (refused.value.field, refused.value.message) == (field, message)


def test_missing_and_unknown_arguments_come_with_the_signature() -> None:
    for names in ({}, {"order_id": 1, "colour": 1}):
        with pytest.raises(ValidationError) as refused:
            Arguments.of(order).payload([], names)
        assert refused.value.hint == "It takes (order_id: int, note: str = 'none', *, express: bool = False)."


def test_an_argument_without_an_annotation_may_be_anything() -> None:
    arguments = Arguments.of(lambda a, b=None: (a, b))
    values: list[Any] = [1, "a", None, [{}]]
    for value in values:
        assert arguments.payload([value], {}) == {"a": value}


def test_a_handler_with_rest_takes_more_than_it_names() -> None:
    arguments = Arguments.of(anything)
    assert arguments.payload([1], {"colour": "red", "deep": {"a": []}}) == {
        "n": 1,
        "colour": "red",
        "deep": {"a": []},
    }
    assert refusal(arguments, {"n": "1", "colour": "red"}).field == "n"
    assert refusal(arguments, {"colour": "red"}).message == "n: it is missing"


def test_the_annotation_of_the_rest_counts_too() -> None:
    arguments = Arguments.of(scores)
    assert arguments.payload([], {"ann": 1, "bob": 2}) == {"ann": 1, "bob": 2}
    assert refusal(arguments, {"ann": 1, "bob": "2"}).message == "bob: '2' is not a whole number"


# --- the whole payload ------------------------------------------------------------------------------------------------


def whole(payload: dict[str, Any]) -> None: ...


def whole_line(payload: Line) -> None: ...


def whole_or_nothing(payload: dict[str, int] | None = None) -> None: ...


def beside(payload: int, n: int) -> None: ...


def rest_called_payload(**payload: int) -> None: ...


def test_a_lone_parameter_called_payload_is_the_payload_as_it_is() -> None:
    arguments = Arguments.of(whole)
    assert arguments.payload([{"a": 1, "subject": "x"}], {}) == {"a": 1, "subject": "x"}
    assert arguments.payload([], {"payload": {"a": 1}}) == {"a": 1}
    assert arguments.call(task({"a": 1}), None) == {"payload": {"a": 1}}


@pytest.mark.parametrize("value", [None, 1, "a", [], [{}]])
def test_a_whole_payload_is_an_object(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"^payload: ") as refused:
        Arguments.of(lambda payload: payload).payload([value], {})
    assert refused.value.field == "payload"


def test_a_whole_payload_is_checked_by_its_annotation() -> None:
    assert Arguments.of(whole_line).payload([LINE], {}) == LINE
    with pytest.raises(ValidationError, match=r"^payload: 'count' is missing"):
        Arguments.of(whole_line).payload([{"article": "tea"}], {})


def test_a_whole_payload_is_given_or_has_a_default() -> None:
    assert Arguments.of(whole_or_nothing).payload([], {}) == {}
    with pytest.raises(ValidationError, match=r"^payload: it is missing"):
        Arguments.of(whole).payload([], {})
    with pytest.raises(ValidationError, match=r"^'a': the handler takes no such argument"):
        Arguments.of(whole_or_nothing).payload([], {"a": 1})


def test_payload_is_an_argument_as_any_where_it_is_not_alone() -> None:
    assert Arguments.of(beside).payload([1, 2], {}) == {"payload": 1, "n": 2}
    assert Arguments.of(rest_called_payload).payload([], {"a": 1}) == {"a": 1}
    assert Arguments.of(rest_called_payload).call(task({"a": 1}), None) == {"a": 1}


# --- the task and the context -----------------------------------------------------------------------------------------


def task(payload: dict[str, Any]) -> Task:
    return Task(1, "k", None, payload, 5, 1, 0, 0, 0)


def with_both(work: Task, n: int, ctx: Context) -> None: ...


async def with_both_async(ctx: AsyncContext, n: int, *, work: Task) -> None: ...


def with_a_reserved_name(subject: Task, kind: Context) -> None: ...


def with_payload_and_context(payload: dict[str, Any], context: Context) -> None: ...


def open_with_context(ctx: Context, **rest: Any) -> None: ...


@pytest.mark.parametrize(("handler", "wanted"), [(with_both, Context), (with_both_async, AsyncContext)])
def test_task_and_context_are_known_by_their_annotations(handler: Callable[..., Any], wanted: type) -> None:
    arguments = Arguments.of(handler, wanted=wanted)
    assert (arguments.task, arguments.context, [*arguments.types]) == ("work", "ctx", ["n"])
    assert arguments.payload([3], {}) == {"n": 3}
    one, given_context = task({"n": 3}), object()
    assert arguments.call(one, given_context) == {"n": 3, "work": one, "ctx": given_context}
    assert one.payload == {"n": 3}, "the task's own payload is left alone"


def test_task_and_context_may_have_any_name() -> None:
    arguments = Arguments.of(with_a_reserved_name)
    assert (arguments.task, arguments.context, arguments.payload([], {})) == ("subject", "kind", {})


def test_a_payload_is_alone_beside_the_context() -> None:
    assert Arguments.of(with_payload_and_context).payload([{"a": 1}], {}) == {"a": 1}


@pytest.mark.parametrize("handler", [with_both, open_with_context])
def test_a_payload_cannot_name_the_context(handler: Callable[..., Any]) -> None:
    with pytest.raises(ValidationError, match=r"^'ctx': the handler takes no such argument"):
        Arguments.of(handler).payload([], {"n": 1, "ctx": 5})


def test_what_sql_pushed_is_checked_when_it_runs() -> None:
    with pytest.raises(ValidationError, match="n: 'x' is not a whole number"):
        Arguments.of(with_both).call(task({"n": "x"}), object())


# --- other things that can be called ----------------------------------------------------------------------------------


class Greeter:
    def __call__(self, name: str, ctx: Context) -> None: ...

    def greet(self, name: str) -> None: ...


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return around


@pytest.mark.parametrize(
    "handler", [Greeter(), Greeter().greet, functools.partial(with_both, n=1), logged(order)], ids=type
)
def test_objects_methods_partials_and_wrapped_functions_are_read_too(handler: Callable[..., Any]) -> None:
    arguments = Arguments.of(handler)
    assert arguments.types.keys() <= {"name", "n", "order_id", "note", "express"}
    assert refusal(arguments, {"name": 1, "n": "1", "order_id": "1"})


# --- refused at decoration --------------------------------------------------------------------------------------------


def refused_at_decoration(handler: Callable[..., Any], wanted: type = Context) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        Arguments.of(handler, wanted=wanted)
    return refused.value


RESERVED_NAMES = [
    *("subject", "due", "delay", "priority", "kind", "connection", "on_conflict", "key", "meta", "expires"),
    *("debounce", "at_most", "throttle"),
]


@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_a_name_that_push_has_is_refused(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def handler({name}: int) -> None: ...", space)
    assert f"handler({name}): a push has an argument of that name" in refused_at_decoration(space["handler"]).message


def test_every_argument_of_push_is_reserved() -> None:
    named = [one.name for one in inspect.signature(Handler.push).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert {*named} <= {*RESERVED_NAMES}


def positional_only(a: int, /) -> None: ...


def starred(*a: int) -> None: ...


def positional_only_task(work: Task, /) -> None: ...


def starred_context(*ctx: Context) -> None: ...


@pytest.mark.parametrize("handler", [positional_only, starred, positional_only_task, starred_context])
def test_parameters_without_a_name_are_refused(handler: Callable[..., Any]) -> None:
    assert "payloads have names" in refused_at_decoration(handler).message


@pytest.mark.parametrize(
    "annotation",
    [
        bytearray,
        complex,
        range,
        dict[float, str],
        int | list[dict[str, memoryview]],
        Sequence[complex],
        Mapping[tuple[int, int], int],
        Literal[Colour.RED],
        Literal[b"x"],
        Measure,
        list[Measure],
        {"a": int},
        Task | None,
        Context | None,
    ],
    ids=str,
)
def test_types_that_are_not_json_are_refused(annotation: Any) -> None:
    with pytest.raises(ConfigError, match=r"handler\(x\): .* does not travel as JSON") as refused:
        taking(annotation)
    assert refused.value.hint is not None
    assert "TypedDict" in refused.value.hint


def test_so_is_the_annotation_of_the_rest() -> None:
    def handler(**rest: complex) -> None: ...

    assert "complex does not travel as JSON" in refused_at_decoration(handler).message


def sync_with_async_context(ctx: AsyncContext) -> None: ...


async def async_with_context(ctx: Context) -> None: ...


def with_two_contexts(one: Context, other: Context) -> None: ...


@pytest.mark.parametrize(
    ("handler", "wanted", "words"),
    [
        (sync_with_async_context, Context, "a sync handler gets Context"),
        (async_with_context, AsyncContext, "an async handler gets AsyncContext"),
        (with_two_contexts, Context, "and one is enough"),
    ],
)
def test_sync_handlers_have_a_sync_context_and_async_ones_an_async_context(
    handler: Callable[..., Any], wanted: type, words: str
) -> None:
    error = refused_at_decoration(handler, wanted)
    assert words in error.message
    assert error.hint is not None
    assert wanted.__name__ in error.hint


def test_annotations_that_cannot_be_read_are_refused() -> None:
    def handler(x: Any) -> None: ...

    for annotation in ("Nowhere", "list[", "1 +"):
        handler.__annotations__["x"] = annotation
        error = refused_at_decoration(handler)
        assert "its annotations cannot be read" in error.message
        assert error.hint == "Import what they name at the top of the module, not below `if TYPE_CHECKING`."


def test_annotations_of_a_typed_dict_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="Unreadable: its annotations cannot be read"):
        taking(Unreadable)


@pytest.mark.parametrize("annotation", [int, str, list[int], None, int | str])
def test_a_lone_payload_that_could_never_be_an_object_is_refused(annotation: Any) -> None:
    def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = annotation
    assert "handler(payload): alone it is the whole payload" in refused_at_decoration(handler).message


# --- at push, on a real queue -----------------------------------------------------------------------------------------


def stored(sql: Connection) -> list[Any]:
    return [payload for (payload,) in sql.execute("select payload from penstock.task order by id")]


def test_a_push_writes_the_arguments_of_a_call(app: Penstock, queue: Queue, sql: Connection) -> None:
    handler = app.task(queue="work", kind="order", priority=2)(order)
    handler.push(1)
    handler.push(order_id=2, note="soon", subject="order:2", priority=7)
    assert stored(sql) == [{"order_id": 1}, {"order_id": 2, "note": "soon"}]
    rows = sql.execute("select kind, subject, priority from penstock.tasks order by id").fetchall()
    assert rows == [("order", None, 2), ("order", "order:2", 7)]


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({}, "order_id", "missing"),
        ({"order_id": "7"}, "order_id", "'7'"),
        ({"order_id": True}, "order_id", "True"),
        ({"order_id": 7, "note": None}, "note", "None"),
        ({"order_id": 7, "colour": "red"}, "colour", "'colour'"),
    ],
)
def test_a_wrong_missing_or_unknown_argument_writes_nothing(
    app: Penstock, queue: Queue, arguments: dict[str, Any], field: str, value: str
) -> None:
    handler = app.task(queue="work")(order)
    with pytest.raises(ValidationError) as refused:
        handler.push(**arguments)
    assert refused.value.field == field
    assert field in refused.value.message
    assert value in refused.value.message
    assert queue.status().totals["pushed"] == 0


def test_push_many_names_the_item_and_writes_nothing(app: Penstock, queue: Queue) -> None:
    handler = app.task(queue="work")(order)
    good = [{"order_id": n} for n in range(1500)]
    for bad, words in (
        ({"order_id": "x"}, "order_id: 'x' is not a whole number"),
        ({}, "order_id: it is missing"),
        (None, "order_id: it is missing"),
        ({"order_id": 1, "colour": 1}, "'colour': the handler takes no such argument"),
        (NewTask({"order_id": None}), "order_id: None is not a whole number"),
        ([1], r"arguments: \[1\] is not a dict of arguments"),
    ):
        with pytest.raises(ValidationError, match=f"^item 1500: {words}") as refused:
            handler.push_many([*good, bad, *good])  # type: ignore[list-item]
        assert refused.value.index == 1500
    assert queue.status().totals["pushed"] == 0


def test_push_many_takes_dicts_and_new_tasks(app: Penstock, queue: Queue, sql: Connection) -> None:
    handler = app.task(queue="work", kind="order", priority=2)(order)
    report = handler.push_many(one for one in ({"order_id": 1}, NewTask({"order_id": 2}, "order:2", kind="ignored")))
    assert report.created == 2
    rows = sql.execute("select kind, subject, priority, payload from penstock.tasks order by id").fetchall()
    assert rows == [("order", None, 2, {"order_id": 1}), ("order", "order:2", 5, {"order_id": 2})]


def test_what_fits_but_is_not_json_is_still_refused(app: Penstock, queue: Queue) -> None:
    handler = app.task(queue="work")(anything)
    for value in (float("nan"), {1: 2}, object(), "\x00"):
        with pytest.raises(PayloadError):
            handler.push(1, extra=value)
        with pytest.raises(PayloadError, match=r"^item 1: "):
            handler.push_many([{"n": 1}, {"n": 1, "extra": value}])
    assert queue.status().totals["pushed"] == 0


# --- the quick answer and the words -----------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "ctx")
ANNOTATIONS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([int, float, str, bool, None, Any, object, list, dict, CHOICE, Line, Parcel, Node]),
    lambda inner: st.one_of(
        inner.map(lambda one: GenericAlias(list, (one,))),
        inner.map(lambda one: GenericAlias(dict, (str, one))),
        st.tuples(inner, inner).map(Union.__getitem__),
    ),
    max_leaves=5,
)
TEXTS = st.sampled_from(["", "a", "ü"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation, by a second definition."""
    if annotation in (Any, object):
        return JSON
    if annotation is list:
        return st.lists(JSON, max_size=3)
    if annotation is dict:
        return st.dictionaries(TEXTS, JSON, max_size=3)
    if is_typeddict(annotation):
        return TYPED_DICTS[annotation]
    if isinstance(annotation, GenericAlias):
        inner = values_of(annotation.__args__[-1])
        return st.lists(inner, max_size=3) if annotation.__origin__ is list else st.dictionaries(TEXTS, inner)
    if annotation == CHOICE:
        return st.sampled_from(["a", 1, None])
    if hasattr(annotation, "__args__"):
        return st.one_of([values_of(one) for one in annotation.__args__])
    return PLAIN[annotation]


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False) | st.integers(),
    str: st.text(max_size=3),
    bool: st.booleans(),
    None: st.none(),
    type(None): st.none(),
}
LINES = st.fixed_dictionaries(
    {"article": st.text(max_size=3), "count": st.integers()}, optional={"gift": st.booleans()}
)
NODES: st.SearchStrategy[Any] = st.recursive(
    st.just({"name": "leaf", "below": []}),
    lambda inner: st.fixed_dictionaries({"name": st.text(max_size=3), "below": st.lists(inner, max_size=2)}),
    max_leaves=3,
)
TYPED_DICTS: dict[Any, st.SearchStrategy[Any]] = {
    Line: LINES,
    Parcel: st.fixed_dictionaries({"weight": st.floats(0, 10)}, optional={"lines": st.lists(LINES, max_size=2)}),
    Node: NODES,
}


def required_and_optional(a: Any, b: Any = None) -> None: ...


def required_and_rest(a: Any, ctx: Context, **rest: Any) -> None: ...


@settings(deadline=None, max_examples=300)
@given(
    base=st.sampled_from([required_and_optional, required_and_rest]),
    annotations=st.tuples(ANNOTATIONS, ANNOTATIONS),
    data=st.data(),
)
def test_the_quick_answer_is_yes_exactly_when_nothing_is_refused(
    base: Callable[..., Any], annotations: tuple[Any, Any], data: st.DataObject
) -> None:
    handler = functools.wraps(base)(lambda **_: None)
    first, second = annotations
    handler.__annotations__ = base.__annotations__ | {"a": first, "b": second, "rest": second}
    arguments = Arguments.of(handler)
    values = JSON | values_of(first) | values_of(second)
    payload = data.draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=3))
    if arguments.suits(payload):
        arguments.refuse(payload)
        assert arguments.check(payload) is payload
    else:
        with pytest.raises(ValidationError) as refused:
            arguments.refuse(payload)
        assert refused.value.field in NAMES


@settings(deadline=None, max_examples=300)
@given(annotation=ANNOTATIONS, data=st.data())
def test_values_that_fit_are_taken(annotation: Any, data: st.DataObject) -> None:
    payload = {"x": data.draw(values_of(annotation))}
    assert taking(annotation).suits(payload)
