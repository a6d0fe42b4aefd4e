"""The registry: which function handles which kind of which queue. It is explicit: a payload never names code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

from penstock import validate
from penstock.errors import ConfigError, ValidationError, shown
from penstock.handlers.annotations import hints_of, is_async, name_of, same_function
from penstock.handlers.arguments import Arguments
from penstock.handlers.chain import compile_chain
from penstock.handlers.context import AsyncContext, Context
from penstock.handlers.follow_ups import ANY_KIND, check_source
from penstock.handlers.middleware import Middleware
from penstock.model import Backfill, Duration, Json, NewSchedule, Task
from penstock.retry import CustomRetry, RetryPolicy, Strategy, parse
from penstock.schedule import check_schedule

SHORTEST_TIMEOUT = timedelta(milliseconds=1)
Mode = Literal["thread", "process", "async"]
"""Where a handler runs: in a thread, in a process of its own, or as a coroutine."""
Hook = Callable[..., Any]


@dataclass(frozen=True)
class Spec:
    """A handler: the function, and how its tasks are run."""

    function: Callable[..., Any]
    queue: str
    kind: str
    mode: Mode
    arguments: Arguments | None  # None: the handler takes a list of tasks
    retry: Strategy | None
    policy: RetryPolicy | None
    max_attempts: int | None
    timeout: float | None  # seconds
    priority: int
    batch: int | None
    tracebacks: bool = True  # stored with errors
    key: str | None = None  # the argument that is the key of a task
    expires: timedelta | None = None  # tasks are cancelled that have not started so long after their due
    on_dead: str | None = None  # queue:kind of the task that is pushed when a task of this kind dies
    on_done: str | None = None
    inside: Spec | None = None  # the handler itself, if `function` runs it inside its middleware

    @property
    def name(self) -> str:
        """The queue and the kind, as `queue/kind`."""
        return f"{self.queue}/{self.kind}"

    @cached_property
    def quick(self) -> bool:
        """Whether the handler takes only keys of its payload, as they are in JSON, and has no timeout."""
        wanted = self.arguments
        if wanted is None or self.timeout is not None or self.inside is not None:
            return False
        return not (wanted.context or wanted.task or wanted.whole or wanted.converted)

    @cached_property
    def quick_inside(self) -> bool:
        """Whether the handler inside its middleware is quick, and no middleware needs a context."""
        wanted = self.arguments
        return self.inside is not None and self.inside.quick and wanted is not None and wanted.context is None

    def stored(self) -> Json:
        """Returns what PostgreSQL stores about the kind."""
        return {
            "kind": self.kind,
            "retry": None if self.retry is None else self.retry.to_json(),
            "max_attempts": self.max_attempts,
            "timeout": None if self.timeout is None else f"{self.timeout} seconds",
            "on_dead": self.on_dead,
            "on_done": self.on_done,
        }

    def payload(self, given: tuple[Any, ...], named: Json) -> Json:
        """Returns the checked payload of a push."""
        if self.arguments is not None:
            return self.arguments.payload(given, named)
        if given:
            raise ConfigError(f"{self.name}: a batch handler's arguments are pushed by name")
        return named

    def key_of(self, payload: Json) -> str | None:
        """Returns the key of a task with this payload: the argument that the handler named, as text."""
        if self.key is None:
            return None
        value = payload.get(self.key)
        if value is None:
            return None
        if type(value) not in (str, int):
            raise ValidationError(
                f"{self.key}: {shown(value)} is no key of a task",
                hint="A key is text or a whole number.",
                field=self.key,
            )
        return validate.text(str(value), self.key, validate.MAX_KEY)

    def scheduled(self, asked: ScheduleOptions) -> NewSchedule:
        """Returns a schedule that pushes tasks of this handler.

        A payload that the handler does not accept is refused at decoration.
        """
        if self.kind == ANY_KIND:
            raise ConfigError(f"{self.name}: a schedule pushes tasks of one kind", hint="Give the handler a kind=.")
        payload = {} if asked.payload is None else asked.payload
        if self.arguments is not None and type(payload) is dict:
            payload = self.arguments.encoded(payload)
        return check_schedule(
            NewSchedule(
                name=self.name if asked.name is None else asked.name,
                queue=self.queue,
                cron=asked.cron,
                tz=asked.tz,
                kind=self.kind,
                payload=payload,
                priority=self.priority if asked.priority is None else asked.priority,
                backfill=asked.backfill,
                key=self.key_of(payload),
                expires=self.expires if asked.expires is None else asked.expires,
            )
        )


Wrapper = Callable[[Spec], Callable[..., Any]]


@dataclass(frozen=True)
class ScheduleOptions:
    """The arguments of `@app.schedule`; the handler provides the rest."""

    cron: str
    tz: str
    name: str | None
    backfill: Backfill
    payload: Json | None
    priority: int | None
    expires: Duration | None = None


def spec_of(
    function: Callable[..., Any],
    *,
    queue: str,
    kind: str | None = None,
    retry: Strategy | RetryPolicy | CustomRetry | str | None = None,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
    priority: int = 5,
    batch: int | None = None,
    run: Mode | None = None,
    key: str | None = None,
    expires: Duration | None = None,
    tracebacks: bool = True,
    on_dead: str | None = None,
    on_done: str | None = None,
) -> Spec:
    """Returns a checked handler. A handler that cannot work is refused when it is decorated."""
    if not callable(function):
        raise ConfigError(f"handler: {shown(function)} cannot be called")
    awaited = is_async(function)
    name = kind if kind is not None else getattr(function, "__name__", type(function).__name__)
    stored, policy = strategy_of(retry)
    queue = validate.queue_name(queue)
    for field_, target in (("on_dead", on_dead), ("on_done", on_done)):
        check_source(field_, target, queue, name)
    arguments = None if batch is not None else Arguments.of(function, wanted=AsyncContext if awaited else Context)
    return Spec(
        function=function,
        queue=queue,
        kind=name if name == ANY_KIND else validate.text(name, "kind", validate.MAX_KIND),
        mode=mode_of(name, run, awaited=awaited, timed=timeout is not None),
        arguments=arguments,
        retry=stored,
        policy=policy,
        max_attempts=None if max_attempts is None else validate.whole(max_attempts, "max_attempts", 1, 32767),
        timeout=None if timeout is None else seconds(timeout),
        priority=validate.check_priority(priority),
        batch=None if batch is None else batch_of(function, name, batch),
        tracebacks=tracebacks,
        key=None if key is None else check_key_name(name, key, arguments),
        expires=None if expires is None else validate.positive(expires, "expires"),
        on_dead=on_dead,
        on_done=on_done,
    )


def check_key_name(name: str, key: object, arguments: Arguments | None) -> str:
    """Checks that the argument that is to be the key is one of the handler. The payloads of a batch handler may have
    any."""
    if not isinstance(key, str) or not key:
        raise ConfigError(f"{name}: key={shown(key)} is not the name of an argument")
    if arguments is not None and not (arguments.open or arguments.whole) and key not in arguments.types:
        known = ", ".join(arguments.types) or "none"
        raise ConfigError(f"{name}: key={shown(key)} is no argument of the handler", hint=f"Its arguments are {known}.")
    return key


def mode_of(name: str, run: str | None, *, awaited: bool, timed: bool) -> Mode:
    """Returns how a handler runs: async handlers on the loop, sync handlers in threads.

    A sync handler with a timeout runs in a process, because only a process can be ended.
    """
    if awaited:
        if run not in (None, "async"):
            raise ConfigError(f"{name}: an async handler runs on the loop, not in a {run}", hint="Leave out run=.")
        return "async"
    if run is None:
        return "process" if timed else "thread"
    if run not in ("thread", "process"):
        raise ConfigError(f"{name}: run={shown(run)} is not thread or process")
    return run  # type: ignore[return-value]


def seconds(timeout: Duration) -> float:
    """Returns a timeout in seconds; it must be at least 1 ms."""
    length = validate.positive(timeout, "timeout", most=timedelta(days=3650))
    if length < SHORTEST_TIMEOUT:
        raise ValidationError(f"timeout: {shown(timeout)} is less than 1ms", field="timeout")
    return length.total_seconds()


def batch_of(function: Callable[..., Any], name: str, batch: int) -> int:
    """Returns the checked batch size of a handler that takes a list of tasks."""
    own = [*inspect.signature(function).parameters.values()]
    hint = hints_of(function).get(own[0].name) if own else None
    if len(own) != 1 or not (hint is None or (get_origin(hint) is list and get_args(hint) == (Task,))):
        raise ConfigError(f"{name}: a batch handler takes one list of tasks", hint="def handle(tasks: list[Task]): …")
    return validate.whole(batch, "batch", 1, validate.MAX_CLAIM)


def strategy_of(retry: Any) -> tuple[Strategy | None, RetryPolicy | None]:
    """Returns the strategy that PostgreSQL stores, and the policy that the worker asks first."""
    if retry is None or isinstance(retry, str):
        return (None if retry is None else parse(retry)), None
    if isinstance(retry, CustomRetry) and callable(retry.policy):
        stored, policy = strategy_of(retry.fallback)
        if policy is None:
            return stored, retry.policy
    elif callable(getattr(retry, "to_json", None)) and not isinstance(retry, type):
        return retry, None
    elif callable(retry) and not isinstance(retry, type):
        return None, retry
    raise ConfigError(f"retry: {shown(retry)} is neither a strategy nor a function", hint="Fibonacci('1m'), for one.")


@dataclass(slots=True)
class Registry:
    """The handlers, middleware, schedules and hooks of an application.

    Hooks run when a worker starts, when it stops, and when a task dies.
    """

    specs: dict[tuple[str, str], Spec] = field(default_factory=dict)
    schedules: dict[str, NewSchedule] = field(default_factory=dict)
    # Functions with a schedule that are not handlers yet.
    early: list[tuple[Callable[..., Any], ScheduleOptions]] = field(default_factory=list)
    around: list[Wrapper] = field(default_factory=list)
    middleware: list[Middleware] = field(default_factory=list)  # the outermost first
    compiled: dict[tuple[object, ...], Spec] = field(default_factory=dict)
    starting: list[Hook] = field(default_factory=list)
    stopping: list[Hook] = field(default_factory=list)
    dying: list[Hook] = field(default_factory=list)

    def add(self, spec: Spec) -> Spec:
        """Adds a handler, and the schedules that its function got before it was a handler."""
        known = self.specs.get((spec.queue, spec.kind))
        if known is not None and not same_function(known.function, spec.function):
            raise ConfigError(
                f"{spec.name}: {name_of(known.function)} handles it already",
                hint="Give one of them another kind=.",
            )
        self.specs[spec.queue, spec.kind] = spec
        self.compiled.clear()
        ours = [asked for function, asked in self.early if function is spec.function]
        self.early = [one for one in self.early if one[0] is not spec.function]
        for asked in ours:
            self.schedule(spec, asked)
        return spec

    def wrap(self, wrapper: Wrapper) -> None:
        """Makes workers, `drain_inline` and passes over adopted tables call what `wrapper` returns, for present and
        future handlers and `on_settled_dead` hooks.

        The wrapper gets the handler's Spec and returns a function like the one in it, which is outside of all
        middleware. Calling the handler as a function is not affected.
        """
        self.around.append(wrapper)
        self.compiled.clear()
        self.dying = [wrapped(spec_of_hook(hook), wrapper).function for hook in self.dying]

    def add_dead_hook(self, hook: Hook) -> None:
        """Adds a hook that is called for dead tasks, inside the wrappers of handlers."""
        self.dying.append(functools.reduce(wrapped, self.around, spec_of_hook(hook)).function)

    def add_middleware(self, new: Middleware) -> None:
        """Adds a middleware for present and future handlers, inside those of the same order that are there."""
        self.middleware = [one for one in self.middleware if not one.is_repeated_by(new)]
        self.middleware.append(new)
        self.middleware.sort(key=lambda one: one.order)
        self.compiled.clear()

    def add_form(self, function: Callable[..., Any], of: Callable[..., Any], *, batch: bool) -> None:
        """Adds another form of a middleware."""
        known = next((one for one in self.middleware if one.has(of)), None)
        if known is None:
            raise ConfigError(
                f"form_of: {shown(of)} is no middleware of this application", hint="Decorate it with @app.middleware."
            )
        known.add(function, batch=batch)
        self.compiled.clear()

    def schedule(self, spec: Spec, asked: ScheduleOptions) -> None:
        """Adds a schedule for a handler; its name must be unique."""
        new = spec.scheduled(asked)
        if self.schedules.setdefault(new.name, new) != new:
            raise ConfigError(
                f"schedule: there is another one called {shown(new.name)}", hint="Give one of them another name=."
            )

    def schedules_of(self, queue: str) -> list[NewSchedule]:
        """Returns the schedules that push to a queue. A function with a schedule must be a handler by now."""
        if self.early:
            raise ConfigError(
                f"schedule: {name_of(self.early[0][0])} is not a handler", hint="Decorate it with @app.task too."
            )
        return [new for new in self.schedules.values() if new.queue == queue]

    def find(self, queue: str, kind: str) -> Spec | None:
        """Returns the handler of a kind, or else the queue's handler for any kind, or None. Its function runs it inside
        its middleware."""
        known = self.compiled.get((queue, kind))
        if known is not None:
            return known
        spec = self.specs.get((queue, kind)) or self.specs.get((queue, ANY_KIND))
        if spec is None:
            return None
        around = [one for one in self.middleware if one.wraps(queue, kind)]
        # There is no bound to the kinds that a handler for any kind gets, so they share what the same middleware wraps.
        shared = (queue, spec.kind, *map(id, around))
        compiled = self.compiled.get(shared) or self.wrap_function(compile_chain(spec, around))
        self.compiled[shared] = compiled
        if spec.kind == kind:
            self.compiled[queue, kind] = compiled
        return compiled

    def wrap_function(self, spec: Spec) -> Spec:
        """Returns a handler with all wrappers around its function."""
        return functools.reduce(wrapped, self.around, spec)

    def queues(self) -> list[str]:
        """Returns the names of the queues that have handlers, in order."""
        return sorted({queue for queue, _ in self.specs})

    def of(self, queue: str) -> Iterator[Spec]:
        """Returns the handlers of a queue."""
        return (spec for spec in self.specs.values() if spec.queue == queue)

    def stored(self, queue: str) -> list[Json]:
        """Returns what PostgreSQL stores about the kinds of a queue."""
        return [spec.stored() for spec in self.of(queue) if spec.kind != ANY_KIND]

    def check(self, queue: str) -> None:
        """Refuses a queue without a handler, because a worker could never run its tasks, and an application with a
        middleware that cannot wrap what it is for."""
        self.check_middleware()
        if any(self.of(queue)):
            return
        near = get_close_matches(queue, self.queues(), 1)
        served = ", ".join(self.queues()) or "none"
        hint = f"Did you mean {near[0]!r}?" if near else f"It has handlers for {served}."
        raise ConfigError(f"queues: no handler of the application is for {shown(queue)}", hint=hint)

    def check_middleware(self) -> None:
        """Refuses a middleware that names a queue or a kind without a handler, or that has no form for a handler."""
        for one in self.middleware:
            for queue in one.queues or ():
                if not any(self.of(queue)):
                    raise ConfigError(f"middleware {one.name}: no handler is for queue {shown(queue)}")
            for kind in one.kinds or ():
                served = [queue for queue in one.queues or self.queues() if self.find(queue, kind) is not None]
                if not served:
                    raise ConfigError(f"middleware {one.name}: no handler is for kind {shown(kind)}")
        for queue, kind in self.specs:
            self.find(queue, kind)


def wrapped(spec: Spec, wrapper: Wrapper) -> Spec:
    """Returns the handler with its function wrapped."""
    return replace(spec, function=wrapper(spec))


def spec_of_hook(hook: Hook) -> Spec:
    """Returns the Spec that a wrapper gets of an `on_settled_dead` hook, which is called for tasks of any queue and
    kind."""
    return Spec(
        function=hook,
        queue=ANY_KIND,
        kind=ANY_KIND,
        mode="async" if inspect.iscoroutinefunction(hook) else "thread",
        arguments=None,
        retry=None,
        policy=None,
        max_attempts=None,
        timeout=None,
        priority=5,
        batch=None,
    )


def find_registered(found: Any) -> Spec | None:
    """Returns the Spec of a decorated function as its application runs it for a task, inside its middleware, or None if
    the function is not decorated."""
    own = getattr(found, "spec", None)
    if not isinstance(own, Spec):
        return None
    registry = registry_of(found)
    return (registry and registry.find(own.queue, own.kind)) or own


def find_for_records(found: Any) -> Spec | None:
    """Returns the Spec of a decorated function for the records of an adopted table, or None if it is not decorated. A
    record is no task, so middleware does not run."""
    own = getattr(found, "spec", None)
    if not isinstance(own, Spec):
        return None
    registry = registry_of(found)
    return own if registry is None else registry.wrap_function(registry.specs.get((own.queue, own.kind), own))


def registry_of(found: Any) -> Registry | None:
    """Returns the registry of the application of a decorated function."""
    registry = getattr(getattr(found, "app", None), "registry", None)
    return registry if isinstance(registry, Registry) else None
