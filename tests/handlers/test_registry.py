"""Which function handles which kind, and with which options. No test connects to a database."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import (
    AsyncContext,
    AsyncHandler,
    AsyncPenstock,
    ConfigError,
    Context,
    CustomRetry,
    Delays,
    Exponential,
    Fibonacci,
    Fixed,
    Handler,
    Penstock,
    PenstockError,
    Progressive,
    Task,
    ValidationError,
)
from penstock.handlers import ANY_KIND, Spec

NOWHERE = "postgresql://user@127.0.0.1:1/nothing"


@pytest.fixture
def idle() -> Penstock:
    """An application that never connects."""
    return Penstock(NOWHERE)


def send(order_id: int) -> str:
    """Sends an order."""
    return f"sent {order_id}"


async def fetch(url: str) -> str:
    return f"fetched {url}"


def together(tasks: list[Task]) -> None: ...


def policy(error: BaseException, attempt: int, age: timedelta) -> str:
    return "1m"


def spec(handler: Callable[..., Any] = send, **options: Any) -> Spec:
    return Penstock(NOWHERE).task(**options)(handler).spec


# --- decoration -------------------------------------------------------------------------------------------------------


def test_bare_it_is_of_the_queue_default_and_the_kind_of_its_name(idle: Penstock) -> None:
    @idle.task
    def remind(name: str) -> None: ...

    assert isinstance(remind, Handler)
    assert (remind.spec.queue, remind.spec.kind, remind.spec.name) == ("default", "remind", "default/remind")
    assert (remind.spec.priority, remind.spec.batch, remind.spec.mode) == (5, None, "thread")
    assert idle.registry.find("default", "remind") is remind.spec


def test_with_options(idle: Penstock) -> None:
    handler = idle.task(queue="mail", kind="letter", max_attempts=8, timeout="30s", priority=2)(send)
    found = handler.spec
    assert (found.queue, found.kind, found.max_attempts, found.timeout, found.priority) == ("mail", "letter", 8, 30, 2)
    assert idle.registry.queues() == ["mail"]
    assert [*idle.registry.of("mail")] == [found]
    assert [*idle.registry.of("default")] == []


def test_without_options_but_with_parentheses(idle: Penstock) -> None:
    assert idle.task()(send).spec.name == "default/send"


def test_the_async_client_has_the_same_decorator() -> None:
    handler = AsyncPenstock(NOWHERE).task(queue="web")(fetch)
    assert isinstance(handler, AsyncHandler)
    assert (handler.spec.name, handler.spec.mode) == ("web/fetch", "async")
    assert repr(handler) == "<AsyncHandler web/fetch>"


def test_a_handler_is_still_the_function_it_was(idle: Penstock) -> None:
    handler = idle.task(queue="mail")(send)
    assert handler(7) == handler(order_id=7) == "sent 7"
    assert handler("not checked") == "sent not checked"
    assert asyncio.run(idle.task(fetch)("x")) == "fetched x"


def test_it_looks_like_the_function_it_was(idle: Penstock) -> None:
    handler: Any = idle.task(send)
    assert (handler.__name__, handler.__qualname__, handler.__doc__) == ("send", "send", "Sends an order.")
    assert handler.__module__ == __name__
    assert handler.__wrapped__ is send
    assert inspect.signature(handler) == inspect.signature(send)
    assert repr(handler) == "<Handler default/send>"


def test_one_function_for_two_kinds(idle: Penstock) -> None:
    """Decorators may be stacked: the inner handler is the function that it was."""
    outer = idle.task(queue="slow")(idle.task(queue="quick")(with_context))
    assert outer.spec.function is with_context
    assert outer.spec.arguments is not None
    assert (outer.spec.mode, outer.spec.arguments.context) == ("async", "ctx")
    assert idle.registry.queues() == ["quick", "slow"]


async def with_context(n: int, ctx: AsyncContext) -> None: ...


class Greeter:
    def __call__(self, name: str) -> str:
        return f"hello {name}"

    async def wave(self, name: str) -> None: ...


class AsyncGreeter:
    async def __call__(self, name: str) -> None: ...


@pytest.mark.parametrize(
    ("handler", "kind", "mode"),
    [
        (Greeter(), "Greeter", "thread"),
        (AsyncGreeter(), "AsyncGreeter", "async"),
        (Greeter().wave, "wave", "async"),
        (functools.partial(send, 1), "partial", "thread"),
        (functools.partial(fetch, "x"), "partial", "async"),
    ],
    ids=["object", "async object", "method", "partial", "async partial"],
)
def test_any_callable_may_be_a_handler(handler: Callable[..., Any], kind: str, mode: str) -> None:
    assert (spec(handler).kind, spec(handler).mode) == (kind, mode)


@pytest.mark.parametrize("thing", [1, "send", {"send": send}, [send]])
def test_an_object_that_cannot_be_called_is_refused(idle: Penstock, thing: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        idle.task(thing)


# --- kinds ------------------------------------------------------------------------------------------------------------


def other(n: int) -> None: ...


def test_the_same_kind_twice_is_refused(idle: Penstock) -> None:
    idle.task(queue="mail", kind="letter")(send)
    with pytest.raises(ConfigError, match="mail/letter: send handles it already") as refused:
        idle.task(queue="mail", kind="letter")(other)
    assert refused.value.hint == "Give one of them another kind=."
    idle.task(queue="mail", kind="parcel")(other)
    idle.task(queue="post", kind="letter")(other)
    assert idle.registry.specs.keys() == {("mail", "letter"), ("mail", "parcel"), ("post", "letter")}


def test_the_same_kind_twice_is_refused_for_objects_too(idle: Penstock) -> None:
    idle.task(kind="letter")(Greeter())
    with pytest.raises(ConfigError, match="default/letter: Greeter handles it already"):
        idle.task(kind="letter")(Greeter())


def test_a_module_that_is_imported_twice_is_no_conflict(idle: Penstock) -> None:
    def again() -> Callable[..., Any]:
        def remind(name: str) -> None: ...

        return remind

    idle.task(again())
    newer = idle.task(again())
    assert idle.registry.find("default", "remind") is newer.spec


@pytest.mark.parametrize("kind", ["", "k" * 129, "ü" * 65, "a\x00b", "\ud800", 7])
def test_a_kind_that_could_not_be_stored_is_refused(kind: Any) -> None:
    with pytest.raises(ValidationError, match=r"^kind: ") as refused:
        spec(kind=kind)
    assert refused.value.field == "kind"


@pytest.mark.parametrize("kind", ["k" * 128, "ü" * 64, "Any text at all", "a/b"])
def test_a_kind_is_any_text_of_up_to_128_bytes(kind: str) -> None:
    assert spec(kind=kind).kind == kind


@pytest.mark.parametrize("queue", ["", "Mail", "a b", None, "q" * 64])
def test_a_queue_has_a_name(queue: Any) -> None:
    with pytest.raises(ValidationError, match=r"^queue: "):
        spec(queue=queue)


def test_a_handler_of_any_kind_takes_the_kinds_without_one(idle: Penstock) -> None:
    named, anything = idle.task(queue="mail")(send), idle.task(queue="mail", kind=ANY_KIND)(other)
    assert idle.registry.find("mail", "send") is named.spec
    assert idle.registry.find("mail", "whatever") is anything.spec
    assert idle.registry.find("post", "whatever") is None
    assert [one["kind"] for one in idle.registry.stored("mail")] == ["send"], "no kind is stored for it"


def test_a_queue_without_handlers_is_named_with_the_nearest(idle: Penstock) -> None:
    with pytest.raises(ConfigError, match="no handler of the application is for 'mail'") as refused:
        idle.registry.check("mail")
    assert refused.value.hint == "It has handlers for none."
    idle.task(queue="mails")(send)
    idle.registry.check("mails")
    with pytest.raises(ConfigError) as refused:
        idle.registry.check("mail")
    assert refused.value.hint == "Did you mean 'mails'?"
    with pytest.raises(ConfigError) as refused:
        idle.registry.check("quite-another")
    assert refused.value.hint == "It has handlers for mails."


# --- numbers and lengths ----------------------------------------------------------------------------------------------


OUT_OF_RANGE: dict[str, list[Any]] = {
    "max_attempts": [0, -1, 32768, True, "3", 1.5],
    "priority": [-101, 101, True, "5", None],
    "batch": [0, -1, 10_001, True, "3"],
    "timeout": [0, -1, "0s", "soon", True, float("nan"), "3651d", 0.0009, "999us", []],
}


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in OUT_OF_RANGE.items() for value in values],
)
def test_a_number_out_of_range_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        spec(together if option == "batch" else send, **{option: value})
    assert refused.value.field == option
    assert refused.value.message.startswith(f"{option}: ")


@pytest.mark.parametrize(
    ("option", "value"), [("max_attempts", 1), ("max_attempts", 32767), ("priority", 0), ("priority", 9)]
)
def test_a_number_at_the_edge_is_taken(option: str, value: int) -> None:
    assert getattr(spec(send, **{option: value}), option) == value


@pytest.mark.parametrize(
    ("value", "seconds"), [("1ms", 0.001), ("1m30s", 90), (2.5, 2.5), (timedelta(hours=1), 3600), ("3650d", 315360000)]
)
def test_a_timeout_is_any_length_of_time(value: Any, seconds: float) -> None:
    assert spec(timeout=value).timeout == seconds


# --- where it runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "options", "mode"),
    [
        (send, {}, "thread"),
        (send, {"timeout": "1s"}, "process"),
        (send, {"timeout": "1s", "run": "thread"}, "thread"),
        (send, {"run": "process"}, "process"),
        (fetch, {}, "async"),
        (fetch, {"run": "async"}, "async"),
        (fetch, {"timeout": "1s"}, "async"),
        (together, {"batch": 3}, "thread"),
    ],
)
def test_where_a_handler_runs(handler: Callable[..., Any], options: dict[str, Any], mode: str) -> None:
    assert spec(handler, **options).mode == mode


@pytest.mark.parametrize(
    ("handler", "run", "words"),
    [
        (fetch, "thread", "an async handler runs on the loop, not in a thread"),
        (fetch, "process", "an async handler runs on the loop, not in a process"),
        (send, "async", "run='async' is not thread or process"),
        (send, "fiber", "run='fiber' is not thread or process"),
    ],
)
def test_where_it_cannot_run(handler: Callable[..., Any], run: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        spec(handler, run=run)


# --- batches ----------------------------------------------------------------------------------------------------------


def unannotated(tasks): ...  # type: ignore[no-untyped-def]


async def together_async(tasks: list[Task]) -> None: ...


@pytest.mark.parametrize("handler", [together, together_async, unannotated])
def test_a_batch_handler_takes_a_list_of_tasks(handler: Callable[..., Any]) -> None:
    found = spec(handler, batch=50)
    assert (found.batch, found.arguments) == (50, None)


def of_numbers(tasks: list[int]) -> None: ...


def of_a_tuple(tasks: tuple[Task, ...]) -> None: ...


def with_more(tasks: list[Task], n: int = 0) -> None: ...


def with_its_context(tasks: list[Task], context: Context) -> None: ...


def with_nothing() -> None: ...


@pytest.mark.parametrize("handler", [of_numbers, of_a_tuple, with_more, with_its_context, with_nothing, send])
def test_a_function_without_a_list_of_tasks_is_no_batch_handler(handler: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="a batch handler takes one list of tasks"):
        spec(handler, batch=50)


def test_the_payload_of_a_batch_handler_is_pushed_by_name() -> None:
    found = spec(together, batch=3)
    assert found.payload((), {"n": 1}) == {"n": 1}
    with pytest.raises(PenstockError, match="pushed by name"):
        found.payload((1,), {})


# --- retry ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "stored"),
    [
        (None, None),
        ("fixed:30s", {"type": "fixed", "delay": 30}),
        ("fibonacci:1m,cap=1h", {"type": "fibonacci", "unit": 60, "cap": 3600}),
        (Fibonacci("1m"), {"type": "fibonacci", "unit": 60}),
        (Delays(["1m", "5m"]), {"type": "delays", "delays": [60, 300]}),
        (Progressive([("1d", "5m")]), {"type": "progressive", "tiers": [[86400, 300]]}),
        (Exponential("1s", 3, None, 0), {"type": "exponential", "base": 1, "factor": 3, "jitter": 0}),
        (policy, None),
        (lambda *_: None, None),
        (CustomRetry(policy), None),
        (CustomRetry(policy, Fixed("7m")), {"type": "fixed", "delay": 420}),
        (CustomRetry(policy, "fixed:7m"), {"type": "fixed", "delay": 420}),  # type: ignore[arg-type]
    ],
)
def test_the_stored_form_of_a_retry(retry: Any, stored: dict[str, Any] | None) -> None:
    assert spec(retry=retry).stored()["retry"] == stored


def test_a_custom_function_is_called_by_the_worker() -> None:
    assert spec(retry=policy).policy is policy
    assert spec(retry=CustomRetry(policy, Fixed("7m"))).policy is policy
    assert spec(retry=Fixed("7m")).policy is None
    assert spec(retry="fixed:7m").policy is None


NO_STRATEGIES: list[Any] = [
    5,
    1.5,
    ["1m"],
    {"type": "fixed", "delay": 1},
    timedelta(minutes=1),
    object(),
    Fibonacci,
    CustomRetry,
    CustomRetry("1m"),  # type: ignore[arg-type]
    CustomRetry(policy, policy),  # type: ignore[arg-type]
    CustomRetry(policy, Progressive),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("retry", NO_STRATEGIES)
def test_a_retry_that_is_no_strategy_is_refused(retry: Any) -> None:
    with pytest.raises(ConfigError, match="is neither a strategy nor a function"):
        spec(retry=retry)


@pytest.mark.parametrize("retry", ["", "often", "fixed", "fixed:soon", "fibonacci:1m,2m", "exponential:1s,factor=x"])
def test_a_retry_in_words_that_mean_nothing_is_refused(retry: str) -> None:
    with pytest.raises(ValidationError, match=r"^retry: ") as refused:
        spec(retry=retry)
    assert refused.value.hint is not None


def test_the_stored_form_of_a_kind() -> None:
    nothing = dict.fromkeys(("retry", "max_attempts", "timeout", "on_dead", "on_done"))
    assert spec().stored() == {"kind": "send", **nothing}
    assert spec(kind="letter", retry="fixed:1m", max_attempts=3, timeout="1m30s", on_dead="mail:late").stored() == {
        "kind": "letter",
        "retry": {"type": "fixed", "delay": 60.0},
        "max_attempts": 3,
        "timeout": "90.0 seconds",
        "on_dead": "mail:late",
        "on_done": None,
    }


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_are_kept_and_stay_what_they_are(idle: Penstock) -> None:
    hooks = SimpleNamespace(start=lambda: 1, stop=lambda: 2, dead=lambda task, error: (task, error))
    assert idle.on_start(hooks.start) is hooks.start
    assert idle.on_stop(hooks.stop) is hooks.stop
    assert idle.on_settled_dead(hooks.dead) is hooks.dead
    registry = idle.registry
    assert (registry.starting, registry.stopping, registry.dying) == ([hooks.start], [hooks.stop], [hooks.dead])
