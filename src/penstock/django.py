"""Support for Django projects: handlers that use the ORM, and tests that run them. This module needs Django."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from penstock.app import Penstock
from penstock.app_async import AsyncPenstock
from penstock.errors import ConfigError
from penstock.handlers import Registry, Spec

try:
    from asgiref.sync import sync_to_async
    from django.db import close_old_connections, connections  # type: ignore[import-untyped]
except ImportError as missing:
    raise ConfigError("penstock.django: Django is not installed", hint="pip install django") from missing

__all__ = ["drain_inline", "dsn", "manage_connections"]
F = TypeVar("F", bound=Callable[..., Any])
NOT_LIBPQS = ("assume_role", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold")


@overload
def manage_connections(target: Penstock | AsyncPenstock) -> None: ...
@overload
def manage_connections(target: F) -> F: ...
def manage_connections(target: Any) -> Any:
    """Closes Django's connections that are broken, or older than CONN_MAX_AGE, before and after each task, as Django
    does around each request; the next query opens another one. Without this, handlers keep a connection that PostgreSQL
    has closed. One call is enough for all handlers and `on_settled_dead` hooks of the application. As a
    decorator, it does the same for a function that is no handler of an application, such as one for the records of an
    adopted table."""
    registry = getattr(target, "registry", None)
    if not isinstance(registry, Registry):
        return close_around(target, is_async=inspect.iscoroutinefunction(target))
    if wrap_function not in registry.around:
        registry.wrap(wrap_function)
    return None


def wrap_function(spec: Spec) -> Callable[..., Any]:
    """Wraps a handler so that old connections are closed before and after it runs."""
    return close_around(spec.function, is_async=spec.mode == "async")


def close_around(handler: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Returns a function that closes old connections before and after it calls the handler."""
    if is_async:

        @functools.wraps(handler)
        async def run_async(*arguments: Any, **named: Any) -> Any:
            close = sync_to_async(close_old_connections)  # it runs in the thread of the ORM's async methods
            await close()
            try:
                return await handler(*arguments, **named)
            finally:
                await close()

        return run_async

    @functools.wraps(handler)
    def run(*arguments: Any, **named: Any) -> Any:
        close_old_connections()
        try:
            return handler(*arguments, **named)
        finally:
            close_old_connections()

    return run


def dsn(using: str = "default") -> str:
    """Returns the DSN of one of Django's databases. In tests, once the test database is created, that is the test
    database."""
    if using not in connections:
        raise ConfigError(f"using: {using!r} is no alias of DATABASES", hint=f"They are {', '.join(connections)}.")
    if connections[using].vendor != "postgresql":
        raise ConfigError(f"using: {using!r} is {connections[using].vendor}, not PostgreSQL")
    given = connections[using].get_connection_params()
    known = {key: value for key, value in given.items() if key not in NOT_LIBPQS and isinstance(value, (str, int))}
    return " ".join(f"{key}={quote_value(str(value))}" for key, value in known.items())


def quote_value(value: str) -> str:
    """Quotes a value for a DSN of key=value pairs."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def drain_inline(
    app: Penstock | AsyncPenstock,
    *queues: str,
    using: str = "default",
    limit: int | None = None,
    raise_errors: bool = True,
) -> dict[str, int]:
    """Runs `app.drain_inline` on one of Django's databases: in tests that is the test database, whatever the
    application's own DSN is. It sees only committed tasks, so use TransactionTestCase."""
    with Penstock(dsn(using)) as here:
        here.registry = app.registry
        return here.drain_inline(*queues, limit=limit, raise_errors=raise_errors)
