"""A table of another program, as the catalog describes it. All names are looked up there; no other text reaches SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

import psycopg

from penstock.client.connections import Connection
from penstock.errors import AuthError, NotFound, ValidationError, shown

MOMENTS = ("timestamp with time zone", "timestamp without time zone", "date")
ZONED = "timestamp with time zone"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or the first key of an index."""

    name: str
    type: str  # as format_type writes it, quoted where needed; without a length
    kind: str  # its base type's name: timestamptz, int4, text; enum
    nullable: bool
    writable: bool
    expression: str | None = None  # of the index with this name, as the catalog writes it; None: a column of the table
    reads: tuple[str, ...] = ()  # the columns of which the expression is made


@dataclass(frozen=True, slots=True)
class Table:
    """A table, as the catalog describes it."""

    oid: int
    schema: str
    name: str
    partitioned: bool
    readable: bool
    rows: float  # the planner's estimate; negative: the table was never analyzed
    columns: Mapping[str, Column]
    primary: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()  # the columns of each unique index, the primary key first

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def natural_key(self) -> tuple[str, ...]:
        """The primary key; else the first unique index whose columns are never null; else empty."""
        return next(iter(self.keys), ())

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """Each choice of columns that identify a record: they have a unique index and are never null."""
        return [one for one in self.unique if not any(self.columns[name].nullable for name in one)]

    def identifies(self, names: Collection[str]) -> bool:
        """Returns whether a unique index guarantees that no two records have the same values in these columns."""
        return any({*one} <= {*names} for one in self.unique)

    def column(self, name: object, field: str) -> Column:
        """Returns a column by its exact name, or by a name that differs in case only."""
        if not isinstance(name, str):
            raise ValidationError(f"{field}: {shown(name)} is not the name of a column", field=field)
        found = self.find_column(name)
        if found is None:
            near = get_close_matches(name, self.columns, 1)
            raise ValidationError(
                f"{field}: table {self} has no column {shown(name)}",
                hint=f"Did you mean {near[0]}?" if near else f"It has {', '.join(list(self.columns)[:12])}.",
                field=field,
            )
        return found

    def find_column(self, name: str) -> Column | None:
        folded = [one for one in self.columns if one.lower() == name.lower()]
        return self.columns.get(name) or (self.columns[folded[0]] if len(folded) == 1 else None)


BY_NAME = """
    select c.oid from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where c.relname = %(table)s and case when %(schema)s::text is null then pg_catalog.pg_table_is_visible(c.oid)
                                         else n.nspname = %(schema)s end
"""
BY_PARSING = "select pg_catalog.to_regclass(%s)::oid"
ABOUT = """
    select n.nspname, c.relname, c.relkind, pg_catalog.has_table_privilege(c.oid, 'select'), c.reltuples,
           array(select a.attname::text
                 from pg_catalog.pg_index as i
                 cross join lateral pg_catalog.unnest(i.indkey::int2[]) with ordinality as k(attnum, n)
                 join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum = k.attnum
                 where i.indrelid = c.oid and i.indisprimary order by k.n)
    from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where c.oid = %s
"""
COLUMNS = """
    select a.attname, pg_catalog.format_type(a.atttypid, -1),
           case when b.typtype = 'e' then 'enum' else pg_catalog.format_type(b.oid, null) end, not a.attnotnull,
           pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'update')
    from pg_catalog.pg_attribute as a
    join pg_catalog.pg_type as t on t.oid = a.atttypid
    join pg_catalog.pg_type as b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""


UNIQUE = """
    select array(select a.attname::text
                 from pg_catalog.unnest(i.indkey::int2[]) with ordinality as k(attnum, n)
                 join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                 where k.n <= i.indnkeyatts order by k.n)
    from pg_catalog.pg_index as i
    where i.indrelid = %s and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
    order by i.indisprimary desc, i.indnkeyatts, i.indexrelid
"""
TABLES = """
    select n.nspname, c.relname
    from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and n.nspname not in ('pg_catalog', 'information_schema', 'penstock') limit 10000
