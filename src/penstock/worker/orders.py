"""What a runner is told at its start: everything it needs, in one message, so that no DSN is ever on a command line."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from penstock.errors import ConfigError, shown
from penstock.handlers import ANY_KIND, Registry, Spec
from penstock.handlers.registry import spec_of

Weights = dict[str, int]


@dataclass(frozen=True, slots=True)
class Orders:
    name: str
    target: str  # module:attribute
    dsn: str
    queues: Weights
    leases: dict[str, float]  # seconds
    concurrency: int
    grace: float
    overlap: bool  # claim while the tasks before are settled; where processes fill all cores, in turn is quicker
    max_tasks: int | None = None
    max_rss: int | None = None
    handler_of: str | None = None  # the queue whose only handler the target is, for `drain`
    log_format: str = "text"
    quiet: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load(target: str, handler_of: str | None = None) -> tuple[Registry, str | None]:
    """The handlers that `module:attribute` names, and the DSN of the application that has them."""
    found = resolve(target)
    if handler_of is not None:
        registry = Registry()
        own = getattr(found, "spec", None)
        spec = replace(own, queue=handler_of, kind=ANY_KIND) if isinstance(own, Spec) else None
        registry.add(spec or spec_of(found, queue=handler_of, kind=ANY_KIND))
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


def resolve(target: str) -> Any:
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"app: {shown(target)} is not module:name", hint="Such as myproject.tasks:app.")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as text, as sys.path has it
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
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever somebody's module does
        raise_broken(module_name, error)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"app: module {shown(module_name)} has no {shown(attribute)}", hint="Is it spelt so?")
        found = getattr(found, part)
    return found


def raise_broken(module_name: str, error: BaseException) -> NoReturn:
    raise ConfigError(
        f"app: {shown(module_name)} can not be imported: {in_one_line(error)}",
        hint=getattr(error, "hint", None) or "--debug shows where.",
    ) from error


def in_one_line(error: BaseException) -> str:
    """Somebody else's error, in a message of ours."""
    return " ".join(f"{type(error).__name__}: {error}".split())
