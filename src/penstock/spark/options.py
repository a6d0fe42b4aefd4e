"""Parses and checks the options of `format("penstock")` before a connection is opened. Pure: this module does not
import Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, get_args

from penstock import validate
from penstock.client.statements.jobs import check_table
from penstock.client.statements.pushes import check_conflict
from penstock.errors import ValidationError, shown
from penstock.model import Horizon, OnConflict

MAX_PARTITIONS = 1000
STREAM_PARTITIONS, HISTORY_PARTITIONS = 2, 4  # by default
MAX_ROWS = 10_000_000

Parse = Callable[[str], Any]
Pace = Literal["gentle", "full"]
"""How fast history is read while workers run."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the queue is. Its password is never shown: not in a plan, not in a log, not in an error."""

    dsn: str | None = field(default=None, repr=False)
    service: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write. `txn_app_id` and `txn_version` make it repeatable: with the same values its rows are written
    once."""

    address: Address
    queue: str
    on_conflict: OnConflict = "skip"
    kind: str | None = None
    pack_columns: bool = False
    reject_table: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    max_connections: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of a queue that is read as a stream. `max_rows` limits a micro-batch, which has one lease per
    partition."""

    address: Address
    queue: str
    consumer_group: str = "default"
    max_rows: int = 50_000
    partitions: int = STREAM_PARTITIONS
    lease: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Options of reading history."""

    address: Address
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    partitions: int = HISTORY_PARTITIONS
    pace: Pace = "gentle"
    window: tuple[Horizon, Horizon] | None = None  # read only rows that were written between these two


# --- values -----------------------------------------------------------------------------------------------------------


def number_parser(name: str, least: int, most: int) -> Parse:
    def parse(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if not least <= found <= most:
            said = f"{name}: {shown(text)} is not a whole number from {least} to {most:,}"
            raise ValidationError(said, field=name)
        return found

    return parse


def truth_parser(name: str) -> Parse:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValidationError(f"{name}: {shown(text)} is neither true nor false", field=name)
        return text.lower() == "true"

    return parse


def text_parser(name: str, most: int = 200) -> Parse:
    def parse(text: str) -> str:
        return validate.text(text, name, most)

    return parse


def parse_pace(text: str) -> str:
    if text not in get_args(Pace):
        raise ValidationError(f"pace: {shown(text)} is neither gentle nor full", field="pace")
    return text


def moment_parser(name: str) -> Parse:
    def parse(text: str) -> datetime:
        return validate.moment(text, name)

    return parse


def parse_window(text: str) -> tuple[Horizon, Horizon]:
    try:
        start, end = (Horizon(**at) for at in json.loads(text))
        if start.xid <= end.xid:
            return start, end
    except (ValueError, TypeError):
        pass
    raise ValidationError(f"window: {shown(text)} is not two horizons in order, as JSON", field="window")


def parse_lease(text: str) -> timedelta:
    found = validate.lease(text)
    assert found is not None
    return found


# The options of each use of the format: the option's name, its field, and its parser.
ADDRESS: dict[str, tuple[str, Parse]] = {
    "url": ("dsn", str),
    "dsn": ("dsn", str),
    "service": ("service", text_parser("service")),
}
WRITE: dict[str, tuple[str, Parse]] = {
    "queue": ("queue", validate.queue_name),
    "onConflict": ("on_conflict", check_conflict),
    "kind": ("kind", text_parser("kind", 128)),
    "packColumns": ("pack_columns", truth_parser("packColumns")),
    "rejectTable": ("reject_table", check_table),
    "txnAppId": ("txn_app_id", text_parser("txnAppId")),
    "txnVersion": ("txn_version", number_parser("txnVersion", 0, 2**63 - 1)),
    "maxConnections": ("max_connections", number_parser("maxConnections", 1, MAX_PARTITIONS)),
}
STREAM: dict[str, tuple[str, Parse]] = {
    "queue": ("queue", validate.queue_name),
    "consumerGroup": ("consumer_group", text_parser("consumerGroup")),
    "maxRowsPerTrigger": ("max_rows", number_parser("maxRowsPerTrigger", 1, MAX_ROWS)),
    "numPartitions": ("partitions", number_parser("numPartitions", 1, MAX_PARTITIONS)),
    "maxConnections": ("max_connections", number_parser("maxConnections", 1, MAX_PARTITIONS)),
    "lease": ("lease", parse_lease),
}
HISTORY: dict[str, tuple[str, Parse]] = {
    "queue": ("queue", validate.queue_name),
    "since": ("since", moment_parser("since")),
    "until": ("until", moment_parser("until")),
    "numPartitions": ("partitions", number_parser("numPartitions", 1, MAX_PARTITIONS)),
    "maxConnections": ("max_connections", number_parser("maxConnections", 1, MAX_PARTITIONS)),
    "pace": ("pace", parse_pace),
    "window": ("window", parse_window),
}
PASSWORD = re.compile(r"\bpassword\s*=|://[^/@]*:[^/@]+@")
READ = "read"  # the option that chooses between tasks and history
# Spark adds these to our options.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "inferschema", "queryname"})


# --- uses -------------------------------------------------------------------------------------------------------------


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    found = WriteOptions(**read_options(given, WRITE, "writing"))
    if (found.txn_app_id is None) != (found.txn_version is None):
        missing = "txnAppId" if found.txn_app_id is None else "txnVersion"
        raise ValidationError(f"{missing}: txnAppId and txnVersion go together", field=missing)
    return found


def parse_stream_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parses the options of a streaming write. Its version is the number of the micro-batch; a txnAppId outlives the
    checkpoint."""
    found = WriteOptions(**read_options(given, WRITE, "writing a stream"))
    if found.txn_version is not None:
        raise ValidationError("txnVersion: in a stream it is the number of the micro-batch", field="txnVersion")
    return found


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    return StreamOptions(**cap_partitions(read_options(given, STREAM, "reading a stream"), STREAM_PARTITIONS))


