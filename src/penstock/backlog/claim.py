"""The SQL of a pass over an adopted table. Due records are found in SQL, so that others cannot fill a limit. A record
is locked while it is handled (SKIP LOCKED: overlapping runs are safe), and its status is changed only if it is still
the one it was claimed with.

Identifiers and types come from the catalog and are quoted; statuses are literals, so that partial indexes can be used.
"""

# ruff: noqa: S608 - names from the catalog, quoted; values are parameters or literals
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.types import datetime as moments

from penstock.backlog import ticks
from penstock.backlog.table import ZONED, Column
from penstock.backlog.terms import Terms
from penstock.client.binary import TextArray
from penstock.client.connections import Connection

Key = tuple[str, ...]
Values = tuple[Any, ...]


class LockedRecord(NamedTuple):
    """A record whose row is locked."""

    key: Key
    claimed: str | None  # its status when it was locked
    since: datetime | None  # None: not needed
    failures: int
    last_failure: datetime | None
    record: dict[str, Any]
    remembered: bool = False  # the sidecar may have a row about it


@dataclass(frozen=True, slots=True)
class Candidate:
    """A failed record that is due. It is not locked yet."""

    due: datetime
    key: Key


def quote(*parts: str) -> str:
    """Returns a quoted name for a statement that has parameters."""
    return sql.Identifier(*parts).as_string(None).replace("%", "%%")


def quote_literal(value: str) -> str:
    return sql.Literal(value).as_string(None).replace("%", "%%")


def find_unused(name: str, names: Collection[str]) -> str:
    """Returns a name that is none of these."""
    return find_unused(f"{name}_", names) if name in names else name


def match_statuses(column: str, statuses: Sequence[str | None]) -> str:
    """Returns a condition: a column has one of these statuses. None is NULL."""
    words = [quote_literal(one) for one in statuses if one is not None]
    parts = [f"{column} in ({', '.join(words)})"] if words else []
    parts += [f"{column} is null"] if None in statuses else []
    return f"({' or '.join(parts)})" if len(parts) > 1 else "".join(parts) or "false"


