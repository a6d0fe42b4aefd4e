"""Proposes and builds the indexes that a pass needs: partial ones, over the records that are to be handled. They are
built without blocking writes; a second run repairs what an interrupted one left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import psycopg

from penstock.backlog.claim import match_statuses, quote
from penstock.backlog.table import Column
from penstock.backlog.terms import Terms, choose_name
from penstock.client.connections import Connection
from penstock.errors import AuthError

SHAPE = "penstock_shape"
MAX_PARTITION_NAME = 45  # bytes of a name that is not cut
State = Literal["proposed", "made", "exists"]


@dataclass(frozen=True, slots=True)
class Index:
    """An index of an adopted table. `steps` are the statements that build it. `replaces` is set if an index of this
    name exists, but for other terms."""

    name: str
    columns: tuple[str, ...]
    where: str
    statement: str = ""
    steps: tuple[str, ...] = ()
    state: State = "proposed"
    replaces: bool = False
    partitions: int = 0

    @property
    def exists(self) -> bool:
        return self.state == "exists"

    def on(self, table: str) -> str:
        """Returns the statement that builds it on another table with these columns."""
        return f"create index {unescape(quote(self.name))} on {table} {self.what}"

    @property
    def what(self) -> str:
        return f"({', '.join(self.columns)}) where {self.where}"


class TablePart(NamedTuple):
    """A table or a partition."""

    oid: int
    parent: int | None
    schema: str
    name: str
    leaf: bool

    @property
    def quoted_name(self) -> str:
        return unescape(quote(self.schema, self.name))


class FoundIndex(NamedTuple):
    """An index of ours that exists. An invalid one was left behind by an interrupted run."""

    valid: bool
    columns: tuple[str, ...]  # or expressions
    where: str | None

    def fits(self, shape: FoundIndex | None) -> bool:
        """Tells whether it is the wanted index; it is not, if the terms have changed since. No shape: unknown."""
        return shape is None or (self.columns, self.where) == (shape.columns, shape.where)


class IndexNames(NamedTuple):
    """The names of the indexes of a table and its partitions. `start`: if it is adopted under another name."""

    what: str
    start: str | None

    def of(self, part: TablePart) -> str:
        if self.start is not None:
            return fit_name(self.start if part.parent is None else f"{self.start}_{part.oid}", self.what)
        short = part.parent is None or len(part.name.encode()) < MAX_PARTITION_NAME
        return fit_name(f"penstock_{part.name if short else part.oid}", self.what)


def fit_name(start: str, end: str) -> str:
    """Returns a name of at most 63 bytes."""
    room = 62 - len(end)
    return f"{start.encode()[:room].decode(errors='ignore')}_{end}"


def unescape(text: str) -> str:
    """Returns a name or a condition for a statement without parameters."""
    return text.replace("%%", "%")


def propose(connection: Connection, terms: Terms) -> tuple[Index, ...]:
    """Returns the indexes that passes need. Records that are done are not in them, so they stay small."""
    inserted = [terms.inserted, *terms.key]
    again = inserted
    if not terms.by_ticks and terms.failures is not None and terms.last_failure is not None:
        again = [terms.failures, terms.last_failure]
    wanted = (("ready", inserted, terms.ready), ("again", again, terms.retry))
    return tuple(propose_index(connection, terms, what, columns, words) for what, columns, words in wanted if words)


def propose_index(
    connection: Connection, terms: Terms, what: str, columns: Sequence[Column], words: Sequence[str | None]
) -> Index:
    """Returns one index that passes need, and how to make it if it is missing or has changed."""
    table = terms.table
    names = IndexNames(what, f"penstock_{terms.name}" if terms.name != choose_name(None, table) else None)
    parts = read_tree(connection, table.oid)
    wanted = Index(
        name=names.of(parts[0]),
        columns=tuple(dict.fromkeys(make_key(one) for one in columns)),
        where=unescape(match_statuses(quote(terms.status.name), words)),
    )
    found = find_index(connection, table.oid, wanted.name)
    shape = probe_shape(connection, terms, wanted) if found is not None or not parts[0].leaf else None
    if found is not None and found.valid and found.fits(shape):
        return replace(wanted, state="exists", statement=make_statement(wanted, wanted.name, parts[0]))
    return replace(
        wanted,
        statement=make_statement(wanted, wanted.name, parts[0]),
        steps=tuple(list_steps(connection, wanted, names, parts, shape)),
        replaces=found is not None and not found.fits(shape),
        partitions=sum(part.leaf for part in parts if part.parent is not None),
    )


def make_key(column: Column) -> str:
    """Returns a key of an index: a column, or the expression of another index."""
    return unescape(quote(column.name)) if column.expression is None else column.expression


def make_statement(wanted: Index, name: str, part: TablePart) -> str:
    """Returns the statement that builds an index on one table: concurrently, except on a parent, which has no rows."""
    how, only = ("concurrently ", "") if part.leaf else ("", "only ")
    return f"create index {how}if not exists {unescape(quote(name))} on {only}{part.quoted_name} {wanted.what}"


def list_steps(
    connection: Connection, wanted: Index, names: IndexNames, parts: Sequence[TablePart], shape: FoundIndex | None
) -> Iterator[str]:
    """Yields the statements that build an index. On a partitioned table: an index of the parent alone, then one for
    each partition, built concurrently and attached to the first. Writes wait only for short locks."""
    above = {part.oid: part for part in parts}
    for part in parts:
        name = names.of(part)
        found = find_index(connection, part.oid, name)
        unfit = found is not None and not found.fits(shape)
        if found is not None and (unfit or (part.leaf and not found.valid)):
            yield f"drop index {'concurrently ' if part.leaf else ''}if exists {unescape(quote(part.schema, name))}"
        if found is None or unfit or (part.leaf and not found.valid):
            yield make_statement(wanted, name, part)
        if part.parent is not None:
            parent = unescape(quote(above[part.parent].schema, names.of(above[part.parent])))
            yield f"alter index {parent} attach partition {unescape(quote(part.schema, name))}"


TREE = """
    select c.oid, case when p.level > 0 then p.parentrelid::oid end, n.nspname, c.relname, p.isleaf
    from pg_catalog.pg_partition_tree(%s::oid) as p
    join pg_catalog.pg_class as c on c.oid = p.relid and c.relkind <> 'f'
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    order by p.level, c.oid
"""
WHOLE_TABLE = """
    select c.oid, null::oid, n.nspname, c.relname, true
    from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where c.oid = %s
