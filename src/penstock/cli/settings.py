"""The settings of a queue, as the shell takes and shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import orjson
import typer

from penstock import retry as strategies
from penstock.cli.output import clock, span
from penstock.errors import ValidationError
from penstock.model import QueueSettings
from penstock.statements import queue_options

Lease = Annotated[str | None, typer.Option(help="How long a worker may be silent before its tasks go to others.")]
MaxAttempts = Annotated[str | None, typer.Option(help="Tries before a task is dead; `none`: the strategy decides.")]
Retry = Annotated[str | None, typer.Option(help=f"When a failed task is tried again. {strategies.GRAMMAR}")]
Sla = Annotated[str | None, typer.Option(help="The promise: no task waits longer than this; or `none`.")]
KeepDone = Annotated[str | None, typer.Option(help="Keep done tasks that long; `none`: they are deleted at once.")]
KeepDead = Annotated[str | None, typer.Option(help="Keep dead tasks that long; `none`: until they are purged.")]
KeepCancelled = Annotated[
    str | None, typer.Option(help="Keep cancelled tasks that long; `none`: until they are purged.")
]
MaxPayload = Annotated[int | None, typer.Option(help="The largest payload it accepts, in bytes.", metavar="BYTES")]

MAY_BE_NONE = ("max_attempts", "sla", "keep_done", "keep_dead", "keep_cancelled")
LENGTHS = ("lease", "sla", "keep_done", "keep_dead", "keep_cancelled")


def told_settings(**options: str | int | None) -> dict[str, Any]:
    """The settings that were given, checked."""
    found = {name: value_of(name, value) for name, value in options.items() if value is not None}
    queue_options(found)
    return found


def value_of(name: str, value: str | int) -> str | int | None:
    if value == "none" and name in MAY_BE_NONE:
        return None
    if name != "max_attempts":
        return value
    try:
        return int(value)
    except ValueError:
        raise ValidationError(f"max_attempts: {value!r} is not a number", hint="Write 1 to 32767, or none.") from None


def changed(settings: QueueSettings, changes: Mapping[str, Any]) -> QueueSettings:
    """The settings as they would be."""
    values = queue_options(changes)
    if "retry" in values:
        values["retry"] = orjson.loads(values["retry"])
    return replace(settings, **values)


def settings_json(one: QueueSettings) -> dict[str, Any]:
    lengths = {name: seconds(getattr(one, name)) for name in LENGTHS}
    return asdict(one) | lengths | {"retry": dict(one.retry), "created": one.created.isoformat()}


def seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def shown_settings(one: QueueSettings) -> dict[str, str]:
    """For people, in words they could give."""
    values = {name: shown_value(getattr(one, name)) for name in settings_json(one) if name != "queue"}
    return values | {"max_payload": size(one.max_payload)}


def shown_value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return span(value)
        case datetime():
            return clock(value)
        case Mapping():
            return strategy(value)
    return str(value)


def strategy(stored: Mapping[str, Any]) -> str:
    """As one writes it: fibonacci:1m."""
    match stored:
        case {"type": "progressive", "tiers": tiers}:
            words = [f"{length(until)}={length(every)}" for until, every in tiers]
        case {"type": "schedule", "delays": delays}:
            words = [length(one) for one in delays]
        case _:
            words = [length(stored[name]) for name in ("unit", "base", "delay") if name in stored]
            words += [f"{name}={stored[name]:g}" for name in ("factor",) if name in stored]
            words += [f"cap={length(stored['cap'])}"] if "cap" in stored else []
            words += [f"{name}={stored[name]:g}" for name in ("jitter",) if name in stored]
    return ":".join(filter(None, (str(stored.get("type")), ",".join(words))))


def length(seconds: float) -> str:
    return span(timedelta(seconds=seconds))


def size(count: int) -> str:
    """Bytes as people say them, never rounded."""
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % bytes_ == 0:
            return f"{count // bytes_:,} {unit}"
    return f"{count:,} bytes"
