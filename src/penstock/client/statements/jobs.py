"""Bulk writes by many processes: the ledger of their parts, and the rows that are rejected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from penstock.client.binary import TextArray
from penstock.client.statements.pushes import ENTER_PART
from penstock.client.statements.texts import encode, to_storable
from penstock.errors import ValidationError, shown

ENTER_PARTITION = "select penstock.enter_partition(%s, %s, %s, %s, %s, %s::text, %s::uuid)::text"
TAKE_SLOT = "select penstock.take_job_slot(%s, %s)"
SEAL_JOB = "select penstock.seal_job(%s, %s, %s, %s, %s::text, %s::jsonb)::text"
JOB_REPORT = "select penstock.job_report(%s)::text"
JUDGE = "select n, reason from penstock.judge_payloads(%s)"
REJECTED = ("reason", "payload", "subject", "kind", "due", "priority", "key", "meta", "expires")
NOTE_REJECTS = """
    select penstock.note_rejects(%s, %s, %s, %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                                 %s::text[], %s::text[], %s::text[])
"""
# A function writes to Penstock's own table; a table of the user is written with the rights of the connected role.
REJECT_COLUMNS = """
    select a.attname from pg_catalog.pg_attribute as a
    where a.attrelid = pg_catalog.to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
MAKE_REJECTS = """
    create table if not exists {} (
        id bigint generated always as identity primary key,
        at timestamptz not null default pg_catalog.clock_timestamp(),
        job uuid not null, partition int not null, queue text not null, reason text not null,
        payload text, subject text, kind text, due text, priority text, key text, meta text, expires text)
"""
INSERT_REJECTS = """
    insert into {} (queue, job, partition, reason, payload, subject, kind, due, priority, key, meta, expires)
    select %s, %s, %s, r.*
    from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                %s::text[]) as r
"""
TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?")


class Reject(NamedTuple):
    """A row that cannot be a task, and the reason."""

    reason: str
    payload: str | None = None
    subject: str | None = None
    kind: str | None = None
    due: str | None = None
    priority: str | None = None
    key: str | None = None
    meta: str | None = None
    expires: str | None = None


class Entry(NamedTuple):
    """The key of a part of a bulk write in the ledger. The first part of a partition stands for all of it."""

    job: UUID
    partition: int
    batch: UUID
    part: int
    rows: int
    checksum: str
    series: UUID | None = None  # the jobs of a series follow one another; upkeep keeps the newest


class NoSlot(Exception):
    """As many parts are being written at once as are allowed. Only the caller that set the limit sees this error."""


def check_table(value: object, field: str = "rejectTable") -> str:
    """Checks a table's name, with or without its schema, so that it cannot be anything else in a statement."""
    if isinstance(value, str) and TABLE.fullmatch(value):
        return value
    raise ValidationError(
        f"{field}: {shown(value)} is not the name of a table",
        hint="Write table or schema.table: letters, digits, _ and $, at most 63 each.",
        field=field,
    )


def quote_table(table: str) -> str:
    """Quotes a table's name."""
    return ".".join(f'"{part}"' for part in check_table(table).split("."))


def enter_statement(queue: str, entry: Entry) -> tuple[str, tuple[Any, ...]]:
    """Returns the statement that notes a part in the ledger, and its parameters."""
    if entry.part == 0:
        named = (entry.job, entry.partition, entry.batch)
        return ENTER_PARTITION, (queue, *named, entry.rows, entry.checksum, entry.series)
    return ENTER_PART, (queue, entry.batch, entry.part, entry.rows, entry.checksum, "{}")


def reject_statement(
    queue: str, entry: Entry, rejects: Sequence[Reject], table: str | None
) -> tuple[str, tuple[Any, ...]]:
    """Returns the statement that stores rejects, and its parameters."""
    columns = [
        TextArray([encode(None if one is None else to_storable(one, LONGEST_REJECT)) for one in column])
        for column in zip(*rejects, strict=True)
    ]
    statement = NOTE_REJECTS if table is None else INSERT_REJECTS.format(quote_table(table))
    return statement, (queue, entry.job, entry.partition, *columns)


LONGEST_REJECT = 1 << 20