class Statements:
    """The statements about one adopted table."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.table = quote(terms.table.schema, terms.table.name)
        self.status = self.column(terms.status)
        self.inserted = self.column(terms.inserted)
        # Names of parameters. An expression names its columns without a table, so they must differ from all columns.
        self.given = [find_unused(f"k{n}", terms.table.columns) for n in range(len(terms.key))]
        self.number = find_unused("n", terms.table.columns)
        self.keys = [self.column(one) for one in terms.key]
        self.key = f'array[{", ".join(f"{one}::text" for one in self.keys)}] collate "C"'
        self.since = self.moment(terms.inserted)
        pairs = zip(self.keys, terms.key, strict=True)
        self.whole = [
            f"{name} is not null" for name, one in pairs if one.nullable
        ]  # records without a key are left alone
        self.again = " and ".join([self.among(terms.retry), *self.whole])
        self.fresh, self.failed = self._select_records(again=False), self._select_records(again=True)

    def _select_records(self, *, again: bool) -> str:
        """Selects a record and what must be known of it. Timestamps that are not needed are not read."""
        failures, last = self.terms.failures, self.terms.last_failure
        selected = (
            *(f"{one}::text" for one in self.keys),
            f"{self.status}::text",
            self.since if self.terms.by_ticks else "null::timestamptz",
            "0" if failures is None else f"coalesce({self.column(failures)}, 0)::int",
            "null::timestamptz" if last is None or not again else self.moment(last),
        )
        inserted = self.terms.inserted
        more = "" if inserted.expression is None else f", {self.inserted} as {quote(inserted.name)}"
        return f"select {', '.join(selected)}, t.*{more} from {self.table} as t"

    def column(self, column: Column) -> str:
        """Returns a column of the table, whose alias is t; or the expression of an index, whose columns have no
        alias."""
        return f"t.{quote(column.name)}" if column.expression is None else column.expression.replace("%", "%%")

    def moment(self, column: Column) -> str:
        """Returns a column as a timestamptz. A column without a zone is read in the zone of the terms."""
        name = self.column(column)
        return name if column.kind == ZONED else f"({name}::timestamp at time zone {quote_literal(self.terms.zone)})"

    def bound(self, column: Column, parameter: str = "%s") -> str:
        """Returns a timestamptz as the type of that column, so that an index on the column can be used."""
        given = f"{parameter}::timestamptz"
        return given if column.kind == ZONED else f"({given} at time zone {quote_literal(self.terms.zone)})"

    def readable(self, column: Column) -> str:
        """Returns a condition: Python can represent the timestamp (not infinity, not 44 BC)."""
        return f"{self.column(column)} between '0001-01-02' and '9999-12-30'"

    def among(self, statuses: Sequence[str | None]) -> str:
        return match_statuses(self.status, statuses)

    def typed(self, column: Column, parameter: str = "%s") -> str:
        return f"{parameter}::{column.type.replace('%', '%%')}"

    # --- ready ----------------------------------------------------------------------------------------------------

    def ready(self, *, newest_first: bool, bounded: bool, onward: bool) -> bytes:
        """Selects the next ready records and locks them. With `onward`, it begins after the values of the last one
        (see `position`), so that a pass looks at no record twice."""
        way, sign = ("desc", "<") if newest_first else ("asc", ">")
        order = ", ".join(f"{one} {way}" for one in (self.inserted, *self.keys))
        where = [self.among(self.terms.ready), f"{self.inserted} is not null", *self.whole]
        if bounded:
            where.append(f"{self.inserted} >= {self.bound(self.terms.inserted)}")
        if onward:
            values = ", ".join(self.typed(one) for one in (self.terms.inserted, *self.terms.key))
            where.append(f"({', '.join((self.inserted, *self.keys))}) {sign} ({values})")
        return (
            f"{self.fresh} where {' and '.join(where)} order by {order} limit %s for update of t skip locked".encode()
        )

    def position(self, taken: LockedRecord) -> Values:
        """Returns the values by which ready records are ordered."""
        columns = (self.terms.inserted, *self.terms.key)
        return tuple(taken.record[one.name] for one in columns)

    # --- due again ------------------------------------------------------------------------------------------------

    def due_by_ticks(
        self, now: datetime, mark: ticks.Mark, oldest: datetime | None, limit: int
    ) -> tuple[bytes, Values]:
        """Selects due records of Progressive: one index probe for each age at which records are retried."""
        found = ticks.find_windows(self.terms.rungs, mark, now)
        column = self.terms.inserted
        parameters: list[Any] = [
            [one.after for one in found],
            [one.until for one in found],
            [one.age // timedelta(microseconds=1) for one in found],
        ]
        where = self.again
        if oldest is not None:
            where += f" and {self.inserted} >= {self.bound(column)}"
            parameters.append(oldest)
        beyond = "s.tick > %s" if mark.key is None else '(s.tick, s.key) > (%s, %s::text[] collate "C")'
        parameters += [mark.tick] if mark.key is None else [mark.tick, list(mark.key)]
        statement = f"""
            select s.tick, s.key
            from unnest(%s::timestamptz[], %s::timestamptz[], %s::bigint[]) as w(after, until, age)
            cross join lateral (
                select {self.since} + w.age * interval '1 microsecond' as tick, {self.key} as key
                from {self.table} as t
                where {self.inserted} > {self.bound(column, "w.after")}
                  and {self.inserted} <= {self.bound(column, "w.until")} and {where}
            ) as s
            where {beyond} order by s.tick, s.key limit %s
        """
        return statement.encode(), (*parameters, limit)

    def due_by_columns(
        self, now: datetime, after: Candidate | None, oldest: datetime | None, limit: int
    ) -> tuple[bytes, Values]:
        """Selects due records by failures that the table itself counts: one index probe for each number of failures."""
        waits = self.terms.waits
        where, common = self.again, [] if oldest is None else [oldest]
        if oldest is not None:
            where += f" and {self.inserted} >= {self.bound(self.terms.inserted)}"
        parts = [self._select_waited(where), self._select_never_failed(where)]
        parameters: list[Any] = [
            [*range(len(waits.by_failures))],
            [one // timedelta(microseconds=1) for one in waits.by_failures],
            [now - one for one in waits.by_failures],
            *common,
            *common,
        ]
        if not waits.ends:
            longest = waits.by_failures[-1]
            parts.append(self._select_waited_longest(where))
            micros = longest // timedelta(microseconds=1)
            parameters += [micros, len(waits.by_failures), now - longest, *common]
        beyond, values = continue_after(after)
        statement = f"select d.due, d.key from ({' union all '.join(parts)}) as d{beyond}"
        return f"{statement} order by d.due, d.key limit %s".encode(), (*parameters, *values, limit)

    def _failure_columns(self) -> tuple[str, str, Column]:
        assert self.terms.failures is not None
        assert self.terms.last_failure is not None
        return self.column(self.terms.failures), self.column(self.terms.last_failure), self.terms.last_failure

    def _select_waited(self, where: str) -> str:
        failures, last, column = self._failure_columns()
        return f"""
            select {self.moment(column)} + w.wait * interval '1 microsecond' as due, {self.key} as key
            from unnest(%s::int[], %s::bigint[], %s::timestamptz[]) as w(failures, wait, latest)
            cross join lateral (
                select * from {self.table} as t
                where {failures} = w.failures and {last} <= {self.bound(column, "w.latest")}
                  and {self.readable(column)} and {where} offset 0
            ) as t
        """

    def _select_never_failed(self, where: str) -> str:
        failures, last, _ = self._failure_columns()
        return (
            f"select {self.since}, {self.key} from {self.table} as t"
            f" where ({failures} is null or {last} is null) and {self.readable(self.terms.inserted)} and {where}"
        )

    def _select_waited_longest(self, where: str) -> str:
        failures, last, column = self._failure_columns()
        return (
            f"select {self.moment(column)} + %s * interval '1 microsecond', {self.key} from {self.table} as t"
            f" where {failures} >= %s and {last} <= {self.bound(column)} and {self.readable(column)} and {where}"
        )

    def due_by_sidecar(self, adopted: int, now: datetime, after: Candidate | None, limit: int) -> tuple[bytes, Values]:
        """Selects due records by failures that the sidecar remembers."""
        beyond, values = continue_after(after)
        statement = f"""
            select d.due, d.key from (
                select r.due, r.key from penstock.adopted_record as r
                where r.adopted_id = %s and r.due is not null and r.due <= %s
            ) as d{beyond} order by d.due, d.key limit %s
        """
        return statement.encode(), (adopted, now, *values, limit)

    def failed_before(self, adopted: int, after: Candidate | None, limit: int) -> tuple[bytes, Values]:
        """Selects the next failed records, and whether the sidecar knows them. It does not know those that failed
        before the table was adopted, or in another program."""
        beyond, values = "", tuple[Any, ...]()
        if after is not None:
            typed = ", ".join(self.typed(one) for one in self.terms.key)
            beyond = f" and ({', '.join((self.inserted, *self.keys))}) > ({self.bound(self.terms.inserted)}, {typed})"
            values = (after.due, *after.key)
        statement = f"""
            select s.since, s.key, (
                select true from penstock.adopted_record as r where r.adopted_id = %s and r.key = s.key limit 1)
            from (
                select {self.since} as since, {self.key} as key from {self.table} as t
                where {self.again} and {self.readable(self.terms.inserted)}{beyond}
                order by {", ".join((self.inserted, *self.keys))} limit %s
            ) as s
        """
        return statement.encode(), (adopted, *values, limit)

    def unknown(self, adopted: int) -> tuple[bytes, Values]:
        """Selects all failed records that the sidecar does not know."""
        statement = f"""
            select {self.since}, {self.key} from {self.table} as t
            where {self.again} and {self.readable(self.terms.inserted)} and not exists (
                select from penstock.adopted_record as r where r.adopted_id = %s and r.key = {self.key})
        """
        return statement.encode(), (adopted,)

    # --- by key ---------------------------------------------------------------------------------------------------

    def named(self) -> str:
        """Returns the given keys as rows."""
        arrays = ", ".join(["%s::text[]"] * len(self.keys))
        names = ", ".join(self.given)
        # PostgreSQL accepts `unnest` of several arrays without a schema only, and always uses its own.
        call = "pg_catalog.unnest" if len(self.keys) == 1 else "unnest"
        return f"{call}({arrays}) with ordinality as c({names}, {self.number})"

    def same(self) -> str:
        pairs = zip(self.keys, self.terms.key, strict=True)
        return " and ".join(
            f"{name} = {self.typed(one, f'c.{given}')}" for given, (name, one) in zip(self.given, pairs, strict=True)
        )

    def lock(self) -> bytes:
        """Locks those of the given records that are still to be handled and not held by another session."""
        live = self.among((*self.terms.ready, *self.terms.retry))
        return (
            f"{self.failed} join {self.named()} on {self.same()} where {live} order by c.{self.number}"
            " for update of t skip locked"
        ).encode()

    def present(self) -> bytes:
        """Selects those of the given records that are still failed, locked or not."""
        return (
            f"select {self.key} from {self.table} as t join {self.named()} on {self.same()}"
            f" where {self.among(self.terms.retry)}"
        ).encode()

    def settle(self, status: str, *, failure: bool) -> bytes:
        """Changes the status of records that still have the one they were claimed with."""
        changes = [f"{quote(self.terms.status.name)} = {quote_literal(status)}"]
        if failure and self.terms.failures is not None and self.terms.last_failure is not None:
            changes.append(f"{quote(self.terms.failures.name)} = coalesce({self.column(self.terms.failures)}, 0) + 1")
            moment = self.bound(self.terms.last_failure, "penstock.clock()")
            changes.append(f"{quote(self.terms.last_failure.name)} = {moment}")
        return (
            f"update {self.table} as t set {', '.join(changes)} from {self.named()}"
            f" where {self.same()} and {self.status} is not distinct from {self.typed(self.terms.status)}"
        ).encode()

    def remembered(self) -> bytes:
        key = ", ".join(f"c.{one}" for one in self.given)
        return (
            f"select r.key, r.failures, r.due from {self.named()} join penstock.adopted_record as r"
            f' on r.adopted_id = %s and r.key = array[{key}] collate "C"'
        ).encode()


def continue_after(after: Candidate | None) -> tuple[str, Values]:
    if after is None:
        return "", ()
    return ' where (d.due, d.key) > (%s, %s::text[] collate "C")', (after.due, list(after.key))


def to_arrays(keys: Sequence[Key], width: int) -> list[TextArray]:
    """Returns keys as one array per column."""
    return [TextArray([key[n].encode() for key in keys]) for n in range(width)]


def fetch_taken(connection: Connection, statement: bytes, parameters: Values, width: int) -> list[LockedRecord]:
    """Returns locked records; their keys have `width` columns. If a value has no representation in Python, all are read
    again with that value as text."""
    try:
        return read_taken(connection, statement, parameters, width, lenient=False)
    except psycopg.DataError as error:
        if error.sqlstate is not None:
            raise
        return read_taken(connection, statement, parameters, width, lenient=True)


def read_taken(
    connection: Connection, statement: bytes, parameters: Values, width: int, *, lenient: bool
) -> list[LockedRecord]:
    with connection.cursor() as cursor:
        for kind, loader in LENIENT if lenient else ():
            cursor.adapters.register_loader(kind, loader)
        cursor.execute(statement, parameters)
        names = [one.name for one in cursor.description or ()][width + 4 :]
        rows = cursor.fetchall()
    first = width + 4
    return [LockedRecord._make((row[:width], *row[width:first], dict(zip(names, row[first:])), False)) for row in rows]  # noqa: B905 - a row has its columns


def fetch_candidates(connection: Connection, statement: bytes, parameters: Values) -> list[Candidate]:
    return [Candidate(row[0], tuple(row[1])) for row in connection.execute(statement, parameters)]


class LenientMoment(moments.TimestamptzLoader):
    """Loads a timestamp that Python cannot represent (infinity, 44 BC) as text: one such record must not end a pass."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class LenientTimestamp(moments.TimestampLoader):
    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class LenientDate(moments.DateLoader):
    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


LENIENT = (("timestamptz", LenientMoment), ("timestamp", LenientTimestamp), ("date", LenientDate))
