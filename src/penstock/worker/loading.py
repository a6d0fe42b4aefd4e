"""Finds the application that `module:attribute` names, and its handlers; and the name of an application."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from penstock.errors import ConfigError, shown
from penstock.handlers import ANY_KIND, Registry
from penstock.handlers.registry import find_registered, spec_of


def load(target: str, handler_of: str | None = None, *, tracebacks: bool = True) -> tuple[Registry, str | None]:
    """Returns the handlers that `module:attribute` names, and the DSN of their application.

    With `tracebacks=False`, the handler of a `drain` stores no tracebacks.
    """
    found = resolve(target)
    if handler_of is not None:
        registry = Registry()
        own = find_registered(found)
        spec = None if own is None else replace(own, queue=handler_of, kind=ANY_KIND)
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
    known.check_middleware()
    return known, getattr(found, "dsn", None)


def resolve(target: str) -> Any:
    """Imports the module and returns the object that `module:attribute` names."""
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"app: {shown(target)} is not module:name", hint="Such as myproject.tasks:app.")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path contains strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise_broken(module_name, error)
        raise ConfigError(
            f"app: module {shown(module_name)} cannot be found",
            hint=f"Penstock searches {os.getcwd()} and the module path of Python.",  # noqa: PTH109
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the module is the user's code
        raise_broken(module_name, error)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"app: module {shown(module_name)} has no attribute {shown(attribute)}", hint="Check its name."
            )
        found = getattr(found, part)
    return found


_importing = False  # whether this process just imports an application to serve it


def import_module(name: str) -> Any:
    """Imports the module of an application. While it runs, the application cannot start workers of its own."""
    global _importing  # noqa: PLW0603 - an import has no arguments
    _importing = True
    try:
        return importlib.import_module(name)
    finally:
        _importing = False


def raise_broken(module_name: str, error: BaseException) -> NoReturn:
    """Raises the error for a module that cannot be imported."""
    raise ConfigError(
        f"app: {shown(module_name)} cannot be imported: {in_one_line(error)}",
        hint=getattr(error, "hint", None) or "--debug shows where.",
    ) from error


def in_one_line(error: BaseException) -> str:
    """Returns an error of the user's code as one line, for a message of Penstock."""
    return " ".join(f"{type(error).__name__}: {error}".split())


# --- the name of an application --------------------------------------------------------------------------------------


def refuse_while_importing() -> None:
    """Refuses to start workers while a worker imports the application: each would start more of them."""
    if _importing:
        raise ConfigError(
            "app: its module starts workers when it is imported, and each worker imports it",
            hint='Start them below `if __name__ == "__main__":`.',
        )


def find_target(app: object, registry: Registry) -> str:
    """Returns the `module:attribute` by which another process can import this application with all of its handlers.

    It is looked for in the module that this process runs, and then in the one module that defines all handlers.
    """
    if not registry.specs:
        raise ConfigError("app: it has no handlers", hint="Decorate functions with @app.task.")
    for module_name, module in candidates(registry):
        attribute = next((name for name, value in vars(module).items() if value is app), None)
        if attribute is not None:
            return f"{module_name}:{attribute}"
    raise ConfigError(
        "target: other processes cannot import this application",
        hint='Run it from the directory of its module, or give target="myproject.tasks:app".',
    )


def candidates(registry: Registry) -> Iterator[tuple[str, ModuleType]]:
    """Yields modules whose import defines all handlers, with the names by which they can be imported."""
    main = sys.modules["__main__"]
    name = importable_name(main)
    if name is not None:
        yield name, main
    homes = {spec.function.__module__ for spec in registry.specs.values()} - {"__main__"}
    if len(homes) == 1:
        home = homes.pop()
        if home in sys.modules:
            yield home, sys.modules[home]


def importable_name(main: ModuleType) -> str | None:
    """Returns the name by which another process can import the main module, or None.

    A script can be imported if it is in the current directory or below it.
    """
    if main.__spec__ is not None:
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(Path.cwd()):
        return None
    parts = Path(file).resolve().relative_to(Path.cwd()).with_suffix("").parts
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None
