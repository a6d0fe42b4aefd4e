"""Follow-ups: the tasks that PostgreSQL pushes when a task of a kind dies or is done."""

from __future__ import annotations

from typing import Any

from penstock import validate
from penstock.errors import ConfigError, ValidationError, shown
from penstock.model import EndedTask

ANY_KIND = "*"  # its handler runs the kinds that have no handler of their own
KEYS = dict.fromkeys(EndedTask.__dataclass_fields__)  # of the payload of a follow-up


def find_target(field: str, given: Any, registry: object) -> str | None:
    """Returns the queue:kind of a follow-up from what `on_dead=` or `on_done=` says: a handler of the same application,
    or that text."""
    if given is None:
        return None
    if isinstance(given, str):
        return check_target(field, given)
    spec = getattr(given, "spec", None)
    if spec is None or getattr(getattr(given, "app", None), "registry", None) is not registry:
        raise ConfigError(
            f"{field}: {shown(given)} is no handler of this application",
            hint='Name a function that is decorated above, or write "queue:kind".',
        )
    if spec.kind == ANY_KIND:
        raise ConfigError(f"{field}: {spec.name} handles any kind", hint='Write "queue:kind", with the kind to push.')
    if spec.arguments is not None and not spec.arguments.whole:
        refuse_arguments(field, spec)
    return f"{spec.queue}:{spec.kind}"


def refuse_arguments(field: str, spec: Any) -> None:
    """Refuses a handler whose arguments are not the keys of a follow-up."""
    try:
        spec.arguments.refuse_names(KEYS)
    except ValidationError as error:
        raise ConfigError(
            f"{field}: {spec.name} cannot take a follow-up: {error.message}",
            hint="Its only argument is the payload: def handle(payload: EndedTask).",
        ) from None


def check_target(field: str, target: str) -> str:
    """Returns a checked queue:kind."""
    queue, colon, kind = target.partition(":")
    if not colon or not kind:
        raise ConfigError(f"{field}: {shown(target)} is not queue:kind")
    validate.queue_name(queue)
    validate.text(kind, "kind", validate.MAX_KIND)
    return target


def check_source(field: str, target: str | None, queue: str, kind: str) -> None:
    """Refuses follow-ups of a handler that cannot have them."""
    if target is None:
        return
    if kind == ANY_KIND:
        raise ConfigError(f"{field}: a handler for any kind has no follow-ups", hint="Give the handler a kind=.")
    if target == f"{queue}:{kind}":
        raise ConfigError(f"{field}: {queue}/{kind} would follow itself for ever", hint="Name another handler.")
