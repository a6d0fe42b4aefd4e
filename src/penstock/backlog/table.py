"""A table that is not ours, as the catalog knows it. Names are looked up there; nothing else reaches SQL as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import psycopg

from penstock.database import Connection
from penstock.errors import AuthError, NotFound, ValidationError, shown

MOMENTS = ("timestamp with time zone", "timestamp without time zone", "date")
ZONED = "timestamp with time zone"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as format_type writes it, quoted where needed; without a length
    kind: str  # its base type's name: timestamptz, int4, text; enum
    nullable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Table:
    oid: int
    schema: str
    name: str
    partitioned: bool
    readable: bool
    rows: float  # the planner's guess; below 0: it was never looked at
    columns: Mapping[str, Column]
    primary: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: object, field: str) -> Column:
        """A column by its name as the catalog has it; else, if only case differs, by that."""
        if not isinstance(name, str):
            raise ValidationError(f"{field}: {shown(name)} is not the name of a column", field=field)
        folded = [one for one in self.columns if one.lower() == name.lower()]
        found = self.columns.get(name) or (self.columns[folded[0]] if len(folded) == 1 else None)
        if found is None:
            near = get_close_matches(name, self.columns, 1)
            raise ValidationError(
                f"{field}: table {self} has no column {shown(name)}",
                hint=f"Did you mean {near[0]}?" if near else f"It has {', '.join(list(self.columns)[:12])}.",
                field=field,
            )
        return found


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
                 cross join lateral unnest(i.indkey::int2[]) with ordinality as k(attnum, n)
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


TABLES = """
    select n.nspname, c.relname
    from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and n.nspname not in ('pg_catalog', 'information_schema', 'penstock') limit 10000
"""


def look_up(connection: Connection, name: object) -> Table:
    """A table by `table`, `schema.table`, or as SQL would write it ("My Schema"."Table")."""
    oid = find(connection, name)
    row = connection.execute(ABOUT, (oid,)).fetchone()
    assert row is not None
    schema, table, kind, readable, rows, primary = row
    if kind not in ("r", "p"):
        raise ValidationError(
            f"table: {schema}.{table} is not a table", hint="Adopt the table below it.", field="table"
        )
    columns = {one[0]: Column(*one) for one in connection.execute(COLUMNS, (oid,))}
    return Table(oid, schema, table, kind == "p", bool(readable), float(rows), columns, tuple(primary))


def find(connection: Connection, name: object) -> int:
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
        row = None  # not even a name
    if row is None or row[0] is None:
        raise NotFound(
            f"table {shown(name)} does not exist",
            hint=f"Did you mean {near}?" if (near := nearest(connection, name)) else None,
        )
    return int(row[0])


def nearest(connection: Connection, name: str) -> str | None:
    rows = connection.execute(TABLES)
    names = {name: f"{schema}.{table}" for schema, table in rows for name in (table, f"{schema}.{table}")}
    near = get_close_matches(name, names, 1)
    return names[near[0]] if near else None


def check_readable(table: Table) -> None:
    if not table.readable:
        raise AuthError(f"this role may not read table {table}", hint=f"grant select on {table} to …")


def check_writable(table: Table, columns: list[Column]) -> None:
    """Before the first record: a pass that could not say what became of it would handle it again and again."""
    missing = [one.name for one in columns if not one.writable]
    if missing:
        raise AuthError(
            f"this role may not update {', '.join(missing)} of table {table}",
            hint=f"grant update ({', '.join(missing)}) on {table} to …, or adopt it with mode observe.",
        )