def parse_history_options(given: Mapping[str, str]) -> HistoryOptions:
    found = HistoryOptions(
        **cap_partitions(read_options(given, HISTORY, "reading history", needed=()), HISTORY_PARTITIONS)
    )
    if found.since is not None and found.until is not None and found.since >= found.until:
        raise ValidationError(f"since: {found.since} is not before until, {found.until}", field="since")
    return found


def parse_history_stream_options(given: Mapping[str, str]) -> HistoryOptions:
    """Parses the options of a history stream. Spark chooses its windows."""
    found = parse_history_options(given)
    if found.window is not None:
        raise ValidationError("window: a stream has its own", field="window")
    return found


def cap_partitions(found: dict[str, Any], usual: int) -> dict[str, Any]:
    """Limits the partitions by `max_connections`: each partition that is read has a connection."""
    most = found.pop("max_connections", MAX_PARTITIONS)
    return found | {"partitions": min(most, found.get("partitions", usual))}


def reads_history(given: Mapping[str, str], *, stream: bool) -> bool:
    """Returns whether history is read. Tasks can be read as a stream only: the leases of a batch read would be lost."""
    what = given.get(READ, "tasks")
    if what not in ("tasks", "history"):
        raise ValidationError(f"{READ}: {shown(what)} is not tasks or history", field=READ)
    if what == "tasks" and not stream:
        hint = 'History: .option("read", "history"). Tasks: spark.readStream, or penstock.spark.drain(…).'
        raise ValidationError(f"{READ}: tasks are read as a stream only", hint=hint, field=READ)
    return what == "history"


def read_options(
    given: Mapping[str, str], known: dict[str, tuple[str, Parse]], use: str, needed: tuple[str, ...] = ("queue",)
) -> dict[str, Any]:
    """Parses options into fields by name. The case of an option's name does not matter."""
    every = {**ADDRESS, **known}
    spelt = {name.lower(): name for name in every}
    texts: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() == READ or name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in spelt:
            near = get_close_matches(name.lower(), spelt, 1)
            hint = f"Did you mean {spelt[near[0]]}?" if near else f"There are {', '.join(every)}."
            raise ValidationError(f"{shown(name)[1:-1]}: this is not an option of {use}", hint=hint, field=name)
        texts[spelt[name.lower()]] = text
    for name in needed:
        if name not in texts:
            raise ValidationError(f"{name}: the option is missing", hint=f'.option("{name}", …)', field=name)
    named = [name for name in ADDRESS if name in texts]
    if len(named) > 1:
        raise ValidationError(
            f"{named[-1]}: {named[-1]} cannot be combined with {named[0]}: give url, dsn or service", field=named[-1]
        )
    if named and texts[named[0]].lower().startswith("jdbc:"):
        hint = f'.option("{named[0]}", "postgresql://user@host/database")'
        raise ValidationError(f"{named[0]}: a JDBC URL cannot be used", hint=hint, field=named[0])
    if PASSWORD.search(texts.get("dsn", "")):
        hint = "Call the option url, which Spark hides in plans, or use a service, a password file, or PENSTOCK_DSN."
        raise ValidationError(
            "dsn: it cannot contain a password, because Spark shows it in plans", hint=hint, field="dsn"
        )
    address = Address(texts.get("url", texts.get("dsn")), texts.get("service"))
    found = {every[name][0]: every[name][1](text) for name, text in texts.items() if name not in ADDRESS}
    return {"address": address, **found}
