"""Finds the application that `module:attribute` names, and its handlers."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from typing import Any, NoReturn

from penstock.errors import ConfigError, shown
from penstock.handlers import ANY_KIND, Registry, Spec
from penstock.handlers.registry import spec_of


def load(target: str, handler_of: str | None = None, *, tracebacks: bool = True) -> tuple[Registry, str | None]:
    """Returns the handlers that `module:attribute` names, and the DSN of their application.

    With `tracebacks=False`, the handler of a `drain` stores no tracebacks.
    """
    found = resolve(target)
    if handler_of is not None:
        registry = Registry()
        own = as_registered(found)
        spec = replace(own, queue=handler_of, kind=ANY_KIND) if isinstance(own, Spec) else None
        known_spec = spec or spec_of(found, queue=handler_of, kind=ANY_KIND)
        registry.add(replace(known_spec, tracebacks=tracebacks and known_spec.tracebacks))
        return registry, getattr(getattr(found, "app", None), "dsn", None) if spec else None
    known = getattr(found, "registry", None)
    if not isinstance(known, Registry):
        raise ConfigError(
            f"app: {shown(target)} is {type(found).__name__}, not a Penstock",
            hint="Name the module and the Penstock in it: penstock work myproject.tasks:app.",
        )
    if not known.specs:
        raise ConfigError(f"app: {shown(target)} has no handlers", hint="Decorate functions with @app.task.")
    return known, getattr(found, "dsn", None)


def as_registered(found: Any) -> Any:
    """Returns the Spec of a decorated function as its application runs it, or None if the function is not decorated."""
    own = getattr(found, "spec", None)
    registry = getattr(getattr(found, "app", None), "registry", None)
    known = registry.find(own.queue, own.kind) if isinstance(own, Spec) and isinstance(registry, Registry) else None
    return known or own


def resolve(target: str) -> Any:
    """Imports the module and returns the object that `module:attribute` names."""
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"app: {shown(target)} is not module:name", hint="Such as myproject.tasks:app.")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path contains strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise_broken(module_name, error)
        raise ConfigError(
            f"app: there is no module {shown(module_name)}",
            hint=f"It is looked for in {os.getcwd()} and where Python finds modules.",  # noqa: PTH109
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the module is the user's code
        raise_broken(module_name, error)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"app: module {shown(module_name)} has no {shown(attribute)}", hint="Is it spelt so?")
        found = getattr(found, part)
    return found


def raise_broken(module_name: str, error: BaseException) -> NoReturn:
    """Raises the error for a module that cannot be imported."""
    raise ConfigError(
        f"app: {shown(module_name)} cannot be imported: {in_one_line(error)}",
        hint=getattr(error, "hint", None) or "--debug shows where.",
    ) from error


def in_one_line(error: BaseException) -> str:
    """Returns an error of the user's code as one line, for a message of Penstock."""
    return " ".join(f"{type(error).__name__}: {error}".split())
