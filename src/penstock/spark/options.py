"""The options of `format("penstock")`, checked before any connection is made. Pure: no Spark here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, get_args

from penstock import validate
from penstock.errors import ValidationError, shown
from penstock.model import Horizon, OnConflict
from penstock.statements import conflict, table_name

MOST_PARTITIONS = 1000
STREAM_PARTITIONS, HISTORY_PARTITIONS = 2, 4  # unless somebody says how many
MOST_ROWS = 10_000_000

Parse = Callable[[str], Any]
Pace = Literal["gentle", "full"]  # how a reader of history behaves beside workers


@dataclass(frozen=True, slots=True)
class Place:
    """Where the queue is. A password is never shown: not in a plan, not in a log, not in an error."""

    dsn: str | None = field(default=None, repr=False)
    service: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`txn_app_id` and `txn_version` make a write repeatable: the same ones write the same rows once."""

    place: Place
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
    """A queue as a stream. `max_rows` is of one micro-batch, which has as many leases as partitions."""

    place: Place
    queue: str
    consumer_group: str = "default"
    max_rows: int = 50_000
    partitions: int = STREAM_PARTITIONS
    lease: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    place: Place
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    partitions: int = HISTORY_PARTITIONS
    pace: Pace = "gentle"
    window: tuple[Horizon, Horizon] | None = None  # only what was written between these two


# --- values -----------------------------------------------------------------------------------------------------------


def number(name: str, least: int, most: int) -> Parse:
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


def truth(name: str) -> Parse:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValidationError(f"{name}: {shown(text)} is neither true nor false", field=name)
        return text.lower() == "true"

    return parse


def words(name: str, most: int = 200) -> Parse:
    def parse(text: str) -> str:
        return validate.text(text, name, most)

    return parse


def pace(text: str) -> str:
    if text not in get_args(Pace):
        raise ValidationError(f"pace: {shown(text)} is neither gentle nor full", field="pace")
    return text


def moment(name: str) -> Parse:
    def parse(text: str) -> datetime:
        return validate.moment(text, name)

    return parse


def window(text: str) -> tuple[Horizon, Horizon]:
    try:
        start, end = (Horizon(**at) for at in json.loads(text))
        if start.xid <= end.xid:
            return start, end
    except (ValueError, TypeError):
        pass
    raise ValidationError(f"window: {shown(text)} is not two horizons in order, as JSON", field="window")


def lease(text: str) -> timedelta:
    found = validate.lease(text)
    assert found is not None
    return found


# What each use of the format takes: the option as people write it, the field it becomes, and how it is read.
PLACE: dict[str, tuple[str, Parse]] = {
    "url": ("dsn", str),
    "dsn": ("dsn", str),
    "service": ("service", words("service")),
}
WRITE: dict[str, tuple[str, Parse]] = {
    "queue": ("queue", validate.queue_name),
    "onConflict": ("on_conflict", conflict),
    "kind": ("kind", words("kind", 128)),
    "packColumns": ("pack_columns", truth("packColumns")),
    "rejectTable": ("reject_table", table_name),
    "txnAppId": ("txn_app_id", words("txnAppId")),
    "txnVersion": ("txn_version", number("txnVersion", 0, 2**63 - 1)),
    "maxConnections": ("max_connections", number("maxConnections", 1, MOST_PARTITIONS)),
}
STREAM: dict[str, tuple[str, Parse]] = {
    "queue": ("queue", validate.queue_name),
    "consumerGroup": ("consumer_group", words("consumerGroup")),
    "maxRowsPerTrigger": ("max_rows", number("maxRowsPerTrigger", 1, MOST_ROWS)),
    "numPartitions": ("partitions", number("numPartitions", 1, MOST_PARTITIONS)),
    "maxConnections": ("max_connections", number("maxConnections", 1, MOST_PARTITIONS)),
    "lease": ("lease", lease),
}
HISTORY: dict[str, tuple[str, Parse]] = {
    "queue": ("queue", validate.queue_name),
    "since": ("since", moment("since")),
    "until": ("until", moment("until")),
    "numPartitions": ("partitions", number("numPartitions", 1, MOST_PARTITIONS)),
    "window": ("window", window),
    "maxConnections": ("max_connections", number("maxConnections", 1, MOST_PARTITIONS)),
    "pace": ("pace", pace),
}
PASSWORD = re.compile(r"\bpassword\s*=|://[^/@]*:[^/@]+@")
READ = "read"  # what a read reads: tasks, as a stream, or history
# Spark passes these along with ours.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "inferschema", "queryname"})


