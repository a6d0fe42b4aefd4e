"""Tests before a table is adopted: whether its key identifies a record, and whether its statuses can be written.

They change nothing: each ends with a rollback.
"""

# ruff: noqa: S608 - names from the catalog, quoted; values are parameters or literals
from __future__ import annotations

from collections.abc import Callable

import psycopg

from penstock.backlog.claim import Key, Statements, quote, quote_literal, to_arrays
from penstock.backlog.settling import is_record_error
from penstock.backlog.table import Table
from penstock.backlog.terms import Terms
from penstock.client.connections import Connection
from penstock.errors import ValidationError, shown

TRIED_RECORDS = 20  # one of them may be bad, but not all
LOCK_TIMEOUT = "5s"  # for locks
BUSY = ("55P03", "40P01")  # another session holds a lock: the status may still be fine
COPY = "penstock_trial"


def check_key(connection: Connection, terms: Terms) -> None:
    """Refuses a key that several records may share, or that some records do not have: one call of the handler would
    decide about all of them."""
    check_unique(terms)
    statements = Statements(terms)
    names = ", ".join(one.name for one in terms.key)
    nullable = [name for name, one in zip(statements.keys, terms.key, strict=True) if one.nullable]
    if nullable:
        missing = " or ".join(f"{name} is null" for name in nullable)
        if ask(connection, f"select exists (select from {statements.table} as t where {missing})"):
            raise ValidationError(
                f"key: some records of table {terms.table} have no value in {names}",
                hint=suggest_keys(terms),
                field="key",
            )
    if not terms.table.identifies([one.name for one in terms.key]):
        shared = (
            f"select from {statements.table} as t group by {', '.join(statements.keys)} having pg_catalog.count(*) > 1"
        )
        if ask(connection, f"select exists ({shared})"):
            raise ValidationError(
                f"key: several records of table {terms.table} have the same {names}",
                hint=suggest_keys(terms),
                field="key",
            )


def check_unique(terms: Terms, table: Table | None = None) -> None:
    """Refuses a key without a unique index, unless a count was agreed on. `table`: its current state."""
    names = [one.name for one in terms.key]
    if not terms.counted and not (table or terms.table).identifies(names):
        raise ValidationError(
            f"key: no unique index of table {terms.table} says that {', '.join(names)} identifies a record",
            hint=f"{suggest_keys(terms)} Or let the records be counted: --count-key (count_key=True).",
            field="key",
        )


def suggest_keys(terms: Terms) -> str:
    """Returns a hint: which columns identify a record."""
    found = [
        ", ".join(one) for one in terms.table.unique if not any(terms.table.columns[name].nullable for name in one)
    ]
    if found:
        return f"These identify a record: {'; or '.join(found[:5])}."
    return "No columns do: make a unique index (create unique index concurrently …)."


def ask(connection: Connection, question: str) -> bool:
    row = connection.execute(question.replace("%%", "%").encode()).fetchone()
    return bool(row and row[0])


# --- statuses ---------------------------------------------------------------------------------------------------------


def check_statuses(connection: Connection, terms: Terms, *, on_records: bool) -> None:
    """Refuses a status that cannot be written. It is written to waiting records, so that triggers and constraints run.
    Without such records, or if `on_records` is false, only the type and the checks of the column are tested."""
    connection.execute("begin isolation level read committed")
    try:
        connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
        statements = Statements(terms)
        records = find_waiting(connection, statements) if on_records else []
        write = (
            make_record_writer(connection, statements, records) if records else make_column_writer(connection, terms)
        )
        for field in ("done", "failed", "dead"):
            status = getattr(terms, field)
            error = None if status is None or write is None else write(status, field)
            if error is not None:
                raise make_refusal(terms, field, status, error)
    finally:
        connection.execute("rollback")


StatusWriter = Callable[[str, str], psycopg.Error | None]  # of a status and its field; returns why it cannot be written


def find_waiting(connection: Connection, statements: Statements) -> list[tuple[Key, str | None]]:
    """Returns keys and statuses of some waiting records that are not locked, ready ones first."""
    keys = ", ".join(f"{one}::text" for one in statements.keys)
    found: list[tuple[Key, str | None]] = []
    for words in (statements.terms.ready, statements.terms.retry):
        where = " and ".join([statements.among(words), *statements.whole])
        statement = (
            f"select {keys}, {statements.status}::text from {statements.table} as t where {where} limit {TRIED_RECORDS}"
        )
        rows = connection.execute(f"{statement} for update of t skip locked".replace("%%", "%").encode())
        found += [(row[:-1], row[-1]) for row in rows]
    return found


def make_record_writer(
    connection: Connection, statements: Statements, records: list[tuple[Key, str | None]]
) -> StatusWriter:
    def write(status: str, field: str) -> psycopg.Error | None:
        error = None
        for key, claimed in records:
            statement = statements.settle(status, failure=field != "done")
            error = try_statement(connection, statement, (*to_arrays([key], len(key)), claimed))
            if error is None or error.sqlstate in BUSY:
                return None
        return error

    return write


COLUMN = """
    select pg_catalog.format_type(a.atttypid, a.atttypmod),
           array(select pg_catalog.pg_get_expr(c.conbin, c.conrelid)
                 from pg_catalog.pg_constraint as c
                 where c.conrelid = a.attrelid and c.contype = 'c' and c.conkey = array[a.attnum])
    from pg_catalog.pg_attribute as a where a.attrelid = %s and a.attname = %s
"""


def make_column_writer(connection: Connection, terms: Terms) -> StatusWriter | None:
    """Writes to a temporary table that has only this column. None: this role may not create one."""
    row = connection.execute(COLUMN, (terms.table.oid, terms.status.name)).fetchone()
    assert row is not None
    checks = "".join(f", check ({one})" for one in row[1])
    name = quote(terms.status.name).replace("%%", "%")
    made = f"create temporary table {COPY} ({name} {row[0]}{checks}) on commit drop"
    if try_statement(connection, made.encode(), keep=True) is not None:
        return None

    def write(status: str, field: str) -> psycopg.Error | None:  # noqa: ARG001 - a trial by record asks for it
        given = quote_literal(status).replace("%%", "%")
        return try_statement(connection, f"insert into {COPY} values ({given})".encode())

    return write


def try_statement(
    connection: Connection, statement: bytes, parameters: tuple[object, ...] | None = None, *, keep: bool = False
) -> psycopg.Error | None:
    """Runs a statement and checks deferred constraints, then undoes it. Returns the error, if there is one."""
    found = None
    connection.execute("savepoint penstock_trial")
    try:
        connection.execute(statement, parameters)
        connection.execute("set constraints all immediate")
    except psycopg.Error as error:
        if not is_record_error(connection, error):
            raise
        found = error
    if found is not None or not keep:
        connection.execute("rollback to savepoint penstock_trial")
    return found


def make_refusal(terms: Terms, field: str, status: str, error: psycopg.Error) -> ValidationError:
    column = f"column {terms.status.name} of table {terms.table}"
    or_none = ", or none: --no-dead" if field == "dead" else ""
    return ValidationError(
        f"{field}: status {shown(status)} cannot be written to {column}: {error.diag.message_primary}",
        hint=f"Name another one: --{field} STATUS ({field}=…){or_none}.",
        field=field,
    )
