"""Adopts tables, and finds those that are adopted: the rows of penstock.adopted, which hold the terms."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock import retry as strategies
from penstock.backlog import terms as agreed
from penstock.backlog.backlog import Backlog
from penstock.backlog.source import to_json
from penstock.backlog.table import Table, check_readable, check_writable, look_up
from penstock.backlog.terms import Terms
from penstock.backlog.trial import check_key, check_statuses
from penstock.client.connections import Connection
from penstock.client.database import Database
from penstock.client.session import CONTRACT, check_contract
from penstock.errors import NotFound, shown

LOG = logging.getLogger("penstock.backlog")

# Read in binary: the text of an interval depends on the session.
ADOPTED = """
    select a.id, a.name, a.schema_name, a.table_name, a.mode, a.terms, a.retry, a.max_attempts, a.sla
    from penstock.adopted as a
"""


@contextmanager
def open_session(dsn: str, source: str) -> Iterator[tuple[Database, Connection]]:
    """Opens a session, and refuses a schema of another version."""
    database = Database(dsn, source=source)
    with open_checked(database) as connection:
        yield database, connection


@contextmanager
def open_checked(database: Database) -> Iterator[Connection]:
    """Opens a session of this database, and refuses a schema of another version."""
    with database.session() as connection, database.answering(connection):
        check_contract(connection.execute(CONTRACT).fetchone())
        yield connection


def adopt(
    dsn: str, source: str, table: str, *, tz: str | None = None, tracebacks: bool = True, **terms: Any
) -> Backlog:
    """Agrees on the terms and notes them; if they are noted already, nothing is written. A table that is adopted keeps
    its time zone, unless another one is given."""
    with open_session(dsn, source) as (database, connection):
        found = look_up(connection, table)
        check_readable(found)
        zone = find_agreed_zone(connection, found, terms.get("name")) if tz is None else tz
        agreement = agreed.agree(connection, found, tz=zone, **terms)
        if tz is not None and not agreement.naive:
            LOG.warning("%s", agreed.explain_unused_zone(agreement))
        if agreement.mode != "observe":
            check_writable(found, agreement.written)
        if not find_noted(connection, agreement):
            check_terms(connection, agreement)
        return Backlog(database, note_terms(connection, agreement), agreement, tracebacks=tracebacks)


def check_terms(connection: Connection, terms: Terms, *, on_records: bool = True) -> None:
    """Tests what the catalog does not say, before terms are noted. A table that is only observed needs no test."""
    if terms.mode != "observe":
        check_key(connection, terms)
        check_statuses(connection, terms, on_records=on_records)


def find_agreed_zone(connection: Connection, table: Table, name: str | None) -> str | None:
    """Returns the time zone in which an adopted table is read: as agreed under this name, else under its oldest one. A
    guess would depend on the session: the same text would be another moment for each caller."""
    row = connection.execute(
        "select a.terms ->> 'tz' from penstock.adopted as a where (a.schema_name, a.table_name) = (%s, %s)"
        " order by a.name = %s desc, a.id limit 1",
        (table.schema, table.name, agreed.choose_name(name, table)),
    ).fetchone()
    return None if row is None else row[0]


def find_noted(connection: Connection, terms: Terms) -> int | None:
    """Returns the id of the adopted table with exactly these terms, if there is one."""
    row = connection.execute(ADOPTED + "where a.name = %s", (terms.name,), binary=True).fetchone()
    return int(row[0]) if row is not None and row[2:] == to_stored(terms) else None


def to_stored(terms: Terms) -> tuple[Any, ...]:
    """Returns terms as the columns of a stored row, from the schema on."""
    strategy, limits = terms.strategy.to_json(), (terms.max_attempts, terms.sla)
    return (terms.table.schema, terms.table.name, terms.mode, terms.to_json(), strategy, *limits)


def note_terms(connection: Connection, terms: Terms) -> int:
    """Stores the terms, unless exactly these are stored. Returns the id of the adopted table."""
    known = find_noted(connection, terms)
    if known is not None:
        return known
    schema, table, mode, stored, strategy, max_attempts, sla = to_stored(terms)
    row = connection.execute(
        "select penstock.adopt(%s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s)",
        (terms.name, schema, table, mode, to_json(stored), to_json(strategy), max_attempts, sla),
    ).fetchone()
    assert row is not None
    return int(row[0])


def load(dsn: str, source: str, name: str, *, tracebacks: bool = True) -> Backlog:
    """Returns an adopted table, by its name or the name of the table."""
    with open_session(dsn, source) as (database, connection):
        return make_backlog(database, connection, find_adopted(connection, name), tracebacks=tracebacks)


def find_adopted(connection: Connection, name: str) -> Sequence[Any]:
    """Returns the stored row of an adopted table."""
    found = [
        row
        for row in connection.execute(ADOPTED + "order by a.name", binary=True).fetchall()
        if name in (row[1], row[3], f"{row[2]}.{row[3]}")
    ]
    exact = [row for row in found if row[1] == name] or found
    if len(exact) != 1:
        why = "is not adopted" if not exact else f"is adopted as {', '.join(row[1] for row in exact)}"
        hint = "`penstock adopt TABLE --apply` does it; `penstock backlog status` lists them."
        raise NotFound(f"{shown(name)} {why}", hint=hint)
    return exact[0]


def forget(dsn: str, source: str, name: str, *, dry_run: bool = False) -> str:
    """Forgets an adopted table, even one that no longer exists. Returns its name."""
    with open_session(dsn, source) as (_, connection):
        found = str(find_adopted(connection, name)[1])
        if not dry_run:
            connection.execute("select penstock.abandon(%s)", (found,))
        return found


def every(dsn: str, source: str, *, tracebacks: bool = True) -> list[Backlog]:
    """Returns all adopted tables."""
    return read_all(Database(dsn, source=source), tracebacks=tracebacks)


def read_all(database: Database, *, tracebacks: bool = True) -> list[Backlog]:
    """Returns all adopted tables of a database."""
    with open_checked(database) as connection:
        rows = connection.execute(ADOPTED + "order by a.name", binary=True).fetchall()
        return [make_backlog(database, connection, row, tracebacks=tracebacks) for row in rows]


def make_backlog(database: Database, connection: Connection, row: Sequence[Any], *, tracebacks: bool) -> Backlog:
    """Returns the adopted table of a stored row. Its terms are checked against the present catalog."""
    found = look_up(connection, f"{row[2]}.{row[3]}")
    return Backlog(database, row[0], agreed.agree(connection, found, **read_terms(row)), tracebacks=tracebacks)


def read_terms(row: Sequence[Any]) -> dict[str, Any]:
    """Returns stored terms as arguments for `agree`."""
    _, name, _, _, mode, stored, retry, max_attempts, sla = row
    strategy = strategies.from_json(retry)
    return {**stored, "name": name, "mode": mode, "max_attempts": max_attempts, "sla": sla, "strategy": strategy}
