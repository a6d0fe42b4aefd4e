"""Arguments of types that JSON does not have: their form in a payload, at push and when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from typing import Annotated, Any, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import Connection
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from conftest import Clock
from penstock import ConfigError, Context, NewTask, Penstock, Queue, Task, ValidationError
from penstock.handlers.arguments import Arguments

MOMENT = datetime(2030, 1, 31, 9, tzinfo=timezone(timedelta(hours=1)))
ID = UUID("6d2f8a1c-0d5e-4c62-9c57-0b1f4c6f2a11")


class Priority(IntEnum):
    LOW = 1
    HIGH = 2


class Channel(Enum):
    MAIL = "mail"
    POST = "post"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Odd(Enum):
    TIMES = (1, 2)


class Visit(TypedDict):
    at: datetime
    note: NotRequired[str]


@dataclass
class Line:
    article: UUID
    price: Decimal
    count: int = 1


@dataclass
class Order:
    customer: str
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    total: Decimal = field(init=False, default=Decimal(0))

    def __post_init__(self) -> None:
        if not self.customer:
            raise ValueError("a customer has a name")
        self.total = sum((line.price * line.count for line in self.lines), Decimal(0))


@dataclass
class Folder:
    name: str
    made: date
    inside: list[Folder] = field(default_factory=list)


@dataclass
class Hidden:
    shown: int
    salt: InitVar[int]


class Point(NamedTuple):
    x: int
    y: Decimal = Decimal(0)


CustomerId = NewType("CustomerId", int)
OrderId = NewType("OrderId", UUID)
Dates = TypeAliasType("Dates", list[date])  # what `type Dates = list[date]` makes


class Parcel(BaseModel):
    weight: Decimal = Field(gt=0)
    sent: datetime | None = None
    to_street: str = Field(alias="street")


LINE = Line(ID, Decimal("12.50"), 3)
ORDER = Order("Ann", MOMENT, [LINE])
ORDER_JSON = {
    "customer": "Ann",
    "placed": "2030-01-31T09:00:00+01:00",
    "lines": [{"article": str(ID), "price": "12.50", "count": 3}],
}
PARCEL = Parcel(weight=Decimal("0.50"), sent=MOMENT, street="High Street")
PARCEL_JSON = {"weight": "0.50", "sent": "2030-01-31T09:00:00+01:00", "street": "High Street"}


def taking(annotation: Any) -> Arguments:
    """Returns the arguments of a handler with one argument `x` of this type."""

    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    return Arguments.of(handler)


def task(payload: dict[str, Any]) -> Task:
    return Task(1, "k", None, payload, 5, 1, 0, 0, 0)


FORMS: list[tuple[Any, Any, Any]] = [
    (datetime, MOMENT, "2030-01-31T09:00:00+01:00"),
    (date, date(2030, 1, 31), "2030-01-31"),
    (UUID, ID, "6d2f8a1c-0d5e-4c62-9c57-0b1f4c6f2a11"),
    (Decimal, Decimal("12.50"), "12.50"),
    (Decimal, Decimal("-1E+30"), "-1E+30"),
    (Channel, Channel.POST, "post"),
    (Priority, Priority.HIGH, 2),
    (Line, LINE, {"article": str(ID), "price": "12.50", "count": 3}),
    (Order, ORDER, ORDER_JSON),
    (Parcel, PARCEL, PARCEL_JSON),
    (time, time(9, 30), "09:30:00"),
    (time, time(9, 30, 0, 500_000, tzinfo=UTC), "09:30:00.500000+00:00"),
    (timedelta, timedelta(days=1, hours=1, minutes=30), "P1DT5400S"),
    (timedelta, timedelta(), "PT0S"),
    (timedelta, timedelta(days=-2), "-P2D"),
    (timedelta, timedelta(microseconds=-1_500_000), "-PT1.5S"),
    (bytes, b"hello", "aGVsbG8="),
    (bytes, b"", ""),
    (tuple, (1, "a"), [1, "a"]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (tuple[date, ...], (date(2030, 1, 31),), ["2030-01-31"]),
    (tuple[int, ...], (), []),
    (tuple[()], (), []),
    (set[int], {10, 9, 1}, [1, 9, 10]),
    (set[UUID | None], {ID}, [str(ID)]),
    (frozenset[Channel], frozenset({Channel.POST, Channel.MAIL}), ["mail", "post"]),
    (set[tuple[int, date]], {(2, date(2030, 1, 31))}, [[2, "2030-01-31"]]),
    (frozenset, frozenset({"b", "a"}), ["a", "b"]),
    (dict[int, date], {7: date(2030, 1, 31), -1: date(2030, 2, 1)}, {"7": "2030-01-31", "-1": "2030-02-01"}),
    (dict[UUID, int], {ID: 1}, {str(ID): 1}),
    (dict[Channel, int], {Channel.MAIL: 1}, {"mail": 1}),
    (dict[Priority, list[bytes]], {Priority.HIGH: [b"x"]}, {"2": ["eA=="]}),
    (Point, Point(1, Decimal("0.5")), {"x": 1, "y": "0.5"}),
    (list[Point], [Point(1)], [{"x": 1, "y": "0"}]),
    (Sequence[date], [date(2030, 1, 31)], ["2030-01-31"]),
    (Mapping[int, Sequence[int]], {1: [2]}, {"1": [2]}),
    (CustomerId, 7, 7),
    (list[OrderId], [ID], [str(ID)]),
    (Dates, [date(2030, 1, 31)], ["2030-01-31"]),
    (Annotated[date, "of birth"] | None, date(2030, 1, 31), "2030-01-31"),
    (datetime | None, None, None),
    (datetime | None, MOMENT, "2030-01-31T09:00:00+01:00"),
    (int | UUID, 7, 7),
    (int | UUID, ID, str(ID)),
    (list[date], [date(2030, 1, 31)], ["2030-01-31"]),
    (dict[str, Channel], {"first": Channel.MAIL}, {"first": "mail"}),
    (dict[str, list[UUID | None]], {"a": [ID, None]}, {"a": [str(ID), None]}),
    (Visit, {"at": MOMENT}, {"at": "2030-01-31T09:00:00+01:00"}),
    (
        Folder,
        Folder("a", date(2030, 1, 31), [Folder("b", date(2030, 2, 1))]),
        {"name": "a", "made": "2030-01-31", "inside": [{"name": "b", "made": "2030-02-01", "inside": []}]},
    ),
]


@pytest.mark.parametrize(("annotation", "value", "form"), FORMS)
def test_a_value_becomes_json_at_push_and_the_value_again_when_the_task_runs(
    annotation: Any, value: Any, form: Any
) -> None:
    arguments = taking(annotation)
    assert arguments.payload([value], {}) == {"x": form}
    assert arguments.call(task({"x": form}), None) == {"x": value}
    assert type(arguments.call(task({"x": form}), None)["x"]) is type(value)


@pytest.mark.parametrize(("annotation", "value", "form"), FORMS)
def test_a_value_in_its_json_form_is_pushed_as_it_is(annotation: Any, value: Any, form: Any) -> None:
    assert taking(annotation).payload([form], {}) == {"x": form}


@given(
    st.one_of(
        st.tuples(st.just(datetime), st.datetimes(timezones=st.just(UTC))),
        st.tuples(st.just(date), st.dates()),
        st.tuples(st.just(UUID), st.uuids()),
        st.tuples(st.just(Decimal), st.decimals(allow_nan=False, allow_infinity=False)),
        st.tuples(st.just(Channel), st.sampled_from(Channel)),
        st.tuples(st.just(time), st.times()),
        st.tuples(st.just(timedelta), st.timedeltas()),
        st.tuples(st.just(bytes), st.binary()),
        st.tuples(st.just(set[int]), st.sets(st.integers(-(2**63), 2**63 - 1))),
        st.tuples(st.just(set[str | bool | None]), st.sets(st.text() | st.booleans() | st.none())),
        st.tuples(st.just(tuple[date, str]), st.tuples(st.dates(), st.text())),
        st.tuples(st.just(dict[int, time]), st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.times())),
        st.tuples(st.just(dict[timedelta, int]), st.dictionaries(st.timedeltas(), st.integers(0, 9))),
    )
)
def test_every_value_comes_back_as_it_was(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    arguments = taking(annotation)
    assert arguments.call(task(arguments.payload([value], {})), None) == {"x": value}


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (datetime, datetime(2030, 1, 1), "x: datetime.datetime(2030, 1, 1, 0, 0) is not a moment with a time zone"),  # noqa: DTZ001 - it is refused
        (datetime, "2030-01-31T09:00:00", "x: '2030-01-31T09:00:00' is not a moment with a time zone"),
        (datetime, "soon", "x: 'soon' is not a moment with a time zone"),
        (datetime, 1893456000, "x: 1893456000 is not a moment"),
        (date, MOMENT, "x: datetime.datetime(2030, 1, 31, 9, 0, tzinfo="),
        (date, "2030-02-31", "x: '2030-02-31' is not a date, such as 2030-01-31"),
        (UUID, "6d2f8a1c", "x: '6d2f8a1c' is not a UUID"),
        (UUID, 7, "x: 7 is not a UUID"),
        (Decimal, 12.5, "x: 12.5 is not a decimal number as text"),
        (Decimal, "12,50", "x: '12,50' is not a decimal number as text"),
        (Decimal, Decimal("NaN"), "x: Decimal('NaN') is not a decimal number"),
        (Decimal, "Infinity", "x: 'Infinity' is not a decimal number"),
        (Channel, "fax", "x: 'fax' is not a value of Channel"),
        (Priority, True, "x: True is not a value of Priority"),
        (list[date], [date(2030, 1, 1), "x"], "x[1]: 'x' is not a date"),
        (dict[str, Channel], {"a": 1}, "x.a: 1 is not a value of Channel"),
        (datetime | None, "soon", "x: 'soon' is not datetime.datetime | None"),
        (time, "25:00", "x: '25:00' is not a time of day, such as 09:30:00"),
        (time, MOMENT, "x: datetime.datetime("),
        (timedelta, "5m", "x: '5m' is not a length of time, such as P1DT5400S"),
        (timedelta, "P", "x: 'P' is not a length of time"),
        (timedelta, "PT", "x: 'PT' is not a length of time"),
        (timedelta, "P1M", "x: 'P1M' is not a length of time"),
        (timedelta, "P9999999999D", "x: 'P9999999999D' is not a length of time"),
        (timedelta, 300, "x: 300 is not a length of time"),
        (bytes, "hello", "x: 'hello' is not bytes in base64"),
        (bytes, "é", "x: '\\xe9' is not bytes in base64"),
        (tuple[int, str], (1,), "x: 1 items are not 2"),
        (tuple[int, str], [1, 2], "x[1]: 2 is not text"),
        (tuple[int, ...], {1: 2}, "x: {1: 2} is not a list"),
        (tuple[int, ...], "ab", "x: 'ab' is not a list"),
        (set[int], [1, "a"], "x[1]: 'a' is not a whole number"),
        (set, [[1]], "x: a set has no lists or objects in it"),
        (set[date], {date(2030, 1, 1): 1}, "x: {datetime.date(2030, 1, 1): 1} is not a list"),
        (dict[int, int], {"07": 1}, "x: '07' is not a whole number as text"),
        (dict[int, int], {True: 1}, "x: True is not a whole number"),
        (dict[int, int], {7: 1, "7": 2}, "x: two of its keys are equal in JSON"),
        (dict[UUID, int], {"a": 1}, "x: 'a' is not a UUID"),
        (dict[Priority, int], {3: 1}, "x: 3 is not a value of Priority"),
        (dict[int, date], {7: "x"}, "x.7: 'x' is not a date"),
        (Point, {"x": 1, "z": 1}, "x: 'z' is not one of its keys"),
        (Point, {"y": "1"}, "x: 'x' is missing"),
        (Point, (1, 2), "x: (1, 2) is not an object"),
        (CustomerId, "7", "x: '7' is not a whole number"),
        (Visit, {"note": "x"}, "x: 'at' is missing"),
        (Visit, {"at": MOMENT, "size": 1}, "x: 'size' is not one of its keys"),
        (Line, {"article": str(ID)}, "x: 'price' is missing"),
        (Line, {"article": str(ID), "price": "1", "size": 1}, "x: 'size' is not one of its keys"),
        (Line, Line(ID, Decimal(1), "3"), "x.count: '3' is not a whole number"),  # type: ignore[arg-type]
        (Line, 1, "x: 1 is not an object"),
        (Order, ORDER_JSON | {"lines": [{"article": "a", "price": "1"}]}, "x.lines[0].article: 'a' is not a UUID"),
        (Order, ORDER_JSON | {"customer": ""}, "x: ValueError: a customer has a name"),
        (Order, ORDER_JSON | {"total": "1"}, "x: 'total' is not one of its keys"),
        (Parcel, PARCEL_JSON | {"weight": "0"}, "x.weight: Input should be greater than 0"),
        (Parcel, {"weight": "1"}, "x.street: Field required"),
        (Parcel, [], "x: [] is not an object"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        taking(annotation).payload([value], {})
    assert refused.value.message.startswith(message)
    assert refused.value.field == "x"


@pytest.mark.parametrize(
    ("annotation", "form"),
    [(datetime, "soon"), (Line, {"article": "a", "price": "1"}), (Parcel, {}), (list[UUID], ["a"])],
)
def test_a_payload_that_sql_pushed_is_checked_when_it_runs(annotation: Any, form: Any) -> None:
    with pytest.raises(ValidationError, match=r"^x"):
        taking(annotation).call(task({"x": form}), None)


@pytest.mark.parametrize(
    "annotation",
    [
        Rights,
        Odd,
        Hidden,
        list[Hidden],
        complex,
        Decimal | bytearray,
        set[list[int]],
        set[Line],
        dict[float, int],
        dict[tuple[int, int], int],
        dict[Odd, int],
        tuple[Rights, ...],
    ],
    ids=str,
)
def test_a_type_without_a_json_form_is_refused_at_decoration(annotation: Any) -> None:
    with pytest.raises(ConfigError, match="does not travel as JSON"):
        taking(annotation)


# --- names, defaults and the whole payload ----------------------------------------------------------------------------


def at_noon(when: datetime, note: str = "none", *, context: Context) -> None: ...


def visits(**moments: datetime) -> None: ...


def ship(payload: Order) -> None: ...


def pack(payload: Parcel | None = None) -> None: ...


def test_other_arguments_and_defaults_are_as_without_conversion() -> None:
    arguments = Arguments.of(at_noon)
    assert arguments.payload([MOMENT], {}) == {"when": "2030-01-31T09:00:00+01:00"}
    context = object()
    assert arguments.call(task({"when": "2030-01-31T09:00:00+01:00"}), context) == {"when": MOMENT, "context": context}
    for names, message in (({}, "when: it is missing"), ({"when": MOMENT, "then": 1}, "'then': the handler takes no")):
        with pytest.raises(ValidationError, match=message):
            arguments.payload([], names)


def test_the_rest_is_converted_too() -> None:
    arguments = Arguments.of(visits)
    assert arguments.payload([], {"first": MOMENT}) == {"first": "2030-01-31T09:00:00+01:00"}
    assert arguments.call(task({"first": "2030-01-31T09:00:00+01:00"}), None) == {"first": MOMENT}


@pytest.mark.parametrize(("handler", "value", "form"), [(ship, ORDER, ORDER_JSON), (pack, PARCEL, PARCEL_JSON)])
def test_a_dataclass_or_a_model_can_be_the_whole_payload(handler: Callable[..., Any], value: Any, form: Any) -> None:
    arguments = Arguments.of(handler)
    assert arguments.payload([value], {}) == form
    assert arguments.call(task(form), None) == {"payload": value}
    with pytest.raises(ValidationError, match=r"^payload"):
        arguments.payload([{}], {})


# --- on a real queue --------------------------------------------------------------------------------------------------


def test_a_handler_gets_the_values_that_were_pushed(app: Penstock, queue: Queue, sql: Connection, clock: Clock) -> None:
    got: list[tuple[Any, ...]] = []

    @app.schedule("0 6 * * *", payload={"order": ORDER, "when": date(2030, 1, 31)})
    @app.task(queue="work")
    def send(order: Order, when: date) -> None:
        got.append((order, when))

    send.push(ORDER, date(2030, 1, 31))
    send.push_many([{"order": ORDER, "when": "2030-01-31"}, NewTask({"order": ORDER_JSON, "when": date(2030, 1, 31)})])
    form = {"order": ORDER_JSON, "when": "2030-01-31"}
    assert [one for (one,) in sql.execute("select payload from penstock.task")] == [form] * 3
    assert app.registry.schedules["work/send"].payload == form
    assert app.drain_inline("work")["done"] == 3
    assert got == [(ORDER, date(2030, 1, 31))] * 3


def test_a_value_that_does_not_fit_writes_nothing(app: Penstock, queue: Queue) -> None:
    @app.task(queue="work")
    def send(order: Order) -> None: ...

    with pytest.raises(ValidationError, match=r"^item 1: order.placed: 'now' is not a moment"):
        send.push_many([{"order": ORDER}, {"order": ORDER_JSON | {"placed": "now"}}])
    assert queue.status().totals["pushed"] == 0
