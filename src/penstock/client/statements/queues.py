"""Queues: their settings, their counters, and what `verify` finds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict

import orjson

from penstock import validate
from penstock.errors import ValidationError, shown
from penstock.model import Duration, Mismatch, QueueSettings, QueueStatus, Verification
from penstock.retry import Strategy, parse

SETTINGS_OF = """
    select name, lease, max_attempts, retry::text, sla, keep_done, keep_dead, keep_cancelled, paused, created,
           penstock.largest_payload(q), settings->'notify' is distinct from 'false', max_crashes, priority_step
    from penstock.queue as q
    where %s::text is null or name = %s
    order by name
"""
KINDS_OF = """
    select q.name, k.kind, k.retry::text, k.max_attempts
    from penstock.kind as k join penstock.queue as q on q.id = k.queue_id
    order by 1, 2
"""
SET_QUEUE = "select penstock.set_queue(%s, %s::jsonb)"
SET_PAUSED = "select penstock.set_paused(%s, %s)"
DROP_QUEUE = "select penstock.drop_queue(%s, %s)"
STATUS = """
    select queue, planned, pending, active, done, dead, cancelled, extract(epoch from oldest_pending_age)::float8,
           extract(epoch from sla)::float8, paused, totals::text, at, waiting
    from penstock.status(%s)
"""
STATUS_OF = STATUS.replace("%s", "null") + "where queue = any(%s::text[])"
VERIFY = "select area, queue, what, expected, found from penstock.verify(%s)"
DROPPED = "select coalesce(pg_catalog.sum((totals->>'orphaned')::bigint), 0)::bigint from penstock.status(%s)"
REPAIR = "select queue, what, rows from penstock.repair(%s)"


class QueueOptions(TypedDict, total=False):
    """The settings that a new queue may have."""

    lease: Duration
    max_attempts: int | None
    retry: Strategy | str
    sla: Duration | None
    keep_done: Duration | None
    keep_dead: Duration | None
    keep_cancelled: Duration | None
    priority_step: Duration | None
    max_payload: int
    max_crashes: int


class QueueChanges(QueueOptions, total=False):
    """The settings that `Queue.set` can change; those that are not given stay as they are."""

    notify: bool
    paused: bool


def create_statement(name: str, exist_ok: bool, options: QueueOptions) -> tuple[str, dict[str, Any]]:
    """Returns the statement that creates a queue, and its parameters."""
    values = {f"p_{key}": value for key, value in check_options(options).items()}
    if "p_max_payload" in values:
        values["p_settings"] = orjson.dumps({"max_payload": values.pop("p_max_payload")}).decode()
    values |= {"p_name": validate.queue_name(name), "p_exist_ok": exist_ok}
    casts = {"p_retry": "::jsonb", "p_settings": "::jsonb"}
    arguments = ", ".join(f"{key} => %({key})s{casts.get(key, '')}" for key in values)
    return f"select penstock.create_queue({arguments})", values


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checks settings of a queue and returns them as PostgreSQL takes them."""
    return {key: CHECKS[key](value, key) for key, value in options.items()}


def check_retention(value: Duration | None, field: str) -> timedelta | None:
    """Checks a length of time that may be None."""
    return None if value is None else validate.positive(value, field)


def check_step(value: Duration | None, field: str) -> timedelta | None:
    """Checks how much earlier a step of the priority makes a task; it may be None."""
    return None if value is None else validate.positive(value, field, most=timedelta(days=365))


def check_strategy(value: Strategy | str, _: str) -> str:
    """Checks a retry strategy and returns it as JSON."""
    found = parse(value) if isinstance(value, str) else value
    if not callable(getattr(found, "to_json", None)):
        raise ValidationError(f"retry: {shown(value)} is not a strategy", field="retry")
    return orjson.dumps(found.to_json()).decode()


def check_lease(value: Duration, field: str) -> timedelta:
    """Checks the lease of a queue, which may not be None."""
    found = validate.lease(value)
    if found is None:
        raise ValidationError(f"{field}: None is not between 100ms and 24h", field=field)
    return found


CHECKS: Mapping[str, Any] = {
    "lease": check_lease,
    "max_attempts": lambda value, key: None if value is None else validate.whole(value, key, 1, 32767),
    "retry": check_strategy,
    "sla": check_retention,
    "keep_done": check_retention,
    "keep_dead": check_retention,
    "keep_cancelled": check_retention,
    "priority_step": check_step,
    "max_payload": lambda value, key: validate.whole(value, key, 2, validate.MAX_PAYLOAD),
    "max_crashes": lambda value, key: validate.whole(value, key, 1, 32767),
    "notify": lambda value, _: bool(value),
    "paused": lambda value, _: bool(value),
}


def change_parameters(options: Mapping[str, Any]) -> str:
    """Returns the changes for SET_QUEUE as JSON."""
    if not options:
        raise ValidationError("changes: no setting is given", hint=f"Settings are {', '.join(CHECKS)}.")
    unknown = [key for key in options if key not in CHECKS]
    if unknown:
        raise ValidationError(
            f"changes: {shown(unknown[0])} is not a setting", hint=f"Settings are {', '.join(CHECKS)}."
        )
    found = check_options(options)
    values = {
        key: f"{value.total_seconds()} seconds" if isinstance(value, timedelta) else value
        for key, value in found.items()
    }
    if "retry" in values:
        values["retry"] = orjson.Fragment(values["retry"])
    return orjson.dumps(values).decode()


def read_settings(rows: list[tuple[Any, ...]]) -> list[QueueSettings]:
    """Reads the answer of SETTINGS_OF."""
    return [QueueSettings(*(*row[:3], orjson.loads(row[3]), *row[4:])) for row in rows]


def read_statuses(rows: list[tuple[Any, ...]]) -> list[QueueStatus]:
    """Reads the answer of STATUS."""
    return [QueueStatus(*(*row[:10], orjson.loads(row[10]), *row[11:])) for row in rows]


def read_verification(rows: list[tuple[Any, ...]], dropped: tuple[Any, ...] | None) -> Verification:
    """Reads the answers of VERIFY and DROPPED."""
    areas = {area: [row for row in rows if row[0] == area] for area in ("drift", "orphans", "history", "balance")}
    return Verification(
        drift=len(areas["drift"]),
        orphans=sum(row[4] for row in areas["orphans"]),
        history=len(areas["history"]),
        balance=len(areas["balance"]),
        dropped=int(dropped[0]) if dropped else 0,
        findings=tuple(Mismatch(row[1], f"{row[0]}: {row[2]}", row[3], row[4]) for row in rows),
    )