"""


INDEXES = """
    select c.relname, i.indrelid, i.indrelid::regclass::text, i.indisvalid, i.indkey[0] = 0,
           pg_catalog.pg_get_indexdef(i.indexrelid, 1, false), pg_catalog.format_type(a.atttypid, -1),
           pg_catalog.format_type(case when t.typtype = 'd' then t.typbasetype else t.oid end, null),
           array(select distinct s.attname::text
                 from pg_catalog.pg_depend as d
                 join pg_catalog.pg_attribute as s on s.attrelid = d.refobjid and s.attnum = d.refobjsubid
                 where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = i.indexrelid
                   and d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = i.indrelid and s.attnum > 0)
    from pg_catalog.pg_index as i
    join pg_catalog.pg_class as c on c.oid = i.indexrelid
    join pg_catalog.pg_attribute as a on a.attrelid = i.indexrelid and a.attnum = 1
    join pg_catalog.pg_type as t on t.oid = a.atttypid
    where pg_catalog.lower(c.relname) = pg_catalog.lower(%s)
    order by i.indrelid <> %s, c.relname <> %s limit 1
"""


class FirstKey(NamedTuple):
    """The first key of an index. `text` is its expression, or its column."""

    name: str
    table: int
    table_name: str
    valid: bool
    is_expression: bool
    text: str
    type: str
    kind: str
    reads: list[str]

    def as_column(self) -> Column:
        return Column(self.name, self.type, self.kind, True, False, self.text, tuple(self.reads))


def find_first_key(connection: Connection, table: Table, name: str) -> FirstKey | None:
    """Looks up an index by its name: one of this table; else one of another. Its expression has all names qualified, so
    that it means the same in every session."""
    plain = name.removeprefix(f"{table.schema}.")
    connection.execute("begin")
    try:
        connection.execute("set local search_path = pg_catalog")
        row = connection.execute(INDEXES, (plain, table.oid, plain)).fetchone()
    finally:
        connection.execute("rollback")
    return None if row is None else FirstKey(*row)


def look_up(connection: Connection, name: object) -> Table:
    """Returns a table by `table`, `schema.table`, or a name in SQL's notation ("My Schema"."Table")."""
    oid = find_oid(connection, name)
    row = connection.execute(ABOUT, (oid,)).fetchone()
    assert row is not None
    schema, table, kind, readable, rows, primary = row
    if kind not in ("r", "p"):
        raise ValidationError(
            f"table: {schema}.{table} is not a table", hint="Adopt the table below it.", field="table"
        )
    columns = {one[0]: Column(*one) for one in connection.execute(COLUMNS, (oid,))}
    unique = tuple(tuple(names) for (names,) in connection.execute(UNIQUE, (oid,)))
    return Table(oid, schema, table, kind == "p", bool(readable), float(rows), columns, tuple(primary), unique)


def find_oid(connection: Connection, name: object) -> int:
    if not isinstance(name, str) or not name.strip() or "\x00" in name:
        raise ValidationError(f"table: {shown(name)} is not the name of a table", field="table")
    schema, dot, table = name.rpartition(".")
    for parts in ((schema, table), (None, name)) if dot else ((None, name),):
        row = connection.execute(BY_NAME, {"schema": parts[0], "table": parts[1]}).fetchone()
        if row is not None:
            return int(row[0])
    try:
        row = connection.execute(BY_PARSING, (name,)).fetchone()
    except psycopg.Error:
        row = None  # not a name
    if row is None or row[0] is None:
        raise NotFound(
            f"table {shown(name)} does not exist",
            hint=f"Did you mean {near}?" if (near := suggest_table(connection, name)) else None,
        )
    return int(row[0])


def suggest_table(connection: Connection, name: str) -> str | None:
    rows = connection.execute(TABLES)
    names = {name: f"{schema}.{table}" for schema, table in rows for name in (table, f"{schema}.{table}")}
    near = get_close_matches(name, names, 1)
    return names[near[0]] if near else None


def check_readable(table: Table) -> None:
    if not table.readable:
        raise AuthError(f"this role may not read table {table}", hint=f"grant select on {table} to …")


def check_writable(table: Table, columns: list[Column]) -> None:
    """Raises AuthError before the first record: a pass that could not write statuses would handle records again and
    again."""
    missing = [one.name for one in columns if not one.writable]
    if missing:
        raise AuthError(
            f"this role may not update {', '.join(missing)} of table {table}",
            hint=f"grant update ({', '.join(missing)}) on {table} to …, or adopt it with mode observe.",
        )