"""


def read_tree(connection: Connection, table: int) -> list[TablePart]:
    """Returns a table and its partitions, parents first. (The first query returns nothing for a plain table.)"""
    rows = connection.execute(TREE, (table,)).fetchall() or connection.execute(WHOLE_TABLE, (table,)).fetchall()
    return [TablePart(*row) for row in rows]


THERE = """
    select i.indisvalid, array(select pg_catalog.pg_get_indexdef(i.indexrelid, k.n, false)
                               from pg_catalog.generate_series(1, i.indnatts::int) as k(n) order by k.n),
           pg_catalog.pg_get_expr(i.indpred, i.indrelid)
    from pg_catalog.pg_index as i join pg_catalog.pg_class as c on c.oid = i.indexrelid
    where i.indrelid = %s and c.relname = %s
"""


def find_index(connection: Connection, table: int, name: str) -> FoundIndex | None:
    row = connection.execute(THERE, (table, name)).fetchone()
    return None if row is None else FoundIndex(row[0], tuple(row[1]), row[2])


def probe_shape(connection: Connection, terms: Terms, wanted: Index) -> FoundIndex | None:
    """Returns an index as the catalog would show it: it is built on an empty temporary table, which is rolled back.
    None: this role may not create temporary tables."""
    connection.execute("begin")
    try:
        table = unescape(quote(terms.table.schema, terms.table.name))
        connection.execute(f"create temporary table {SHAPE} (like {table}) on commit drop".encode())
        connection.execute(wanted.on(SHAPE).encode())
        row = connection.execute(f"select 'pg_temp.{SHAPE}'::regclass::oid".encode()).fetchone()
        return None if row is None else find_index(connection, row[0], wanted.name)
    except psycopg.errors.InsufficientPrivilege:
        return None
    finally:
        connection.execute("rollback")


def make(connection: Connection, terms: Terms, indexes: Sequence[Index]) -> tuple[Index, ...]:
    """Builds the indexes that are missing, then analyzes the table."""
    made = []
    for one in indexes:
        for step in one.steps:
            make_step(connection, terms, step)
        made.append(one if one.exists else replace(one, state="made"))
    connection.execute(f"analyze {unescape(quote(terms.table.schema, terms.table.name))}".encode())
    return tuple(made)


def make_step(connection: Connection, terms: Terms, step: str) -> None:
    try:
        connection.execute(step.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise AuthError(
            f"{terms.name} is adopted, but this role may not make its indexes: {error.diag.message_primary}",
            hint=f"Its owner may: {step}; or leave them out: --no-index.",
        ) from error