# --- uses -------------------------------------------------------------------------------------------------------------


def for_writing(given: Mapping[str, str]) -> WriteOptions:
    found = WriteOptions(**read(given, WRITE, "writing"))
    if (found.txn_app_id is None) != (found.txn_version is None):
        missing = "txnAppId" if found.txn_app_id is None else "txnVersion"
        raise ValidationError(f"{missing}: txnAppId and txnVersion go together", field=missing)
    return found


def for_stream_writing(given: Mapping[str, str]) -> WriteOptions:
    """The version is the micro-batch; an identity of one's own outlives the checkpoint."""
    found = WriteOptions(**read(given, WRITE, "writing a stream"))
    if found.txn_version is not None:
        raise ValidationError("txnVersion: in a stream it is the number of the micro-batch", field="txnVersion")
    return found


def for_streaming(given: Mapping[str, str]) -> StreamOptions:
    return StreamOptions(**capped(read(given, STREAM, "reading a stream"), STREAM_PARTITIONS))


def for_history(given: Mapping[str, str]) -> HistoryOptions:
    found = HistoryOptions(**capped(read(given, HISTORY, "reading history", needed=()), HISTORY_PARTITIONS))
    if found.since is not None and found.until is not None and found.since >= found.until:
        raise ValidationError(f"since: {found.since} is not before until, {found.until}", field="since")
    return found


def for_history_stream(given: Mapping[str, str]) -> HistoryOptions:
    """A stream's windows are Spark's to choose."""
    found = for_history(given)
    if found.window is not None:
        raise ValidationError("window: a stream has its own", field="window")
    return found


def capped(found: dict[str, Any], usual: int) -> dict[str, Any]:
    """Each partition that is read has a connection of its own: there are no more of them than of those."""
    most = found.pop("max_connections", MOST_PARTITIONS)
    return found | {"partitions": min(most, found.get("partitions", usual))}


def reads_history(given: Mapping[str, str], *, stream: bool) -> bool:
    """Tasks are handed out as a stream only: a batch that was read and forgotten would be nobody's."""
    what = given.get(READ, "tasks")
    if what not in ("tasks", "history"):
        raise ValidationError(f"{READ}: {shown(what)} is not tasks or history", field=READ)
    if what == "tasks" and not stream:
        hint = 'History: .option("read", "history"). Tasks: spark.readStream, or penstock.spark.drain(…).'
        raise ValidationError(f"{READ}: tasks are read as a stream only", hint=hint, field=READ)
    return what == "history"


def read(
    given: Mapping[str, str], known: dict[str, tuple[str, Parse]], use: str, needed: tuple[str, ...] = ("queue",)
) -> dict[str, Any]:
    """Fields by name, from options whose case does not matter."""
    every = {**PLACE, **known}
    spelt = {name.lower(): name for name in every}
    texts: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() == READ or name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in spelt:
            near = get_close_matches(name.lower(), spelt, 1)
            hint = f"Did you mean {spelt[near[0]]}?" if near else f"There are {', '.join(every)}."
            raise ValidationError(f"{shown(name)[1:-1]}: no option of {use}", hint=hint, field=name)
        texts[spelt[name.lower()]] = text
    for name in needed:
        if name not in texts:
            raise ValidationError(f"{name}: the option is missing", hint=f'.option("{name}", …)', field=name)
    named = [name for name in PLACE if name in texts]
    if len(named) > 1:
        raise ValidationError(f"{named[-1]}: give url, dsn or service, not two of them", field=named[-1])
    if named and texts[named[0]].lower().startswith("jdbc:"):
        hint = f'.option("{named[0]}", "postgresql://user@host/database")'
        raise ValidationError(f"{named[0]}: that is JDBC's, and means other things", hint=hint, field=named[0])
    if PASSWORD.search(texts.get("dsn", "")):
        hint = "Spark hides url in plans, and shows dsn. Or use a service, a password file, or PENSTOCK_DSN."
        raise ValidationError("dsn: there is a password in it: call the option url", hint=hint, field="dsn")
    place = Place(texts.get("url", texts.get("dsn")), texts.get("service"))
    found = {every[name][0]: every[name][1](text) for name, text in texts.items() if name not in PLACE}
    return {"place": place, **found}
