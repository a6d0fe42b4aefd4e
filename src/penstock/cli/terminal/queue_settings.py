"""Options for the settings of a queue, and how the shell prints settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import orjson
import typer

from penstock import retry as strategies
from penstock.cli.terminal.formatting import format_seconds, format_size, to_seconds
from penstock.client.statements.queues import check_options
from penstock.errors import ValidationError
from penstock.formatting import format_length, format_time
from penstock.model import QueueSettings

Lease = Annotated[
    str | None, typer.Option(help="How long a worker may be silent before other workers can claim its tasks.")
]
MaxAttempts = Annotated[str | None, typer.Option(help="Attempts before a task is dead; `none`: the strategy decides.")]
Retry = Annotated[str | None, typer.Option(help=f"When a failed task is tried again. {strategies.GRAMMAR}")]
Sla = Annotated[str | None, typer.Option(help="The promise: no task waits longer than this; `none`: no promise.")]
KeepDone = Annotated[str | None, typer.Option(help="How long done tasks are kept; `none`: they are deleted at once.")]
KeepDead = Annotated[str | None, typer.Option(help="How long dead tasks are kept; `none`: until you purge them.")]
KeepCancelled = Annotated[
    str | None, typer.Option(help="How long cancelled tasks are kept; `none`: until you purge them.")
]
PriorityStep = Annotated[
    str | None,
    typer.Option(help="Run tasks in the order of due + priority × this; `none`: smaller priorities always come first."),
]
MaxPayload = Annotated[
    int | None, typer.Option(help="The largest payload that the queue accepts, in bytes.", metavar="BYTES")
]

MaxCrashes = Annotated[
    int | None,
    typer.Option(
        help="A task that ended its worker so often while it ran alone is dead, whatever --max-attempts says."
    ),
]

MAY_BE_NONE = ("max_attempts", "sla", "keep_done", "keep_dead", "keep_cancelled", "priority_step")
LENGTHS = ("lease", "sla", "keep_done", "keep_dead", "keep_cancelled", "priority_step")


def check_settings(**options: str | int | None) -> dict[str, Any]:
    """Checks the given settings. An option that is None is not given."""
    found = {name: parse_value(name, value) for name, value in options.items() if value is not None}
    check_options(found)
    return found


def parse_value(name: str, value: str | int) -> str | int | None:
    if value == "none" and name in MAY_BE_NONE:
        return None
    if name != "max_attempts":
        return value
    try:
        return int(value)
    except ValueError:
        raise ValidationError(f"max_attempts: {value!r} is not a number", hint="Write 1 to 32767, or none.") from None


def apply_changes(settings: QueueSettings, changes: Mapping[str, Any]) -> QueueSettings:
    """Returns the settings with these changes, for --dry-run."""
    values = check_options(changes)
    if "retry" in values:
        values["retry"] = orjson.loads(values["retry"])
    return replace(settings, **values)


def settings_json(one: QueueSettings) -> dict[str, Any]:
    lengths = {name: to_seconds(getattr(one, name)) for name in LENGTHS}
    return asdict(one) | lengths | {"retry": dict(one.retry), "created": one.created.isoformat()}


def format_settings(one: QueueSettings) -> dict[str, str]:
    """Writes the settings in the form that options accept."""
    values = {name: format_value(getattr(one, name)) for name in settings_json(one) if name != "queue"}
    return values | {"max_payload": format_size(one.max_payload)}


def format_value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return format_length(value)
        case datetime():
            return format_time(value)
        case Mapping():
            return format_strategy(value)
    return str(value)


def format_strategy(stored: Mapping[str, Any]) -> str:
    """Writes a stored strategy in the form that --retry accepts: fibonacci:1m."""
    match stored:
        case {"type": "progressive", "tiers": tiers}:
            words = [f"{format_seconds(until)}={format_seconds(every)}" for until, every in tiers]
        case {"type": "delays", "delays": delays}:
            words = [format_seconds(one) for one in delays]
        case _:
            words = [format_seconds(stored[name]) for name in ("unit", "base", "delay") if name in stored]
            words += [f"{name}={stored[name]:g}" for name in ("factor",) if name in stored]
            words += [f"cap={format_seconds(stored['cap'])}"] if "cap" in stored else []
            words += [f"{name}={stored[name]:g}" for name in ("jitter",) if name in stored]
    return ":".join(filter(None, (str(stored.get("type")), ",".join(words))))
